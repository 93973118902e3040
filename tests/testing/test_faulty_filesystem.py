"""The simulated disk must be as bad as it says, or what is proved on it is worth nothing."""

import errno
import random

import pytest

from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk


def start(plan: Plan | None = None) -> tuple[SimulatedDisk, FaultyFileSystem]:
    disk = SimulatedDisk()
    before = FaultyFileSystem(disk)
    before.make_folder("/f")
    before.sync_folder("/")
    return disk, FaultyFileSystem(disk, plan)


def test_a_folder_is_lost_with_all_in_it_until_its_parent_is_synced():
    disk = SimulatedDisk()
    filesystem = FaultyFileSystem(disk)
    with pytest.raises(FileNotFoundError):
        filesystem.make_folder("/f/g")
    filesystem.make_folder("/f")
    filesystem.make_folder("/f/g")
    filesystem.open("/f/g/a", create=True)
    filesystem.sync_folder("/f/g")
    filesystem.sync_folder("/f")
    assert disk.crash(Fate("all", "none")).folders == {"/"}
    assert content(disk.crash(Fate("all", "none")), "/f/g/a") is None
    assert content(disk.crash(Fate("all", "all")), "/f/g/a") == b""
    filesystem.sync_folder("/")
    assert content(disk.crash(Fate("none", "none")), "/f/g/a") == b""


def content(disk: SimulatedDisk, path: str = "/f/a") -> bytes | None:
    return bytes(disk.names[path].visible) if path in disk.names else None


def test_the_chosen_fate_decides_about_unsynced_data_and_names():
    disk, filesystem = start()
    file = filesystem.open("/f/a", create=True)
    file.write([b"one"], 0)
    file.sync()
    assert content(disk.crash(Fate("all", "none"))) is None, "the name was never synced"
    assert content(disk.crash(Fate("none", "all"))) == b"one"
    filesystem.sync_folder("/f")
    file.write([b"two"], 3)
    assert file.read(9, 0) == b"onetwo"
    assert content(disk.crash(Fate("none", "none"))) == b"one"
    assert content(disk.crash(Fate("all", "none"))) == b"onetwo"


def test_renames_and_deletions_are_lost_without_a_folder_sync():
    disk, filesystem = start()
    filesystem.open("/f/a", create=True).write([b"a"], 0)
    filesystem.sync_folder("/f")
    filesystem.rename("/f/a", "/f/b")
    assert set(disk.crash(Fate("all", "none")).names) == {"/f/a"}
    assert set(disk.crash(Fate("all", "all")).names) == {"/f/b"}
    filesystem.sync_folder("/f")
    filesystem.unlink("/f/b")
    assert set(disk.crash(Fate("all", "none")).names) == {"/f/b"}
    with pytest.raises(FileNotFoundError):
        filesystem.open("/f/b")


def test_later_writes_may_survive_lost_earlier_ones_or_be_torn():
    disk, filesystem = start()
    file = filesystem.open("/f/a", create=True)
    filesystem.sync_folder("/f")
    for number in range(4):
        file.write([bytes([number + 1]) * 1000], number * 1000)
    seen = set()
    for seed in range(300):
        left = content(disk.crash(Fate("some", "all", random=random.Random(seed)))) or b""
        seen.add(tuple(left[n * 1000 : (n + 1) * 1000].count(n + 1) for n in range(4)))
    assert any(0 < parts[1] < 1000 for parts in seen), "no write was torn"
    assert any(parts[0] == 0 and parts[3] == 1000 for parts in seen), "no write survived an earlier one"
    assert (0, 0, 0, 0) in seen


def test_a_sync_after_a_failed_sync_does_not_save_its_data():
    disk, filesystem = start(Plan(errors={4: errno.EIO}))
    file = filesystem.open("/f/a", create=True)
    filesystem.sync_folder("/f")
    file.write([b"lost"], 0)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.read(9, 0) == b"lost", "the cache shows it still"
    assert content(disk.crash(Fate("all", "all"))) == b""
    file.write([b"kept"], 0)
    file.sync()
    assert content(disk.crash(Fate("none", "none"))) == b"kept"


def test_planned_faults_tear_shorten_fail_and_end_operations():
    disk, filesystem = start(Plan(crash_at=5, torn_bytes=2, short_writes={3: 1}, errors={4: errno.EIO}))
    file = filesystem.open("/f/a", create=True)
    filesystem.sync_folder("/f")
    assert file.write([b"abc"], 0) == 1
    with pytest.raises(OSError, match="Input/output"):
        file.write([b"abc"], 0)
    with pytest.raises(PowerLoss):
        file.write([b"xyz"], 0)
    with pytest.raises(PowerLoss):
        file.read(1, 0)
    assert content(disk.crash(Fate("none", "all"))) == b"xy"
    assert [kind for kind, _ in filesystem.history] == ["create", "sync folder", "write", "write", "write"]


def test_truncation_and_allocation_are_unsynced_changes_too():
    disk, filesystem = start()
    file = filesystem.open("/f/a", create=True)
    file.write([b"abcdef"], 0)
    file.sync()
    filesystem.sync_folder("/f")
    file.truncate(2)
    file.allocate(2, 3)
    assert file.read(9, 0) == b"ab\0\0\0"
    assert content(disk.crash(Fate("none", "all"))) == b"abcdef"
    assert content(disk.crash(Fate("all", "all"))) == b"ab\0\0\0"


def test_databases_reopen_at_one_of_their_commits():
    disk, filesystem = start()
    connection = filesystem.connect("/f/db")
    connection.execute("CREATE TABLE t (n INTEGER)")
    for number in range(3):
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (?)", (number,))
        connection.execute("COMMIT")

    def rows(fate: Fate) -> int:
        after = disk.crash(fate)
        found = FaultyFileSystem(after).connect("/f/db")
        try:
            return int(found.execute("SELECT COUNT(*) FROM t").fetchone()[0])
        except Exception:
            return -1

    assert rows(Fate(databases="last")) == 3
    assert rows(Fate(databases="first")) == -1
    assert {rows(Fate(databases="some", random=random.Random(seed))) for seed in range(40)} == {-1, 1, 2, 3}


def test_locks_hold_until_released_or_the_process_dies():
    disk, filesystem = start()
    lock, _ = filesystem.lock("/f/lock")
    assert lock is not None
    other = FaultyFileSystem(disk, process="2")
    assert other.lock("/f/lock") == (None, "1")
    disk.kill()
    again, _ = other.lock("/f/lock")
    again.release()
    assert filesystem.lock("/f/lock")[0] is not None
