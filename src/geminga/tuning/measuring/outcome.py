"""Result of a measured run, and statistics over several runs of a subject."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles in milliseconds; None if the tool does not report them."""

    count: int = 0
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    max_ms: float | None = None

    @staticmethod
    def of_nanoseconds(values: Any) -> Latency:
        """Return the percentiles of an array of nanoseconds."""
        import numpy as np

        if not len(values):
            return Latency()
        found = [float(v) / 1e6 for v in np.percentile(values, PERCENTILES)]
        return Latency(
            count=len(values), p50_ms=found[0], p90_ms=found[1], p99_ms=found[2], p999_ms=found[3],
            max_ms=found[4],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """Result of a run. Counts are of its measured part, without the warm-up."""

    subject: str
    """Settings and client, for tables: ``Geminga, formula, ZSTD``."""
    library: str
    settings: dict[str, Any]
    seconds: float
    """Time from the first measured message's due time to the last receipt."""
    offered: int
    """Number of due messages."""
    receipts: int
    sent: int = 0
    """Messages that the client accepted; fewer than due if the sender is blocked."""
    window_seconds: float = 0.0
    """Time from the first to the last moment at which a message was to be sent."""
    profile: dict[str, Any] = field(default_factory=dict)
    """The traffic, from `TrafficProfile.to_dict`."""
    failed: int = 0
    failure: str = ""
    """Reason why messages failed or the run ended early."""
    entries: int = 0
    batch_fill: float = 0.0
    """Messages per entry, counted by the broker."""
    receipt: Latency = field(default_factory=Latency)
    end_to_end: Latency = field(default_factory=Latency)
    delivered: int = 0
    client_cpu_seconds: float = 0.0
    """CPU of the client, without the measuring loop's if that is known."""
    loop_cpu_seconds: float = 0.0
    broker_cpu_seconds: float = 0.0
    """CPU of the servers, including idle."""
    broker_idle_per_second: float = 0.0
    others_per_second: float | None = None
    """CPU seconds per second of all other processes on the broker's machine, before the load."""
    wire_published_bytes: int | None = None
    """Bytes of published entries, counted by the broker."""
    wire_delivered_bytes: int | None = None
    """Bytes of delivered entries, counted by the broker."""
    disk_bytes: int | None = None
    disk_syncs: int | None = None
    """Syncs of the store, if the broker counts them."""
    machine_cpu_seconds: float | None = None
    """CPU of all processes on this machine; None if the servers run elsewhere."""
    disk_wait_seconds: float | None = None
    """Seconds in which a core of this machine was idle and waited for a disk."""
    behind_seconds_max: float = 0.0
    """Longest delay of the sender behind its clock: it was blocked, or the machine was busy."""
    receipts_in_window: int = 0
    """Receipts that arrived within ``window_seconds``."""
    run: int = 0
    at: str = ""

    @property
    def rate(self) -> float:
        """Receipts per second in ``window_seconds``, else in the whole run."""
        if self.window_seconds:
            return self.receipts_in_window / self.window_seconds
        return self.receipts / self.seconds if self.seconds else 0.0

    @property
    def entries_per_second(self) -> float:
        return self.entries / self.seconds if self.seconds else 0.0

    @property
    def broker_cpu_above_idle(self) -> float:
        """CPU seconds of the servers above idle."""
        return self.broker_cpu_seconds - self.broker_idle_per_second * self.seconds

    @property
    def wire_bytes(self) -> int | None:
        """Bytes of published and delivered entries."""
        if self.wire_published_bytes is None or self.wire_delivered_bytes is None:
            return None
        return self.wire_published_bytes + self.wire_delivered_bytes

    @staticmethod
    def from_dict(values: dict[str, Any]) -> RunOutcome:
        """Return the outcome of these JSON values; unknown fields are ignored."""
        known = {f.name for f in fields(RunOutcome)}
        given = {name: value for name, value in values.items() if name in known}
        for name in ("receipt", "end_to_end"):
            given[name] = Latency(**given.get(name, {}))
        return RunOutcome(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, minimum and maximum of several runs."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float | None]) -> Spread | None:
        """Return the statistics of the values that are not None; None without any."""
        known = sorted(v for v in values if v is not None)
        if not known:
            return None
        return Spread(median=statistics.median(known), low=known[0], high=known[-1], count=len(known))
