"""Offloaded ledgers stay readable; a crash at any step loses nothing and leaves no file behind."""

import contextlib
import errno
import random
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from entries import batch_entry, in_batch

from geminga.errors import LedgerNotFound, StoreError
from geminga.ledger.api import ReadAhead
from geminga.ledger.backup.backup import backup
from geminga.ledger.damage import EntriesDamaged
from geminga.ledger.files.filesystem import RealFile, RealFileSystem
from geminga.ledger.files.folder import discard_catalog
from geminga.ledger.files.format import OFFSET_BITS, OFFSET_MASK, file_name
from geminga.ledger.inspection import inspect
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.ledger.tier import catalog as tier_catalog
from geminga.ledger.tier import claim_file as claims
from geminga.ledger.tier import folder_storage as offload_folder
from geminga.ledger.tier.claim import BEAT_SECONDS, StorageNotClaimed
from geminga.ledger.tier.claim_file import CLAIM
from geminga.ledger.tier.files import AGAIN_SECONDS
from geminga.ledger.tier.folder_storage import FolderStorage
from geminga.ledger.tier.offloading import OffloadFailed, Offloading
from geminga.ledger.tiered import TieredStore
from geminga.offload import manifest
from geminga.offload.file import LedgerFile
from geminga.offload.manifest import OffloadedLedger
from geminga.offload.storage import folder_of
from tests.support.disk_stores import mounted
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk

TOPIC = "persistent://public/default/flights"
FOLDER = f"/tier/{folder_of(TOPIC)}"
SETTINGS = StoreSettings(preallocate_bytes=0, garbage_bytes_min=4096, log_file_bytes=64 * 1024)


def entry(number: int) -> bytes:
    message = in_batch(b"flight %d" % number, sequence_id=number)
    return batch_entry([message], sequence_id=number, publish_time=1_700_000_000_000 + number)


