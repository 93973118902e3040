"""Tables as Spark's file sink leaves them: which files count, and putting them together against crashes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from geminga.errors import InvalidConfiguration, StoreDamaged, UsageError
from geminga.spark.pipelines import lake


def write(table: Path, batch: int, *rows: list[int], day: int | None = None, **more: object) -> list[Path]:
    """Write the files of Spark's micro-batch ``batch``: a file for each list, and a list of all files."""
    log = table / lake.METADATA
    log.mkdir(parents=True, exist_ok=True)
    made = []
    for number, ids in enumerate(rows):
        columns: dict[str, object] = {"id": pa.array(ids, pa.int64())}
        if day is not None:
            columns["__day"] = pa.array([day] * len(ids), pa.int32())
        columns |= {name: [value] * len(ids) for name, value in more.items()}
        path = table / f"part-{batch:05}-{number}.snappy.parquet"
        parquet.write_table(pa.table(columns), path)
        made.append(path)
    before = log / f"{batch - 1}.compact"
    lines = before.read_text().splitlines()[1:] if before.exists() else []
    for path in made:
        size = path.stat().st_size
        entry = {
            "path": path.as_uri(), "size": size, "isDir": False, "modificationTime": 1, "blockReplication": 1,
            "blockSize": 33554432, "action": "add",
        }  # fmt: skip
        lines.append(json.dumps(entry, separators=(",", ":")))
    (log / f"{batch}.compact").write_text("\n".join(["v1", *lines]))
    (log / f".{batch}.compact.crc").write_bytes(b"checksum of what was there")
    return made


def ids(table: Path) -> list[int]:
    return sorted(lake.table_dataset(str(table)).to_table()["id"].to_pylist())


def test_files_of_a_failed_micro_batch_are_ignored(tmp_path):
    write(tmp_path, 0, [1, 2], [3])
    parquet.write_table(pa.table({"id": [99]}), tmp_path / "part-left-over.snappy.parquet")
    assert ids(tmp_path) == [1, 2, 3]
    assert lake.size(str(tmp_path)) == lake.TableSize(3, 2)


def test_a_table_may_be_named_by_a_path_object(tmp_path):
    write(tmp_path, 0, [1, 2])
    assert lake.table_dataset(tmp_path).count_rows() == 2
    assert lake.files(tmp_path) == lake.files(str(tmp_path))


def test_lists_with_only_new_files_are_combined(tmp_path):
    write(tmp_path, 0, [1])
    write(tmp_path, 1, [2])
    log = tmp_path / lake.METADATA
    second = (log / "1.compact").read_text().splitlines()
    (log / "0.compact").rename(log / "0")
    (log / "1").write_text("\n".join([second[0], second[2]]))
    (log / "1.compact").unlink()
    assert ids(tmp_path) == [1, 2]
    with pytest.raises(UsageError, match=r"compactInterval to 1"):
        lake.compact(str(tmp_path))
    (log / "0").unlink()
    with pytest.raises(StoreDamaged, match=r"micro-batches \[0\] are missing"):
        lake.files(str(tmp_path))


@pytest.mark.parametrize("text", ["v2\n{}", "v1\nno json", 'v1\n{"size":1}'])
def test_an_invalid_file_list_is_named(text, tmp_path):
    write(tmp_path, 0, [1])
    (tmp_path / lake.METADATA / "0.compact").write_text(text)
    with pytest.raises(StoreDamaged, match=r"0\.compact"):
        lake.files(str(tmp_path))


def test_small_files_are_merged_by_day(tmp_path):
    for batch in range(6):
        write(tmp_path, batch, list(range(batch * 10, batch * 10 + 10)), day=batch % 2)
    write(tmp_path, 6, [])
    before = ids(tmp_path)
    done = lake.compact(str(tmp_path))
    assert (done.files_before, done.files_after) == (7, 2)
    assert ids(tmp_path) == before == list(range(60))
    days = [set(parquet.read_table(path)["__day"].to_pylist()) for path in lake.files(str(tmp_path))]
    assert sorted(map(tuple, days)) == [(0,), (1,)]
    # Spark's next micro-batch continues from the new list; the old files may be deleted.
    write(tmp_path, 7, [60], day=0)
    assert lake.clean(str(tmp_path)) == []
    assert len(lake.clean(str(tmp_path), keep_seconds=0)) == 7
    assert ids(tmp_path) == list(range(61))
    assert not (tmp_path / lake.METADATA / ".6.compact.crc").exists()
    assert lake.clean(str(tmp_path), keep_seconds=0) == []


