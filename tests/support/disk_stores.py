"""Durable stores on a simulated disk, without threads, as tests of the store open them in each life."""

from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from tests.support.faulty_filesystem import FaultyFileSystem, Plan, SimulatedDisk

FOLDER = "/data/store"


def open_store(disk: SimulatedDisk, settings: StoreSettings, plan: Plan | None = None) -> FileStore:
    return FileStore.open(FOLDER, settings=settings, filesystem=FaultyFileSystem(disk, plan), threads=False)


def succeeded(error: Exception | None) -> None:
    """Callback of a change that has to succeed."""
    assert error is None
