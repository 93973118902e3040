"""A task's entries from files and from the broker: each is read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import driven_query
import pyarrow as pa
import pytest
from driven_query import SCHEMA, data_source, numbers, values
from entries import single_entry
from offloading import offload_all
from pyspark.sql.streaming.datasource import ReadAllAvailable
from scripted_cluster import ScriptedCluster

from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.client.options.crypto import CryptoKeyReader
from geminga.errors import InvalidConfiguration
from geminga.ids import MessageId
from geminga.offload import manifest
from geminga.offload.arrow_storage import ArrowStorage
from geminga.offload.file import LedgerWriter
from geminga.offload.manifest import OffloadedLedger
from geminga.offload.storage import folder_of
from geminga.spark.cluster import clients as clusters
from geminga.spark.datasource import PulsarDataSource
from geminga.spark.offsets import Offset
from geminga.spark.options import ConnectionOptions, ReadOptions
from geminga.spark.schema import ArrowBatchConverter
from geminga.spark.source.data_loss import DataLossError
from geminga.spark.source.offloaded import Manifests, OffloadedSource
from geminga.spark.source.ranges import Range
from geminga.spark.source.reading import RangeReader, read_range
from geminga.wire.metadata import RawEntry

pytestmark = pytest.mark.usefixtures("offloading_here")

TOPIC = "persistent://public/default/t"
PARTITION = (TOPIC, -1)
LEDGERS = {3: 4, 5: 3, 6: 5, 9: 2, 11: 4}
"""Ledgers of the topic with their entries; 7 was trimmed or lost, nothing was ever in 8."""
OFFSETS = {3: 10, 5: 14, 6: 17, 9: 30, 11: 32}


def entry(ledger: int, number: int) -> bytes:
    return single_entry(b"%d:%d" % (ledger, number), sequence_id=number, publish_time=ledger)


ALL = [(ledger, number) for ledger, count in LEDGERS.items() for number in range(count)]


class Broker:
    """The broker's entries from a position on; counts its readers in ``opened``."""

    opened = 0

    def __init__(self, place: MessageId) -> None:
        Broker.opened += 1
        self.left = [each for each in ALL if each >= (place.ledger_id, place.entry_id)]

    def read(self, max_entries: int, timeout: float) -> list[RawEntry]:
        found, self.left = self.left[:max_entries], self.left[max_entries:]
        return [RawEntry(TOPIC, -1, ledger, number, entry(ledger, number)) for ledger, number in found]

    def last_message_id(self) -> MessageId:
        return MessageId(-1, *ALL[-1])

    def close(self) -> None: ...


def offload(place: ArrowStorage, ledgers: list[int]) -> list[OffloadedLedger]:
    records = []
    for ledger in ledgers:
        writing = place.create(f"{folder_of(TOPIC)}/{ledger}.parquet")
        writer = LedgerWriter(writing, topic=TOPIC, partition=-1, ledger_id=ledger, uuid=f"u{ledger}")
        writer.add([entry(ledger, number) for number in range(LEDGERS[ledger])])
        written = writer.close()
        writing.finish()
        records.append(
            OffloadedLedger(
                ledger, OFFSETS[ledger], f"{ledger}.parquet", written.size, written.crc, f"u{ledger}",
                LEDGERS[ledger], written.summary.messages, 0, written.summary.entry_bytes, None, None, 1,
            )
        )  # fmt: skip
    manifest.ManifestWriter(place, "store").save(TOPIC, records)
    return records


def read(source: OffloadedSource, pieces: int = 2) -> list[tuple[int, int]]:
    found = []
    while arrived := source.read(pieces, 0.0):
        for each in arrived:
            assert each.entry == entry(each.ledger_id, each.entry_id)
            found.append((each.ledger_id, each.entry_id))
    source.close()
    return found


@pytest.mark.parametrize("offloaded", [[3, 5, 6], [3], [5, 9], [3, 5, 6, 9], [6, 9, 11], []])
def test_every_entry_is_read_once_from_any_start(tmp_path, offloaded):
    records = offload(ArrowStorage(str(tmp_path)), offloaded)
    places = [
        MessageId.earliest, *(MessageId(-1, *each) for each in ALL), MessageId(-1, 5, 3), MessageId(-1, 7, 0),
    ]  # fmt: skip
    for place in places:
        source = OffloadedSource(str(tmp_path), PARTITION, records, place, Broker)
        assert read(source) == [each for each in ALL if each >= (place.ledger_id, place.entry_id)]


def test_a_range_in_files_alone_needs_no_broker(tmp_path):
    records = offload(ArrowStorage(str(tmp_path)), [3, 5, 6])
    Broker.opened = 0
    source = OffloadedSource(str(tmp_path), PARTITION, records, MessageId(-1, 3, 1), Broker)
    found = [source.read(4, 0.0) for _ in range(4)]
    assert [(each.ledger_id, each.entry_id) for part in found for each in part] == ALL[1:12]
    assert Broker.opened == 0
    source.close()


