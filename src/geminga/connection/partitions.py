"""Number and names of a topic's partitions."""

from __future__ import annotations

from geminga.errors import ProtocolError
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

PARTITIONS_MAX = 1_000_000
"""Limit on the number of partitions that a broker may announce, so that a wrong answer cannot exhaust the
memory."""


def partition_count(command: pb.BaseCommand) -> int:
    """Return the count in a PARTITIONED_METADATA_RESPONSE without an error; 0: not partitioned. Raises
    `ProtocolError` for a count above `PARTITIONS_MAX`."""
    return believed_count(command.partitionMetadataResponse.partitions)


def believed_count(count: int) -> int:
    """Return ``count``. Raises `ProtocolError` above `PARTITIONS_MAX`."""
    if count > PARTITIONS_MAX:
        raise ProtocolError(f"the broker announces {count} partitions; at most {PARTITIONS_MAX} are accepted")
    return int(count)


def partition_names(topic: str, count: int) -> list[str]:
    """Return the topics to connect to: the topic itself, or its ``count`` partitions in order."""
    name = TopicName.parse(topic)
    if count == 0:
        return [str(name)]
    return [str(name.partition_name(index)) for index in range(count)]
