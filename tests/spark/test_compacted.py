from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructType
from scripted_cluster import ONE, Place, ScriptedCluster, options

from geminga.errors import InvalidConfiguration
from geminga.spark.offsets import EARLIEST, Offset
from geminga.spark.options import read_options
from geminga.spark.schema import ArrowBatchConverter
from geminga.spark.source.admission import BatchLimits
from geminga.spark.source.data_loss import DataLossError
from geminga.spark.source.planning import Planner
from geminga.spark.source.ranges import Range
from geminga.spark.source.reading import read_range

SHAPER = ArrowBatchConverter(StructType().add("value", BinaryType()))


def cluster_of(entries: int, left: set[int] | None = None, horizon: int = -1) -> ScriptedCluster:
    """One ledger of entries with a message each; compaction has left some up to the horizon."""
    cluster = ScriptedCluster()
    cluster.publish(ONE, 5, [[b"%d" % e] for e in range(entries)])
    if left is not None:
        compact(cluster, left, horizon)
    return cluster


def compact(cluster: ScriptedCluster, left: set[int], horizon: int) -> None:
    places: set[Place] = {(5, entry) for entry in left}
    cluster.compacted[ONE] = (places, (5, horizon))


def read(cluster: ScriptedCluster, part: Range) -> list[int]:
    batches = list(read_range(cluster, options(read_compacted=True), part, SHAPER))
    assert cluster.opened == cluster.closed
    return [int(value) for batch in batches for value in batch.column(0).to_pylist()]


def ranges(cluster: ScriptedCluster, **given: Any) -> list[Range]:
    planner = Planner(cluster, options(read_compacted=True, **given), is_batch=True)
    start = planner.starting("earliest")
    return planner.ranges(start, planner.ending(start))


def test_a_batch_query_reads_the_compacted_view_in_one_task():
    cluster = cluster_of(40, {3, 11, 20}, 29)
    (part,) = ranges(cluster, max_entries_per_split=4)
    assert (part.start, part.end, part.compacted, part.goes_on) == (EARLIEST, Offset(5, 39), True, True)
    assert read(cluster, part) == [3, 11, 20, *range(30, 40)]


def test_an_end_removed_by_compaction_is_no_loss():
    cluster = cluster_of(10, {1, 2}, 9)
    (part,) = ranges(cluster)
    assert read(cluster, part) == [1, 2]


def test_trimmed_ledgers_in_the_compacted_view_are_no_loss():
    """Their own entries are trimmed: that one of them follows another is no loss."""
    cluster = ScriptedCluster()
    for ledger in (5, 7, 8, 9):
        cluster.publish(ONE, ledger, [[b"%d%d" % (ledger, entry)] for entry in range(9)])
    cluster.compacted[ONE] = ({(5, 2), (7, 8), (8, 1)}, (8, 8))
    cluster.trimmed[ONE] = (8, 8)
    (part,) = ranges(cluster)
    assert read(cluster, part) == [52, 78, 81, *range(90, 99)]


def test_an_empty_compacted_view_has_no_rows():
    (part,) = ranges(cluster_of(10, set(), 9))
    assert read(cluster_of(10, set(), 9), part) == []


def test_newer_messages_of_compacted_keys_are_read():
    """Without the messages after the planned end the keys of 7 to 9 would have no message at all."""
    cluster = cluster_of(10, {1, 2}, 4)
    (part,) = ranges(cluster)
    cluster.publish(ONE, 5, [[b"10"], [b"11"], [b"12"]])
    compact(cluster, {1, 5, 6, 10, 11, 12}, 12)
    assert read(cluster, part) == [1, 5, 6, 10, 11, 12]
    # Messages compacted away there during the read are read, too.
    compact(cluster, {1, 5, 6, 12}, 12)
    assert read(cluster, part) == [1, 5, 6, 10, 11, 12]


def test_a_topic_with_only_compacted_messages_is_read():
    cluster = cluster_of(10, {1, 8}, 9)
    cluster.trimmed[ONE] = (5, 9)
    (part,) = ranges(cluster)
    assert part.end == Offset(5, 8)
    assert read(cluster, part) == [1, 8]


def test_a_truncated_topic_is_a_loss():
    cluster = cluster_of(10, {1, 2}, 9)
    (part,) = ranges(cluster)
    for entry in range(5, 10):
        del cluster.topics[ONE][5, entry]
    with pytest.raises(DataLossError, match=r"ends at 5:4, before 5:9"):
        read(cluster, part)


def test_a_stream_reads_the_compacted_view_in_one_micro_batch_and_continues_with_the_topic():
    cluster = cluster_of(30, {3, 11}, 19)
    planner = Planner(cluster, options(read_compacted=True, max_rows_per_trigger=2))
    latest = planner.latest([ONE])
    end = planner.limited({ONE: EARLIEST}, latest, BatchLimits(rows=2))
    assert end == {ONE: Offset(5, 29)}
    (part,) = planner.ranges({ONE: EARLIEST}, end)
    assert part.compacted
    assert not part.goes_on
    cluster.publish(ONE, 5, [[b"%d" % e] for e in range(30, 40)])
    assert read(cluster, part) == [3, 11, *range(20, 30)]
    later = planner.limited(end, planner.latest([ONE]), BatchLimits(rows=2))
    assert later == {ONE: Offset(5, 31)}
    (part,) = planner.ranges(end, later)
    assert not part.compacted
    assert read(cluster, part) == [30, 31]


@pytest.mark.parametrize(
    "given",
    [
        {"endingOffsets": '{"t": {"-1": "5:1"}}'},
        {"endingTime": "1000000000005"},
        {"startingTime": "1000000000005"},
    ],
)
def test_times_and_ending_offsets_are_refused_with_read_compacted(given):
    base = {"service.url": "pulsar://h", "topic": "t", "readCompacted": "true"}
    with pytest.raises(InvalidConfiguration, match="readCompacted"):
        read_options({**base, **given})
