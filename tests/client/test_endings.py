"""Ends of clients: close, shutdown, garbage collection, exit of the interpreter.

No call waits for ever, nothing leaks, and pending sends and acknowledgements leave first.
"""

import asyncio
import contextlib
import gc
import re
import threading
import time
import weakref
from typing import Any

import pytest
from insides import inner_consumer, publisher_of
from interpreter import run_python
from published import backlog
from scripted_broker import Type
from waiting import (
    Blocked,
    eventually,
    eventually_async,
    eventually_awaited,
    join_threads,
    loop_turns,
    start_thread,
)

import geminga
import geminga.asyncio
from geminga import ConsumerType, InitialPosition, MessageId
from geminga.client.admin import admin
from geminga.client.io.runtime import LoopThread
from geminga.errors import AlreadyClosed


# --- shutdown ---
@pytest.mark.parametrize("end", ["shutdown", "close"])
def test_threads_that_wait_for_messages_get_an_error_at_the_end(pulsar_broker, pulsar_topic, end):
    client = pulsar_broker.client()
    consumer = client.subscribe(pulsar_topic, "s")
    tables = client.subscribe(pulsar_topic, "tables")
    reader = client.create_reader(pulsar_topic, MessageId.latest)
    blocked = [
        Blocked(consumer.receive),
        Blocked(lambda: consumer.receive(60_000)),
        Blocked(lambda: list(consumer)),
        Blocked(lambda: consumer.receive(120_000)),
        Blocked(reader.read_next),
        Blocked(lambda: list(reader)),
        Blocked(tables.receive_table),
    ]
    eventually(
        lambda: (
            len(inner_consumer(consumer).receive_waiters) == 4
            and len(reader._reader.consumer.receive_waiters) == 2
        )
    )
    getattr(client, end)()
    outcomes = [one.ended() for one in blocked]
    assert outcomes[2] == outcomes[5] == []
    for number in (0, 1, 3, 4, 6):
        assert isinstance(outcomes[number], AlreadyClosed)


def test_threads_that_wait_for_receipts_or_permits_get_an_error_at_shutdown(broker):
    broker.answers.pop(Type.SEND)  # no receipt ever comes
    client = geminga.Client(broker.url)
    producer = client.create_producer("t", max_pending_messages=1, block_if_queue_full=True)
    results: list[Any] = []
    producer.send_async(b"1", lambda result, _id: results.append(result))
    blocked = [
        Blocked(lambda: producer.send(b"2")),
        Blocked(lambda: producer.send_async(b"3", None)),
        Blocked(producer.flush),
    ]
    time.sleep(0.1)
    client.shutdown()
    for one in blocked:
        assert isinstance(one.ended(), AlreadyClosed)
    assert results == [geminga.Result.AlreadyClosed]


def test_a_second_close_on_top_of_the_first_waits_for_the_same_end(pulsar_broker, pulsar_topic):
    """A SIGTERM handler closes while the program is closing already: pending sends still complete."""
    client = pulsar_broker.client()
    producer = client.create_producer(pulsar_topic, max_pending_messages=0, batching_enabled=True)
    outcomes: list[Any] = []
    for number in range(20_000):
        producer.send_async(b"%d" % number, lambda result, _id: outcomes.append(result))
    closing = [Blocked(client.close) for _ in range(3)]
    assert [one.ended() for one in closing] == [None, None, None]
    assert outcomes == [geminga.Result.Ok] * 20_000


# --- dropped ---
def test_a_client_that_is_dropped_says_so_and_leaves_nothing_behind(pulsar_broker, pulsar_topic):
    client = geminga.Client(pulsar_broker.service_url)
    producer = client.create_producer(
        pulsar_topic, batching_enabled=True, batching_max_publish_delay_ms=60_000, max_pending_messages=0
    )
    consumer = client.subscribe(pulsar_topic, "s", schema=geminga.schema.StringSchema())
    receipts: list[Any] = []
    thread = client.runtime.thread
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert producer.send(b"x") is not None  # a program that holds a producer can still send
    for _ in range(1000):
        producer.send_async(b"y", lambda result, _id: receipts.append(result))
    consumer.acknowledge(consumer.receive(30_000))
    holders = [producer, consumer]
    del producer, consumer
    with pytest.warns(ResourceWarning, match="was not closed"):
        _drop(holders)
    join_threads(thread)
    assert gone() is None
    assert receipts == [geminga.Result.Ok] * 1000
    assert backlog(pulsar_broker, pulsar_topic) in (1, 1000)


