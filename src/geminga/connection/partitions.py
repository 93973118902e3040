"""How many partitions a topic has, and the names of its partitions."""

from __future__ import annotations

from geminga.errors import ProtocolError
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

PARTITIONS_MAX = 1_000_000
"""A bound on what a broker may announce, so that a wrong answer cannot use up the memory."""


def partition_count(command: pb.BaseCommand) -> int:
    """The count in a PARTITIONED_METADATA_RESPONSE that reports no error; 0: not partitioned.

    Raises `ProtocolError` for a count beyond `PARTITIONS_MAX`.
    """
    return believed_count(command.partitionMetadataResponse.partitions)


def believed_count(count: int) -> int:
    """``count`` itself. Raises `ProtocolError` beyond `PARTITIONS_MAX`."""
    if count > PARTITIONS_MAX:
        raise ProtocolError(f"the broker announces {count} partitions; at most {PARTITIONS_MAX} are believed")
    return int(count)


def partition_names(topic: str, count: int) -> list[str]:
    """The topics to connect to: the topic itself, or its ``count`` partitions in order."""
    name = TopicName.parse(topic)
    if count == 0:
        return [str(name)]
    return [str(name.partition_name(index)) for index in range(count)]
