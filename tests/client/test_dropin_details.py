"""Small things that programs rely on, beside pulsar-client: first what is the same, then what is not.

What is not the same has its row in ``tools/client_differences.py``, from which the documentation is drawn.
"""

import asyncio
import enum
import importlib
from typing import Any

import pytest
from interpreter import run_python
from readers import available
from waiting import eventually

import geminga
from geminga.client.admin import admin

TIMEOUT_MILLIS = 10_000


def library(name: str) -> Any:
    module = pytest.importorskip(name)
    for part in ("asyncio", "schema", "exceptions"):
        importlib.import_module(f"{name}.{part}")
    return module


@pytest.fixture(params=["geminga", pytest.param("pulsar", marks=pytest.mark.witness)])
def p(request):
    return library(request.param)


def connect(p: Any, url: str, **options: Any) -> Any:
    logger = p.ConsoleLogger(p.LoggerLevel.Error)
    return p.Client(url, operation_timeout_seconds=10, logger=logger, **options)


@pytest.fixture
def client(p, pulsar_broker):
    client = connect(p, pulsar_broker.service_url)
    yield client
    client.close()


def ours(p: Any) -> bool:
    return bool(p.__name__ == "geminga")


# --- the same ---
def test_a_router_sees_the_message(p, pulsar_broker, client, pulsar_topic):
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 3)
    seen: dict[str, Any] = {}

    def router(message: Any, count: int) -> Any:
        for name in ("data", "value", "properties", "partition_key", "ordering_key", "event_timestamp",
                     "publish_timestamp", "topic_name", "producer_name", "redelivery_count",
                     "schema_version", "has_null_value", "encryption_context"):  # fmt: skip
            seen[name] = getattr(message, name)()
        seen["message_id"] = str(message.message_id())
        seen["count"] = count
        return "2"

    producer = client.create_producer(pulsar_topic, schema=p.schema.StringSchema(), message_router=router)
    message_id = producer.send(
        "x", properties={"a": "b"}, partition_key="k", ordering_key="o", event_timestamp=5
    )
    assert message_id.partition() == 2
    assert seen == {
        "data": b"x", "value": b"x", "properties": {"a": "b"}, "partition_key": "k", "ordering_key": "o",
        "event_timestamp": 5, "publish_timestamp": 0, "topic_name": "", "producer_name": "",
        "redelivery_count": 0, "schema_version": "", "has_null_value": False, "encryption_context": None,
        "message_id": "(-1,-1,-1,-1)", "count": 3,
    }  # fmt: skip


def test_a_reader_of_partitions_starts_at_an_id(p, pulsar_broker, client, pulsar_topic):
    """The id counts in every partition: by ledger and entry, as if it were the partition's own."""
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 3)
    ids = []
    for number in range(9):
        partition = client.create_producer(
            pulsar_topic, message_router=lambda message, count, to=number % 3: to
        )
        ids.append(partition.send(b"%d" % number))
    for start, inclusive in [(0, False), (1, True), (3, True), (4, False), (8, False)]:
        reader = client.create_reader(pulsar_topic, ids[start], start_message_id_inclusive=inclusive)
        read = [int(message.data()) for message in available(reader)]
        place = (ids[start].ledger_id(), ids[start].entry_id())
        expected = [
            number for number, id_ in enumerate(ids)
            if (id_.ledger_id(), id_.entry_id()) > place
            or (inclusive and (id_.ledger_id(), id_.entry_id()) == place)
        ]  # fmt: skip
        assert sorted(read) == expected, (start, inclusive)
        reader.close()


async def test_redelivery_in_asyncio_is_a_plain_call(p, pulsar_broker, pulsar_topic):
    client = p.asyncio.Client(pulsar_broker.service_url)
    consumer = await client.subscribe(pulsar_topic, "s", consumer_type=p.ConsumerType.Shared)
    producer = await client.create_producer(pulsar_topic)
    await producer.send(b"x")
    counts = [(await asyncio.wait_for(consumer.receive(), 60)).redelivery_count()]
    consumer.redeliver_unacknowledged_messages()
    message = await asyncio.wait_for(consumer.receive(), 60)
    await consumer.acknowledge(message)
    await client.close()
    assert [*counts, message.redelivery_count()] == [0, 1]


