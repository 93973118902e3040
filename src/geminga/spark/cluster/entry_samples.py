"""Samples of entries: requests to read a few entries in advance, and what those entries cost."""

from __future__ import annotations

from dataclasses import dataclass

from geminga.spark.offsets import Offset, Partition


@dataclass(frozen=True, slots=True)
class EntryCost:
    """Cost of several entries, or the average cost of one."""

    entries: float = 0
    rows: float = 0
    bytes: float = 0

    def __add__(self, other: EntryCost) -> EntryCost:
        return EntryCost(self.entries + other.entries, self.rows + other.rows, self.bytes + other.bytes)

    def __mul__(self, count: float) -> EntryCost:
        return EntryCost(self.entries * count, self.rows * count, self.bytes * count)

    @property
    def each(self) -> EntryCost:
        return self * (1 / self.entries) if self.entries else self

    def at_least(self, other: EntryCost) -> EntryCost:
        return EntryCost(
            max(self.entries, other.entries), max(self.rows, other.rows), max(self.bytes, other.bytes)
        )


@dataclass(slots=True)
class MeasuredEntry:
    """An entry that was read in advance: the offset after it, and its cost."""

    place: Offset
    cost: EntryCost


@dataclass(frozen=True, slots=True)
class EntrySample:
    """Request to read the entries after ``start``: the first one, then more within the budgets."""

    partition: Partition
    start: Offset
    end: Offset
    rows: int | None
    bytes: int

    def wants_more(self, cost: EntryCost) -> bool:
        """Return whether to read further when the entries read so far have this cost."""
        return cost.bytes < self.bytes and (self.rows is None or cost.rows < self.rows)
