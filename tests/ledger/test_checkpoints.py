"""Times of checkpoints, and a checkpoint that finds the disk full."""

import dataclasses
import random
import sqlite3
import threading
import time
from types import SimpleNamespace

import pytest
from doubles import calls_of, raising
from waiting import poll_until

from geminga.errors import StoreStopped
from geminga.ledger.catalog.catalog import Catalog, CheckpointSnapshot
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.ledger.upkeep import checkpoints
from tests.support.disk_stores import FOLDER, open_store, polled
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk
from tests.support.store_auditor import StoreAuditor


def fill(store: FileStore, count: int = 40) -> int:
    ledger = store.create_ledger("a")
    for number in range(count):
        store.append(ledger, b"%d" % number, lambda error: None)
    polled(store, 6)
    return ledger


def test_a_checkpoint_on_a_full_disk_is_made_later(small_settings, monkeypatch):
    disk, write, tries = SimulatedDisk(), Catalog.write, []
    with open_store(disk, small_settings) as store:

        def full(self: Catalog, snapshot: object) -> None:
            tries.append(snapshot)
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(Catalog, "write", full)
        ledger = fill(store)
        assert len(tries) >= 2, "it is tried again"
        assert store.failure is None
        assert store.disk.space.free_bytes == 0
        more = fill(store)
        monkeypatch.setattr(Catalog, "write", write)
        polled(store, 3)
        assert store.disk.space.free_bytes > 0
    with open_store(disk.crash(Fate("none", "none")), small_settings) as store:
        for each in (ledger, more):
            assert len(store.read(each, 0, entries_max=99, bytes_max=10**6)) == 40


def test_closing_does_not_wait_for_a_checkpoint_on_a_full_disk(small_settings, monkeypatch):
    disk, write = SimulatedDisk(), Catalog.write
    with open_store(disk, small_settings) as store:
        monkeypatch.setattr(Catalog, "write", raising(sqlite3.OperationalError("database or disk is full")))
        ledger = fill(store)
    monkeypatch.setattr(Catalog, "write", write)
    with open_store(disk.crash(Fate("none", "none")), small_settings) as store:
        assert len(store.read(ledger, 0, entries_max=99, bytes_max=10**6)) == 40


def test_any_other_error_of_the_catalog_stops_the_store(small_settings, monkeypatch):
    with open_store(SimulatedDisk(), small_settings) as store:
        monkeypatch.setattr(Catalog, "write", raising(sqlite3.OperationalError("disk I/O error")))
        fill(store)
        assert isinstance(store.failure, StoreStopped)


def test_a_store_with_a_slow_catalog_reports_that_it_is_behind(tmp_path, monkeypatch):
    settings = StoreSettings(checkpoint_state_bytes=20_000)
    may_write = threading.Event()
    write = Catalog.write

    def slow(catalog: Catalog, snapshot: CheckpointSnapshot) -> None:
        assert may_write.wait(60)
        write(catalog, snapshot)

    monkeypatch.setattr(Catalog, "write", slow)
    with FileStore.open(tmp_path, settings=settings) as store:
        number = 0
        while not store.is_behind:
            store.keys.put(f"key-{number:05}", b"x" * 100)
            store.poll()
            number += 1
            assert number < 10_000
        assert number > 5 * 20_000 // 700
        may_write.set()
        poll_until(store, lambda: not store.is_behind)
        assert len(list(store.keys.names("key-"))) == number


