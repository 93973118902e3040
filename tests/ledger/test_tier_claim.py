"""A store and its copies share a storage location: no store deletes files that another one needs."""

import errno
import random
import shutil

import pytest

from geminga.ledger.backup.backup import backup
from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.inspection import inspect
from geminga.ledger.store import FileStore
from geminga.ledger.tier import claim_file as claims
from geminga.ledger.tier import identity as identities
from geminga.ledger.tier.claim import BEAT_SECONDS, QUIET_SECONDS, StorageNotClaimed, claim, holder
from geminga.ledger.tier.folder_storage import FolderStorage
from geminga.ledger.tiered import TieredStore
from geminga.offload import manifest
from tests.ledger.test_tiered import (
    TOPIC,
    Clock,
    Reports,
    check_tier,
    delete,
    dropped,
    fill,
    holds_claim,
    offload,
    offloaded,
    on_a_new_disk,
    open_after_crash,
    open_store,
    read,
    settle,
    tier_files,
)
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk, _Inode


def copy_folder(disk: SimulatedDisk, source: str, target: str) -> None:
    """Copy a store like ``cp -r``: all visible content, in new files; also of an open store."""
    disk.folders.add(target)
    disk.durable_folders.add(target)
    for path, inode in list(disk.names.items()):
        if path.startswith(source + "/"):
            copied = _Inode(bytearray(inode.visible), bytearray(inode.visible))
            disk.names[target + path[len(source) :]] = copied
    for path, images in list(disk.databases.items()):
        if path.startswith(source + "/"):
            disk.databases[target + path[len(source) :]] = list(images[-1:])
    disk.durable_names = dict(disk.names)
    disk.name_changes = []


def in_place(disk: SimulatedDisk) -> list[str]:
    """All files of the storage location, its claim included."""
    return [path for path in disk.names if path.startswith("/tier/")]


def unmount(disk: SimulatedDisk) -> dict[str, _Inode]:
    """Unmount the storage location; returns its files, to restore `disk.names`."""
    return {path: disk.names.pop(path) for path in in_place(disk)}


def copy_made(disk: SimulatedDisk, filesystem: FaultyFileSystem, by: str) -> None:
    if by == "backup":
        backup("/store", "/copy", filesystem=filesystem)
    else:
        copy_folder(disk, "/store", "/copy")


@pytest.mark.parametrize("by", ["backup", "cp"])
def test_a_copy_that_trims_deletes_no_file_of_the_original(by):
    disk, filesystem, store = on_a_new_disk()
    first, second, third = kept = fill(store, 3)
    offload(store, first, second)
    copy_made(disk, filesystem, by)
    copy = open_after_crash(filesystem, "/copy")
    assert "another copy" in copy.tier.borrowed
    assert {each: read(copy, each) for each in kept} == kept
    before, listed = tier_files(disk), manifest.load(store.tier.storage, TOPIC)
    copy.delete_ledgers([first])
    delete(copy, third)
    copy.tier.sweep()
    settle(copy)
    assert [each.ledger_id for each in copy.ledgers(TOPIC)] == [second]
    more = fill(copy, 1)
    with pytest.raises(StorageNotClaimed):
        copy.tier.offload(TOPIC, min(more), 1, Reports(), offset=15)
    assert tier_files(disk) == before
    assert manifest.load(store.tier.storage, TOPIC) == listed
    assert {each: read(store, each) for each in kept} == kept
    # The original continues as usual.
    offload(store, third)
    delete(store, first)
    assert {each: read(store, each) for each in (second, third)} == {
        each: kept[each] for each in (second, third)
    }
    assert len(tier_files(disk)) == 3
    copy.close()
    store.close()
    copy = open_after_crash(filesystem, "/copy")
    assert copy.tier.borrowed
    copy.close()


