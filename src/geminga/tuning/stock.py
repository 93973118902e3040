"""Stock settings: the default settings of producers, by client and version.

The defaults differ more than their names suggest. Java's client limits memory since 2.10 instead of
``maxPendingMessages``, batches for one millisecond, and stays ten such delays on a partition;
``pulsar-client`` for Python does not batch at all. Sources: ``ProducerConfigurationData`` and
``ClientConfigurationData`` of the Java client 4.0.4, ``Client.create_producer`` of ``pulsar-client`` 3.13,
both as in docs/protocol/algorithms.md section 8.
"""

from dataclasses import dataclass, field

from geminga.config import check_choice
from geminga.producer.settings import CompressionType, HashingScheme, ProducerSettings
from geminga.tuning.publish_settings import PublishSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Stock:
    """A client's default settings, and its round robin over partitions."""

    client: str
    version: str
    settings: PublishSettings = field(repr=False)
    moves_on_when_full: bool
    """Whether round robin also moves to the next partition when a batch is full, not only by time."""

    @property
    def title(self) -> str:
        """Return the name for tables: ``Java client 4.0.4``."""
        return f"{self.client} {self.version}".strip()

    def compressed(self, compression: CompressionType) -> PublishSettings:
        """Return the stock settings with a codec, the option that most users do set."""
        return self.settings.changed(compression_type=compression)


JAVA = Stock(
    client="Java client",
    version="4.0.4",
    moves_on_when_full=False,
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
    settings=PublishSettings(memory_limit_bytes=0, producer=ProducerSettings()),
)

STOCK = {"java": JAVA, "pulsar-client": PULSAR_CLIENT, "geminga": GEMINGA}
"""Stock settings by the names on the command line."""


def stock(name: str) -> Stock:
    """Return one of `STOCK`. Raises `InvalidConfiguration` for another name."""
    return STOCK[check_choice("stock", name, tuple(STOCK))]