class Clock:
    """Clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def open_store(
    filesystem: FaultyFileSystem, clock: Clock | None = None, folder: str = "/store"
) -> TieredStore:
    local = FileStore.open(folder, filesystem=filesystem, threads=False, settings=SETTINGS)
    place = FolderStorage(filesystem, "/tier")
    clock = clock or Clock()
    return TieredStore(local, place, threads=False, clock=clock, sleep=clock.sleep)


def open_after_crash(filesystem: FaultyFileSystem, folder: str = "/store") -> TieredStore:
    """Store whose last process died, once it has taken its claim."""
    return settle(open_store(filesystem, folder=folder))


def settle(store: TieredStore, polls: int = 60) -> TieredStore:
    for _ in range(polls):
        store.poll()
    return store


def delete(store: TieredStore, *ledgers: int) -> None:
    store.delete_ledgers(ledgers)
    settle(store)


def holds_claim(store: TieredStore) -> bool:
    return settle(store).tier.claim.is_held


class Reports:
    """Collects reports."""

    def __init__(self) -> None:
        self.found: list[StoreError | None] = []

    def __call__(self, error: StoreError | None) -> None:
        self.found.append(error)

    @property
    def is_well(self) -> bool:
        return self.found == [None]


def fill(store: TieredStore, ledgers: int = 2, entries: int = 5) -> dict[int, list[bytes]]:
    kept: dict[int, list[bytes]] = {}
    for _ in range(ledgers):
        ledger_id = store.create_ledger(TOPIC)
        kept[ledger_id] = [entry(ledger_id * 100 + number) for number in range(entries)]
        for each in kept[ledger_id]:
            store.append(ledger_id, each, lambda error: None)
    settle(store)
    return kept


def on_a_new_disk() -> tuple[SimulatedDisk, FaultyFileSystem, TieredStore]:
    disk = SimulatedDisk()
    filesystem = FaultyFileSystem(disk)
    return disk, filesystem, open_store(filesystem)


def filled() -> tuple[SimulatedDisk, TieredStore, dict[int, list[bytes]]]:
    """Return a disk with a store on it, and the entries of its two ledgers."""
    disk, _, store = on_a_new_disk()
    return disk, store, fill(store)


def offloaded(store: TieredStore, ledger_id: int) -> Reports:
    reports = Reports()
    store.tier.offload(TOPIC, ledger_id, 1_700_000_000_000, reports, offset=0)
    settle(store)
    return reports


def dropped(store: TieredStore, ledger_id: int) -> Reports:
    """Have the local entries of an offloaded ledger deleted."""
    reports = Reports()
    store.tier.drop_local(TOPIC, ledger_id, reports)
    settle(store)
    return reports


def offload(store: TieredStore, *ledger_ids: int, drop: bool = True) -> None:
    for ledger_id in ledger_ids:
        for step in (offloaded, dropped) if drop else (offloaded,):
            reports = step(store, ledger_id)
            assert reports.is_well, reports.found


def position_of(store: TieredStore, ledger_id: int, entry_id: int) -> tuple[str, int]:
    """Return the file of an entry, and its offset there."""
    ledgers = store.local.state.ledgers
    position = ledgers.index.position(ledger_id, *ledgers.index.locate(ledgers.ledger(ledger_id), entry_id))
    return file_name(position >> OFFSET_BITS), position & OFFSET_MASK


def read(store: TieredStore, ledger_id: int) -> list[bytes]:
    found: list[bytes] = []
    while True:
        more = store.read(ledger_id, len(found), entries_max=2, bytes_max=1 << 20)
        if not more:
            return found
        found += more


def tier_files(disk: SimulatedDisk) -> list[str]:
    return sorted(path for path in disk.names if path.startswith("/tier/") and not path.endswith(CLAIM))


def check_tier(store: TieredStore, disk: SimulatedDisk) -> None:
    """Check that the files are exactly those that are recorded, and listed in the manifest."""
    records = store.tier.offloaded(TOPIC)
    wanted = sorted(f"{FOLDER}/{each.file}" for each in records)
    wanted += [f"{FOLDER}/{each}" for each in manifest.files_of(store.tier.storage, TOPIC)]
    assert tier_files(disk) == sorted(wanted)
    found = manifest.load(store.tier.storage, TOPIC)
    assert list(found.ledgers if found else ()) == records


def test_reads_work_before_and_after_local_entries_are_deleted():
    disk, store, kept = filled()
    first, second = kept
    offload(store, first, drop=False)
    assert read(store, first) == kept[first]
    assert first in store.tier.local_ledgers(TOPIC)
    assert dropped(store, first).is_well
    assert first not in store.tier.local_ledgers(TOPIC)
    assert [info.ledger_id for info in store.ledgers(TOPIC)] == [first, second]
    assert store.ledgers(TOPIC)[0].entries == 5
    assert store.owner_of(first) == TOPIC
    assert {each: read(store, each) for each in kept} == kept
    ahead = ReadAhead(10, 1 << 20)
    found = store.fetch(first, 3, entries_max=5, bytes_max=1 << 20, ahead=ahead, done=lambda *_: None)
    assert found == kept[first][3:]
    check_tier(store, disk)
    store.close()
    store = open_store(FaultyFileSystem(disk))
    assert {each: read(store, each) for each in kept} == kept
    delete(store, first)
    assert [info.ledger_id for info in store.ledgers(TOPIC)] == [second]
    with pytest.raises(LedgerNotFound):
        store.read(first, 0, entries_max=1, bytes_max=10)
    assert tier_files(disk) == []
    store.close()


def scenario(filesystem: FaultyFileSystem, kept: dict[int, list[bytes]], gone: list[int]) -> None:
    """History to interrupt: ``kept`` are confirmed ledgers, ``gone`` those that it deletes."""
    store = open_store(filesystem)
    for _ in range(2):
        ledger_id = store.create_ledger(TOPIC)
        entries = [entry(ledger_id * 100 + number) for number in range(4)]
        reports = Reports()
        for each in entries:
            store.append(ledger_id, each, reports)
        settle(store)
        if reports.found == [None] * 4:
            kept[ledger_id] = entries
    first, second = sorted(kept)
    for ledger_id in (first, second):
        reports = offloaded(store, ledger_id)
        if reports.is_well:
            store.tier.drop_local(TOPIC, ledger_id, Reports())
            settle(store)
    gone.append(first)
    delete(store, first)
    store.close()


def check_after(disk: SimulatedDisk, kept: dict[int, list[bytes]], gone: list[int]) -> None:
    store = open_after_crash(FaultyFileSystem(disk, process="2"))
    assert store.tier.claim.is_held
    there = {info.ledger_id for info in store.ledgers(TOPIC)}
    for ledger_id, entries in kept.items():
        if ledger_id not in gone:
            assert ledger_id in there
        if ledger_id in there:
            assert read(store, ledger_id) == entries
    check_tier(store, disk)
    assert list(store.keys.names("offloading/")) == []
    store.close()


def operations() -> int:
    filesystem = FaultyFileSystem(SimulatedDisk())
    scenario(filesystem, {}, [])
    return filesystem.operations


@pytest.fixture(params=[manifest.PAGE_LEDGERS, 1])
def pages(request, monkeypatch):
    """Set the number of ledgers in a page of a manifest."""
    monkeypatch.setattr(manifest, "PAGE_LEDGERS", request.param)


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("fate", ["none", "all", "some", "killed"])
def test_a_crash_at_any_step_loses_nothing_and_leaves_no_files(fate, part):
    for number in part(range(1, operations() + 1), 6):
        disk = SimulatedDisk()
        kept: dict[int, list[bytes]] = {}
        gone: list[int] = []
        plan = Plan(crash_at=number, torn_bytes=number % 700)
        try:
            scenario(FaultyFileSystem(disk, plan), kept, gone)
        except (PowerLoss, ValueError):
            pass
        chance = random.Random(number)
        after = disk.kill() if fate == "killed" else disk.crash(Fate(fate, fate, "last", chance))
        check_after(after, kept, gone)


@pytest.mark.usefixtures("pages")
def test_an_error_at_any_step_changes_no_ledger_and_leaves_no_files(part):
    _, filesystem, store = on_a_new_disk()
    first = min(fill(store))
    before = filesystem.operations
    offload(store, first, drop=False)
    steps = range(before + 1, filesystem.operations + 1)
    of_the_tier = [each for each in steps if filesystem.history[each - 1][1].startswith("/tier")]
    assert len(of_the_tier) > 8
    for code in (errno.ENOSPC, errno.EIO):
        for number in part(of_the_tier, 3):
            disk = SimulatedDisk()
            store = open_store(FaultyFileSystem(disk, Plan(errors={number: code})))
            kept = fill(store)
            reports = offloaded(store, first)
            if not reports.is_well:
                assert isinstance(reports.found[0], StoreError)
                store.tier.sweep()
                settle(store)
                assert store.tier.offloaded(TOPIC) == []
            check_tier(store, disk)
            assert {each: read(store, each) for each in kept} == kept
            if store.tier.offloaded(TOPIC) == []:
                offload(store, first)
            assert {each: read(store, each) for each in kept} == kept
            store.close()


def test_a_ledger_with_a_damaged_file_keeps_its_local_entries():
    disk, store, kept = filled()
    first = min(kept)
    for harm in ("cut", "flip", "gone", "longer"):
        offload(store, first, drop=False)
        path = f"{FOLDER}/{store.tier.offloaded(TOPIC)[0].file}"
        if harm == "gone":
            disk.remove(path)
        elif harm == "cut":
            del disk.content(path)[-1:]
        elif harm == "longer":
            disk.content(path).extend(b"x")
        else:
            disk.content(path)[40] ^= 1
        reports = dropped(store, first)
        assert isinstance(reports.found[0], OffloadFailed)
        assert first in store.tier.local_ledgers(TOPIC)
        assert read(store, first) == kept[first]
        check_tier(store, disk)  # and the damaged file is gone
    offload(store, first)
    assert read(store, first) == kept[first]
    store.close()


def test_later_damage_of_a_file_is_reported_and_not_skipped():
    disk, _, store = on_a_new_disk()
    first = min(fill(store))
    offload(store, first)
    path = f"{FOLDER}/{store.tier.offloaded(TOPIC)[0].file}"
    whole = bytes(disk.content(path))
    store.close()
    for position in range(0, len(whole), 97):
        disk.content(path)[position] ^= 0x10
        store = open_store(FaultyFileSystem(disk))
        try:
            found = read(store, first)
        except (StoreError, EntriesDamaged):
            pass
        else:
            assert found == [entry(first * 100 + number) for number in range(5)]
        disk.content(path)[:] = whole
        store.close()
    disk.remove(path)
    store = open_store(FaultyFileSystem(disk))
    with pytest.raises(StoreError, match="which is not there") as reported:
        read(store, first)
    assert not isinstance(reported.value, EntriesDamaged | LedgerNotFound)
    store.close()


def test_two_stores_cannot_share_a_location():
    disk, filesystem, store = on_a_new_disk()
    offload(store, min(fill(store)))
    other = open_store(filesystem, folder="/other")
    before = tier_files(disk)
    ledger_id = min(fill(other))
    assert "holds ledgers of another store" in other.tier.borrowed
    with pytest.raises(StorageNotClaimed, match="needs a location of its own"):
        other.tier.offload(TOPIC, ledger_id, 1, Reports(), offset=0)
    assert tier_files(disk) == before
    other.close()
    store.close()


def test_a_ledger_deleted_during_its_offload_leaves_no_files():
    for steps in range(12):
        disk = SimulatedDisk()
        store = open_store(FaultyFileSystem(disk))
        first = min(fill(store))
        reports = Reports()
        store.tier.offload(TOPIC, first, 1, reports, offset=0)
        settle(store, steps)
        delete(store, first)
        assert len(reports.found) == 1
        check_tier(store, disk)
        assert store.tier.offloaded(TOPIC) == []
        store.close()


def test_a_check_reports_offloaded_ledgers_and_damaged_files():
    disk, store, kept = filled()
    offload(store, *kept)
    files = [each.file for each in store.tier.offloaded(TOPIC)]
    store.close()
    filesystem = FaultyFileSystem(disk)
    place = FolderStorage(filesystem, "/tier")

    def check() -> list[str]:
        report = inspect("/store", filesystem=filesystem, place=place)
        assert report.offloaded_ledgers == 2
        assert report.findings == []
        return report.tier_findings

    assert check() == []
    disk.content(f"{FOLDER}/{files[0]}")[77] ^= 1
    disk.remove(f"{FOLDER}/{files[1]}")
    filesystem.open(f"{FOLDER}/ledger-9-left.parquet", create=True).close()
    wrong, gone, over = check()
    assert "its checksum is" in wrong
    assert "the file is missing" in gone
    assert "belongs to no ledger; the store has no record of it" in over


def test_wrong_bytes_are_read_again_before_they_are_given_up(monkeypatch):
    disk, store, kept = filled()
    first = min(kept)
    offload(store, first)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    path = f"{FOLDER}/{store.tier.offloaded(TOPIC)[0].file}"
    place = LedgerFile(BytesIO(bytes(disk.content(path)))).summary.groups[0][4] + 20
    disk.content(path)[place] ^= 1
    with pytest.raises(StoreError, match="cannot be read now") as reported:
        read(store, first)
    assert not isinstance(reported.value, EntriesDamaged)
    disk.content(path)[place] ^= 1  # only the connection was at fault
    assert read(store, first) == kept[first]
    store._reader.forget(path.removeprefix("/tier/"))
    disk.content(path)[place] ^= 1
    for _ in range(2):
        now += 86_400  # and no read came in that time
        with pytest.raises(StoreError, match="cannot be read now") as reported:
            read(store, first)
        assert not isinstance(reported.value, EntriesDamaged)
    now += 16
    with pytest.raises(StoreError, match="cannot be read now"):
        read(store, first)
    now += 16
    with pytest.raises(EntriesDamaged) as given_up:
        read(store, first)
    assert given_up.value.damage.ledger_id == first
    store.close()


class Away:
    """Storage whose next files cannot be found, or can be, as ``times`` say."""

    def __init__(self, store: TieredStore, times: list[bool]) -> None:
        self._open = store.tier.storage.open
        self._times = times
        store.tier.storage.open = self.open

    def open(self, path: str) -> Any:
        if self._times and self._times.pop(0):
            raise FileNotFoundError(path)
        return self._open(path)


def test_the_only_copy_is_not_given_up_when_it_cannot_be_read():
    _disk, store, kept = filled()
    first = min(kept)
    offload(store, first, drop=False)
    Away(store, [False, True])
    once, again = Reports(), Reports()
    store.tier.drop_local(TOPIC, first, once)
    store.tier.drop_local(TOPIC, first, again)
    settle(store)
    assert once.is_well
    assert isinstance(again.found[0], OffloadFailed)
    assert first not in store.tier.local_ledgers(TOPIC)
    assert read(store, first) == kept[first]
    store.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_file_needed_for_damaged_local_entries_is_read_and_kept(is_known):
    disk, store, kept = filled()
    first = min(kept)
    offload(store, first, drop=False)
    position = position_of(store, first, 2)
    store.close()
    disk.content(f"/store/{position[0]}")[position[1] + 3] ^= 1
    store = open_store(FaultyFileSystem(disk))
    if is_known:
        assert read(store, first) == kept[first]
        assert store.damage.entries_of(first) == []
    Away(store, [True])
    reports = dropped(store, first)
    assert isinstance(reports.found[0], OffloadFailed)
    assert read(store, first) == kept[first]
    store.close()


def cut_last_entry(disk: SimulatedDisk, ledger_id: int, store: TieredStore) -> TieredStore:
    """Reopen the store, rebuilt from a log in which the group of the ledger's entry 4 is damaged."""
    position = position_of(store, ledger_id, 4)
    store.keys.put("behind", b"it")
    settle(store)
    store.close()
    discard_catalog(FaultyFileSystem(disk), "/store")
    content = disk.content(f"/store/{position[0]}")
    for at in range(position[1] - 60, position[1] + 20):
        content[at] ^= 0x5A
    return open_store(FaultyFileSystem(disk))