@pytest.mark.parametrize("by", ["backup", "cp"])
def test_a_copy_made_during_an_offload_does_not_sweep_its_file(by):
    for steps in range(8):
        disk, filesystem, store = on_a_new_disk()
        settle(store)
        kept = fill(store, 1)
        (first,) = kept
        reports = Reports()
        store.tier.offload(TOPIC, first, 1, reports, offset=0)
        settle(store, steps)
        copy_made(disk, filesystem, by)
        settle(store)
        assert reports.is_well
        store.tier.drop_local(TOPIC, first, Reports())
        settle(store)
        assert first not in store.tier.local_ledgers(TOPIC)
        copy = open_after_crash(filesystem, "/copy")
        assert copy.tier.borrowed
        assert read(copy, first) == kept[first]
        copy.close()
        assert read(store, first) == kept[first]
        store.close()


def test_a_copy_keeps_local_entries_of_files_it_does_not_own():
    disk, filesystem, store = on_a_new_disk()
    (first,) = kept = fill(store, 1)
    offload(store, first, drop=False)
    copy_folder(disk, "/store", "/copy")
    copy = open_after_crash(filesystem, "/copy")
    with pytest.raises(StorageNotClaimed):
        copy.tier.drop_local(TOPIC, first, Reports())
    delete(store, first)
    assert tier_files(disk) == []
    assert read(copy, first) == kept[first]
    copy.close()
    store.close()


class Machines:
    """Machines with disks of their own, and a shared storage location."""

    def __init__(self) -> None:
        self.shared = SimulatedDisk()

    def open(self, disk: SimulatedDisk, clock: Clock, *beside: TieredStore) -> TieredStore:
        """Open a store; while it waits, the time passes for the stores ``beside`` it, too."""

        def sleep(seconds: float) -> None:
            clock.now += seconds
            for each in beside:
                settle(each)

        local = FileStore.open("/store", filesystem=FaultyFileSystem(disk), threads=False)
        place = FolderStorage(FaultyFileSystem(self.shared), "/tier")
        return TieredStore(local, place, threads=False, clock=clock, sleep=sleep)


def pass_time(clock: Clock, *stores: TieredStore) -> None:
    for _ in range(8):
        for store in stores:
            settle(store)
        clock.now += BEAT_SECONDS


def test_the_copy_of_a_disk_finds_that_the_original_runs_and_stays_a_copy():
    machines, clock, disk = Machines(), Clock(), SimulatedDisk()
    store = machines.open(disk, clock)
    kept = fill(store)
    offload(store, *kept)
    clone_disk = disk.copy()
    clone = machines.open(clone_disk, clock, store)
    clone.delete_ledgers([min(kept)])
    pass_time(clock, store, clone)
    assert "belongs to a running store" in clone.tier.borrowed
    assert store.tier.claim.is_held
    assert {each: read(store, each) for each in kept} == kept
    clone.close()
    store.close()
    # The original is gone now, and was closed by the session that the clone knows.
    clone = machines.open(clone_disk, clock)
    pass_time(clock, clone)
    assert clone.tier.borrowed
    assert len(tier_files(machines.shared)) == 3
    clone.close()


def test_an_older_state_of_the_disk_counts_as_a_copy():
    machines, clock, disk = Machines(), Clock(), SimulatedDisk()
    store = machines.open(disk, clock)
    first, second = kept = fill(store)
    offload(store, first)
    store.close()
    older = disk.copy()
    store = machines.open(disk, clock)
    settle(store)
    offload(store, second)
    store.close()
    rolled_back = machines.open(older, clock)
    pass_time(clock, rolled_back)
    assert "later state" in rolled_back.tier.borrowed
    assert {each: read(rolled_back, each) for each in kept} == kept
    delete(rolled_back, first)
    rolled_back.close()
    store = machines.open(disk, clock)
    settle(store)
    assert {each: read(store, each) for each in kept} == kept
    store.close()


