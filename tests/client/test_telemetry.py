"""Spans and trace context, seen through OpenTelemetry's in-memory exporter."""

import pytest
from interpreter import run_python

import geminga
import geminga.asyncio
from geminga.client.admin import admin
from geminga.producer.interceptors import ProducerInterceptor
from geminga.producer.message import OutgoingMessage

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from geminga.client.telemetry import ConsumerTracing, ProducerTracing, context_of


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def consumer(pulsar_client, pulsar_topic):
    with pulsar_client.subscribe(pulsar_topic, "sub", consumer_name="me") as consumer:
        yield consumer


def traceparent(span):
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def test_a_message_is_followed_from_the_sender_to_its_processing(
    pulsar_client, pulsar_topic, consumer, provider, exporter
):
    with (
        pulsar_client.create_producer(
            pulsar_topic, producer_name="p", interceptors=[ProducerTracing(tracer_provider=provider)]
        ) as producer,
        provider.get_tracer("application").start_as_current_span("order") as order,
    ):
        message_id = producer.send(b"content", properties={"mine": "kept"})
    sending, _ = exporter.get_finished_spans()
    assert sending.name == f"send {pulsar_topic}"
    assert sending.kind is SpanKind.PRODUCER
    assert sending.parent == order.get_span_context()
    assert dict(sending.attributes) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": pulsar_topic,
        "messaging.message.body.size": 7,
        "messaging.client.id": "p",
        "messaging.message.id": str(message_id),
    }
    message = consumer.receive(30_000)
    assert message.properties() == {"mine": "kept", "traceparent": traceparent(sending)}
    exporter.clear()
    with ConsumerTracing(tracer_provider=provider).processing(message, consumer) as span:
        assert trace.get_current_span() is span
    (processing,) = exporter.get_finished_spans()
    assert processing.name == f"process {pulsar_topic}"
    assert processing.kind is SpanKind.CONSUMER
    assert processing.parent.span_id == sending.get_span_context().span_id
    assert processing.context.trace_id == order.get_span_context().trace_id
    assert processing.status.status_code is StatusCode.UNSET
    assert dict(processing.attributes) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": pulsar_topic,
        "messaging.destination.subscription.name": "sub",
        "messaging.client.id": "me",
        "messaging.message.id": str(message.message_id()),
        "messaging.message.body.size": 7,
    }


def test_each_message_of_a_batch_has_its_own_span_and_a_batch_links_them(
    pulsar_client, pulsar_topic, consumer, provider, exporter
):
    with pulsar_client.create_producer(
        pulsar_topic, interceptors=[ProducerTracing(tracer_provider=provider)]
    ) as producer:
        for number in range(5):
            producer.send_async(b"%d" % number, None)
        producer.flush()
    sent = exporter.get_finished_spans()
    assert len({span.context.span_id for span in sent}) == 5
    messages = [consumer.receive(30_000) for _ in range(5)]
    assert [m.properties()["traceparent"] for m in messages] == [traceparent(span) for span in sent]
    exporter.clear()
    tracing = ConsumerTracing(tracer_provider=provider)
    with tracing.processing_batch(messages, consumer) as outer, tracing.processing(messages[0]):
        pass
    inner, batch = exporter.get_finished_spans()
    assert [link.context.span_id for link in batch.links] == [span.context.span_id for span in sent]
    assert batch.attributes["messaging.batch.message_count"] == 5
    assert inner.parent.span_id == sent[0].context.span_id
    assert [link.context.span_id for link in inner.links] == [outer.get_span_context().span_id]


def test_a_forwarded_message_keeps_its_context_and_is_linked(
    pulsar_client, pulsar_topic, consumer, provider, exporter
):
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with pulsar_client.create_producer(
        pulsar_topic, interceptors=[ProducerTracing(tracer_provider=provider)]
    ) as producer:
        producer.send(b"", properties={"traceparent": given, "tracestate": "vendor=1"})
    assert consumer.receive(30_000).properties() == {"traceparent": given, "tracestate": "vendor=1"}
    (span,) = exporter.get_finished_spans()
    assert [f"{link.context.span_id:x}" for link in span.links] == ["b7ad6b7169203331"]
    found = trace.get_current_span(context_of({"traceparent": given, "tracestate": "vendor=1"}))
    assert found.get_span_context().trace_state["vendor"] == "1"


