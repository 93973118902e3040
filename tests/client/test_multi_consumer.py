"""Consumers of partitions, lists of topics, and patterns."""

import re
import threading
import uuid
from typing import Any

import pyarrow as pa
import pytest
from doubles import calls_of
from insides import group_of, queue_of
from published import backlog, receive
from waiting import eventually, never

import geminga
from geminga import InitialPosition, MessageId
from geminga.client.admin import admin
from geminga.client.handles.consumer_handle import ConsumerHandle
from geminga.client.io.pool import BrokerConnection
from geminga.client.receive import multi_consumer
from geminga.errors import OperationNotSupported, Timeout, TopicNotFound

EARLIEST = InitialPosition.Earliest


def partition(broker: Any, topic: str, count: int) -> None:
    admin(broker.admin_url, "PUT", topic.replace("://", "/") + "/partitions", count)


def publish(client: Any, topic: str, count: int) -> list[bytes]:
    values = [f"{topic[-6:]}{number}".encode() for number in range(count)]
    with client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1) as producer:
        for number, value in enumerate(values):
            producer.send(value, partition_key=str(number))
    return values


def test_all_partitions(pulsar_broker, pulsar_client, pulsar_topic):
    partition(pulsar_broker, pulsar_topic, 4)
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    assert consumer.topic() == pulsar_topic
    values = publish(pulsar_client, pulsar_topic, 40)
    messages = receive(consumer, 40)
    assert sorted(m.data() for m in messages) == sorted(values)
    assert {m.topic_name() for m in messages} <= {f"{pulsar_topic}-partition-{i}" for i in range(4)}
    assert all(m.message_id().partition == int(m.topic_name()[-1]) for m in messages)
    for number, message in enumerate(messages):
        if number % 3 == 0:
            consumer.acknowledge(message)
        elif number % 3 == 1:
            consumer.acknowledge(message.message_id())
        else:
            consumer.acknowledge(MessageId.deserialize(message.message_id().serialize()))
    consumer.close()
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    with pytest.raises(Timeout):
        consumer.receive(100)
    consumer.seek(MessageId.earliest)
    again = receive(consumer, 40)
    assert sorted(m.data() for m in again) == sorted(values)
    with pytest.raises(OperationNotSupported, match="get_last_message_ids"):
        consumer.get_last_message_id()
    assert len(consumer.get_last_message_ids()) == 4
    of_first = [m for m in again if m.message_id().partition == 0]
    if len(of_first) > 1:
        consumer.seek(of_first[0].message_id())
        assert consumer.receive(30_000).data() == of_first[1].data()
    with pytest.raises(OperationNotSupported, match="does not identify"):
        consumer.seek(MessageId(-1, 5, 5))
    consumer.unsubscribe()


def test_cumulative_within_each_partition(pulsar_broker, pulsar_client, pulsar_topic):
    partition(pulsar_broker, pulsar_topic, 2)
    consumer = pulsar_client.subscribe(pulsar_topic, "s", geminga.ConsumerType.Failover)
    publish(pulsar_client, pulsar_topic, 20)
    messages = receive(consumer, 20)
    last = {message.topic_name(): message for message in messages}
    for message in last.values():
        consumer.acknowledge_cumulative(message)
    consumer.close()
    again = pulsar_client.subscribe(pulsar_topic, "s", geminga.ConsumerType.Failover)
    with pytest.raises(Timeout):
        again.receive(200)


def test_the_queue_is_shared_out(pulsar_broker, pulsar_client, pulsar_topic):
    partition(pulsar_broker, pulsar_topic, 3)
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", receiver_queue_size=100, max_total_receiver_queue_size_across_partitions=60
    )
    handles = group_of(consumer).handles.values()
    assert [handle.consumer.flow.queue_size for handle in handles] == [20, 20, 20]


def test_new_partitions_are_read_from_their_beginning(
    pulsar_broker, pulsar_client, pulsar_topic, monkeypatch
):
    partition(pulsar_broker, pulsar_topic, 1)
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    admin(pulsar_broker.admin_url, "POST", pulsar_topic.replace("://", "/") + "/partitions", 3)
    values = publish(pulsar_client, pulsar_topic, 30)
    pulsar_client.runtime.call(group_of(consumer).refresh())
    assert sorted(m.data() for m in receive(consumer, 30)) == sorted(values)
    assert len(group_of(consumer).handles) == 3
    assert multi_consumer.logger.name == "geminga"


