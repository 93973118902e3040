"""The ways that most messages go are written by hand: what they are given is looked at before anything
happens. A wrong argument is refused by its name, takes no permit with it, and harms no message around it."""

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from insides import publisher_of, wait_queue_of
from waiting import eventually_awaited

import geminga
import geminga.asyncio
from geminga.errors import PulsarException


class Thing:
    """Something that no argument takes."""


WRONG = [
    None, "x", b"x", -1, 0, 1.5, float("nan"), float("inf"), 10**30, 1 << 32, True, [], {}, {"a": 1}, Thing(),
    len, ["x"], ("a", 5), [b"x", 3], [None], {1: 2}, {"x"}, bytearray(b"z"), memoryview(b"y"),
    geminga.MessageId(-1, 1 << 40, 1), [geminga.MessageId(-1, 1 << 40, 1), "x"], pa.table({"a": [1]}),
    pa.table({"value": [1.5]}),
]  # fmt: skip
MARK = b"what was sent on purpose"


@pytest.fixture(scope="module")
def broker():
    with geminga.embedded(web_port=None) as running:
        yield running


class Calls:
    """Calls methods with each argument wrong in each way. ``faults``: refusals that do not name it."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def each(
        self, method: Callable[..., Any], base: dict[str, Any]
    ) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        for name, parameter in inspect.signature(method).parameters.items():
            for value in WRONG:
                if value is not parameter.default:
                    yield name, value, {**base, name: value}

    def all(self, calls: list[tuple[Callable[..., Any], dict[str, Any]]]) -> None:
        for method, base in calls:
            for name, value, arguments in self.each(method, base):
                try:
                    method(**arguments)
                except Exception as error:
                    self.refused(method, name, value, error)

    async def all_awaited(self, calls: list[tuple[Callable[..., Any], dict[str, Any]]]) -> None:
        for method, base in calls:
            for name, value, arguments in self.each(method, base):
                try:
                    called = method(**arguments)
                    if inspect.isawaitable(called):
                        await called
                except Exception as error:
                    self.refused(method, name, value, error)

    def refused(self, method: Callable[..., Any], name: str, value: Any, error: Exception) -> None:
        said = str(error) if name != "keys" else str(error).replace("with its key", "keys")
        if not isinstance(error, (PulsarException, TypeError)) or (name not in said and "value" not in said):
            self.faults.append(f"{method.__name__}({name}={value!r:.60}): {type(error).__name__}: {error}")


def sends(producer: Any) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    return [
        (producer.send, {"content": b"x"}),
        (producer.send_async, {"content": b"x", "callback": None}),
        (producer.send_many, {"values": [b"x"]}),
        (producer.send_many, {"values": [b"x"], "callback": lambda sent: None}),
        (producer.send_table, {"table": pa.table({"value": [b"x"]})}),
        (producer.publish_encoded, {"batches": []}),
    ]


def on_messages(consumer: Any, message: Any) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    return [
        (consumer.acknowledge, {"message": message}),
        (consumer.acknowledge_cumulative, {"message": message}),
        (consumer.negative_acknowledge, {"message": message}),
        (consumer.acknowledge_table, {"table": pa.table({})}),
    ]


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    monkeypatch.setattr(logging.getLogger("geminga"), "disabled", True)


def holds_nothing(producer: Any) -> None:
    """Check, on the loop, that no permit or byte is in use and no sender waits."""
    publisher = publisher_of(producer)
    statistics = producer.statistics()
    assert (statistics.pending_messages, publisher.submit_queue.depth(), len(wait_queue_of(producer))) == (
        0,
        0,
        0,
    )
    assert [partition.limits.own.used for partition in publisher.state.partitions] == [0]
    assert (publisher.state.shared.used, publisher.memory.used) == (0, 0)


def limits(batched: bool) -> dict[str, Any]:
    return {"block_if_queue_full": True, "max_pending_messages": 64, "batching_enabled": batched}


@pytest.mark.parametrize("batched", [False, True])
def test_sends(broker, batched):
    calls, topic = Calls(), f"sends-{batched}"
    with broker.client() as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, **limits(batched))
        calls.all(sends(producer))
        producer.send(MARK)
        count = producer.statistics().acknowledged_messages

        async def look() -> None:
            holds_nothing(producer._producer)

        client.runtime.call(look())
        received = [consumer.receive(60_000).data() for _ in range(count)]
    assert calls.faults == []
    assert received[-1] == MARK


@pytest.mark.parametrize("batched", [False, True])
async def test_sends_of_asyncio(broker, batched):
    calls, topic = Calls(), f"asyncio-sends-{batched}"

    async with geminga.asyncio.Client(broker.service_url) as client:
        consumer = await client.subscribe(topic, "s")
        producer = await client.create_producer(topic, **limits(batched))
        await calls.all_awaited(sends(producer))
        await producer.flush()
        await producer.send(MARK)
        holds_nothing(producer)
        count = producer.statistics().acknowledged_messages
        received = [(await consumer.receive(60_000)).data() for _ in range(count)]
        assert received[-1] == MARK
    assert calls.faults == []


@pytest.mark.parametrize("wrong", [3, 1 << 32, "print", [], True, 0.5])
def test_what_cannot_be_called_is_refused_before_it_is_sent(broker, wrong):
    with broker.client() as client:
        producer = client.create_producer("callbacks")
        for options in ({}, {"partition_key": "k"}, {"properties": {"a": "b"}}):
            with pytest.raises(TypeError, match="callback must be callable or None"):
                producer.send_async(b"x", wrong, **options)
        if not isinstance(wrong, list):
            with pytest.raises(TypeError, match="callback must be"):
                producer.send_many([b"x"], wrong)
        with pytest.raises(TypeError, match=r"callback\[1\] must be callable or None"):
            producer.send_many([b"x", b"y"], [None, wrong])
        producer.flush()
        assert producer.statistics().sent_messages == 0


QUEUE = 20


def test_acknowledgements(broker):
    """Nothing is acknowledged by a wrong call, and none costs a permit."""
    calls = Calls()
    with broker.client() as client:
        producer = client.create_producer("acknowledgements")
        consumer = client.subscribe(
            "acknowledgements", "s", geminga.ConsumerType.Shared, receiver_queue_size=QUEUE
        )
        for _ in range(5):
            producer.send(MARK)
        messages = [consumer.receive(60_000) for _ in range(5)]
        calls.all(on_messages(consumer, messages[0]))
        consumer.redeliver_unacknowledged_messages()
        again = [consumer.receive(60_000) for _ in range(5)]
        for message in again:
            consumer.acknowledge(message)
        for _ in range(3):
            for number in range(QUEUE):
                producer.send_async(b"%d" % number, None)
            for number in range(QUEUE):
                message = consumer.receive(60_000)
                assert message.data() == b"%d" % number
                consumer.acknowledge(message)
        assert consumer.stats().available_permits > 0
        calls.all([(consumer.unsubscribe, {})])
    assert calls.faults == []


async def test_acknowledgements_of_asyncio(broker):
    calls = Calls()

    async with geminga.asyncio.Client(broker.service_url) as client:
        topic = "asyncio-acknowledgements"
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(
            topic, "s", geminga.ConsumerType.Shared, receiver_queue_size=QUEUE,
            broker_consumer_stats_cache_time_ms=0,
        )  # fmt: skip
        for _ in range(5):
            await producer.send(MARK)
        messages = [await consumer.receive(60_000) for _ in range(5)]
        await calls.all_awaited(on_messages(consumer, messages[0]))
        consumer.redeliver_unacknowledged_messages()
        again = [await consumer.receive(60_000) for _ in range(5)]
        await consumer.acknowledge(again)

        async def all_acknowledged() -> bool:
            return not (await consumer.stats()).unacknowledged_messages

        await eventually_awaited(all_acknowledged)
    assert calls.faults == []


@pytest.fixture(scope="module")
def brokers():
    with geminga.embedded(web_port=None) as one, geminga.embedded(web_port=None) as other:
        yield one, other


@pytest.fixture
def two(brokers):
    """A consumer; a message of it that is not done; a consumer of another topic and another cluster, that has
    a message with the same id."""
    with brokers[0].client() as client, brokers[1].client() as others:
        consumer = client.subscribe("own", "s", geminga.ConsumerType.Shared)
        other = others.subscribe("others", "s", geminga.ConsumerType.Shared)
        client.create_producer("own").send(b"own")
        others.create_producer("others").send(b"others")
        yield consumer, consumer.receive(60_000), other
        for each in (consumer, other):
            each.unsubscribe()


@pytest.mark.parametrize("way", ["message", "list", "id", "nack", "table"])
def test_a_message_of_another_topic_acknowledges_nothing_here(two, way):
    """Ids mean something in their own topic alone."""
    consumer, message, other = two
    if way == "table":
        table = other.receive_table(timeout_millis=60_000)
        consumer.acknowledge_table(table.slice(0, 1))
    else:
        foreign = other.receive(60_000)
        assert foreign.message_id() == message.message_id()
        if way == "id":
            with pytest.raises(geminga.OperationNotSupported, match=r"does not read persistent://.*others"):
                consumer.acknowledge(foreign.message_id())
        elif way == "nack":
            consumer.negative_acknowledge(foreign)
        else:
            consumer.acknowledge([foreign] if way == "list" else foreign)
    consumer.redeliver_unacknowledged_messages()
    assert consumer.receive(60_000).data() == b"own"
    assert consumer.stats().unacknowledged_messages == 1


def test_ids_beyond_the_wire_fields_are_refused():
    for arguments, name in (
        ((1 << 31, 0, 0), "partition"),
        ((-1, 1 << 63, 0), "ledger_id"),
        ((-1, 0, 1 << 64), "entry_id"),
        ((-1, 0, 0, 1 << 31), "batch_index"),
    ):
        with pytest.raises(geminga.InvalidConfiguration, match=name):
            geminga.MessageId(*arguments)
    for wrong in ("1", 1.0, None, b"1"):
        with pytest.raises(TypeError, match="entry_id"):
            geminga.MessageId(-1, 1, wrong)
    message_id = geminga.MessageId(-1, 1, 1)
    with pytest.raises(geminga.InvalidConfiguration, match="ledger_id"):
        message_id.ledger_id = 1 << 70


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"ledger_id": ["x"]}, "ledger_id"),
        ({"entry_id": [1.5]}, "entry_id"),
        ({"ledger_id": pa.array([None], pa.int64())}, "ledger_id"),
        ({"batch_index": [3], "batch_size": [3]}, "batch_index"),
        ({"batch_index": [0], "batch_size": [0]}, "batch_index"),
        ({"batch_index": [0], "batch_size": pa.array([None], pa.int32())}, "batch_index"),
        ({"batch_size": ["many"]}, "batch_size"),
    ],
)
def test_columns_that_cannot_be_what_was_received(broker, columns, name):
    with broker.client() as client:
        consumer = client.subscribe("columns", "s")
        client.create_producer("columns").send(MARK)
        message_id = consumer.receive(60_000).message_id()
        base = {
            "topic": [consumer.topic()], "ledger_id": [message_id.ledger_id()],
            "entry_id": [message_id.entry_id()], "batch_index": [0], "batch_size": [2],
        }  # fmt: skip
        with pytest.raises(geminga.InvalidConfiguration, match=name):
            consumer.acknowledge_table(pa.table({**base, **columns}))
        consumer.redeliver_unacknowledged_messages()
        assert consumer.receive(60_000).data() == MARK
        consumer.unsubscribe()


@pytest.mark.parametrize("wrong", ["x", 1.5, 10**30, True, [], float("nan")])
def test_how_long_to_wait(broker, wrong):
    with broker.client() as client:
        consumer = client.subscribe("waits", "s")
        for receive in (consumer.receive, consumer.receive_table):
            with pytest.raises(geminga.InvalidConfiguration, match="timeout_millis"):
                receive(timeout_millis=wrong)
        for seek in (wrong, -1, None):
            with pytest.raises(geminga.InvalidConfiguration, match="messageid"):
                consumer.seek(seek)