def do_harm(folder: Path, harm: str) -> None:
    """To the file of ledger 5."""
    path = folder / "5.parquet"
    if harm == "gone":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.write_bytes((folder / "6.parquet").read_bytes())


@pytest.mark.parametrize("harm", ["gone", "cut", "other"])
def test_entries_of_a_missing_file_are_read_from_the_broker(tmp_path, harm):
    records = offload(ArrowStorage(str(tmp_path)), [3, 5, 6])
    do_harm(tmp_path / folder_of(TOPIC), harm)
    source = OffloadedSource(str(tmp_path), PARTITION, records, MessageId(-1, 3, 0), Broker)
    assert read(source) == ALL


def test_the_driver_gives_a_range_its_own_ledgers(tmp_path):
    offload(ArrowStorage(str(tmp_path)), [3, 5, 6, 9])
    manifests = Manifests(str(tmp_path))
    within = manifests.within(PARTITION, Offset(4, 0), Offset(6, 2))
    assert [each.ledger for each in within] == [5, 6]
    assert manifests.within(("persistent://public/default/other", 2), Offset(0, 0), Offset(99, 0)) == ()
    (tmp_path / folder_of(TOPIC) / "manifest.json").write_text("{")
    with pytest.raises(InvalidConfiguration, match="offloadLocation"):
        Manifests(str(tmp_path)).within(PARTITION, Offset(4, 0), Offset(6, 2))


def scan(place: Path, cluster: ScriptedCluster, offloaded: list[int], start: Offset) -> list[bytes]:
    """The values up to 9:1."""
    options = ReadOptions(
        connection=ConnectionOptions(service_url="pulsar://h"), topics=(TOPIC,), poll_timeout_ms=20,
        offload_location=str(place),
    )  # fmt: skip
    records = [each for each in offload(ArrowStorage(str(place)), [3, 5, 6]) if each.ledger in offloaded]
    for ledger in {3, 5, 6} - set(offloaded):
        (place / folder_of(TOPIC) / f"{ledger}.parquet").unlink()
    # Entries removed by retention are gone from the broker and from the offload storage.
    for ledger in offloaded:
        if (ledger, LEDGERS[ledger] - 1) <= cluster.trimmed.get(PARTITION, (-1, -1)) and ledger > 3:
            (place / folder_of(TOPIC) / f"{ledger}.parquet").unlink()
    part = Range(PARTITION, start, Offset(9, 1), offloaded=tuple(records))
    converter = ArrowBatchConverter(SCHEMA)
    batches = read_range(cluster, options, part, converter)
    return [value for batch in batches for value in batch.column(0).to_pylist()]


@pytest.mark.parametrize("start", [Offset(3, -1), Offset(3, 3)], ids=["read", "read before"])
@pytest.mark.parametrize("offloaded", [[3, 5, 6], [3]], ids=["in the manifest", "not offloaded"])
def test_a_ledger_deleted_after_an_offloaded_one_is_a_loss(tmp_path, start, offloaded):
    """That a ledger of a file was read to its end says nothing of the next one."""
    cluster = ScriptedCluster()
    cluster.topics[PARTITION] = {each: entry(*each) for each in ALL}
    behind = [b"%d:%d" % each for each in ALL if start[:2] < each <= (9, 1)]
    assert scan(tmp_path, cluster, offloaded, start) == behind
    cluster.trimmed[PARTITION] = (5, 2)
    with pytest.raises(DataLossError, match=f"the entry 3:4 of {TOPIC} is gone, the first one left is 6:"):
        scan(tmp_path, cluster, offloaded, start)


# --- through planner and tasks, with a broker ---
def offloading_broker(store: Path, place: Path) -> EmbeddedBroker:
    return embedded(store, offload_location=str(place), ledger_entries_max=9, offload_deletion_lag_seconds=0)


def source(broker: EmbeddedBroker, place: Path, **options: Any) -> PulsarDataSource:
    given = {
        "service.url": broker.service_url, "topic": TOPIC, "pollTimeoutMs": 20_000, "offloadLocation": place,
        "maxEntriesPerSplit": 7, **options,
    }  # fmt: skip
    return data_source(given)


def publish(broker: EmbeddedBroker, first: int, count: int) -> None:
    with broker.client() as client:
        driven_query.publish(client, TOPIC, first, count, batch=5)


def test_a_scan_reads_files_and_the_live_tail_once(tmp_path):
    place = tmp_path / "tier"
    with offloading_broker(tmp_path / "store", place) as broker:
        publish(broker, 0, 200)
        offload_all(broker, TOPIC)
        publish(broker, 200, 30)
        reader = source(broker, place).reader(SCHEMA)
        parts = reader.partitions()
        assert len({each.ledger for part in parts for each in part.parts[0].offloaded}) == 4
        assert values(reader, parts) == numbers(0, 230)

        stream = source(broker, place, startingOffsets="earliest").streamReader(SCHEMA)
        start = stream.initialOffset()
        taken: list[bytes] = []
        published = 230
        for _ in range(3):
            end = stream.latestOffset(start, ReadAllAvailable())
            parts = stream.partitions(start, end)
            # A plan stays correct if everything is offloaded before it is read.
            publish(broker, published, 60)
            published += 60
            offload_all(broker, TOPIC)
            taken += values(stream, parts)
            start = end
        taken += values(stream, stream.partitions(start, stream.latestOffset(start, ReadAllAvailable())))
        assert taken == numbers(0, published)


