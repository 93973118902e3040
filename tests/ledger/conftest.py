"""Fixtures of the store's tests: small settings, so that a few writes reach every step of a store's life."""

import pytest

from geminga.ledger.catalog.catalog import Catalog, CheckpointSnapshot
from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.settings import StoreSettings
from tests.support.faulty_filesystem import FaultyFileSystem, SimulatedDisk

STORE_ID = bytes(16)


def snapshot(number: int, **changes: object) -> CheckpointSnapshot:
    """A checkpoint in which nothing changed but what is given."""
    values: dict[str, object] = {
        "position": (1 << 32) + number, "sequence": number, "next_ledger_id": 10,
        "ledgers": [], "deleted": set(), "dropped": [], "moved": {}, "keys": {}, "file_sizes": {1: 5000},
        "live_bytes": {}, "damage": [], "settled": [], "doubt": (0, 0),
    }  # fmt: skip
    return CheckpointSnapshot(number=number, **{**values, **changes})


@pytest.fixture
def catalog(tmp_path):
    """New catalog in a real file."""
    catalog = Catalog(RealFileSystem().connect(str(tmp_path / "catalog.db")))
    assert catalog.is_empty()
    assert not catalog.is_usable(STORE_ID)
    catalog.create(STORE_ID)
    return catalog


@pytest.fixture
def filesystem():
    filesystem = FaultyFileSystem(SimulatedDisk())
    filesystem.make_folder("/store")
    return filesystem


@pytest.fixture
def small_settings():
    """Files of 4 KiB, a checkpoint every 12 records, rewriting as soon as anything is garbage."""
    return StoreSettings(
        log_file_bytes=4096, group_bytes_max=4096, preallocate_bytes=1024, cache_bytes=600,
        checkpoint_records=12, checkpoint_log_bytes=4096, rewrite_live_fraction=0.6, garbage_bytes_min=1,
        deletion_delay_seconds=0.0,
    )  # fmt: skip
