"""One measured run: load, readers, and their cost for client, network, broker and disk.

A run creates a topic, starts readers and producers as processes, lets them warm up, and then measures between
two readings of the counters: CPU and disk writes of the server processes, entries and bytes counted by the
broker. It ends when every due message has its receipt or failure.
"""

import contextlib
import datetime
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from geminga.errors import PulsarException
from geminga.ids import TopicName
from geminga.tuning.measuring import host
from geminga.tuning.measuring.broker_view import BrokerView, PublishedCounts
from geminga.tuning.measuring.conversation import ChildFailedError, MeasuredProcess
from geminga.tuning.measuring.outcome import Latency, RunOutcome
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.traffic import TrafficProfile

START_SECONDS_MAX = 60.0
OPEN_SECONDS_MAX = 1.0
"""Additional time for each producer of a process to connect to all partitions."""
FINISH_SECONDS_MAX = 120.0
SETTLE_SECONDS = 1.0
"""Pause between the creation of producers and the load, until the CPU of lookups and creation is spent."""
PRODUCER_PROCESSES_MAX = 8
"""Maximum processes of producers; on machines with fewer cores, one for each core."""
Number = TypeVar("Number", int, float)


def producers_by_process(producers: int, cores: int) -> list[int]:
    """Return the number of producers of each process."""
    count = min(producers, PRODUCER_PROCESSES_MAX, cores)
    return [len(range(number, producers, count)) for number in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A client with its settings."""

    title: str
    library: str
    """``geminga`` or ``pulsar`` (pulsar-client for Python)."""
    settings: PublishSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """CPU seconds per second without load."""

    servers: float
    others: float | None
    """CPU of all other processes on this machine; None if servers run elsewhere or it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions that comparable runs share."""

    profile: TrafficProfile
    payload: str = "logs"
    """A kind of `payloads.KINDS`."""
    samples: tuple[bytes, ...] = field(default=(), repr=False)
    """Messages to send instead of generated ones."""
    warm_seconds: float = 5.0
    seconds: float = 30.0
    namespace: str = "public/default"
    idle: Idle = Idle(servers=0.0, others=None)
    """CPU before the load."""


@dataclass(slots=True)
class _CounterReading:
    """The broker's counters at one moment."""

    counts: PublishedCounts
    cpu_seconds: float
    disk_bytes: int | None
    disk_syncs: int | None
    machine_cpu_seconds: float | None
    disk_wait_seconds: float | None


def _growth(before: Number | None, after: Number | None) -> Number | None:
    """Return the difference of two readings; None if one is unknown."""
    return None if before is None or after is None else after - before


def measure_idle(view: BrokerView, seconds: float) -> Idle:
    """Measure the CPU of the idle servers and of the other processes on their machine."""
    everything, before, start = host.all_cpu_seconds(), view.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    servers, after = view.cpu_seconds() - before, host.all_cpu_seconds()
    elapsed = time.monotonic() - start
    others = None
    if view.pids and everything is not None and after is not None:
        others = max(0.0, after - everything - servers) / elapsed
    return Idle(servers=servers / elapsed, others=others)


@contextlib.contextmanager
def fresh_topic(view: BrokerView, conditions: Conditions) -> Iterator[TopicName]:
    """Yield a new topic with the profile's partitions; delete it afterwards."""
    name = TopicName.parse(f"persistent://{conditions.namespace}/geminga-tune-{time.time_ns():x}")
    view.create_topic(name, conditions.profile.partitions, conditions.profile.write_quorum)
    try:
        yield name
    finally:
        with contextlib.suppress(PulsarException):  # the broker may be unavailable
            view.delete_topic(name)


class Run:
    """One run of a subject."""

    def __init__(self, view: BrokerView, conditions: Conditions, subject: Subject) -> None:
        self._view = view
        self._conditions = conditions
        self._subject = subject
        self._folder = Path()
        self.topic: TopicName | None = None

    def measure(self) -> RunOutcome:
        """Run and return the outcome.

        Raises `ChildFailedError` if a client cannot start, and the broker's errors before the load or after
        it, since a partial run is useless. Other errors during the load are part of the outcome.
        """
        with (
            tempfile.TemporaryDirectory(prefix="geminga-tune-") as folder,
            fresh_topic(self._view, self._conditions) as topic,
            contextlib.ExitStack() as children,
        ):
            self._folder, self.topic = Path(folder), topic
            watcher = self._start_watcher(children, topic)
            producers = self._start_producers(children, topic)
            return self._measured(producers, watcher, topic)

    # --- processes --------------------------------------------------------------------------------

    def _start_watcher(self, children: contextlib.ExitStack, topic: TopicName) -> MeasuredProcess | None:
        profile = self._conditions.profile
        if not profile.subscriptions:
            return None
        watcher = children.enter_context(
            MeasuredProcess(
                "geminga.tuning.measuring.watch",
                {
                    "cluster": self._view.cluster.as_dict(),
                    "topic": str(topic),
                    "subscriptions": profile.subscriptions,
                    "latency_file": str(self._folder / "end-to-end"),
                },
            )
        )
        watcher.wait("ready", START_SECONDS_MAX)
        return watcher

    def _start_producers(self, children: contextlib.ExitStack, topic: TopicName) -> list[MeasuredProcess]:
        conditions, profile = self._conditions, self._conditions.profile
        shares = producers_by_process(profile.producers, os.cpu_count() or 1)
        producers = [
            children.enter_context(
                MeasuredProcess(
                    "geminga.tuning.measuring.load",
                    {
                        "library": self._subject.library,
                        "cluster": self._view.cluster.as_dict(),
                        "topic": str(topic),
                        "producers": share,
                        "producers_per_client": profile.producers_per_client,
                        "rate": profile.rate_per_producer * share,
                        "keys": profile.keys,
                        "key_skew": profile.key_skew,
                        "payload": self._payload(number),
                        "settings": self._subject.settings.to_dict(),
                        "warm_seconds": conditions.warm_seconds,
                        "seconds": conditions.seconds,
                        "latency_file": str(self._folder / f"receipts-{number}"),
                    },
                )
            )
            for number, share in enumerate(shares)
        ]
        for producer, share in zip(producers, shares, strict=True):
            producer.wait("ready", START_SECONDS_MAX + share * OPEN_SECONDS_MAX)
        return producers

    def _payload(self, seed: int) -> dict[str, Any]:
        profile = self._conditions.profile
        return {
            "samples": [sample.decode("latin-1") for sample in self._conditions.samples],
            "message_bytes": profile.message_bytes,
            "variation": profile.message_bytes_variation,
            "kind": self._conditions.payload,
            "seed": seed + 1,
        }

    # --- measuring --------------------------------------------------------------------------------

    def _look(self, topic: TopicName, counts_first: bool) -> _CounterReading:
        """Read the counters. CPU is read inside of the two readings, so that these are not measured."""
        partitions = self._conditions.profile.partitions
        view = self._view
        asked = (view.counts(topic, partitions), view.disk_syncs()) if counts_first else None
        cpu, disk = view.cpu_seconds(), view.disk_written_bytes()
        machine = (host.all_cpu_seconds(), host.disk_wait_seconds()) if view.pids else (None, None)
        counts, syncs = asked or (view.counts(topic, partitions), view.disk_syncs())
        return _CounterReading(counts, cpu, disk, syncs, *machine)

    def _measured(
        self, producers: list[MeasuredProcess], watcher: MeasuredProcess | None, topic: TopicName
    ) -> RunOutcome:
        conditions = self._conditions
        time.sleep(SETTLE_SECONDS)
        for producer in producers:
            producer.tell("go")
        started = [
            producer.wait("measuring", conditions.warm_seconds + FINISH_SECONDS_MAX) for producer in producers
        ]
        before = self._look(topic, counts_first=True)
        limit = conditions.seconds + FINISH_SECONDS_MAX
        sent = [producer.wait("sent", limit) for producer in producers]
        after = self._look(topic, counts_first=False)
        read = self._end_watcher(watcher, max(event["since_ns"] for event in started), after)
        latencies = self._latencies([self._folder / f"receipts-{n}" for n in range(len(producers))])
        for producer in producers:
            producer.tell("close")
        failure = next((event["failure"] for event in sent if event["failure"]), "")
        seconds = max(event["seconds"] for event in sent)
        return self._outcome(
            before, after, read,
            seconds=seconds,
            offered=sum(event["offered"] for event in sent),
            sent=sum(event["sent"] for event in sent),
            receipts=sum(event["receipts"] for event in sent),
            failed=sum(event["failed"] for event in sent),
            failure=failure,
            receipt=latencies,
            client_cpu_seconds=sum(event["cpu_seconds"] - event["own_cpu_seconds"] for event in sent),
            loop_cpu_seconds=sum(event["own_cpu_seconds"] for event in sent),
            behind_seconds_max=max(event["behind_seconds_max"] for event in sent),
            receipts_in_window=sum(event["receipts_in_window"] for event in sent),
        )  # fmt: skip

    def _end_watcher(
        self, watcher: MeasuredProcess | None, since_ns: int, after: _CounterReading
    ) -> dict[str, Any] | None:
        if watcher is None:
            return None
        watcher.tell(f"end {since_ns} {after.counts.messages}")
        try:
            read = watcher.wait("read", FINISH_SECONDS_MAX)
        except ChildFailedError as error:
            return {"failure": str(error), "latencies": []}
        read["latency"] = self._latencies([self._folder / "end-to-end"])
        watcher.tell("close")
        return read

    @staticmethod
    def _latencies(files: list[Path]) -> Latency:
        import numpy as np

        return Latency.of_nanoseconds(
            np.concatenate([np.fromfile(file, np.int64) for file in files if file.exists()])
        )

    def _outcome(
        self, before: _CounterReading, after: _CounterReading, read: dict[str, Any] | None, **values: Any
    ) -> RunOutcome:
        entries = after.counts.entries - before.counts.entries
        messages = after.counts.messages - before.counts.messages
        if read is not None:
            values["delivered"] = sum(read["latencies"])
            values["end_to_end"] = read.get("latency", Latency())
            values["failure"] = values.get("failure") or read["failure"]
        return RunOutcome(
            profile=self._conditions.profile.to_dict(),
            subject=self._subject.title,
            window_seconds=self._conditions.seconds,
            library=self._subject.library,
            settings=self._subject.settings.to_dict(),
            broker_idle_per_second=self._conditions.idle.servers,
            others_per_second=self._conditions.idle.others,
            entries=entries,
            batch_fill=messages / entries if entries else 0.0,
            broker_cpu_seconds=after.cpu_seconds - before.cpu_seconds,
            wire_published_bytes=after.counts.bytes_in - before.counts.bytes_in,
            wire_delivered_bytes=after.counts.bytes_out - before.counts.bytes_out,
            disk_bytes=_growth(before.disk_bytes, after.disk_bytes),
            disk_syncs=_growth(before.disk_syncs, after.disk_syncs),
            machine_cpu_seconds=_growth(before.machine_cpu_seconds, after.machine_cpu_seconds),
            disk_wait_seconds=_growth(before.disk_wait_seconds, after.disk_wait_seconds),
            at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **values,
        )
