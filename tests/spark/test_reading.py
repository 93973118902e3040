from typing import Any

import pytest
from entries import single_entry
from pyspark.sql.types import BinaryType, StructType
from scripted_cluster import ONE, TOPIC, ScriptedCluster, ScriptedSource, entry_bytes, options

from geminga.errors import CorruptPayload, CryptoError, Timeout
from geminga.spark.offsets import EARLIEST, WHOLE_ENTRY, Offset
from geminga.spark.schema import ArrowBatchConverter
from geminga.spark.source.data_loss import DataLossError
from geminga.spark.source.ranges import Range
from geminga.spark.source.reading import read_range
from geminga.wire.metadata import RawEntry
from geminga.wire.proto import pulsar_wire_pb2 as pb

SHAPER = ArrowBatchConverter(StructType().add("value", BinaryType()))


def cluster_of(entries: int, rows: int = 4, ledger: int = 5) -> ScriptedCluster:
    cluster = ScriptedCluster()
    cluster.publish(ONE, ledger, [[b"%d.%d" % (e, r) for r in range(rows)] for e in range(entries)])
    return cluster


def read(cluster: ScriptedCluster, start: Offset, end: Offset, **given: Any) -> list[bytes]:
    batches = list(read_range(cluster, options(**given), Range(ONE, start, end), SHAPER))
    assert all(batch.schema.equals(SHAPER.schema) for batch in batches)
    assert cluster.opened == cluster.closed
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def expected(*entries: int, rows: int = 4) -> list[bytes]:
    return [b"%d.%d" % (entry, row) for entry in entries for row in range(rows)]


def test_ranges_exclude_their_start_and_include_their_end():
    cluster = cluster_of(30)
    assert read(cluster, EARLIEST, Offset(5, 29)) == expected(*range(30))
    assert read(cluster, Offset(5, -1), Offset(5, 2)) == expected(0, 1, 2)
    assert read(cluster, Offset(5, 3), Offset(5, 5)) == expected(4, 5)


def test_ranges_may_end_inside_batches():
    cluster = cluster_of(5)
    assert read(cluster, Offset(5, 1, 1), Offset(5, 3, 0)) == [b"1.2", b"1.3", *expected(2), b"3.0"]
    assert read(cluster, Offset(5, 1, 1), Offset(5, 1, 2)) == [b"1.2"]
    assert read(cluster, Offset(5, 1, 3), Offset(5, 2, WHOLE_ENTRY)) == expected(2)


def test_ranges_may_end_between_ledgers():
    cluster = cluster_of(3)
    cluster.publish(ONE, 9, [[b"later"]])
    assert read(cluster, Offset(5, 0), Offset(9, -1)) == expected(1, 2)
    assert read(cluster, Offset(5, 1), Offset(9, 0)) == [*expected(2), b"later"]


def test_large_ranges_are_returned_in_several_batches():
    cluster = cluster_of(40, rows=1000)
    part = Range(ONE, EARLIEST, Offset(5, 39))
    sizes = [batch.num_rows for batch in read_range(cluster, options(), part, SHAPER)]
    assert sum(sizes) == 40_000
    assert sizes == [20_000, 20_000]


@pytest.mark.parametrize(
    ("start", "gone"),
    [(Offset(5, 2), (5, 3)), (Offset(5, -1), (5, 0)), (Offset(5, 1, 2), (5, 1))],
    ids=["next trimmed", "ledger's first entry trimmed", "start of a batch trimmed"],
)
def test_messages_deleted_after_the_start_are_a_loss(start, gone):
    cluster = cluster_of(6)
    cluster.topics[ONE] = {place: e for place, e in cluster.topics[ONE].items() if place > gone}
    with pytest.raises(DataLossError, match=f"the entry {gone[0]}:{gone[1]} of {TOPIC} is gone") as caught:
        read(cluster, start, Offset(5, 5))
    assert "failOnDataLoss=false" in str(caught.value)
    assert f"while reading {TOPIC} after {start} up to 5:5" in caught.value.__notes__
    rest = [place[1] for place in sorted(cluster.topics[ONE])]
    assert read(cluster, start, Offset(5, 5), fail_on_data_loss=False) == expected(*rest)


def test_messages_deleted_before_the_start_are_no_loss():
    cluster = cluster_of(6)
    cluster.publish(ONE, 9, [[b"later"]])
    for kept in (3, 4, 5):
        cluster.topics[ONE] = {place: e for place, e in cluster.topics[ONE].items() if place >= (5, kept)}
        assert read(cluster, Offset(5, kept - 1), Offset(9, 0)) == [*expected(*range(kept, 6)), b"later"]
    # The start is the last entry of its ledger, and still there to show it.
    assert read(cluster, Offset(5, 5), Offset(9, 0)) == [b"later"]
    del cluster.topics[ONE][5, 5]
    with pytest.raises(DataLossError, match=f"the entry 5:6 of {TOPIC} is gone, the first one left is 9:0"):
        read(cluster, Offset(5, 5), Offset(9, 0))


