"""Recovery on the simulated disk: the power fails at every operation, and again during recovery."""

import copy
import dataclasses
import random

import pytest

from geminga.ledger.files.format import FILE_HEADER_BYTES
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from tests.support.disk_stores import FOLDER, append_all, open_store, operations_of
from tests.support.faulty_filesystem import Fate, Plan, PowerLoss, SimulatedDisk
from tests.support.store_auditor import StoreAuditor


def write_history(auditor: StoreAuditor, store: FileStore, *, rounds: int = 8) -> None:
    """Short history: ledgers come and go, cursors are merged and put, files roll and are rewritten."""
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
        auditor.append_run(store, ledgers[-1], [b"%d:run:%d" % (number, entry) * 9 for entry in range(3)])
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
    """Return whether the power failed before the history ended."""
    try:
        store = open_store(disk, settings, plan)
        write_history(auditor, store)
        store.close()
    except PowerLoss:
        return True
    return False


def count_operations(settings: StoreSettings) -> list[tuple[str, str]]:
    return operations_of(settings, lambda store: write_history(StoreAuditor(), store))


def check_recovers(disk: SimulatedDisk, settings: StoreSettings, auditor: StoreAuditor) -> None:
    """The store opens undamaged, shows an allowed state, and takes writes that survive too."""
    with open_store(disk, settings) as store:
        auditor.check_restarted(store)
        write_history(auditor, store, rounds=3)
        auditor.check_running(store)
    assert auditor.receipted == len(auditor.operations)
    with open_store(disk, settings) as store:
        auditor.check_restarted(store)


def test_the_test_history_covers_every_kind_of_operation(small_settings):
    history = count_operations(small_settings)
    kinds = {kind for kind, _ in history}
    assert kinds == {
        "make folder", "create", "write", "sync", "allocate", "truncate", "rename", "unlink", "sync folder",
        "commit",
    }  # fmt: skip
    assert sum(kind == "unlink" for kind, _ in history) >= 2
    assert sum(kind == "commit" for kind, _ in history) >= 5


def test_deleting_no_ledgers_deletes_none_after_a_restart(small_settings):
    disk, auditor = SimulatedDisk(), StoreAuditor()
    store = open_store(disk, small_settings)
    auditor.append(store, auditor.create_ledger(store, "first"), b"entry")
    store.delete_ledgers([])
    store.delete_ledgers([1], lambda error: None)
    auditor.append(store, auditor.create_ledger(store, "second"), b"entry")
    store.delete_ledgers([], lambda error: None)
    store.poll()
    disk.kill()
    with open_store(disk, small_settings) as store:
        auditor.check_restarted(store)
    disk.databases.clear()
    with open_store(disk, small_settings) as store:
        auditor.check_restarted(store)


def test_a_kill_at_any_operation_loses_no_confirmed_write(small_settings, part):
    for crash_at in part(range(1, len(count_operations(small_settings)) + 1), 3):
        disk, auditor = SimulatedDisk(), StoreAuditor()
        assert run_until_power_loss(disk, small_settings, Plan(crash_at=crash_at), auditor)
        check_recovers(disk.kill(), small_settings, auditor)


@pytest.mark.parametrize("seed", range(3))
def test_repeated_power_loss_during_recovery_loses_nothing(small_settings, seed):
    """I10: at every operation of a recovery the power fails again, until one recovery completes."""
    chance = random.Random(seed)
    total = len(count_operations(small_settings))
    for crash_at in range(5 + seed, total + 1, 9):
        disk, auditor = SimulatedDisk(), StoreAuditor()
        assert run_until_power_loss(disk, small_settings, Plan(crash_at=crash_at), auditor)
        again = 1
        while True:
            disk = disk.crash(Fate.by_chance(chance))
            try:
                open_store(disk, small_settings, Plan(crash_at=again)).close()
                break
            except PowerLoss:
                again += 1
        check_recovers(disk.copy(), small_settings, auditor)


