"""Settings that the advisor chooses: a producer's settings and its client's memory limit.

`geminga.producer.settings.ProducerSettings` defines the options and their ranges; this module adds the
client's memory limit and converts both to arguments of `geminga.Client` and ``create_producer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from geminga.config import check_int, check_type
from geminga.producer.pending_limits import partition_share
from geminga.producer.settings import IN_MILLISECONDS, BatchingType, CompressionType, ProducerSettings

MEMORY_LIMIT_MAX_BYTES = 1 << 40

CHOSEN = (
    "batching_enabled",
    "batching_max_messages",
    "batching_max_allowed_size_in_bytes",
    "batching_max_publish_delay_seconds",
    "batching_partition_switch_frequency",
    "batching_type",
    "latency_budget_seconds",
    "compression_type",
    "compression_level",
    "max_pending_messages",
    "max_pending_messages_across_partitions",
    "block_if_queue_full",
    "send_timeout_seconds",
    "blocked_after_seconds",
    "step_over_blocked_partitions",
)
"""Fields of `ProducerSettings` that the advisor chooses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishSettings:
    """Settings of a producer and the memory limit of its client; a client has one producer."""

    producer: ProducerSettings
    memory_limit_bytes: int = 0
    """Limit of payload bytes without a receipt, over all producers of the client; 0: unlimited."""

    def __post_init__(self) -> None:
        check_type("producer", self.producer, ProducerSettings)
        check_int("memory_limit_bytes", self.memory_limit_bytes, 0, MEMORY_LIMIT_MAX_BYTES)

    def changed(self, *, memory_limit_bytes: int | None = None, **producer_fields: Any) -> PublishSettings:
        """Return a copy with other values, by the names of `ProducerSettings`."""
        return PublishSettings(
            producer=replace(self.producer, **producer_fields),
            memory_limit_bytes=self.memory_limit_bytes if memory_limit_bytes is None else memory_limit_bytes,
        )

    def permits_per_partition(self, partitions: int) -> int:
        """Return the most messages per partition without a receipt; 0: unlimited.

        ``max_pending_messages`` is reduced to the partition's share of the limit across partitions.
        """
        own, across = (
            self.producer.max_pending_messages,
            self.producer.max_pending_messages_across_partitions,
        )
        return partition_share(own, across, partitions)

    def client_arguments(self) -> dict[str, Any]:
        """Return keyword arguments of `geminga.Client`."""
        return {"memory_limit_bytes": self.memory_limit_bytes}

    def producer_arguments(self) -> dict[str, Any]:
        """Return keyword arguments of ``create_producer``."""
        found: dict[str, Any] = {}
        for name in CHOSEN:
            value = getattr(self.producer, name)
            if value is None:
                continue
            if name in IN_MILLISECONDS:
                milliseconds = value * 1000
                whole = name not in ("batching_max_publish_delay_seconds", "latency_budget_seconds")
                found[IN_MILLISECONDS[name]] = round(milliseconds) if whole else milliseconds
            else:
                found[name] = value
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, enumerations by name; the inverse of `from_dict`."""
        values = {name: getattr(self.producer, name) for name in CHOSEN}
        values["compression_type"] = self.producer.compression_type.name
        values["batching_type"] = self.producer.batching_type.name
        return {"memory_limit_bytes": self.memory_limit_bytes, **values}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> PublishSettings:
        """Return the settings that `to_dict` encoded."""
        given = {name: values[name] for name in CHOSEN if name in values}
        if "compression_type" in given:
            given["compression_type"] = CompressionType[given["compression_type"]]
        if "batching_type" in given:
            given["batching_type"] = BatchingType[given["batching_type"]]
        return PublishSettings(
            producer=ProducerSettings(**given), memory_limit_bytes=values.get("memory_limit_bytes", 0)
        )
