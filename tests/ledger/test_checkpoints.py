"""When checkpoints are made, and what becomes of one that there is no room for."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from geminga.errors import StoreStopped
from geminga.ledger.catalog import Catalog, Snapshot
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.testing.faulty_filesystem import Fate, FaultyFileSystem, SimulatedDisk

FOLDER = "/data/store"


def open_store(disk: SimulatedDisk, settings: StoreSettings) -> FileStore:
    return FileStore.open(FOLDER, settings=settings, filesystem=FaultyFileSystem(disk), threads=False)


def fill(store: FileStore, count: int = 40) -> int:
    ledger = store.create_ledger("a")
    for number in range(count):
        store.append(ledger, b"%d" % number, lambda error: None)
    for _ in range(6):
        store.poll()
    return ledger


def test_a_checkpoint_without_room_is_made_later(
    small_settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, write, tries = SimulatedDisk(), Catalog.write, []
    store = open_store(disk, small_settings)

    def full(self: Catalog, snapshot: object) -> None:
        tries.append(snapshot)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Catalog, "write", full)
    ledger = fill(store)
    assert len(tries) >= 2, "it is tried again"
    assert store.failure is None
    assert store.space is not None
    assert store.space.free_bytes == 0
    more = fill(store)
    monkeypatch.setattr(Catalog, "write", write)
    for _ in range(3):
        store.poll()
    assert store.space.free_bytes > 0
    store.close()
    with open_store(disk.crash(Fate("none", "none")), small_settings) as store:
        for each in (ledger, more):
            assert len(store.read(each, 0, entries_max=99, bytes_max=10**6)) == 40


def test_closing_does_not_wait_for_a_checkpoint_that_has_no_room(
    small_settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, write = SimulatedDisk(), Catalog.write
    store = open_store(disk, small_settings)

    def full(self: Catalog, snapshot: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Catalog, "write", full)
    ledger = fill(store)
    store.close()
    monkeypatch.setattr(Catalog, "write", write)
    with open_store(disk.crash(Fate("none", "none")), small_settings) as store:
        assert len(store.read(ledger, 0, entries_max=99, bytes_max=10**6)) == 40


def test_any_other_error_of_the_catalog_stops_the_store(
    small_settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(SimulatedDisk(), small_settings)

    def failing(self: Catalog, snapshot: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Catalog, "write", failing)
    fill(store)
    assert isinstance(store.failure, StoreStopped)
    store.close()


def test_a_store_whose_catalog_is_slower_than_its_owner_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = StoreSettings(checkpoint_state_bytes=20_000)
    may_write = threading.Event()
    write = Catalog.write

    def slow(catalog: Catalog, snapshot: Snapshot) -> None:
        assert may_write.wait(60)
        write(catalog, snapshot)

    monkeypatch.setattr(Catalog, "write", slow)
    with FileStore.open(tmp_path, settings=settings) as store:
        number = 0
        while not store.is_behind:
            store.put(f"key-{number:05}", b"x" * 100)
            store.poll()
            number += 1
            assert number < 10_000
        assert number > 5 * 20_000 // 700
        may_write.set()
        end = time.monotonic() + 60
        while store.is_behind:
            store.poll()
            assert time.monotonic() < end
        assert len(list(store.names("key-"))) == number
