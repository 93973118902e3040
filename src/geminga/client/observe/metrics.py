"""OpenTelemetry metrics of clients, under the names, units and attributes of the Java client (PIP-342).

``geminga.Client(..., metrics=True)`` reports to the global meter provider, ``metrics=provider`` to another.
Without the argument a client reports to the global one if the program loaded OpenTelemetry before it created
the client. Needs the extra ``geminga[otel]``, which is OpenTelemetry's API only.

Sending, receiving and acknowledging call no OpenTelemetry function. Producers and consumers keep counts
anyway, which are read when a reader collects; a closed partition leaves its sums. Only the durations of sends
need calls, and those are sampled: at most `SAMPLES_PER_SECOND_MAX` operations per second and set of
attributes, with failed ones counted separately. An operation has one receipt: a batch, or an unbatched
message. So the counts of these histograms are numbers of samples; the number of sent messages is in
``geminga.client.producer.message.send.count``.
"""

import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from geminga._version import __version__
from geminga.client.io.pool import ConnectionPool
from geminga.consumer.core import ConsumerCore
from geminga.consumer.message import ConsumerOrigin
from geminga.consumer.queue import ReceiveQueue
from geminga.consumer.state import ConsumerState
from geminga.ids import TopicName
from geminga.producer.partition import PartitionProducer
from geminga.producer.states import ENDED

A = TypeVar("A")

logger = logging.getLogger("geminga")

SAMPLES_PER_SECOND_MAX = 50
"""Duration samples per second and set of attributes: one costs as much as sending ten messages."""

