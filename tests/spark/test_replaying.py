"""``format("pulsar_replay")``: order, pace and offsets to resume from, with a test clock."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from geminga.errors import InvalidConfiguration
from geminga.spark import replaying
from geminga.spark.replaying import LakeReplaySource, ReplayOptions

START = 1_760_000_000_000_000


def lay(folder: Path, name: str, micros: Any, first_id: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    times = pa.array(np.asarray(micros, np.int64)).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"id": np.arange(first_id, first_id + len(micros)), "at": times})
    parquet.write_table(table, folder / f"{name}.parquet")


class Run:
    """One run of `AvailableNow`, and what it gives by which time of its clock."""

    def __init__(self, folder: Path, **options: str) -> None:
        source = LakeReplaySource({"path": str(folder), "time": "at"} | options)
        reader = source.streamReader(source.schema())
        self.reader = reader
        self.now = 0.0
        self.given: list[tuple[int, int, float]] = []
        self.batches: list[int] = []
        vars(reader).update(clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def go(self, offset: dict[str, Any] | None = None, most: float = math.inf) -> dict[str, Any]:
        self.reader.prepareForTriggerAvailableNow()
        offset = self.reader.initialOffset() if offset is None else offset
        while len(self.batches) < most:
            end = self.reader.latestOffset(offset, self.reader.getDefaultReadLimit())
            if end == offset:
                break
            self.batches.append(0)
            for part in self.reader.partitions(offset, end):
                for batch in self.reader.read(part):
                    times = batch["at"].cast(pa.int64()).to_pylist()
                    rows = zip(times, batch["id"].to_pylist(), strict=True)
                    self.given += [(time, number, self.now) for time, number in rows]
                    self.batches[-1] += len(batch)
            offset = end
            self.now += 0.01
        return offset

    @property
    def ids(self) -> list[int]:
        return [number for _, number, _ in self.given]

    @property
    def times(self) -> list[int]:
        return [time for time, _, _ in self.given]


def scattered(folder: Path, rows: int = 30_000, seconds: int = 60) -> None:
    times = START + np.random.default_rng(7).integers(0, seconds * 1_000_000, rows)
    for part in range(3):
        lay(folder, str(part), times[part * rows // 3 : (part + 1) * rows // 3], part * rows // 3)


@pytest.mark.parametrize(
    ("options", "seconds"), [({}, 0.0), ({"speed": "30"}, 2.0), ({"rowsPerSecond": "10000"}, 3.0)]
)
def test_every_row_is_replayed_once_in_order_and_on_time(options, seconds, tmp_path):
    scattered(tmp_path / "t")
    run = Run(tmp_path / "t", **options)
    run.go()
    assert sorted(run.ids) == list(range(30_000))
    assert run.times == sorted(run.times)
    assert seconds <= run.now <= seconds + 1.0
    for time, _, given in run.given[::1000]:
        if "speed" in options:
            assert given >= (time - START) / 1e6 / 30 - 0.01, "no row before it is due"


def test_a_run_resumes_after_the_previous_one_even_when_files_were_merged(tmp_path):
    scattered(tmp_path / "t")
    first = Run(tmp_path / "t", speed="30")
    offset = first.go(most=3)
    assert 0 < len(first.given) < 30_000
    whole = pa.concat_tables([parquet.read_table(path) for path in (tmp_path / "t").iterdir()])
    for path in (tmp_path / "t").iterdir():
        path.unlink()
    parquet.write_table(whole, tmp_path / "t/one.parquet")
    second = Run(tmp_path / "t", speed="30")
    offset = second.go(offset)
    assert sorted(first.ids + second.ids) == list(range(30_000))
    assert second.times[0] > first.times[-1]
    lay(tmp_path / "t", "later", [START + 100_000_000, START + 1], 30_000)
    with pytest.raises(InvalidConfiguration, match=r"1 rows with a at up to 2025-.*lateRows=skip"):
        Run(tmp_path / "t").go(offset)
    third = Run(tmp_path / "t", speed="30", lateRows="skip")
    offset = third.go(offset)
    assert third.ids == [30_000]
    Run(tmp_path / "t").go(offset)  # messages that were left out once are not reported again


def test_rows_of_the_same_time_are_in_one_micro_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(replaying, "ROWS_MAX", 100)
    lay(tmp_path / "t", "0", [START] * 1000 + [START + 1] * 10 + [START + 2] * 95)
    run = Run(tmp_path / "t")
    run.go()
    assert run.batches == [1000, 10, 95]
    assert run.ids == list(range(1105)), "as the file has them"


def test_a_long_time_span_needs_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(replaying, "BUCKETS_MAX", 64)
    monkeypatch.setattr(replaying, "ROWS_MAX", 500)
    scattered(tmp_path / "t", 30_000, 10**9)
    run = Run(tmp_path / "t")
    offset = run.go(most=5)
    run.batches.clear()
    run.go(offset)
    assert sorted(run.ids) == list(range(30_000))


def test_starting_and_ending_time_select_a_part(tmp_path):
    lay(tmp_path / "t", "0", [START + n * 1_000_000 for n in range(10)])
    run = Run(tmp_path / "t", startingTime="2025-10-09T08:53:22Z", endingTime="2025-10-09T08:53:25+00:00")
    run.go()
    assert run.ids == [2, 3, 4]


def test_times_before_1970_and_empty_tables_are_replayed(tmp_path):
    lay(tmp_path / "t", "0", [])
    run = Run(tmp_path / "t")
    offset = run.go()
    assert run.ids == []
    lay(tmp_path / "t", "1", [-5_000_000, -1, 3])
    again = Run(tmp_path / "t")
    again.go(offset)
    assert again.ids == [0, 1, 2]


def test_rows_without_a_time_are_refused(tmp_path):
    (tmp_path / "t").mkdir()
    times = pa.array([START, None], pa.timestamp("ns"))
    parquet.write_table(pa.table({"id": [0, 1], "at": times}), tmp_path / "t/0.parquet")
    with pytest.raises(InvalidConfiguration, match="1 rows have no at and would never be replayed"):
        Run(tmp_path / "t").go()
    run = Run(tmp_path / "t", nullTimes="skip")
    run.go()
    assert run.ids == [0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "/t"}, "needs time"),
        ({"path": "/t", "time": "at", "spead": "1"}, "did you mean 'speed'"),
        ({"path": "/t", "time": "at", "speed": "0"}, "speed="),
        ({"path": "/t", "time": "at", "speed": "1", "rowsPerSecond": "1"}, "exclude each other"),
        ({"path": "/t", "time": "at", "startingTime": "soon"}, "startingTime="),
        ({"path": "/t", "time": "at", "nullTimes": "drop"}, "nullTimes="),
    ],
)
def test_invalid_options_are_named(options, said):
    with pytest.raises(InvalidConfiguration, match=said):
        ReplayOptions.of(options)


def test_a_missing_or_unsuitable_time_column_is_named(tmp_path):
    lay(tmp_path / "t", "0", [START])
    with pytest.raises(InvalidConfiguration, match="did you mean 'at'"):
        Run(tmp_path / "t", time="att").go()
    with pytest.raises(InvalidConfiguration, match="a column of timestamps; this one is int64"):
        Run(tmp_path / "t", time="id").go()
