import pytest

from geminga.connection.lookup import PARTITIONS_MAX, partition_count
from geminga.errors import ProtocolError
from geminga.wire.proto import pulsar_wire_pb2 as pb


def answer(count):
    command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    command.partitionMetadataResponse.partitions = count
    return command


def test_partition_counts_are_checked():
    assert partition_count(answer(0)) == 0
    assert partition_count(answer(7)) == 7
    with pytest.raises(ProtocolError, match="4294967295"):
        partition_count(answer(0xFFFFFFFF))
    assert partition_count(answer(PARTITIONS_MAX)) == PARTITIONS_MAX