@pytest.mark.parametrize("end", [Offset(5, 19), Offset(9, -1), Offset(9, 0)], ids=str)
def test_a_ledger_deleted_while_it_is_read_is_a_loss(end, monkeypatch):
    """A ledger is deleted after some of its entries were read: the next entry is of a later ledger."""
    taken = ScriptedSource.read

    def read_and_trim(source: ScriptedSource, max_entries: int, timeout: float) -> list[RawEntry]:
        found = taken(source, max_entries, timeout)
        cluster.trimmed[ONE] = (5, 19)
        return found

    cluster = cluster_of(20)
    cluster.publish(ONE, 9, [[b"later"]])
    monkeypatch.setattr(ScriptedSource, "read", read_and_trim)
    with pytest.raises(DataLossError, match=f"the entry 5:7 of {TOPIC} is gone, the first one left is 9:0"):
        read(cluster, Offset(5, -1), end)
    cluster.trimmed.clear()
    later = [b"later"] if end == Offset(9, 0) else []
    assert read(cluster, Offset(5, -1), end, fail_on_data_loss=False) == [*expected(*range(7)), *later]


def test_only_the_planned_next_message_is_trusted():
    """Ledger 5 was done and is gone. That 7 came next the subscription said; what is moved after that, by a
    time to live for one, takes more with it."""
    cluster = ScriptedCluster()
    cluster.publish(ONE, 7, [[b"a"], [b"b"]])
    cluster.publish(ONE, 9, [[b"c"]])
    part = Range(ONE, Offset(5, 5), Offset(9, 0), next_kept=(7, 0))

    def values(**given: Any) -> list[bytes]:
        batches = read_range(cluster, options(**given), part, SHAPER)
        return [value for batch in batches for value in batch.column(0).to_pylist()]

    assert values() == [b"a", b"b", b"c"]
    for gone, left in (((7, 0), [b"b", b"c"]), ((7, 1), [b"c"])):
        cluster.trimmed[ONE] = gone
        with pytest.raises(DataLossError, match="the entry 5:6 of"):
            values()
        assert values(fail_on_data_loss=False) == left


def test_the_end_of_a_ledger_is_requested_once():
    cluster = cluster_of(20)
    cluster.publish(ONE, 9, [[b"later"]])
    assert read(cluster, Offset(5, -1), Offset(9, -1)) == expected(*range(20))
    assert cluster.questions == 1
    assert read(cluster, Offset(5, -1), Offset(5, 19)) == expected(*range(20))
    assert cluster.questions == 1


def test_a_truncated_topic_is_a_loss():
    cluster = cluster_of(3)
    with pytest.raises(DataLossError, match="ends at 5:2, before 5:8"):
        read(cluster, Offset(5, 0), Offset(5, 8))
    assert read(cluster, Offset(5, 0), Offset(5, 8), fail_on_data_loss=False) == expected(1, 2)
    cluster.topics[ONE] = {}
    with pytest.raises(DataLossError, match="ends at -1:-1"):
        read(cluster, EARLIEST, Offset(5, 8))


def test_messages_that_do_not_arrive_are_a_timeout(monkeypatch):
    cluster = cluster_of(3)
    monkeypatch.setattr("scripted_cluster.ScriptedSource.read", lambda self, max_entries, timeout: [])
    with pytest.raises(Timeout, match=f"nothing arrived for 20 ms while reading {TOPIC}"):
        read(cluster, EARLIEST, Offset(5, 2))


def chunk(payload: bytes, number: int, count: int, uuid: str) -> bytes:
    fields = {"uuid": uuid, "chunk_id": number, "num_chunks_from_msg": count, "total_chunk_msg_size": 99}
    return single_entry(payload, **fields)


def test_a_chunked_message_belongs_to_the_range_of_its_last_chunk():
    cluster = cluster_of(1)
    entries = cluster.topics[ONE]
    for number in range(4):
        entries[5, 1 + 2 * number] = chunk(b"%d" % number, number, 4, "a")
        entries[5, 2 + 2 * number] = chunk(b"%d" % number, number, 4, "b")
    seen = []
    for cut in range(-1, 9):
        first, second = read(cluster, EARLIEST, Offset(5, cut)), read(cluster, Offset(5, cut), Offset(5, 8))
        assert sorted(first + second) == sorted([*expected(0), b"0123", b"0123"])
        seen.append(len(second))
    assert seen == [6, 2, 2, 2, 2, 2, 2, 2, 1, 0]


