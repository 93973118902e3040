"""The proof detects lost, duplicated and changed rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from geminga.demo import proof
from geminga.demo.flights import Checksum
from geminga.demo.pipeline import Lake


def window(**changed: Any) -> dict[str, Any]:
    return {
        "day": "2013-01-01", "origin": "JFK", "carrier": "B6", "airline": "JetBlue Airways", "flights": 4,
        "crc32_sum": 1000, "cancelled": 1, "mean_departure_delay": 12.5, "worst_departure_delay": 30.0,
        "on_time_share": 2 / 3, **changed,
    }  # fmt: skip


WINDOWS = [
    window(),
    window(origin="EWR", flights=1, crc32_sum=10, cancelled=1, mean_departure_delay=None, on_time_share=None),
]
PUBLISHED = Checksum(5, 1010)


def as_message(one: dict[str, Any]) -> dict[str, Any]:
    """As Spark's JSON has it: nulls are left out."""
    return json.loads(json.dumps({k: v for k, v in one.items() if v is not None}))


def test_the_same_windows_are_equal_in_any_order():
    messages = [as_message(one) for one in reversed(WINDOWS)]
    found = proof.account(PUBLISHED, PUBLISHED, WINDOWS, messages)
    assert found["is_equal"]
    assert found["rollup"] == {"windows": 2, "messages": 2, "is_equal": True}
    assert found["messages"] == {"count": 5, "crc32_sum": 1010}


@pytest.mark.parametrize(
    "messages",
    [
        WINDOWS[:1],
        [*WINDOWS, WINDOWS[0]],
        [WINDOWS[0], WINDOWS[0]],
        [window(worst_departure_delay=31.0), WINDOWS[1]],
    ],
    ids=["lost", "doubled", "one for another", "changed in a column without a sum"],
)
def test_a_wrong_rollup_is_detected(messages):
    found = proof.account(PUBLISHED, PUBLISHED, WINDOWS, messages)
    assert not found["is_equal"]
    assert not found["rollup"]["is_equal"]


def test_a_wrong_lake_is_detected():
    for rows, windows in ((Checksum(5, 1011), WINDOWS), (PUBLISHED, WINDOWS[:1])):
        found = proof.account(PUBLISHED, rows, windows, windows)
        assert not found["is_equal"]
        assert found["rollup"]["is_equal"]


def test_the_tables_are_read_from_their_files(tmp_path):
    import datetime

    lake = Lake(folder=tmp_path)
    for table, rows in (
        ("flights", [{"crc32": 4}, {"crc32": 6}]),
        ("delays", [{**each, "day": datetime.date(2013, 1, 1)} for each in WINDOWS]),
    ):
        Path(lake.table(table)).mkdir(parents=True)
        parquet.write_table(pa.Table.from_pylist(rows), f"{lake.table(table)}/part-0.parquet")
    assert proof.of_rows(lake) == Checksum(2, 10)
    assert proof.as_multiset(proof.windows(lake)) == proof.as_multiset(WINDOWS)


def test_every_message_is_read_back(pulsar_client, pulsar_topic):
    with pulsar_client.create_producer(pulsar_topic) as producer:
        for one in (*WINDOWS, WINDOWS[0]):
            producer.send(json.dumps(one).encode())
    assert proof.messages(pulsar_client, pulsar_topic) == [*WINDOWS, WINDOWS[0]]


def test_micro_batches_of_a_killed_driver_are_read(tmp_path):
    assert proof.micro_batches(str(tmp_path)) == (-1, -1)
    for log, batches in (("offsets", ("9", "10", ".10.crc")), ("commits", ("9", ".9.crc"))):
        (tmp_path / log).mkdir()
        for batch in batches:
            (tmp_path / log / batch).touch()
    assert proof.micro_batches(str(tmp_path)) == (10, 9)


def test_airlines_are_sorted_by_punctuality():
    late = window(carrier="EV", airline="ExpressJet", flights=2, cancelled=0, on_time_share=0.5)
    found = proof.airlines([*WINDOWS, late])
    assert [each["airline"] for each in found] == ["JetBlue Airways", "ExpressJet"]
    assert found[0] == {
        "airline": "JetBlue Airways", "flights": 5, "mean_delay": 12.5, "on_time": pytest.approx(2 / 3),
        "cancelled": 0.4,
    }  # fmt: skip
