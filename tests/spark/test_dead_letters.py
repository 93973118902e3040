"""Dead letters of tasks that run once, again, beside themselves and over other parts, without Spark."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from driven_query import data_source

from geminga import Client, MessageId, schema
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.errors import InvalidConfiguration
from geminga.filesystems import resolve
from geminga.schema import AvroSchema
from geminga.spark.datasource import PulsarRanges, PulsarReader
from geminga.spark.offsets import Offset
from geminga.spark.options import ReadOptions, read_options
from geminga.spark.source import dead_letters
from geminga.spark.source.dead_letters import LETTERS
from tests.support.spark_cluster import ObjectStore


@dataclass
class Reading:
    id: int


@pytest.fixture
def topic(request):
    return request.node.name.replace("[", "-").replace("]", "")


def publish(client: Client, topic: str, rounds: int = 20, size: int = 3) -> None:
    """In each round ``size`` good messages in a batch, and a bad one with all that a message can have."""
    with (
        client.create_producer(topic, schema=AvroSchema(Reading)) as good,
        client.create_producer(topic, schema=schema.BytesSchema(), batching_enabled=False) as bad,
    ):
        for number in range(rounds):
            for index in range(size):
                good.send_async(Reading(number * size + index), None)
            good.flush()
            bad.send(
                b"bad-%d" % number, partition_key=f"k{number}", properties={"p": str(number)},
                event_timestamp=1_700_000_000_000 + number,
            )  # fmt: skip


def reader(broker: EmbeddedBroker, topic: str, **options: Any) -> PulsarReader:
    given = {"service.url": broker.service_url, "topic": topic, "valueSchema": "TOPIC", **options}
    source = data_source(given)
    return source.reader(source.schema())


def ids(found: PulsarReader, parts: Any) -> list[int]:
    return [row["id"] for part in parts for batch in found.read(part) for row in batch.to_pylist()]


def letters_in(path: Path) -> list[dict[str, Any]]:
    files = [str(file) for file in sorted(path.rglob("*.parquet")) if not file.name.startswith(".")]
    if not files:
        return []
    found = pa.dataset.dataset(files).to_table()
    assert found.schema.equals(LETTERS)
    rows: list[dict[str, Any]] = found.to_pylist()
    return sorted(rows, key=lambda row: (row["__ledgerId"], row["__entryId"], row["__batchIndex"]))


def values(count: int = 20) -> list[bytes]:
    return [b"bad-%d" % number for number in range(count)]


def test_dead_letters_are_stored_with_their_position(broker, client, topic, tmp_path):
    publish(client, topic)
    found = reader(broker, topic, deadLetterPath=tmp_path / "letters")
    parts = found.partitions()
    assert ids(found, parts) == list(range(60))
    rows = letters_in(tmp_path)
    assert [row["value"] for row in rows] == values()
    row = rows[7]
    assert MessageId.deserialize(row["__messageId"]).entry_id() == row["__entryId"]
    assert (row["__key"], row["__messageProperties"]) == (b"k7", [("p", "7")])
    assert row["__eventTime"].timestamp() * 1000 == 1_700_000_000_007
    assert row["schemaVersion"] is None
    assert row["error"] == "its producer named no schema"


def test_permissive_mode_also_delivers_dead_letters(broker, client, topic, tmp_path):
    publish(client, topic, rounds=3)
    found = reader(broker, topic, mode="PERMISSIVE", deadLetterPath=tmp_path)
    assert ids(found, found.partitions()).count(None) == 3
    assert len(letters_in(tmp_path)) == 3


def test_repeated_and_speculative_tasks_store_each_dead_letter_once(broker, client, topic, tmp_path):
    publish(client, topic)
    found = reader(broker, topic, maxEntriesPerSplit=9, deadLetterPath=tmp_path)
    parts = found.partitions()
    count = len(parts)
    assert count > 4
    with ThreadPoolExecutor(4) as pool:
        twice = list(pool.map(lambda part: ids(found, [part]), [*parts, *parts]))
    assert [number for some in twice[:count] for number in some] == list(range(60))
    ids(found, parts)
    assert [row["value"] for row in letters_in(tmp_path)] == values()
    # Another query keeps its own.
    other = reader(broker, topic, deadLetterPath=tmp_path)
    ids(other, other.partitions())
    assert Counter(row["value"] for row in letters_in(tmp_path)) == Counter(values() * 2)


def test_a_task_that_died_stores_its_dead_letters_when_repeated(broker, client, topic, tmp_path, monkeypatch):
    """Some part files are written before it dies."""
    publish(client, topic)
    found = reader(broker, topic, deadLetterPath=tmp_path)
    (part,) = found.partitions()
    monkeypatch.setattr(dead_letters, "PART_BYTES_MAX", 1)
    monkeypatch.setattr("geminga.spark.source.reading.BATCH_ROWS", 10)
    written, write = [], dead_letters._Files._write

    def dying(self: Any, rows: pa.Table, name: str) -> None:
        written.append(name)
        if len(written) == 4:
            raise OSError("the machine is gone")
        write(self, rows, name)

    monkeypatch.setattr(dead_letters._Files, "_write", dying)
    with pytest.raises(OSError, match="gone"):
        ids(found, [part])
    assert 0 < len(letters_in(tmp_path)) < 20
    assert ids(found, [part]) == list(range(60))
    assert len(list(tmp_path.rglob("*.parquet"))) > 4
    assert [row["value"] for row in letters_in(tmp_path)] == values()


def test_other_splits_of_the_same_messages_store_each_dead_letter_once(broker, client, topic, tmp_path):
    """A query that is started again with other options plans other tasks over the same messages."""
    publish(client, topic)
    found = reader(broker, topic, deadLetterPath=tmp_path)
    (whole,) = found.partitions()
    assert isinstance(whole, PulsarRanges)
    start, end = whole.parts[0].start, whole.parts[0].end
    cuts = [start, Offset(end.ledger, 12), Offset(end.ledger, 20), end]

    def part(begin: Offset, stop: Offset) -> PulsarRanges:
        return PulsarRanges((replace(whole.parts[0], start=begin, end=stop),))

    ids(found, [part(cuts[1], cuts[2])])
    assert 0 < len(letters_in(tmp_path)) < 20
    ids(found, [whole])
    assert [row["value"] for row in letters_in(tmp_path)] == values()
    ids(found, [part(cuts[0], cuts[2]), part(cuts[2], cuts[3]), whole])
    assert [row["value"] for row in letters_in(tmp_path)] == values()


def test_malformed_messages_inside_batches_are_stored(broker, client, topic, tmp_path):
    """A whole batch of them, whose ranges end inside it."""
    publish(client, topic, rounds=1)
    with client.create_producer(topic, batching_max_messages=50) as producer:
        producer.send_table(pa.table({"value": pa.array(values(50), pa.binary())}))
    found = reader(broker, topic, deadLetterPath=tmp_path)
    (whole,) = found.partitions()
    assert isinstance(whole, PulsarRanges)
    end = whole.parts[0].end
    middle = Offset(end.ledger, end.entry, 20)
    first, rest = replace(whole.parts[0], end=middle), replace(whole.parts[0], start=middle)
    ids(found, [PulsarRanges((first,))])
    assert [row["value"] for row in letters_in(tmp_path)][1:] == values(50)[:21]
    for part in (rest, first, rest, whole.parts[0]):
        ids(found, [PulsarRanges((part,))])
    assert [row["value"] for row in letters_in(tmp_path)][1:] == values(50)
    assert [row["__batchIndex"] for row in letters_in(tmp_path)][1:] == list(range(50))


def test_a_query_that_stops_early_stores_only_its_dead_letters(broker, client, topic, tmp_path, monkeypatch):
    publish(client, topic)
    monkeypatch.setattr("geminga.spark.source.reading.BATCH_ROWS", 10)
    found = reader(broker, topic, deadLetterPath=tmp_path)
    (part,) = found.partitions()
    batches = found.read(part)
    next(batches)
    batches.close()
    assert 0 < len(letters_in(tmp_path)) < 20
    ids(found, [part])
    assert [row["value"] for row in letters_in(tmp_path)] == values()


def test_times_out_of_range_and_messages_of_many_chunks_are_stored(broker, client, topic, tmp_path):
    publish(client, topic, rounds=1)
    large = bytes(6 * 1024 * 1024)
    with client.create_producer(topic, chunking_enabled=True, batching_enabled=False) as producer:
        producer.send(b"absurd", event_timestamp=(1 << 62) + 5)
        producer.send(large)
    found = reader(broker, topic, deadLetterPath=tmp_path)
    ids(found, found.partitions())
    files = [str(file) for file in tmp_path.rglob("*.parquet")]
    kept = pa.dataset.dataset(files).to_table(columns=["value"]).column(0).to_pylist()
    assert kept[1:] == [b"absurd", large]


def test_dead_letters_that_cannot_be_stored_fail_the_task(broker, client, topic, tmp_path):
    publish(client, topic, rounds=1)
    (tmp_path / "file").write_text("")
    found = reader(broker, topic, deadLetterPath=tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        ids(found, found.partitions())


@pytest.fixture
def store(tmp_path, monkeypatch):
    pytest.importorskip("moto")
    pytest.importorskip("flask")
    with ObjectStore.start(tmp_path) as started:
        for name, value in started.environment().items():
            monkeypatch.setenv(name, value)
        yield started


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "PERMISSIVE"])
def test_dead_letters_are_stored_once_in_an_object_store(broker, client, topic, store, mode):
    """Each once, also when tasks run again and beside themselves."""
    publish(client, topic)
    place = f"s3a://{store.bucket}/lake/letters"
    found = reader(broker, topic, mode=mode, deadLetterPath=place, maxEntriesPerSplit=15)
    parts = found.partitions()
    count = len(parts)
    assert count > 2
    with ThreadPoolExecutor(4) as pool:
        twice = list(pool.map(lambda part: ids(found, [part]), [*parts, *parts]))
    rows = [number for some in twice[:count] for number in some]
    assert [number for number in rows if number is not None] == list(range(60))
    assert len(rows) == (80 if mode == "PERMISSIVE" else 60)
    ids(found, parts)
    files, root = resolve(place)
    kept = pa.dataset.dataset(root, filesystem=files, format="parquet").to_table()
    assert kept.schema.equals(LETTERS)
    assert Counter(kept.column("value").to_pylist()) == Counter(values())


@pytest.mark.long
def test_an_unreachable_object_store_fails_the_task(broker, client, topic, store):
    publish(client, topic, rounds=1)
    found = reader(broker, topic, deadLetterPath=f"s3a://{store.bucket}/letters")
    store.stop()
    with pytest.raises(OSError, match="letters"):
        ids(found, found.partitions())


def options(**given: Any) -> ReadOptions:
    base = {"service.url": "pulsar://h", "topic": "t", "valueSchema": "TOPIC"}
    return read_options({**base, **given})


def test_dead_letter_options_choose_the_mode():
    assert options().payload_mode == "FAILFAST"
    assert options(deadLetterPath="/x").payload_mode == "DROPMALFORMED"
    assert options(deadLetterPath="/x", mode="PERMISSIVE").payload_mode == "PERMISSIVE"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deadLetterPath": "/x", "mode": "FAILFAST"}, "FAILFAST"),
        ({"deadLetterPath": "/x", "valueSchema": "BYTES"}, "deadLetterPath requires payloads"),
    ],
)
def test_invalid_options_are_refused(given, message):
    with pytest.raises(InvalidConfiguration, match=message):
        options(**given)