class Clock:
    """Clock of checkpoints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(
            checkpoints, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: self.now})
        )


@pytest.fixture
def written(monkeypatch):
    """Record of snapshots written to catalogs."""
    return calls_of(monkeypatch, Catalog, "write")


IDLE = StoreSettings(checkpoint_idle_seconds=30.0, checkpoint_idle_bytes=20_000)


def put(store: FileStore, count: int, size: int = 100) -> None:
    for number in range(count):
        store.keys.put(f"key-{number}", bytes(size))
    polled(store, 4)


def test_an_idle_store_saves_pending_changes_once(monkeypatch, written):
    clock, disk = Clock(monkeypatch), SimulatedDisk()
    store = open_store(disk, IDLE)
    put(store, 100)
    clock.now += 29
    put(store, 120)
    clock.now += 29
    put(store, 1)
    assert written == [], "something came in not so long ago"
    clock.now += 2
    put(store, 0)
    assert len(written) == 1
    for _ in range(1000):
        clock.now += 60
        put(store, 0)
    assert len(written) == 1, "and there is nothing else to save"
    put(store, 10)
    clock.now += 3600
    put(store, 0)
    assert len(written) == 1, "so little is not worth it"
    disk = disk.crash(Fate("none", "none"))
    with open_store(disk, IDLE) as store:
        assert len(list(store.keys.names("key-"))) == 120


def test_a_slow_stream_of_writes_is_saved_from_time_to_time(monkeypatch, written):
    clock = Clock(monkeypatch)
    with open_store(SimulatedDisk(), IDLE) as store:
        for second in range(3600):
            clock.now += 1
            store.keys.put(f"slow-{second}", b"")
            store.poll()
        unsaved = 3600 * 470
        assert written == [], "each half minute brings more than a sixteenth of what is worth it"
        assert store.state.unsaved_bytes > unsaved
        for second in range(3600):
            clock.now += 20
            store.keys.put(f"slower-{second}", b"")
            store.poll()
        assert 1 < len(written) <= 1 + 3600 * 600 // IDLE.checkpoint_idle_bytes


def test_without_an_idle_time_no_idle_checkpoint_is_made(monkeypatch, written):
    clock = Clock(monkeypatch)
    with open_store(SimulatedDisk(), dataclasses.replace(IDLE, checkpoint_idle_seconds=0.0)) as store:
        put(store, 100)
        clock.now += 1e6
        put(store, 0)
        assert written == []


def test_an_idle_store_wakes_its_owner(tmp_path, written):
    wanted = threading.Event()
    settings = dataclasses.replace(IDLE, checkpoint_idle_seconds=0.1)
    with FileStore.open(tmp_path, settings=settings, wakeup=wanted.set) as store:
        store.poll()
        for number in range(100):
            store.keys.put(f"key-{number}", bytes(100))
        end = time.monotonic() + 60
        while not written:
            assert wanted.wait(60), "nobody asks for a poll"
            wanted.clear()
            store.poll()
            assert time.monotonic() < end
        assert store.failure is None


def test_a_power_loss_at_any_step_of_an_idle_checkpoint_loses_nothing(small_settings):
    idle = dataclasses.replace(
        small_settings, checkpoint_records=10**6, checkpoint_idle_seconds=1e-6, checkpoint_idle_bytes=1
    )

    def live(store: FileStore, auditor: StoreAuditor) -> None:
        ledgers = []
        for number in range(4):
            ledgers.append(auditor.create_ledger(store, f"topic-{number}"))
            for entry in range(4):
                auditor.append(store, ledgers[-1], b"%d:%d" % (number, entry) * 40)
            auditor.merge(store, "cursor", b"delta %d" % number)
            auditor.put(store, f"policy-{number % 2}", b"value %d" % number)
            polled(store, 4)  # the second finds nothing new, and saves
            if number % 2:
                auditor.delete_ledgers(store, [ledgers.pop(0)])
            store.release(ledgers)

    history = FaultyFileSystem(SimulatedDisk())
    with FileStore.open(FOLDER, settings=idle, filesystem=history, threads=False) as store:
        first = history.operations
        live(store, StoreAuditor())
        operations = history.operations
        assert sum(what == "commit" for what, _ in history.history[first:]) >= 4
    chance = random.Random(7)
    for number in range(first, operations + 1):
        for fate in (Fate(), Fate("all", "all"), Fate.by_chance(chance)):
            disk, auditor = SimulatedDisk(), StoreAuditor()
            try:
                live(open_store(disk, idle, Plan(crash_at=number)), auditor)
            except PowerLoss:
                pass
            with open_store(disk.crash(fate), idle) as store:
                auditor.check_restarted(store)


def test_released_ledgers_leave_memory_when_the_catalog_has_them(tmp_path):
    with FileStore.open(tmp_path, threads=False) as store:
        state = store.state
        made = []
        for number in range(100):
            made.append(store.create_ledger(f"topic-{number}"))
            store.append(made[-1], b"x%d" % number, lambda error: None)
        store.release(made[:50])
        store.poll()
        assert len(state.ledgers.loaded) == 100, "nothing else knows them yet"
        store.checkpoint()
        assert sorted(state.ledgers.loaded) == made[50:], "of the others somebody may want the newest soon"
        store.release(made[50:])
        assert not state.ledgers.loaded, "at once"
        for number, ledger in enumerate(made):
            assert store.read(ledger, 0, entries_max=9, bytes_max=99) == [b"x%d" % number]
