"""Everyday programs, each written once for ``pulsar-client`` and Geminga; `benchmarks.everyday` runs them.

A program gets a `Run`: the module of the library as ``run.pulsar``, the broker's address, a topic and the
number of messages. It measures the messages inside ``with run.measured():`` and nothing else, after a tenth
of them as warm-up where the program sends or receives in a loop.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import cpu_seconds

CONTENT = b"x" * 100
LARGE = b"x" * 10_000
KEYS = [f"key-{number}" for number in range(100)]
PROPERTIES = {"source": "everyday", "attempt": "1"}
COLUMN_ROWS = 100_000


@dataclass
class Run:
    """One run of a program: its arguments, and the seconds that it measured."""

    pulsar: Any
    """The module of the library: ``pulsar`` or ``geminga``."""
    url: str
    tls_url: str
    topic: str
    """Topic of the program: with messages if the program has a backlog, else new."""
    count: int
    """Number of messages (or of objects to open)."""
    folder: str
    """Folder with ``authority.pem`` (TLS), ``public.pem`` and ``private.pem`` (encryption)."""
    found: dict[str, float] = field(default_factory=dict)
    other_threads: list[float] = field(default_factory=list)
    """CPU seconds of the threads of the program other than the one that measures."""

    @property
    def name(self) -> str:
        """A subscription name that no other run has."""
        return f"run-{time.time_ns()}"

    @contextmanager
    def measured(self, count: int | None = None) -> Iterator[None]:
        """Measure wall and CPU seconds of this process for ``count`` messages, by default `count`."""
        cpu, thread, start = cpu_seconds(), time.thread_time(), time.perf_counter()
        yield
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
        thread = time.thread_time() - thread + sum(self.other_threads)
        self.found = {"messages": count or self.count, "seconds": seconds, "cpu": cpu, "thread": thread}


@dataclass(frozen=True)
class Program:
    """A program, its title in the table and the messages that its topic holds before it starts."""

    name: str
    title: str
    run: Callable[[Run], None]
    count: int
    backlog: str = ""
    """Kind of backlog (see `benchmarks.everyday`), empty for a new topic."""
    partitions: int = 0
    java: tuple[str, ...] = ()
    """Arguments of the same work for ``pulsar-perf``, empty where it cannot do the work."""
    only: str = ""
    """The one library that can do this, empty if both can."""


PROGRAMS: dict[str, Program] = {}


def program(
    name: str, title: str, count: int, **options: Any
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Add the decorated function to `PROGRAMS`."""

    def add(run: Callable[[Run], None]) -> Callable[[Run], None]:
        PROGRAMS[name] = Program(name, title, run, count, **options)
        return run

    return add


# --- receiving ---------------------------------------------------------------------------------------


def _receive(
    run: Run, kind: str = "Exclusive", *, url: str = "", client_options: Any = None, **options: Any
) -> None:
    client = run.pulsar.Client(url or run.url, **(client_options or {}))
    consumer = client.subscribe(
        run.topic,
        run.name,
        consumer_type=getattr(run.pulsar.ConsumerType, kind),
        initial_position=run.pulsar.InitialPosition.Earliest,
        **options,
    )
    warm = run.count // 10
    for _ in range(warm):
        consumer.acknowledge(consumer.receive(30_000))
    with run.measured(run.count - warm):
        for _ in range(run.count - warm):
            consumer.acknowledge(consumer.receive(30_000))
    client.close()


@program(
    "receive",
    "receive + acknowledge, unbatched, Exclusive",
    100_000,
    backlog="plain",
    java=("consume", "Exclusive"),
)
def receive(run: Run) -> None:
    _receive(run)


@program(
    "receive-shared",
    "receive + acknowledge, unbatched, Shared",
    100_000,
    backlog="plain",
    java=("consume", "Shared"),
)
def receive_shared(run: Run) -> None:
    _receive(run, "Shared")


