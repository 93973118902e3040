"""Mapping of source positions to target positions, stored as runs.

Consecutive entries of the source are mostly consecutive in the target: such a range is one run of any length.
Entries older than the map are searched in the target (`geminga.mirror.history`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from geminga.mirror.positions import NOWHERE, Position

RUNS_MAX = 20_000
"""Most runs of a map; beyond, the oldest are dropped."""

Range = tuple[int, int, int]
"""A ledger with its first and last entry."""


class PositionMap:
    """Map of positions that grows at its end. ``complete_from``: it has every mirrored entry from there
    on."""

    def __init__(self, complete_from: Position, runs_max: int | None = None) -> None:
        self.complete_from = complete_from
        self.runs_max = RUNS_MAX if runs_max is None else runs_max
        self._starts: list[Position] = []
        """Source position of each run's first entry, in order."""
        self._runs: list[list[int]] = []
        """Length, target ledger, and first target entry of each run."""

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def room(self) -> int:
        """Make space for this many runs by dropping the oldest."""
        return self.runs_max - len(self._runs)

    def add(self, source: Position, target: Position) -> None:
        """Add the next entry at the end."""
        if self._runs:
            start, run = self._starts[-1], self._runs[-1]
            length = run[0]
            if (
                source == (start.ledger, start.entry + length)
                and target == (run[1], run[2] + length)
            ):  # fmt: skip
                run[0] = length + 1
                return
        self._starts.append(source)
        self._runs.append([1, *target])
        if len(self._runs) > self.runs_max:
            gone = self.runs_max // 4
            del self._starts[:gone], self._runs[:gone]
            self.complete_from = self._starts[0]

    def forget(self, complete_from: Position) -> None:
        """Clear the map: the target position of an entry is unknown."""
        self._starts.clear()
        self._runs.clear()
        self.complete_from = complete_from

    def put_before(self, older: PositionMap) -> None:
        """Insert older entries, found by a search, before the others."""
        self._starts[:0] = older._starts
        self._runs[:0] = older._runs
        self.complete_from = older.complete_from
        if len(self._runs) > self.runs_max:
            gone = len(self._runs) - self.runs_max
            del self._starts[:gone], self._runs[:gone]
            self.complete_from = self._starts[0]

    def floor(self, source: Position) -> Position | None:
        """Return the target position of the last entry at or before a source position; None if unknown."""
        index = bisect_right(self._starts, source) - 1
        if index < 0:
            return None
        start, (length, ledger, entry) = self._starts[index], self._runs[index]
        into = source.entry - start.entry if source.ledger == start.ledger else length - 1
        return Position(ledger, entry + min(into, length - 1))

    def exact(self, source: Position) -> Position | None:
        """Return the target position of the entry at a source position; None if it is not in the map."""
        index = bisect_right(self._starts, source) - 1
        if index < 0:
            return None
        start, (length, ledger, entry) = self._starts[index], self._runs[index]
        into = source.entry - start.entry
        return Position(ledger, entry + into) if source.ledger == start.ledger and into < length else None

    def reach(self, target: Position) -> Position | None:
        """Return up to which source position all entries are at or before a target position; None: all
        entries. Target positions must increase with source positions."""
        found = None
        for start, (length, ledger, entry) in zip(reversed(self._starts), reversed(self._runs), strict=True):
            if (ledger, entry + length - 1) <= target:
                break
            into = target.entry - entry if ledger == target.ledger and entry <= target.entry else -1
            found = Position(start.ledger, start.entry + into)
        return found

    def between(self, after: Position, last: Position) -> list[Range]:
        """Return the target's ranges for entries after ``after``, up to and including ``last``."""
        found: list[Range] = []
        index = max(0, bisect_right(self._starts, after) - 1)
        for start, (length, ledger, entry) in zip(self._starts[index:], self._runs[index:], strict=True):
            if start > last:
                break
            low, high = 0, length - 1
            if start.ledger == after.ledger:
                low = max(low, after.entry + 1 - start.entry)
            elif start.ledger < after.ledger:
                continue
            if start.ledger == last.ledger:
                high = min(high, last.entry - start.entry)
            if low <= high:
                found.append((ledger, entry + low, entry + high))
        return found

    def targets(self, last: Position) -> tuple[Position, list[Range]]:
        """Return the target's ranges up to and including ``last``, and from which position they are
        complete."""
        if not self._runs:
            return last, []
        found = []
        for length, ledger, entry in self._runs:
            if (ledger, entry) > last:
                break
            end = entry + length - 1
            found.append((ledger, entry, min(end, last.entry) if ledger == last.ledger else end))
        return NOWHERE if self.complete_from == NOWHERE else Position(*self._runs[0][1:]), found


def behind(after: Position, ranges: Iterable[Range]) -> list[Range]:
    """Return the part of ``ranges`` after a position."""
    found = []
    for ledger, first, last in ranges:
        if (ledger, last) > after:
            found.append((ledger, max(first, after.entry + 1) if ledger == after.ledger else first, last))
    return found
