"""Opening of the offload storage at a location."""

from geminga.filesystems import resolve
from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.tier.folder_storage import FolderStorage
from geminga.offload.arrow_storage import ArrowStorage
from geminga.offload.storage import OffloadStorage


def place_at(location: str, *, fails_soon: bool = True) -> OffloadStorage:
    """Open the storage at a location: a folder, or a URL that Arrow or fsspec support.

    ``fails_soon``: requests time out after half a minute, as a broker retries anyway. Raises
    `InvalidConfiguration`.
    """
    files, path = resolve(location)
    if files.type_name == "local":
        return FolderStorage(RealFileSystem(), path)
    return ArrowStorage(location, fails_soon=fails_soon)
