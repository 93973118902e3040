"""OpenTelemetry metrics of clients, under the names, units and attributes of the Java client (PIP-342).

``geminga.Client(..., metrics=True)`` reports to the global meter provider, ``metrics=provider`` to another.
Without the argument a client reports to the global one if the program has loaded OpenTelemetry before the
client was made. Needs the extra ``geminga[otel]``, which is OpenTelemetry's API alone.

Sending, receiving and acknowledging call nothing of OpenTelemetry. Producers and consumers count anyway, and
what they have counted is read when a reader collects; a partition that has ended leaves its sums behind.
Only the durations of sends need calls, and those are sampled: `SAMPLES_PER_SECOND_MAX` operations a second
and set of attributes, failed ones apart. An operation is what one receipt is for: a batch, or a message
outside of one. So the counts of these histograms are those of samples; how many messages were sent is in
``geminga.client.producer.message.send.count``.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from geminga._version import __version__
from geminga.client.pool import ConnectionPool
from geminga.consumer.core import ConsumerCore
from geminga.consumer.message import Origin
from geminga.consumer.state import State
from geminga.ids import TopicName
from geminga.producer.partition import PartitionProducer
from geminga.producer.states import ENDED

A = TypeVar("A")

SAMPLES_PER_SECOND_MAX = 50
"""Measurements of durations a second and set of attributes: one costs as much as sending ten messages."""

DURATION_BOUNDS_SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""The Java client's."""

SNAPSHOT_SECONDS = 0.05
"""The instruments of one collection are served from one look at everything."""

PARTS_BEFORE_SWEEP = 1000
"""So many producers and consumers are held before those that have ended are looked for, without a reader."""


class Kind(NamedTuple):
    """An instrument that is read when it is collected. ``sum``: it only grows."""

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
        "{message}", "Entries that were not acknowledged in time, and are asked for again"
    ),
    "geminga.client.producer.message.send.count": Kind("{message}", "Messages published: with a receipt"),
    "geminga.client.producer.message.failed.count": Kind("{message}", "Messages that failed"),
    "geminga.client.producer.entry.send.count": Kind("{entry}", "Entries sent: batches, single messages"),
}
"""Ours, which PIP-342 has no names for, begin with ``geminga``."""

HISTOGRAMS: dict[str, str] = {
    "pulsar.client.producer.message.send.duration": "From the hand-over to the receipt, batching included",
    "pulsar.client.producer.rpc.send.duration": "From the writing to the connection to the receipt",
    "pulsar.client.lookup.duration": "Questions about topics, by pulsar.lookup.type",
}

Attributes = tuple[tuple[str, str | int], ...]
Values = dict[tuple[str, Attributes], int]


class _Part:
    """A producer's or consumer's partition, or a pool of connections: somebody who counts."""

    __slots__ = ("attributes", "highest", "subject")

    def __init__(self, subject: Any, attributes: Attributes) -> None:
        self.subject = subject
        self.attributes = attributes
        self.highest: dict[str, int] = {}
        """What was told last: sums of what others count meanwhile never shrink."""

    def read(
        self, waiting: Mapping[Origin, tuple[int, int]]
    ) -> tuple[bool, list[tuple[str, Attributes, int]]]:
        """Whether it has ended, and its values. That it has ended is looked at first: nothing comes later."""
        subject, own = self.subject, self.attributes
        if isinstance(subject, PartitionProducer):
            ended, values = _of_producer(subject)
        elif isinstance(subject, ConsumerCore):
            ended, values = _of_consumer(subject, waiting)
        else:
            return subject.closed, _of_pool(subject)
        return ended, [(name, own, self._grown(name, value)) for name, value in values.items()]

    def _grown(self, name: str, value: int) -> int:
        if INSTRUMENTS[name].sum:
            value = self.highest[name] = max(value, self.highest.get(name, 0))
        return max(value, 0)


