"""Where Spark finds ``format("pulsar_replay")`` by itself: see `pyspark_pulsar`."""

from __future__ import annotations

try:
    from geminga.spark.replaying import LakeReplaySource as DefaultSource
except ImportError:  # `pyspark_pulsar` tells why
    pass

__all__ = ("DefaultSource",)
