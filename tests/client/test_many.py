"""send_many: `send_async` in a loop, in one call; both APIs."""

import asyncio
import pickle
import threading
from typing import Any

import pytest
from published import read
from scripted_broker import Type
from waiting import eventually_async

import geminga
import geminga.asyncio
from geminga import InitialPosition, Result, errors
from geminga.client.admin import admin
from geminga.client.publish import many
from geminga.client.publish.many import Many
from geminga.producer.interceptors import ProducerInterceptor

VALUES = [b"%d" % n for n in range(2500)]


@pytest.fixture(autouse=True)
def nothing_stays_open():
    yield
    assert not many._open


class Once:
    """A callback that may come once."""

    def __init__(self) -> None:
        self.sent: Any = None
        self.came = threading.Event()

    def __call__(self, sent: Any) -> None:
        assert self.sent is None
        self.sent = sent
        self.came.set()

    def wait(self) -> Any:
        assert self.came.wait(60)
        return self.sent


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("blocking", [True, False])
def test_one_callback_for_all(pulsar_client, pulsar_topic, batched, blocking):
    """Ids are those that a reader sees; with fewer permits than messages where the call may wait."""
    producer = pulsar_client.create_producer(
        pulsar_topic, batching_enabled=batched, block_if_queue_full=blocking,
        max_pending_messages=100 if blocking else 5000, batching_max_messages=70,
    )  # fmt: skip
    once = Once()
    assert producer.send_many(VALUES, once) is None
    sent = once.wait()
    assert (len(sent), sent.ok, sent.failures) == (2500, True, {})
    messages = read(pulsar_client, pulsar_topic, 2500)
    assert [message.data() for message in messages] == VALUES
    assert [message.message_id() for message in messages] == sent.message_ids


@pytest.mark.parametrize("batched", [True, False])
def test_one_callback_for_each(pulsar_client, pulsar_topic, batched):
    producer = pulsar_client.create_producer(
        pulsar_topic, batching_enabled=batched, max_pending_messages=5000
    )
    told: list[Any] = []
    callbacks = [(lambda result, place, n=n: told.append((n, result, place))) for n in range(2500)]
    callbacks[7] = None
    producer.send_many(VALUES, callbacks)
    producer.flush()
    messages = read(pulsar_client, pulsar_topic, 2500)
    expected = [(n, Result.Ok, message.message_id()) for n, message in enumerate(messages) if n != 7]
    assert told == expected