DURATION_BOUNDS_SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Bucket bounds of the Java client."""

SNAPSHOT_SECONDS = 0.05
"""Time in seconds for which the instruments of one collection share a snapshot."""

PARTS_BEFORE_SWEEP = 1000
"""Number of producers and consumers at which ended ones are removed although no reader collects."""


class Kind(NamedTuple):
    """Observable instrument, read when metrics are collected. ``sum``: its value only increases."""

    unit: str
    description: str
    sum: bool = True


INSTRUMENTS: dict[str, Kind] = {
    "pulsar.client.connection.opened": Kind("{connection}", "Connections opened"),
    "pulsar.client.connection.closed": Kind("{connection}", "Connections closed"),
    "pulsar.client.connection.failed": Kind("{connection}", "Attempts to connect that failed"),
    "pulsar.client.producer.opened": Kind("{session}", "Producers opened, one a partition"),
    "pulsar.client.producer.closed": Kind("{session}", "Producers closed, one a partition"),
    "pulsar.client.producer.message.send.size": Kind("By", "Payload bytes published: with a receipt"),
    "pulsar.client.producer.message.pending.count": Kind("{message}", "Messages without a receipt", False),
    "pulsar.client.producer.message.pending.size": Kind("By", "Payload bytes without a receipt", False),
    "pulsar.client.consumer.opened": Kind("{session}", "Consumers opened, one a topic or partition"),
    "pulsar.client.consumer.closed": Kind("{session}", "Consumers closed, one a topic or partition"),
    "pulsar.client.consumer.message.received.count": Kind("{message}", "Messages that the application took"),
    "pulsar.client.consumer.message.received.size": Kind("By", "Bytes that the application took"),
    "pulsar.client.consumer.receive_queue.count": Kind("{message}", "Messages in the receive queue", False),
    "pulsar.client.consumer.receive_queue.size": Kind("By", "Bytes in the receive queue", False),
    "pulsar.client.consumer.message.ack": Kind("{message}", "Acknowledgements"),
    "pulsar.client.consumer.message.nack": Kind("{message}", "Negative acknowledgements"),
    "pulsar.client.consumer.message.dlq": Kind("{message}", "Messages sent to dead letter topics"),
    "pulsar.client.consumer.message.ack.timeout": Kind(
        "{message}", "Entries not acknowledged in time, whose redelivery is requested"
    ),
    "geminga.client.producer.message.send.count": Kind("{message}", "Messages published: with a receipt"),
    "geminga.client.producer.message.failed.count": Kind("{message}", "Messages that failed"),
    "geminga.client.producer.entry.send.count": Kind("{entry}", "Entries sent: batches, single messages"),
}
"""Instruments missing in PIP-342 begin with ``geminga``."""

HISTOGRAMS: dict[str, str] = {
    "pulsar.client.producer.message.send.duration": "From the hand-over to the receipt, batching included",
    "pulsar.client.producer.rpc.send.duration": "From the writing to the connection to the receipt",
    "pulsar.client.lookup.duration": "Questions about topics, by pulsar.lookup.type",
}

Attributes = tuple[tuple[str, str | int], ...]
Values = dict[str, dict[Attributes, int]]
"""Values by instrument and attributes."""


Read = tuple[bool, dict[str, int]]
"""Whether a part has ended, and its values by instrument."""
Waiting = Mapping[ConsumerOrigin, tuple[int, int]]
"""Messages and bytes in receive queues, by origin."""


class _Counted:
    """Source of counts: a producer's or consumer's partition, or a connection pool.

    ``measure`` returns whether it has ended, and its values. It refers to the counters strongly and to the
    part weakly: measuring prolongs no lifetime. A garbage collected part counts as ended.
    """

    def __init__(
        self,
        attributes: Attributes,
        measure: Callable[[Waiting], Read],
        queue: Callable[[], ReceiveQueue | None] = lambda: None,
    ) -> None:
        self.attributes = attributes
        self.queue = queue
        self.had_ended = False
        self._measure = measure
        self._highest: dict[str, int] = {}
        """Last reported values: sums never decrease, although other threads count meanwhile."""

    def read(self, waiting: Waiting) -> Read:
        ended, values = self._measure(waiting)
        for name, value in values.items():
            if INSTRUMENTS[name].sum:
                value = self._highest[name] = max(value, self._highest.get(name, 0))
            values[name] = max(value, 0)
        return ended, values


def _producer(of: PartitionProducer, attributes: Attributes) -> _Counted:
    part, counted = weakref.ref(of), of.counters

    def measure(waiting: Waiting) -> Read:
        partition = part()
        ended = partition is None or partition.state in ENDED
        batch = None if partition is None else partition.batch
        closed = 0 if partition is None else partition.pending.messages
        open_messages = 0 if batch is None else len(batch)
        return ended, {
            "pulsar.client.producer.opened": 1,
            "pulsar.client.producer.closed": int(ended),
            "pulsar.client.producer.message.send.size": counted.acknowledged_bytes,
            "pulsar.client.producer.message.pending.count": closed + open_messages,
            "pulsar.client.producer.message.pending.size": counted.sent_payload_bytes - counted.settled_bytes,
            "geminga.client.producer.message.send.count": counted.acknowledged_messages,
            "geminga.client.producer.message.failed.count": counted.failed_messages,
            "geminga.client.producer.entry.send.count": counted.sent_batches,
        }

    return _Counted(attributes, measure)


def _consumer(of: ConsumerCore, attributes: Attributes) -> _Counted:
    part, counted, flow = weakref.ref(of), of.counted, of.flow

    def queue() -> ReceiveQueue | None:
        consumer = part()
        return None if consumer is None else consumer.queue

    def measure(waiting: Waiting) -> Read:
        consumer = part()
        ended = consumer is None or consumer.state in (ConsumerState.CLOSED, ConsumerState.FAILED)
        messages, size = (0, 0) if consumer is None else waiting.get(consumer.origin, (0, 0))
        received = "pulsar.client.consumer.message.received"
        return ended, {
            "pulsar.client.consumer.opened": 1,
            "pulsar.client.consumer.closed": int(ended),
            f"{received}.count": flow.received_messages - counted.withdrawn_messages - messages,
            f"{received}.size": flow.received_bytes - counted.withdrawn_bytes - size,
            "pulsar.client.consumer.receive_queue.count": messages,
            "pulsar.client.consumer.receive_queue.size": size,
            "pulsar.client.consumer.message.ack": counted.acknowledged,
            "pulsar.client.consumer.message.nack": counted.refused,
            "pulsar.client.consumer.message.dlq": counted.dead,
            "pulsar.client.consumer.message.ack.timeout": counted.timed_out,
        }

    return _Counted(attributes, measure, queue)


def _connections(of: ConnectionPool, failure: str) -> _Counted:
    """Return the counts of opened and closed connections, or of those that failed in one way."""
    part, counted = weakref.ref(of), of.counted

    def measure(waiting: Waiting) -> Read:
        pool = part()
        ended = pool is None or pool.closed
        if failure:
            failed = counted.unreached if failure == TCP_FAILED else counted.unwelcome
            return ended, {"pulsar.client.connection.failed": failed}
        return ended, {
            "pulsar.client.connection.opened": counted.opened,
            "pulsar.client.connection.closed": counted.closed,
        }

    return _Counted((("pulsar.failure.type", failure),) if failure else (), measure)


TCP_FAILED, HANDSHAKE = "tcp-failed", "handshake"


class _Instruments:
    """The instruments of one meter, one set per process, and the parts that they read.

    Partitions are added on any loop's thread and read on the reader's; adding never waits for a reader.
    """

    def __init__(self, meter: metrics.Meter) -> None:
        self._parts: dict[_Counted, None] = {}
        self._gone: Values = {}
        self._reading = threading.Lock()
        self._sweep_at = PARTS_BEFORE_SWEEP
        self._snapshot: Values = {}
        self._snapshot_at = float("-inf")
        for name, kind in INSTRUMENTS.items():
            make = meter.create_observable_counter if kind.sum else meter.create_observable_up_down_counter
            make(name, [self._reader(name)], unit=kind.unit, description=kind.description)
        self.histograms = {
            name: meter.create_histogram(
                name,
                unit="s",
                description=description,
                explicit_bucket_boundaries_advisory=DURATION_BOUNDS_SECONDS,
            )
            for name, description in HISTOGRAMS.items()
        }

    def add(self, part: _Counted) -> None:
        self._parts[part] = None
        if len(self._parts) >= self._sweep_at and self._reading.acquire(blocking=False):
            # In case no reader ever collects.
            try:
                self._read()
            finally:
                self._reading.release()
            self._sweep_at = max(PARTS_BEFORE_SWEEP, 2 * len(self._parts))

    def forget(self) -> None:
        """Drop all parts in a child process: the parent reports them."""
        self._parts, self._gone, self._snapshot = {}, {}, {}
        self._reading = threading.Lock()

    def _reader(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            with self._reading:
                now = time.monotonic()
                if now - self._snapshot_at > SNAPSHOT_SECONDS:
                    self._snapshot = self._read()
                    self._snapshot_at = now
                values = self._snapshot
            return [
                Observation(value, dict(attributes)) for attributes, value in values.get(name, {}).items()
            ]

        return observe

    def _read(self) -> Values:
        """Return the sums over all parts; those of ended parts are kept."""
        parts = list(self._parts)
        queues = {id(queue): queue for part in parts if (queue := part.queue()) is not None}
        waiting: dict[ConsumerOrigin, tuple[int, int]] = {}
        for queue in queues.values():
            waiting.update(queue.held_by_origin())
        values: Values = {name: {} for name in INSTRUMENTS}
        for part in parts:
            ended, read = part.read(waiting)
            # An ended part may still count for a moment, on another thread.
            ended, part.had_ended = ended and part.had_ended, ended
            if ended:
                del self._parts[part]
            for name, value in read.items():
                into = self._gone if ended and INSTRUMENTS[name].sum else values
                _add(into.setdefault(name, {}), part.attributes, value)
        for name, gone in self._gone.items():
            for attributes, value in gone.items():
                _add(values[name], attributes, value)
        return values


def _add(into: dict[Attributes, int], attributes: Attributes, value: int) -> None:
    into[attributes] = into.get(attributes, 0) + value


class _Durations:
    """Histogram that never raises: an error in OpenTelemetry must not disturb the send being recorded."""

    def __init__(self, context: _Instruments, name: str) -> None:
        self._histogram = context.histograms[name]
        self._name = name
        self._failed = False

    def record(self, seconds: float, attributes: dict[str, str | int]) -> None:
        try:
            self._histogram.record(max(0.0, seconds), attributes)
        except Exception:
            if not self._failed:
                self._failed = True
                logger.exception(
                    "a measurement of %s could not be recorded; further ones fail silently", self._name
                )


class _SendDurations:
    """Durations of the sends of one set of attributes, sampled up to `SAMPLES_PER_SECOND_MAX`."""

    def __init__(self, context: _Instruments, attributes: Attributes) -> None:
        self._whole = _Durations(context, "pulsar.client.producer.message.send.duration").record
        self._written = _Durations(context, "pulsar.client.producer.rpc.send.duration").record
        self._attributes = tuple({**dict(attributes), **_STATUS[failed]} for failed in (False, True))
        self._next = [float("-inf"), float("-inf")]

    def __call__(self, now: float, seconds: float, written_seconds: float | None, failed: bool) -> float:
        if now >= self._next[failed]:
            self._next[failed] = now + 1 / SAMPLES_PER_SECOND_MAX
            attributes = self._attributes[failed]
            self._whole(seconds, attributes)
            if written_seconds is not None:
                self._written(written_seconds, attributes)
        return self._next[False]


_STATUS = {False: {"pulsar.response.status": "success"}, True: {"pulsar.response.status": "failed"}}


class ClientMetrics:
    """Metrics of one client. ``provider`` None: the global one.

    Attributes are ``pulsar.tenant`` and ``pulsar.namespace``, for consumers ``pulsar.subscription``;
    ``by_topic`` adds ``pulsar.topic`` and, on partitions, ``pulsar.partition``.
    """

    def __init__(self, provider: MeterProvider | None, *, by_topic: bool = False, http: bool = False) -> None:
        self._context = _instruments_of(provider)
        self._by_topic = by_topic
        self.transport = "http" if http else "binary"
        self._durations: dict[Attributes, _SendDurations] = {}
        self._lookups = _Durations(self._context, "pulsar.client.lookup.duration")

    def add_pool(self, pool: ConnectionPool) -> None:
        for failure in ("", TCP_FAILED, HANDSHAKE):
            self._context.add(_connections(pool, failure))

    def add_producer(self, partition: PartitionProducer) -> None:
        attributes = self._attributes(partition.topic)
        durations = self._durations.get(attributes)
        if durations is None:
            durations = self._durations[attributes] = _SendDurations(self._context, attributes)
        partition.counters.heard, partition.counters.heard_at = durations, float("-inf")
        self._context.add(_producer(partition, attributes))

    def add_consumer(self, consumer: ConsumerCore) -> None:
        attributes = (*self._attributes(consumer.topic), ("pulsar.subscription", consumer.subscription))
        self._context.add(_consumer(consumer, attributes))

    async def lookup(self, kind: str, answer: Awaitable[A]) -> A:
        """Measure a request about topics. ``kind``: topic, metadata, schema or list-topics."""
        started = time.monotonic()
        failed = True
        try:
            result = await answer
            failed = False
            return result
        finally:
            attributes = {"pulsar.lookup.transport-type": self.transport, "pulsar.lookup.type": kind}
            self._lookups.record(time.monotonic() - started, {**attributes, **_STATUS[failed]})

    def _attributes(self, topic: str) -> Attributes:
        name = TopicName.parse(topic)
        attributes: list[tuple[str, str | int]] = [
            ("pulsar.tenant", name.tenant),
            ("pulsar.namespace", name.namespace_name),
        ]
        if self._by_topic:
            attributes.append(("pulsar.topic", str(name.base)))
            if name.partition >= 0:
                attributes.append(("pulsar.partition", name.partition))
        return tuple(attributes)


_instruments: weakref.WeakKeyDictionary[MeterProvider, _Instruments] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def _instruments_of(provider: MeterProvider | None) -> _Instruments:
    """Return the instruments of a provider: a meter takes an instrument's callbacks once. The global provider
    may be set later: until then its proxy accepts them, and passes them on."""
    with _making:
        global_provider = metrics.get_meter_provider()
        found = global_provider if provider is None else provider
        context = _instruments.get(found)
        if context is None and found is global_provider and _global:
            context = _global[0]
        if context is None:
            context = _instruments[found] = _Instruments(found.get_meter("geminga", __version__))
            if found is global_provider:
                _global.append(context)
        return context


_global: list[_Instruments] = []


def _after_fork_in_child() -> None:
    global _making
    _making = threading.Lock()
    for context in {*_instruments.values(), *_global}:
        context.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