def test_the_lost_end_of_a_ledger_is_read_from_the_file():
    disk, _, store = on_a_new_disk()
    ledger_id = store.create_ledger(TOPIC)
    kept = [entry(number) for number in range(5)]
    for each in kept:
        store.append(ledger_id, each, lambda error: None)
        settle(store)
    offload(store, ledger_id, drop=False)
    store = cut_last_entry(disk, ledger_id, store)
    assert [info.entries for info in store.local.ledgers(TOPIC)] == [4]
    assert read(store, ledger_id) == kept
    ahead = ReadAhead(5, 1 << 20)
    found = store.fetch(ledger_id, 4, entries_max=5, bytes_max=1 << 20, ahead=ahead, done=lambda *_: None)
    assert found == kept[4:]
    assert read(store, ledger_id)[5:] == []
    store.close()


def test_offsets_lost_to_damage_are_not_reused_after_an_offload():
    disk, _, store = on_a_new_disk()
    ledger_id = store.create_ledger(TOPIC)
    for number in range(5):
        store.append(ledger_id, entry(number), lambda error: None)
        settle(store)
    store = cut_last_entry(disk, ledger_id, store)
    lost = store.damage.lost_entries_max(ledger_id)
    assert lost > 0
    offload(store, ledger_id)
    assert store.damage.lost_entries_max(ledger_id) == lost
    store.close()


