"""Programs that publish: what reaches consumers, what receipts say, and what is refused."""

import threading
import time
from datetime import timedelta
from typing import Any

from place import KEYS, TIMEOUT_MILLIS, Place, data, raised, take, until

VALUE_ERRORS = ("ValueError", "InvalidMessage", "InvalidConfiguration")
"""Wrong values: ours are a kind of ValueError."""


def producer(place: Place) -> Any:
    client, topic = place.client(), place.topic("producer")
    consumer = client.subscribe(topic, "s")
    made = client.create_producer(topic, producer_name="mine", properties={"made": "by hand"})
    before = made.last_sequence_id()
    ids = [
        made.send(
            b"%d" % number,
            properties={"a": "1", "b": "zwei"},
            partition_key=f"k{number}",
            ordering_key="o",
            event_timestamp=1_700_000_000_000 + number,
        )
        for number in range(3)
    ]
    seen = [
        [
            m.data().decode(), m.properties(), m.partition_key(), m.ordering_key(), m.event_timestamp(),
            m.producer_name(), m.redelivery_count(), m.topic_name() == topic, m.has_null_value(),
            abs(m.publish_timestamp() - time.time() * 1000) < 600_000, m.message_id() == ids[index],
        ]
        for index, m in enumerate(take(consumer, 3))
    ]  # fmt: skip
    state = [
        before,
        made.last_sequence_id(),
        made.producer_name(),
        made.topic() == topic,
        made.is_connected(),
    ]
    made.close()
    after = [made.is_connected(), raised(lambda: made.send(b"late"))]
    numbers = [[i.partition(), i.batch_index()] for i in ids]
    client.close()
    return [seen, state, after, numbers]


def callbacks(place: Place) -> Any:
    client, topic = place.client(), place.topic("callbacks")
    made = client.create_producer(topic)
    outcomes: list[Any] = []
    for number in range(200):
        made.send_async(
            b"%d" % number, lambda result, message_id, n=number: outcomes.append((n, result, message_id))
        )
    made.flush()
    reader = client.create_reader(topic, place.p.MessageId.earliest)
    read = [int(reader.read_next(TIMEOUT_MILLIS).data()) for _ in range(200)]
    client.close()
    return [
        [n for n, _, _ in outcomes] == list(range(200)),
        {str(result) for _, result, _ in outcomes} == {"Result.Ok"},
        len({(i.ledger_id(), i.entry_id(), i.batch_index()) for _, _, i in outcomes}),
        read == list(range(200)),
    ]


def batches(place: Place) -> Any:
    client, topic = place.client(), place.topic("batches")
    made = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=50, batching_max_publish_delay_ms=10_000,
        compression_type=place.p.CompressionType.ZSTD,
    )  # fmt: skip
    ids: list[Any] = []
    for number in range(100):
        made.send_async(b"%d" % number, lambda result, message_id: ids.append(message_id))
    made.flush()
    reader = client.create_reader(topic, place.p.MessageId.earliest)
    read = [reader.read_next(TIMEOUT_MILLIS) for _ in range(100)]
    client.close()
    return [
        [i.batch_index() for i in ids] == [*range(50), *range(50)],
        len({i.entry_id() for i in ids}),
        [str(m.message_id()) for m in read] == [str(i) for i in ids],
    ]


def limits(place: Place) -> Any:
    """A full queue, a message that is too big, and wrong arguments."""
    client, topic = place.client(), place.topic("limits")
    made = client.create_producer(topic)
    return [
        raised(lambda: made.send(b"x" * (6 << 20))),
        [
            raised(lambda kw=kw: made.send(b"x", **kw)) in VALUE_ERRORS
            for kw in (
                {"properties": "a"}, {"partition_key": 5}, {"sequence_id": "a"}, {"replication_clusters": 5},
                {"disable_replication": "a"}, {"event_timestamp": "a"}, {"deliver_at": "a"},
                {"deliver_after": 5},
            )
        ],
        raised(lambda: made.send(5)),
        raised(lambda: client.create_producer("persistent://one-part-only")) != "nothing",
        raised(client.close),
    ]  # fmt: skip


def null_values(place: Place) -> Any:
    client, topic = place.client(), place.topic("null")
    consumer = client.subscribe(topic, "s")
    made = client.create_producer(topic)
    made.send(None, partition_key="k")
    made.send(b"", partition_key="k")
    seen = [[m.has_null_value(), m.data().decode(), m.partition_key()] for m in take(consumer, 2)]
    client.close()
    return seen


def compression(place: Place) -> Any:
    client = place.client()
    seen = []
    for name in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
        topic = place.topic(name)
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic, compression_type=getattr(place.p.CompressionType, name)).send(
            b"x" * 10_000
        )
        seen.append([name, consumer.receive(TIMEOUT_MILLIS).data() == b"x" * 10_000])
    client.close()
    return seen


