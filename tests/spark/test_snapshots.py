"""A snapshot of topics: offloaded ledgers by Spark's own Parquet source, the rest by ours, all of it once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from offloading import offload_all
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StructType

import geminga
from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.client.admin import admin, topic_path
from geminga.client.options.crypto import CryptoKeyReader
from geminga.errors import InvalidConfiguration
from geminga.filesystems import hadoop_location
from geminga.ids import TopicName
from geminga.offload.manifest import OffloadedLedger
from geminga.spark.datasource import PulsarDataSource
from geminga.spark.offsets import EARLIEST, Offset
from geminga.spark.schema import COLUMNS
from geminga.spark.source.snapshots import _gaps, _is_whole, _runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from geminga.client.publish.producer import Producer

pytestmark = pytest.mark.usefixtures("offloading_here")

TOPIC = "persistent://public/default/a=b [x] ü%20*"
KEYS = Path(__file__).parent.parent / "vectors/keys"
ALL_COLUMNS = ",".join(COLUMNS)
REFUSED = (PySparkException, Py4JJavaError)
"""Errors of a failed query: PySpark converts some of Java's."""


# --- the cut ---
def ledger(number: int, offset: int, entries: int = 10, **changes: Any) -> OffloadedLedger:
    given = {
        "file": f"{number}", "file_bytes": 1, "crc32c": 1, "uuid": f"u{number}", "messages": entries,
        "closed": 0, "entry_bytes": 1, "publish": (1, 2), "event": None, "offloaded_ms": 1, "plain": True,
        **changes,
    }  # fmt: skip
    return OffloadedLedger(ledger=number, offset=offset, entries=entries, **given)


def cut(ledgers: list[OffloadedLedger], begin: Offset, end: Offset) -> tuple[list[list[int]], list[str]]:
    runs = _runs([each for each in ledgers if _is_whole(each, begin, end)])
    numbers = [[each.ledger for each in run] for run in runs]
    return numbers, [f"{before}..{behind}" for before, behind in _gaps(runs, begin, end)]


def test_only_whole_ledgers_are_read_as_files():
    three = [ledger(3, 0), ledger(5, 10), ledger(6, 20)]
    assert cut(three, Offset(3, -1), Offset(7, 4)) == ([[3, 5, 6]], ["6:9..7:4"])
    assert cut(three, Offset(3, 0), Offset(6, 9)) == ([[5, 6]], ["3:0..5:-1"])
    assert cut(three, Offset(2, 7), Offset(6, 8)) == ([[3, 5]], ["2:7..3:-1", "5:9..6:8"])
    assert cut(three, Offset(3, -1), Offset(6, 9, 2)) == ([[3, 5]], ["5:9..6:9:2"])
    assert cut(three, Offset(3, 0, 1), Offset(6, 9)) == ([[5, 6]], ["3:0:1..5:-1"])
    assert cut([], Offset(3, -1), Offset(7, 4)) == ([], ["3:-1..7:4"])
    assert cut(three, EARLIEST, Offset(2, 5)) == ([], ["-1:-1..2:5"])


@pytest.mark.parametrize(
    "odd", [{"plain": False}, {"event": (0, 1 << 62)}, {"event": (-(1 << 62), 0)}, {"publish": (0, 1 << 54)}]
)
def test_ledgers_with_incomplete_rows_are_read_from_the_broker(odd):
    three = [ledger(3, 0), ledger(5, 10, **odd), ledger(6, 20)]
    assert cut(three, Offset(3, -1), Offset(6, 9)) == ([[3], [6]], ["3:9..6:-1"])


def test_gaps_between_ledgers_are_read_from_the_broker():
    assert cut([ledger(3, 0), ledger(6, 11)], Offset(3, -1), Offset(6, 9)) == ([[3], [6]], ["3:9..6:-1"])


def test_a_partition_has_few_gaps_for_any_ledgers():
    odd = [ledger(n, 10 * n, plain=n % 2 == 1, messages=10 + (n % 7)) for n in range(1000)]
    runs, gaps = cut(odd, Offset(0, -1), Offset(1000, 3))
    assert len(runs) == 3
    assert len(gaps) == 4
    covered = sorted(
        [*(n for run in runs for n in run), *(number for gap in gaps for number in _between(gap))]
    )
    assert covered == list(range(1001))


