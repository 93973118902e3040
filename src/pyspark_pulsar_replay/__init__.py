"""Data source ``pulsar_replay`` for Spark's automatic registration: see `pyspark_pulsar`."""

try:
    from geminga.spark.replaying import LakeReplaySource as DefaultSource
except ImportError:  # `pyspark_pulsar` warns
    pass

__all__ = ("DefaultSource",)
