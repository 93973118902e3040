"""The durable store when the disk returns errors, and what only this store does.

The common behaviour is in test_contract, power losses are in test_recovery.
"""

import dataclasses
import errno
import random
from collections.abc import Callable

import pytest

from geminga.errors import StoreError, StoreStopped
from geminga.ledger.api import Done
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from tests.support.disk_stores import (
    FOLDER,
    append_all,
    ledger_with,
    open_store,
    operations_of,
    succeeded,
    write_rounds,
)
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, SimulatedDisk
from tests.support.store_auditor import StoreAuditor


def write_until_stopped(auditor: StoreAuditor, store: FileStore, rounds: int = 12) -> bool:
    """Write until the end; returns whether the store stopped before."""
    try:
        write_rounds(auditor, store, rounds)
    except StoreStopped:
        return True
    return store.failure is not None


def history_of(settings: StoreSettings) -> list[tuple[str, str]]:
    return operations_of(settings, lambda store: write_until_stopped(StoreAuditor(), store))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("then", ["process dies", "power goes"])
def test_an_error_at_any_operation_loses_no_confirmed_write(small_settings, code, then, part):
    """I6: nothing is confirmed after the error; after reopening all confirmed writes are there."""
    stopped = 0
    operations = part(enumerate(history_of(small_settings), 1), 4)
    for number, (kind, path) in operations:
        disk, auditor = SimulatedDisk(), StoreAuditor()
        try:
            store = open_store(disk, small_settings, Plan(errors={number: code}))
        except StoreError:
            pass  # the caller handles an error of opening
        else:
            if write_until_stopped(auditor, store):
                stopped += 1
                check_stopped(store, kind)
            store.close()
        disk = disk.kill() if then == "process dies" else disk.crash(Fate("none", "none"))
        store = open_store(disk, small_settings)
        assert store.damage.found == [], (number, kind, path)
        auditor.check_restarted(store)
        assert not write_until_stopped(auditor, store)
        disk = disk.crash(Fate("none", "none"))  # the reopened state is on the disk, not only in its cache
        with open_store(disk, small_settings) as store:
            auditor.check_restarted(store)
    assert stopped > len(operations) // 8


def check_stopped(store: FileStore, kind: str) -> None:
    assert isinstance(store.failure, StoreStopped)
    assert "open the store again" in str(store.failure)
    calls: list[Callable[[], object]] = [
        lambda: store.create_ledger("a"),
        lambda: store.append(0, b"", succeeded),
        lambda: store.keys.put("k", b""),
        lambda: store.keys.merge("k", b""),
        lambda: store.keys.delete("k"),
        lambda: store.delete_ledgers([0]),
    ]
    for call in calls:
        with pytest.raises(StoreError):
            call()
    for owner in ("topic-0", "topic-1"):
        for info in store.ledgers(owner):
            if info.entries:
                assert store.read(info.ledger_id, 0, entries_max=9, bytes_max=999)


def test_a_sync_that_succeeds_after_a_failure_is_not_trusted(small_settings):
    """The pages of a failed sync count as clean: only writing them again makes them durable."""
    history = history_of(small_settings)
    for number, (kind, path) in enumerate(history, 1):
        if kind != "sync" or "log-" not in path:
            continue
        disk, auditor = SimulatedDisk(), StoreAuditor()
        try:
            store = open_store(disk, small_settings, Plan(errors={number: errno.EIO}))
        except StoreError:
            continue
        write_until_stopped(auditor, store)  # the last sync belongs to closing
        store.close()
        with open_store(disk.kill(), small_settings) as store:
            auditor.check_restarted(store)
        with open_store(disk.crash(Fate("none", "none")), small_settings) as store:
            auditor.check_restarted(store)


def test_short_writes_are_finished(small_settings):
    chance = random.Random(3)
    plan = Plan(short_writes={n: chance.randrange(1, 200) for n in range(1, 4000)})
    disk, auditor = SimulatedDisk(), StoreAuditor()
    with open_store(disk, small_settings, plan) as store:
        assert not write_until_stopped(auditor, store)
        auditor.check_running(store)
    assert auditor.receipted == len(auditor.operations)
    store = open_store(disk.crash(Fate("none", "none")), small_settings)
    auditor.check_restarted(store)