def test_folders_whose_sync_failed_are_synced_before_use():
    _, filesystem, store = on_a_new_disk()
    first = min(fill(store))
    before = filesystem.operations
    offload(store, first, drop=False)
    syncs = [
        number
        for number in range(before + 1, filesystem.operations + 1)
        if filesystem.history[number - 1][0] == "sync folder"
    ]
    assert len(syncs) > 5
    for is_killed in (False, True):
        for number in syncs:
            disk = SimulatedDisk()
            plan = Plan(crash_at=number) if is_killed else Plan(errors={number: errno.EIO})
            store = open_store(FaultyFileSystem(disk, plan))
            kept = fill(store)
            try:
                store.tier.offload(TOPIC, first, 1, Reports(), offset=0)
                settle(store)
            except PowerLoss:
                disk = disk.kill()
                store = open_after_crash(FaultyFileSystem(disk))
            if not store.tier.offloaded(TOPIC):
                offload(store, first)
            after = disk.crash(Fate("none", "none", "last"))
            assert read(open_store(FaultyFileSystem(after)), first) == kept[first]


def test_a_large_file_is_synced_as_it_is_written(tmp_path, monkeypatch):
    synced: list[int] = []
    sync = RealFile.sync

    def noted(file: RealFile) -> None:
        sync(file)
        synced.append(file.size())

    monkeypatch.setattr(RealFile, "sync", noted)
    monkeypatch.setattr(offload_folder, "_SYNCED_BYTES", 4 << 20)
    writing = FolderStorage(RealFileSystem(), str(tmp_path)).create("large")
    piece = bytes(1 << 20)
    for _ in range(10):
        writing.write(piece)
    assert synced == [4 << 20, 8 << 20]
    writing.finish()
    assert synced[2:] == [10 << 20]


