"""Storage of offloaded ledgers: a local folder, an object store, or another file system of Arrow or fsspec.

A storage location keeps files under relative paths with ``/``. A file exists once its writing is finished,
and then completely; a manifest is replaced atomically, too.
"""

from typing import Any, Protocol
from urllib.parse import quote

from geminga.wire.checksum import crc32c

MANIFEST = "manifest.json"
"""File in the folder of each topic (`geminga.offload.manifest`)."""


class StorageWriter(Protocol):
    """File that is being written, from start to end."""

    def write(self, data: Any) -> object: ...

    def finish(self) -> None:
        """Return when the file is complete and durable. Raises `OSError`."""

    def abandon(self) -> None:
        """Stop writing. The caller deletes what was written."""


class OffloadStorage(Protocol):
    """Storage location. Every call may take long, and raises `OSError`; used by several threads."""

    location: str
    """Address of the storage location, without secrets."""

    @property
    def worker_location(self) -> str | None:
        """Return the address with secrets, for opening it in another process; None if none can."""

    def create(self, path: str) -> StorageWriter: ...

    def open(self, path: str) -> Any:
        """Open a file for random access, as Arrow reads files. Raises `FileNotFoundError`."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace the content of the file, or create it."""

    def overwrite(self, path: str, data: bytes) -> None:
        """Overwrite an existing file with data of the same size, which needs no free space. A crash may leave
        a mix of both. Raises `OSError`, also if the storage does not support it."""

    def delete(self, path: str) -> None:
        """Delete the file; no error if it does not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder; empty if there is no folder."""


def folder_of(topic: str) -> str:
    """Return the path of a topic's folder: ``tenant/namespace/domain/topic``, percent-encoded.

    Each topic's folder is unique, and is below the root of the storage.
    """
    domain, _, rest = topic.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return "/".join(_encoded(part) for part in (tenant, namespace, domain, local))


def _encoded(part: str) -> str:
    found = quote(part, safe="")
    return found.replace(".", "%2E") if found.strip(".") == "" else found


def ledger_file(ledger_id: int, uuid: str) -> str:
    """Return the name of a ledger's file. Names sort in the order of the ledgers."""
    return f"ledger-{ledger_id:019d}-{uuid}.parquet"


def check_file(file: Any, size: int, crc: int) -> str:
    """Describe the fault of an open file's bytes; empty if size and checksum match."""
    found = at = 0
    while at < size:
        data = file.read(min(4 * 1024 * 1024, size - at))
        if not data:
            return f"it ends after {at} of {size} bytes"
        found = crc32c(data, found)
        at += len(data)
    if file.read(1):
        return f"it is longer than {size} bytes"
    return "" if found == crc else f"its checksum is {found:08x} and should be {crc:08x}"
