"""Where a table of the lake ends in the topic that it was made of, and that it stays there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import geminga
from geminga.client.admin import admin
from geminga.errors import InvalidConfiguration, StoreDamaged
from geminga.spark.offsets import WHOLE_ENTRY, from_json
from geminga.spark.pipelines.seam import last_places, pinned_seam

TOPIC = "persistent://public/default/seamed"


@pytest.fixture(scope="module")
def broker() -> Iterator[geminga.EmbeddedBroker]:
    with geminga.embedded() as broker:
        admin(broker.admin_url, "PUT", "persistent/public/default/seamed/partitions", 3)
        yield broker


def lay(folder: Path, rows: list[tuple[str, int, int, int, int]], name: str = "0") -> str:
    folder.mkdir(exist_ok=True)
    types = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int32())
    names = ("__topic", "__partition", "__ledgerId", "__entryId", "__batchIndex")
    columns = zip(names, zip(*rows, strict=True), types, strict=True)
    table = pa.table({column: pa.array(values, kind) for column, values, kind in columns})
    parquet.write_table(table, folder / f"{name}.parquet")
    return str(folder)


def test_the_last_place_of_each_partition_in_whatever_order(tmp_path: Path) -> None:
    rows = [
        (TOPIC, 0, 7, 3, 1), (TOPIC, 0, 7, 3, 12), (TOPIC, 0, 7, 2, 40), (TOPIC, 1, 9, 0, -1),
        (TOPIC, 1, 8, 99, 5), ("persistent://public/default/other", 0, 99, 9, 9),
    ]  # fmt: skip
    table = lay(tmp_path / "t", rows)
    lay(tmp_path / "t", [(TOPIC, 0, 7, 3, 11)], "1")
    assert last_places(table, TOPIC) == {(TOPIC, 0): (7, 3, 12), (TOPIC, 1): (9, 0, WHOLE_ENTRY)}


def test_it_is_looked_up_once_and_kept(broker: geminga.EmbeddedBroker, tmp_path: Path) -> None:
    table = lay(tmp_path / "t", [(TOPIC, 0, 7, 3, 12), (TOPIC, 1, 9, 0, -1)])
    file = (tmp_path / "seam.json").as_uri()
    arguments = {"table": table, "service_url": broker.service_url, "topic": "seamed"}
    seam = pinned_seam(file, **arguments)
    # The third partition, which the table does not know, is read from its first message.
    assert json.loads(seam.starting_offsets) == {TOPIC: {"0": "7:3:12", "1": "9:0", "2": "earliest"}}
    assert seam.places == [(TOPIC, 0, (7, 3, 12)), (TOPIC, 1, (9, 0, WHOLE_ENTRY))]
    assert from_json(seam.starting_offsets) == seam.offsets
    lay(tmp_path / "t", [(TOPIC, 0, 8, 0, 0)], "1")
    assert pinned_seam(file, **arguments) == seam
    with pytest.raises(InvalidConfiguration, match=r"is the seam of the table .* make a new project"):
        pinned_seam(file, **{**arguments, "topic": "another"})
    (tmp_path / "seam.json").write_text("{")
    with pytest.raises(StoreDamaged, match="is not a seam"):
        pinned_seam(file, **arguments)


def test_a_table_that_does_not_note_places_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    parquet.write_table(pa.table({"id": [1]}), tmp_path / "t/0.parquet")
    with pytest.raises(InvalidConfiguration, match="has no column '__topic'"):
        last_places(str(tmp_path / "t"), TOPIC)
