"""Stock settings: what a producer does when nobody has chosen anything, pinned by client and version.

The defaults differ more than their names suggest. Java's client bounds by memory since 2.10 and not by
``maxPendingMessages``, batches for one millisecond and stays ten of them on a partition; ``pulsar-client``
for Python does not batch at all. Where the numbers come from: ``ProducerConfigurationData`` and
``ClientConfigurationData`` of the Java client 4.0.4, ``Client.create_producer`` of ``pulsar-client`` 3.13,
both as in docs/protocol/algorithms.md section 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from geminga.config import check_choice
from geminga.producer.settings import CompressionType, HashingScheme, ProducerSettings
from geminga.tuning.publish_settings import PublishSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Stock:
    """One client's settings as they come, and how it walks over the partitions."""

    client: str
    version: str
    settings: PublishSettings = field(repr=False)
    moves_on_when_full: bool
    """Round robin goes on to the next partition when a batch is full; False: by the clock alone."""
    steps_over_blocked: bool
    """Whether messages without a key go round partitions that take nothing."""

    @property
    def title(self) -> str:
        """For tables: ``Java client 4.0.4``."""
        return f"{self.client} {self.version}".strip()

    def compressed(self, compression: CompressionType) -> PublishSettings:
        """The stock settings with a codec, the one thing that most people do choose."""
        return self.settings.changed(compression_type=compression)


JAVA = Stock(
    client="Java client",
    version="4.0.4",
    moves_on_when_full=False,
    steps_over_blocked=False,
    settings=PublishSettings(
        memory_limit_bytes=64 << 20,
        producer=ProducerSettings(
            max_pending_messages=0,
            max_pending_messages_across_partitions=0,
            batching_enabled=True,
            batching_max_messages=1000,
            batching_max_allowed_size_in_bytes=128 << 10,
            batching_max_publish_delay_seconds=0.001,
            batching_partition_switch_frequency=10,
            hashing_scheme=HashingScheme.JavaStringHash,
            step_over_blocked_partitions=False,
        ),
    ),
)

PULSAR_CLIENT = Stock(
    client="pulsar-client",
    version="3.13",
    moves_on_when_full=True,
    steps_over_blocked=False,
    settings=PublishSettings(
        memory_limit_bytes=0,
        producer=ProducerSettings(
            max_pending_messages=1000,
            max_pending_messages_across_partitions=50_000,
            batching_enabled=False,
            step_over_blocked_partitions=False,
        ),
    ),
)

GEMINGA = Stock(
    client="Geminga",
    version="",
    moves_on_when_full=True,
    steps_over_blocked=True,
    settings=PublishSettings(memory_limit_bytes=0, producer=ProducerSettings()),
)

STOCK = {"java": JAVA, "pulsar-client": PULSAR_CLIENT, "geminga": GEMINGA}
"""By the name that the command line takes."""


def stock(name: str) -> Stock:
    """One of `STOCK`. Raises `InvalidConfiguration` for another name."""
    return STOCK[check_choice("stock", name, tuple(STOCK))]
