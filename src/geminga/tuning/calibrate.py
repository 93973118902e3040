"""Calibration: what entries, bytes and readers cost a broker, measured on the machine at hand.

A few dozen short loads that differ in what the cost model tells apart: entries a second, bytes an entry,
partitions, subscriptions, compression, and copies where there are several bookies. They run in a shuffled
order, so that what drifts meanwhile (a JVM that still compiles, what else the machine does) is not taken for
an effect; the first load comes again at the end and shows the drift.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from geminga.client.cluster import Cluster
from geminga.config import check_int
from geminga.errors import InvalidConfiguration, PulsarException
from geminga.producer.settings import CompressionType, ProducerSettings
from geminga.tuning.cost import CostModel, Observation, fit
from geminga.tuning.measuring.broker_view import APACHE, BrokerView
from geminga.tuning.measuring.outcome import Outcome
from geminga.tuning.measuring.run import Conditions, Run, Subject, measure_idle
from geminga.tuning.measuring.run_log import RunLog, machine
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.traffic import TrafficProfile, check_number

WARM_SECONDS = 1.5
IDLE_SECONDS = 8.0
JVM_WARM_SECONDS = 20.0
DELAY_SECONDS = 0.5
"""Longer than any batch here takes to fill, so that the count closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One load of the design."""

    entries_per_second: float
    fill: int
    """Messages an entry."""
    message_bytes: int
    partitions: int = 4
    subscriptions: int = 1
    compression: CompressionType = CompressionType.NONE
    write_quorum: int = 1

    @property
    def title(self) -> str:
        codec = f", {self.compression.name}" if self.compression else ""
        copies = f", {self.write_quorum} copies" if self.write_quorum > 1 else ""
        return (
            f"{self.entries_per_second:g} entries/s of {self.fill} x {self.message_bytes} B, "
            f"{self.partitions} partitions, {self.subscriptions} subscriptions{codec}{copies}"
        )


_LZ4, _ZSTD = CompressionType.LZ4, CompressionType.ZSTD
DESIGN = (
    # Entries a second, at few bytes.
    Point(entries_per_second=20, fill=20, message_bytes=100),
    Point(entries_per_second=100, fill=20, message_bytes=100),
    Point(entries_per_second=400, fill=20, message_bytes=100),
    Point(entries_per_second=1000, fill=10, message_bytes=100),
    Point(entries_per_second=3000, fill=1, message_bytes=100),
    # Bytes, at few entries.
    Point(entries_per_second=20, fill=200, message_bytes=1000),
    Point(entries_per_second=100, fill=100, message_bytes=1000),
    Point(entries_per_second=100, fill=20, message_bytes=1000),
    Point(entries_per_second=400, fill=25, message_bytes=1000),
    # Partitions.
    Point(entries_per_second=100, fill=20, message_bytes=100, partitions=1),
    Point(entries_per_second=100, fill=20, message_bytes=100, partitions=40),
    Point(entries_per_second=1000, fill=10, message_bytes=100, partitions=40),
    Point(entries_per_second=1000, fill=10, message_bytes=100, partitions=1),
    # Readers.
    Point(entries_per_second=100, fill=20, message_bytes=100, subscriptions=0),
    Point(entries_per_second=1000, fill=10, message_bytes=100, subscriptions=0),
    Point(entries_per_second=100, fill=100, message_bytes=1000, subscriptions=0),
    Point(entries_per_second=3000, fill=1, message_bytes=100, subscriptions=0),
    Point(entries_per_second=100, fill=20, message_bytes=100, subscriptions=3),
    Point(entries_per_second=400, fill=20, message_bytes=100, subscriptions=3),
    Point(entries_per_second=100, fill=100, message_bytes=1000, subscriptions=3),
    # Compression: only the bytes should count.
    Point(entries_per_second=100, fill=100, message_bytes=1000, compression=_LZ4),
    Point(entries_per_second=400, fill=25, message_bytes=1000, compression=_ZSTD),
)
COPIES = (
    Point(entries_per_second=400, fill=20, message_bytes=100, write_quorum=2),
    Point(entries_per_second=100, fill=100, message_bytes=1000, write_quorum=2),
)
"""Where there are two bookies or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPlan:
    """Where and how long."""

    service_url: str
    admin_url: str | None
    cluster: Cluster | None = None
    """How one shows oneself there."""
    seconds: float = 5.0
    """Measured time of a load."""
    repeats: int = 1
    namespace: str = "public/default"
    server_pids: tuple[int, ...] = ()
    design: tuple[Point, ...] = DESIGN
    proofs: tuple[Path, ...] = ()
    """Folders of `geminga.tuning.prove`: their undisturbed runs count as loads, too."""

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds, 0.1, 600, "seconds")
        check_int("repeats", self.repeats, 1, 100)