def test_without_a_callback_it_waits(pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(
        pulsar_topic, batching_enabled=True, max_pending_messages=5000, batching_max_publish_delay_ms=10
    )
    sent = producer.send_many(VALUES[:10])
    assert producer.statistics().pending_messages == 0
    assert [message.message_id() for message in read(pulsar_client, pulsar_topic, 10)] == sent.message_ids
    assert producer.send_many([]).message_ids == []
    producer.send_many(VALUES[:3], properties={"all": "of them"})
    properties = [message.properties() for message in read(pulsar_client, pulsar_topic, 13)]
    assert properties == [{}] * 10 + [{"all": "of them"}] * 3


@pytest.mark.parametrize("batched", [True, False])
def test_keys_over_partitions_keep_their_order(pulsar_broker, pulsar_client, pulsar_topic, batched):
    """The order holds with and without batches, and with fewer permits than messages."""
    admin(pulsar_broker.admin_url, "PUT", f"{pulsar_topic.replace('://', '/')}/partitions", 3)
    producer = pulsar_client.create_producer(
        pulsar_topic, batching_enabled=batched, block_if_queue_full=True, max_pending_messages=60
    )
    consumer = pulsar_client.subscribe(pulsar_topic, "s", initial_position=InitialPosition.Earliest)
    keys = [f"k{n % 11}" for n in range(600)]
    for n in range(200):
        producer.send_async(VALUES[n], None, partition_key=keys[n])
    producer.send_many(VALUES[200:400], lambda sent: None, keys=keys[200:400])
    for n in range(400, 600):
        producer.send_async(VALUES[n], None, properties={"a": "b"} if n % 2 else None, partition_key=keys[n])
    producer.flush()
    of_key: dict[str, list[Any]] = {}
    for _ in range(600):
        message = consumer.receive(30_000)
        of_key.setdefault(message.partition_key(), []).append(message)
    assert len(of_key) == 11
    for key, messages in of_key.items():
        assert [message.data() for message in messages] == [VALUES[n] for n in range(600) if keys[n] == key]
        assert len({message.message_id().partition() for message in messages}) == 1


def test_order_with_sends_around_it(pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(
        pulsar_topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=200
    )
    expected = []
    for round_ in range(20):
        values = [b"%d-%d" % (round_, n) for n in range(100)]
        producer.send_many(values, lambda sent: None, keys=["k"] * 100 if round_ % 3 == 0 else None)
        producer.send_async(b"between", None, partition_key="k" if round_ % 2 else None)
        expected += [*values, b"between"]
    producer.flush()
    assert [m.data() for m in read(pulsar_client, pulsar_topic, len(expected))] == expected


# --- refused messages ---
def test_a_full_queue_refuses_all_from_there_on(broker):
    """The scripted broker gives no receipts."""
    broker.answers[Type.SEND] = lambda peer, frame: None
    with geminga.Client(broker.url) as client:
        producer = client.create_producer("t", max_pending_messages=10)
        once = Once()
        producer.send_many(VALUES[:25], once)
        told: list[Any] = []
        producer.send_many(VALUES[:5], [lambda result, place: told.append(result)] * 5)
        with pytest.raises(errors.SendManyFailed) as caught:
            producer.send_many([b"x"])
        assert isinstance(caught.value.failures[0], errors.ProducerQueueIsFull)
        assert once.sent is None  # ten are on their way
        client.shutdown()
        sent = once.wait()
        assert sorted(sent.failures) == list(range(25))
        assert {type(error) for error in list(sent.failures.values())[10:]} == {errors.ProducerQueueIsFull}
        assert {type(error) for error in list(sent.failures.values())[:10]} == {errors.AlreadyClosed}
        assert sent.message_ids == [None] * 25
        assert told == [Result.ProducerQueueIsFull] * 5


@pytest.mark.parametrize("batched", [True, False])
def test_a_message_that_is_too_big_fails_alone(pulsar_client, pulsar_topic, batched):
    producer = pulsar_client.create_producer(pulsar_topic, batching_enabled=batched)
    values = [b"a", b"b" * (6 << 20), b"c"]
    with pytest.raises(
        errors.SendManyFailed, match=r"1 of 3 messages failed; the first is values\[1\]"
    ) as caught:
        producer.send_many(values)
    assert {n: type(error) for n, error in caught.value.failures.items()} == {1: errors.MessageTooBig}
    assert [m.data() for m in read(pulsar_client, pulsar_topic, 2)] == [b"a", b"c"]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), list(again.failures)) == (str(caught.value), [1])