def test_a_manifest_keeps_a_pending_ledger_when_another_is_deleted():
    disk, _, store = on_a_new_disk()
    first, second = fill(store)
    offload(store, first)
    reports = Reports()
    store.tier.offload(TOPIC, second, 1, reports, offset=5)
    files, work = store.tier.files, store.tier.files.work

    def and_trim(job: Callable[[], None], finish: Callable[[Exception | None], None]) -> None:
        work(job, finish)
        if any(record is not None for _, record in files.pending.values()):
            files.work = work
            store.delete_ledgers([first])
            store.local.poll()

    files.work = and_trim
    settle(store)
    assert files.work == work
    assert reports.is_well
    assert [each.ledger for each in store.tier.offloaded(TOPIC)] == [second]
    check_tier(store, disk)
    store.close()


def test_a_backup_ignores_manifest_records_of_reused_ledger_ids():
    _disk, filesystem, store = on_a_new_disk()
    store.keys.put(f"topic/{TOPIC}", b"{}")
    fill(store, 1)
    backup("/store", "/copy", filesystem=filesystem)
    for ledger_id in fill(store):
        offload(store, ledger_id)
    store.close()
    place = FolderStorage(filesystem, "/tier")
    for _ in range(2):
        local = FileStore.open("/copy", filesystem=filesystem, threads=False, settings=SETTINGS)  # type: ignore[arg-type]
        store = TieredStore(local, place, threads=False)
        kept = fill(store, 1)
        assert {each: read(store, each) for each in kept} == kept
        assert all(store.tier.record(each) is None for each in kept)
        store.close()