def test_all_pending_writes_get_the_failure_in_order(small_settings):
    disk = SimulatedDisk()
    filesystem = FaultyFileSystem(disk)
    store = FileStore.open(FOLDER, settings=small_settings, filesystem=filesystem, threads=False)
    heard: list[tuple[str, StoreError | None]] = []

    def done(name: str) -> Done:
        return lambda error: heard.append((name, error))

    ledger = ledger_with(store, "a", b"good", done("good"))
    store.poll()
    filesystem.plan.errors[filesystem.operations + 1] = errno.EIO
    filesystem.plan.errors[filesystem.operations + 2] = errno.EIO
    store.append(ledger, b"bad", done("bad"))
    store.keys.put("k", b"v", done("put"))
    store.delete_ledgers([ledger], done("delete"))
    store.poll()
    assert [name for name, _ in heard] == ["good", "bad", "put", "delete"]
    assert heard[0][1] is None
    assert all(isinstance(error, StoreStopped) for _, error in heard[1:])
    assert "Input/output error" in str(heard[1][1])
    store.close()


def test_idle_ledgers_and_keys_leave_memory(small_settings):
    with open_store(SimulatedDisk(), small_settings) as store:
        ledgers = [store.create_ledger(f"topic-{number}") for number in range(300)]
        for number, ledger in enumerate(ledgers):
            store.append(ledger, b"entry", succeeded)
            store.keys.put(f"key-{number}", b"value")
        store.poll()
        busy = store.create_ledger("busy")
        for _ in range(4):
            store.append(busy, bytes(600), succeeded)  # pushes the others out of the cache of recent entries
            store.checkpoint()
        assert len(store.state.ledgers.loaded) < 10
        assert store.state.keys.unsaved == 0
        assert store.read(ledgers[7], 0, entries_max=1, bytes_max=10) == [b"entry"]
        assert store.append(ledgers[7], b"more", succeeded) == 1
        assert [info.entries for info in store.ledgers("topic-7")] == [2]


def test_unloaded_ledgers_with_recent_entries_can_be_loaded_again(small_settings):
    settings = dataclasses.replace(small_settings, cache_bytes=20_000, rewrite_live_fraction=0.0)
    store = open_store(SimulatedDisk(), settings)
    ledger, busy = store.create_ledger("idle"), store.create_ledger("busy")
    append_all(store, ledger, [b"entry"] * 3)
    for _ in range(4):
        store.append(busy, b"entry", succeeded)
        store.checkpoint()
    assert ledger not in store.state.ledgers.loaded, "although the cache has room for its entries"
    assert store.append(ledger, b"late", succeeded) == 3
    assert store.append(ledger, b"later", succeeded) == 4
    for _ in range(40):
        store.append(busy, bytes(600), succeeded)
        # The groups before the unload leave the cache; the entries after it are not on disk at first.
        store._completions.tails._trim()
        assert store.read(ledger, 2, entries_max=9, bytes_max=999) == [b"entry", b"late", b"later"]
        assert store.read(ledger, 3, entries_max=9, bytes_max=999) == [b"late", b"later"]
        store.poll()
    store.close()


def test_unsaved_changes_are_bounded_in_bytes(small_settings):
    """Many keys and ledgers with little content are checkpointed long before their records are many."""
    settings = dataclasses.replace(
        small_settings, checkpoint_records=10**6, checkpoint_log_bytes=1 << 30, checkpoint_groups=10**6,
        checkpoint_state_bytes=100_000, rewrite_live_fraction=0.0,
    )  # fmt: skip
    disk = SimulatedDisk()
    store, most = open_store(disk, settings), 0
    for number in range(500):
        ledger_id = store.create_ledger(f"topic-{number}")
        store.keys.put(f"topic/{number}", b"{}")
        store.keys.merge(f"ledgers/{number}", b"%d" % number)
        store.append(ledger_id, b"entry", succeeded)
        store.poll()
        most = max(most, store.state.unsaved_bytes)
    assert most < 110_000
    assert len(store.state.ledgers.loaded) < 150, "those without a recent entry leave memory"
    replayed = open_store(disk.kill(), settings)
    assert replayed._recovery._result.replayed_groups < 100
    assert list(replayed.keys.names("topic/")) == sorted(f"topic/{number}" for number in range(500))


def test_ledger_ids_grow_over_restarts_even_when_all_are_deleted(small_settings):
    disk = SimulatedDisk()
    seen: set[int] = set()
    for _ in range(5):
        with open_store(disk, small_settings) as store:
            ledger = store.create_ledger("a")
            assert ledger not in seen
            assert ledger > max(seen, default=-1)
            seen.add(ledger)
            store.delete_ledgers([ledger])
        disk.databases.clear()