def test_large_files_stay_and_merged_ones_have_the_target_size(tmp_path):
    for batch in range(8):
        write(tmp_path, batch, list(range(batch * 1000, batch * 1000 + 1000)))
    each = int(next(iter(tmp_path.glob("*.parquet"))).stat().st_size)
    done = lake.compact(str(tmp_path), target_bytes=3 * each)
    assert done.files_after == 3
    again = lake.compact(str(tmp_path), target_bytes=each)
    assert again.files_before == again.files_after == 3
    assert ids(tmp_path) == list(range(8000))


def test_rows_from_before_a_column_was_added_have_null_in_it(tmp_path):
    write(tmp_path, 0, [1])
    write(tmp_path, 1, [2], name="new")
    lake.compact(str(tmp_path))
    (only,) = lake.files(str(tmp_path))
    assert parquet.read_table(only).to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "new"}]


def test_a_path_may_contain_spaces(tmp_path):
    table = tmp_path / "a table"
    write(table, 0, [1], [2])
    lake.compact(str(table))
    assert ids(table) == [1, 2]
    assert len(lake.files(table.as_uri())) == 1


KILLED = """
import os, sys
from geminga.spark.pipelines import lake
done = 0
def maybe(call):
    def inner(*arguments, **named):
        global done
        done += 1
        if done == step:
            os.kill(os.getpid(), 9)
        return call(*arguments, **named)
    return inner
for step, table in enumerate(sys.stdin, 1):
    child = os.fork()
    if child == 0:
        for name in ("open", "fsync", "replace", "unlink"):
            setattr(lake.os, name, maybe(getattr(os, name)))
        lake.parquet.ParquetWriter.write_batch = maybe(lake.parquet.ParquetWriter.write_batch)
        lake.compact(table.strip())
        lake.clean(table.strip(), keep_seconds=0)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_kill_at_any_step_of_a_compaction_keeps_the_rows(tmp_path):
    """At each system call of a compaction and of the cleaning after it."""
    before, step, status = None, 0, -9
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        while status == -9:
            step += 1
            table = tmp_path / f"t{step}"
            for batch in range(3):
                write(table, batch, [batch * 2, batch * 2 + 1], day=batch % 2)
            before = before or ids(table)
            print(table, file=killed.stdin, flush=True)
            status = int(killed.stdout.readline())
            assert ids(table) == before, f"after a kill at step {step}"
            lake.compact(str(table))
            lake.clean(str(table), keep_seconds=0)
            assert ids(table) == before, f"compacted again after a kill at step {step}"
            assert {str(path) for path in table.glob("*.parquet")} == set(lake.files(str(table)))
        assert status == 0
        assert step > 8


def test_files_that_are_being_written_are_not_deleted(tmp_path):
    write(tmp_path, 0, [1])
    young = tmp_path / "part-young.snappy.parquet"
    parquet.write_table(pa.table({"id": [2]}), young)
    old = tmp_path / "part-old.snappy.parquet"
    parquet.write_table(pa.table({"id": [3]}), old)
    long_ago = time.time() - 2 * lake.KEEP_SECONDS
    os.utime(old, (long_ago, long_ago))
    assert lake.clean(str(tmp_path)) == [str(old)]
    assert young.exists()
    with pytest.raises(InvalidConfiguration, match="keep_seconds=-1"):
        lake.clean(str(tmp_path), keep_seconds=-1)


def test_a_table_not_written_by_a_stream_is_refused(tmp_path):
    parquet.write_table(pa.table({"id": [1]}), tmp_path / "part-0.parquet")
    assert ids(tmp_path) == [1]
    for act in (lake.compact, lake.clean):
        with pytest.raises(UsageError, match="was not written by a stream"):
            act(str(tmp_path))