def open_apart(
    tier: SimulatedDisk | FaultyFileSystem,
    clock: Clock | None = None,
    disk: SimulatedDisk | None = None,
    sleep: Callable[[float], object] | None = None,
) -> TieredStore:
    """Open a store whose storage location is on a disk of its own."""
    filesystem = FaultyFileSystem(disk or SimulatedDisk())
    local = FileStore.open("/store", filesystem=filesystem, threads=False, settings=SETTINGS)
    folder = FaultyFileSystem(tier) if isinstance(tier, SimulatedDisk) else tier
    place = FolderStorage(folder, "/tier")
    clock = clock or Clock()
    return TieredStore(local, place, threads=False, clock=clock, sleep=sleep or clock.sleep)


def test_a_failed_write_to_full_storage_takes_no_space():
    """The manifest cannot be written then either, and waits until there is space."""
    tier, clock = SimulatedDisk(), Clock()
    store = open_apart(tier, clock)
    first, second = fill(store, entries=200)
    offload(store, first)
    before = tier_files(tier)
    used = tier.used_bytes
    for room in (0, 1, 700, 3000):
        tier.others_bytes = tier.capacity_bytes - used - room
        reports = offloaded(store, second)
        assert "No space left on device" in str(reports.found[0])
        assert tier_files(tier) == before
        assert tier.used_bytes == used
    tier.others_bytes = 0
    offload(store, second)
    clock.now += 100
    settle(store)
    assert not store.tier.catalog.suspects()
    check_tier(store, tier)
    store.close()