def _of_producer(partition: PartitionProducer) -> tuple[bool, dict[str, int]]:
    ended = partition.state in ENDED
    counted = partition.counters
    batch = partition.batch
    return ended, {
        "pulsar.client.producer.opened": 1,
        "pulsar.client.producer.closed": int(ended),
        "pulsar.client.producer.message.send.size": counted.acknowledged_bytes,
        "pulsar.client.producer.message.pending.count": partition.pending.messages
        + (0 if batch is None else len(batch)),
        "pulsar.client.producer.message.pending.size": counted.sent_payload_bytes - counted.settled_bytes,
        "geminga.client.producer.message.send.count": counted.acknowledged_messages,
        "geminga.client.producer.message.failed.count": counted.failed_messages,
        "geminga.client.producer.entry.send.count": counted.sent_batches,
    }


def _of_consumer(
    consumer: ConsumerCore, waiting: Mapping[Origin, tuple[int, int]]
) -> tuple[bool, dict[str, int]]:
    ended = consumer.state in (State.CLOSED, State.FAILED)
    counted, flow = consumer.counted, consumer.flow
    messages, size = waiting.get(consumer.origin, (0, 0))
    return ended, {
        "pulsar.client.consumer.opened": 1,
        "pulsar.client.consumer.closed": int(ended),
        "pulsar.client.consumer.message.received.count": flow.received_messages
        - counted.withdrawn_messages
        - messages,
        "pulsar.client.consumer.message.received.size": flow.received_bytes - counted.withdrawn_bytes - size,
        "pulsar.client.consumer.receive_queue.count": messages,
        "pulsar.client.consumer.receive_queue.size": size,
        "pulsar.client.consumer.message.ack": counted.acknowledged,
        "pulsar.client.consumer.message.nack": counted.refused,
        "pulsar.client.consumer.message.dlq": counted.dead,
        "pulsar.client.consumer.message.ack.timeout": consumer.unsettled.ack_timeout.expired,
    }


def _of_pool(pool: ConnectionPool) -> list[tuple[str, Attributes, int]]:
    return [
        ("pulsar.client.connection.opened", (), pool.opened),
        ("pulsar.client.connection.closed", (), pool.lost),
        ("pulsar.client.connection.failed", (("pulsar.failure.type", "tcp-failed"),), pool.unreached),
        ("pulsar.client.connection.failed", (("pulsar.failure.type", "handshake"),), pool.unwelcome),
    ]


class _Hub:
    """The instruments of one meter, of which a process has one set, and all that is read for them.

    Partitions are added on any loop's thread and read on the reader's; nobody who adds waits for a reader.
    """

    def __init__(self, meter: metrics.Meter) -> None:
        self._parts: dict[_Part, None] = {}
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

    def add(self, part: _Part) -> None:
        self._parts[part] = None
        if len(self._parts) >= self._sweep_at and self._reading.acquire(blocking=False):
            # Perhaps nobody ever collects.
            try:
                self._read()
            finally:
                self._reading.release()
            self._sweep_at = max(PARTS_BEFORE_SWEEP, 2 * len(self._parts))

    def forget(self) -> None:
        """This is a child process: its parent counts."""
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
                Observation(value, dict(attributes))
                for (key, attributes), value in values.items()
                if key == name
            ]

        return observe

    def _read(self) -> Values:
        """The sums over all parts; those that have ended become part of what is gone."""
        parts = list(self._parts)
        queues = {id(p.subject.queue): p.subject.queue for p in parts if isinstance(p.subject, ConsumerCore)}
        waiting: dict[Origin, tuple[int, int]] = {}
        for queue in queues.values():
            waiting.update(queue.held_by_origin())
        values: Values = {}
        for part in parts:
            ended, read = part.read(waiting)
            if ended:
                del self._parts[part]
            for name, attributes, value in read:
                key = (name, attributes)
                into = self._gone if ended and INSTRUMENTS[name].sum else values
                into[key] = into.get(key, 0) + value
        for key, value in self._gone.items():
            values[key] = values.get(key, 0) + value
        return values