def test_a_holder_paused_for_long_finds_the_claim_taken():
    machines, clock, disk = Machines(), Clock(), SimulatedDisk()
    paused = machines.open(disk, clock)
    kept = fill(paused)
    offload(paused, *kept)
    clone = machines.open(disk.copy(), clock)
    pass_time(clock, clone)  # and the other store changes nothing
    assert clone.tier.claim.is_held
    before = tier_files(machines.shared)
    delete(paused, min(kept))
    assert "taken over" in paused.tier.borrowed
    assert tier_files(machines.shared) == before
    assert {each: read(clone, each) for each in kept} == kept
    paused.close()
    assert holds_claim(clone)
    clone.close()


def test_the_claim_may_be_taken_while_many_files_are_deleted(monkeypatch):
    monkeypatch.setattr("geminga.ledger.tier.files.CLAIM_CHECKED_SECONDS", -1.0)
    machines, clock, disk = Machines(), Clock(), SimulatedDisk()
    slow = machines.open(disk, clock)
    kept = fill(slow, 3)
    offload(slow, *kept)
    clone = machines.open(disk.copy(), clock)
    delete, before = slow.tier.storage.delete, tier_files(machines.shared)

    def delete_slowly(path: str) -> None:
        delete(path)
        pass_time(clock, clone)

    monkeypatch.setattr(slow.tier.storage, "delete", delete_slowly)
    slow.delete_ledgers(list(kept))
    settle(slow)
    assert "taken over" in slow.tier.borrowed
    assert clone.tier.claim.is_held
    assert len(set(before) - set(tier_files(machines.shared))) == 1  # the clone only reads the others
    slow.close()
    clone.close()


def test_changes_wait_until_the_claim_is_decided():
    disk, _, store = on_a_new_disk()
    first, second = kept = fill(store)
    offload(store, first, drop=False)
    disk.kill()
    clock = Clock()
    store = open_store(FaultyFileSystem(disk), clock)
    offloading, dropping = Reports(), Reports()
    store.tier.offload(TOPIC, second, 1, offloading, offset=5)
    store.tier.drop_local(TOPIC, first, dropping)
    before = clock.now
    settle(store)
    assert clock.now - before >= QUIET_SECONDS
    assert offloading.is_well
    assert dropping.is_well
    assert {each: read(store, each) for each in kept} == kept
    store.close()


def taken_over(filesystem: FaultyFileSystem, clock: Clock, folder: str = "/copy") -> None:
    place = FolderStorage(filesystem, "/tier")
    claim(folder, place, filesystem=filesystem, clock=clock, sleep=clock.sleep)


def test_a_copy_whose_original_is_gone_can_take_the_claim():
    disk, filesystem, store = on_a_new_disk()
    first, second = kept = fill(store)
    offload(store, *kept)
    copy_folder(disk, "/store", "/copy")
    copy = open_after_crash(filesystem, "/copy")
    delete(copy, first)
    copy.close()
    place = FolderStorage(filesystem, "/tier")
    report = inspect("/copy", filesystem=filesystem, place=place)
    assert "is claimed by" in report.borrowed
    assert report.is_well
    store.close()
    assert inspect("/store", filesystem=filesystem, place=place).borrowed == ""
    assert holder("/copy", place, filesystem=filesystem)
    taken_over(filesystem, Clock())
    assert not holder("/copy", place, filesystem=filesystem)
    copy = open_store(filesystem, folder="/copy")
    assert holds_claim(copy)
    assert read(copy, second) == kept[second]
    assert len(tier_files(disk)) == 2  # the files that it had deleted before are gone now
    copy.close()
    store = open_after_crash(filesystem)
    assert store.tier.borrowed
    delete(store, second)
    assert len(tier_files(disk)) == 2
    store.close()


