"""Small programs that show how both clients behave, for ``tools/compare_clients.py``.

Each takes the library and a client of it, and returns what a program would see. A program whose results
differ needs a row in ``client_differences.SEEN``.

    python tools/client_behaviour.py pulsar://localhost:6650      # print the results that differ
"""

from __future__ import annotations

import asyncio
import importlib
import queue
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

MILLISECONDS = 10_000
Program = Callable[[Any, Any], Any]


class Seen(NamedTuple):
    """Results of one program with both libraries, as texts."""

    theirs: str
    ours: str


def _topic() -> str:
    return f"behaviour-{uuid.uuid4().hex}"


def _pair(p: Any, client: Any, **options: Any) -> tuple[Any, Any]:
    topic = _topic()
    consumer = client.subscribe(topic, "s", consumer_type=p.ConsumerType.Shared)
    return client.create_producer(topic, **options), consumer


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the kind of its error as `except` clauses name it."""
    try:
        return call()
    except Exception as error:
        for kind in (UnicodeDecodeError, ValueError, TypeError, AttributeError):
            if isinstance(error, kind):
                return kind.__name__
        return type(error).__name__


def _sent(p: Any, client: Any, **arguments: Any) -> Any:
    producer, consumer = _pair(p, client)
    producer.send(b"x", **arguments)
    return consumer.receive(MILLISECONDS)


def members_of_value_0(p: Any, client: Any) -> Any:
    kinds = (
        "BatchingType", "CompressionType", "ConsumerCryptoFailureAction", "ConsumerType", "InitialPosition",
        "PartitionsRoutingMode", "ProducerAccessMode", "RegexSubscriptionMode", "Result",
    )  # fmt: skip
    return [bool(m) for kind in kinds for m in getattr(p, kind).__members__.values() if int(m) == 0]


def members_in_order(p: Any, client: Any) -> Any:
    return outcome(lambda: p.InitialPosition.Latest < p.InitialPosition.Earliest)


def members_as_texts(p: Any, client: Any) -> Any:
    latest = p.InitialPosition.Latest
    return [str(latest), repr(latest), latest == 0, ["a"][latest], {latest: 1}[p.InitialPosition.Latest]]


def a_derived_record(p: Any, client: Any) -> Any:
    class Base(p.schema.Record):  # type: ignore[misc, name-defined]
        a = p.schema.String()

    class Derived(Base):
        b = p.schema.Integer()

    value = Derived(a="x", b=1)
    return Derived.schema(), outcome(lambda: setattr(value, "a", "y"))


def delivery_times(p: Any, client: Any) -> Any:
    hour = timedelta(hours=1)
    given: list[dict[str, Any]] = [
        {"deliver_after": -hour}, {"deliver_after": timedelta(0)}, {"deliver_at": 1}, {"deliver_at": 0},
        {"deliver_at": 10**15, "deliver_after": -hour},
    ]  # fmt: skip
    return [_sent(p, client, **each).data() for each in given]


def times_that_are_no_times(p: Any, client: Any) -> Any:
    producer = client.create_producer(_topic())
    given: list[dict[str, Any]] = [{"deliver_after": 5}, {"deliver_at": 1.5}]
    return [outcome(lambda each=each: producer.send(b"x", **each)) for each in given]  # type: ignore[misc]


def properties_of_bytes(p: Any, client: Any) -> Any:
    given: list[dict[Any, Any]] = [{b"k": b"v"}, {"k": bytearray(b"v")}, {b"k": "v"}, {}]
    return [_sent(p, client, properties=each).properties() for each in given]


def properties_of_producers_and_consumers(p: Any, client: Any) -> Any:
    client.create_producer(_topic(), properties={b"k": b"v"}).close()
    client.subscribe(_topic(), "s", properties={b"k": b"v"}).close()


def properties_that_are_no_texts(p: Any, client: Any) -> Any:
    given: list[dict[Any, Any]] = [{"k": 1}, {1: "v"}, {"k": b"\xff"}]
    return [outcome(lambda each=each: _sent(p, client, properties=each).properties()) for each in given]  # type: ignore[misc]


def keys_of_bytes(p: Any, client: Any) -> Any:
    return outcome(lambda: _sent(p, client, partition_key=b"k").partition_key())


def an_ordering_key_of_bytes(p: Any, client: Any) -> Any:
    return outcome(lambda: _sent(p, client, ordering_key=b"k").ordering_key())


def times_to_wait(p: Any, client: Any) -> Any:
    producer, consumer = _pair(p, client)
    found = []
    for queued in (False, True):
        if queued:
            producer.send(b"x")
        found += [outcome(lambda each=each: consumer.receive(each)) for each in ("50", 0.5, [], b"1")]  # type: ignore[misc]
    return found


def receiving_without_a_message(p: Any, client: Any) -> Any:
    consumer = client.subscribe(_topic(), "s")
    return [outcome(lambda: consumer.receive(1)), consumer.batch_receive() == []]


def attributes_of_messages(p: Any, client: Any) -> Any:
    message = _sent(p, client)
    message.trace = "abc"
    return message.trace


def texts_of_ids(p: Any, client: Any) -> Any:
    sent = client.create_producer(_topic()).send(b"x")
    text = f"({sent.ledger_id()},0,-1,-1)"
    return [str(sent) == text, repr(sent) == text, str(p.MessageId(2, 3, 4, 5)), f"{p.MessageId.earliest}"]


def ids_in_order(p: Any, client: Any) -> Any:
    ids = [
        p.MessageId(*numbers) for numbers in ((0, 5, 1), (1, 4, 9), (0, 5, 0, 1), (2, 5, 0, 0), (-1, 5, 0))
    ]
    return [str(each) for each in sorted(ids)]


def ids_as_keys(p: Any, client: Any) -> Any:
    return outcome(lambda: len({p.MessageId(0, 1, 2, 3), p.MessageId(0, 1, 2, 3)}))


def last_sequence_ids(p: Any, client: Any) -> Any:
    producer, found = client.create_producer(_topic()), []
    for given in (None, 100, 200):
        producer.send(b"x", sequence_id=given)
        found.append(producer.last_sequence_id())
    return [*found, client.create_producer(_topic(), initial_sequence_id=7).last_sequence_id()]


def last_sequence_id_after_smaller_ones(p: Any, client: Any) -> Any:
    producer = client.create_producer(_topic())
    producer.send(b"x", sequence_id=100)
    producer.send(b"x")
    return producer.last_sequence_id()


def the_initial_sequence_id_0(p: Any, client: Any) -> Any:
    producer = client.create_producer(_topic(), initial_sequence_id=0)
    before = producer.last_sequence_id()
    producer.send(b"x")
    return before, producer.last_sequence_id()


def messages_pending_when_a_producer_is_closed(p: Any, client: Any) -> Any:
    producer = client.create_producer(_topic(), batching_enabled=True, batching_max_publish_delay_ms=60_000)
    results: queue.Queue[str] = queue.Queue()
    producer.send_async(b"x", lambda result, message_id: results.put(str(result)))
    producer.close()
    return results.get(timeout=MILLISECONDS / 1000)


def half_of_the_arguments_of_encryption(p: Any, client: Any) -> Any:
    given: list[dict[str, Any]] = [
        {"encryption_key": "k"}, {"crypto_key_reader": p.CryptoKeyReader("public.pem", "private.pem")}
    ]  # fmt: skip
    opened = [outcome(lambda each=each: client.create_producer(_topic(), **each)) for each in given]  # type: ignore[misc]
    return [each if isinstance(each, str) else bool(each.send(b"x")) for each in opened]


def the_position_after_a_batch_without_an_index(p: Any, client: Any) -> Any:
    topic = _topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    ids: list[Any] = []
    for entry in (b"first", b"second"):
        for index in (b"0", b"1"):
            producer.send_async(entry + index, lambda result, message_id: ids.append(message_id))
        producer.flush()
    reader = client.create_reader(topic, p.MessageId(-1, ids[0].ledger_id(), ids[0].entry_id()))
    return reader.read_next(MILLISECONDS).data()


def errors_of_asyncio(p: Any, client: Any) -> Any:
    error = p.asyncio.PulsarException(result=p.Result.Timeout, msg="late")
    return str(error), str(error.error()), str(p.asyncio.PulsarException(p.Result.Timeout))


def modules_of_the_package(p: Any, client: Any) -> Any:
    about = importlib.import_module(f"{p.__name__}.__about__")
    names = [str(p._pulsar.Result.Ok), str(p._pulsar.SchemaType.JSON), str(p._pulsar.ConsumerType.Shared)]
    return isinstance(about.__version__, str), about.__version__ == p.__version__, names


def values_that_are_not_bytes(p: Any, client: Any) -> Any:
    producer = client.create_producer(_topic())
    return [outcome(lambda each=each: producer.send(each)) for each in ("text", 5, [b"x"])]  # type: ignore[misc]


def the_null_value(p: Any, client: Any) -> Any:
    producer, consumer = _pair(p, client)
    producer.send(None)
    message = consumer.receive(MILLISECONDS)
    return message.data(), message.has_null_value()


def closed_handles(p: Any, client: Any) -> Any:
    producer, consumer = _pair(p, client)
    producer.send(b"x")
    message = consumer.receive(MILLISECONDS)
    producer.close()
    consumer.close()
    calls = (lambda: producer.send(b"x"), lambda: consumer.receive(1), lambda: consumer.acknowledge(message))
    return [outcome(call) for call in calls]


def records_with_enumerations(p: Any, client: Any) -> Any:
    class Colour(Enum):
        RED = 1

    class Paint(p.schema.Record):  # type: ignore[misc, name-defined]
        colour = p.schema.CustomEnum(Colour)
        litres = p.schema.Double(default=1.5)

    topic, schema = _topic(), p.schema.JsonSchema(Paint)
    consumer = client.subscribe(topic, "s", schema=schema)
    client.create_producer(topic, schema=schema).send(Paint(colour=Colour.RED))
    message = consumer.receive(MILLISECONDS)
    return message.data(), str(message.value().colour), message.value().litres


def a_record_of_another_type(p: Any, client: Any) -> Any:
    class Number(p.schema.Record):  # type: ignore[misc, name-defined]
        n = p.schema.Integer()

    return [outcome(lambda: Number(n="x")), outcome(lambda: p.schema.JsonSchema(Number).encode({"n": 1}))]


async def _with_asyncio(p: Any, url: str, body: Callable[[Any, str], Any]) -> Any:
    client = p.asyncio.Client(url, logger=p.ConsoleLogger(p.LoggerLevel.Error))
    try:
        return await body(client, _topic())
    finally:
        await client.close()


def tasks_that_send_together(p: Any, client: Any, url: str) -> Any:
    async def body(aio: Any, topic: str) -> Any:
        producer = await aio.create_producer(topic)
        ids = await asyncio.gather(*(producer.send(b"x") for _ in range(5)))
        return [(each.entry_id(), each.batch_index()) for each in ids], producer.last_sequence_id()

    return asyncio.run(_with_asyncio(p, url, body))


def a_batch_that_flush_sends(p: Any, client: Any, url: str) -> Any:
    async def body(aio: Any, topic: str) -> Any:
        producer = await aio.create_producer(topic, batching_max_publish_delay_ms=60_000)
        sends = [asyncio.ensure_future(producer.send(b"x")) for _ in range(2)]
        waited = await asyncio.wait(sends, timeout=0.1)
        await producer.flush()
        return len(waited[0]), [send.result().batch_index() for send in sends]

    return asyncio.run(_with_asyncio(p, url, body))


def a_producer_of_an_ended_loop(p: Any, client: Any, url: str) -> Any:
    async def opened() -> tuple[Any, Any]:
        aio = p.asyncio.Client(url, logger=p.ConsoleLogger(p.LoggerLevel.Error))
        return aio, await aio.create_producer(_topic())

    async def send() -> Any:
        return (await producer.send(b"x")).entry_id()

    aio, producer = asyncio.run(opened())
    found = outcome(lambda: asyncio.run(send()))
    aio.shutdown()
    return found


def a_provider_that_has_just_set_the_service(p: Any, client: Any, url: str) -> Any:
    class Provider(p.ServiceInfoProvider):  # type: ignore[misc, name-defined]
        def initial_service_info(self) -> Any:
            return p.ServiceInfo(url)

        def initialize(self, on_service_info_update: Any) -> None:
            self.update = on_service_info_update

    provider, other = Provider(), url.replace("127.0.0.1", "localhost")
    with_provider = p.Client(provider, logger=p.ConsoleLogger(p.LoggerLevel.Error))
    provider.update(p.ServiceInfo(other))
    found = with_provider.get_service_info().service_url == other
    with_provider.close()
    return found


def _is_program(value: Any) -> bool:
    names = getattr(getattr(value, "__code__", None), "co_varnames", ())
    return callable(value) and tuple(names[:2]) == ("p", "client") and not value.__name__.startswith("_")


PROGRAMS: dict[str, Callable[..., Any]] = {
    name.replace("_", " "): value for name, value in list(globals().items()) if _is_program(value)
}


def seen(name: str, library: str, url: str) -> str:
    """Return what a program sees with one library, as text without the library's name."""
    p = importlib.import_module(library)
    for module in ("asyncio", "schema"):
        importlib.import_module(f"{library}.{module}")
    client, program = p.Client(url, logger=p.ConsoleLogger(p.LoggerLevel.Error)), PROGRAMS[name]
    urls = (url,) if program.__code__.co_argcount == 3 else ()
    try:
        return str(outcome(lambda: program(p, client, *urls))).replace(f"{library}.", "")
    finally:
        client.close()


def compared(name: str, url: str) -> Seen:
    """Return what a program sees with both libraries."""
    return Seen(seen(name, "pulsar", url), seen(name, "geminga", url))


if __name__ == "__main__":
    for title in PROGRAMS:
        found = compared(title, sys.argv[1])
        if found.theirs != found.ours:
            print(title, "|", found.theirs, "|", found.ours)
