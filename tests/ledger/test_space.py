"""A full disk: nothing is lost or confirmed too early, and the store resumes by itself."""

import contextlib
import errno
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import poll_until

from geminga.errors import StoreError, StoreFull, StoreStopped
from geminga.ledger.api import StoredLedger
from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.files.space import SpaceGauge, is_no_space
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from tests.support.disk_stores import FOLDER, ledger_with, mounted, open_store, polled, write_rounds
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, SimulatedDisk
from tests.support.store_auditor import StoreAuditor


# --- the gauge ---
def test_the_limit_of_the_folder_is_reported_as_size_of_the_disk(tmp_path):
    (tmp_path / "file").write_bytes(bytes(100_000))
    gauge = SpaceGauge(RealFileSystem(), str(tmp_path), 1_000_000)
    gauge.measure()
    assert gauge.space.total_bytes == 1_000_000
    assert 100_000 <= gauge.space.used_bytes < 200_000
    assert gauge.space.free_bytes == 1_000_000 - gauge.space.used_bytes
    free = SpaceGauge(RealFileSystem(), str(tmp_path), 0)
    free.measure()
    assert free.space.total_bytes >= free.space.free_bytes > 1_000_000


def test_space_is_measured_again_after_enough_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    gauge = SpaceGauge(RealFileSystem(), str(tmp_path), 100_000_000)
    gauge.wrote(0)
    first = gauge.space
    gauge.wrote(1000)
    assert gauge.space is first
    (tmp_path / "file").write_bytes(bytes(2_000_000))
    gauge.wrote(2_000_000)
    assert first is not None
    assert gauge.space is not None
    assert gauge.space.free_bytes <= first.free_bytes - 2_000_000
    assert gauge.space.written_bytes == 2_001_000


def test_a_failed_measurement_keeps_the_last_result(tmp_path):
    gauge = SpaceGauge(RealFileSystem(), str(tmp_path / "gone"), 0)
    gauge.measure()
    assert gauge.space is None


def test_errors_of_a_full_disk_are_recognized():
    assert is_no_space(OSError(errno.ENOSPC, "x"))
    assert is_no_space(OSError(errno.EDQUOT, "x"))
    assert is_no_space(sqlite3.OperationalError("database or disk is full"))
    assert not is_no_space(OSError(errno.EIO, "x"))
    assert not is_no_space(sqlite3.OperationalError("database is locked"))


# --- a full disk ---
def test_writes_to_a_full_disk_wait_in_order_until_there_is_space(small_settings):
    disk, heard = SimulatedDisk(), []
    store = open_store(disk, small_settings)
    ledger = store.create_ledger("a")
    store.poll()
    disk.capacity_bytes = disk.used_bytes + 300
    for number in range(20):
        store.append(
            ledger, b"%03d" % number * 50, lambda error, number=number: heard.append((number, error))
        )
    store.keys.put("k", b"v", lambda error: heard.append((99, error)))
    store.poll()
    assert heard == []
    assert store.failure is None
    assert store.disk.space.free_bytes == 0
    assert store.read(ledger, 0, entries_max=1, bytes_max=1000) == [b"000" * 50]
    disk.capacity_bytes = 1 << 30
    store.poll()
    assert heard == [*((number, None) for number in range(20)), (99, None)]
    assert store.disk.space.free_bytes > 1 << 20
    store.close()
    with open_store(disk.crash(Fate("none", "none")), small_settings) as store:
        assert store.damage.found == []
        assert len(store.read(ledger, 0, entries_max=99, bytes_max=10**6)) == 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_at_any_step_stops_only_a_sync(small_settings, code, part):
    history = FaultyFileSystem(SimulatedDisk())
    store = FileStore.open(FOLDER, settings=small_settings, filesystem=history, threads=False)
    first, auditor = history.operations, StoreAuditor()
    write_rounds(auditor, store)
    for number in part(range(first + 1, history.operations + 1), 4):
        what, _ = history.history[number - 1]
        disk, auditor = SimulatedDisk(), StoreAuditor()
        with open_store(disk, small_settings, Plan(errors={number: code})) as store:
            try:
                write_rounds(auditor, store)
            except StoreStopped:
                assert what.startswith("sync"), what
                store.close()
                continue
            if store.failure is None:
                auditor.check_running(store)
                store.poll()
            else:
                assert what.startswith("sync") or what == "commit", (what, store.failure)
        with open_store(disk.crash(Fate("none", "none")), small_settings) as store:
            auditor.check_restarted(store)
    store.close()