@program(
    "receive-key-shared",
    "receive + acknowledge, unbatched, Key_Shared",
    100_000,
    backlog="plain",
    java=("consume", "Key_Shared"),
)
def receive_key_shared(run: Run) -> None:
    _receive(run, "KeyShared")


@program("receive-large", "receive + acknowledge, unbatched, 10 kB", 20_000, backlog="large")
def receive_large(run: Run) -> None:
    _receive(run)


@program(
    "receive-keyed", "receive + acknowledge, unbatched, with key and properties", 50_000, backlog="keyed"
)
def receive_keyed(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    consumer = client.subscribe(run.topic, run.name, initial_position=run.pulsar.InitialPosition.Earliest)
    warm = run.count // 10
    for _ in range(warm):
        consumer.acknowledge(consumer.receive(30_000))
    keys: dict[str, int] = {}
    with run.measured(run.count - warm):
        for _ in range(run.count - warm):
            message = consumer.receive(30_000)
            if message.properties()["source"] == "everyday":
                keys[message.partition_key()] = len(message.data())
            consumer.acknowledge(message)
    assert keys
    client.close()


@program(
    "receive-batched",
    "receive + acknowledge, batched, Exclusive",
    400_000,
    backlog="batched",
    java=("consume", "Exclusive"),
)
def receive_batched(run: Run) -> None:
    _receive(run)


@program(
    "receive-batched-shared",
    "receive + acknowledge, batched, Shared",
    400_000,
    backlog="batched",
    java=("consume", "Shared"),
)
def receive_batched_shared(run: Run) -> None:
    _receive(run, "Shared")


# Only Geminga: pulsar-client wakes one thread for messages that arrive together, others wait 30 s for theirs.
def _receive_with_threads(run: Run, threads: int) -> None:
    client = run.pulsar.Client(run.url)
    consumer = client.subscribe(
        run.topic,
        run.name,
        consumer_type=run.pulsar.ConsumerType.Shared,
        initial_position=run.pulsar.InitialPosition.Earliest,
    )
    warm = run.count // 10
    share = (run.count - warm) // threads
    for _ in range(warm):
        consumer.acknowledge(consumer.receive(30_000))

    def take() -> None:
        for _ in range(share):
            consumer.acknowledge(consumer.receive(30_000))
        run.other_threads.append(time.thread_time())

    with ThreadPoolExecutor(threads) as pool, run.measured(share * threads):
        workers = [pool.submit(take) for _ in range(threads)]
        for worker in workers:
            worker.result()
    client.close()


@program(
    "receive-2-threads",
    "receive + acknowledge by 2 threads, batched, Shared",
    400_000,
    backlog="batched",
    only="geminga",
)
def receive_2_threads(run: Run) -> None:
    _receive_with_threads(run, 2)


@program(
    "receive-4-threads",
    "receive + acknowledge by 4 threads, batched, Shared",
    400_000,
    backlog="batched",
    only="geminga",
)
def receive_4_threads(run: Run) -> None:
    _receive_with_threads(run, 4)


@program("cumulative", "receive, a cumulative acknowledgement every 100, unbatched", 100_000, backlog="plain")
def cumulative(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    consumer = client.subscribe(run.topic, run.name, initial_position=run.pulsar.InitialPosition.Earliest)
    with run.measured():
        for _ in range(run.count // 100):
            for _ in range(99):
                consumer.receive(30_000)
            consumer.acknowledge_cumulative(consumer.receive(30_000))
    client.close()


def _batch_receive(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    consumer = client.subscribe(
        run.topic,
        run.name,
        initial_position=run.pulsar.InitialPosition.Earliest,
        batch_receive_policy=run.pulsar.ConsumerBatchReceivePolicy(1000, 10_000_000, 100),
    )
    taken = 0
    with run.measured():
        while taken < run.count:
            messages = consumer.batch_receive()
            for message in messages:
                consumer.acknowledge(message)
            taken += len(messages)
    client.close()


@program("batch-receive", "batch_receive + acknowledge, unbatched", 100_000, backlog="plain")
def batch_receive(run: Run) -> None:
    _batch_receive(run)


@program("batch-receive-batched", "batch_receive + acknowledge, batched", 400_000, backlog="batched")
def batch_receive_batched(run: Run) -> None:
    _batch_receive(run)


def _read(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    reader = client.create_reader(run.topic, run.pulsar.MessageId.earliest)
    warm = run.count // 10
    for _ in range(warm):
        reader.read_next(30_000)
    with run.measured(run.count - warm):
        for _ in range(run.count - warm):
            reader.read_next(30_000)
    client.close()


@program("reader", "reader, unbatched", 100_000, backlog="plain")
def reader(run: Run) -> None:
    _read(run)


@program("reader-batched", "reader, batched", 400_000, backlog="batched")
def reader_batched(run: Run) -> None:
    _read(run)


@program("reader-has-next", "reader with has_message_available, unbatched", 50_000, backlog="plain")
def reader_has_next(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    reader = client.create_reader(run.topic, run.pulsar.MessageId.earliest)
    read = 0
    with run.measured():
        while read < run.count and reader.has_message_available():
            reader.read_next()
            read += 1
    assert read == run.count
    client.close()


def _listen(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    done, received = threading.Event(), 0

    def listener(consumer: Any, message: Any) -> None:
        nonlocal received
        consumer.acknowledge(message)
        received += 1
        if received == run.count:
            done.set()

    with run.measured():
        client.subscribe(
            run.topic,
            run.name,
            initial_position=run.pulsar.InitialPosition.Earliest,
            message_listener=listener,
        )
        assert done.wait(60)
    client.close()


@program("listener", "listener, unbatched", 100_000, backlog="plain")
def listener(run: Run) -> None:
    _listen(run)


@program("listener-batched", "listener, batched", 400_000, backlog="batched")
def listener_batched(run: Run) -> None:
    _listen(run)


@program("nack", "negative_acknowledge + redelivery", 10_000, backlog="few")
def nack(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    consumer = client.subscribe(
        run.topic,
        run.name,
        consumer_type=run.pulsar.ConsumerType.Shared,
        initial_position=run.pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
    )
    left = run.count
    with run.measured():
        while left:
            message = consumer.receive(30_000)
            if message.redelivery_count() == 0:
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
                left -= 1
    client.close()


@program("dead-letter", "negative_acknowledge until the dead-letter topic has it", 2_000, backlog="fewest")
def dead_letter(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    dead_topic, subscription = f"{run.topic}-{run.name}-dead", run.name
    dead = client.subscribe(dead_topic, "dead")
    policy = run.pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1, dead_letter_topic=dead_topic)
    consumer = client.subscribe(
        run.topic,
        subscription,
        consumer_type=run.pulsar.ConsumerType.Shared,
        initial_position=run.pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=policy,
    )
    with run.measured():
        for _ in range(2 * run.count):
            consumer.negative_acknowledge(consumer.receive(30_000))

        # The last ones go to the dead-letter topic inside `receive`. Apache Pulsar delivers some of them
        # once more than it counts (seen for 100 at a time).
        def drain() -> None:
            try:
                while True:
                    consumer.negative_acknowledge(consumer.receive(60_000))
            except Exception:
                return  # closed below

        threading.Thread(target=drain, daemon=True).start()
        for _ in range(run.count):
            dead.acknowledge(dead.receive(30_000))
    client.shutdown()


@program(
    "receive-table", "receive_table + acknowledge_table, batched", 300_000, backlog="batched", only="geminga"
)
def receive_table(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    consumer = client.subscribe(
        run.topic,
        run.name,
        initial_position=run.pulsar.InitialPosition.Earliest,
        receiver_queue_size=run.count // 10,
    )

    def take(rows_max: int) -> int:
        rows = 0
        while rows < rows_max:
            table = consumer.receive_table(timeout_millis=30_000)
            rows += table.num_rows
            consumer.acknowledge_table(table)
        return rows

    left = run.count - take(run.count // 10)
    with run.measured(left):
        take(left)
    client.close()


# --- schemas -----------------------------------------------------------------------------------------


def _order_schema(run: Run, kind: str) -> Any:
    """The schema of a record with an int, a string, a float and a list: ``JsonSchema`` or ``AvroSchema``."""
    schema = importlib.import_module(f"{run.pulsar.__name__}.schema")

    class Order(schema.Record):  # type: ignore[misc, name-defined]
        id = schema.Integer()
        customer = schema.String()
        amount = schema.Double()
        tags = schema.Array(schema.String())

    return getattr(schema, kind)(Order), Order


def _send_orders(run: Run, kind: str) -> None:
    schema, order = _order_schema(run, kind)
    client = run.pulsar.Client(run.url)
    producer = client.create_producer(
        run.topic, schema=schema, block_if_queue_full=True, batching_enabled=True
    )
    callback, failures = _receipts(run)

    def send(count: int) -> None:
        for number in range(count):
            producer.send_async(order(id=number, customer="Ada", amount=1.5, tags=["new"]), callback)
        producer.flush()

    _publish(run, send)
    assert not failures, failures[0]
    client.close()


def _receive_orders(run: Run, kind: str) -> None:
    schema, _ = _order_schema(run, kind)
    client = run.pulsar.Client(run.url)
    consumer = client.subscribe(
        run.topic, run.name, schema=schema, initial_position=run.pulsar.InitialPosition.Earliest
    )
    warm, total = run.count // 10, 0.0
    for _ in range(warm):
        consumer.acknowledge(consumer.receive(30_000))
    with run.measured(run.count - warm):
        for _ in range(run.count - warm):
            message = consumer.receive(30_000)
            total += message.value().amount
            consumer.acknowledge(message)
    assert total == 1.5 * (run.count - warm)
    client.close()


@program("json-send", "JSON schema, send_async", 30_000)
def json_send(run: Run) -> None:
    _send_orders(run, "JsonSchema")


@program("json-receive", "JSON schema, receive + value", 30_000, backlog="json")
def json_receive(run: Run) -> None:
    _receive_orders(run, "JsonSchema")


@program("avro-send", "Avro schema, send_async", 30_000)
def avro_send(run: Run) -> None:
    _send_orders(run, "AvroSchema")


@program("avro-receive", "Avro schema, receive + value", 30_000, backlog="avro")
def avro_receive(run: Run) -> None:
    _receive_orders(run, "AvroSchema")


# --- sending -----------------------------------------------------------------------------------------


def _receipts(run: Run) -> tuple[Callable[[Any, Any], None], list[Any]]:
    """Return a callback for `send_async` and the list of failures that it fills."""
    ok, failures = run.pulsar.Result.Ok, []

    def callback(result: Any, _message_id: Any) -> None:
        if result != ok:
            failures.append(result)

    return callback, failures


def _send_async(
    run: Run, *, content: bytes = CONTENT, client_options: Any = None, url: str = "",
    fields: Sequence[dict[str, Any]] = (), **options: Any,
) -> None:  # fmt: skip
    """Send messages, with ``fields`` in turn."""
    client = run.pulsar.Client(url or run.url, **(client_options or {}))
    producer = client.create_producer(run.topic, block_if_queue_full=True, **options)

    callback, failures = _receipts(run)

    def send(count: int) -> None:
        if fields:
            for number in range(count):
                producer.send_async(content, callback, **fields[number % len(fields)])
        else:
            for _ in range(count):
                producer.send_async(content, callback)
        producer.flush()

    _publish(run, send)
    assert not failures, failures[0]
    client.close()


def _publish(run: Run, send: Callable[[int], None]) -> None:
    """Measure ``send`` for `Run.count` messages, and for up to twenty times as many if that is a second."""
    send(run.count // 10)
    start = time.perf_counter()
    send(run.count // 10)
    a_second = int(run.count / 10 / (time.perf_counter() - start)) // 1000 * 1000
    count = max(run.count, min(20 * run.count, a_second))
    with run.measured(count):
        send(count)


@program("send-many", "send_many of 1,000 values, one callback, batched", 200_000, only="geminga")
def send_many(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    producer = client.create_producer(
        run.topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=20_000
    )
    values, failures = [CONTENT] * 1000, []

    def callback(sent: Any) -> None:
        failures.extend(sent.failures)

    def send(count: int) -> None:
        for _ in range(max(1, count // 1000)):
            producer.send_many(values, callback)
        producer.flush()

    _publish(run, send)
    assert not failures, failures[0]
    client.close()


@program("send-table", "send_table of 100,000 rows", 1_000_000, only="geminga")
def send_table(run: Run) -> None:
    import pyarrow as pa

    table = pa.table({"value": pa.array([CONTENT] * COLUMN_ROWS, pa.binary())})
    client = run.pulsar.Client(run.url)
    producer = client.create_producer(run.topic, block_if_queue_full=True)

    def send(count: int) -> None:
        sent = [producer.submit_table(table) for _ in range(max(1, count // COLUMN_ROWS))]
        for each in sent:
            each.result()

    _publish(run, send)
    client.close()


@program("send-async", "send_async, unbatched", 100_000, java=("produce", "-db"))
def send_async(run: Run) -> None:
    _send_async(run)


@program("send-async-large", "send_async, unbatched, 10 kB", 20_000)
def send_async_large(run: Run) -> None:
    _send_async(run, content=LARGE)


@program("send-async-batched", "send_async, batched", 200_000, java=("produce",))
def send_async_batched(run: Run) -> None:
    _send_async(run, batching_enabled=True)


@program("send-async-keyed", "send_async, batched, with key and properties", 50_000)
def send_async_keyed(run: Run) -> None:
    fields = [{"partition_key": key, "properties": PROPERTIES} for key in KEYS]
    _send_async(run, batching_enabled=True, fields=fields)


EVENT_TIMES = [{"event_timestamp": 1_700_000_000_000 + number} for number in range(100)]


@program("send-async-event-time", "send_async, batched, with event time", 50_000)
def send_async_event_time(run: Run) -> None:
    _send_async(run, batching_enabled=True, fields=EVENT_TIMES)


@program("send-async-event-time-unbatched", "send_async, unbatched, with event time", 20_000)
def send_async_event_time_unbatched(run: Run) -> None:
    _send_async(run, fields=EVENT_TIMES)


@program("send-async-lz4", "send_async, batched, LZ4", 200_000)
def send_async_lz4(run: Run) -> None:
    _send_async(run, batching_enabled=True, compression_type=run.pulsar.CompressionType.LZ4)


@program("send-async-zstd", "send_async, batched, ZSTD", 200_000)
def send_async_zstd(run: Run) -> None:
    _send_async(run, batching_enabled=True, compression_type=run.pulsar.CompressionType.ZSTD)


@program("send", "send, one after another", 3_000)
def send(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    producer = client.create_producer(run.topic)
    for _ in range(run.count // 10):
        producer.send(CONTENT)
    with run.measured():
        for _ in range(run.count):
            producer.send(CONTENT)
    client.close()


@program("ping-pong", "ping-pong of two topics", 1_000)
def ping_pong(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    pings, pongs = client.subscribe(f"{run.topic}-ping", "s"), client.subscribe(f"{run.topic}-pong", "s")
    ping, pong = client.create_producer(f"{run.topic}-ping"), client.create_producer(f"{run.topic}-pong")
    warm = run.count // 10

    def answer() -> None:
        for _ in range(run.count + warm):
            message = pings.receive(30_000)
            pong.send(message.data())
            pings.acknowledge(message)

    def ask(count: int) -> None:
        for _ in range(count):
            ping.send(CONTENT)
            pongs.acknowledge(pongs.receive(30_000))

    thread = threading.Thread(target=answer)
    thread.start()
    ask(warm)
    with run.measured():
        ask(run.count)
    thread.join()
    client.close()


@program("request-reply", "request and reply by a listener", 1_000)
def request_reply(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    replies = client.subscribe(f"{run.topic}-replies", "s")
    responder = client.create_producer(f"{run.topic}-replies")
    callback, _ = _receipts(run)

    def serve(consumer: Any, message: Any) -> None:
        responder.send_async(message.data(), callback, properties={"id": message.properties()["id"]})
        consumer.acknowledge(message)

    client.subscribe(f"{run.topic}-requests", "s", message_listener=serve)
    requests = client.create_producer(f"{run.topic}-requests")

    def ask(count: int) -> None:
        for number in range(count):
            requests.send(CONTENT, properties={"id": str(number)})
            reply = replies.receive(30_000)
            assert reply.properties()["id"] == str(number)
            replies.acknowledge(reply)

    ask(run.count // 10)
    with run.measured():
        ask(run.count)
    client.close()


# --- opening -----------------------------------------------------------------------------------------


@program("open-producers", "open producers, one after another", 1_000)
def open_producers(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    client.create_producer(f"{run.topic}-first")
    with run.measured():
        producers = [client.create_producer(f"{run.topic}-{number}") for number in range(run.count)]
    assert len(producers) == run.count
    client.shutdown()


@program("open-consumers", "open consumers, one after another", 1_000)
def open_consumers(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    client.subscribe(f"{run.topic}-first", "s")
    with run.measured():
        consumers = [client.subscribe(f"{run.topic}-{number}", "s") for number in range(run.count)]
    assert len(consumers) == run.count
    client.shutdown()


@program("open-readers", "open readers, one after another", 1_000)
def open_readers(run: Run) -> None:
    client, earliest = run.pulsar.Client(run.url), run.pulsar.MessageId.earliest
    client.create_reader(f"{run.topic}-first", earliest)
    with run.measured():
        readers = [client.create_reader(f"{run.topic}-{number}", earliest) for number in range(run.count)]
    assert len(readers) == run.count
    client.shutdown()


# --- asyncio -----------------------------------------------------------------------------------------


def _with_asyncio(run: Run, main: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Run ``main`` with a client of the library's asyncio module."""
    library = importlib.import_module(f"{run.pulsar.__name__}.asyncio")

    async def with_client() -> None:
        client = library.Client(run.url)
        await main(client)
        await client.close()

    asyncio.run(with_client())


@program("asyncio-send", "asyncio: one send after another", 2_000)
def asyncio_send(run: Run) -> None:
    async def main(client: Any) -> None:
        producer = await client.create_producer(run.topic, batching_enabled=False)
        for _ in range(run.count // 10):
            await producer.send(CONTENT)
        with run.measured():
            for _ in range(run.count):
                await producer.send(CONTENT)

    _with_asyncio(run, main)


@program("asyncio-gather", "asyncio: gathered sends, batched", 50_000)
def asyncio_gather(run: Run) -> None:
    async def main(client: Any) -> None:
        producer = await client.create_producer(run.topic, batching_enabled=True)
        await asyncio.gather(*(producer.send(CONTENT) for _ in range(500)))
        with run.measured():
            for _ in range(run.count // 500):
                await asyncio.gather(*(producer.send(CONTENT) for _ in range(500)))

    _with_asyncio(run, main)


def _asyncio_receive(run: Run) -> None:
    async def main(client: Any) -> None:
        consumer = await client.subscribe(
            run.topic, run.name, initial_position=run.pulsar.InitialPosition.Earliest
        )
        warm = run.count // 10
        for _ in range(warm):
            await consumer.acknowledge(await consumer.receive())
        with run.measured(run.count - warm):
            for _ in range(run.count - warm):
                await consumer.acknowledge(await consumer.receive())

    _with_asyncio(run, main)


@program("asyncio-receive", "asyncio: receive + acknowledge, unbatched", 20_000, backlog="plain")
def asyncio_receive(run: Run) -> None:
    _asyncio_receive(run)


@program("asyncio-receive-batched", "asyncio: receive + acknowledge, batched", 20_000, backlog="batched")
def asyncio_receive_batched(run: Run) -> None:
    _asyncio_receive(run)


# --- many topics, TLS, encryption, tables --------------------------------------------------------------


@program("send-4-partitions", "send_async to 4 partitions, batched", 200_000, partitions=4)
def send_4_partitions(run: Run) -> None:
    _send_async(run, batching_enabled=True)


@program(
    "receive-4-partitions",
    "receive + acknowledge from 4 partitions, batched",
    200_000,
    backlog="partitions-4",
    partitions=4,
)
def receive_4_partitions(run: Run) -> None:
    _receive(run)


@program("send-64-partitions", "send_async to 64 partitions, unbatched", 50_000, partitions=64)
def send_64_partitions(run: Run) -> None:
    _send_async(run)


@program(
    "receive-64-partitions",
    "receive + acknowledge from 64 partitions, unbatched",
    200_000,
    backlog="partitions-64",
    partitions=64,
)
def receive_64_partitions(run: Run) -> None:
    _receive(run)


@program(
    "receive-pattern",
    "receive + acknowledge by a pattern of 100 topics, unbatched",
    200_000,
    backlog="topics",
)
def receive_pattern(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    consumer = client.subscribe(
        re.compile(f"{run.topic}-.*"), run.name, initial_position=run.pulsar.InitialPosition.Earliest
    )
    warm = run.count // 10
    for _ in range(warm):
        consumer.acknowledge(consumer.receive(30_000))
    with run.measured(run.count - warm):
        for _ in range(run.count - warm):
            consumer.acknowledge(consumer.receive(30_000))
    client.close()


@program("100-consumers", "100 consumers with listeners in one process, unbatched", 100_000, backlog="topics")
def hundred_consumers(run: Run) -> None:
    client, name = run.pulsar.Client(run.url), run.name
    done, lock, received = threading.Event(), threading.Lock(), 0

    def listener(consumer: Any, message: Any) -> None:
        nonlocal received
        consumer.acknowledge(message)
        with lock:
            received += 1
            if received == run.count:
                done.set()

    with run.measured():
        for number in range(100):
            client.subscribe(
                f"{run.topic}-{number}",
                name,
                initial_position=run.pulsar.InitialPosition.Earliest,
                message_listener=listener,
            )
        assert done.wait(60)
    client.close()


def _tls(run: Run) -> dict[str, Any]:
    options = {"tls_trust_certs_file_path": f"{run.folder}/authority.pem", "tls_validate_hostname": True}
    return {"url": run.tls_url, "client_options": options}


@program("tls-send", "TLS: send_async, batched", 200_000)
def tls_send(run: Run) -> None:
    _send_async(run, batching_enabled=True, **_tls(run))


@program("tls-receive", "TLS: receive + acknowledge, unbatched", 50_000, backlog="plain")
def tls_receive(run: Run) -> None:
    _receive(run, **_tls(run))


def _key_reader(run: Run) -> Any:
    return run.pulsar.CryptoKeyReader(f"{run.folder}/public.pem", f"{run.folder}/private.pem")


@program("encrypted-send", "encryption: send_async, batched", 50_000)
def encrypted_send(run: Run) -> None:
    _send_async(run, batching_enabled=True, encryption_key="orders", crypto_key_reader=_key_reader(run))


@program("encrypted-receive", "encryption: receive + acknowledge, unbatched", 20_000, backlog="encrypted")
def encrypted_receive(run: Run) -> None:
    _receive(run, crypto_key_reader=_key_reader(run))


# pulsar-client crashes (SIGSEGV) with 5,000 keys.
@program("table-view", "open a table view of 1,000 keys", 1_000, backlog="table")
def table_view(run: Run) -> None:
    client = run.pulsar.Client(run.url)
    client.create_table_view(f"{run.topic}-first").close()  # loading the modules is in `benchmarks.idle`
    with run.measured():
        view = client.create_table_view(run.topic)
        while len(view) < run.count:
            time.sleep(0.001)
    assert view.get("key-7") == CONTENT
    view.close()
    client.close()
