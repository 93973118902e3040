"""Opening the place that ledgers are offloaded to, by its location."""

from __future__ import annotations

from geminga.filesystems import resolve
from geminga.ledger.filesystem import RealFileSystem
from geminga.ledger.offload_folder import FolderStorage
from geminga.offload.arrow_storage import ArrowStorage
from geminga.offload.storage import OffloadStorage


def place_at(location: str, *, fails_soon: bool = True) -> OffloadStorage:
    """The place of a location: a folder, or a URL that Arrow or fsspec know.

    ``fails_soon``: requests are given up after half a minute, for a broker tries again anyway. Raises
    `InvalidConfiguration`.
    """
    files, path = resolve(location)
    if files.type_name == "local":
        return FolderStorage(RealFileSystem(), path)
    return ArrowStorage(location, fails_soon=fails_soon)