@pytest.mark.parametrize("end", ["closed", "killed", "not at all"])
@pytest.mark.parametrize("room", [0, 300])
def test_trimmed_ledgers_free_the_space_of_full_storage(end, room):
    """A broker that starts claims it, instead of waiting for an administrator."""
    tier, disk, clock = SimulatedDisk(), SimulatedDisk(), Clock()
    store = open_apart(tier, clock, disk)
    kept = fill(store, ledgers=3)
    offload(store, *kept)
    tier.others_bytes = tier.capacity_bytes - tier.used_bytes - room
    if end == "closed":
        store.close()
    elif end == "killed":
        disk = disk.kill()
    if end != "not at all":
        store = open_apart(tier, clock, disk)
        assert holds_claim(store)
    first, second, third = kept
    delete(store, first)
    assert [each.ledger for each in store.tier.offloaded(TOPIC)] == [second, third]
    assert not store.tier.catalog.suspects()
    check_tier(store, tier)
    assert read(store, third) == kept[third]
    store.close()
    assert not claims.load(store.tier.storage).open


def test_full_storage_that_is_in_use_or_of_another_store_is_not_claimed():
    """The holder renews its claim within the existing file."""
    tier, disk, clock = SimulatedDisk(), SimulatedDisk(), Clock()
    store = open_apart(tier, clock, disk)
    (first,) = fill(store, ledgers=1)
    offload(store, first)
    tier.others_bytes = tier.capacity_bytes - tier.used_bytes

    def sleep(seconds: float) -> None:
        clock.now += seconds
        settle(store)

    other = open_apart(tier, clock, disk.kill(), sleep)  # the clone of a disk
    stranger = open_apart(tier, clock)
    for each in (other, stranger, store):
        settle(each)
    assert [each.tier.claim.is_held for each in (store, other, stranger)] == [True, False, False]
    assert other.tier.borrowed
    assert stranger.tier.borrowed
    for each in (other, stranger, store):
        each.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_while_a_claim_is_overwritten_leaves_one_claim(seed):
    """The claim is then the old one or the new one."""
    chance = random.Random(seed)
    tier, disk, clock = SimulatedDisk(), SimulatedDisk(), Clock()
    filesystem = FaultyFileSystem(tier)
    store = open_apart(filesystem, clock, disk)
    (first,) = fill(store, ledgers=1)
    offload(store, first)
    tier.others_bytes = tier.capacity_bytes - tier.used_bytes
    filesystem.plan.crash_at = filesystem.operations + 1 + chance.randrange(8)

    def renew() -> None:
        for _ in range(10):
            clock.now += BEAT_SECONDS
            settle(store)

    with pytest.raises(PowerLoss):
        renew()
    tier, disk = tier.crash(Fate.by_chance(chance)), disk.kill()
    store = open_apart(tier, clock, disk)
    assert holds_claim(store)
    delete(store, first)
    assert not store.tier.catalog.suspects()
    store.close()