@pytest.mark.parametrize("way", ["send", "send_async", "callback"])
def test_a_refused_message_ends_its_span_with_the_error(pulsar_client, pulsar_topic, provider, exporter, way):
    producer = pulsar_client.create_producer(
        pulsar_topic, interceptors=[ProducerTracing(tracer_provider=provider)]
    )
    producer.close()
    results = []
    if way == "callback":
        producer.send_async(b"", lambda result, _: results.append(result))
        assert results == [geminga.Result.AlreadyClosed]
    else:
        with pytest.raises(geminga.AlreadyClosed):
            producer.send(b"") if way == "send" else producer.send_async(b"", None)
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "geminga.errors.AlreadyClosed"
    assert "messaging.message.id" not in span.attributes


async def test_asyncio_refusals_are_recorded_and_raised(pulsar_broker, pulsar_topic, provider, exporter):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(
            pulsar_topic, interceptors=[ProducerTracing(tracer_provider=provider)]
        )
        await producer.send(b"fine")
        await producer.close()
        with pytest.raises(geminga.AlreadyClosed):
            await producer.send(b"")
    fine, refused = exporter.get_finished_spans()
    assert fine.status.status_code is StatusCode.UNSET
    assert refused.status.status_code is StatusCode.ERROR


def test_failed_processing_is_marked_and_raised(pulsar_client, pulsar_topic, consumer, provider, exporter):
    with pulsar_client.create_producer(pulsar_topic) as producer:
        producer.send(b"")
    message = consumer.receive(30_000)
    with pytest.raises(KeyError), ConsumerTracing(tracer_provider=provider).processing(message, consumer):
        raise KeyError("wrong")
    (span,) = exporter.get_finished_spans()
    assert span.parent is None  # nothing was sent along
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "KeyError"
    assert [event.name for event in span.events] == ["exception"]


def test_partitions_are_named_apart_from_the_topic(pulsar_client, pulsar_broker, provider, exporter):
    topic = "persistent://public/default/traced"
    admin(pulsar_broker.admin_url, "PUT", "persistent/public/default/traced/partitions", 2)
    consumer = pulsar_client.subscribe(topic, "s")
    with pulsar_client.create_producer(
        topic, interceptors=[ProducerTracing(tracer_provider=provider)]
    ) as producer:
        place = str(producer.send(b"").partition)
    message = consumer.receive(30_000)
    with ConsumerTracing(tracer_provider=provider).processing(message, consumer):
        pass
    for span in exporter.get_finished_spans():
        assert span.attributes["messaging.destination.name"] == topic
        assert span.attributes["messaging.destination.partition.id"] == place
    consumer.close()


def test_a_later_interceptor_may_replace_the_message(
    pulsar_client, pulsar_topic, consumer, provider, exporter
):
    class Strip(ProducerInterceptor):
        def before_send(self, producer, message):
            return message.replace(payload=b"changed", properties=())

    tracing = ProducerTracing(tracer_provider=provider)
    with pulsar_client.create_producer(pulsar_topic, interceptors=[tracing, Strip()]) as producer:
        producer.send(b"")
    assert len(exporter.get_finished_spans()) == 1
    assert consumer.receive(30_000).properties() == {}


def test_unsampled_messages_carry_their_trace_context(pulsar_client, pulsar_topic, consumer):
    tracing = ProducerTracing(tracer_provider=TracerProvider(sampler=ALWAYS_OFF))
    with pulsar_client.create_producer(pulsar_topic, interceptors=[tracing]) as producer:
        producer.send(b"")
    flags = int(consumer.receive(30_000).properties()["traceparent"].rpartition("-")[2], 16)
    assert not flags & 1


def test_without_an_sdk_nothing_is_added():
    class Nameless:
        def topic(self):
            return "persistent://a/b/c"

        def producer_name(self):
            return ""

    tracing = ProducerTracing(tracer_provider=trace.NoOpTracerProvider())
    message = tracing.before_send(Nameless(), OutgoingMessage(b""))
    assert message.properties == ()
    tracing.on_send_acknowledgement(Nameless(), message, None, None)


def test_nothing_is_loaded_when_unused():
    program = (
        "import sys, geminga, geminga.asyncio; geminga.Client, geminga.Producer, geminga.Consumer;"
        "import geminga.client.publish.producer, geminga.client.receive.consumer;"
        "print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    assert run_python(program).stdout.strip() == "[]"


def test_a_missing_extra_is_named():
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "try:\n    import geminga.client.telemetry\n"
        "except ImportError as error: print(error)"
    )
    output = run_python(program)
    assert "geminga[telemetry]" in output.stdout
