"""Where Spark finds ``format("pulsar_stats")`` by itself: see `pyspark_pulsar`."""

from __future__ import annotations

try:
    from geminga.spark.health import SubscriptionStatsSource as DefaultSource
except ImportError:  # `pyspark_pulsar` tells why
    pass

__all__ = ("DefaultSource",)
