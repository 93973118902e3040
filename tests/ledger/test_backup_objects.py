"""Backups in an object store: each complete, unchanged files once, objects of none deleted."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
from pathlib import Path

import pytest

from geminga.errors import NotAStore, StoreDamaged, StoreError
from geminga.ledger.backup.backup import restore
from geminga.ledger.backup.series import StoredBackup, backup_into, chosen
from geminga.ledger.files.format import file_name
from geminga.ledger.inspection import inspect
from geminga.ledger.store import FileStore
from tests.ledger.test_backup_series import DAY, StoreWriter

URL = "s3://user:secret@bucket/backups"


class Bucket:
    """Object store in memory."""

    location = "s3://bucket/backups"
    worker_location = None

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.writes_left = -1

    def create(self, path: str) -> Upload:
        return Upload(self, path)

    def open(self, path: str) -> io.BytesIO:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return io.BytesIO(self.objects[path])

    def read(self, path: str) -> bytes | None:
        return self.objects.get(path)

    def replace(self, path: str, data: bytes) -> None:
        self.objects[path] = data

    def overwrite(self, path: str, data: bytes) -> None:
        raise AssertionError

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)

    def names(self, folder: str) -> list[str]:
        found = (path.rpartition("/") for path in self.objects)
        return sorted(name for parent, _, name in found if parent == folder)


class Upload:
    def __init__(self, bucket: Bucket, path: str) -> None:
        self.bucket, self.path, self.data = bucket, path, b""

    def write(self, data: bytes) -> None:
        if self.bucket.writes_left == 0:
            raise OSError("no answer")
        self.bucket.writes_left -= 1
        self.data += data

    def finish(self) -> None:
        self.bucket.objects[self.path] = self.data

    def abandon(self) -> None:
        self.bucket.objects[self.path] = self.data  # as an object store does that completes an upload


class Writer(StoreWriter):
    bucket: Bucket
    back_up = StoreWriter.store_backup


@pytest.fixture
def writer(tmp_path, small_settings, monkeypatch):
    writer = Writer(tmp_path, small_settings, URL)
    writer.bucket = Bucket()
    monkeypatch.setattr("geminga.ledger.tier.storage.place_at", lambda location, *, fails_soon: writer.bucket)
    return writer


def object_of(found: StoredBackup, writer: Writer, name: str) -> str:
    listed = json.loads(writer.bucket.objects[f"{found.folder[1:]}.json"])["files"]
    return f"files/{listed[name][0]}"


def entries_of(found: StoredBackup, writer: Writer, folder: Path) -> int:
    restore(found.folder, folder, filesystem=found.filesystem)
    with FileStore.open(folder, settings=writer.settings, threads=False) as store:
        assert store.damage.found == []
        (ledger,) = store.ledgers("topic")
        return ledger.entries


def test_unchanged_files_are_stored_once_and_each_backup_is_complete(writer, tmp_path):
    made = []
    for _ in range(3):
        made.append((*writer.back_up(verify=True, entries=40), writer.entries))
        assert writer.report.is_well
    assert made[2][2] >= made[1][1] - 2, "all but the file that was the newest is used again"
    logs = [name for name in writer.bucket.names("files") if "log-" in name]
    assert len(logs) == sum(files - linked for _, files, linked, _ in made)
    for number in range(3):
        found = chosen(URL, DAY + dt.timedelta(days=number + 1))
        assert entries_of(found, writer, tmp_path / f"{number}") == made[number][3]
    assert chosen(URL, None).location == "s3://bucket/backups/2026-12-01T00-00-00Z"
    with pytest.raises(NotAStore, match="oldest backup in s3://bucket/backups is 2026-11-29T00-00-00Z"):
        chosen(URL, DAY)


def test_the_address_of_one_backup_chooses_it(writer, tmp_path):
    first = writer.back_up(entries=20)[0]
    writer.back_up(entries=20)
    for end in ("", "/", "?region=eu-west-1"):
        found = chosen(f"{URL}{first.folder}{end}", None)
        assert found.location == first.location
    assert entries_of(found, writer, tmp_path / "restored") == 20
    with pytest.raises(StoreError, match=f"s3://bucket/backups{first.folder} is a single backup: a time"):
        chosen(f"{URL}{first.folder}", DAY)
    writer.bucket.objects.clear()
    with pytest.raises(NotAStore, match="holds no store and no backups"):
        chosen(f"{URL}{first.folder}", None)


def test_objects_of_deleted_and_interrupted_backups_are_deleted(writer, tmp_path):
    for name in ("2026-11-27T00-00-00Z-log-0000000001", "notes.txt", "2026-12-05T00-00-00Z-version"):
        writer.bucket.objects[f"files/{name}"] = b"?"
    for _ in range(4):
        writer.back_up(keep=2, entries=5)
    assert writer.bucket.names("") == ["2026-12-01T00-00-00Z.json", "2026-12-02T00-00-00Z.json"]
    writer.days += 2
    writer.back_up(keep=3)
    assert writer.bucket.names("deleted") == [], "lists of deleted backups are kept for a day"
    listed = {
        each[0]
        for name in writer.bucket.names("")
        for each in json.loads(writer.bucket.objects[name])["files"].values()
    }
    others = {"notes.txt", "2026-12-05T00-00-00Z-version"}
    assert set(writer.bucket.names("files")) == listed | others, "of another person, and of a running backup"
    assert entries_of(chosen(URL, None), writer, tmp_path / "restored") == 20


def test_a_failed_backup_leaves_nothing_and_the_earlier_one_complete(writer, tmp_path):
    writer.back_up(entries=40)
    before = dict(writer.bucket.objects)
    writer.write(40)
    writer.bucket.writes_left = 2
    with pytest.raises(OSError, match="no answer"):
        writer.back_up(keep=1)
    assert writer.bucket.objects == before
    writer.bucket.writes_left = -1
    assert entries_of(writer.back_up(keep=1)[0], writer, tmp_path / "restored") == 80


def test_a_deleted_object_is_uploaded_again(writer, tmp_path):
    first = writer.back_up(entries=40)[0]
    writer.bucket.delete(object_of(first, writer, file_name(1)))
    found, files, linked = writer.back_up()
    assert linked == files - 2, "neither this one nor the newest"
    assert entries_of(found, writer, tmp_path / "restored") == 40


def test_a_backup_with_a_deleted_object_is_not_restored_and_the_error_names_the_file(writer, tmp_path):
    first = writer.back_up(entries=40)[0]
    writer.bucket.delete(object_of(first, writer, file_name(1)))
    with pytest.raises(StoreDamaged, match=f"{file_name(1)} is missing from {first.folder}"):
        restore(first.folder, tmp_path / "restored", filesystem=first.filesystem)


def test_a_damaged_object_is_found_and_copied_again_and_nothing_is_deleted_before(writer, tmp_path):
    first = writer.back_up(entries=40)[0]
    path = object_of(first, writer, file_name(1))
    data = bytearray(writer.bucket.objects[path])
    data[2000] ^= 255
    writer.bucket.objects[path] = bytes(data)
    assert not inspect(first.folder, filesystem=first.filesystem).is_well
    writer.back_up(keep=1, verify=True)
    assert writer.report is not None
    assert [finding.damage.file for finding in writer.report.findings] == [file_name(1)]
    assert len(writer.bucket.names("")) == 2
    found, _, linked = writer.back_up(keep=1, verify=True)
    assert writer.report.is_well
    assert (linked > 1, len(writer.bucket.names(""))) == (True, 1)
    assert entries_of(found, writer, tmp_path / "restored") == 40


def test_a_damaged_list_is_named_and_deletes_nothing(writer, caplog):
    writer.back_up(entries=5)
    (name,) = writer.bucket.names("")
    objects = writer.bucket.names("files")
    writer.bucket.objects[name] = b"{"
    found = chosen(URL, None)
    with pytest.raises(StoreDamaged, match=r"backups/2026-11-29T00-00-00Z.json does not list the files"):
        inspect(found.folder, filesystem=found.filesystem)
    for _ in range(3):
        writer.back_up(keep=1)
    assert set(objects) < set(writer.bucket.names("files"))
    assert name in writer.bucket.names("")
    assert "no objects are deleted in s3://bucket/backups" in caplog.text


def test_a_list_of_a_newer_version_is_refused(writer):
    found = writer.back_up()[0]
    writer.bucket.objects[f"{found.folder[1:]}.json"] = b'{"version": 2, "files": {}}'
    with pytest.raises(StoreError, match=r"backups/2026-11-29T00-00-00Z.json has version 2"):
        inspect(found.folder, filesystem=chosen(URL, None).filesystem)


def test_a_backup_at_the_time_of_another_store_is_refused(writer, tmp_path):
    writer.back_up()
    FileStore.open(tmp_path / "other", threads=False).close()
    with pytest.raises(StoreError, match="is not empty"):
        backup_into(tmp_path / "other", URL, keep=1, now=DAY + dt.timedelta(days=1))


def test_of_backups_that_two_stores_begin_in_the_same_second_one_is_made(writer, tmp_path):
    other = tmp_path / "other"
    with FileStore.open(other, threads=False) as store:
        store.append(store.create_ledger("topic"), b"other", lambda _: None)
        store.poll()
    writer.write(40)
    now = DAY + dt.timedelta(days=1)
    made: list[StoredBackup] = []

    def meanwhile(_done: int, _total: int) -> None:
        if not made:
            made.append(writer.back_up()[0])

    with pytest.raises(StoreError, match="has got another backup 2026-11-29T00-00-00Z"):
        backup_into(other, URL, keep=1, now=now, say=meanwhile)
    assert len(writer.bucket.names("")) == 1
    assert {name[: len("2026-11-29T00-00-00Z-01234567")] for name in writer.bucket.names("files")} == {
        object_of(made[0], writer, file_name(1)).split("/")[1].removesuffix(f"-{file_name(1)}")
    }
    assert entries_of(made[0], writer, tmp_path / "restored") == 40


def test_two_backups_of_a_store_at_once_are_both_complete(writer, tmp_path):
    first = writer.back_up(entries=40)[0]
    writer.days += 1
    made: list[StoredBackup] = []

    def meanwhile(_done: int, _total: int) -> None:
        if not made:
            os.utime(writer.folder / file_name(1))  # the other one uploads it again
            made.append(writer.back_up(keep=1)[0])
            assert f"{first.folder[1:]}.json" not in writer.bucket.names("")

    now = DAY + dt.timedelta(days=3, hours=-1)
    found, result, _ = backup_into(writer.folder, URL, keep=1, now=now, say=meanwhile)
    assert result.linked_files > 1, "objects of the backup that the other deletes"
    for number, each in enumerate((*made, found)):
        assert entries_of(each, writer, tmp_path / f"{number}") == 40