class _SendDurations:
    """How long the sends of one set of attributes took: as often as `SAMPLES_PER_SECOND_MAX` allows."""

    def __init__(self, hub: _Hub, attributes: Attributes) -> None:
        self._whole = hub.histograms["pulsar.client.producer.message.send.duration"].record
        self._written = hub.histograms["pulsar.client.producer.rpc.send.duration"].record
        self._attributes = tuple({**dict(attributes), **_STATUS[failed]} for failed in (False, True))
        self._next = [float("-inf"), float("-inf")]

    def __call__(self, seconds: float, written_seconds: float | None, failed: bool) -> None:
        now = time.monotonic()
        if now < self._next[failed]:
            return
        self._next[failed] = now + 1 / SAMPLES_PER_SECOND_MAX
        attributes = self._attributes[failed]
        self._whole(max(0.0, seconds), attributes)
        if written_seconds is not None:
            self._written(max(0.0, written_seconds), attributes)


_STATUS = {False: {"pulsar.response.status": "success"}, True: {"pulsar.response.status": "failed"}}


class ClientMetrics:
    """What one client reports. ``provider`` None is the global one.

    Attributes are ``pulsar.tenant`` and ``pulsar.namespace``, for consumers ``pulsar.subscription``;
    ``by_topic`` adds ``pulsar.topic`` and, on partitions, ``pulsar.partition``.
    """

    def __init__(self, provider: MeterProvider | None, *, by_topic: bool = False, http: bool = False) -> None:
        self._hub = _hub_of(provider)
        self._by_topic = by_topic
        self.transport = "http" if http else "binary"
        self._durations: dict[Attributes, _SendDurations] = {}

    def add_pool(self, pool: ConnectionPool) -> None:
        self._hub.add(_Part(pool, ()))

    def add_producer(self, partition: PartitionProducer) -> None:
        attributes = self._attributes(partition.topic)
        durations = self._durations.get(attributes)
        if durations is None:
            durations = self._durations[attributes] = _SendDurations(self._hub, attributes)
        partition.counters.heard = durations
        self._hub.add(_Part(partition, attributes))

    def add_consumer(self, consumer: ConsumerCore) -> None:
        attributes = (*self._attributes(consumer.topic), ("pulsar.subscription", consumer.subscription))
        self._hub.add(_Part(consumer, attributes))

    async def lookup(self, kind: str, answer: Awaitable[A]) -> A:
        """Measure a question about topics. ``kind``: topic, metadata, schema or list-topics."""
        started = time.monotonic()
        failed = True
        try:
            result = await answer
            failed = False
            return result
        finally:
            attributes = {"pulsar.lookup.transport-type": self.transport, "pulsar.lookup.type": kind}
            self._hub.histograms["pulsar.client.lookup.duration"].record(
                time.monotonic() - started, {**attributes, **_STATUS[failed]}
            )

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


_hubs: weakref.WeakKeyDictionary[MeterProvider, _Hub] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def _hub_of(provider: MeterProvider | None) -> _Hub:
    """One a provider: a meter takes an instrument's callbacks once. The global provider may be set later:
    until then its stand-in takes them, and hands them on."""
    with _making:
        everybodys = metrics.get_meter_provider()
        found = everybodys if provider is None else provider
        hub = _hubs.get(found)
        if hub is None and found is everybodys and _global:
            hub = _global[0]
        if hub is None:
            hub = _hubs[found] = _Hub(found.get_meter("geminga", __version__))
            if found is everybodys:
                _global.append(hub)
        return hub


_global: list[_Hub] = []


def _after_fork_in_child() -> None:
    global _making
    _making = threading.Lock()
    for hub in {*_hubs.values(), *_global}:
        hub.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
