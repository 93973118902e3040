import dataclasses
import errno
import logging
import sqlite3

import pytest
from doubles import calls_of

from geminga.errors import StoreError
from geminga.ledger.api import LostWrites, StoredValue
from geminga.ledger.catalog.catalog import Catalog
from geminga.ledger.store import FileStore
from tests.support.disk_stores import FOLDER, append_all, open_store, succeeded
from tests.support.faulty_filesystem import FaultyFileSystem, SimulatedDisk


def log_files(disk: SimulatedDisk) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in disk.names if "/log-" in path)


def fill(store: FileStore, count: int, *, every: int = 10) -> tuple[int, list[int], dict[str, StoredValue]]:
    """Write entries of which every tenth goes to a ledger that stays, and keys that are set early."""
    kept, short = store.create_ledger("kept"), []
    keys = {f"key-{n}": StoredValue(b"base %d" % n, (b"delta",)) for n in range(3)}
    for key, value in keys.items():
        store.keys.put(key, value.base)
        store.keys.merge(key, value.deltas[0])
    store.keys.put("deleted", b"early")
    for number in range(count):
        if number % every == 0:
            store.append(kept, b"kept %d " % number * 5, succeeded)
        if number % 20 == 0:
            short.append(store.create_ledger("short"))
        store.append(short[-1], bytes(150), succeeded)
        store.poll()
    store.keys.delete("deleted")
    store.delete_ledgers(short)
    store.poll()
    return kept, short, keys


def check(store: FileStore, kept: int, count: int, short: list[int], keys: dict[str, StoredValue]) -> None:
    assert store.damage.found == []
    expected = [b"kept %d " % number * 5 for number in range(0, count, 10)]
    found: list[bytes] = []
    while len(found) < len(expected):
        found += store.read(kept, len(found), entries_max=9, bytes_max=10**6)
    assert found == expected
    assert [info.ledger_id for info in store.ledgers("kept")] == [kept]
    assert store.ledgers("short") == []
    assert dict(store.keys.scan("")) == keys


@pytest.mark.parametrize("lose_catalog", [False, True])
def test_live_records_survive_the_deletion_of_their_files(small_settings, lose_catalog):
    disk = SimulatedDisk()
    with open_store(disk, small_settings) as store:
        kept, short, keys = fill(store, 200)
        before = log_files(disk)
        for _ in range(3):
            store.checkpoint()
        after = log_files(disk)
        assert "log-0000000001" not in after
        assert len(after) < len(before) // 2
        check(store, kept, 200, short, keys)
    if lose_catalog:
        disk.databases.clear()
    with open_store(disk, small_settings) as store:
        check(store, kept, 200, short, keys)


def test_the_space_of_deleted_ledgers_is_freed(small_settings):
    disk = SimulatedDisk()
    store = open_store(disk, small_settings)
    kept = store.create_ledger("kept")
    for number in range(100):
        ledger = store.create_ledger("short-lived")
        for _ in range(5):
            store.append(ledger, bytes([number]) * 300, succeeded)
        if number % 20 == 0:
            store.append(kept, b"kept %d" % number, succeeded)
        store.delete_ledgers([ledger])
        store.poll()
    store.checkpoint()
    store.checkpoint()
    assert store.stats().disk_bytes < 16 * 1024
    assert store.read(kept, 0, entries_max=9, bytes_max=999) == [b"kept %d" % n for n in range(0, 100, 20)]
    store.close()


def test_entries_of_deleted_ledgers_are_not_looked_up_one_by_one(small_settings, monkeypatch):
    """That took as much processor time as storing them, on a thread that the event loop waits for."""
    lookups = calls_of(monkeypatch, Catalog, "chunk")
    disk = SimulatedDisk()
    only_dead_files = dataclasses.replace(small_settings, rewrite_live_fraction=0.0)
    with open_store(disk, only_dead_files) as store:
        for _ in range(4):
            ledgers = [store.create_ledger("one"), store.create_ledger("other")]
            for number in range(100):
                store.append(ledgers[number % 2], bytes(30), succeeded)
                store.poll()
            store.delete_ledgers(ledgers)
            store.checkpoint()
        assert "log-0000000001" not in log_files(disk)
    assert lookups == []


