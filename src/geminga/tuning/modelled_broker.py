"""A broker made of waiting times, and a client beside it: what both simulations publish to.

An entry's way, from the client's write to the receipt in the client's hands:

1. the network: entries of one connection one after the other at ``bandwidth_bytes_per_second``, then
   ``network_seconds`` to the other side;
2. the broker's work, ``entry_seconds + bytes * byte_seconds`` on one of ``threads``: entries queue here
   when the broker has more to do than it can;
3. keeping: a time drawn from ``keeping_seconds``, quantiles measured on a real broker (its disk, its
   collector's pauses, the wake-ups of its threads and ours), and ``keeping_byte_seconds`` for each byte;
   receipts of one partition keep their order;
4. the network back.

`Fault` makes one partition slow, silent, or its connection lost for a while. Nothing here reads a clock:
times are arguments, chance is a generator that the caller seeds.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from geminga.config import check_choice, check_int, check_seconds, check_type, refuse
from geminga.errors import InvalidConfiguration
from geminga.tuning.event_loops import EventLoop

THREADS_MAX = 1024
QUANTILES_MAX = 10_001


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerModel:
    """The times of one broker and of the clients' machine.

    Refuses values out of range with `geminga.errors.InvalidConfiguration`. The defaults are those of a
    broker on the same machine.
    """

    network_seconds: float = 0.0001
    """One way, wake-ups on the other side included."""
    bandwidth_bytes_per_second: float = 1e9
    """Of one producer's connection."""
    entry_seconds: float = 0.00002
    """Work of the broker for an entry."""
    byte_seconds: float = 1e-9
    """Work of the broker for a byte of it."""
    threads: int = 2
    """How many entries the broker works on at once."""
    keeping_seconds: tuple[float, ...] = (0.0005, 0.001)
    """Quantiles, evenly spaced from the smallest to the largest, of the time until an entry is kept."""
    keeping_byte_seconds: float = 0.0
    """What keeping takes longer for each byte."""
    timer_lag_seconds: float = 0.00008
    """What the client's event loop takes to wake up: for a message that opens a batch, and for the timer
    that closes it. That it sleeps whole milliseconds comes on top."""
    telling_seconds: float = 0.0
    """What the client takes to tell the application of one message's receipt, callback included: those of
    an entry are told one after the other."""
    event_loop: EventLoop = EventLoop.ASYNCIO
    """What the client runs on: it rounds the delay of a batch."""
    encoding_seconds: float = 0.0
    """What it takes the client to give a batch to another thread and to get it back: batches are compressed
    on other threads from `geminga.client.publisher.ENCODING_BYTES_MIN` bytes on."""
    encoding_byte_seconds: float = 0.0
    """What that thread takes for a byte of the batch."""
    name: str = "modelled broker"

    def __post_init__(self) -> None:
        check_seconds("network_seconds", self.network_seconds, 0.0, 10.0)
        if not self.bandwidth_bytes_per_second >= 1.0:
            refuse("bandwidth_bytes_per_second", self.bandwidth_bytes_per_second, "bytes a second >= 1")
        check_seconds("entry_seconds", self.entry_seconds, 0.0, 10.0)
        check_seconds("byte_seconds", self.byte_seconds, 0.0, 1.0)
        check_int("threads", self.threads, 1, THREADS_MAX)
        check_seconds("keeping_byte_seconds", self.keeping_byte_seconds, 0.0, 1.0)
        check_seconds("timer_lag_seconds", self.timer_lag_seconds, 0.0, 1.0)
        check_seconds("telling_seconds", self.telling_seconds, 0.0, 1.0)
        check_choice("event_loop", self.event_loop, list(EventLoop))
        check_seconds("encoding_seconds", self.encoding_seconds, 0.0, 1.0)
        check_seconds("encoding_byte_seconds", self.encoding_byte_seconds, 0.0, 1.0)
        check_type("name", self.name, str)
        quantiles = self.keeping_seconds
        if not 1 <= len(quantiles) <= QUANTILES_MAX or list(quantiles) != sorted(quantiles):
            refuse("keeping_seconds", quantiles, f"1 to {QUANTILES_MAX} ascending numbers of seconds")
        check_seconds("keeping_seconds", quantiles[0])
        check_seconds("keeping_seconds", quantiles[-1])

    def changed(self, **fields_changed: Any) -> BrokerModel:
        """A copy with other values, checked like the first."""
        return replace(self, **fields_changed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them."""
        return {**asdict(self), "event_loop": self.event_loop.value}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> BrokerModel:
        """What `to_dict` wrote. Raises `InvalidConfiguration` for unknown fields."""
        try:
            given = dict(values)
            if "keeping_seconds" in given:
                given["keeping_seconds"] = tuple(given["keeping_seconds"])
            if "event_loop" in given:
                given["event_loop"] = EventLoop(given["event_loop"])
            return BrokerModel(**given)
        except (TypeError, ValueError) as error:
            raise InvalidConfiguration(f"this is no model of a broker: {error}") from None


class FaultKind(Enum):
    """What is wrong with a partition."""

    SLOW = "slow"
    """Its receipts take ``extra_seconds`` longer."""
    STUCK = "stuck"
    """It takes entries and gives no receipts before the fault ends."""
    LOST = "lost"
    """Its connection is gone; a new one is there when the fault ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One partition's trouble, from ``start_seconds`` until ``end_seconds`` of the run."""

    partition: int
    kind: FaultKind
    start_seconds: float = 0.0
    end_seconds: float = 1e9
    extra_seconds: float = 0.0

    def __post_init__(self) -> None:
        check_int("partition", self.partition, 0)
        check_choice("kind", self.kind, list(FaultKind))
        check_seconds("start_seconds", self.start_seconds)
        check_seconds("end_seconds", self.end_seconds, self.start_seconds)
        check_seconds("extra_seconds", self.extra_seconds)


class ModelledBroker:
    """The state of a modelled broker in one run. Calls come in the order of their times."""

    def __init__(self, model: BrokerModel, faults: Sequence[Fault], generator: np.random.Generator) -> None:
        self.model = model
        self.entries = 0
        self.bytes = 0
        self.busy_seconds = 0.0
        """Time that the broker's threads spent on entries."""
        self._free_at = [0.0] * model.threads
        self._kept_at: dict[object, float] = {}
        self._delays: dict[int, list[Fault]] = {}
        for fault in faults:
            if fault.kind is not FaultKind.LOST:
                self._delays.setdefault(fault.partition, []).append(fault)
        self._generator = generator
        self._keeping = np.asarray(model.keeping_seconds)
        self._draws: list[float] = []

    def arrive(self, now: float, producer: object, partition: int, size: int) -> float:
        """An entry of ``size`` bytes is here; when its receipt leaves for the client.

        ``producer`` tells apart the producers of one partition: each gets its receipts in order.
        """
        model = self.model
        work = model.entry_seconds + size * model.byte_seconds
        start = heapq.heappop(self._free_at)
        if start < now:
            start = now
        done = start + work
        heapq.heappush(self._free_at, done)
        self.entries += 1
        self.bytes += size
        self.busy_seconds += work
        kept = done + self._draw() + size * model.keeping_byte_seconds
        for fault in self._delays.get(partition, ()):
            if fault.start_seconds <= now < fault.end_seconds:
                if fault.kind is FaultKind.SLOW:
                    kept += fault.extra_seconds
                else:
                    kept = max(kept, fault.end_seconds)
        before = self._kept_at.get(producer, 0.0)
        if kept < before:
            kept = before
        self._kept_at[producer] = kept
        return kept

    def _draw(self) -> float:
        """The next time of keeping, by inverse transform; drawn many at once."""
        if not self._draws:
            places = self._generator.random(1024) * (len(self._keeping) - 1)
            self._draws = np.interp(places, np.arange(len(self._keeping)), self._keeping).tolist()
        return self._draws.pop()


def quantiles_of(samples: Sequence[float], count: int = 201) -> tuple[float, ...]:
    """``keeping_seconds`` of a `BrokerModel` from measured times in seconds."""
    if not len(samples):
        refuse("samples", samples, "at least one measured time")
    levels = np.linspace(0.0, 1.0, count)
    return tuple(float(q) for q in np.quantile(np.maximum(0.0, np.asarray(samples, float)), levels))


def pooled(models: Sequence[BrokerModel]) -> BrokerModel:
    """One model of a broker that was measured several times: the first, with what all of them saw of keeping.

    Each measurement counts alike. Pauses are rare: those of a few seconds hold none or too many.
    """
    if not models:
        refuse("models", models, "at least one")
    levels = np.linspace(0.0, 1.0, 2001)
    seen = [
        np.interp(levels, np.linspace(0.0, 1.0, len(model.keeping_seconds)), model.keeping_seconds)
        for model in models
    ]
    return models[0].changed(
        keeping_seconds=quantiles_of(np.concatenate(seen).tolist(), 401),
        keeping_byte_seconds=statistics.median(model.keeping_byte_seconds for model in models),
        network_seconds=statistics.median(model.network_seconds for model in models),
    )


__all__ = ["BrokerModel", "Fault", "FaultKind", "ModelledBroker", "pooled", "quantiles_of"]
