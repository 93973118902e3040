import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs
from pyspark.sql.types import BinaryType, StructField, StructType

from geminga.errors import InvalidConfiguration, StoreDamaged
from geminga.spark.options import write_options
from geminga.spark.sink.exactly_once import NumberedWriter
from geminga.spark.sink.staging import (
    ABANDONED_SECONDS,
    STAGED_SCHEMA,
    Epoch,
    Staging,
    job_folder,
    planned,
    remove_abandoned_jobs,
)
from geminga.wire.checksum import crc32c


def batch(*bodies: bytes) -> pa.RecordBatch:
    rows = [
        {
            "topic": "t", "partition": 0, "count": 1, "uncompressed_size": len(body), "compression": 0,
            "partition_key": None, "ordering_key": None, "checksum": crc32c(body), "body": body,
        }
        for body in bodies
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=STAGED_SCHEMA)


@pytest.fixture
def staging(tmp_path):
    return Staging(str(tmp_path / "a b"))


def files(staging: Staging) -> list[str]:
    root = Path(staging.root)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_staged_batches_are_read_back(staging):
    name = staging.stage(iter([batch(b"a", b"b"), batch(b""), batch(b"c")]))
    assert [bytes(row["body"]) for row in staging.staged(name)] == [b"a", b"b", b"", b"c"]
    staging.discard([name, "never-there.arrow"])
    assert files(staging) == []
    with pytest.raises(StoreDamaged, match=r"is missing.*stagingLocation"):
        list(staging.staged(name))


@pytest.mark.parametrize("where", [0.02, 0.5, 0.9])
@pytest.mark.parametrize("how", ["flip", "cut"])
def test_damage_is_detected_and_named(staging, where, how):
    name = staging.stage(iter([batch(b"x" * 3000)]))
    path = Path(staging.root) / "staged" / name
    content = bytearray(path.read_bytes())
    at = int(len(content) * where)
    if how == "flip":
        content[at] ^= 0x40
    path.write_bytes(content if how == "flip" else content[:at])
    with pytest.raises(StoreDamaged, match=name):
        list(staging.staged(name))


def test_the_name_is_decided_once(tmp_path):
    def name(wanted: str | None, default: str = "d", query: str = "q") -> str:
        staging = Staging(str(tmp_path), query, "persistent://public/default/t")
        found = staging.sink_name(wanted, default)
        staging.keep_name(found)
        return found

    assert [name(None), name(None, "other"), name("d")] == ["d", "d", "d"]
    with pytest.raises(InvalidConfiguration, match="must keep its name"):
        name("other")
    assert name("mine", query="q2") == "mine"


def test_each_query_and_target_has_its_own_folder(tmp_path):
    keys = [("q", "t"), ("q", "persistent://a/b/t"), ("q", "persistent://a/b-t"), ("q2", "t"), ("q", "..")]
    roots = {Staging(str(tmp_path), *key).root for key in keys}
    assert len(roots) == len(keys)
    for root in roots:
        assert Path(root).resolve().parent.parent == tmp_path
    for key in keys:
        staging = Staging(str(tmp_path), *key)
        assert not staging.is_done(0)
        staging.finish(0)
    Staging(str(tmp_path), "q", "t").remove()
    assert not Staging(str(tmp_path), "q", "t").is_done(0)
    assert Staging(str(tmp_path), "q2", "t").is_done(0)


def test_a_micro_batch_is_decided_and_finished(staging):
    for number in range(4):
        names = [staging.stage(iter([batch(b"a")])), staging.stage(iter([batch(b"b")]))]
        orphan = staging.stage(iter([batch(b"of an attempt that failed")]))
        assert staging.epoch(number) is None
        epoch = Epoch(files=tuple(names), rows=2, plan="p")
        staging.decide(number, epoch)
        assert staging.epoch(number) == epoch
        assert not staging.is_done(number)
        assert f"staged/{orphan}" in files(staging)
        staging.finish(number)
        assert staging.is_done(number)
    assert files(staging) == ["epochs/2.done", "epochs/2.json", "epochs/3.done", "epochs/3.json"]