def _sends(client: geminga.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"x")
    producer.send_async(b"x", None, partition_key="k")


def _is_refused(client: geminga.Client, topic: str) -> None:
    with contextlib.suppress(geminga.PulsarException):
        client.create_producer("persistent://no-such/tenant/t")


@pytest.mark.filterwarnings("ignore:.*not closed:ResourceWarning")
@pytest.mark.parametrize(
    "use",
    [
        _sends,
        _is_refused,
        lambda client, topic: client.get_topic_partitions(topic),
        lambda client, topic: client.subscribe(topic, "s"),
        lambda client, topic: client.create_reader(topic, geminga.MessageId.earliest),
        lambda client, topic: client.create_table_view(topic),
    ],
    ids=["producer", "refusal", "partitions", "consumer", "reader", "table view"],
)
def test_a_dropped_client_does_not_wait_for_the_garbage_collector(pulsar_broker, pulsar_topic, use):
    def program() -> threading.Thread:
        client = geminga.Client(pulsar_broker.service_url)
        use(client, pulsar_topic)
        return client.runtime.thread

    gc.collect()
    gc.disable()
    try:
        thread = program()
        join_threads(thread)
    finally:
        gc.enable()


def _drop(holders: list[Any]) -> None:
    holders.clear()
    gc.collect()


def test_a_dropped_client_with_a_listener_keeps_running(pulsar_broker, pulsar_topic):
    heard: list[bytes] = []
    client = geminga.Client(pulsar_broker.service_url)
    runtime = client.runtime
    client.subscribe(pulsar_topic, "s", message_listener=lambda consumer, m: heard.append(m.data()))
    producer = client.create_producer(pulsar_topic)
    del client
    gc.collect()
    producer.send(b"x")
    eventually(lambda: heard == [b"x"])
    runtime.close()


def test_no_callback_runs_after_a_client_is_closed(pulsar_broker, pulsar_topic, monkeypatch):
    """As after the close of a consumer: what a listener is just at is waited for."""
    monkeypatch.setattr("geminga.client.api.sync_base.STOP_SECONDS_MAX", 60)
    inside, go = threading.Event(), threading.Event()
    seen: list[str] = []

    def heard(consumer: Any, message: Any) -> None:
        threads.append(threading.current_thread())
        inside.set()
        go.wait(60)
        seen.append("heard")

    threads: list[threading.Thread] = []
    client = geminga.Client(pulsar_broker.service_url)
    client.subscribe(pulsar_topic, "s", message_listener=heard)
    client.create_producer(pulsar_topic).send(b"x")
    assert inside.wait(60)
    context = client.context
    closing = start_thread(client.close)
    eventually(lambda: context.closed, 60)
    go.set()
    closing.join(60)
    assert seen == ["heard"]
    (thread,) = threads
    join_threads(thread)


def test_a_closed_client_is_freed_though_its_listener_knows_it(pulsar_broker, pulsar_topic):
    class Service:
        def __init__(self) -> None:
            self.client = geminga.Client(pulsar_broker.service_url)
            self.client.subscribe(pulsar_topic, "s", message_listener=self.heard)

        def heard(self, consumer: Any, message: Any) -> None:
            """Ignore the message."""

    service = Service()
    service.client.close()
    gone = weakref.ref(service)
    del service
    gc.collect()
    # The client's threads hold what they are at until they have ended: `close` waits for that, within limits.
    eventually(lambda: gc.collect() is not None and gone() is None)


