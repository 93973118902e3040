"""Backups in one folder: each complete, unchanged files once, old ones deleted."""

import dataclasses
import datetime as dt
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from doubles import raising

from geminga.errors import NotAStore, StoreError
from geminga.ledger.backup.backup import restore
from geminga.ledger.backup.series import StoredBackup, backup_into, chosen, series_at
from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.files.folder import SUPERBLOCK_FILE
from geminga.ledger.files.format import FORMAT_VERSION, encode_superblock, file_name
from geminga.ledger.inspection import inspect
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore

DAY = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)


class StoreWriter:
    """A store with small files, written to and backed up once a day."""

    def __init__(self, tmp_path: Path, small_settings: StoreSettings, backups: Path | str) -> None:
        self.folder, self.backups = tmp_path / "store", backups
        self.settings = dataclasses.replace(small_settings, garbage_bytes_min=1 << 30)
        self.store = FileStore.open(self.folder, settings=self.settings, threads=False)
        self.ledger_id = self.store.create_ledger("topic")
        self.entries = 0
        self.days = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.store.append(self.ledger_id, bytes([self.entries % 256]) * 400, lambda _: None)
            self.entries += 1
            self.store.poll()

    def store_backup(
        self, keep: int = 10, *, entries: int = 0, verify: bool = False
    ) -> tuple[StoredBackup, int, int]:
        """Write, and return the backup, its number of files, and how many earlier ones share."""
        self.write(entries)
        self.days += 1
        found, result, self.report = backup_into(
            self.folder, self.backups, keep=keep, verify=verify, now=DAY + dt.timedelta(days=self.days)
        )
        return found, result.files, result.linked_files


class Writer(StoreWriter):
    backups: Path

    def back_up(self, keep: int = 10, **options: Any) -> tuple[Path, int, int]:
        found, files, linked = self.store_backup(keep, **options)
        return Path(found.folder), files, linked


@pytest.fixture
def writer(tmp_path, small_settings):
    return Writer(tmp_path, small_settings, tmp_path / "backups")


def complete(backups: Path) -> list[str]:
    return series_at(backups).names()


def chosen_folder(source: Path, to_time: dt.datetime | None) -> Path:
    return Path(chosen(source, to_time).folder)


def entries_of(folder: Path, settings: StoreSettings, ledger_id: int) -> int:
    with FileStore.open(folder, settings=settings, threads=False) as store:
        assert store.damage.found == []
        (ledger,) = store.ledgers("topic")
        assert ledger.ledger_id == ledger_id
        return ledger.entries


def test_unchanged_files_are_links_and_each_backup_is_complete(writer, tmp_path):
    made = []
    for _ in range(3):
        made.append((*writer.back_up(entries=40), writer.entries))
    for (_, before, _, _), (_, _, linked, _) in itertools.pairwise(made):
        # A file whose last bytes were copied in the clock tick of their writing has the same time of change.
        assert linked in (before - 1, before), "all but the file that was the newest"
    for number, (folder, _, _, entries) in enumerate(made):
        assert inspect(folder).is_well
        restore(folder, tmp_path / f"restored-{number}")
        assert entries_of(tmp_path / f"restored-{number}", writer.settings, writer.ledger_id) == entries


def test_links_are_made_between_backups_and_not_to_the_store(writer):
    first, _, _ = writer.back_up(entries=40)
    second, _, linked = writer.back_up()
    assert linked
    name = file_name(1)
    assert os.path.samefile(first / name, second / name)
    assert not os.path.samefile(writer.folder / name, first / name)


def test_a_file_with_another_time_of_change_is_copied(writer):
    writer.back_up(entries=40)
    os.utime(writer.folder / file_name(1), ns=(1, 1))
    _, files, linked = writer.back_up()
    assert linked == files - 2, "neither this one nor the newest"


def test_files_are_copied_where_links_are_not_possible(writer, monkeypatch):
    monkeypatch.setattr(os, "link", raising(PermissionError))
    writer.back_up(entries=40)
    folder, _, linked = writer.back_up()
    assert linked == 0
    assert inspect(folder).is_well


def test_only_the_newest_backups_of_this_store_are_kept(writer, tmp_path):
    FileStore.open(tmp_path / "other", threads=False).close()
    other, _, _ = backup_into(tmp_path / "other", writer.backups, keep=1, now=DAY - dt.timedelta(days=1))
    (writer.backups / "notes.txt").write_text("mine")
    for _ in range(4):
        writer.back_up(keep=2, entries=5)
    assert complete(writer.backups) == [
        Path(other.folder).name, "2026-12-01T00-00-00Z", "2026-12-02T00-00-00Z",
    ]  # fmt: skip
    assert (writer.backups / "notes.txt").exists()