@pytest.mark.rotating(8)
@pytest.mark.parametrize("seed", range(30))
def test_repeated_full_disks_and_crashes_lose_nothing(small_settings, seed):
    chance, disk, auditor = random.Random(seed), SimulatedDisk(), StoreAuditor()
    for _ in range(4):
        disk.capacity_bytes = 1 << 30  # opening needs a little
        store = open_store(disk, small_settings)
        auditor.check_restarted(store)
        for _ in range(6):
            disk.capacity_bytes = disk.used_bytes + chance.choice((0, 1, 50, 400, 3000, 1 << 30))
            write_rounds(auditor, store, rounds=3)
        assert store.failure is None
        if chance.random() < 0.5:
            disk.capacity_bytes = 1 << 30
            polled(store, 5)
            auditor.check_running(store)
        if chance.random() < 0.5:
            store.close()
        disk = disk.crash(Fate.by_chance(chance))


def test_a_store_closed_on_a_full_disk_reports_unwritten_records(small_settings):
    disk, heard = SimulatedDisk(), []
    with open_store(disk, small_settings) as store:
        ledger = ledger_with(store, "a", b"good", heard.append)
        store.poll()
        disk.capacity_bytes = disk.used_bytes
        for _ in range(30):
            store.append(ledger, bytes(150), heard.append)
        store.poll()
    assert heard[0] is None
    assert len(heard) == 31
    assert all(isinstance(error, StoreStopped) for error in heard[1:])
    disk.capacity_bytes = 1 << 30
    with open_store(disk.crash(Fate("all", "all")), small_settings) as store:
        assert store.damage.found == []
        assert store.read(ledger, 0, entries_max=99, bytes_max=10**6)[0] == b"good"


def test_entries_are_refused_while_other_calls_work(small_settings):
    disk, heard = SimulatedDisk(), []
    with open_store(disk, small_settings) as store:
        ledger = store.create_ledger("a")
        refusal = StoreFull("no room")
        store.disk.refuse_entries(refusal)
        with pytest.raises(StoreFull, match="no room"):
            store.append(ledger, b"x", heard.append)
        store.keys.put("k", b"v", heard.append)
        store.keys.merge("k", b"d", heard.append)
        store.delete_ledgers([ledger], heard.append)
        other = store.create_ledger("b")
        store.disk.refuse_entries(None)
        assert store.append(other, b"x", heard.append) == 0
        store.poll()
        assert heard == [None] * 4


def test_a_failure_is_never_replaced_by_a_refusal(small_settings):
    with open_store(SimulatedDisk(), small_settings) as store:
        ledger = store.create_ledger("a")
    store.disk.refuse_entries(None)
    with pytest.raises(StoreStopped):
        store.append(ledger, b"x", lambda error: None)


def test_mostly_live_files_are_rewritten_when_space_is_short():
    settings = StoreSettings(
        log_file_bytes=64 * 1024, preallocate_bytes=0, garbage_bytes_min=1 << 30, rewrite_live_fraction=0.1,
        checkpoint_log_bytes=64 * 1024, deletion_delay_seconds=0.0,
    )  # fmt: skip
    disk = SimulatedDisk()
    store = open_store(disk, settings)
    kept, gone = store.create_ledger("kept"), store.create_ledger("gone")
    for number in range(2000):
        store.append(gone if number % 2 else kept, bytes(500), lambda error: None)
        if number % 20 == 0:
            store.poll()
    store.poll()
    store.delete_ledgers([gone])
    polled(store, 20)
    before = disk.used_bytes
    assert not store.disk.gives_back
    store.disk.give_back(eagerly=True)
    assert store.disk.gives_back
    polled(store, 200)
    assert not store.disk.gives_back
    assert disk.used_bytes < before - 350_000
    assert len(store.read(kept, 0, entries_max=2000, bytes_max=10**7)) == 1000
    store.close()


