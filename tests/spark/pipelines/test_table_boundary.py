"""Boundary between a table of the lake and its source topic, which stays fixed."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import geminga
from geminga.client.admin import admin
from geminga.errors import InvalidConfiguration, StoreDamaged
from geminga.spark.datasource import PulsarDataSource
from geminga.spark.offsets import WHOLE_ENTRY, from_json
from geminga.spark.pipelines.table_boundary import COLUMNS, last_places, pinned_seam
from geminga.spark.source.data_loss import DataLossError

TOPIC = "persistent://public/default/seamed"


@pytest.fixture(scope="module")
def broker():
    with geminga.embedded() as broker:
        admin(broker.admin_url, "PUT", "persistent/public/default/seamed/partitions", 3)
        yield broker


def lay(folder: Path, rows: list[tuple[str, int, int, int]], name: str = "0") -> str:
    folder.mkdir(exist_ok=True)
    types = (pa.string(), pa.int64(), pa.int64(), pa.int32())
    columns = zip(COLUMNS, zip(*rows, strict=True), types, strict=True)
    table = pa.table({column: pa.array(values, kind) for column, values, kind in columns})
    parquet.write_table(table, folder / f"{name}.parquet")
    return str(folder)


def part(index: int) -> str:
    return f"{TOPIC}-partition-{index}"


def test_the_last_position_of_each_partition_is_found_in_any_order(tmp_path):
    rows = [
        (part(0), 7, 3, 1), (part(0), 7, 3, 12), (part(0), 7, 2, 40), (part(1), 9, 0, -1),
        (part(1), 8, 99, 5),
        ("persistent://public/default/other", 99, 9, 9),
    ]  # fmt: skip
    table = lay(tmp_path / "t", rows)
    lay(tmp_path / "t", [(part(0), 7, 3, 11)], "1")
    assert last_places(table, TOPIC) == {(TOPIC, 0): (7, 3, 12), (TOPIC, 1): (9, 0, WHOLE_ENTRY)}


def test_the_seam_is_looked_up_once_and_stored(broker, tmp_path):
    table = lay(tmp_path / "t", [(part(0), 7, 3, 12), (part(1), 9, 0, -1)])
    file = (tmp_path / "seam.json").as_uri()
    arguments = {"table": table, "service_url": broker.service_url, "topic": "seamed"}
    seam = pinned_seam(file, **arguments)
    # The third partition, which the table does not know, is read from its first message.
    assert json.loads(seam.starting_offsets) == {TOPIC: {"0": "7:3:12", "1": "9:0", "2": "-1:-1"}}
    assert seam.places == [(part(0), (7, 3, 12)), (part(1), (9, 0, WHOLE_ENTRY))]
    assert from_json(seam.starting_offsets) == seam.offsets
    lay(tmp_path / "t", [(part(0), 8, 0, 0)], "1")
    assert pinned_seam(file, **arguments) == seam
    with pytest.raises(InvalidConfiguration, match=r"is the boundary of the table .* make a new project"):
        pinned_seam(file, **{**arguments, "topic": "another"})
    with pytest.raises(InvalidConfiguration, match=r"has no row of .*another: was it made"):
        pinned_seam(str(tmp_path / "other.json"), **{**arguments, "topic": "another"})
    assert not (tmp_path / "other.json").exists()
    (tmp_path / "seam.json").write_text("{")
    with pytest.raises(StoreDamaged, match="is not a boundary file"):
        pinned_seam(file, **arguments)


def test_the_seam_has_the_topic_names_of_the_source(broker, tmp_path):
    with broker.client() as client, client.create_producer(TOPIC) as producer:
        for number in range(9):
            producer.send(b"%d" % number, partition_key=str(number))
    options = {"service.url": broker.service_url, "topic": TOPIC, "startingOffsets": "earliest"}
    source = PulsarDataSource({**options, "columns": ",".join(COLUMNS)})
    reader = source.reader(source.schema())
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    (tmp_path / "t").mkdir()
    parquet.write_table(pa.Table.from_batches(batches), tmp_path / "t/0.parquet")
    seam = pinned_seam(
        str(tmp_path / "seam.json"), table=str(tmp_path / "t"), service_url=broker.service_url, topic=TOPIC
    )
    used = {topic for batch in batches for topic in batch["__topic"].to_pylist()}
    assert {topic for topic, _ in seam.places} == used
    assert set(seam.offsets) == {(TOPIC, index) for index in range(3)}


def test_a_table_without_positions_is_refused(tmp_path):
    (tmp_path / "t").mkdir()
    parquet.write_table(pa.table({"id": [1]}), tmp_path / "t/0.parquet")
    with pytest.raises(InvalidConfiguration, match="has no column '__topic'"):
        last_places(str(tmp_path / "t"), TOPIC)


def test_a_deleted_message_at_the_seam_is_an_error(broker, tmp_path):
    """Messages between the table's end and the topic's beginning are unknown: that is an error."""
    topic = "persistent://public/default/trimmed"
    with broker.client() as client:
        for made in range(2):
            with client.create_producer(topic) as producer:
                last = [producer.send(b"%d" % number) for number in range(3)][-1]
            if not made:
                table = lay(tmp_path / "t", [(topic, last.ledger_id(), last.entry_id(), -1)])
                admin(broker.admin_url, "DELETE", "persistent/public/default/trimmed?force=true")
    seam = pinned_seam(str(tmp_path / "seam.json"), table=table, service_url=broker.service_url, topic=topic)
    options = {"service.url": broker.service_url, "topic": topic, "startingOffsets": seam.starting_offsets}
    source = PulsarDataSource({**options, "columns": "value"})
    reader = source.streamReader(source.schema())
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    parts = list(reader.partitions(begin, end))
    with pytest.raises(DataLossError, match=r"the entry \d+:2 of .*trimmed is gone"):
        list(reader.read(parts[0]))