def test_the_claim_of_a_running_store_cannot_be_taken(monkeypatch):
    disk = SimulatedDisk()
    filesystem = FaultyFileSystem(disk)
    clock = Clock()
    store = settle(open_store(filesystem, clock))
    copy_folder(disk, "/store", "/copy")
    load = claims.load

    def and_the_other_runs(place: FolderStorage) -> claims.Claim | None:
        monkeypatch.setattr(claims, "load", load)
        store.poll()
        monkeypatch.setattr(claims, "load", and_the_other_runs)
        return load(place)

    monkeypatch.setattr(claims, "load", and_the_other_runs)
    with pytest.raises(StorageNotClaimed, match="stop that broker first"):
        taken_over(filesystem, clock)
    FileStore.open("/other", filesystem=filesystem, threads=False).close()
    with pytest.raises(StorageNotClaimed, match="another store"):
        taken_over(filesystem, clock, "/other")
    monkeypatch.setattr(claims, "load", load)
    assert holds_claim(store)
    store.close()
    store = open_store(filesystem)
    assert holds_claim(store)
    store.close()


def life(filesystem: FaultyFileSystem) -> None:
    clock = Clock()
    for _ in range(2):
        store = open_store(filesystem, clock)
        pass_time(clock, store)
        store.close()


@pytest.mark.parametrize("fate", ["none", "all", "some", "killed"])
def test_no_crash_makes_an_original_a_copy_or_the_reverse(fate, part):
    filesystem = FaultyFileSystem(SimulatedDisk())
    life(filesystem)
    for number in part(range(1, filesystem.operations + 1), 3):
        disk = SimulatedDisk()
        try:
            life(FaultyFileSystem(disk, Plan(crash_at=number, torn_bytes=number % 150)))
        except (PowerLoss, ValueError):
            pass
        after = (
            disk.kill() if fate == "killed" else disk.crash(Fate(fate, fate, "last", random.Random(number)))
        )
        again = FaultyFileSystem(after)
        store = open_after_crash(again)
        assert store.tier.claim.is_held
        copy_folder(after, "/store", "/copy")
        copy = open_after_crash(again, "/copy")
        assert copy.tier.borrowed
        assert store.tier.claim.is_held
        copy.close()
        store.close()


def test_errors_of_disk_and_storage_leave_the_claim_undecided_and_are_retried():
    _, filesystem, store = on_a_new_disk()
    before = filesystem.operations
    settle(store)
    steps = range(before + 1, filesystem.operations + 1)
    assert len(steps) > 8
    for number in steps:
        disk = SimulatedDisk()
        filesystem = FaultyFileSystem(disk, Plan(errors={number: errno.EIO}))
        clock = Clock()
        store = open_store(filesystem, clock)
        assert not holds_claim(store)
        assert not store.tier.borrowed
        pass_time(clock, store)
        assert store.tier.claim.is_held
        store.close()


@pytest.mark.parametrize(
    ("is_open", "files", "claim_below"),
    [(True, 1, False), (False, 1, False), (True, 0, False), (True, 1, True), (False, 1, True)],
)
def test_an_unmounted_storage_is_not_claimed(is_open, files, claim_below):
    """Files written to the folder below the mount point would be hidden by the next mount.

    There is a claim in that folder if the broker was started once before the storage was mounted.
    """
    disk, clock = SimulatedDisk(), Clock()
    filesystem = FaultyFileSystem(disk)
    store = open_store(filesystem, clock)
    *before, last = kept = fill(store, files + 1)
    below: dict[str, _Inode] = {}
    if claim_below:
        store.close()
        below = unmount(disk)
        assert below
        store = open_after_crash(filesystem)
    for each in before:
        offload(store, each)
    assert store.tier.claim.is_held
    if not is_open:
        store.close()
    mounted = unmount(disk)
    disk.names.update(below)
    if not is_open:
        store = open_store(filesystem, clock)
    pass_time(clock, store)
    reports = offloaded(store, last)
    assert "is it mounted?" in str(reports.found)
    assert set(in_place(disk)) == set(below)
    for path in below:
        del disk.names[path]
    disk.names.update(mounted)
    pass_time(clock, store)
    offload(store, last)
    assert {each: read(store, each) for each in kept} == kept
    check_tier(store, disk)
    store.close()


