"""Producers of a function's results and state: how they are opened, and what they accept."""

from typing import Any

from geminga.asyncio import Client, CompressionType
from geminga.errors import AuthorizationError, IncompatibleSchema

METADATA_BYTES = 10_240
"""Part of the maximum message size that brokers reserve for metadata."""
REFUSED = (AuthorizationError, IncompatibleSchema)
"""Errors after which an open producer reconnects, as Java's do, but that shall end a function."""


def failure_of(producer: Any) -> Exception | None:
    """Return the error that has ended a producer permanently, for example of a terminated topic. A new
    producer is then opened, or the error ends the function."""
    return next((each.failure for each in _partitions(producer) if each.failure is not None), None)


async def open_producer(
    client: Client, topic: str, *arguments: Any, stops_at_failure: bool = False, **options: Any
) -> Any:
    """Open a producer of results, which ends if the function loses its permission to publish. For
    ``stops_at_failure`` see `geminga.producer.partition.PartitionProducer`."""
    producer = await client.create_producer(topic, *arguments, **options)
    for partition in _partitions(producer):
        partition.gives_up = REFUSED
        partition.stops_at_failure = stops_at_failure
    return producer


def producer_arguments(settings: Any, compression: Any = None) -> dict[str, Any]:
    """Return the arguments of producers of results. Sends have no time limit: waiting for the broker is
    better than redelivery of the input."""
    name = {"ZLIB": "ZLib"}.get(settings.compression, settings.compression)
    return {
        "send_timeout_millis": 0,
        "batching_enabled": True,
        "batching_max_publish_delay_ms": settings.batching_max_publish_delay_ms,
        "max_pending_messages": max(1000, settings.max_pending),
        "block_if_queue_full": True,
        "compression_type": compression if compression is not None else getattr(CompressionType, name),
        "properties": {
            "application": "pulsar-function", "id": settings.full_name,
            "instance_id": str(settings.instance_id),
        },
    }  # fmt: skip


def payload_bytes_max(producer: Any) -> int:
    """Return the size of the largest payload that every partition of the producer's topic accepts."""
    return int(min(partition.max_message_size for partition in _partitions(producer))) - METADATA_BYTES


def resent_operations(producer: Any) -> int:
    """Return how many batches and messages were sent again after a lost connection: the topic may have them
    twice."""
    return sum(partition.counters.resent_operations for partition in _partitions(producer))


def close_batches_soon(producer: Any) -> None:
    """Send the open batches without waiting for their delay."""
    producer.publisher.close_batches_soon()


def _partitions(producer: Any) -> Any:
    return producer.publisher.state.partitions
