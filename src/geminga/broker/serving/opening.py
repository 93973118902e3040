"""Opening of the store named by the settings, with offload storage if they configure it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from geminga.broker.settings import DISK_PARTS, BrokerSettings
from geminga.errors import StoreError
from geminga.ledger.api import EntryStore

if TYPE_CHECKING:
    from geminga.ledger.settings import StoreSettings
    from geminga.ledger.store import FileStore


def open_store(settings: BrokerSettings, wakeup: Callable[[], None]) -> EntryStore:
    """Return the opened store of the settings; raises the store's errors."""
    if settings.memory:
        from geminga.ledger.memory import MemoryStore

        return MemoryStore(wakeup)
    from geminga.ledger.store import FileStore

    assert settings.data_dir is not None
    try:
        os.makedirs(settings.data_dir, mode=0o700, exist_ok=True)
    except FileExistsError:
        pass  # a file is there: opening the store reports it
    except OSError as error:
        raise StoreError(
            f"data_dir={str(settings.data_dir)!r} cannot be made: {error.strerror}; choose another folder"
        ) from error
    store = FileStore.open(settings.data_dir, settings=store_settings(settings), wakeup=wakeup)
    try:
        return _with_tier(store, settings, wakeup)
    except BaseException:
        store.close()
        raise


def _with_tier(store: FileStore, settings: BrokerSettings, wakeup: Callable[[], None]) -> EntryStore:
    """Return the store with offload storage, if the settings or the store need it."""
    if settings.offload_location is None:
        if next(store.keys.names("offloaded/"), None) is not None:
            raise StoreError(
                "ledgers of this store are offloaded: name their storage location with offload_location "
                "(--offload-location)"
            )
        return store
    try:
        from geminga.ledger.tier.storage import place_at
        from geminga.ledger.tiered import TieredStore
    except ImportError as error:
        raise StoreError(
            f"offload_location needs packages that are not installed ({error}): "
            "pip install 'geminga[columnar]'"
        ) from error
    tiered: EntryStore = TieredStore(
        store, place_at(settings.offload_location), rate_bytes=settings.offload_rate_bytes, wakeup=wakeup
    )
    return tiered


def store_settings(settings: BrokerSettings) -> StoreSettings:
    """Return the store's settings for a broker: its files are as small as the disk requires."""
    from geminga.ledger.files.filesystem import RealFileSystem
    from geminga.ledger.settings import StoreSettings

    usual = StoreSettings()
    assert settings.data_dir is not None
    capacity, _ = RealFileSystem().space(os.fspath(settings.data_dir))
    part = max(min(capacity, settings.disk_limit_bytes or capacity) // DISK_PARTS, 256 * 1024)
    return StoreSettings(
        sync=settings.sync,
        folder_bytes_max=settings.disk_limit_bytes or 0,
        group_bytes_max=min(usual.group_bytes_max, part),
        log_file_bytes=min(usual.log_file_bytes, part),
        preallocate_bytes=min(usual.preallocate_bytes, part // 4),
        checkpoint_log_bytes=min(usual.checkpoint_log_bytes, part),
        garbage_bytes_min=min(usual.garbage_bytes_min, part),
    )
