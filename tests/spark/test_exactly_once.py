"""The exactly-once sink without Spark around it: every crash that the driver and the tasks can have."""

import contextlib
import itertools
import json
import pickle
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from doubles import calls_of, raising
from pyspark.sql.types import BinaryType, LongType, StringType, StructType
from withholding import WithholdingProxy

from geminga import Admin, Client, MessageId
from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.client.admin import admin
from geminga.client.admin.sync import PolicyAt
from geminga.client.options.crypto import CryptoKeyReader
from geminga.errors import (
    AdminAuthorizationError,
    InvalidConfiguration,
    MessageTooBig,
    NotAllowedError,
    PulsarException,
    StoreDamaged,
)
from geminga.spark.options import WriteOptions, write_options
from geminga.spark.sink import exactly_once, producers
from geminga.spark.sink.exactly_once import ExactlyOnceWriter, StagedCommit
from geminga.spark.sink.staging import Staging
from geminga.spark.sink.writing import batch_writer, stream_writer

SCHEMA = StructType().add("value", BinaryType()).add("__key", StringType())


@pytest.fixture(scope="module")
def broker(pulsar_broker):
    admin(pulsar_broker.admin_url, "POST", "namespaces/public/default/deduplication", True)
    return pulsar_broker


@pytest.fixture
def sink(broker, pulsar_topic, tmp_path):
    admin(broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 3)
    with broker.client() as client:
        yield Sink(broker, client, pulsar_topic, tmp_path)


