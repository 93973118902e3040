"""Recovery over the simulated disk: the power goes at every operation, and again while recovering."""

from __future__ import annotations

import random

import pytest

from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.testing.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk
from geminga.testing.store_auditor import StoreAuditor

FOLDER = "/data/store"


def open_store(disk: SimulatedDisk, settings: StoreSettings, plan: Plan | None = None) -> FileStore:
    return FileStore.open(FOLDER, settings=settings, filesystem=FaultyFileSystem(disk, plan), threads=False)


def write_history(auditor: StoreAuditor, store: FileStore, *, rounds: int = 8) -> None:
    """A small life: ledgers come and go, cursors are merged and put, files roll and are rewritten."""
    ledgers: list[int] = []
    for number in range(rounds):
        ledgers.append(auditor.create_ledger(store, f"topic-{number % 3}"))
        for entry in range(4):
            ledger_id = ledgers[(number + entry) % len(ledgers)]
            auditor.append(
                store, ledger_id, f"{number}:{entry}:".encode() + bytes([number]) * 90 * (entry + 1)
            )
            if entry == 1:
                store.poll()
        auditor.merge(store, f"cursor-{number % 2}", b"delta %d" % number)
        auditor.put(store, f"policy-{number % 4}", b"value %d" % number)
        store.poll()
        if number % 3 == 2:
            auditor.delete_ledgers(store, [ledgers.pop(0), ledgers.pop(0)])
            auditor.delete(store, f"policy-{number % 4}")
            auditor.put(store, f"cursor-{number % 2}", b"base %d" % number)
        store.poll()


def run_until_power_loss(
    disk: SimulatedDisk, settings: StoreSettings, plan: Plan, auditor: StoreAuditor
) -> bool:
    """Whether the power went before the history ended."""
    try:
        store = open_store(disk, settings, plan)
        write_history(auditor, store)
        store.close()
    except PowerLoss:
        return True
    return False


def count_operations(settings: StoreSettings) -> list[tuple[str, str]]:
    filesystem = FaultyFileSystem(SimulatedDisk())
    store = FileStore.open(FOLDER, settings=settings, filesystem=filesystem, threads=False)
    write_history(StoreAuditor(), store)
    store.close()
    return filesystem.history


def check_recovers(disk: SimulatedDisk, settings: StoreSettings, auditor: StoreAuditor) -> None:
    """The store opens undamaged, shows an allowed state, and takes writes that survive too."""
    store = open_store(disk, settings)
    assert store.damage == []
    auditor.check_restarted(store)
    write_history(auditor, store, rounds=3)
    auditor.check_running(store)
    store.close()
    assert auditor.receipted == len(auditor.operations)
    store = open_store(disk, settings)
    assert store.damage == []
    auditor.check_restarted(store)
    store.close()


def test_the_history_reaches_every_step(small_settings: StoreSettings) -> None:
    history = count_operations(small_settings)
    kinds = {kind for kind, _ in history}
    assert kinds == {
        "create",
        "write",
        "sync",
        "allocate",
        "truncate",
        "rename",
        "unlink",
        "sync folder",
        "commit",
    }
    assert sum(kind == "unlink" for kind, _ in history) >= 2
    assert sum(kind == "commit" for kind, _ in history) >= 5


@pytest.mark.parametrize("data", ["none", "all", "some"])
@pytest.mark.parametrize("names", ["none", "all"])
@pytest.mark.parametrize("databases", ["last", "first", "some"])
def test_power_loss_at_every_operation(
    small_settings: StoreSettings, data: str, names: str, databases: str
) -> None:
    for crash_at in range(1, len(count_operations(small_settings)) + 1):
        disk, auditor = SimulatedDisk(), StoreAuditor()
        assert run_until_power_loss(disk, small_settings, Plan(crash_at=crash_at), auditor)
        fate = Fate(data, names, databases, random.Random(crash_at))
        check_recovers(disk.crash(fate), small_settings, auditor)


def test_process_killed_at_every_operation(small_settings: StoreSettings) -> None:
    for crash_at in range(1, len(count_operations(small_settings)) + 1):
        disk, auditor = SimulatedDisk(), StoreAuditor()
        assert run_until_power_loss(disk, small_settings, Plan(crash_at=crash_at), auditor)
        check_recovers(disk.kill(), small_settings, auditor)
