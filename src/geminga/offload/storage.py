"""Where offloaded ledgers are: a folder of a local disk, an object store, or what else Arrow or fsspec know.

A *place* keeps files under paths of its own, with ``/`` in between. A file is there when its writing was
finished, and as a whole; a manifest is replaced as a whole, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote

from geminga.wire.checksum import crc32c

MANIFEST = "manifest.json"
"""In the folder of each topic (`geminga.offload.manifest`)."""


class StorageWriter(Protocol):
    """A file that is being written, from its beginning on."""

    def write(self, data: Any) -> object: ...

    def finish(self) -> None:
        """Returns when the file is there to stay. Raises `OSError`."""

    def abandon(self) -> None:
        """It is not wanted. What is left of it is to be deleted."""


class OffloadStorage(Protocol):
    """See the module. Every call may take long, and raises `OSError`; used by several threads."""

    location: str
    """What administrators call it: without secrets."""

    @property
    def elsewhere(self) -> str | None:
        """The location by which another process opens it, with secrets; None when none can."""

    def create(self, path: str) -> StorageWriter: ...

    def open(self, path: str) -> Any:
        """A file to be read anywhere, as Arrow reads files. Raises `FileNotFoundError`."""

    def reader(self, path: str) -> tuple[Callable[[int, int], bytes], Callable[[], None]]:
        """(``read(size, offset)``, ``close()``) of a file. Raises `FileNotFoundError`."""

    def read(self, path: str) -> bytes | None:
        """All of a small file; None when there is none."""

    def replace(self, path: str, data: bytes) -> None:
        """Make the file hold this."""

    def overwrite(self, path: str, data: bytes) -> None:
        """Make a file that is there hold this, which is as long as what it holds, without more room. A crash
        may leave some of both. Raises `OSError` as well where a place cannot."""

    def delete(self, path: str) -> None:
        """The file is gone; no error when it was not there."""

    def names(self, folder: str) -> list[str]:
        """The files of a folder; none when there is no folder."""


def folder_of(topic: str) -> str:
    """The path of a topic's folder: ``tenant/namespace/domain/topic``, percent-encoded.

    No topic's folder is another's or outside of all.
    """
    domain, _, rest = topic.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return "/".join(_encoded(part) for part in (tenant, namespace, domain, local))


def _encoded(part: str) -> str:
    found = quote(part, safe="")
    return found.replace(".", "%2E") if found.strip(".") == "" else found


def ledger_file(ledger_id: int, uuid: str) -> str:
    """The name of a ledger's file. They are in the order of the ledgers."""
    return f"ledger-{ledger_id:019d}-{uuid}.parquet"


def check_file(
    read: Callable[[int, int], bytes], size: int, crc: int, *, piece: int = 4 * 1024 * 1024
) -> str:
    """What is wrong with the bytes of a file; empty when they are those that were written."""
    found = at = 0
    while at < size:
        data = read(min(piece, size - at), at)
        if not data:
            return f"it ends after {at} of {size} bytes"
        found = crc32c(data, found)
        at += len(data)
    if read(1, size):
        return f"it is longer than {size} bytes"
    return "" if found == crc else f"its checksum is {found:08x} and should be {crc:08x}"