def test_one_topic_that_cannot_be_opened_opens_none(pulsar_broker, pulsar_client, pulsar_topic):
    with pytest.raises(TopicNotFound):
        pulsar_client.subscribe([pulsar_topic, "public/no-such-namespace/x"], "s")
    # Nothing of the first attempt is left: an exclusive consumer fits in.
    pulsar_client.subscribe(pulsar_topic, "s").close()


def test_patterns(pulsar_broker, pulsar_client):
    prefix = f"p{uuid.uuid4().hex[:8]}"
    plain, other = f"{prefix}-plain", f"other-{prefix}"
    partitioned = f"persistent://public/default/{prefix}-parts"
    partition(pulsar_broker, partitioned, 2)
    publish(pulsar_client, plain, 1)
    publish(pulsar_client, other, 1)
    consumer = pulsar_client.subscribe(
        re.compile(f"persistent://public/default/{prefix}-.*"), "s", initial_position=EARLIEST,
        pattern_auto_discovery_period=0.1,
    )  # fmt: skip
    values = publish(pulsar_client, partitioned, 10)
    assert sorted(m.data() for m in receive(consumer, 11)) == sorted([*values, f"-plain{0}".encode()])
    late = publish(pulsar_client, f"{prefix}-late", 3)
    assert [m.data() for m in receive(consumer, 3)] == late
    with pytest.raises(Timeout):
        consumer.receive(100)
    group = group_of(consumer)
    admin(pulsar_broker.admin_url, "DELETE", f"persistent/public/default/{prefix}-late?force=true")
    eventually(lambda: len(group.handles) == 3)
    consumer.close()


def test_a_pattern_that_matches_nothing_yet(pulsar_client):
    prefix = f"q{uuid.uuid4().hex[:8]}"
    consumer = pulsar_client.subscribe(re.compile(f"{prefix}.*"), "s", pattern_auto_discovery_period=0.1)
    assert not consumer.is_connected()
    values = publish(pulsar_client, f"{prefix}x", 2)
    assert [m.data() for m in receive(consumer, 2)] == values


def test_ids_of_a_deleted_topic_acknowledge_nothing_of_another(pulsar_broker, pulsar_client):
    """Positions of different topics may be compared, without a meaning."""
    prefix = f"persistent://public/default/{uuid.uuid4().hex[:8]}"
    left, gone = f"{prefix}-left", f"{prefix}-gone"
    with pulsar_client.create_producer(left) as producer, pulsar_client.create_producer(gone) as other:
        producer.send(b"first")  # so that ids of the other topic are the greater ones
        other.send(b"x")
        other.close()
        consumer = pulsar_client.subscribe(
            re.compile(f"{prefix}-.*"), "s", initial_position=EARLIEST, pattern_auto_discovery_period=1
        )
        held = next(message for message in receive(consumer, 2) if message.topic_name() == gone)
        admin(pulsar_broker.admin_url, "DELETE", f"{gone.replace('://', '/')}?force=true")
        eventually(lambda: list(group_of(consumer).handles) == [left])
        consumer.acknowledge_cumulative(held)
        consumer.negative_acknowledge(held)
        never(lambda: len(queue_of(consumer)), 0.3)
        for number in range(3):
            producer.send(b"%d" % number)
        assert [message.data() for message in receive(consumer, 3)] == [b"0", b"1", b"2"]


def test_a_new_topic_that_refuses_does_not_block_other_new_topics(pulsar_broker, pulsar_client):
    """They were closed again with it, and opened once more a period later: each message came again and again,
    and what was acknowledged meanwhile was lost."""
    prefix = f"persistent://public/default/r{uuid.uuid4().hex[:8]}"
    topics = [f"{prefix}-{number}" for number in range(4)]
    consumer = pulsar_client.subscribe(
        re.compile(f"{prefix}-.*"), "s", pattern_auto_discovery_period=0.1, negative_ack_redelivery_delay_ms=0
    )
    with geminga.Client(pulsar_broker.service_url) as other:
        there = other.subscribe(topics[0], "s")  # exclusive, as ours
        producers = [pulsar_client.create_producer(topic) for topic in topics]
        for number, producer in enumerate(producers):
            producer.send(b"%d" % number)
        messages = receive(consumer, 3)
        assert sorted(message.data() for message in messages) == [b"1", b"2", b"3"]
        consumer.acknowledge(messages)
        with pytest.raises(Timeout):
            consumer.receive(500)
        assert [topic for topic in topics if not backlog(pulsar_broker, topic)] == topics[1:]
        there.close()
        message = consumer.receive(30_000)  # now that it may
        assert message.data() == b"0"
        consumer.acknowledge(message)
    consumer.close()
    assert not any(backlog(pulsar_broker, topic) for topic in topics)