def test_tasks_read_files_without_the_broker(tmp_path):
    place = tmp_path / "tier"
    with offloading_broker(tmp_path / "store", place) as broker:
        publish(broker, 0, 200)
        offload_all(broker, TOPIC)
        reader = source(broker, place).reader(SCHEMA)
        parts = reader.partitions()
    # The first task has to learn where the topic begins, the last ones read what was not offloaded.
    last = max(each.ledger for part in parts for each in part.parts[0].offloaded)
    alone = [part for part in parts[1:] if part.parts[0].end.ledger <= last]
    found = [int(value) for value in values(reader, alone)]
    assert found == list(range(found[0], found[-1] + 1))
    assert len(found) >= 100


def test_files_of_another_store_are_not_read(tmp_path, caplog):
    """Stores begin to count their ledgers alike: the manifest names those that this broker has, too."""
    place = tmp_path / "tier"
    with offloading_broker(tmp_path / "other", place) as broker:
        publish(broker, 0, 200)
        offload_all(broker, TOPIC)
    with embedded(tmp_path / "store", ledger_entries_max=9) as broker:
        publish(broker, 1000, 200)
        reader = source(broker, place).reader(SCHEMA)
        assert values(reader) == numbers(1000, 200)
    assert "differs from the broker's" in caplog.text


# --- columns as they are in the file ---
class Columns:
    """A shaper that keeps what it is given, and asks for more of each piece."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.others: list[bytes] = []

    def shape(self, messages: pa.RecordBatch, again: Any = None) -> pa.RecordBatch:
        others = again(["value", "message_id"])
        assert others.num_rows == messages.num_rows
        self.others += others.column(1).to_pylist()
        return messages.select(range(len(self.columns)))


def _scanned(place: Path, broker: EmbeddedBroker, columns: list[str], **options: str) -> tuple[Any, ...]:
    reader = source(broker, place, **options).reader(SCHEMA)
    converter, batches = Columns(columns), []
    cluster = clusters.connect(reader.options.connection)
    for part in reader.partitions():
        batches += RangeReader(cluster, reader.options, part.parts[0], converter).batches()
    return pa.Table.from_batches(batches).to_pylist(), converter.others


ALL_COLUMNS = [
    "value", "key", "ordering_key", "properties", "event_time", "publish_time", "sequence_id",
    "producer_name", "topic", "partition", "ledger_id", "entry_id", "batch_index", "batch_size",
    "schema_version",
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "selections"),
    [
        ("batches", [ALL_COLUMNS, ["message_id", "key_bytes", "topic"], []]), ("single", [["value"]]),
        ("chunks", [ALL_COLUMNS]), ("encrypted", [["value"]]),
        ("mixed", [ALL_COLUMNS, ["message_id", "key_bytes"], []]),
    ],
)  # fmt: skip
def test_messages_of_files_equal_those_of_the_broker(tmp_path, kind, selections):
    """Chunks that end in a later ledger, what has no rows, and all that a message has."""
    place = tmp_path / "tier"
    keys = Path(__file__).parent.parent / "vectors/keys"
    with embedded(
        tmp_path / "store", offload_location=str(place), ledger_entries_max=7, offload_deletion_lag_seconds=0,
        max_message_size=20_000,
    ) as broker:  # fmt: skip
        crypto = CryptoKeyReader(str(keys / "k1_public.pem"), str(keys / "k1_private_pkcs1.pem"))
        client = broker.client()
        plain = client.create_producer(TOPIC, batching_enabled=kind in ("batches", "mixed"))
        chunked = client.create_producer(TOPIC, chunking_enabled=True)
        sealed = client.create_producer(TOPIC, encryption_key="k1", crypto_key_reader=crypto)
        for number in range(60):
            if (kind == "chunks" and number % 3 == 0) or (kind == "mixed" and number % 20 == 5):
                chunked.send(b"%d" % number * 20_000)
            if kind == "encrypted" or (kind == "mixed" and number % 20 == 9):
                sealed.send(b"s%d" % number)
            plain.send_async(
                None if number == 7 else b"%d" % number, None, properties={"n": str(number)},
                partition_key=f"k{number % 3}" if number % 2 else None, event_timestamp=number or None,
            )  # fmt: skip
            if number % 3 == 2:
                plain.flush()
        client.close()
        offload_all(broker, TOPIC)
        options = {
            "crypto.privateKeyPath": str(keys / "k1_private_pkcs1.pem"), "receiverQueueSize": "50"
        }  # fmt: skip
        for columns in selections:
            found = _scanned(place, broker, columns, **options)
            assert found == _scanned(tmp_path / "nothing", broker, columns, **options)
            assert len(found[1]) >= 60