def test_chunks_are_found_in_earlier_ledgers():
    """Chunks are found across any number of ledgers in between, also deleted ones."""
    for others in (0, 1, 40):
        cluster = ScriptedCluster({ONE: {}})
        entries = cluster.topics[ONE]
        for number in range(3):
            entries[3, 5 + number] = chunk(b"%d" % number, number, 5, "a")
        for ledger in range(10, 10 + others):
            entries[ledger, 0] = entry_bytes([b"x"])
        entries[90, 0] = chunk(b"3", 3, 5, "a")
        entries[95, 0] = chunk(b"4", 4, 5, "a")
        between = [b"x"] * others
        assert read(cluster, EARLIEST, Offset(95, 0)) == [*between, b"01234"]
        assert read(cluster, Offset(3, 7), Offset(95, 0)) == [*between, b"01234"]
        assert read(cluster, Offset(95, -1), Offset(95, 0)) == [b"01234"]
        del entries[3, 5], entries[3, 6]
        with pytest.raises(
            DataLossError, match=rf"the chunks at {TOPIC}:95:0 belong to messages whose first"
        ):
            read(cluster, Offset(90, 0), Offset(95, 0))
        assert read(cluster, Offset(90, 0), Offset(95, 0), fail_on_data_loss=False) == []


def test_any_number_of_interleaved_chunked_messages_is_read():
    """Official consumers drop the oldest of more than ten; a reader of a range drops none."""
    cluster = ScriptedCluster({ONE: {}})
    for number in range(2):
        for message in range(50):
            cluster.topics[ONE][5, 50 * number + message] = chunk(b"%d" % number, number, 2, f"m{message}")
    assert read(cluster, EARLIEST, Offset(5, 99)) == [b"01"] * 50


def test_chunks_without_their_first_one_are_left_out():
    cluster = cluster_of(1)
    cluster.topics[ONE][5, 1] = chunk(b"1", 1, 2, "a")
    assert read(cluster, EARLIEST, Offset(5, 1)) == expected(0)


def test_damaged_and_encrypted_entries_are_named():
    cluster = cluster_of(3)
    damaged = bytearray(cluster.topics[ONE][5, 1])
    damaged[-1] ^= 1
    cluster.topics[ONE][5, 1] = bytes(damaged)
    with pytest.raises(CorruptPayload, match=f"{TOPIC}:5:1: checksum"):
        read(cluster, EARLIEST, Offset(5, 2))
    cluster.topics[ONE][5, 1] = single_entry(b"??", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    with pytest.raises(CryptoError, match=f"{TOPIC}:5:1: the entry is encrypted"):
        read(cluster, EARLIEST, Offset(5, 2))


@pytest.mark.parametrize("gone", [(5, 3), (5, 4), (5, 9)], ids=["first", "between", "last"])
def test_entries_lost_to_damage_are_a_loss(gone, caplog):
    """Retention removes whole ledgers: with others of their ledger there, nothing but damage takes entries.
    Apache Pulsar's broker keeps some to itself, which are no messages."""
    cluster = cluster_of(12)
    cluster.publish(ONE, 9, [[b"later"]])
    places = [place for place in cluster.topics[ONE] if place[0] == 5 and place >= gone]
    for place in places[: 1 if gone[1] < 9 else None]:
        del cluster.topics[ONE][place]
    end = Offset(5, 11)
    with pytest.raises(DataLossError, match=rf"the entry 5:{gone[1]} of {TOPIC} is gone.* store was damaged"):
        read(cluster, Offset(5, 2), end)
    rest = [place[1] for place in sorted(cluster.topics[ONE]) if (5, 2) < place < (9, 0)]
    assert read(cluster, Offset(5, 2), end, fail_on_data_loss=False) == expected(*rest)
    cluster.gives_all = False
    with caplog.at_level("WARNING", "geminga.spark"):
        assert read(cluster, Offset(5, 2), end) == expected(*rest)
    assert "withholds entries of aborted transactions" in caplog.text


def test_chunked_messages_begun_before_the_partition_are_no_loss():
    """The rest of a chunked message is no loss in any task, as long as the partition still begins where it
    did at the start of the query."""
    cluster = cluster_of(1, ledger=3)
    for number in range(2, 6):
        cluster.topics[ONE][5, number - 2] = chunk(b"%d" % number, number, 6, "a")
    del cluster.topics[ONE][3, 0]
    tasks = [
        Range(ONE, start, end, beginning=Offset(5, -1))
        for start, end in ((Offset(5, -1), Offset(5, 1)), (Offset(5, 1), Offset(5, 3)))
    ]
    for part in tasks:
        assert [batch.num_rows for batch in read_range(cluster, options(), part, SHAPER)] == [0]
    cluster.trimmed[ONE] = (5, 0)
    with pytest.raises(DataLossError, match="whose first chunks are gone"):
        list(read_range(cluster, options(), tasks[1], SHAPER))