def test_ids_of_deleted_ledgers_are_not_reused_when_the_catalog_is_rebuilt(small_settings):
    """The creation of the remaining ledger is written again, in files that begin after all others ended."""
    disk = SimulatedDisk()
    with open_store(disk, small_settings) as store:
        kept, short, _ = fill(store, 200)
        store.disk.give_back(eagerly=True)
        for _ in range(12):
            store.checkpoint()
            append_all(store, kept, [bytes(200)] * 30, poll_each=True)
    disk.databases.clear()
    with open_store(disk, small_settings) as store:
        assert store.create_ledger("new") > max(short)


def test_deleted_records_stay_deleted_when_the_catalog_is_rebuilt(small_settings):
    """The file of the deletions may be deleted before the files with the deleted records."""
    settings = dataclasses.replace(small_settings, rewrite_live_fraction=0.05)
    disk = SimulatedDisk()
    store = open_store(disk, settings)
    big = store.create_ledger("big")
    doomed = store.create_ledger("doomed")
    store.keys.put("doomed", b"value")
    for number in range(30):
        store.append(doomed, bytes(20), succeeded)
        store.append(big, bytes([number]) * 200, succeeded)  # keeps the first files alive
        store.poll()
    store.delete_ledgers([doomed])
    store.keys.delete("doomed")
    for _ in range(4):
        passing = append_all(store, store.create_ledger("passing"), [bytes(200)] * 30, poll_each=True)
        store.delete_ledgers([passing])
        store.checkpoint()
    assert "log-0000000001" in log_files(disk)
    numbers = [int(name[4:]) for name in log_files(disk)]
    assert numbers != list(range(1, max(numbers) + 1)), "no file in the middle was dropped"
    store.close()
    disk.databases.clear()
    with open_store(disk, settings) as store:
        assert store.damage.found == []
        assert store.ledgers("doomed") == []
        assert store.keys.get("doomed") is None
        assert [info.entries for info in store.ledgers("big")] == [30]


def test_a_damaged_file_is_left_alone(small_settings):
    disk = SimulatedDisk()
    with open_store(disk, dataclasses.replace(small_settings, rewrite_live_fraction=0.0)) as store:
        kept, _, _ = fill(store, 60)
    path = f"{FOLDER}/log-0000000001"
    disk.content(path)[disk.names[path].visible.index(b"kept 0 ")] ^= 1
    with open_store(disk, small_settings) as store:
        fill(store, 60)
        for _ in range(3):
            store.checkpoint()
        assert "log-0000000001" in log_files(disk)
        with pytest.raises(StoreError, match="entry 0"):
            store.read(kept, 0, entries_max=1, bytes_max=999)


def test_a_key_that_lost_a_write_does_not_end_rewriting(small_settings):
    disk = SimulatedDisk()
    store = open_store(disk, dataclasses.replace(small_settings, checkpoint_records=10_000))
    store.keys.put("harmed", b"base")
    store.keys.put("well", b"value")
    first, _, _ = fill(store, 40)
    store.delete_ledgers([first])
    store.keys.merge("harmed", b"the second write")
    store.poll()
    disk.kill()
    path = f"{FOLDER}/{log_files(disk)[-1]}"
    assert not path.endswith("1")
    disk.content(path)[disk.content(path).index(b"the second write")] ^= 1
    with open_store(disk, small_settings) as store:
        assert store.damage.found
        before = log_files(disk)
        fill(store, 200)
        for _ in range(3):
            store.checkpoint()
        assert len(log_files(disk)) < 12, f"nothing is given back: {before} became {log_files(disk)}"
        assert store.keys.get("well") == StoredValue(b"value", ())
        assert store.keys.get("harmed") == StoredValue(b"base", (b"",), LostWrites(deltas=1))
    disk.databases.clear()
    with open_store(disk, small_settings) as store:
        assert store.keys.get("harmed") == StoredValue(b"base", (b"",), LostWrites(deltas=1)), (
            "forgotten with the catalog"
        )
        assert store.keys.get("well") == StoredValue(b"value", ())