def test_a_new_topic_is_acknowledged_while_another_one_attaches(pulsar_broker, pulsar_client, monkeypatch):
    prefix = f"persistent://public/default/w{uuid.uuid4().hex[:8]}"
    held: list[Any] = []
    start = multi_consumer.ConsumerHandle.attach

    async def attach(self: Any, connection: Any) -> None:
        if self.topic.endswith("-slow") and not held:
            held.append(self._context.loop.create_future())
            await held[0]
        await start(self, connection)

    current = multi_consumer.TopicSet.current
    both = threading.Event()

    async def together(self: Any) -> Any:
        return await current(self) if both.is_set() else []

    monkeypatch.setattr(multi_consumer.ConsumerHandle, "attach", attach)
    monkeypatch.setattr(multi_consumer.TopicSet, "current", together)
    consumer = pulsar_client.subscribe(re.compile(f"{prefix}-.*"), "s", pattern_auto_discovery_period=0.1)
    with (
        pulsar_client.create_producer(f"{prefix}-slow"),
        pulsar_client.create_producer(f"{prefix}-x") as fast,
    ):
        both.set()
        for number in range(2500):  # more than the receiver queue: the consumer must send permits, too
            fast.send_async(b"%d" % number, None) if number % 100 else fast.send(b"%d" % number)
        fast.flush()
        for message in receive(consumer, 2500):
            consumer.acknowledge(message)
        eventually(lambda: not backlog(pulsar_broker, f"{prefix}-x"))
        pulsar_client.context.loop.call_soon_threadsafe(lambda: [each.set_result(None) for each in held])
        eventually(lambda: len(group_of(consumer).handles) == 2)
    consumer.close()


