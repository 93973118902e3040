"""The proof detects lost, duplicated and changed rows."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from geminga.demo import proof
from geminga.demo.flights import Checksum

AT = dt.datetime(2013, 1, 1, 23, 59, tzinfo=dt.UTC)
ROWS = [(400, "JFK", "B6"), (300, "JFK", "B6"), (300, "JFK", "B6"), (10, "EWR", "UA")]
PUBLISHED = Checksum(4, 1010)


def table(rows: list[tuple[int, str, str]]) -> pa.Table:
    checksums, origins, carriers = zip(*rows, strict=True)
    times = pa.array([AT] * len(rows), pa.timestamp("us", "UTC"))
    return pa.table({"crc32": checksums, "event_time": times, "origin": origins, "carrier": carriers})


def message(**changed: Any) -> dict[str, Any]:
    return {
        "day": "2013-01-01", "origin": "JFK", "carrier": "B6", "airline": "JetBlue Airways", "flights": 3,
        "crc32_sum": 1000, **changed,
    }  # fmt: skip


MESSAGES = [message(), message(origin="EWR", carrier="UA", flights=1, crc32_sum=10)]


def test_the_same_rows_and_windows_are_equal_in_any_order():
    found = proof.account(PUBLISHED, table(ROWS[::-1]), MESSAGES[::-1])
    assert found["is_equal"]
    assert found["windows"] == 2
    assert found["rows"] == found["messages"] == {"count": 4, "crc32_sum": 1010}


@pytest.mark.parametrize(
    "messages",
    [
        MESSAGES[:1],
        [*MESSAGES, MESSAGES[0]],
        [MESSAGES[0], MESSAGES[0]],
        [message(day="2013-01-02"), MESSAGES[1]],
        [message(flights=2, crc32_sum=700), message(flights=1, crc32_sum=300), MESSAGES[1]],
    ],
    ids=["lost", "doubled", "one for another", "of another day", "in two parts"],
)
def test_a_wrong_rollup_is_detected(messages):
    assert not proof.account(PUBLISHED, table(ROWS), messages)["is_equal"]


@pytest.mark.parametrize("rows", [ROWS[:3], [*ROWS, ROWS[3]], [(401, "JFK", "B6"), *ROWS[1:]]])
def test_a_wrong_lake_is_detected(rows):
    assert not proof.account(PUBLISHED, table(rows), MESSAGES)["is_equal"]


def test_every_message_is_read_back(pulsar_client, pulsar_topic):
    with pulsar_client.create_producer(pulsar_topic) as producer:
        for one in (*MESSAGES, MESSAGES[0]):
            producer.send(json.dumps(one).encode())
    assert proof.messages(pulsar_client, pulsar_topic) == [*MESSAGES, MESSAGES[0]]


def test_the_lake_is_what_its_newest_list_names(tmp_path: Path):
    folder = tmp_path / "flights"
    (folder / "_spark_metadata").mkdir(parents=True)
    for name, rows in (("good", ROWS), ("of-a-failed-batch", ROWS[:1])):
        parquet.write_table(table(rows), folder / f"{name}.parquet")
    entry = {
        "path": (folder / "good.parquet").as_uri(), "size": (folder / "good.parquet").stat().st_size,
        "isDir": False, "modificationTime": 1, "blockReplication": 1, "blockSize": 1, "action": "add",
    }  # fmt: skip
    (folder / "_spark_metadata" / "0.compact").write_text(f"v1\n{json.dumps(entry)}")
    assert proof.rows(str(folder)).sort_by("crc32").equals(table(ROWS).sort_by("crc32"))
    assert [file.name for file in folder.glob("*.parquet")] == ["good.parquet"]
