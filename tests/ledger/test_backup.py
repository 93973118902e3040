"""A backup of a store in use is the store at one moment, under any load."""

import copy
import errno
import itertools
import random

import pytest
from doubles import raising

from geminga.errors import NotAStore, StoreError
from geminga.ledger.backup import backup as module
from geminga.ledger.backup.backup import EarlierBackup, backup, restore, steps
from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.files.format import FILE_HEADER_BYTES, OFFSET_MASK, GroupHeader, decode_file_header
from geminga.ledger.inspection import inspect
from geminga.ledger.log.log import scan_headers
from geminga.ledger.store import FileStore
from geminga.wire.checksum import crc32c
from tests.support.disk_stores import append_all, ledger_with
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk
from tests.support.store_auditor import StoreAuditor

FOLDER, TARGET = "/data/store", "/data/backup"


def live(auditor: StoreAuditor, store: FileStore, chance: random.Random, count: int) -> None:
    """Writes of every kind; small files roll, and are rewritten and dropped meanwhile."""
    ledgers = [number for number in range(1000) if number in _living(auditor)]
    for _ in range(count):
        kind = chance.randrange(10)
        if kind == 0 or not ledgers:
            ledgers.append(auditor.create_ledger(store, f"topic-{chance.randrange(3)}"))
        elif kind < 5:
            auditor.append(store, chance.choice(ledgers), chance.randbytes(chance.randrange(1, 600)))
        elif kind == 5:
            auditor.merge(store, f"cursor-{chance.randrange(2)}", chance.randbytes(9))
        elif kind == 6:
            auditor.put(store, f"policy-{chance.randrange(3)}", chance.randbytes(30))
        elif kind == 7 and len(ledgers) > 2:
            auditor.delete_ledgers(store, [ledgers.pop(0)])
        else:
            store.poll()


def _living(auditor: StoreAuditor) -> set[int]:
    living: set[int] = set()
    for operation in auditor.operations:
        if operation[0] == "create":
            living.add(operation[1])
        elif operation[0] == "delete_ledger":
            living.discard(operation[1])
    return living


@pytest.mark.simulation(12, 6)
def test_a_backup_of_a_busy_store_is_of_one_moment(seeds, small_settings):
    for seed in seeds:
        chance = random.Random(seed)
        filesystem = FaultyFileSystem(SimulatedDisk())
        with FileStore.open(FOLDER, settings=small_settings, filesystem=filesystem, threads=False) as store:
            auditor = StoreAuditor()
            live(auditor, store, chance, chance.randrange(0, 80))
            receipted = auditor.receipted
            for _ in steps(FOLDER, TARGET, filesystem, lambda done, total: None, EarlierBackup()):
                live(auditor, store, chance, chance.randrange(0, 25))
            then = copy.deepcopy(auditor)
            then.receipted = receipted
        with FileStore.open(TARGET, settings=small_settings, filesystem=filesystem, threads=False) as found:
            assert found.damage.found == [], f"seed {seed}"
            then.check_restarted(found)
            live(then, found, chance, 20)  # and it is a store like any other
            found.poll()


def test_an_unfinished_backup_is_no_store(small_settings):
    """The power fails at every operation of the backup."""

    def made(plan: Plan | None) -> tuple[SimulatedDisk, bool]:
        disk = SimulatedDisk()
        whole = FaultyFileSystem(disk)
        with FileStore.open(FOLDER, settings=small_settings, filesystem=whole, threads=False) as store:
            auditor = StoreAuditor()
            live(auditor, store, random.Random(1), 60)
        filesystem = FaultyFileSystem(disk, plan)
        try:
            backup(FOLDER, TARGET, filesystem=filesystem)
        except PowerLoss:
            return disk, False
        return disk, True

    finished = 0
    for number in itertools.count(1):
        disk, ended = made(Plan(crash_at=number))
        after = FaultyFileSystem(disk.crash(Fate.by_chance(random.Random(number))))
        if "superblock" in _names(after, TARGET):
            with FileStore.open(TARGET, settings=small_settings, filesystem=after, threads=False) as found:
                assert found.damage.found == []
            finished += 1
        else:
            with pytest.raises(NotAStore):
                backup(TARGET, "/data/other", filesystem=after)
        if ended:
            break
    assert finished


