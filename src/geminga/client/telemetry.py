"""OpenTelemetry tracing: spans for sent and processed messages, and the W3C trace context in properties.

Needs the extra ``geminga[telemetry]``, which is loaded only with this module::

    from geminga.client.telemetry import ConsumerTracing, ProducerTracing

    producer = client.create_producer(topic, interceptors=[ProducerTracing()])
    tracing = ConsumerTracing()
    message = consumer.receive()
    with tracing.processing(message, consumer):
        ...

Spans follow the semantic conventions for messaging. The propagator's fields carry the context:
``traceparent`` and ``tracestate`` by default, which the Java client's instrumentation reads too.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise ImportError("tracing needs OpenTelemetry: pip install 'geminga[telemetry]'") from error

from geminga._version import __version__
from geminga.ids import TopicName
from geminga.producer.interceptors import ProducerInterceptor
from geminga.producer.message import OutgoingMessage

SYSTEM = "pulsar"


class ProducerTracing(ProducerInterceptor):
    """Interceptor with a PRODUCER span for each message, from its submission to its receipt or failure.

    The span's context is added to the message's properties. A message that already has a context, for example
    one that is forwarded with its properties, keeps it, and the span links to it. Tables (``send_table``)
    have no single messages and no spans.

    ``tracer_provider`` and ``propagator`` default to the global ones.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        self._tracer = trace.get_tracer("geminga", __version__, tracer_provider)
        self._propagator = propagator

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        topic = producer.topic()
        properties = dict(message.properties)
        creation = _span_context(context_of(properties, self._propagator)) if properties else None
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.message.body.size": len(message.payload),
        }
        if producer.producer_name():
            attributes["messaging.client.id"] = producer.producer_name()
        span = self._tracer.start_span(
            f"send {topic}",
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            links=[] if creation is None else [Link(creation)],
        )
        if creation is None:
            _propagator(self._propagator).inject(properties, trace.set_span_in_context(span))
            message = message.replace(properties=tuple(properties.items()))
        if span.is_recording():
            message.keep(self, span)
        return message

    def on_send_acknowledgement(
        self, producer: Any, message: OutgoingMessage, message_id: Any, error: Exception | None
    ) -> None:
        span: Span | None = message.kept(self)
        if span is None:
            return
        if error is not None:
            _failed(span, error)
        elif message_id is not None:
            span.set_attribute("messaging.message.id", str(message_id))
            if message_id.partition >= 0:
                span.set_attribute("messaging.destination.partition.id", str(message_id.partition))
        span.end()


class ConsumerTracing:
    """Spans around the processing of received messages.

    ``tracer_provider`` and ``propagator`` default to the global ones.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        self._tracer = trace.get_tracer("geminga", __version__, tracer_provider)
        self._propagator = propagator

    @contextmanager
    def processing(self, message: Any, consumer: Any = None) -> Iterator[Span]:
        """Open a CONSUMER span for one message, current inside the block; an exception of the block marks it
        failed.

        It is a child of the span that sent the message, and links to the span that is current outside, for
        example that of a batch. ``consumer`` adds the subscription to the span.
        """
        outside = trace.get_current_span().get_span_context()
        topic, partition = _topic_and_partition(message.topic_name())
        attributes = _processing_attributes(topic, consumer)
        attributes["messaging.message.id"] = str(message.message_id())
        attributes["messaging.message.body.size"] = message.size_bytes()
        if partition is not None:
            attributes["messaging.destination.partition.id"] = str(partition)
        links = [Link(outside)] if outside.is_valid else []
        context = context_of(message.properties(), self._propagator)
        with self._span(topic, attributes, links, context) as span:
            yield span

    @contextmanager
    def processing_batch(self, messages: Iterable[Any], consumer: Any = None) -> Iterator[Span]:
        """Open one CONSUMER span for several messages: a child of the current span, linked to each
        sender's."""
        received: Sequence[Any] = list(messages)
        topics = {_topic_and_partition(message.topic_name())[0] for message in received}
        topic = topics.pop() if len(topics) == 1 else None
        contexts = (_span_context(context_of(m.properties(), self._propagator)) for m in received)
        attributes = _processing_attributes(topic, consumer)
        attributes["messaging.batch.message_count"] = len(received)
        links = [Link(context) for context in contexts if context is not None]
        with self._span(topic, attributes, links) as span:
            yield span

    @contextmanager
    def _span(
        self, topic: str | None, attributes: dict[str, Any], links: list[Link], context: Context | None = None
    ) -> Iterator[Span]:
        """Open a CONSUMER span, which an exception of the block marks as failed."""
        with self._tracer.start_as_current_span(
            "process" if topic is None else f"process {topic}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                _failed(span, error, recorded=True)
                raise


def context_of(properties: dict[str, str], propagator: TextMapPropagator | None = None) -> Context:
    """Return the trace context in a message's properties, or an empty context."""
    return _propagator(propagator).extract(properties, Context())


def _propagator(given: TextMapPropagator | None) -> TextMapPropagator:
    # Read at each use: an application may set the global propagator after it created its producers.
    return propagate.get_global_textmap() if given is None else given


def _span_context(context: Context) -> trace.SpanContext | None:
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def _topic_and_partition(topic: str) -> tuple[str, int | None]:
    """Return a topic's name without the partition, and the partition's number."""
    name = TopicName.parse(topic)
    if name.partition < 0:
        return topic, None
    return str(name.base), name.partition


def _processing_attributes(topic: str | None, consumer: Any) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    if consumer is not None:
        attributes["messaging.destination.subscription.name"] = consumer.subscription_name()
        attributes["messaging.client.id"] = consumer.consumer_name()
    return attributes


def _failed(span: Span, error: Exception, *, recorded: bool = False) -> None:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    if not recorded:
        span.record_exception(error)