class Sink:
    """Makes a new writer for every call, as Spark does."""

    def __init__(self, broker: EmbeddedBroker, client: Client, topic: str, folder: Path) -> None:
        self.broker = broker
        self.client = client
        self.topic = topic
        self.folder = folder

    def options(self, **options: str) -> WriteOptions:
        given = {"service.url": self.broker.service_url, "topic": self.topic, "exactlyOnce": "true"}
        return write_options({**given, **options})

    def writer(self, **options: str) -> ExactlyOnceWriter:
        own = {"checkpointLocation": str(self.folder), "batchingMaxMessages": "5"}
        return ExactlyOnceWriter(self.options(**{**own, **options}), SCHEMA)

    def batch_writer(self, schema: StructType = SCHEMA, **options: str) -> Any:
        return batch_writer(self.options(stagingLocation=str(self.folder / "b"), **options), schema)

    def dies(self, patch: pytest.MonkeyPatch, step: str, messages: list[Any]) -> None:
        """Commit micro-batch 0; the driver dies at a step of the staging."""
        with patch.context() as patched:
            patched.setattr(Staging, step, raising(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                self.commit(messages, 0)

    def task(self, rows: range, **options: str) -> StagedCommit:
        values = [b"%d" % row for row in rows]
        keys = [None if row % 4 == 0 else f"k{row % 7}" for row in rows]
        batch = pa.record_batch(
            {"value": pa.array(values, pa.binary()), "__key": pa.array(keys, pa.string())}
        )
        return self.writer(**options).write(iter([batch] if len(rows) else []))

    def commit(self, messages: list[Any], epoch: int, **options: str) -> None:
        self.writer(**options).commit(messages, epoch)

    def truncate(self) -> None:
        for partition in self.client.get_topic_partitions(self.topic):
            admin(self.broker.admin_url, "DELETE", partition.replace("://", "/") + "/truncate")

    def read(self, partitions: list[str] | None = None) -> list[int]:
        found = []
        for partition in partitions or self.client.get_topic_partitions(self.topic):
            reader = self.client.create_reader(partition, MessageId.earliest)
            while reader.has_message_available():
                found.append(int(reader.read_next(30_000).data()))
            reader.close()
        return sorted(found)

    @property
    def staged(self) -> list[Path]:
        return list((self.folder / "geminga-sink").glob("*/*/staged/*"))


def test_micro_batches_are_published_once(sink):
    for epoch in range(3):
        messages = [sink.task(range(100 * epoch + 50 * i, 100 * epoch + 50 * i + 50)) for i in range(2)]
        assert sink.read() == list(range(100 * epoch))
        sink.commit(messages, epoch)
        assert sink.staged == []
    assert sink.read() == list(range(300))


def test_empty_tasks_and_micro_batches_publish_nothing(sink):
    sink.commit([sink.task(range(0)), None], 0)
    sink.commit([sink.task(range(3)), sink.task(range(0))], 1)
    assert sink.read() == [0, 1, 2]


def test_a_repeated_commit_publishes_nothing_twice(sink):
    messages = [sink.task(range(40))]
    sink.commit(messages, 0)
    sink.commit(messages, 0)
    sink.commit([sink.task(range(40))], 0)
    assert sink.read() == list(range(40))
    assert sink.staged == []


@pytest.mark.parametrize("published", [0, 1, 4, 9])
def test_a_driver_that_dies_inside_a_commit_loses_and_doubles_nothing(sink, published, monkeypatch):
    sink.commit([sink.task(range(10))], 0)
    interrupted(sink, published, monkeypatch)
    assert len(sink.read()) < 100
    # Spark starts again: the tasks run once more, with their rows in another order.
    sink.commit([sink.task(range(60, 100)), sink.task(range(10, 60))], 1)
    assert sink.read() == list(range(100))
    assert sink.staged == []
    sink.commit([sink.task(range(100, 110))], 2)
    assert sink.read() == list(range(110))


def forget_producers(broker: EmbeddedBroker) -> None:
    """As a broker does when a producer was silent for long."""
    for is_on in (False, True):
        admin(broker.admin_url, "POST", "namespaces/public/default/deduplication", is_on)


def interrupted(sink: Sink, published: int, patch: pytest.MonkeyPatch, epoch: int = 1) -> None:
    """Commit rows 10 to 99; the driver dies after ``published`` batches are published."""
    real = Staging.staged

    def dying(self: Staging, name: str) -> Iterator[dict[str, Any]]:
        yield from itertools.islice(real(self, name), published)
        raise KeyboardInterrupt

    messages = [sink.task(range(10, 60)), sink.task(range(60, 100))]
    with patch.context() as patched:
        patched.setattr(Staging, "staged", dying)
        # Each batch goes at once, as in a large micro-batch.
        patched.setattr(exactly_once, "GROUP_BYTES", 1)
        with pytest.raises(KeyboardInterrupt):
            sink.commit(messages, epoch)


@pytest.mark.parametrize("published", [0, 1, 4, 9])
@pytest.mark.parametrize("others", [0, 30], ids=["alone", "with others"])
def test_rows_are_found_if_the_broker_forgot_the_sinks_sequence_ids(sink, published, others, monkeypatch):
    sink.commit([sink.task(range(10))], 0)
    interrupted(sink, published, monkeypatch)
    forget_producers(sink.broker)
    with sink.client.create_producer(sink.topic) as producer:
        for number in range(others):
            producer.send(b"%d" % (1000 + number))
    sink.commit([sink.task(range(60, 100)), sink.task(range(10, 60))], 1)
    assert sink.read() == [*range(100), *range(1000, 1000 + others)]
    sink.commit([sink.task(range(100, 110))], 2)
    assert len(sink.read()) == 110 + others
    assert sink.staged == []


def test_a_broker_without_sequence_ids_and_rows_is_an_error(sink, monkeypatch):
    sink.commit([sink.task(range(10))], 0)
    interrupted(sink, 9, monkeypatch)
    forget_producers(sink.broker)
    sink.truncate()
    with pytest.raises(
        StoreDamaged, match=r"cannot determine how much of micro-batch 1 .* delete (?P<note>\S+)"
    ) as told:
        sink.commit([sink.task(range(10, 100))], 1)
    assert sink.read() == []
    Path(str(told.value).rpartition(" ")[2]).unlink()
    sink.commit([sink.task(range(10, 100))], 1)
    assert sink.read() == list(range(10, 100))


def test_an_open_producer_does_not_replace_the_brokers_sequence_ids(sink, monkeypatch):
    sink.dies(monkeypatch, "finish", [sink.task(range(40))])
    forget_producers(sink.broker)
    sink.commit([sink.task(range(40))], 0)
    assert sink.read() == list(range(40))


@pytest.mark.parametrize("is_late", [True, False], ids=["late", "at once"])
def test_a_first_micro_batch_of_unknown_state_is_an_error(sink, is_late, monkeypatch):
    """Nothing was there when it was decided. Empty again, the topic tells nothing of what was published, read
    and deleted meanwhile; soon after, a broker has forgotten no sink."""
    interrupted(sink, 9, monkeypatch, 0)
    published = sink.read()
    forget_producers(sink.broker)
    later = time.time() + (7200 if is_late else 0)
    monkeypatch.setattr(exactly_once, "time", SimpleNamespace(time=lambda: later))
    if is_late:
        sink.truncate()
        with pytest.raises(StoreDamaged, match="cannot determine how much of micro-batch 0"):
            sink.commit([sink.task(range(10, 100))], 0)
        assert sink.read() == []
        return
    assert 0 < len(published) < 90
    sink.commit([sink.task(range(10, 100))], 0)
    assert sink.read() == list(range(10, 100))


def test_partitions_with_lost_sequence_ids_are_named(sink, monkeypatch):
    """Each partition decides by its own last sequence id; here the broker has lost that of one."""
    sink.commit([sink.task(range(10))], 0)
    interrupted(sink, 9, monkeypatch)
    partitions = sink.client.get_topic_partitions(sink.topic)
    counts = {partition: len(sink.read([partition])) for partition in partitions}
    forgotten = max(counts, key=lambda partition: counts[partition])
    forget_producers(sink.broker)
    (note,) = sink.folder.glob("geminga-sink/*/*/sink.json")
    name = json.loads(note.read_text())["name"]
    other = min(set(partitions) - {forgotten})
    with sink.client.create_producer(other, producer_name=name, batching_enabled=False) as producer:
        producer.send(b"1000", sequence_id=5)
    admin(sink.broker.admin_url, "DELETE", forgotten.replace("://", "/") + "/truncate")
    with pytest.raises(StoreDamaged, match=rf"{forgotten}: cannot determine how much of micro-batch 1"):
        sink.commit([sink.task(range(10, 100))], 1)
    assert sink.read([forgotten]) == []


def test_files_of_failed_attempts_are_deleted(sink):
    twin, kept = sink.task(range(20)), sink.task(range(20))
    sink.task(range(20))  # an executor that was killed after staging
    sink.writer().abort([twin, None], 0)
    assert len(sink.staged) == 2
    sink.commit([kept], 0)
    assert sink.read() == list(range(20))
    assert sink.staged == []


def test_an_abort_keeps_a_decided_micro_batch(sink, monkeypatch):
    message = sink.task(range(20))
    sink.dies(monkeypatch, "sink_name", [message])
    sink.writer().abort([message], 0)
    sink.commit([sink.task(range(20))], 0)
    assert sink.read() == list(range(20))


def test_a_replaced_checkpoint_with_an_old_name_is_refused(sink):
    for epoch in range(2):
        sink.commit([sink.task(range(10), sinkName="mine")], epoch, sinkName="mine")
    sink.folder = sink.folder / "new"
    with pytest.raises(InvalidConfiguration, match=r"has published micro-batch 1 already.*at 0"):
        sink.commit([sink.task(range(10), sinkName="mine")], 0, sinkName="mine")
    with pytest.raises(StoreDamaged, match=r"has rows under the numbers of micro-batch 1.*first time"):
        sink.commit([sink.task(range(10), sinkName="mine")], 1, sinkName="mine")


@pytest.mark.parametrize("seen", ["before", "while it was published"])
def test_rows_of_another_query_are_not_taken_for_published_ones(sink, monkeypatch, seen):
    """A query that is begun again after the refusal is refused again: what the broker has is not its own."""
    sink.commit([sink.task(range(10), sinkName="mine")], 0, sinkName="mine")
    sink.folder = sink.folder / "another"
    with monkeypatch.context() as patched:
        if seen != "before":
            # The other one publishes between the look and the publication.
            patched.setattr(exactly_once._Publication, "check_unused", lambda *_: None)
        with pytest.raises(StoreDamaged, match="of micro-batch 0, though it is published for the first time"):
            sink.commit([sink.task(range(50, 60), sinkName="mine")], 0, sinkName="mine")
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="has rows under the numbers of micro-batch 0"):
            sink.commit([sink.task(range(50, 60), sinkName="mine")], 0, sinkName="mine")
    assert sink.read() == list(range(10))
    if seen == "before":
        sink.commit([sink.task(range(50, 60), sinkName="other")], 0, sinkName="other")
        assert sink.read() == [*range(10), *range(50, 60)]


def test_a_batch_query_with_a_used_sink_name_is_refused(sink):
    sink.commit([sink.task(range(10), sinkName="mine")], 0, sinkName="mine")
    writer = sink.batch_writer(sinkName="mine")
    rows = pa.record_batch({"value": [b"%d" % n for n in range(30)], "__key": pa.nulls(30, pa.string())})
    message = writer.write(iter([rows]))
    with pytest.raises(StoreDamaged, match=r"has rows under the numbers.*number the writes .* batchId"):
        writer.commit([message])
    assert sink.read() == list(range(10))


def test_batch_writes_with_one_number_are_published_once(sink, monkeypatch, caplog):
    """As `foreachBatch` calls them, whose driver dies before and after the rows are published."""

    def write(number: int, rows: range) -> None:
        writer = sink.batch_writer(sinkName="counts", batchingMaxMessages="5", batchId=str(number))
        batch = pa.record_batch(
            {"value": [b"%d" % row for row in rows], "__key": pa.nulls(len(rows), pa.string())}
        )
        writer.commit([writer.write(iter([batch]))])

    real = Staging.staged
    for number, published in enumerate((0, 3, None)):
        rows = range(100 * number, 100 * number + 40)

        def dying(self: Staging, name: str, published: int | None = published) -> Iterator[dict[str, Any]]:
            yield from itertools.islice(real(self, name), published)
            if published is not None:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
            patched.setattr(Staging, "staged", dying)
            patched.setattr(exactly_once, "GROUP_BYTES", 1)
            write(number, rows)
        write(number, rows)
        write(number, rows)
        assert f"{sink.topic}: micro-batch {number} was published before" in caplog.text
    assert sink.read() == [*range(40), *range(100, 140), *range(200, 240)]
    with pytest.raises(StoreDamaged, match=r"of 41 rows is another: give each write .* not 'counts'"):
        write(2, range(41))


def test_a_number_without_exactly_once_or_for_a_stream_is_refused(sink):
    given = {"service.url": sink.broker.service_url, "topic": sink.topic, "batchId": "3"}
    with pytest.raises(InvalidConfiguration, match=r"batchId=3: .*exactlyOnce=true and a sinkName"):
        write_options({**given, "sinkName": "counts"})
    with pytest.raises(InvalidConfiguration, match=r"batchId.*1764310000000.*>= 0 and < 2147483648"):
        write_options({**given, "batchId": "1764310000000"})
    options = write_options({**given, "sinkName": "counts", "exactlyOnce": "true"})
    with pytest.raises(InvalidConfiguration, match="batchId is for batch writes"):
        stream_writer(options, SCHEMA)


def test_a_broker_without_deduplication_is_refused_without_admin_rest(sink):
    options = {"admin.url": "http://127.0.0.1:1"}
    admin(sink.broker.admin_url, "POST", "namespaces/public/default/deduplication", False)
    try:
        with pytest.raises(NotAllowedError, match=r"does not deduplicate.*set-deduplication public/default"):
            sink.commit([sink.task(range(10), **options)], 0, **options)
    finally:
        admin(sink.broker.admin_url, "POST", "namespaces/public/default/deduplication", True)


@pytest.fixture
def plain_sink(tmp_path):
    """On a broker that deduplicates nothing."""
    with embedded() as broker, broker.client() as client:
        yield Sink(broker, client, "persistent://public/default/plain", tmp_path)


@pytest.mark.parametrize("partitions", [None, 0, 2], ids=["new", "without partitions", "partitioned"])
def test_deduplication_is_turned_on_for_the_topic(plain_sink, partitions):
    with Admin(plain_sink.broker.admin_url) as there:
        if partitions is not None:
            there.topics.create(plain_sink.topic, partitions=partitions)
        for epoch in range(2):
            plain_sink.commit([plain_sink.task(range(10 * epoch, 10 * epoch + 10))], epoch)
        assert there.topic_policies.deduplication.get(plain_sink.topic) is True
    assert plain_sink.read() == list(range(20))


@pytest.mark.parametrize("is_there", [True, False], ids=["topic", "no topic"])
def test_without_the_right_to_turn_deduplication_on_nothing_is_published(plain_sink, is_there, monkeypatch):
    monkeypatch.setattr(PolicyAt, "set", raising(AdminAuthorizationError("not an administrator", status=403)))
    sink, options = plain_sink, {"admin.url": plain_sink.broker.admin_url}
    told = r"not an administrator.*'geminga namespaces set-deduplication public/default on'"
    if is_there:
        with Admin(sink.broker.admin_url) as there:
            there.topics.create(sink.topic)
        with pytest.raises(NotAllowedError, match=told):
            sink.writer(**options)
        return
    message = sink.task(range(10), **options)
    with pytest.raises(NotAllowedError, match=told):
        sink.commit([message], 0, **options)
    assert sink.read() == []


def test_an_unreachable_admin_rest_does_not_stop_a_stream(sink):
    options = {"admin.url": "http://127.0.0.1:1"}
    sink.commit([sink.task(range(10), **options)], 0, **options)
    assert sink.read() == list(range(10))


def test_queries_may_share_a_staging_location(sink, tmp_path):
    """Each query has its own micro-batch 0, and so has each target of a query."""
    shared = str(tmp_path / "shared")
    for number in range(3):
        sink.folder = tmp_path / f"checkpoint-{number}"
        message = sink.task(range(10 * number, 10 * number + 10), stagingLocation=shared)
        sink.commit([message], 0, stagingLocation=shared)
    assert sink.read() == list(range(30))
    first, sink.topic = sink.topic, f"{sink.topic}-other"
    sink.commit([sink.task(range(5), stagingLocation=shared)], 0, stagingLocation=shared)
    assert sink.read() == list(range(5))
    sink.topic = first
    assert sink.read() == list(range(30))


def test_a_deleted_staging_folder_is_detected(sink, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Staging, "finish", lambda *_: None)
        sink.commit([sink.task(range(10))], 0)
    shutil.rmtree(sink.folder / "geminga-sink")
    with pytest.raises(
        StoreDamaged,
        match=r"has rows under the numbers of micro-batch 0, .* its staging folder .* was deleted",
    ):
        sink.commit([sink.task(range(10))], 0)
    assert sink.read() == list(range(10))


@pytest.mark.parametrize("is_done", [True, False], ids=["published", "decided"])
def test_another_micro_batch_under_the_same_number_is_refused(sink, is_done, monkeypatch):
    """Spark's checkpoint was set back: what is new in it would be dropped with what was published."""
    offsets = sink.folder / "offsets"
    offsets.mkdir()
    (offsets / "0").write_text("v1\n{}\nup to 10")
    with monkeypatch.context() as patched:
        if not is_done:
            patched.setattr(Staging, "finish", lambda *_: None)
        sink.commit([sink.task(range(10))], 0)
    (offsets / "0").write_text("v1\n{}\nup to 15")
    with pytest.raises(StoreDamaged, match=r"micro-batch 0 of 10 rows was published before.* of 15 rows is"):
        sink.commit([sink.task(range(15))], 0)
    assert sink.read() == list(range(10))
    # The checkpoint is put back; its query gives one row less the second time.
    (offsets / "0").write_text("v1\n{}\nup to 10")
    sink.commit([sink.task(range(9))], 0)
    sink.commit([sink.task(range(10, 20))], 1)
    assert sink.read() == list(range(20))


def test_producers_are_opened_and_files_are_read_once_a_micro_batch(sink, monkeypatch):
    read, opened = calls_of(monkeypatch, Staging, "staged"), calls_of(monkeypatch, producers, "_opened")
    schema = StructType().add("value", StringType()).add("__topic", StringType())
    topics = [f"{sink.topic}-{number}" for number in range(5)]
    options = write_options({
        "service.url": sink.broker.service_url, "exactlyOnce": "true", "checkpointLocation": str(sink.folder),
    })  # fmt: skip
    for epoch in range(4):
        rows = range(20 * epoch, 20 * epoch + 20)
        batch = pa.record_batch({"value": [str(r) for r in rows], "__topic": [topics[r % 5] for r in rows]})
        ExactlyOnceWriter(options, schema).commit(
            [ExactlyOnceWriter(options, schema).write(iter([batch]))], epoch
        )
        # Twice at first: that the broker deduplicates shows when a producer is opened again.
        assert len(opened) == 10 + 5 * epoch
        assert len(read) == epoch + 1
    for number, sink.topic in enumerate(topics):
        assert sink.read() == list(range(number, 80, 5))


def test_a_batch_query_publishes_nothing_before_all_tasks_have_succeeded(sink):
    def task(writer: Any, rows: range) -> Any:
        values = pa.array([b"%d" % row for row in rows], pa.binary())
        return pickle.loads(pickle.dumps(writer)).write(
            iter([pa.record_batch({"value": values, "__key": values})])
        )

    schema = StructType().add("value", BinaryType()).add("__key", BinaryType())
    failed = sink.batch_writer(schema, compression="ZLIB")
    task(failed, range(50))
    assert sink.read() == []
    failed.abort([None, task(failed, range(50))])
    assert sink.read() == []
    writer = sink.batch_writer(schema, compression="ZLIB")
    task(writer, range(30))  # a twin that does not count
    writer.commit([task(writer, range(30)), task(writer, range(30, 60)), None])
    assert sink.read() == list(range(60))
    assert not [path for path in (sink.folder / "b").rglob("*") if path.is_file()]
    with pytest.raises(InvalidConfiguration, match="stagingLocation"):
        batch_writer(sink.options(), schema)


def test_lost_receipts_lose_and_double_no_row(sink):
    """The broker has the resent rows, and no other producer sent them."""
    with WithholdingProxy(int(sink.broker.service_url.rpartition(":")[2])) as proxy:
        url = {"service.url": proxy.url}
        messages = [sink.task(range(60), **url)]
        proxy.receipts_to_lose = 3
        sink.commit(messages, 0, **url)
        assert proxy.cuts >= 3
        sink.commit([sink.task(range(60, 70), **url)], 1, **url)
    assert sink.read() == list(range(70))


def test_partitions_may_be_added_between_micro_batches(sink):
    sink.commit([sink.task(range(50))], 0)
    admin(sink.broker.admin_url, "POST", sink.topic.replace("://", "/") + "/partitions", 6)
    sink.commit([sink.task(range(50, 150))], 1)
    assert sink.read() == list(range(150))
    assert len(sink.client.get_topic_partitions(sink.topic)) == 6


def rows_of(*values: bytes) -> Iterator[pa.RecordBatch]:
    keys = [f"k{number}" for number in range(len(values))]
    return iter([pa.record_batch({"value": pa.array(values, pa.binary()), "__key": keys})])


LARGE = b"9".rjust(6 * 1024 * 1024)


def test_a_row_above_the_brokers_maximum_is_refused_before_the_commit(sink):
    sink.commit([sink.task(range(3))], 0)
    with pytest.raises(MessageTooBig, match=r"row with the key 'k1' takes 62914\d\d bytes .* takes 5242880"):
        sink.writer().write(rows_of(b"3", LARGE, b"4"))
    sink.commit([sink.writer().write(rows_of(b"3", b"4"))], 1)
    assert sink.read() == [0, 1, 2, 3, 4]
    compressed = {"compression": "ZSTD"}
    sink.commit([sink.writer(**compressed).write(rows_of(LARGE))], 2, **compressed)
    assert sink.read() == [0, 1, 2, 3, 4, 9]


def test_batches_above_the_brokers_maximum_are_split(sink, monkeypatch):
    monkeypatch.setattr(exactly_once._Encoder, "_size_max", lambda *_: 4096)
    options = {"batchingMaxMessages": "1000000", "batchingMaxBytes": "4096"}
    message = sink.task(range(5000), **options)
    (path,) = sink.staged
    with path.open("rb") as file:
        bodies = pa.ipc.open_stream(file).read_all().column("body").to_pylist()
    assert 2000 < max(map(len, bodies)) < 4096
    sink.commit([message], 0, **options)
    assert sink.read() == list(range(5000))


def test_decided_rows_that_became_too_large_need_a_new_sink(sink, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(exactly_once._Encoder, "_size_max", lambda *_: 8 * 1024 * 1024)
        message = sink.writer().write(rows_of(b"1", LARGE))
    for _ in range(2):
        with pytest.raises(MessageTooBig) as caught:
            sink.commit([message], 0)
        assert "choose another sinkName and stagingLocation" in caught.value.__notes__[0]
    other = {"sinkName": "other", "stagingLocation": str(sink.folder / "other")}
    sink.commit([sink.writer(**other).write(rows_of(b"1", b"2"))], 0, **other)
    assert sink.read() == [1, 1, 2]


def test_a_row_above_the_topics_limit_is_published_after_raising_it(sink):
    """The limit is a policy, which a task cannot ask for."""
    limit = sink.topic.replace("://", "/") + "/maxMessageSize"
    sink.commit([sink.task(range(1))], 0)
    admin(sink.broker.admin_url, "POST", limit, 2000)
    message = sink.writer().write(rows_of(b"1", b"2".rjust(3000)))
    with pytest.raises(NotAllowedError, match="exceeds the topic's limit") as caught:
        sink.commit([message], 1)
    assert "or the topic's policy" in caught.value.__notes__[0]
    admin(sink.broker.admin_url, "DELETE", limit)
    sink.commit([message], 1)
    assert sink.read() == [0, 1, 2]


def test_rows_behind_a_refused_one_do_not_make_it_a_duplicate(sink):
    """The broker drops a message whose sequence id is not above the last one that it has taken."""
    limit = sink.topic.replace("://", "/") + "/maxMessageSize"
    admin(sink.broker.admin_url, "POST", limit, 2000)
    values = [b"%d" % number for number in range(200)]
    values[60] = values[60].rjust(3000)
    message = sink.writer().write(rows_of(*values))
    for _ in range(2):
        with pytest.raises(NotAllowedError, match="exceeds the topic's limit") as caught:
            sink.commit([message], 0)
        assert "or the topic's policy" in caught.value.__notes__[0]
    admin(sink.broker.admin_url, "DELETE", limit)
    sink.commit([message], 0)
    assert sink.read() == list(range(200))


def test_the_size_that_a_broker_may_refuse_includes_the_metadata(sink):
    """An entry repeats the ordering key of its first message in the metadata."""
    limit = sink.topic.replace("://", "/") + "/maxMessageSize"
    admin(sink.broker.admin_url, "POST", limit, 1700)
    rows = {"value": [b"0".rjust(1500), b"1".rjust(1000), b"2"], "__key": ["k"] * 3}
    rows["__orderingKey"] = ["", "o" * 400, ""]
    options = {
        "topic": sink.topic, "service.url": sink.broker.service_url, "exactlyOnce": "true",
        "checkpointLocation": str(sink.folder), "batchingMaxMessages": "1",
    }  # fmt: skip
    schema = StructType().add("value", BinaryType()).add("__key", StringType())
    writer = ExactlyOnceWriter(write_options(options), schema.add("__orderingKey", StringType()))
    message = writer.write(iter([pa.record_batch(rows)]))
    with pytest.raises(NotAllowedError, match="exceeds the topic's limit"):
        writer.commit([message], 0)
    admin(sink.broker.admin_url, "DELETE", limit)
    writer.commit([message], 0)
    assert sink.read() == [0, 1, 2]


def test_rows_behind_one_whose_delay_is_refused_do_not_make_it_a_duplicate(sink):
    limit = sink.topic.replace("://", "/") + "/delayedDelivery"
    policy = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 60_000}
    admin(sink.broker.admin_url, "POST", limit, policy)
    schema = StructType().add("value", BinaryType()).add("__deliverAt", LongType())
    writer = ExactlyOnceWriter(sink.options(checkpointLocation=str(sink.folder)), schema)
    rows = [(b"0".rjust(1000), None), (b"1", int(time.time() * 1000) + 3_600_000), (b"2", None)]
    columns = [{"value": [value], "__deliverAt": pa.array([ms], pa.int64())} for value, ms in rows]
    messages = [writer.write(iter([pa.record_batch(each)])) for each in columns]
    with pytest.raises(NotAllowedError, match="delivery delay"):
        writer.commit(messages, 0)
    admin(sink.broker.admin_url, "DELETE", limit)
    writer.commit(messages, 0)
    assert sink.read() == [0, 1, 2]


KEYS = Path(__file__).parent.parent / "vectors" / "keys"


@pytest.mark.parametrize("compression", ["NONE", "LZ4"])
def test_rows_are_staged_encrypted(sink, compression):
    pytest.importorskip("cryptography")
    options = {
        "encryptionKeys": "k1", "crypto.publicKeyPath": str(KEYS / "k1_public.pem"),
        "compression": compression,
    }  # fmt: skip
    message = sink.writer(**options).write(rows_of(b"secret", b"secret"))
    assert sink.staged
    assert not any(b"secret" in path.read_bytes() for path in sink.staged)
    sink.commit([message], 0, **options)
    reader = sink.client.create_reader(
        sink.topic,
        MessageId.earliest,
        crypto_key_reader=CryptoKeyReader("", str(KEYS / "k1_private_pkcs1.pem")),
    )
    assert [reader.read_next(30_000).data() for _ in range(2)] == [b"secret"] * 2
    sink.commit([sink.task(range(1))], 1, **options)  # staged in plain text, before the options were set
    assert reader.read_next(30_000).encryption_context() is not None
    assert not reader.has_message_available()


def test_an_exactly_once_sink_needs_a_folder(sink):
    options = {"service.url": sink.broker.service_url, "topic": "t", "exactlyOnce": "true"}
    with pytest.raises(InvalidConfiguration, match=r"checkpointLocation .* or stagingLocation"):
        ExactlyOnceWriter(write_options(options), SCHEMA)
    assert issubclass(InvalidConfiguration, PulsarException)