class Calibration:
    """Carries a plan out. ``say`` is told a line for each step."""

    def __init__(self, plan: CalibrationPlan, folder: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._folder = folder
        self._say = say
        self.stopped = ""

    def calibrate(self) -> CostModel:
        """Measure what is not measured yet, and fit.

        Raises what stands in the way of enough runs for a fit; when a broker goes away later, `stopped`
        says so and the model is what the runs till then give.
        """
        plan = self._plan
        view = BrokerView(plan.service_url, plan.admin_url, plan.server_pids, plan.cluster)
        log = RunLog(self._folder, {"broker": view.title, "seconds": plan.seconds})
        todo = self._todo(log, view)
        try:
            if todo:
                self._measure(view, log, todo)
        except PulsarException as error:
            self.stopped = f"{type(error).__name__}: {error}"
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        found = [observation(outcome) for outcome in log.outcomes if not outcome.failure]
        for folder in plan.proofs:
            found += proof_observations(folder, view.title)
        return fit(found, broker=view.title, machine=machine())

    def _todo(self, log: RunLog, view: BrokerView) -> list[tuple[Point, int]]:
        done = {(outcome.subject, outcome.run) for outcome in log.outcomes}
        design = list(self._plan.design)
        if _bookies(view) > 1:
            design += COPIES
        order: list[tuple[Point, int]] = []
        for run in range(self._plan.repeats):
            turn = [(point, run) for point in design]
            random.Random(run).shuffle(turn)
            order += turn
        order.append((design[0], self._plan.repeats))  # once more: the drift
        return [(point, run) for point, run in order if (point.title, run) not in done]

    def _measure(self, view: BrokerView, log: RunLog, todo: list[tuple[Point, int]]) -> None:
        plan = self._plan
        base = Conditions(
            profile=_profile(todo[0][0]), part="calibration", warm_seconds=WARM_SECONDS,
            seconds=plan.seconds, namespace=plan.namespace,
        )  # fmt: skip
        if view.title.startswith(APACHE):
            self._say(f"{view.title}: warming up for {JVM_WARM_SECONDS:g} s")
            warm = max(plan.design, key=lambda point: point.entries_per_second)
            conditions = replace(base, profile=_profile(warm), seconds=JVM_WARM_SECONDS, warm_seconds=0.0)
            Run(view, conditions, _subject(warm)).measure()
        idle = measure_idle(view, min(IDLE_SECONDS, 2 * plan.seconds))
        for number, (point, run) in enumerate(todo):
            self._say(f"{number + 1} of {len(todo)}: {point.title}")
            conditions = replace(base, profile=_profile(point), idle=idle)
            outcome = Run(view, conditions, _subject(point)).measure()
            log.keep(replace(outcome, run=run))
            self._say(
                f"    {outcome.entries_per_second:.0f} entries/s, broker CPU above idle "
                f"{outcome.broker_cpu_above_idle / outcome.seconds:.4f} s/s"
            )


def _profile(point: Point) -> TrafficProfile:
    return TrafficProfile(
        rate_messages_per_second=point.entries_per_second * point.fill, message_bytes=point.message_bytes,
        partitions=point.partitions, subscriptions=point.subscriptions, write_quorum=point.write_quorum,
    )  # fmt: skip


def _subject(point: Point) -> Subject:
    producer = ProducerSettings(
        batching_enabled=point.fill > 1, batching_max_messages=max(1, point.fill),
        batching_max_allowed_size_in_bytes=1 << 22, batching_max_publish_delay_seconds=DELAY_SECONDS,
        max_pending_messages=20 * max(100, point.fill), max_pending_messages_across_partitions=0,
        block_if_queue_full=True, compression_type=point.compression,
    )  # fmt: skip
    return Subject(title=point.title, library="geminga", settings=PublishSettings(producer=producer))


def observation(outcome: Outcome) -> Observation:
    """A run as the model's fit takes it."""
    profile: dict[str, Any] = outcome.profile
    # A batch here is closed by its count: its first message waited for as long as it took to fill.
    wait_ms = 1000 / outcome.entries_per_second if outcome.batch_fill > 1.5 else 0.0
    p50, p99 = outcome.receipt.p50_ms, outcome.receipt.p99_ms
    return Observation(
        title=outcome.subject,
        seconds=outcome.seconds,
        entries=float(outcome.entries),
        stored_bytes=float(outcome.stored_bytes),
        subscriptions=profile["subscriptions"],
        partitions=profile["partitions"],
        write_quorum=profile["write_quorum"],
        cpu_seconds=outcome.broker_cpu_above_idle,
        idle_per_second=outcome.broker_idle_per_second,
        wire_published_bytes=outcome.wire_published_bytes,
        wire_delivered_bytes=outcome.wire_delivered_bytes,
        receipt_p50_ms=None if p50 is None else max(0.0, p50 - 0.5 * wait_ms),
        receipt_p99_ms=None if p99 is None else max(0.0, p99 - 0.99 * wait_ms),
    )


def proof_observations(folder: Path, broker: str) -> list[Observation]:
    """The runs of a proof in which nothing was broken, as loads.

    What an idle broker takes is the median of what was seen before all of them. Their receipts waited for
    batches as long as the settings said, and tell nothing of the broker. Raises `InvalidConfiguration` for
    a folder without runs, and for runs of another broker.
    """
    conditions, outcomes = RunLog.read(folder)
    if conditions.get("broker") != broker:
        raise InvalidConfiguration(f"{folder} holds runs of {conditions.get('broker')!r}, not of {broker!r}")
    mine = [o for o in outcomes if o.part == "settings" and not o.failure and o.entries]
    idle = statistics.median([o.broker_idle_per_second for o in mine]) if mine else 0.0
    found = []
    for outcome in mine:
        traffic = TrafficProfile.from_dict(outcome.profile)
        title = (
            f"{outcome.subject}: {traffic.rate_messages_per_second:g} msg/s of {traffic.message_bytes:g} B, "
            f"{traffic.partitions} partitions, {traffic.subscriptions} subscriptions"
        )
        run = observation(replace(outcome, broker_idle_per_second=idle))
        found.append(replace(run, title=title, receipt_p50_ms=None, receipt_p99_ms=None))
    return found


def _bookies(view: BrokerView) -> int:
    try:
        return len((view.admin.call("GET", "bookies/all") or {}).get("bookies", []))
    except PulsarException:
        return 1