def chunks(place: Place) -> Any:
    client, topic = place.client(), place.topic("chunks")
    consumer = client.subscribe(topic, "s")
    made = client.create_producer(topic, chunking_enabled=True)
    made.send(b"abc" * (4 << 20))
    made.send(b"small")
    sizes = [len(m.data()) for m in take(consumer, 2)]
    refused = raised(lambda: client.create_producer(topic, chunking_enabled=True, batching_enabled=True))
    client.close()
    return [sizes, refused in ("ValueError", "InvalidConfiguration")]


def encryption(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("encryption")
    keys = p.CryptoKeyReader(str(KEYS / "k1_public.pem"), str(KEYS / "k1_private_pkcs1.pem"))
    able = client.subscribe(topic, "able", crypto_key_reader=keys)
    raw = client.subscribe(topic, "raw", crypto_failure_action=p.ConsumerCryptoFailureAction.CONSUME)
    client.create_producer(topic, encryption_key="k1", crypto_key_reader=keys).send(b"secret")
    message = able.receive(TIMEOUT_MILLIS)
    context = message.encryption_context()
    sealed = raw.receive(TIMEOUT_MILLIS)
    seen = [
        message.data().decode(), [key.key for key in keys_of(context)], context.is_decryption_failed(),
        b"secret" in sealed.data(), sealed.encryption_context().is_decryption_failed(),
        sealed.encryption_context().batch_size(),
    ]  # fmt: skip
    client.close()
    return seen


def keys_of(context: Any) -> Any:
    """A context's ``keys`` is no dict's: it gives the keys that the message was encrypted for."""
    return context.keys()


def partitions(place: Place) -> Any:
    """Keys, round robin, one partition, and a router of one's own."""
    p, client, topic = place.p, place.client(), place.partitioned("partitions", 4)
    keyed = client.create_producer(topic)
    of_key = [keyed.send(b"x", partition_key=f"key-{number}").partition() for number in range(20)]
    spread = {keyed.send(b"x").partition() for _ in range(20)}
    single = client.create_producer(topic, message_routing_mode=p.PartitionsRoutingMode.UseSinglePartition)
    one = {single.send(b"x").partition() for _ in range(10)}
    routed = client.create_producer(topic, message_router=lambda m, count: int(m.data()) % count)
    own = [routed.send(b"%d" % number).partition() for number in range(8)]
    names = [name.rpartition("-")[2] for name in client.get_topic_partitions(topic)]
    consumer = client.subscribe(topic, "s", initial_position=p.InitialPosition.Earliest)
    received = len(take(consumer, 58))
    client.close()
    return [of_key, sorted(spread), len(one), own, names, received]


def access_modes(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("access")
    modes = p.ProducerAccessMode
    # The broker closes the connection of a fenced producer that sends, so that it must not be shared.
    other = place.client()
    first = other.create_producer(topic, access_mode=modes.Exclusive)
    second = raised(lambda: client.create_producer(topic, access_mode=modes.Exclusive))
    fencing = client.create_producer(topic, access_mode=modes.ExclusiveWithFencing)
    fenced = raised(lambda: first.send(b"x")) != "nothing"
    waiting: list[Any] = []
    thread = threading.Thread(
        target=lambda: waiting.append(client.create_producer(topic, access_mode=modes.WaitForExclusive))
    )
    thread.start()
    thread.join(0.5)
    still = not waiting
    fencing.close()
    thread.join(TIMEOUT_MILLIS / 1000)
    sent = raised(lambda: waiting[0].send(b"x"))
    for each in (client, other):
        each.close()
    return [second, fenced, still, sent]


def deduplication(place: Place) -> Any:
    """Sequence ids of one's own, sent twice and over a second producer of the same name."""
    client, topic = place.client(), place.topic("deduplication")
    consumer = client.subscribe(topic, "s")
    path = topic.replace("://", "/")
    place.admin("POST", f"{path}/deduplicationEnabled", True)
    is_on = until(lambda: place.admin("GET", f"{path}/stats")["deduplicationStatus"] == "Enabled")
    last = []
    for numbers in ([0, 1, 2, 1, 2], [1, 2, 3]):
        made = client.create_producer(topic, producer_name="twice")
        last.append(made.last_sequence_id())
        for number in numbers:
            made.send(b"%d" % number, sequence_id=number)
        last.append(made.last_sequence_id())
        made.close()
    seen = data(take(consumer, 4))
    more = raised(lambda: consumer.receive(300))
    client.close()
    return [is_on, last, seen, more]


def delays(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("delays")
    consumer = client.subscribe(topic, "s", consumer_type=p.ConsumerType.Shared)
    made = client.create_producer(topic)
    made.send(b"first")  # the broker makes a ledger, which may take a while
    seen = data(take(consumer, 1))
    started = time.monotonic()
    # Apache Pulsar looks once a second, and what is due within the next one goes out.
    made.send(b"later", deliver_after=timedelta(milliseconds=6000))
    made.send(b"now")
    seen += data(take(consumer, 2))
    client.close()
    return [seen, time.monotonic() - started > 4.5]


PROGRAMS = (
    producer, callbacks, batches, limits, null_values, compression, chunks, encryption, partitions,
    access_modes, deduplication, delays,
)  # fmt: skip
