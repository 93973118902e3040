"""Rates for stats: counters compared over a window, without a timer."""

from __future__ import annotations

WINDOW_SECONDS = 10.0
_SHORTEST_SECONDS = 1.0


class Rates:
    """Remembers a handle's counters and gives their growth a second since about a window ago."""

    __slots__ = ("_counts", "_rates", "_when")

    def __init__(self, now: float, count: int) -> None:
        self._when = now
        self._counts: tuple[int, ...] = (0,) * count
        self._rates: tuple[float, ...] = (0.0,) * count

    def read(self, now: float, *counts: int) -> tuple[float, ...]:
        """The rates; a new window begins when the last one is old enough."""
        elapsed = now - self._when
        if elapsed < _SHORTEST_SECONDS:
            return self._rates
        rates = tuple((after - before) / elapsed for after, before in zip(counts, self._counts, strict=True))
        if elapsed >= WINDOW_SECONDS:
            self._when, self._counts, self._rates = now, counts, rates
        return rates