def test_a_second_close_does_not_interrupt_the_first():
    """Two threads close: what the first one ends is ended to the last step."""
    runtime = LoopThread()
    cleaned: list[str] = []

    async def slow_to_go() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await loop_turns(3)
            cleaned.append("up")

    async def start_and_stop_twice() -> None:
        tasks.append(asyncio.create_task(slow_to_go()))
        await loop_turns()
        runtime._inner.stop()
        asyncio.get_running_loop().call_later(0.02, runtime._inner.stop)

    tasks: list[asyncio.Task[None]] = []
    with contextlib.suppress(AlreadyClosed):
        runtime.call(start_and_stop_twice())
    runtime.close()
    assert cleaned == ["up"]


def test_a_send_while_the_loop_of_a_closed_producer_ends_fails(pulsar_broker, pulsar_topic):
    """The producer is closed: the loop still answers calls, until it ends during an answer."""
    client = geminga.Client(pulsar_broker.service_url)
    producer = client.create_producer(pulsar_topic)
    producer.close()
    publisher = publisher_of(producer)
    told: list[Any] = []
    publisher._wake_loop = publisher.submit_queue._wake = lambda: None  # the loop is never woken
    sender = start_thread(lambda: producer.send_async(b"x", lambda result, _: told.append(result)))
    eventually(lambda: publisher.submit_queue.pairs)
    client.close()
    sender.join(60)
    assert told == [geminga.Result.AlreadyClosed]
    for _ in range(3):
        producer.send_async(b"x", lambda result, _: told.append(result))
    assert len(told) == 4
    assert not publisher.submit_queue.pairs, "what nobody will take is not kept"


# --- the end of the interpreter ---
SLOW_STEP = re.compile(r"Executing <.*> took \d+\.\d+ seconds")
"""The line in which asyncio's debug mode names a step of over 100 ms, common on a busy machine."""


def quiet_output(program: str) -> str:
    """Run the program in Python's development mode: it must warn of nothing but slow steps."""
    done = run_python(program, options=("-X", "dev"))
    assert not [line for line in done.stderr.splitlines() if not SLOW_STEP.fullmatch(line)]
    return done.stdout


def test_acknowledgements_and_messages_leave_before_the_interpreter_ends(
    pulsar_broker, pulsar_client, pulsar_topic
):
    with pulsar_client.create_producer(pulsar_topic) as producer:
        for _ in range(20):
            producer.send(b"x")
    pulsar_client.subscribe(
        pulsar_topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest
    ).close()
    assert backlog(pulsar_broker, pulsar_topic) == 20
    quiet_output(
        "import geminga\n"
        f"client = geminga.Client({pulsar_broker.service_url!r})\n"
        f"consumer = client.subscribe({pulsar_topic!r}, 's', geminga.ConsumerType.Shared)\n"
        "for _ in range(20):\n"
        "    consumer.acknowledge(consumer.receive(30_000))\n"
        f"producer = client.create_producer({pulsar_topic + '-out'!r}, batching_enabled=True,\n"
        "    batching_max_publish_delay_ms=60000)\n"
        "for n in range(10):\n"
        "    producer.send_async(b'%d' % n, None)\n"
    )
    assert backlog(pulsar_broker, pulsar_topic) == 0
    with pulsar_client.create_reader(pulsar_topic + "-out", MessageId.earliest) as reader:
        assert [reader.read_next(30_000).data() for _ in range(10)] == [b"%d" % n for n in range(10)]


def test_a_finalizer_at_the_end_of_the_interpreter_may_catch_errors(pulsar_broker, pulsar_topic):
    """The finalizer runs when modules can no longer be imported."""
    quiet_output(
        "import geminga as pulsar\n"
        "class Service:\n"
        "    def __init__(self):\n"
        f"        self.client = pulsar.Client({pulsar_broker.service_url!r})\n"
        f"        self.producer = self.client.create_producer({pulsar_topic!r})\n"
        "    def __del__(self):\n"
        "        try:\n"
        "            self.producer.send(b'late')\n"
        "        except pulsar.AlreadyClosed:\n"
        "            print('told', flush=True)\n"
        "        self.client.close()\n"
        "service = Service()\n"
        "service.itself = service\n"
    )