def test_full_storage_on_a_small_file_system_recovers_by_itself(tmp_path):
    """On a real tmpfs, where this user may mount one."""
    place = tmp_path / "place"
    place.mkdir()
    files = RealFileSystem()

    def opened() -> TieredStore:
        local = FileStore.open(tmp_path / "store", threads=False, settings=SETTINGS)
        return TieredStore(local, FolderStorage(files, str(place)), threads=False, clock=Clock())

    with mounted(place, "1m"):
        store = opened()
        first, second = kept = fill(store)
        offload(store, first, second)
        with open(place / "somebody", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass
        assert files.space(str(place))[1] == 0
        store.close()
        store = opened()
        assert holds_claim(store)
        delete(store, first)
        assert files.space(str(place))[1] > 0
        assert [each.ledger for each in store.tier.offloaded(TOPIC)] == [second]
        assert read(store, second) == kept[second]
        store.close()


def test_full_storage_without_a_claim_is_not_changed(caplog):
    tier, clock = SimulatedDisk(), Clock()
    tier.others_bytes = tier.capacity_bytes
    store = open_apart(tier, clock)
    assert not holds_claim(store)
    assert "No space left on device" in caplog.text
    tier.others_bytes = 0
    clock.now += AGAIN_SECONDS
    assert holds_claim(store)
    store.close()


def test_files_that_could_not_be_deleted_are_deleted_later():
    tier, clock = SimulatedDisk(), Clock()
    filesystem = FaultyFileSystem(tier)
    store = open_apart(filesystem, clock)
    first, second = fill(store)
    offload(store, first, second)
    filesystem.plan.errors = dict.fromkeys(
        range(filesystem.operations, filesystem.operations + 500), errno.EIO
    )
    delete(store, first)
    assert len(store.tier.catalog.suspects()) == 1
    clock.now += AGAIN_SECONDS
    settle(store)
    assert len(store.tier.catalog.suspects()) == 1, "and once more"
    filesystem.plan.errors = {}
    settle(store)
    clock.now += AGAIN_SECONDS
    settle(store)
    assert not store.tier.catalog.suspects()
    check_tier(store, tier)
    store.close()


@pytest.mark.parametrize("when", ["listed", "deleted"])
def test_a_temporary_error_of_the_catalog_does_not_stop_an_offload(when, monkeypatch):
    """Otherwise the next ledger, which may be of any topic, would wait for ever."""
    tier, disk, clock = SimulatedDisk(), SimulatedDisk(), Clock()
    store = open_apart(tier, clock, disk)
    kept = fill(store, ledgers=3)
    first, second, third = kept
    offload(store, first, second)
    store.close()
    store = settle(open_apart(tier, clock, disk))
    database = store.local.filesystem
    assert isinstance(database, FaultyFileSystem)
    finish = Offloading._finish

    def finished(way: Offloading) -> None:
        finish(way)
        database.database_errors = ["disk I/O error"]
        if when == "deleted":
            raise OSError(errno.EIO, "and the place is none any more")

    monkeypatch.setattr(Offloading, "_finish", finished)
    reports = offloaded(store, third)
    assert not database.database_errors
    assert isinstance(reports.found[0], StoreError)
    monkeypatch.undo()
    clock.now += AGAIN_SECONDS
    settle(store)
    offload(store, third)
    assert not store.tier.catalog.suspects()
    check_tier(store, tier)
    assert {each: read(store, each) for each in kept} == kept
    store.close()


def test_reading_a_record_of_a_forgotten_owner_reads_none_of_its_others(monkeypatch):
    store = open_store(FaultyFileSystem(SimulatedDisk()))
    kept = fill(store, ledgers=3)
    offload(store, *kept)
    monkeypatch.setattr(tier_catalog, "_OWNED_MAX", 2)
    assert store.tier.offloaded(f"{TOPIC}-other") == [], "the records of the first owner are forgotten"
    decode, decoded = tier_catalog._record, list[int]()

    def counted(value: bytes) -> OffloadedLedger | None:
        found = decode(value)
        decoded.append(-1 if found is None else found.ledger)
        return found

    monkeypatch.setattr(tier_catalog, "_record", counted)
    for each in kept:
        assert read(store, each) == kept[each]
        assert set(decoded) == {each}
        decoded.clear()
    store.close()


def test_the_memory_for_owners_without_offloaded_ledgers_is_bounded(monkeypatch):
    """Most owners have no records, and each loaded topic queries them: there may be hundreds of thousands."""
    monkeypatch.setattr(tier_catalog, "_OWNED_MAX", 100)
    store = open_store(FaultyFileSystem(SimulatedDisk()))
    kept = fill(store)
    for number in range(1_000):
        assert store.ledgers(f"{TOPIC}-{number}") == []
        assert len(store.tier.catalog._owners) <= 100
    offload(store, *kept)
    assert [each.ledger for each in store.tier.offloaded(TOPIC)] == sorted(kept)
    delete(store, min(kept))
    assert [each.ledger for each in store.tier.offloaded(TOPIC)] == [max(kept)]
    store.close()
