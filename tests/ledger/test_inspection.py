"""Checking changes nothing and reports everything; repairing does what was reported."""

import os

import pytest

from geminga.errors import NotAStore, StoreError, StoreLocked
from geminga.ledger.api import LostWrites, StoredValue
from geminga.ledger.damage import DamageLoss, EntriesDamaged
from geminga.ledger.inspection import InspectionReport, inspect, repair
from geminga.ledger.settings import StoreSettings
from geminga.ledger.state.ledger_table import NOBODY
from geminga.ledger.store import FileStore
from tests.support.disk_stores import FOLDER, append_all, open_store, succeeded
from tests.support.faulty_filesystem import FaultyFileSystem, SimulatedDisk

LOG = f"{FOLDER}/log-0000000001"
SETTINGS = StoreSettings(preallocate_bytes=0, cache_bytes=0, deletion_delay_seconds=3600.0)
ENTRIES = [b"entry %d " % number * 30 for number in range(20)]


def make_disk(*, clean: bool) -> SimulatedDisk:
    disk = SimulatedDisk()
    store = open_store(disk, SETTINGS)
    ledger = store.create_ledger("the topic")
    other = store.create_ledger("another topic")
    store.keys.put("policy", b"of before")
    store.keys.put("policy", b"last policy")
    store.keys.put("cursor", b"base")
    for number, entry in enumerate(ENTRIES):
        store.append(ledger, entry, succeeded)
        store.append(other, b"small", succeeded)
        store.keys.merge("cursor", b"acked %02d" % number)
        store.poll()
    if clean:
        store.close()
    return disk.kill()


def image(disk: SimulatedDisk) -> dict[str, object]:
    files: dict[str, object] = {path: bytes(inode.visible) for path, inode in disk.names.items()}
    return {**files, **{path: images[-1] for path, images in disk.databases.items()}}


def damage(disk: SimulatedDisk, what: bytes, *bits: int, last: bool = False) -> None:
    content = disk.content(LOG)
    place = (content.rindex if last else content.index)(what) + len(what) - 1
    for bit in bits:
        content[place] ^= 1 << bit


def check(disk: SimulatedDisk) -> InspectionReport:
    before = image(disk)
    report = inspect(FOLDER, filesystem=FaultyFileSystem(disk))
    assert image(disk) == before, "looking changed something"
    assert not disk.locks
    return report


@pytest.mark.parametrize("clean", [True, False])
def test_an_intact_store_has_no_findings(clean):
    disk = make_disk(clean=clean)
    if not clean:
        disk.content(LOG).extend(b"a torn write")
    report = check(disk)
    assert report.is_well
    assert (report.log_files, report.ledgers, report.keys) == (1, 2, 2)
    assert report.log_bytes > sum(map(len, ENTRIES))
    assert repair(FOLDER, report, filesystem=FaultyFileSystem(disk)) == []


def test_damage_is_reported_and_given_up():
    disk = make_disk(clean=False)
    for what in (b"last policy", b"acked 07", ENTRIES[3], ENTRIES[4], b"the topic"):
        damage(disk, what, 2, 5, 6)
    report = check(disk)
    found = {finding.damage.lost: finding for finding in report.findings}
    assert set(found) == {DamageLoss.VALUE, DamageLoss.DELTA, DamageLoss.ENTRIES, DamageLoss.OWNER}
    assert (found[DamageLoss.VALUE].damage.key, found[DamageLoss.DELTA].damage.key) == ("policy", "cursor")
    assert "3 to 4" in found[DamageLoss.ENTRIES].damage.thing
    left = repair(FOLDER, report, filesystem=FaultyFileSystem(disk))
    assert [thing.lost for thing in left] == [DamageLoss.OWNER], "its entries are not given up"
    with open_store(disk, SETTINGS) as store:
        assert store.keys.get("policy") == StoredValue(b"of before", ())
        deltas = tuple(b"" if number == 7 else b"acked %02d" % number for number in range(20))
        assert store.keys.get("cursor") == StoredValue(b"base", deltas)
        (info,) = store.ledgers(NOBODY)
        with pytest.raises(EntriesDamaged, match="given up"):
            store.read(info.ledger_id, 3, entries_max=9, bytes_max=10**6)
        assert store.read(info.ledger_id, 5, entries_max=99, bytes_max=10**6) == ENTRIES[5:]


def test_a_store_that_changed_since_it_was_checked_is_not_repaired():
    disk = make_disk(clean=False)
    damage(disk, b"acked 07", 2, 3)
    report = check(disk)
    with open_store(disk, SETTINGS) as store:
        deltas = tuple(b"" if number == 7 else b"acked %02d" % number for number in range(20))
        assert store.keys.get("cursor") == StoredValue(b"base", deltas, LostWrites(deltas=1))
        store.keys.put("cursor", b"anew")
    with pytest.raises(StoreError, match="changed"):
        repair(FOLDER, report, filesystem=FaultyFileSystem(disk))


def test_a_store_in_use_is_refused(tmp_path):
    with FileStore.open(tmp_path / "store") as store:
        store.keys.put("key", b"value")
        with pytest.raises(StoreLocked, match=str(os.getpid())):
            inspect(tmp_path / "store")
        report = InspectionReport(str(tmp_path / "store"), 1, 1, 0, 1)
        with pytest.raises(StoreLocked):
            repair(tmp_path / "store", report)
    assert inspect(tmp_path / "store").keys == 1


def test_other_folders_are_refused_and_not_touched(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(NotAStore, match="--data-dir"):
            inspect(path)
    assert os.listdir(tmp_path) == ["file"]


def test_checking_real_files_changes_none(tmp_path):
    folder = tmp_path / "store"
    with FileStore.open(folder, settings=SETTINGS) as store:
        append_all(store, store.create_ledger("topic"), ENTRIES)
        store.checkpoint()
        store.keys.put("key", b"the value")
    log = folder / "log-0000000001"
    log.write_bytes(log.read_bytes().replace(ENTRIES[5], ENTRIES[5][:-3] + b"XYZ") + b"torn")
    (folder / "superblock").write_bytes(b"nonsense")

    def state() -> dict[str, tuple[bytes, int]]:
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}

    before = state()
    os.chmod(folder, 0o500)
    try:
        report = inspect(folder)
        assert state() == before
    finally:
        os.chmod(folder, 0o700)
    assert [finding.damage.first_entry_id for finding in report.findings] == [5]
    assert report.findings[0].owner == "topic"
    assert report.keys == 1
    assert repair(folder, report) == []
    assert inspect(folder).is_well
