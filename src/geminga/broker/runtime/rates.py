"""Rates for stats: counters compared over a window, without a timer."""

WINDOW_SECONDS = 10.0
_SHORTEST_SECONDS = 1.0
_NOTHING_YET = {count: ((0,) * count, (0.0,) * count) for count in (2, 4)}
"""Initial state of handles by number of counters, shared, because there may be very many handles."""


class Rates:
    """Rates of a handle's counters per second since about a window ago."""

    __slots__ = ("_counts", "_rates", "_when")

    def __init__(self, now: float, count: int) -> None:
        self._when = now
        self._counts: tuple[float, ...]
        self._rates: tuple[float, ...]
        self._counts, self._rates = _NOTHING_YET[count]

    def read(self, now: float, *counts: float) -> tuple[float, ...]:
        """Return the rates; a new window begins when the last one is old enough."""
        elapsed = now - self._when
        if elapsed < _SHORTEST_SECONDS:
            return self._rates
        rates = tuple((after - before) / elapsed for after, before in zip(counts, self._counts, strict=True))
        if elapsed >= WINDOW_SECONDS:
            self._when, self._counts, self._rates = now, counts, rates
        return rates