async def test_a_redelivery_may_be_awaited(pulsar_broker, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(pulsar_topic, "s")
        await consumer.redeliver_unacknowledged_messages()


def test_an_asyncio_error_is_made_from_a_result(p):
    error = p.asyncio.PulsarException(p.Result.Timeout, "no answer")
    assert error.error() == p.Result.Timeout
    assert str(error) == "3 Timeout: no answer"
    assert str(p.asyncio.PulsarException(p.Result.Ok)) == "0 Ok"


def test_an_authentication_plug_in_that_cannot_be_loaded_raises(p, pulsar_broker):
    client = p.Client(
        pulsar_broker.service_url,
        authentication=p.Authentication("someoldjunk.so", "blah"),
        operation_timeout_seconds=2,
        logger=p.ConsoleLogger(p.LoggerLevel.Error),
    )
    with pytest.raises(p.AuthenticationError) as raised:
        client.create_producer("t")
    if p is geminga:
        assert isinstance(raised.value, p.ConnectError), "which pulsar-client raises with some brokers"
        assert raised.value.error() == p.Result.AuthenticationError
    client.close()


def test_a_negative_timeout_receives_only_queued_messages(p, client, pulsar_topic):
    consumer = client.subscribe(pulsar_topic, "s")
    with pytest.raises(p.Timeout):
        consumer.receive(-1)
    client.create_producer(pulsar_topic).send(b"m")
    message = consumer.receive(TIMEOUT_MILLIS)
    consumer.redeliver_unacknowledged_messages()
    again = eventually(lambda: consumer.receive(-1), but=p.Timeout)
    assert again.message_id() == message.message_id()


def test_a_consumer_of_no_topics(p, client):
    consumer = client.subscribe([], "s")
    with pytest.raises(p.Timeout):
        consumer.receive(100)
    consumer.redeliver_unacknowledged_messages()
    consumer.close()


@pytest.mark.parametrize("what", [None, 1, "id", [1]])
def test_acknowledging_no_message_is_a_type_error(p, client, pulsar_topic, what):
    consumer = client.subscribe(pulsar_topic, "s")
    for acknowledge in (consumer.acknowledge, consumer.negative_acknowledge, consumer.acknowledge_cumulative):
        with pytest.raises(TypeError):
            acknowledge(what)


def test_closed_handles(p, client, pulsar_topic):
    """Requests of redelivery to a closed consumer do nothing; all other calls raise AlreadyClosed."""
    producer = client.create_producer(pulsar_topic)
    consumer = client.subscribe(pulsar_topic, "s")
    message_id = producer.send(b"m")
    consumer.close()
    consumer.negative_acknowledge(message_id)
    consumer.redeliver_unacknowledged_messages()
    for call in (
        lambda: consumer.acknowledge(message_id),
        lambda: consumer.acknowledge_cumulative(message_id),
        lambda: consumer.receive(100),
        consumer.receive,
        lambda: consumer.seek(p.MessageId.earliest),
        consumer.get_last_message_id,
        consumer.unsubscribe,
    ):
        with pytest.raises(p.AlreadyClosed):
            call()
    assert not consumer.is_connected()
    producer.close()
    for call in (producer.flush, lambda: producer.send(b"m")):
        with pytest.raises(p.AlreadyClosed):
            call()


async def test_closed_handles_of_asyncio(p, pulsar_broker, pulsar_topic):
    client = p.asyncio.Client(pulsar_broker.service_url)
    producer = await client.create_producer(pulsar_topic)
    consumer = await client.subscribe(pulsar_topic, "s")
    message_id = await producer.send(b"m")
    for _ in range(2):
        await consumer.close()
    await consumer.negative_acknowledge(message_id)
    consumer.redeliver_unacknowledged_messages()
    await producer.close()
    for call in (producer.close, lambda: producer.send(b"m"), consumer.receive, consumer.unsubscribe):
        with pytest.raises(p.asyncio.PulsarException) as raised:
            await call()
        assert raised.value.error() == p.Result.AlreadyClosed
    await client.close()


async def test_a_long_delay_that_was_asked_for(p, pulsar_broker, pulsar_topic):
    client = p.asyncio.Client(pulsar_broker.service_url)
    producer = await client.create_producer(
        pulsar_topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    sends = [asyncio.create_task(producer.send(b"m")) for _ in range(2)]
    done, _ = await asyncio.wait(sends, timeout=0.3)
    assert not done
    await producer.flush()
    first, second = await asyncio.gather(*sends)
    assert (first.ledger_id(), first.entry_id()) == (second.ledger_id(), second.entry_id())
    await client.close()


def test_a_star_import_leaves_pythons_names_alone(p):
    """A library with an `asyncio` of its own must not hand it out."""
    program = (
        f"import asyncio\nfrom {p.__name__} import *\n"
        "asyncio.run, Client, MessageId, schema.Record, functions, exceptions, tableview"
    )
    run_python(program)


def test_an_id_from_a_receipt_acknowledges(p, client, pulsar_topic):
    consumer = client.subscribe(pulsar_topic, "s")
    message_id = client.create_producer(pulsar_topic).send(b"x")
    consumer.receive(TIMEOUT_MILLIS)
    consumer.acknowledge(message_id)
    consumer.close()
    with pytest.raises(p.Timeout):
        client.subscribe(pulsar_topic, "s").receive(200)


async def test_several_topics_are_no_pattern(p, pulsar_broker, pulsar_topic):
    client = p.asyncio.Client(pulsar_broker.service_url)
    with pytest.raises(ValueError, match="is_pattern_topic"):
        await client.subscribe([pulsar_topic], "s", is_pattern_topic=True)
    await client.close()


def test_wrap_keeps_service_urls_and_message_ids(p):
    inner = getattr(p.ServiceInfo("pulsar://a:1"), "_service_info", p.ServiceInfo("pulsar://a:1"))
    assert p.ServiceInfo.wrap(inner).service_url == "pulsar://a:1"
    earliest = p.MessageId.wrap(p.MessageId.earliest)
    assert earliest.serialize() == p.MessageId.earliest.serialize()


def test_avro_gets_plain_values(p):
    pytest.importorskip("fastavro")

    class Kind(enum.Enum):
        a = 1

    class Example(p.schema.Record):
        kind = p.schema.CustomEnum(Kind)

    codec = p.schema.schema_avro.AvroSchema(Example)
    assert codec.encode_dict({"x": [Kind.a], "y": {"z": 1}}) == {"x": ["a"], "y": {"z": 1}}


# --- not the same ---
def test_closing_twice(p, pulsar_broker, pulsar_topic):
    client = connect(p, pulsar_broker.service_url)
    producer = client.create_producer(pulsar_topic)
    consumer = client.subscribe(pulsar_topic, "s")
    reader = client.create_reader(pulsar_topic, p.MessageId.earliest)
    for handle, theirs in [
        (producer, p.AlreadyClosed),
        (consumer, ValueError),
        (reader, ValueError),
        (client, p.AlreadyClosed),
    ]:
        handle.close()
        if ours(p):
            handle.close()
        else:
            with pytest.raises(theirs):
                handle.close()


def test_wrong_arguments_are_value_errors(p, client):
    for wrong in ({"properties": 5}, {"max_pending_messages": "x"}, {"compression_type": None}):
        with pytest.raises(ValueError) as caught:
            client.create_producer("t", **wrong)
        assert isinstance(caught.value, p.PulsarException) is ours(p)


def test_the_text_of_errors(p, pulsar_broker, client, pulsar_topic):
    client.subscribe(pulsar_topic, "s")
    with pytest.raises(p.ConsumerBusy) as caught:
        client.subscribe(pulsar_topic, "s")
    said = str(caught.value)
    assert said.startswith("Pulsar error: ConsumerBusy") or (ours(p) and "consumer" in said.lower())
    assert hasattr(caught.value, "error") is ours(p)


def test_geminga_prints_nothing_and_pulsar_client_does(p, pulsar_broker, pulsar_topic):
    program = (
        f"import sys, {p.__name__} as p; client = p.Client(sys.argv[1]); "
        "client.create_producer(sys.argv[2]).send(b'x'); client.close()"
    )
    done = run_python(program, pulsar_broker.service_url, pulsar_topic)
    assert (done.stdout + done.stderr == "") is ours(p)


def test_geminga_ids_are_unequal_to_other_types(p):
    if ours(p):
        assert p.MessageId.earliest != "earliest"
    else:
        with pytest.raises(TypeError):
            _ = p.MessageId.earliest == "earliest"


def test_unknown_choices(p):
    if ours(p):
        with pytest.raises(ValueError, match="77"):
            p.ConsumerType(77)
    else:
        assert int(p.ConsumerType(77)) == 77


def test_bytes_fields_are_checked(p):
    class Raw(p.schema.Record):
        raw = p.schema.Bytes()

    if ours(p):
        with pytest.raises(TypeError, match="raw"):
            Raw(raw=5)
    else:
        assert Raw(raw=5).raw == 5


def test_geminga_decodes_enumerations_of_texts(p):
    class Colour(enum.Enum):
        RED = "rouge"

    class Paint(p.schema.Record):
        colour = Colour

    codec = p.schema.JsonSchema(Paint)
    payload = codec.encode(Paint(colour=Colour.RED))
    if ours(p):
        assert codec.decode(payload).colour is Colour.RED
    else:
        with pytest.raises(TypeError, match="rouge"):
            codec.decode(payload)


def test_a_bool_in_a_field_of_numbers(p):
    class Count(p.schema.Record):
        count = p.schema.Integer()

    assert Count(count=True).count == 1
    payload = p.schema.JsonSchema(Count).encode(Count(count=True))
    assert (b"true" in payload) is not ours(p)