def test_a_damaged_claim_stops_offloads_until_it_is_written_again():
    disk, clock = SimulatedDisk(), Clock()
    filesystem = FaultyFileSystem(disk)
    store = open_store(filesystem, clock)
    kept = fill(store)
    settle(store)
    place = FolderStorage(filesystem, "/tier")
    place.replace(claims.CLAIM, b"")
    reports = offloaded(store, min(kept))
    assert "to write it again, stop the broker and run 'geminga store claim /store'" in str(reports.found)
    store.close()
    claim("/store", place, filesystem=filesystem)
    store = open_store(filesystem, clock)
    offload(store, min(kept))
    check_tier(store, disk)
    store.close()


def test_offloaded_ledgers_stay_offloaded_while_the_storage_is_not_mounted():
    """The files cannot be checked before local entries are deleted; they are not lost, nor written again."""
    disk, clock = SimulatedDisk(), Clock()
    store = open_store(FaultyFileSystem(disk), clock)
    kept = fill(store)
    first = min(kept)
    offload(store, first, drop=False)
    mounted = unmount(disk)
    reports = dropped(store, first)
    assert "is it mounted?" in str(reports.found)
    assert store.tier.record(first) is not None
    disk.names.update(mounted)
    pass_time(clock, store)
    assert dropped(store, first).is_well
    assert read(store, first) == kept[first]
    check_tier(store, disk)
    store.close()


@pytest.mark.parametrize("old_claim", [False, True])
def test_lost_storage_can_be_replaced(old_claim):
    disk = SimulatedDisk()
    filesystem = FaultyFileSystem(disk)
    open_store(filesystem).close()
    below = unmount(disk) if old_claim else {}
    store = open_store(filesystem)
    first, second = kept = fill(store)
    offload(store, first)
    store.close()
    unmount(disk)
    disk.names.update(below)
    taken_over(filesystem, Clock(), "/store")
    store = settle(open_store(filesystem))
    offload(store, second)
    assert read(store, second) == kept[second]
    store.close()


@pytest.mark.parametrize("is_held", [True, False])
def test_without_a_readable_claim_no_store_deletes_files(is_held):
    disk, filesystem, store = on_a_new_disk()
    first, second = kept = fill(store)
    offload(store, first)
    if not is_held:
        store.close()
    path = f"/tier/{claims.CLAIM}"
    disk.content(path)[0] ^= 1
    if not is_held:
        store = open_after_crash(filesystem)
    before = tier_files(disk)
    delete(store, first)
    assert tier_files(disk) == before
    store.close()
    taken_over(filesystem, Clock(), "/store")
    store = open_store(filesystem)
    assert holds_claim(store)
    assert tier_files(disk) == []
    assert read(store, second) == kept[second]
    store.close()


def test_a_damaged_identity_file_deletes_no_offloaded_file():
    disk, filesystem, store = on_a_new_disk()
    settle(store)
    store.close()
    path = f"/store/{identities.IDENTITY_FILE}"
    whole, files = bytes(disk.content(path)), len(disk.names)
    claimed = bytes(disk.content(f"/tier/{claims.CLAIM}"))
    for position in range(len(whole)):
        disk.content(path)[:] = whole
        disk.content(path)[position] ^= 0x11
        disk.content(f"/tier/{claims.CLAIM}")[:] = claimed
        store = open_after_crash(filesystem)
        assert store.tier.claim.is_held or store.tier.borrowed
        store.close()
        assert len(disk.names) == files


def test_a_real_file_and_its_copy_have_different_ids(tmp_path):
    folder, files = tmp_path, RealFileSystem()
    (folder / "a").mkdir()
    found = identities.StoreIdentity("x" * 32).with_session("place", ("one", "two"))
    identities.save(files, str(folder / "a"), found)
    assert identities.look(files, str(folder / "a")) == found
    shutil.copytree(folder / "a", folder / "b", symlinks=True)
    assert identities.look(files, str(folder / "b")) is None
    (folder / "a").rename(folder / "c")  # the file is still not a copy
    assert identities.look(files, str(folder / "c")) == found
