"""Cost model of publishing: a broker's CPU and network from entries, wake-ups, bytes, readers and copies.

A broker's work is counted in entries, as it does not open batches. A single entry has to wake a chain of
threads with cold caches; further entries find them awake. So there are two prices, per entry and per wake-up;
the number of wake-ups follows from the rate::

    CPU s/s = flowing
              + entry x E + delivered_entry x E x subscriptions + copied_entry x E x (copies - 1)
              + wake x W + delivered_wake x W x subscriptions + copied_wake x W x (copies - 1)
              + position x P x subscriptions
              + byte x B + delivered_byte x B x subscriptions + copied_byte x B x (copies - 1)

    W = E / (1 + E x awake_seconds)

with E entries and B stored bytes per second. ``awake_seconds`` is how long the threads stay awake: at low
rates each entry wakes them, at high rates at most one in that time. Each delivery wakes another connection
and a reader. P is the number of active partitions: a subscription's position in each is written once per
second, for any number of entries. ``flowing`` is the broker's CPU above idle at any load: garbage collection,
statistics, periodic work. Compression affects only B. ``tools/fit_cost_model.py`` fits the coefficients to
measured loads.

Network bytes are the stored bytes plus those around each entry: commands, receipts and acknowledgements.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
STANDARD = "cost-apache-pulsar-4.0.4.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Result of one measured load."""

    title: str
    seconds: float
    entries: float
    stored_bytes: float
    subscriptions: int
    partitions: int
    write_quorum: int
    cpu_seconds: float
    """CPU of the servers above idle."""
    idle_per_second: float
    wire_published_bytes: int | None = None
    wire_delivered_bytes: int | None = None
    receipt_p50_ms: float | None = None
    receipt_p99_ms: float | None = None
    """99th percentile from send to receipt, without the wait for the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """Return the value in another unit."""
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A broker's load per second."""

    entries_per_second: float
    stored_bytes_per_second: float
    subscriptions: float = 1
    write_quorum: float = 1
    partitions: float = 1
    """Partitions that share the entries."""

    @property
    def positions_per_second(self) -> float:
        """Subscription positions written per second: one per active partition."""
        return min(self.partitions, self.entries_per_second) * self.subscriptions


TERMS = {
    "flowing": "s of CPU a second as soon as anything flows",
    "entry": "s of CPU an entry",
    "delivered_entry": "s of CPU an entry and subscription",
    "copied_entry": "s of CPU an entry and further copy",
    "wake": "s of CPU a wake-up: an entry that comes alone takes one",
    "delivered_wake": "s of CPU a wake-up and subscription",
    "copied_wake": "s of CPU a wake-up and further copy",
    "position": "s of CPU a position of a subscription written: of each partition at work one a second",
    "byte": "s of CPU a stored byte",
    "delivered_byte": "s of CPU a byte and subscription",
    "copied_byte": "s of CPU a byte and further copy",
}
"""Names and units of the coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Coefficients with their intervals, and the broker and machine of the measurements."""

    broker: str
    machine: dict[str, Any]
    terms: dict[str, Estimate]
    """Coefficients by the names of `TERMS`; undetermined ones are missing."""
    awake_seconds: float
    """Seconds for which the threads stay awake after an entry."""
    error: float
    """Relative error of predictions for runs left out of the fit, as a standard deviation of logarithms,
    including the measurement error."""
    error_of_means: float | None
    """Like `error`, against the mean of a load's runs; None if no load was measured twice."""
    idle_per_second: float
    published_overhead_bytes: float
    """Network bytes per published entry besides the entry: command and receipt."""
    delivered_overhead_bytes: float
    """Network bytes per delivered entry besides the entry: command, acknowledgement, permits."""
    receipt_p50_seconds: float
    receipt_p99_seconds: float
    """99th percentile of the time from send to receipt, without the wait for the batch."""
    observations: tuple[Observation, ...] = field(default=(), repr=False)

    def broker_cpu(self, load: Load) -> Estimate:
        """Return CPU seconds per second above idle, with the model's error."""
        value = sum(self.terms[name].value * x for name, x in self._features(load).items())
        spread = math.exp(1.96 * self.error)
        return Estimate(value=value, low=value / spread, high=value * spread)

    def network(self, load: Load) -> float:
        """Return bytes per second between clients and broker, and from the broker to further copies."""
        entries, stored = load.entries_per_second, load.stored_bytes_per_second
        published = stored + entries * self.published_overhead_bytes
        delivered = load.subscriptions * (stored + entries * self.delivered_overhead_bytes)
        return published + delivered + (load.write_quorum - 1) * stored

    def _features(self, load: Load) -> dict[str, float]:
        found = features(load, self.awake_seconds)
        missing = {"copied_entry": "entry", "copied_wake": "wake", "copied_byte": "byte"}
        # Without measurements of further copies, each is assumed to cost as much as the first.
        for name, like in missing.items():
            if name not in self.terms:
                found[like] = found.get(like, 0.0) + found.pop(name)
        return {name: x for name, x in found.items() if name in self.terms}


def standard() -> CostModel:
    """Return the cost model of Apache Pulsar 4.0.4 standalone that the package contains."""
    values = json.loads((DATA / STANDARD).read_text(encoding="utf-8"))
    del values["format"]
    values["terms"] = {name: Estimate(**one) for name, one in values["terms"].items()}
    values["observations"] = tuple(Observation(**row) for row in values["observations"])
    return CostModel(**values)


def wakes_per_second(entries_per_second: float, awake_seconds: float) -> float:
    """Return the wake-ups per second for a rate of entries."""
    return entries_per_second / (1 + entries_per_second * awake_seconds)


def features(load: Load, awake_seconds: float) -> dict[str, float]:
    """Return the factor of each coefficient."""
    entries, stored = load.entries_per_second, load.stored_bytes_per_second
    woken = wakes_per_second(entries, awake_seconds)
    copies = load.write_quorum - 1
    return {
        "flowing": 1.0 if entries else 0.0,
        "entry": entries,
        "delivered_entry": entries * load.subscriptions,
        "copied_entry": entries * copies,
        "wake": woken,
        "delivered_wake": woken * load.subscriptions,
        "copied_wake": woken * copies,
        "position": load.positions_per_second,
        "byte": stored,
        "delivered_byte": stored * load.subscriptions,
        "copied_byte": stored * copies,
    }