def test_ledgers_of_all_owners_are_listed_the_oldest_first(small_settings):
    store = open_store(SimulatedDisk(), small_settings)
    made = [store.create_ledger(f"topic-{number % 7}") for number in range(700)]
    store.poll()
    made += [store.create_ledger("young") for _ in range(5)]
    store.delete_ledgers([made[3], made[701]])
    expected = [each for each in made if each not in (made[3], made[701])]

    def oldest_ledgers(after: int | None) -> list[StoredLedger]:
        found = []
        while after is not None:
            page, after = store.ledgers_page(after)
            assert len(page) <= 256
            found += page
        return found

    assert [info.ledger_id for info in oldest_ledgers(-1)] == expected
    behind = oldest_ledgers(made[500])
    assert [info.ledger_id for info in behind] == [each for each in expected if each > made[500]]
    assert behind[0].owner == f"topic-{501 % 7}"
    store.close()


# --- real files ---
_PROGRAM = """
import resource, signal, sys, time
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
store = FileStore.open(sys.argv[1], settings=StoreSettings(preallocate_bytes=0, checkpoint_records=50))
heard = []
ledger = store.create_ledger("a")
store.append(ledger, b"first", heard.append)
while len(heard) < 1:
    store.poll(); time.sleep(0.001)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
for number in range(100):
    store.append(ledger, bytes([number]) * 10_000, heard.append)
deadline = time.monotonic() + 60
while store.disk.space.free_bytes and time.monotonic() < deadline:
    store.poll(); time.sleep(0.001)
store.poll()
assert store.failure is None, store.failure
assert 1 <= len(heard) < 60, len(heard)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
while len(heard) < 101 and time.monotonic() < deadline:
    store.poll(); time.sleep(0.001)
assert heard == [None] * 101, heard[-1]
store.close()
with FileStore.open(sys.argv[1]) as store:
    assert len(store.read(ledger, 0, entries_max=200, bytes_max=10**8)) == 101
print("ok")
"""


def test_writes_beyond_a_file_size_limit_wait_for_space(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "store")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ok\n", done.stderr


def test_writes_to_a_small_full_file_system_wait_for_space(tmp_path):
    """On a real tmpfs, where this user may mount one."""
    with mounted(tmp_path, "8m"):
        fill_and_free(tmp_path)


def test_a_store_on_a_full_file_system_is_not_opened_and_not_harmed(tmp_path):
    with mounted(tmp_path, "8m"):
        heard: list[StoreError | None] = []
        with FileStore.open(tmp_path / "store") as store:
            ledger = ledger_with(store, "a", b"entry", heard.append)
        assert heard == [None]
        catalog = (tmp_path / "store" / "catalog.db").read_bytes()
        with open(tmp_path / "somebody", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass
        with pytest.raises(StoreError, match="free a few MiB of its disk first"):
            FileStore.open(tmp_path / "store")
        assert (tmp_path / "store" / "catalog.db").read_bytes() == catalog
        (tmp_path / "somebody").unlink()
        with FileStore.open(tmp_path / "store") as store:
            assert store.read(ledger, 0, entries_max=1, bytes_max=100) == [b"entry"]


def fill_and_free(folder: Path) -> None:
    settings = StoreSettings(
        log_file_bytes=512 * 1024, preallocate_bytes=128 * 1024, garbage_bytes_min=1, group_bytes_max=65536,
        checkpoint_log_bytes=512 * 1024, deletion_delay_seconds=0.05,
    )  # fmt: skip
    heard: list[StoreError | None] = []
    store = FileStore.open(folder / "store", settings=settings)
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(3 * 1024 * 1024))
    ledgers = [store.create_ledger(f"topic-{number}") for number in range(10)]
    count = 0
    deadline = time.monotonic() + 60
    while (store.disk.space is None or store.disk.space.free_bytes) and time.monotonic() < deadline:
        if count - len(heard) < 100:
            store.append(ledgers[count % 10], os.urandom(10_000), heard.append)
            count += 1
        store.poll()
    assert store.failure is None
    assert len(heard) < count
    ballast.unlink()
    poll_until(store, lambda: len(heard) == count)
    assert heard == [None] * count
    store.delete_ledgers(ledgers[:5], heard.append)
    poll_until(store, lambda: len(heard) > count and not store.disk.gives_back)
    kept = [len(store.read(ledger, 0, entries_max=10_000, bytes_max=10**8)) for ledger in ledgers[5:]]
    store.close()
    with FileStore.open(folder / "store", settings=settings) as store:
        assert store.damage.found == []
        found = [len(store.read(ledger, 0, entries_max=10_000, bytes_max=10**8)) for ledger in ledgers[5:]]
        assert found == kept