def test_a_file_whose_creation_lost_only_its_header_is_no_damage(small_settings):
    """Its list of files survived. No record was written to it yet."""
    history = count_operations(small_settings)
    path = f"{FOLDER}/log-0000000002"
    crash_at = 1 + history.index(("sync", path))
    disk, auditor = SimulatedDisk(), StoreAuditor()
    assert run_until_power_loss(disk, small_settings, Plan(crash_at=crash_at), auditor)
    disk = disk.crash(Fate("all", "all"))
    header = disk.names[path]
    header.durable[:FILE_HEADER_BYTES] = header.visible[:FILE_HEADER_BYTES] = bytes(FILE_HEADER_BYTES)
    check_recovers(disk, small_settings, auditor)


@pytest.mark.parametrize("sync", ["interval", "never"])
def test_weaker_sync_loses_only_the_end(small_settings, sync):
    """Without syncing each group, a power loss may take confirmed writes, but only from the end on."""
    settings = dataclasses.replace(small_settings, sync=sync)
    for crash_at in range(1, len(count_operations(settings)) + 1, 2):
        disk, auditor = SimulatedDisk(), StoreAuditor()
        assert run_until_power_loss(disk, settings, Plan(crash_at=crash_at), auditor)
        auditor.receipted = 0
        after = disk.crash(Fate("some", "all", "last", random.Random(crash_at)))
        with open_store(after, settings) as store:
            auditor.check_restarted(store)


def test_groups_behind_a_torn_one_stay_cut_off(small_settings):
    """Later groups may end where one of them begins: it would be read as theirs."""
    settings = dataclasses.replace(small_settings, sync="never")
    disk = SimulatedDisk()
    store = open_store(disk, settings)
    entries = (b"first", b"torn!", b"after", b"stale")
    ledger_id = append_all(store, store.create_ledger("t"), entries, poll_each=True)
    store.abandon()
    content = disk.content(f"{FOLDER}/log-0000000001")
    content[content.index(b"torn!")] ^= 1
    store = open_store(disk, settings)  # opening writes a group without an entry
    append_all(store, ledger_id, [b"10 letters"])
    store.abandon()
    store = open_store(disk, settings)
    assert store.damage.found == []
    assert store.read(ledger_id, 0, entries_max=9, bytes_max=1000) == [b"first", b"10 letters"]
    store.close()


@pytest.mark.parametrize("how", ["missing", "garbage", "foreign"])
def test_a_lost_catalog_is_rebuilt_from_the_log(small_settings, how):
    disk, auditor = SimulatedDisk(), StoreAuditor()
    with open_store(disk, small_settings) as store:
        write_history(auditor, store, rounds=20)
        next_ledger_id = auditor.create_ledger(store, "last")
    path = f"{FOLDER}/catalog.db"
    if how == "missing":
        del disk.databases[path]
    elif how == "garbage":
        image = bytearray(disk.databases[path][-1])
        image[30:6000:17] = b"x" * len(image[30:6000:17])
        disk.databases[path] = [bytes(image)]
    else:
        other = SimulatedDisk()
        open_store(other, small_settings).close()
        disk.databases[path] = [other.databases[path][-1]]
    with open_store(disk, small_settings) as store:
        auditor.check_restarted(store)
        assert store.create_ledger("next") == next_ledger_id + 1


def test_an_outdated_catalog_is_rebuilt_from_the_log(small_settings):
    disk, auditor = SimulatedDisk(), StoreAuditor()
    with open_store(disk, small_settings) as store:
        write_history(auditor, store, rounds=20)
    images = disk.databases[f"{FOLDER}/catalog.db"]
    for image in images:
        other = disk.copy()
        other.databases[f"{FOLDER}/catalog.db"] = [image]
        with open_store(other, small_settings) as store:
            copy.deepcopy(auditor).check_restarted(store)


def test_a_start_after_a_kill_is_logged_and_one_after_a_close_is_not(caplog):
    caplog.set_level("INFO", "geminga.ledger")
    disk = SimulatedDisk()
    for number in range(3):
        store = open_store(disk, StoreSettings())
        assert ("not closed: recovered in" in caplog.text) == (number == 2)
        caplog.clear()
        store.keys.put(f"key-{number}", b"value")
        store.poll()
        (store.close if number == 0 else store.abandon)()
