"""The store's folder: the lock against real second processes, other people's files, modes, versions."""

import contextlib
import errno
import itertools
import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from geminga.errors import NotAStore, StoreDamaged, StoreError, StoreLocked
from geminga.ledger.api import StoredValue
from geminga.ledger.backup.backup import backup
from geminga.ledger.files import folder, format
from geminga.ledger.files.folder import open_folder
from geminga.ledger.files.format import SUPERBLOCK_BYTES, decode_superblock, encode_superblock
from geminga.ledger.inspection import inspect
from geminga.ledger.store import FileStore
from geminga.wire.checksum import crc32c
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk

HOLDER = """
import sys
from geminga.ledger.store import FileStore
store = FileStore.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Have another process open the store, and kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_with_the_id_of_the_holder(tmp_path):
    folder = tmp_path / "store"
    with held(folder) as process:
        with pytest.raises(StoreLocked) as refused:
            FileStore.open(folder)
        assert str(folder) in str(refused.value)
        assert str(process.pid) in str(refused.value)
    FileStore.open(folder).close()  # a dead process holds nothing


def test_a_second_store_in_the_same_process_is_refused(tmp_path):
    with FileStore.open(tmp_path), pytest.raises(StoreLocked, match=str(os.getpid())):
        FileStore.open(tmp_path)
    FileStore.open(tmp_path).close()


def test_a_second_process_is_refused_after_the_lock_file_is_deleted(tmp_path):
    with held(tmp_path):
        (tmp_path / "lock").unlink()
        with pytest.raises(StoreLocked, match="is open in another process"):
            FileStore.open(tmp_path)
        with pytest.raises(StoreLocked):
            inspect(tmp_path)
    FileStore.open(tmp_path).close()


@pytest.mark.parametrize("name", ["lock", "superblock", "log-0000000001"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_store_stops_when_its_file_is_deleted_or_replaced(tmp_path, name, is_replaced):
    with FileStore.open(tmp_path, threads=False) as store:
        ledger = store.create_ledger("topic")
        store.append(ledger, b"x", lambda error: None)
        store.poll()
        store.disk.measure()
        store.poll()
        assert store.failure is None
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        if is_replaced:
            (tmp_path / "new").write_bytes(data)
            (tmp_path / "new").rename(tmp_path / name)
        store.disk.measure()
        store.poll()
        with pytest.raises(StoreError, match=f"{name} was deleted, moved or replaced"):
            store.append(ledger, b"y", lambda error: None)


def test_a_store_whose_log_was_deleted_does_not_close_as_if_all_were_kept(tmp_path):
    with FileStore.open(tmp_path, threads=False) as store:
        store.append(store.create_ledger("topic"), b"x", lambda error: None)
        store.poll()
        (tmp_path / "log-0000000001").unlink()
    assert "log-0000000001 was deleted" in str(store.failure)


def test_a_rebuilt_superblock_is_locked(tmp_path):
    with FileStore.open(tmp_path) as store:
        store.create_ledger("topic")
    (tmp_path / "superblock").write_bytes(b"nonsense")
    with FileStore.open(tmp_path):
        (tmp_path / "lock").unlink()
        with pytest.raises(StoreLocked):
            FileStore.open(tmp_path)


def test_a_folder_with_other_files_is_not_touched(tmp_path):
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(NotAStore, match=r"thesis\.txt"):
        FileStore.open(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]
    with pytest.raises(NotAStore, match="is a file"):
        FileStore.open(tmp_path / "thesis.txt")


def test_a_deleted_superblock_is_written_again(tmp_path):
    folder = tmp_path / "store"
    with FileStore.open(folder) as store:
        store_id, ledger = store.store_id, store.create_ledger("topic")
        store.append(ledger, b"entry", lambda error: None)
    (folder / "superblock").unlink()
    with pytest.raises(StoreDamaged, match=r"superblock is missing .*: opening the store repairs it"):
        backup(folder, tmp_path / "backup")
    assert inspect(folder).is_well
    assert not (folder / "superblock").exists()
    with FileStore.open(folder) as store:
        assert (store.store_id, store.read(ledger, 0, entries_max=1, bytes_max=1)) == (store_id, [b"entry"])
    assert (folder / "superblock").exists()


def test_log_files_without_superblock_are_an_unfinished_backup(tmp_path):
    with FileStore.open(tmp_path / "store"):
        pass
    backup(tmp_path / "store", tmp_path / "backup")
    (tmp_path / "backup" / "superblock").unlink()
    with pytest.raises(NotAStore):
        FileStore.open(tmp_path / "backup")


@pytest.mark.parametrize("leftovers", [[], ["lock"], ["lock", "superblock.new"], ["lost+found"]])
def test_an_empty_folder_or_an_unfinished_store_becomes_a_store(tmp_path, leftovers):
    for name in leftovers:
        (tmp_path / name).write_bytes(b"")
    FileStore.open(tmp_path).close()
    assert (tmp_path / "superblock").stat().st_size > 0


def test_files_are_private_to_the_user(tmp_path):
    before = os.umask(0)
    try:
        with FileStore.open(tmp_path / "deep" / "store") as store:
            ledger = store.create_ledger("../../etc/passwd\0")
            store.append(ledger, b"x", lambda error: None)
            store.keys.put("../key", b"v")
            store.checkpoint()
            files = [path for path in (tmp_path / "deep").rglob("*") if path.is_file()]
            names = {path.name for path in files}
            assert {"lock", "superblock", "synced", "log-0000000001", "catalog.db"} <= names
            assert all("etc" not in name and "key" not in name for name in names)
            assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
            assert stat.S_IMODE((tmp_path / "deep" / "store").stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_newer_format_is_refused_untouched(tmp_path):
    FileStore.open(tmp_path).close()
    superblock = bytearray(encode_superblock(bytes(16)))
    superblock[16:20] = (99).to_bytes(4, "little")
    superblock[-4:] = crc32c(superblock[:-4]).to_bytes(4, "little")
    (tmp_path / "superblock").write_bytes(superblock)
    with pytest.raises(StoreError, match="format 99"):
        FileStore.open(tmp_path)
    (tmp_path / "superblock").write_bytes(b"nonsense")
    with pytest.raises(StoreDamaged, match="superblock"):
        FileStore.open(tmp_path)


def test_symbolic_links_are_not_followed(tmp_path):
    target = tmp_path / "elsewhere"
    target.write_text("precious")
    folder = tmp_path / "store"
    FileStore.open(folder).close()
    (folder / "synced").unlink()
    (folder / "synced").symlink_to(target)
    with pytest.raises(StoreError, match="symbolic"):
        FileStore.open(folder)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("names", ["none", "some", "all"])
def test_new_parents_of_the_folder_survive_a_power_loss(names):
    """Confirmed writes are found again only if every folder name on the path is on the disk."""
    folder = "/srv/new/deep/store"
    disk = SimulatedDisk()
    store = FileStore.open(folder, filesystem=FaultyFileSystem(disk), threads=False)
    receipts: list[StoreError | None] = []
    store.keys.put("key", b"value", receipts.append)
    store.poll()
    assert receipts == [None]
    disk = disk.crash(Fate("none", names))
    with FileStore.open(folder, filesystem=FaultyFileSystem(disk), threads=False) as store:
        assert store.keys.get("key") == StoredValue(b"value", ())


def test_a_superblock_whose_first_sync_failed_is_durable_after_the_next_start():
    made = FaultyFileSystem(SimulatedDisk())
    open_folder(made, "/data")[0].release()
    number = max(at for at, step in enumerate(made.history, 1) if step == ("sync folder", "/data"))
    disk = SimulatedDisk()
    with pytest.raises(OSError):
        open_folder(FaultyFileSystem(disk, Plan(errors={number: errno.EIO})), "/data")
    open_folder(FaultyFileSystem(disk), "/data")[0].release()
    assert "superblock" in FaultyFileSystem(disk.crash(Fate())).list_folder("/data")


def test_the_store_names_the_program_version_that_wrote_it_last(tmp_path, monkeypatch, caplog):
    for version in ("0.2.0", "0.2.0", "0.3.0"):
        monkeypatch.setattr(folder, "__version__", version)
        with caplog.at_level("INFO", "geminga.ledger"):
            FileStore.open(tmp_path / "store", threads=False).close()
    assert (tmp_path / "store" / "version").read_text() == "geminga 0.3.0\n"
    assert caplog.text.count("last written by geminga 0.2.0; this is geminga 0.3.0") == 1
    assert inspect(tmp_path / "store").written_by == "geminga 0.3.0"
    backup(tmp_path / "store", tmp_path / "copy")
    assert inspect(tmp_path / "copy").written_by == "geminga 0.3.0"


def test_a_store_of_a_newer_format_names_the_version_that_wrote_it(tmp_path, monkeypatch):
    FileStore.open(tmp_path / "store", threads=False).close()
    (tmp_path / "store" / "version").write_text("geminga 9.0.0\n")
    monkeypatch.setattr(folder, "FORMAT_VERSION", 0)
    with pytest.raises(StoreError, match=r"format 1, written by geminga 9.0.0; .* knows up to 0"):
        FileStore.open(tmp_path / "store", threads=False)
    assert (tmp_path / "store" / "version").read_text() == "geminga 9.0.0\n"


def test_the_superblock_of_an_older_format_is_replaced_whole_or_not_at_all(monkeypatch):
    """The power fails, or the disk is full, at every operation of opening a store of an older format."""
    monkeypatch.setattr(folder, "FORMAT_VERSION", 2)
    ends = set()
    for number, full in itertools.product(range(1, 100), (False, True)):
        disk = SimulatedDisk()
        made = FaultyFileSystem(disk)
        lock, store_id = open_folder(made, "/data")
        lock.release()
        monkeypatch.setattr(format, "FORMAT_VERSION", 2)
        plan = Plan(errors={number: errno.ENOSPC}) if full else Plan(crash_at=number)
        filesystem = FaultyFileSystem(disk, plan)
        try:
            open_folder(filesystem, "/data")[0].release()
        except PowerLoss:
            disk = disk.crash(Fate.by_chance(random.Random(number)))
        except OSError:
            pass
        else:
            ends.add(full)
        lock, found = open_folder(FaultyFileSystem(disk), "/data")
        lock.release()
        superblock = FaultyFileSystem(disk).open("/data/superblock").read(SUPERBLOCK_BYTES, 0)
        assert (found, decode_superblock(superblock)) == (store_id, (2, store_id))
        monkeypatch.setattr(format, "FORMAT_VERSION", 1)
        if ends == {True, False}:
            break
    assert ends == {True, False}
