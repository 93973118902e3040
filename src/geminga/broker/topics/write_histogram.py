"""Histograms of a topic's stored entries: time until they are durable, and size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from geminga.broker.rates import Rates

LATENCIES: Final = {"0_5": 0.0005, "1": 0.001, "5": 0.005, "10": 0.01, "20": 0.02, "50": 0.05, "100": 0.1,
                    "200": 0.2, "1000": 1.0}  # fmt: skip
"""Upper bounds of Apache Pulsar's buckets in seconds, by their names."""
SIZES: Final = {"128": 128, "512": 512, "1_kb": 1024, "2_kb": 2048, "4_kb": 4096, "16_kb": 16384,
                "100_kb": 102_400, "1_mb": 1_048_576}  # fmt: skip
"""Upper bounds in bytes."""
_LATENCY_BOUNDS: Final = tuple(LATENCIES.values())
_SIZE_BOUNDS: Final = tuple(SIZES.values())
_LATENCY: Final = "pulsar_storage_write_latency_"
_SIZE: Final = "pulsar_entry_size_"
_NAMES: Final = (
    *(f"{_LATENCY}le_{name}" for name in LATENCIES), f"{_LATENCY}overflow", f"{_LATENCY}count",
    f"{_LATENCY}sum", *(f"{_SIZE}le_{name}" for name in SIZES), f"{_SIZE}le_overflow", f"{_SIZE}count",
    f"{_SIZE}sum",
)  # fmt: skip
_MINUTE: Final = 60


class WriteHistogram:
    """Entries since the topic was loaded, by bucket."""

    __slots__ = ("_bytes", "_latencies", "_rates", "_seconds", "_sizes")

    def __init__(self, now: float) -> None:
        self._latencies = [0] * (len(LATENCIES) + 1)
        self._sizes = [0] * (len(SIZES) + 1)
        self._seconds = 0.0
        self._bytes = 0
        self._rates = Rates(now, len(_NAMES))

    def received(self, size: int) -> None:
        """Count an entry that is passed to the store."""
        self._sizes[bisect_left(_SIZE_BOUNDS, size)] += 1
        self._bytes += size

    def received_run(self, sizes: Sequence[int], total: int) -> None:
        """Count entries that are passed to the store; mostly all of a run are in one bucket."""
        low, high = bisect_left(_SIZE_BOUNDS, min(sizes)), bisect_left(_SIZE_BOUNDS, max(sizes))
        if low == high:
            self._sizes[low] += len(sizes)
        else:
            for size in sizes:
                self._sizes[bisect_left(_SIZE_BOUNDS, size)] += 1
        self._bytes += total

    def stored(self, seconds: float, count: int) -> None:
        """Count entries that became durable."""
        self._latencies[bisect_left(_LATENCY_BOUNDS, seconds)] += count
        self._seconds += seconds * count

    def per_minute(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield Apache Pulsar's metrics: entries of a minute in each bucket, not in smaller ones, too.

        Yields nothing for a topic without new entries.
        """
        latencies, sizes = self._latencies, self._sizes
        counts = (*latencies, sum(latencies), self._seconds * 1e6, *sizes, sum(sizes), self._bytes)
        rates = self._rates.read(now, *counts)
        if any(rates):
            yield from ((name, rate * _MINUTE) for name, rate in zip(_NAMES, rates, strict=True))
            yield "pulsar_storage_write_rate", rates[len(latencies)]
