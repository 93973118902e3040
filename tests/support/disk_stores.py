"""Durable stores of tests: on a simulated disk without threads, and on small real file systems."""

import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from geminga.errors import StoreError
from geminga.ledger.api import EntryStore
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from tests.support.faulty_filesystem import FaultyFileSystem, Plan, SimulatedDisk
from tests.support.store_auditor import StoreAuditor

FOLDER = "/data/store"
SMALL_FILES = StoreSettings(
    log_file_bytes=16_384, preallocate_bytes=1024, cache_bytes=2_000, checkpoint_records=60,
    checkpoint_state_bytes=20_000, rewrite_live_fraction=0.6, garbage_bytes_min=1, deletion_delay_seconds=0.0,
)  # fmt: skip
"""With these, a broker's store is soon full of checkpoints and of files to rewrite."""


def open_store(disk: SimulatedDisk, settings: StoreSettings, plan: Plan | None = None) -> FileStore:
    return FileStore.open(FOLDER, settings=settings, filesystem=FaultyFileSystem(disk, plan), threads=False)


def succeeded(error: Exception | None) -> None:
    """Callback of a change that has to succeed."""
    assert error is None


def ledger_with(
    store: EntryStore, topic: str, entry: bytes, done: Callable[[StoreError | None], None]
) -> int:
    """Create a ledger with one entry; return its id."""
    ledger = store.create_ledger(topic)
    store.append(ledger, entry, done)
    return ledger


def append_all(
    store: EntryStore, ledger: int, entries: Iterable[bytes | memoryview], *, poll_each: bool = False
) -> int:
    """Append entries that have to be stored, poll after all of them or after each, and return the ledger."""
    for entry in entries:
        store.append(ledger, entry, succeeded)
        if poll_each:
            store.poll()
    if not poll_each:
        store.poll()
    return ledger


def operations_of(settings: StoreSettings, write: Callable[[FileStore], object]) -> list[tuple[str, str]]:
    """Return the operations of a store's file system while it is opened, written to, and closed."""
    filesystem = FaultyFileSystem(SimulatedDisk())
    with FileStore.open(FOLDER, settings=settings, filesystem=filesystem, threads=False) as store:
        write(store)
    return filesystem.history


def polled(store: FileStore, times: int) -> None:
    for _ in range(times):
        store.poll()


def write_rounds(auditor: StoreAuditor, store: FileStore, rounds: int = 12) -> None:
    """Create ledgers, append, merge and put, and delete the oldest two ledgers every third round."""
    ledgers: list[int] = []
    for number in range(rounds):
        ledgers.append(auditor.create_ledger(store, f"topic-{number % 2}"))
        for entry in range(3):
            auditor.append(store, ledgers[(number + entry) % len(ledgers)], bytes([number]) * 150)
        auditor.merge(store, f"cursor-{number % 2}", b"delta %d" % number)
        store.poll()
        if number % 3 == 2:
            auditor.delete_ledgers(store, [ledgers.pop(0), ledgers.pop(0)])
            auditor.put(store, f"cursor-{number % 2}", b"base %d" % number)
        store.poll()


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """Mount a tmpfs of a size such as ``8m``; the test is skipped where this user may not."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