def test_an_interrupted_backup_is_deleted_by_the_next(writer, monkeypatch):
    writer.write(5)
    unfinished = writer.backups / "2026-11-28T12-00-00Z"
    unfinished.mkdir(parents=True)
    (unfinished / file_name(1)).write_bytes(b"half")
    writer.back_up()
    assert not unfinished.exists()


def test_two_backups_at_once_are_refused(writer):
    writer.back_up()
    lock, _ = RealFileSystem().lock(f"{writer.backups}/lock")
    assert lock is not None
    with pytest.raises(StoreError, match="another backup is being written"):
        writer.back_up()
    lock.release()
    writer.back_up()


def test_the_newest_backup_or_that_of_a_time_is_chosen(writer):
    first, second = writer.back_up()[0], writer.back_up()[0]
    assert chosen_folder(writer.backups, None) == second
    assert chosen_folder(writer.backups, DAY + dt.timedelta(days=1, hours=23)) == first
    assert chosen_folder(writer.backups, DAY + dt.timedelta(days=2)) == second
    assert chosen_folder(first, None) == first
    with pytest.raises(NotAStore, match=r"oldest backup .* is 2026-11-29T00-00-00Z"):
        chosen(writer.backups, DAY)
    with pytest.raises(StoreError, match="single backup"):
        chosen(first, DAY)
    with pytest.raises(NotAStore, match="holds no store and no backups"):
        chosen(writer.backups / "notes.txt", None)


def test_wrong_targets_are_refused(writer):
    with pytest.raises(StoreError, match="at least 1"):
        writer.back_up(keep=0)
    writer.back_up()
    with pytest.raises(StoreError, match="a single backup or a store"):
        backup_into(writer.folder, writer.backups / complete(writer.backups)[0], keep=1)
    with pytest.raises(StoreError, match="not older"):
        backup_into(writer.folder, writer.backups, keep=1, now=DAY)
    assert complete(writer.backups) == ["2026-11-30T00-00-00Z"]


def test_a_damaged_earlier_backup_does_not_stop_the_next(writer):
    damaged = writer.back_up(entries=20)[0]
    superblock = damaged / SUPERBLOCK_FILE
    superblock.write_bytes(superblock.read_bytes()[:-1] + b"?")
    new, files, linked = writer.back_up(keep=1, entries=20)
    assert (files > 1, linked, damaged.exists()) == (True, 0, True)
    assert entries_of(new, writer.settings, writer.ledger_id) == 40


def test_folders_in_an_old_backup_are_deleted_with_it(writer):
    old = writer.back_up(entries=5)[0]
    (old / "quarantine").mkdir()
    (old / "quarantine" / "entry").write_bytes(b"kept")
    new = writer.back_up(keep=1)[0]
    assert complete(writer.backups) == [new.name]
    assert not old.exists()


def test_a_file_with_the_name_of_a_backup_is_left_alone(writer):
    writer.backups.mkdir()
    (writer.backups / "2026-11-01T00-00-00Z").write_text("mine")
    writer.back_up()
    assert (writer.backups / "2026-11-01T00-00-00Z").read_text() == "mine"


def test_a_store_of_a_newer_format_is_not_backed_up(writer, monkeypatch):
    writer.write(5)
    monkeypatch.setattr("geminga.ledger.files.format.FORMAT_VERSION", FORMAT_VERSION + 1)
    (writer.folder / SUPERBLOCK_FILE).write_bytes(encode_superblock(writer.store.store_id))
    monkeypatch.undo()
    with pytest.raises(StoreError, match=f"has format {FORMAT_VERSION + 1}"):
        writer.back_up()
    assert not writer.backups.exists()


def test_a_damaged_file_is_copied_again_and_nothing_is_deleted_before(writer):
    first = writer.back_up(entries=40)[0]
    data = bytearray((first / file_name(1)).read_bytes())
    times = (first / file_name(1)).stat().st_mtime_ns
    data[2000] ^= 255
    (first / file_name(1)).write_bytes(data)
    os.utime(first / file_name(1), ns=(times, times))
    second, _, linked = writer.back_up(keep=1, verify=True)
    assert writer.report is not None
    assert [finding.damage.file for finding in writer.report.findings] == [file_name(1)]
    assert (linked > 1, complete(writer.backups)) == (True, [first.name, second.name])
    third, _, linked = writer.back_up(keep=1, verify=True)
    assert writer.report.is_well
    assert (linked > 1, complete(writer.backups)) == (True, [third.name])
    assert entries_of(third, writer.settings, writer.ledger_id) == 40


def test_a_series_inside_the_store_is_refused_and_leaves_no_folder(tmp_path):
    with FileStore.open(tmp_path / "store"):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for target in ("store/backups", "link/backups"):
        with pytest.raises(StoreError, match="in the store itself"):
            backup_into(tmp_path / "store", tmp_path / target, keep=3)
    assert not (tmp_path / "store/backups").exists()
