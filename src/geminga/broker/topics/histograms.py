"""Histograms of a topic: time until entries are durable, their size, and time until acknowledgement."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

LATENCIES: Final = {"0_5": 0.0005, "1": 0.001, "5": 0.005, "10": 0.01, "20": 0.02, "50": 0.05, "100": 0.1,
                    "200": 0.2, "1000": 1.0}  # fmt: skip
"""Upper bounds of Apache Pulsar's buckets in seconds, by their names."""
SIZES: Final = {"128": 128, "512": 512, "1_kb": 1024, "2_kb": 2048, "4_kb": 4096, "16_kb": 16384,
                "100_kb": 102_400, "1_mb": 1_048_576}  # fmt: skip
"""Upper bounds in bytes."""
ACK_LATENCIES: Final = {"10_ms": 0.01, "100_ms": 0.1, "1_s": 1.0, "10_s": 10.0, "1_m": 60.0, "10_m": 600.0,
                        "1_h": 3600.0}  # fmt: skip
"""Upper bounds in seconds."""
_LATENCY_BOUNDS: Final = tuple(LATENCIES.values())
_SIZE_BOUNDS: Final = tuple(SIZES.values())
_ACK_BOUNDS: Final = tuple(ACK_LATENCIES.values())
_LATENCY: Final = "pulsar_storage_write_latency_"
_SIZE: Final = "pulsar_entry_size_"
_ACK: Final = "geminga_ack_latency_"
_NAMES: Final = (
    *(f"{_LATENCY}le_{name}" for name in LATENCIES), f"{_LATENCY}overflow", f"{_LATENCY}count",
    f"{_LATENCY}sum", *(f"{_SIZE}le_{name}" for name in SIZES), f"{_SIZE}le_overflow", f"{_SIZE}count",
    f"{_SIZE}sum",
)  # fmt: skip
_SIZE_AT: Final = len(LATENCIES) + 1
"""Index of the first count by size, behind those by latency."""
_ACK_NAMES: Final = (
    *(f"{_ACK}le_{name}" for name in ACK_LATENCIES), f"{_ACK}overflow", f"{_ACK}count", f"{_ACK}sum"
)  # fmt: skip
_ACK_AT: Final = _SIZE_AT + len(SIZES) + 1
_COUNTS: Final = _ACK_AT + len(ACK_LATENCIES) + 1
WINDOW_SECONDS: Final = 60.0


class TopicHistograms:
    """Counts of this minute and of the last whole one, as Apache Pulsar's."""

    __slots__ = ("_ack_seconds", "_bytes", "_counts", "_end", "_last", "_seconds")

    def __init__(self, now: float) -> None:
        self._last: tuple[array[int], int, float, float] | None = None
        self._begin(now + WINDOW_SECONDS)

    def _begin(self, end: float) -> None:
        self._end = end
        self._counts = array("I", bytes(_COUNTS * 4))
        self._bytes = 0
        self._seconds = self._ack_seconds = 0.0

    def _turn(self, now: float) -> None:
        end = self._end + WINDOW_SECONDS
        sums = self._bytes, self._seconds, self._ack_seconds
        self._last = (self._counts, *sums) if now < end else None
        self._begin(end if now < end else now + WINDOW_SECONDS)

    def received(self, now: float, size: int) -> None:
        """Count an entry that is passed to the store."""
        if now >= self._end:
            self._turn(now)
        self._counts[_SIZE_AT + bisect_left(_SIZE_BOUNDS, size)] += 1
        self._bytes += size

    def received_run(self, now: float, sizes: Sequence[int], total: int) -> None:
        """Count entries that are passed to the store; mostly all of a run are in one bucket."""
        if now >= self._end:
            self._turn(now)
        low, high = bisect_left(_SIZE_BOUNDS, min(sizes)), bisect_left(_SIZE_BOUNDS, max(sizes))
        if low == high:
            self._counts[_SIZE_AT + low] += len(sizes)
        else:
            for size in sizes:
                self._counts[_SIZE_AT + bisect_left(_SIZE_BOUNDS, size)] += 1
        self._bytes += total

    def stored(self, seconds: float, count: int) -> None:
        """Count entries that became durable."""
        self._counts[bisect_left(_LATENCY_BOUNDS, seconds)] += count
        self._seconds += seconds * count

    def acknowledged(self, now: float, seconds: float) -> None:
        """Count a message that was acknowledged ``seconds`` after it was published."""
        if now >= self._end:
            self._turn(now)
        self._counts[_ACK_AT + bisect_left(_ACK_BOUNDS, seconds)] += 1
        self._ack_seconds += seconds

    def last_minute(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield the metrics of the last whole minute: a bucket does not count those below it.

        Yields those of entries, which are Apache Pulsar's, for a topic with new entries, and those of
        acknowledgements for one with acknowledged messages.
        """
        if now >= self._end:
            self._turn(now)
        if self._last is None:
            return
        counts, size, seconds, ack_seconds = self._last
        latencies, sizes, acks = counts[:_SIZE_AT], counts[_SIZE_AT:_ACK_AT], counts[_ACK_AT:]
        if any(latencies) or any(sizes):
            values = (*latencies, sum(latencies), seconds * 1e6, *sizes, sum(sizes), size)
            yield from zip(_NAMES, values, strict=True)
            yield "pulsar_storage_write_rate", sum(latencies) / WINDOW_SECONDS
        if any(acks):
            yield from zip(_ACK_NAMES, (*acks, sum(acks), ack_seconds), strict=True)
