"""Programs that consume: subscriptions of every kind, redelivery, readers, and views."""

import itertools
import queue
import time
from collections import defaultdict
from typing import Any

from place import TIMEOUT_MILLIS, Place, data, pattern, raised, take, until


def listener(place: Place) -> Any:
    client, topic = place.client(), place.topic("listener")
    heard: queue.Queue[Any] = queue.Queue()

    def listen(consumer: Any, message: Any) -> None:
        heard.put(message.data().decode())
        consumer.acknowledge(message)

    consumer = client.subscribe(topic, "s", message_listener=listen)
    made = client.create_producer(topic)
    for number in range(10):
        made.send(b"%d" % number)
    first = [heard.get(timeout=TIMEOUT_MILLIS / 1000) for _ in range(10)]
    consumer.pause_message_listener()
    refused = raised(lambda: consumer.receive(100))
    consumer.resume_message_listener()
    made.send(b"more")
    seen = [first, refused, heard.get(timeout=TIMEOUT_MILLIS / 1000)]
    client.close()
    return seen


def readers(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("readers")
    made = client.create_producer(topic)
    ids = []
    for number in range(10):
        ids.append(made.send(b"%d" % number))
        time.sleep(0.005)

    def rest(reader: Any) -> list[str]:
        read = []
        while reader.has_message_available():
            read.append(reader.read_next(TIMEOUT_MILLIS))
        return data(read)

    kept = p.MessageId.deserialize(ids[4].serialize())
    seen = [
        rest(client.create_reader(topic, p.MessageId.earliest)),
        rest(client.create_reader(topic, kept)),
        rest(client.create_reader(topic, kept, start_message_id_inclusive=True)),
        rest(client.create_reader(topic, p.MessageId.latest)),
        rest(client.create_reader(topic, p.MessageId.latest, start_message_id_inclusive=True)),
    ]
    reader = client.create_reader(topic, p.MessageId.latest)
    nothing = raised(lambda: reader.read_next(100))
    made.send(b"new")
    seen.append([nothing, rest(reader)])
    published = [m.publish_timestamp() for m in _all(client, topic, p, 11)]
    for place_, count in ((p.MessageId.earliest, 11), (ids[7], 3), (published[5], 6)):
        reader.seek(place_)
        # pulsar-client may say that nothing is there right after a seek by time: it is not asked before.
        read = data([reader.read_next(TIMEOUT_MILLIS) for _ in range(count)])
        seen.append([read, reader.has_message_available()])
    client.close()
    return seen


def _all(client: Any, topic: str, p: Any, count: int) -> list[Any]:
    reader = client.create_reader(topic, p.MessageId.earliest)
    return [reader.read_next(TIMEOUT_MILLIS) for _ in range(count)]


def seek(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("seek")
    consumer = client.subscribe(topic, "s")
    made = client.create_producer(topic)
    for number in range(20):
        made.send(b"%d" % number)
        time.sleep(0.003)
    messages = take(consumer, 20)
    seen = []
    for target in (p.MessageId.earliest, messages[10].message_id(), messages[5].publish_timestamp()):
        consumer.seek(target)
        seen.append(data([consumer.receive(TIMEOUT_MILLIS)]))
    consumer.seek(p.MessageId.latest)
    seen += [raised(lambda: consumer.receive(300)), raised(lambda: consumer.seek("nowhere")) != "nothing"]
    seen.append(str(consumer.get_last_message_id()) == str(messages[-1].message_id()))
    client.close()
    return seen


def key_shared(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("key-shared")
    consumers = [client.subscribe(topic, "s", consumer_type=p.ConsumerType.KeyShared) for _ in range(3)]
    made = client.create_producer(topic)
    for number in range(200):
        made.send_async(b"%d" % number, None, partition_key=f"k{number % 20}")
    made.flush()
    owners: dict[str, set[int]] = defaultdict(set)
    order: dict[str, list[int]] = defaultdict(list)
    left = 200
    deadline = time.monotonic() + TIMEOUT_MILLIS / 1000
    while left and time.monotonic() < deadline:
        for index, consumer in enumerate(consumers):
            try:
                message = consumer.receive(20)
            except p.Timeout:
                continue
            consumer.acknowledge(message)
            owners[message.partition_key()].add(index)
            order[message.partition_key()].append(int(message.data()))
            left -= 1
    client.close()
    return [left, len(owners), max(map(len, owners.values())), all(o == sorted(o) for o in order.values())]


def sticky_ranges(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("sticky")
    consumers = [
        client.subscribe(
            topic, "s", consumer_type=p.ConsumerType.KeyShared,
            key_shared_policy=p.ConsumerKeySharedPolicy(p.KeySharedMode.Sticky, False, [ranges]),
        )
        for ranges in ((0, 30_000), (30_001, 65_535))
    ]  # fmt: skip
    made = client.create_producer(topic)
    for number in range(30):
        made.send(b"x", partition_key=f"key {number}")
    received: list[list[str]] = [[] for _ in consumers]
    deadline = time.monotonic() + TIMEOUT_MILLIS / 1000
    while sum(map(len, received)) < 30 and time.monotonic() < deadline:
        for consumer, keys in zip(consumers, received, strict=True):
            try:
                message = consumer.receive(50)
            except p.Timeout:
                continue
            keys.append(message.partition_key())
            consumer.acknowledge(message)
    more = [raised(lambda consumer=consumer: consumer.receive(300)) for consumer in consumers]
    client.close()
    return [[sorted(keys) for keys in received], more]


def dead_letters(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("dead")
    dead = client.subscribe(f"{topic}-dead", "s")
    policy = p.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "kept")
    consumer = client.subscribe(
        topic, "s", consumer_type=p.ConsumerType.Shared, dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=100,
    )  # fmt: skip
    made = client.create_producer(topic)
    for number in range(4):
        made.send(b"%d" % number, properties={"n": str(number)}, partition_key="k")
    attempts: dict[str, int] = defaultdict(int)
    deadline = time.monotonic() + TIMEOUT_MILLIS / 1000
    while sum(attempts.values()) < 8 and time.monotonic() < deadline:
        message = consumer.receive(TIMEOUT_MILLIS)
        name = message.data().decode()
        attempts[name] += 1
        if name in "02":
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message)
    buried = sorted((m.data().decode(), m.properties().get("n"), m.partition_key()) for m in take(dead, 2))
    more = [raised(lambda: dead.receive(500)), raised(lambda: consumer.receive(500))]
    client.close()
    return [dict(sorted(attempts.items())), buried, more]


def negative_acknowledgement(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("nack")
    consumer = client.subscribe(
        topic, "s", consumer_type=p.ConsumerType.Shared, negative_ack_redelivery_delay_ms=500
    )
    client.create_producer(topic).send(b"again")
    counts, received = [], []
    for _ in range(4):
        message = consumer.receive(TIMEOUT_MILLIS)
        received.append(time.monotonic())
        counts.append(message.redelivery_count())
        if len(counts) < 4:
            consumer.negative_acknowledge(message)
    consumer.acknowledge(message)
    last = raised(lambda: consumer.receive(1000))
    client.close()
    return [counts, all(later - earlier > 0.3 for earlier, later in itertools.pairwise(received)), last]


def acknowledgement_time_out(place: Place) -> Any:
    """pulsar-client takes no less than ten seconds."""
    p, client, topic = place.p, place.client(), place.topic("ack-time-out")
    consumer = client.subscribe(
        topic, "s", consumer_type=p.ConsumerType.Shared, unacked_messages_timeout_ms=10_000
    )
    made = client.create_producer(topic)
    for number in range(3):
        made.send(b"%d" % number)
    started = time.monotonic()
    first = [consumer.receive(TIMEOUT_MILLIS) for _ in range(3)]
    consumer.acknowledge(first[1])
    again = sorted(data([consumer.receive(TIMEOUT_MILLIS) for _ in range(2)]))
    waited = time.monotonic() - started
    more = raised(lambda: consumer.receive(300))
    client.close()
    return [again, 9 < waited < TIMEOUT_MILLIS / 1000, more]


def redelivery(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("redelivery")
    consumer = client.subscribe(topic, "s", consumer_type=p.ConsumerType.Shared)
    made = client.create_producer(topic)
    for number in range(5):
        made.send(b"%d" % number)
    messages = [consumer.receive(TIMEOUT_MILLIS) for _ in range(5)]
    consumer.acknowledge(messages[2])
    # Acknowledgements are sent a moment later, and unacknowledged messages are redelivered.
    arrived = until(lambda: unacknowledged(place, topic, "s") == 4)
    consumer.redeliver_unacknowledged_messages()
    again = take(consumer, 4)
    seen = [
        sorted(data(again)),
        sorted({m.redelivery_count() for m in again}),
        raised(lambda: consumer.receive(300)),
        arrived,
    ]
    client.close()
    return seen


def unacknowledged(place: Place, topic: str, subscription: str) -> int:
    """Messages that the broker has given to consumers, and heard nothing of."""
    stats = place.admin("GET", topic.replace("://", "/") + "/stats")
    return int(stats["subscriptions"][subscription]["unackedMessages"])


def cumulative_acknowledgement(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("cumulative")
    consumer = client.subscribe(topic, "s")
    shared = client.subscribe(topic, "shared", consumer_type=p.ConsumerType.Shared)
    made = client.create_producer(topic)
    for number in range(6):
        made.send(b"%d" % number)
    messages = [consumer.receive(TIMEOUT_MILLIS) for _ in range(6)]
    consumer.acknowledge_cumulative(messages[3])
    consumer.close()
    left = data(take(client.subscribe(topic, "s"), 2))
    refused = raised(lambda: shared.acknowledge_cumulative(shared.receive(TIMEOUT_MILLIS)))
    client.close()
    return [left, refused]


def batch_index_acknowledgement(place: Place) -> Any:
    client, topic = place.client(), place.topic("batch-index")
    made = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    for number in range(5):
        made.send_async(b"%d" % number, None)
    made.flush()
    messages = [consumer.receive(TIMEOUT_MILLIS) for _ in range(5)]
    for message in messages[:2]:
        consumer.acknowledge(message)
    time.sleep(0.5)
    consumer.close()
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    left = data(take(consumer, 3))
    more = raised(lambda: consumer.receive(300))
    client.close()
    return [left, more]


def batch_receive(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("batch-receive")
    consumer = client.subscribe(topic, "s", batch_receive_policy=p.ConsumerBatchReceivePolicy(4, -1, 6000))
    made = client.create_producer(topic)
    for number in range(6):
        made.send(b"%d" % number)
    first = data(consumer.batch_receive())
    started = time.monotonic()
    second = data(consumer.batch_receive())
    waited = time.monotonic() - started
    client.close()
    return [first, second, waited > 5.0]


def several_topics(place: Place) -> Any:
    client = place.client()
    topics = [place.topic("one"), place.partitioned("two", 2), place.topic("three")]
    consumer = client.subscribe(topics, "s")
    for topic in topics:
        made = client.create_producer(topic)
        for number in range(4):
            made.send(b"%d" % number)
    seen = defaultdict(list)
    for message in take(consumer, 12):
        base = message.topic_name().split("-partition-")[0]
        seen[topics.index(base)].append(int(message.data()))
    unknown = raised(lambda: consumer.acknowledge(client.create_producer(topics[0]).send(b"x")))
    client.close()
    return [{key: sorted(values) for key, values in sorted(seen.items())}, unknown]


def patterns(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("pattern")
    makers = [client.create_producer(f"{topic}-{name}") for name in "abc"]
    for made in makers:
        made.send(b"early")
    # pulsar-client takes no notice of pattern_auto_discovery_period: topics that come later wait a minute.
    consumer = client.subscribe(pattern(topic), "s", initial_position=p.InitialPosition.Earliest)
    for made in makers:
        made.send(b"late")
    seen = sorted((m.topic_name().removeprefix(topic), m.data().decode()) for m in take(consumer, 6))
    client.close()
    return seen


def subscription_kinds(place: Place) -> Any:
    """Each subscription type: may a second consumer join, and does it take over."""
    p, client, topic = place.p, place.client(), place.topic("kinds")
    first = client.subscribe(topic, "exclusive")
    busy = raised(lambda: client.subscribe(topic, "exclusive"))
    pair = [
        client.subscribe(topic, "failover", consumer_type=p.ConsumerType.Failover, consumer_name=name)
        for name in "ab"
    ]
    made = client.create_producer(topic)
    made.send(b"1")
    # The broker waits a little before it chooses, and which of them it chooses is its own matter.
    outcomes = ["", ""]
    until(lambda: "nothing" in take_in_turn(pair, outcomes, 200))
    active = outcomes.index("nothing")
    before = [sorted(outcomes), take_in_turn(pair, ["", ""], 500)]
    pair[active].close()
    made.send(b"2")
    after = data(take(pair[1 - active], 1))
    names = [first.subscription_name(), pair[1 - active].consumer_name() in "ab", first.is_connected()]
    first.unsubscribe()
    again = raised(lambda: client.subscribe(topic, "exclusive"))
    client.close()
    return [busy, before, after, names, first.is_connected(), again]


def take_in_turn(consumers: list[Any], outcomes: list[str], timeout_millis: int) -> list[str]:
    """``outcomes``, with what each consumer says to the wish for a message."""
    for index, consumer in enumerate(consumers):
        outcomes[index] = raised(lambda one=consumer: one.acknowledge(one.receive(timeout_millis)))
    return outcomes


def table_view(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.partitioned("view", 2)
    text = p.schema.StringSchema()
    made = client.create_producer(topic, schema=text)
    for key, value in (("a", "1"), ("b", "2"), ("a", "3")):
        made.send(value, partition_key=key)
    view = client.create_table_view(topic, schema=text)
    held = [len(view), view.get("a"), view.get("b"), view.get("c")]
    heard: queue.Queue[Any] = queue.Queue()
    view.for_each_and_listen(lambda key, value: heard.put([key, value]))
    at_first = sorted([heard.get(timeout=TIMEOUT_MILLIS / 1000), heard.get(timeout=TIMEOUT_MILLIS / 1000)])
    made.send("4", partition_key="c")
    later = heard.get(timeout=TIMEOUT_MILLIS / 1000)
    made.send("", partition_key="a")
    removed = heard.get(timeout=TIMEOUT_MILLIS / 1000)
    gone = until(lambda: view.get("a") is None)
    view.close()
    client.close()
    return [held, at_first, later, removed, gone]


def zero_queue(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("zero")
    consumers = [
        client.subscribe(topic, "s", consumer_type=p.ConsumerType.Shared, receiver_queue_size=0)
        for _ in range(2)
    ]
    made = client.create_producer(topic)
    made.send(b"1")
    first = data([consumers[0].receive()])
    made.send(b"2")
    second = data([consumers[1].receive()])
    client.close()
    return [first, second]


PROGRAMS = (
    listener, readers, seek, key_shared, sticky_ranges, dead_letters, negative_acknowledgement,
    acknowledgement_time_out, redelivery, cumulative_acknowledgement, batch_index_acknowledgement,
    batch_receive, several_topics, patterns, subscription_kinds, table_view, zero_queue,
)  # fmt: skip