# --- loops ---
def test_one_asyncio_client_over_several_loops(pulsar_broker, pulsar_topic):
    client = geminga.asyncio.Client(pulsar_broker.service_url)

    async def send(value: bytes) -> None:
        producer = await client.create_producer(pulsar_topic)
        await producer.send(value)

    async def read(count: int) -> list[bytes]:
        reader = await client.create_reader(pulsar_topic, MessageId.earliest)
        return [(await reader.read_next(30_000)).data() for _ in range(count)]

    asyncio.run(send(b"1"))
    asyncio.run(send(b"2"))
    assert asyncio.run(read(2)) == [b"1", b"2"]

    asyncio.run(client.close())
    with pytest.raises(AlreadyClosed):
        asyncio.run(send(b"3"))


async def test_pending_sends_and_acks_leave_when_asyncio_run_ends(pulsar_broker, pulsar_topic):
    """The program forgot to close: acknowledgements and messages leave with the end of the loop."""
    held: list[Any] = []
    client = geminga.asyncio.Client(pulsar_broker.service_url)
    consumer = await client.subscribe(pulsar_topic, "s", ConsumerType.Shared)
    producer = await client.create_producer(
        pulsar_topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    await asyncio.gather(*(producer.send(b"x") for _ in range(10)), producer.flush())
    for _ in range(10):
        await consumer.acknowledge(await consumer.receive(30_000))
    for _ in range(5):
        producer.send_async(b"y")
    held.append(client)
    assert backlog(pulsar_broker, pulsar_topic) == 1  # the batch of 5 is one entry


async def test_a_dropped_asyncio_client_says_so(pulsar_broker):
    client = geminga.asyncio.Client(pulsar_broker.service_url)
    await client.get_topic_partitions("t")
    (connection,) = client.context.pool.connections
    holders = [client]
    del client
    with pytest.warns(ResourceWarning, match="was not closed"):
        _drop(holders)
    await eventually_async(lambda: connection.closed)


# --- cancelled ends ---
@pytest.mark.parametrize("kind", ["producer", "consumer", "reader", "table view"])
async def test_a_cancelled_close_still_detaches_all(pulsar_broker, pulsar_topic, kind):
    """Cancelled in its first steps, a close had marked itself as done and told the broker nothing: what it
    closed stayed attached, and to close it again did nothing."""

    def attached() -> int:
        stats = admin(pulsar_broker.admin_url, "GET", f"{pulsar_topic.replace('://', '/')}/stats")
        consumers = [each for sub in stats["subscriptions"].values() for each in sub["consumers"]]
        return len(stats["publishers"]) + len(consumers)

    async def opened(client: Any) -> Any:
        if kind == "producer":
            return await client.create_producer(pulsar_topic)
        if kind == "consumer":
            return await client.subscribe(pulsar_topic, "s", consumer_type=ConsumerType.Shared)
        if kind == "reader":
            return await client.create_reader(pulsar_topic, MessageId.latest)
        return await client.create_table_view(pulsar_topic)

    async def detached() -> bool:
        return not await asyncio.to_thread(attached)

    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        handles = [await opened(client) for _ in range(12)]
        for steps, handle in enumerate(handles):
            closing = asyncio.ensure_future(handle.close())
            await loop_turns(steps + 1)  # 0: it has not begun, and was not asked for
            closing.cancel()
            await asyncio.wait([closing])
        await eventually_awaited(detached, detail="somebody is still attached")
        for handle in handles:  # again, as an interrupted program may do
            with contextlib.suppress(AlreadyClosed):
                await asyncio.wait_for(handle.close(), 60)
        assert not client.context.in_use


async def test_closing_a_producer_again_waits_for_the_running_close(pulsar_broker, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(
            pulsar_topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        receipts: list[Any] = []
        producer.send_async(b"x", lambda result, message_id: receipts.append(result))
        closing = asyncio.ensure_future(producer.close())
        await loop_turns()
        closing.cancel()
        await producer.close()
        assert receipts == [geminga.Result.Ok]
        with pytest.raises(AlreadyClosed):
            await producer.close()