def test_decisions_of_an_older_release_are_read(staging):
    staging.decide(0, Epoch(files=("a",)))
    note = Path(staging.root) / "epochs" / "0.json"
    note.write_text('{"files": ["a"]}')
    assert staging.epoch(0) == Epoch(files=("a",))
    assert Epoch(files=("a",)).is_same(Epoch(files=("b",), rows=5, plan="p"))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ((5, "p"), (7, "p"), True), ((5, "p"), (5, "q"), False), ((5, None), (5, "q"), True),
        ((5, None), (7, None), False), ((None, None), (7, "p"), True),
    ],
)  # fmt: skip
def test_micro_batches_are_compared_by_offsets_or_rows(one, other, is_same):
    first, second = (Epoch(files=(), rows=rows, plan=plan) for rows, plan in (one, other))
    assert first.is_same(second) == second.is_same(first) == is_same


def test_a_plan_is_sparks_record_without_its_time(tmp_path):
    log = tmp_path / "offsets"
    log.mkdir()
    assert planned(str(tmp_path), 0) is None
    assert planned(None, 0) is None
    assert planned("no-such-scheme://x", 0) is None

    def note(number: int, time: int, *sources: str) -> str | None:
        text = "\n".join(["v1", f'{{"batchTimestampMs":{time}}}', *sources])
        (log / str(number)).write_text(text)
        return planned(tmp_path.as_uri(), number)

    first = note(0, 1, "a:1", "b:1")
    assert first is not None
    assert note(0, 2, "a:1", "b:1") == first
    assert note(0, 1, "a:1", "b:2") != first
    second = note(1, 1, "a:2", "b:2")
    assert second not in (first, None)
    note(0, 1, "a:0", "b:0")
    assert planned(str(tmp_path), 1) != second, "it begins elsewhere"


def test_a_damaged_note_is_named(staging):
    staging.decide(0, Epoch(files=()))
    (Path(staging.root) / "epochs" / "0.json").write_text("{")
    with pytest.raises(StoreDamaged, match=r"epochs/0\.json of the exactly-once sink is damaged"):
        staging.epoch(0)


def test_staging_locations_may_be_uris(tmp_path):
    staging = Staging((tmp_path / "u").as_uri())
    staging.decide(0, Epoch(files=("x",)))
    assert (tmp_path / "u" / "epochs" / "0.json").exists()


def test_folders_of_killed_batch_queries_are_deleted_after_a_week(tmp_path):
    location = str(tmp_path)
    old, new = Staging(job_folder(location), "q", "t"), Staging(job_folder(location), "q", "t")
    for each in (old, new):
        each.stage(iter([batch(b"row")]))
    before = time.time() - ABANDONED_SECONDS - 60
    (tmp_path / "job-of-mine").mkdir()  # not made by a query
    (tmp_path / "job-of-mine/rows.arrow").write_text("")
    for path in [*Path(old.root).parents[1].rglob("*"), tmp_path / "job-of-mine/rows.arrow"]:
        os.utime(path, (before, before))
    remove_abandoned_jobs(location)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [Path(new.root).parents[1].name, "job-of-mine"]
    )
    remove_abandoned_jobs(str(tmp_path / "missing"))


def test_folders_that_have_no_times_or_vanish_meanwhile_are_left(tmp_path, monkeypatch):
    timeless, ended = (Path(job_folder(str(tmp_path))) for _ in range(2))
    for each in (timeless, ended):
        each.mkdir()

    class Files(fs.LocalFileSystem):
        def get_file_info(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
            if selector.base_dir == str(timeless):
                return [fs.FileInfo(f"{timeless}/rows.arrow", fs.FileType.File)]
            if selector.base_dir == str(ended) and ended.exists():
                ended.rmdir()  # its query has ended
            return super().get_file_info(selector)

    monkeypatch.setattr("geminga.spark.sink.staging.resolve", lambda location: (Files(), location))
    remove_abandoned_jobs(str(tmp_path))
    assert list(tmp_path.iterdir()) == [timeless]


def test_a_published_query_does_not_fail_for_a_folder_that_cannot_be_deleted(tmp_path, monkeypatch, caplog):
    def fails(location: str) -> None:
        raise PermissionError(f"{location}: not yours")

    monkeypatch.setattr("geminga.spark.sink.exactly_once.remove_abandoned_jobs", fails)
    schema = StructType([StructField("value", BinaryType())])
    options = {"service.url": "pulsar://localhost:1", "topic": "t", "exactlyOnce": "true"}
    writer = NumberedWriter(write_options({**options, "stagingLocation": str(tmp_path)}), schema)
    writer.commit([None])
    assert "not yours" in caplog.text
