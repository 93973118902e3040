"""Programs as processes: asyncio, forks, other processes, signals, the end of the interpreter."""

import asyncio
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from place import TIMEOUT_MILLIS, Place, raised


def asyncio_program(place: Place) -> Any:
    p, topic = place.p, place.topic("asyncio")

    async def main() -> Any:
        client = p.asyncio.Client(place.service_url, logger=p.ConsoleLogger(p.LoggerLevel.Error))
        consumer = await client.subscribe(topic, "s", consumer_type=p.ConsumerType.Shared)
        producer = await client.create_producer(topic, producer_name="asyncio")
        ids = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(20)))
        got = []
        for _ in range(20):
            message = await asyncio.wait_for(consumer.receive(), TIMEOUT_MILLIS / 1000)
            got.append(int(message.data()))
            await consumer.acknowledge(message)
        reader = await client.create_reader(topic, p.MessageId.earliest)
        read = []
        while await reader.has_message_available():
            read.append(int((await reader.read_next()).data()))
        errors = []
        for call in (
            lambda: client.subscribe("persistent://no-such-tenant/ns/t", "s"),
            lambda: producer.send(b"x" * (6 << 20)),
        ):
            try:
                await call()
            except p.asyncio.PulsarException as error:
                errors.append(error.error().name)
        names = [producer.topic() == topic, producer.producer_name(), consumer.subscription_name()]
        partitions = await client.get_topic_partitions(topic) == [topic]
        for handle in (reader, consumer, producer, client):
            await handle.close()
        return [len({str(i) for i in ids}), sorted(got), read, errors, names, partitions]

    return asyncio.run(main())


def http_look_up(place: Place) -> Any:
    client, topic = place.client(service_url=place.admin_url), place.partitioned("http", 2)
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    seen = [consumer.receive(TIMEOUT_MILLIS).data().decode(), len(client.get_topic_partitions(topic))]
    seen.append(client.get_service_info().service_url == place.admin_url)
    client.close()
    return seen


def fork(place: Place) -> Any:
    """Parent and child each have their own client; the parent's keeps working after the fork."""
    client, topic = place.client(), place.topic("fork")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"before")
    child = os.fork()
    if child == 0:
        own = place.client()
        own.create_producer(topic).send(b"child")
        own.close()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    producer.send(b"after")
    seen = [consumer.receive(TIMEOUT_MILLIS).data().decode() for _ in range(3)]
    client.close()
    return [os.waitstatus_to_exitcode(status), seen]


def pickling(place: Place) -> Any:
    """Objects that are sent between processes: ids as bytes, and enumerations as they are."""
    p, client, topic = place.p, place.client(), place.topic("pickling")
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(3)]
    kept = pickle.loads(pickle.dumps([message_id.serialize() for message_id in ids]))
    reader = client.create_reader(topic, p.MessageId.deserialize(kept[1]))
    after = reader.read_next(TIMEOUT_MILLIS).data().decode()
    choices = pickle.loads(pickle.dumps([p.ConsumerType.Shared, p.Result.Timeout, p.CompressionType.ZSTD]))
    serde = p.PickleSerDe()
    client.close()
    return [after, [str(choice) for choice in choices], serde.deserialize(serde.serialize({"a": [1]}))]


def interrupt(place: Place) -> Any:
    """Ctrl-C while a consumer waits. With a time-out pulsar-client would wait to its end."""
    client, topic = place.client(), place.topic("interrupt")
    consumer = client.subscribe(topic, "s")
    main = threading.get_ident()
    struck: list[float] = []

    def strike() -> None:
        while not _is_inside(main, "receive"):
            time.sleep(0.01)
        time.sleep(0.5)
        struck.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        consumer.receive()
        ended = "nothing"
    except place.p.Interrupted:
        ended = "interrupted"
    waited = time.monotonic() - struck[0]
    thread.join()
    client.close()
    return [ended, waited < 20]


def _is_inside(thread: int, function: str) -> bool:
    """Whether a thread runs a function of that name, or what it calls."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def termination(place: Place) -> Any:
    """A service that ends at SIGTERM: its handler sets a flag, and what was sent is there."""
    p, topic = place.p, place.topic("termination")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    client = place.client()
    producer = client.create_producer(topic, block_if_queue_full=True)
    told: list[Any] = []
    sent = 0
    terminating = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGTERM))
    while not stopping.is_set():
        producer.send_async(b"%d" % sent, lambda result, message_id: told.append(result))
        sent += 1
        # During sending, however busy the machine is; not too many: they are read one by one.
        if sent == 2_000:
            terminating.start()
    producer.flush()
    client.close()
    client = place.client()
    reader = client.create_reader(topic, p.MessageId.earliest)
    read = 0
    while reader.has_message_available():
        reader.read_next(TIMEOUT_MILLIS)
        read += 1
    client.close()
    return [sent >= 2_000, sent == read, sent == len(told), {str(result) for result in told} == {"Result.Ok"}]


def no_close(place: Place) -> Any:
    """A child process that never closes anything ends by itself, with what it acknowledged acknowledged."""
    client, topic = place.client(), place.topic("no-close")
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    program = _NO_CLOSE.format(name=place.p.__name__)
    child = subprocess.run([sys.executable, "-c", program, place.service_url, topic], timeout=100).returncode
    consumer = client.subscribe(topic, "s")
    left = consumer.receive(TIMEOUT_MILLIS).data().decode()
    more = raised(lambda: consumer.receive(300))
    client.close()
    return [child, left, more]


_NO_CLOSE = """
import sys, time, {name} as p
client = p.Client(sys.argv[1], logger=p.ConsoleLogger(p.LoggerLevel.Error))
consumer = client.subscribe(sys.argv[2], "s")
for _ in range(2):
    consumer.acknowledge(consumer.receive(40000))
time.sleep(1.5)  # pulsar-client loses acknowledgements that are younger than its grouping time
"""


def closing(place: Place) -> Any:
    """Calls after close and after shutdown."""
    p = place.p
    client, topic = place.client(), place.topic("closing")
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "s")
    reader = client.create_reader(topic, p.MessageId.earliest)
    client.close()
    after_close = [
        raised(lambda: producer.send(b"x")) != "nothing",
        raised(lambda: consumer.receive(100)) != "nothing",
        raised(lambda: reader.read_next(100)) != "nothing",
        raised(lambda: client.create_producer(topic)) != "nothing",
    ]
    client = place.client()
    producer = client.create_producer(topic)
    client.shutdown()
    return [after_close, raised(lambda: producer.send(b"x")) != "nothing"]


def python_logger(place: Place) -> Any:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("a program's own")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Keep())
    client = place.p.Client(place.service_url, logger=logger)
    client.create_producer(place.topic("logger")).send(b"x")
    client.close()
    return bool(lines)


PROGRAMS = (
    asyncio_program, http_look_up, fork, pickling, interrupt, termination, no_close, closing, python_logger,
)  # fmt: skip
ALONE = frozenset({"fork", "interrupt", "termination", "no_close", "python_logger"})
"""Programs that need a process of their own."""