@pytest.mark.parametrize("how", ["rows", "cumulative", "table"])
def test_messages_that_another_subscription_received_say_what_they_are_and_no_more(
    pulsar_broker, pulsar_client, pulsar_topic, how
):
    """Acknowledgements within a batch are tracked per subscription: once, those of the other subscription
    acknowledged messages here that this one had not processed."""
    ours = pulsar_client.subscribe(pulsar_topic, "ours")
    theirs = pulsar_client.subscribe(pulsar_topic, "theirs")
    with pulsar_client.create_producer(
        pulsar_topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for number in range(10):
            producer.send_async(b"%d" % number, None)
        producer.flush()
    messages = receive(theirs, 10)
    if how == "rows":
        theirs.acknowledge(messages[:9])
        ours.acknowledge(messages[9])
        left = list(range(9))
    elif how == "cumulative":
        theirs.acknowledge(messages[3:])
        ours.acknowledge_cumulative(messages[2])
        left = list(range(3, 10))
    else:
        theirs.acknowledge(messages[:4])
        theirs.close()
        theirs = pulsar_client.subscribe(pulsar_topic, "theirs")
        table = theirs.receive_table(timeout_millis=30_000)
        assert table.num_rows == 6
        ours.acknowledge_table(table)
        left = list(range(4))
    ours.close()
    theirs.close()
    ours = pulsar_client.subscribe(pulsar_topic, "ours")
    assert [message.data() for message in receive(ours, len(left))] == [b"%d" % each for each in left]
    with pytest.raises(Timeout):
        ours.receive(100)
    if how != "cumulative":
        theirs = pulsar_client.subscribe(pulsar_topic, "theirs")
        rest = [message.data() for message in receive(theirs, 1 if how == "rows" else 6)]
        assert rest == ([b"9"] if how == "rows" else [b"%d" % each for each in range(4, 10)])


def test_a_message_alone_may_be_acknowledged_by_another_consumer(pulsar_broker, pulsar_client, pulsar_topic):
    ours = pulsar_client.subscribe(pulsar_topic, "s", consumer_type=geminga.ConsumerType.Shared)
    with pulsar_client.create_producer(
        pulsar_topic, chunking_enabled=True, batching_enabled=False
    ) as producer:
        producer.send(b"x")
        producer.send(b"y" * (11 << 20))  # three chunks
        messages = receive(ours, 2)
        theirs = pulsar_client.subscribe(pulsar_topic, "s", consumer_type=geminga.ConsumerType.Shared)
        theirs.acknowledge(messages)
        eventually(lambda: not backlog(pulsar_broker, pulsar_topic))


def test_flushes_grow_in_proportion_to_the_topics(pulsar_client, pulsar_topic, monkeypatch):
    flushed, counts = calls_of(monkeypatch, ConsumerHandle, "flush"), []
    for size in (5, 50):
        flushed.clear()
        topics = [f"{pulsar_topic}-{size}-{number}" for number in range(size)]
        with pulsar_client.subscribe(topics, "s") as consumer:
            consumer.seek(MessageId.earliest)
            eventually(consumer.is_connected)

            async def reconnect(group: Any) -> None:
                for handle in group.handles.values():
                    handle.driver.reattach()

            pulsar_client.runtime.call(reconnect(group_of(consumer)))
            eventually(consumer.is_connected)
        counts.append(len(flushed))
    assert counts[1] < 12 * counts[0]


def test_a_seek_asks_two_requests_for_each_topic(pulsar_client, pulsar_topic, monkeypatch):
    """SEEK and SUBSCRIBE: the broker that moved the subscription serves the topic, and is not looked up."""
    asked = calls_of(monkeypatch, BrokerConnection, "ask")
    for size in (5, 50):
        topics = [f"{pulsar_topic}-{size}-{number}" for number in range(size)]
        with pulsar_client.subscribe(topics, "s") as consumer:
            before = len(asked)
            consumer.seek(MessageId.earliest)
            eventually(consumer.is_connected)
            assert len(asked) - before == 2 * size


def test_a_seek_moves_a_limited_number_of_topics_at_a_time(pulsar_client, pulsar_topic, monkeypatch):
    seek, seeking, most = ConsumerHandle.seek, set(), 0

    async def observed(handle: ConsumerHandle, target: MessageId) -> None:
        nonlocal most
        seeking.add(handle)
        most = max(most, len(seeking))
        await seek(handle, target)
        seeking.remove(handle)

    monkeypatch.setattr(multi_consumer, "SEEKS_IN_FLIGHT", 2)
    monkeypatch.setattr(ConsumerHandle, "seek", observed)
    topics = [f"{pulsar_topic}-{number}" for number in range(5)]
    values = [value for topic in topics for value in publish(pulsar_client, topic, 2)]
    with pulsar_client.subscribe(topics, "s", initial_position=EARLIEST) as consumer:
        assert sorted(m.data() for m in receive(consumer, 10)) == sorted(values)
        consumer.seek(MessageId.earliest)
        assert most == 2
        assert sorted(m.data() for m in receive(consumer, 10)) == sorted(values)


def test_after_a_failed_seek_no_further_topic_is_moved(pulsar_client, pulsar_topic, monkeypatch):
    """The program may seek elsewhere next: a topic that moved later would go back behind that."""
    asked: list[str] = []

    async def fails(handle: ConsumerHandle, target: MessageId) -> None:
        asked.append(handle.topic)
        raise Timeout("no answer")

    monkeypatch.setattr(multi_consumer, "SEEKS_IN_FLIGHT", 2)
    monkeypatch.setattr(ConsumerHandle, "seek", fails)
    topics = [f"{pulsar_topic}-{number}" for number in range(5)]
    with pulsar_client.subscribe(topics, "s") as consumer:
        with pytest.raises(Timeout):
            consumer.seek(MessageId.earliest)
        assert len(asked) == 1


def test_a_receipt_sends_what_a_table_has_acknowledged(pulsar_client, pulsar_topic):
    topics = [f"{pulsar_topic}-{number}" for number in range(3)]
    consumer = pulsar_client.subscribe(topics, "s", ack_receipt_enabled=True, ack_grouping_time_ms=60_000)
    for topic in topics[:2]:
        publish(pulsar_client, topic, 1)
    first, second = receive(consumer, 2)
    consumer.acknowledge(first)
    ids = {"ledger_id": [second.message_id().ledger_id()], "entry_id": [second.message_id().entry_id()]}
    alone = {"batch_index": [-1], "batch_size": [0]}
    consumer.acknowledge_table(pa.table({"topic": [second.topic_name()], **ids, **alone}))
    for core in group_of(consumer).cores():
        assert not core.acks.pending_count
        assert not core.acks.receipts
