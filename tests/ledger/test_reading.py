from __future__ import annotations

import dataclasses

import pytest

from geminga.errors import StoreError
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.testing.faulty_filesystem import FaultyFile, FaultyFileSystem, SimulatedDisk

FOLDER = "/data/store"


def nothing(error: StoreError | None) -> None:
    assert error is None


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the reads that reach the disk."""
    sizes: list[int] = []
    read = FaultyFile.read

    def counted(self: FaultyFile, size: int, offset: int) -> bytes:
        sizes.append(size)
        return read(self, size, offset)

    monkeypatch.setattr(FaultyFile, "read", counted)
    return sizes


@pytest.fixture
def settings(small_settings: StoreSettings) -> StoreSettings:
    return dataclasses.replace(
        small_settings, log_file_bytes=1 << 20, checkpoint_log_bytes=1 << 20, checkpoint_records=10_000
    )


def open_store(settings: StoreSettings, disk: SimulatedDisk) -> FileStore:
    return FileStore.open(FOLDER, settings=settings, filesystem=FaultyFileSystem(disk), threads=False)


def test_recent_entries_come_from_memory(settings: StoreSettings, reads: list[int]) -> None:
    store = open_store(dataclasses.replace(settings, cache_bytes=100_000), SimulatedDisk())
    ledger = store.create_ledger("a")
    for number in range(50):
        store.append(ledger, b"%d" % number, nothing)
    store.poll()
    reads.clear()
    assert store.read(ledger, 10, entries_max=5, bytes_max=100) == [b"%d" % n for n in range(10, 15)]
    assert reads == []
    store.close()


def test_a_run_of_entries_is_one_read(settings: StoreSettings, reads: list[int]) -> None:
    store = open_store(dataclasses.replace(settings, cache_bytes=0), SimulatedDisk())
    ledger = store.create_ledger("a")
    for number in range(50):
        store.append(ledger, bytes([number]) * 20, nothing)
    store.poll()
    reads.clear()
    assert store.read(ledger, 10, entries_max=30, bytes_max=10_000) == [
        bytes([n]) * 20 for n in range(10, 40)
    ]
    assert reads == [600]
    store.close()


def test_entries_of_others_in_between_are_read_over_when_small(
    settings: StoreSettings, reads: list[int]
) -> None:
    store = open_store(dataclasses.replace(settings, cache_bytes=0), SimulatedDisk())
    ledger, other = store.create_ledger("a"), store.create_ledger("b")
    for number in range(6):
        store.append(ledger, bytes([number]) * 20, nothing)
        store.append(other, bytes(50 if number != 2 else 40_000), nothing)
        store.poll()
    reads.clear()
    assert store.read(ledger, 0, entries_max=9, bytes_max=10_000) == [bytes([n]) * 20 for n in range(6)]
    assert len(reads) == 2
    assert sum(reads) < 2000
    store.close()


def test_cold_and_recent_entries_come_in_one_answer(settings: StoreSettings) -> None:
    store = open_store(dataclasses.replace(settings, cache_bytes=1200), SimulatedDisk())
    ledger = store.create_ledger("a")
    entries = [bytes([number]) * 50 for number in range(40)]
    for entry in entries:
        store.append(ledger, entry, nothing)
        store.poll()
    assert 0 < len(store._state.ledgers[ledger].recent) < 40
    assert store.read(ledger, 0, entries_max=99, bytes_max=10**6) == entries
    assert store.read(ledger, 0, entries_max=39, bytes_max=10**6) == entries[:39]
    for bytes_max in (1, 49, 50, 51, 1700, 1999):
        assert (
            store.read(ledger, 0, entries_max=99, bytes_max=bytes_max) == entries[: max(1, bytes_max // 50)]
        )
    store.close()


def test_the_cache_keeps_to_its_limit(settings: StoreSettings) -> None:
    store = open_store(dataclasses.replace(settings, cache_bytes=5000), SimulatedDisk())
    ledgers = [store.create_ledger(f"topic-{number}") for number in range(20)]
    for number in range(600):
        store.append(ledgers[number * 7 % 20], bytes(40), nothing)
        if number % 9 == 0:
            store.poll()
    store.poll()
    held = [entry for ledger in ledgers for entry in store._state.ledgers[ledger].recent]
    assert 0 < len(held) <= 5000 // 240
    for ledger in ledgers:
        assert len(store.read(ledger, 0, entries_max=99, bytes_max=10**6)) == 30
    store.close()


def test_an_unreadable_disk_names_the_entry(settings: StoreSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(dataclasses.replace(settings, cache_bytes=0), SimulatedDisk())
    ledger = store.create_ledger("a")
    store.append(ledger, b"entry", nothing)
    store.poll()

    def fail(self: FaultyFile, size: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(FaultyFile, "read", fail)
        with pytest.raises(StoreError, match=rf"ledger {ledger}, entry 0 \(log-0000000001 at offset"):
            store.read(ledger, 0, entries_max=1, bytes_max=10)
    assert store.read(ledger, 0, entries_max=1, bytes_max=10) == [b"entry"]
    store.close()