def test_wrong_arguments_raise_before_any_message_is_sent(pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(pulsar_topic)
    for call in (
        lambda: producer.send_many([b"a", "text"]),
        lambda: producer.send_many([b"a"], "callback"),
        lambda: producer.send_many([b"a"], ["callback"]),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(errors.InvalidMessage, match="partition_key=5"):
        producer.send_many([b"a", b"b"], keys=["k", 5])
    for options in ({"keys": ["k"]}, {"properties": [{}]}, {"callback": [None]}):
        with pytest.raises(errors.InvalidConfiguration, match="1 items for 2 values"):
            producer.send_many([b"a", b"b"], **options)
    producer.flush()
    assert producer.statistics().sent_messages == 0
    producer.close()
    with pytest.raises(errors.SendManyFailed) as caught:
        producer.send_many([b"a", b"b"])
    assert {type(error) for error in caught.value.failures.values()} == {errors.AlreadyClosed}


def test_send_many_inside_a_callback_needs_a_callback(pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(pulsar_topic)
    outcomes: list[Any] = []
    once = Once()

    def callback(sent: Any) -> None:
        try:
            producer.send_many([b"x"])
        except errors.OperationNotSupported as error:
            outcomes.append(error)
        producer.send_many([b"y"], once)
        raise RuntimeError("is logged")

    producer.send_many([b"z"], callback)
    assert once.wait().ok
    assert len(outcomes) == 1


# --- schemas, routers, interceptors ---
def test_schemas_routers_and_interceptors(pulsar_broker, pulsar_client, pulsar_topic):
    class Watching(ProducerInterceptor):
        def __init__(self) -> None:
            self.acknowledged: list[Any] = []

        def before_send(self, producer: Any, message: Any) -> Any:
            return message.replace(properties=(("seen", "yes"),))

        def on_send_acknowledgement(self, producer: Any, message: Any, message_id: Any, error: Any) -> None:
            self.acknowledged.append(message_id)

    admin(pulsar_broker.admin_url, "PUT", f"{pulsar_topic.replace('://', '/')}/partitions", 2)
    watching = Watching()
    producer = pulsar_client.create_producer(
        pulsar_topic,
        schema=geminga.schema.StringSchema(),
        interceptors=[watching],
        message_router=lambda message, count: len(message.data()) % count,
    )
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", schema=geminga.schema.StringSchema(), initial_position=InitialPosition.Earliest
    )
    values = ["", "a", "bb", "ccc"]
    sent = producer.send_many(values)
    assert [place.partition() for place in sent.message_ids] == [0, 1, 0, 1]
    assert sorted(watching.acknowledged) == sorted(sent.message_ids)
    received = [consumer.receive(30_000) for _ in values]
    assert sorted(message.value() for message in received) == sorted(values)
    assert {message.properties()["seen"] for message in received} == {"yes"}
    told: list[Any] = []
    producer.send_many(values, [lambda result, place: told.append(result)] * 4)
    producer.flush()
    assert told == [Result.Ok] * 4


# --- asyncio ---
@pytest.mark.parametrize("blocking", [True, False])
async def test_asyncio(pulsar_broker, pulsar_topic, blocking):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(
            pulsar_topic, block_if_queue_full=blocking, max_pending_messages=50 if blocking else 500
        )
        sent = await producer.send_many(VALUES[:300], keys=["k"] * 300)
        each: list[Any] = []
        assert await producer.send_many(VALUES[300:310], [lambda r, i: each.append(r)] * 10) is None
        once = Once()
        await producer.send_many(VALUES[310:320], once)
        await producer.flush()
        assert each == [Result.Ok] * 10
        ids = sent.message_ids
        assert len(once.sent) == 10
        reader = await client.create_reader(pulsar_topic, geminga.MessageId.earliest)
        messages = [await reader.read_next(30_000) for _ in range(320)]
        assert [message.data() for message in messages] == VALUES[:320]
        assert [message.message_id() for message in messages[:300]] == ids


async def test_a_cancelled_call_sends_no_more(scripted):
    async with scripted() as broker:
        broker.answers[Type.SEND] = lambda peer, frame: None
        client = geminga.asyncio.Client(broker.url)
        producer = await client.create_producer("t", block_if_queue_full=True, max_pending_messages=5)
        call = asyncio.ensure_future(producer.send_many(VALUES[:20]))
        await eventually_async(lambda: producer.statistics().pending_messages >= 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert producer.statistics().sent_messages == 5
        client.shutdown()


def test_a_call_reports_when_each_message_has_an_outcome():
    told: list[Any] = []
    call = Many(2, told.append)
    call.open()
    call.failed(call.tokens[1], ValueError("no"))
    assert not told
    call.stored(call.tokens[0], 1, lambda: [geminga.MessageId(-1, 1, 2)])
    (sent,) = told
    assert repr(sent) == "<ManySent 2 messages, 1 failed>"
    with pytest.raises(errors.SendManyFailed):
        sent.check()
    assert sent.message_ids == [geminga.MessageId(-1, 1, 2), None]


class Growing(list[Any]):
    """List that another thread appends to during a call: iteration yields more than its length promised."""

    def __init__(self, values: list[Any], told: int) -> None:
        super().__init__(values)
        self.told = told

    def __len__(self) -> int:
        return self.told


@pytest.mark.parametrize("told", [3, 5])
def test_a_list_that_grows_during_send_many_is_read_once(pulsar_client, pulsar_topic, told):
    """Once, such a list was sent in part without an error, or its callback was never called."""
    values = Growing([b"a", b"b", b"c", b"d"], told)
    done = Once()
    with pulsar_client.create_producer(pulsar_topic) as producer:
        producer.send_many(values, done)
        assert done.came.wait(60)
        assert done.sent.ok
        assert len(done.sent) == 4
        keyed = Once()
        producer.send_many([b"e", b"f", b"g", b"h"], keyed, keys=Growing(["k"] * 4, told))
        assert keyed.came.wait(60)
        assert keyed.sent.ok
        with pytest.raises(errors.InvalidConfiguration, match="keys has 4 items for 3 values"):
            producer.send_many([b"x", b"y", b"z"], keys=Growing(["k"] * 4, 3))
    assert [message.data() for message in read(pulsar_client, pulsar_topic, 8)] == [
        b"%c" % each for each in b"abcdefgh"
    ]