def test_rewriting_cannot_keep_itself_busy(small_settings):
    """Files full of records that no estimate counts as live: thousands of empty ledgers."""
    settings = dataclasses.replace(small_settings, rewrite_live_fraction=0.9, garbage_bytes_min=0)
    disk = SimulatedDisk()
    with open_store(disk, settings) as store:
        ledgers = [store.create_ledger(f"topic-{number}") for number in range(2000)]
        store.poll()
        filesystem = store.filesystem
        assert isinstance(filesystem, FaultyFileSystem)
        for _ in range(5):
            store.checkpoint()
        before = filesystem.operations
        for _ in range(5):
            store.checkpoint()
        assert filesystem.operations - before < 100
        assert [info.ledger_id for info in store.ledgers("topic-1999")] == [ledgers[-1]]


def test_entries_written_while_their_ledger_is_rewritten_stay_in_order(small_settings):
    disk = SimulatedDisk()
    with open_store(disk, small_settings) as store:
        kept, _, _ = fill(store, 100)
        for number in range(40):
            store.append(kept, b"later %d" % number, succeeded)
            if number % 5 == 0:
                store.checkpoint()
            store.poll()
        entries = store.read(kept, 10, entries_max=99, bytes_max=10**6)
        while len(entries) < 40:
            entries += store.read(kept, 10 + len(entries), entries_max=99, bytes_max=10**6)
        assert entries == [b"later %d" % number for number in range(40)]


def test_a_file_opened_again_just_before_its_deletion_keeps_no_space(small_settings):
    """A reader looked up positions before a move, and the worker may delete the file late."""
    opened: list[str] = []

    class FileSystem(FaultyFileSystem):
        def unlink(self, path: str) -> None:
            if "/log-" in path:
                opened.append(path)
                with store._files.borrowed(int(path.rpartition("-")[2])):
                    pass
            super().unlink(path)

    store = FileStore.open(
        FOLDER, settings=small_settings, filesystem=FileSystem(SimulatedDisk()), threads=False
    )
    fill(store, 100)
    store.checkpoint()
    assert opened
    assert not {store._files.path(number) for number in store._files._open}.intersection(opened)
    store.close()


def test_a_warning_names_the_log_file_that_is_not_freed_and_no_other(small_settings, caplog, monkeypatch):
    class FileSystem(FaultyFileSystem):
        def unlink(self, path: str) -> None:
            if "/log-" in path:
                raise OSError(errno.EIO, "broken", path)
            super().unlink(path)

    store = FileStore.open(
        FOLDER, settings=small_settings, filesystem=FileSystem(SimulatedDisk()), threads=False
    )
    fill(store, 100)
    store.checkpoint()
    assert "cannot free the space of log-0000000003: [Errno 5] broken" in caplog.text
    caplog.clear()
    monkeypatch.setattr(FileSystem, "unlink", FaultyFileSystem.unlink)
    look, looks = Catalog.live_bytes, iter((False, True))

    def failing(catalog: Catalog) -> dict[int, int]:
        if next(looks, False):
            raise sqlite3.OperationalError("disk I/O error")
        return look(catalog)

    monkeypatch.setattr(Catalog, "live_bytes", failing)
    with caplog.at_level(logging.INFO):
        fill(store, 100)
        store.checkpoint()
    assert "which had no live records any more" in caplog.text, "a file was freed before"
    assert [each.message for each in caplog.records if each.levelno == logging.WARNING] == [
        "cannot look for garbage: disk I/O error"
    ]
    store.close()