def _names(filesystem: FaultyFileSystem, folder: str) -> list[str]:
    try:
        return filesystem.list_folder(folder)
    except FileNotFoundError:
        return []


def test_damage_is_copied_with_the_backup_and_not_cut_off(tmp_path):
    with FileStore.open(tmp_path / "store") as store:
        entries = [b"entry %d" % number * 50 for number in range(9)]
        append_all(store, store.create_ledger("topic"), entries, poll_each=True)
    log = tmp_path / "store/log-0000000001"
    log.write_bytes(log.read_bytes().replace(b"entry 8entry 8", b"entry 8ENTRY 8", 1))
    backup(tmp_path / "store", tmp_path / "backup")
    assert (
        [one.damage.thing for one in inspect(tmp_path / "backup").findings]
        == [one.damage.thing for one in inspect(tmp_path / "store").findings]
        != []
    )


def test_a_restored_backup_equals_the_store(tmp_path):
    with FileStore.open(tmp_path / "store") as store:
        ledger = ledger_with(store, "topic", b"entry", lambda error: None)
        store.keys.put("key", b"value")
    reported: list[tuple[int, int]] = []
    copied = backup(tmp_path / "store", tmp_path / "backup", say=lambda *both: reported.append(both))
    assert (copied.files, reported[-1][0]) == (1, copied.bytes)
    restore(tmp_path / "backup", tmp_path / "again")
    assert inspect(tmp_path / "again").is_well
    with FileStore.open(tmp_path / "again") as store:
        assert store.read(ledger, 0, entries_max=9, bytes_max=99) == [b"entry"]


def test_unsuitable_folders_are_refused(tmp_path):
    with FileStore.open(tmp_path / "store"):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    (tmp_path / "file").touch()
    with pytest.raises(NotAStore):
        backup(tmp_path / "nothing", tmp_path / "backup")
    for target in ("full", "file", "store/inside"):
        with pytest.raises(StoreError, match=r"name a new or an empty folder|in the store itself"):
            backup(tmp_path / "store", tmp_path / target)
    assert (tmp_path / "full/mine").exists()


def test_a_full_disk_leaves_no_partial_backup(tmp_path, monkeypatch):
    with FileStore.open(tmp_path / "store") as store:
        ledger_with(store, "topic", b"entry" * 1000, lambda error: None)
    monkeypatch.setattr(module, "write_fully", raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        backup(tmp_path / "store", tmp_path / "backup", filesystem=RealFileSystem())
    assert list((tmp_path / "backup").iterdir()) == []


def test_a_store_written_to_during_the_search_for_its_end_is_backed_up(small_settings):
    """Bytes read ahead of the newest file may be older than its end: that is the end, not damage."""
    filesystem = FaultyFileSystem(SimulatedDisk())
    with FileStore.open(FOLDER, settings=small_settings, filesystem=filesystem, threads=False) as store:
        append_all(store, store.create_ledger("topic"), [b"0", b"1", b"2"], poll_each=True)
    file = filesystem.open(max(path for path in filesystem.disk.names if "/log-" in path))
    whole = file.read(file.size(), 0)
    _, store_id = decode_file_header(whole[:FILE_HEADER_BYTES]) or (0, b"")
    groups = [
        item
        for item in scan_headers(file, 1, FILE_HEADER_BYTES, crc32c(store_id))
        if isinstance(item, GroupHeader)
    ]
    last = groups[-1].position & OFFSET_MASK
    reads: list[int] = []

    class Grows:
        """The last group is written after the first read; the disk has space for more."""

        def size(self) -> int:
            return len(whole) + (4 << 20)

        def read(self, size: int, offset: int) -> bytes:
            reads.append(size)
            assert len(reads) < 100, "it looks without end"
            seen = whole[:last] if len(reads) == 1 else whole
            return seen[offset : offset + size].ljust(size, b"\0")

    assert module._end(Grows(), 1, store_id, None) == last