def _between(gap: str) -> range:
    before, behind = (part.split(":") for part in gap.split(".."))
    first = int(before[0]) + (before[1] != "-1")
    return range(first, int(behind[0]) + (behind[1] != "-1"))


def test_locations_are_converted_to_hadoops_notation(tmp_path):
    assert hadoop_location(str(tmp_path)) == f"file:{tmp_path}"
    assert hadoop_location(f"file://{tmp_path}/a b") == f"file:{tmp_path}/a b"
    assert hadoop_location("s3://key:word@bucket/p?endpoint_override=h:9&scheme=http") == "s3a://bucket/p"
    assert hadoop_location("s3a://bucket") == "s3a://bucket"
    assert hadoop_location("abfss://box@account.dfs.core.windows.net/p") == (
        "abfss://box@account.dfs.core.windows.net/p"
    )
    assert hadoop_location("abfss://box:word@account.dfs.core.windows.net/p?x=y") == (
        "abfss://box@account.dfs.core.windows.net/p"
    )
    assert hadoop_location("hdfs:/p") == "hdfs:/p"
    assert hadoop_location("hdfs:///p") == "hdfs:///p"
    assert hadoop_location("hdfs://host:9000/p?replication=1") == "hdfs://host:9000/p"
    assert hadoop_location("gs://anonymous@bucket/p?scheme=http") == "gs://bucket/p"
    assert hadoop_location("sftp://me:word@host/p") == "sftp://me@host/p"


def test_first_offsets_are_refused_for_streams():
    options = {"service.url": "pulsar://nowhere", "topic": TOPIC, "firstoffsets": '{"t": {"-1": "1:0"}}'}
    with pytest.raises(InvalidConfiguration, match="firstOffsets is for batch queries"):
        PulsarDataSource(options).streamReader(StructType().add("value", BinaryType())).initialOffset()


