"""Mapping of source positions to target positions, stored as runs.

Consecutive entries of the source are mostly consecutive in the target: such a range is one run of any length.
Entries older than the map are searched in the clusters (`geminga.mirror.cursors`).
"""

from bisect import bisect_right
from collections.abc import Iterable

from geminga.mirror.positions import Position

RUNS_MAX = 20_000
"""Maximum runs of a map; beyond, the oldest are dropped."""

Range = tuple[int, int, int]
"""A ledger with its first and last entry."""


class PositionMap:
    """Map of positions that grows at its end. ``complete_from``: it has every mirrored entry from this source
    position on. ``runs_max``: most runs, of which the oldest are dropped; 0: without limit."""

    def __init__(self, complete_from: Position, runs_max: int | None = None) -> None:
        self.complete_from = complete_from
        self.runs_max = RUNS_MAX if runs_max is None else runs_max
        self._starts: list[Position] = []
        """Source position of each run's first entry, in order."""
        self._runs: list[list[int]] = []
        """Length, target ledger, and first target entry of each run."""

    def __len__(self) -> int:
        return len(self._runs)

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
        if self.runs_max and len(self._runs) > self.runs_max:
            gone = self.runs_max // 4
            del self._starts[:gone], self._runs[:gone]
            self.complete_from = self._starts[0]

    def forget(self, complete_from: Position) -> None:
        """Clear the map: the target position of an entry is unknown."""
        self._starts.clear()
        self._runs.clear()
        self.complete_from = complete_from

    def between(self, after: Position, last: Position) -> list[Range]:
        """Return the target's ranges for entries after ``after``, up to and including ``last``."""
        found: list[Range] = []
        begin, end = max(0, bisect_right(self._starts, after) - 1), bisect_right(self._starts, last)
        for start, (length, ledger, entry) in zip(
            self._starts[begin:end], self._runs[begin:end], strict=True
        ):
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


def behind(after: Position, ranges: Iterable[Range]) -> list[Range]:
    """Return the part of ``ranges`` after a position."""
    found = []
    for ledger, first, last in ranges:
        if (ledger, last) > after:
            found.append((ledger, max(first, after.entry + 1) if ledger == after.ledger else first, last))
    return found
