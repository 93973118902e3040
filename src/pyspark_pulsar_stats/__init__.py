"""Data source ``pulsar_stats`` for Spark's automatic registration: see `pyspark_pulsar`."""

try:
    from geminga.spark.health import SubscriptionStatsSource as DefaultSource
except ImportError:  # `pyspark_pulsar` warns
    pass

__all__ = ("DefaultSource",)