# --- in Spark ---
@contextmanager
def broker_with(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with embedded(
        tmp_path / "store", offload_location=str(tmp_path / "{tier} [1]"), ledger_entries_max=7,
        offload_deletion_lag_seconds=0, max_message_size=20_000,
    ) as broker:  # fmt: skip
        yield broker


def options_of(broker: EmbeddedBroker, tmp_path: Path, **others: str) -> dict[str, str]:
    return {
        "service.url": broker.service_url, "topic": TOPIC, "columns": ALL_COLUMNS, "maxEntriesPerSplit": "9",
        "crypto.privateKeyPath": str(KEYS / "k1_private_pkcs1.pem"),
        "offloadLocation": str(tmp_path / "{tier} [1]"), **others,
    }  # fmt: skip


def publish(producer: Producer[bytes], first: int, count: int) -> None:
    for number in range(first, first + count):
        producer.send_async(
            None if number % 50 == 7 else b"%d" % number, None, properties={"n": str(number), "": "ü"},
            partition_key=f"k{number % 3}ß" if number % 2 else None, event_timestamp=number or None,
            ordering_key=f"o{number}" if number % 5 == 0 else None,
        )  # fmt: skip
        if number % 4 == 3:
            producer.flush()
    producer.flush()


def publish_offloaded(broker: EmbeddedBroker, count: int) -> None:
    with broker.client() as client:
        publish(client.create_producer(TOPIC, batching_enabled=False), 0, count)
    offload_all(broker, TOPIC)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """In the topics' order."""
    found = [tuple(row) for row in frame.collect()]
    place = [list(COLUMNS).index(name) for name in ("__topic", "__ledgerId", "__entryId", "__batchIndex")]
    return sorted(found, key=lambda row: [row[number] for number in place])


def plain_rows(spark: SparkSession, options: dict[str, str]) -> list[tuple[Any, ...]]:
    """All that the broker gives."""
    given = {name: value for name, value in options.items() if name != "offloadLocation"}
    return rows(spark.read.format("pulsar").options(**given).load())


def scans(frame: DataFrame) -> tuple[int, int]:
    """Return the number of scans of files, and of ours, in the plan."""
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    return plan.count("parquet"), plan.count("pulsar")


@pytest.mark.spark
def test_a_snapshot_has_every_message_once_in_all_columns(spark, tmp_path):
    with broker_with(tmp_path) as broker:
        client = broker.client()
        single = client.create_producer(TOPIC, batching_enabled=False)
        batched = client.create_producer(TOPIC)
        publish(single, 0, 30)
        publish(batched, 30, 60)
        offload_all(broker, TOPIC)
        publish(batched, 90, 10)  # the live tail
        options = options_of(broker, tmp_path)
        found = geminga.spark.snapshot(spark, options)
        assert found.files >= 3
        assert scans(found.frame) == (1, 1)
        expected = plain_rows(spark, options)
        assert len(expected) == 100
        assert rows(found.frame) == expected
        assert found.frame.schema == spark.read.format("pulsar").options(**options).load().schema

        # The frame stays the same when the topic grows; ``following`` is the offset after it.
        publish(batched, 100, 40)
        offload_all(broker, TOPIC)
        assert rows(found.frame) == expected
        rest = plain_rows(spark, {**options, "startingOffsets": found.following})
        assert rest == plain_rows(spark, options)[100:]
        assert len(rest) == 40

        # Bounds, by message and by time, and fewer columns in another order.
        ids = [(row[11], row[12]) for row in expected]
        first, last = ids[5], ids[-15]
        bounds = {
            "startingOffsets": json.dumps({TOPIC: {"-1": f"{first[0]}:{first[1]}"}}),
            "endingOffsets": json.dumps({TOPIC: {"-1": f"{last[0]}:{last[1]}"}}),
        }
        found = geminga.spark.snapshot(spark, {**options, **bounds})
        assert found.files >= 1
        assert rows(found.frame) == [row for row in expected if first <= (row[11], row[12]) <= last]
        few = geminga.spark.snapshot(spark, {**options, "columns": "__messageId,value", **bounds}).frame
        assert few.columns == ["__messageId", "value"]
        assert {tuple(row) for row in few.collect()} == {
            (row[3], row[0]) for row in expected if first <= (row[11], row[12]) <= last
        }
        counted = geminga.spark.snapshot(spark, {**options, "columns": "value"})
        assert counted.frame.count() == 140
        client.close()


@pytest.mark.spark
def test_messages_without_complete_rows_are_read_from_entries(spark, tmp_path):
    """Encrypted messages, chunks over several ledgers, keys of bytes, and a topic of several partitions."""
    topic = "persistent://public/default/parts"
    with broker_with(tmp_path) as broker:
        admin(broker.admin_url, "PUT", f"{topic_path(TopicName.parse(topic))}/partitions", 2)
        crypto = CryptoKeyReader(str(KEYS / "k1_public.pem"), str(KEYS / "k1_private_pkcs1.pem"))
        client = broker.client()
        for index in range(2):
            name = f"{topic}-partition-{index}"
            with client.create_producer(name, batching_enabled=False) as producer:
                publish(producer, 0, 21)
            if index == 0:
                with client.create_producer(name, encryption_key="k1", crypto_key_reader=crypto) as sealed:
                    publish(sealed, 100, 30)
                with client.create_producer(name, chunking_enabled=True) as chunked:
                    chunked.send(b"x" * 200_000)
            else:
                with client.create_producer(name, batching_enabled=False) as odd:
                    publish(odd, 300, 8)
            with client.create_producer(name) as producer:
                publish(producer, 200, 40)
            offload_all(broker, name)
        options = options_of(broker, tmp_path, topic=topic)
        found = geminga.spark.snapshot(spark, options)
        assert found.files >= 8
        files, ours = scans(found.frame)
        assert files == 1
        assert ours >= 2
        expected = plain_rows(spark, options)
        assert len(expected) == 21 * 2 + 30 + 1 + 8 + 80
        assert rows(found.frame) == expected
        one = geminga.spark.snapshot(spark, {**options, "topic": f"{topic}-partition-1"})
        assert rows(one.frame) == [row for row in expected if row[2].endswith("-1")]
        client.close()


@pytest.mark.spark
def test_a_flipped_bit_and_a_lost_file_fail_the_query(spark, tmp_path, caplog):
    with broker_with(tmp_path) as broker:
        publish_offloaded(broker, 30)
        taken = geminga.spark.snapshot(spark, options_of(broker, tmp_path, columns="value"))
        frame, files = taken.frame, taken.files
        expected = sorted(map(repr, frame.collect()))
        # By the newest one it is known whose they are.
        file = min((tmp_path / "{tier} [1]").rglob("*.parquet"))
        whole = file.read_bytes()
        refused = 0
        for at in range(24, 200, 8):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            try:
                found = sorted(map(repr, frame.collect()))
            except REFUSED:
                refused += 1
            else:
                assert found == expected, f"byte {at}"
        assert refused
        # Damaged files are left to `format("pulsar")`, which requests unreadable entries from the broker.
        for harm in (whole[:-40] + bytes([whole[-40] ^ 4]) + whole[-39:], whole[:-1], whole + b"x", None):
            if harm is None:
                file.unlink()
            else:
                file.write_bytes(harm)
            caplog.clear()
            found = geminga.spark.snapshot(spark, options_of(broker, tmp_path, columns="value"))
            assert found.files == files - 1
            assert f"{file.name} of {TOPIC}" in caplog.text
        spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
        try:
            with pytest.raises(REFUSED, match="FAILED_READ_FILE"):
                frame.collect()
        finally:
            spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@pytest.mark.spark
def test_a_location_that_spark_cannot_open_is_read_through_the_broker(spark, tmp_path, caplog):
    with broker_with(tmp_path) as broker:
        publish_offloaded(broker, 30)
        options = options_of(broker, tmp_path)
        for elsewhere in ("nosuch://bucket/tier", str(tmp_path / "nowhere")):
            caplog.clear()
            found = geminga.spark.snapshot(spark, options, files_location=elsewhere)
            assert found.files == 0
            assert "Set files_location" in caplog.text
            assert rows(found.frame) == plain_rows(spark, options)


@pytest.mark.spark
def test_many_files_are_listed_by_a_few_tasks(spark, tmp_path):
    with broker_with(tmp_path) as broker:
        publish_offloaded(broker, 7 * 40)
        tracker = spark.sparkContext.statusTracker()
        spark.sparkContext.setJobGroup("looking", "")
        found = geminga.spark.snapshot(spark, options_of(broker, tmp_path, columns="value"))
        stages = [
            stage
            for job in tracker.getJobIdsForGroup("looking")
            for stage in tracker.getJobInfo(job).stageIds
        ]
        assert found.files >= 36
        assert 0 < sum(tracker.getStageInfo(stage).numTasks for stage in stages) <= 32
        assert found.frame.count() == 7 * 40


@pytest.mark.spark
def test_topics_without_messages_or_files_give_frames(spark, tmp_path):
    with broker_with(tmp_path) as broker:
        options = options_of(broker, tmp_path)
        with broker.client() as client:
            client.create_producer(TOPIC).close()
            found = geminga.spark.snapshot(spark, options)
            assert found.frame.count() == 0
            assert found.frame.schema == spark.read.format("pulsar").options(**options).load().schema
            publish(client.create_producer(TOPIC), 0, 9)
        assert plain_rows(spark, {**options, "startingOffsets": found.following}) == plain_rows(
            spark, options
        )
        assert json.loads(found.following)["*"] == "earliest"  # partitions added from now on are new
        del options["offloadLocation"]
        found = geminga.spark.snapshot(spark, options)
        assert (found.files, found.frame.count()) == (0, 9)
        for wrong in ({"startingOffsets": "latest"}, {"readCompacted": "true"}):
            with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
                geminga.spark.snapshot(spark, {**options, **wrong})


@pytest.mark.spark
def test_messages_deleted_before_a_snapshot_is_read_are_a_loss(spark, tmp_path):
    with broker_with(tmp_path) as broker:
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        admin(broker.admin_url, "POST", "namespaces/public/default/retention", nothing)
        with broker.client() as client:
            publish(client.create_producer(TOPIC, batching_enabled=False), 0, 30)
        taken = geminga.spark.snapshot(spark, options_of(broker, tmp_path, columns="value"))
        assert taken.files == 0
        admin(broker.admin_url, "POST", f"{topic_path(TopicName.parse(TOPIC))}/trim")
        with pytest.raises(REFUSED, match="is gone, the first one left is"):
            taken.frame.count()


@dataclass
class Named:
    name: str


@dataclass
class Counted:
    name: str
    count: int


@pytest.mark.spark
def test_empty_topics_add_their_columns(spark):
    with embedded() as broker, broker.client() as client:
        client.create_producer("empty", schema=Counted).close()
        client.create_producer("one", schema=Named).send(Named("a"))
        options = {"service.url": broker.service_url, "topics": "empty,one", "valueSchema": "TOPIC"}
        frame = geminga.spark.snapshot(spark, options).frame
        assert frame.schema == spark.read.format("pulsar").options(**options).load().schema
        assert [(row["name"], row["count"]) for row in frame.collect()] == [("a", None)]
