"""Writing of an offloaded ledger's file: the request, the interface, and the implementation in this process.

`geminga.ledger.offload_worker` implements it in another process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol

from geminga.ledger.catalog import EntryChunk
from geminga.ledger.threaded_writer import ThreadedWriter
from geminga.offload.file import LedgerWriter, WrittenFile
from geminga.offload.storage import OffloadStorage


class EntriesUnreadable(Exception):
    """Entries cannot be read at their positions: they were moved, are damaged, or the disk has failed."""


class OffloadRequest(NamedTuple):
    """Request for the file of one ledger: ``path`` in the storage location, and fields of its footer."""

    path: str
    topic: str
    partition: int
    ledger_id: int
    uuid: str


class OffloadWriting(Protocol):
    """File that is being written; on the worker's thread. Methods raise errors of the storage location or of
    the entries; the caller then calls `abandon`."""

    shares_lock: bool
    """Whether the work takes the GIL that the owner's thread needs."""
    shares_processor: bool
    """Whether the work takes processor time from the owner, even at a low priority."""

    def add(self, entries: Sequence[bytes], *, hurries: bool) -> float:
        """Add the next entries; returns the seconds of work that took. ``hurries``: the work is urgent and
        runs at normal priority."""

    def add_positions(self, ledger_id: int, positions: EntryChunk, *, hurries: bool) -> float:
        """Add entries that are read from the files of the store's log. Raises `EntriesUnreadable`."""

    def finish(self) -> WrittenFile:
        """Return when the file is complete and durable."""

    def abandon(self) -> None:
        """Stop writing to the file. The caller deletes what was written."""


class InlineOffloadWriting:
    """`OffloadWriting` on the calling thread."""

    shares_lock = shares_processor = True

    def __init__(
        self, storage: OffloadStorage, order: OffloadRequest, writes: ThreadPoolExecutor | None = None
    ) -> None:
        """``writes``: a thread for writing to the storage location."""
        create = partial(storage.create, order.path)
        self._writing = create() if writes is None else ThreadedWriter(create, writes)
        try:
            self._writer = LedgerWriter(
                self._writing, topic=order.topic, partition=order.partition, ledger_id=order.ledger_id,
                uuid=order.uuid,
            )  # fmt: skip
        except BaseException:
            self._writing.abandon()
            raise
        self._is_finished = False

    def add(self, entries: Sequence[bytes], *, hurries: bool = False) -> float:
        began = time.monotonic()
        self._writer.add(entries)
        return time.monotonic() - began

    def add_positions(self, ledger_id: int, positions: EntryChunk, *, hurries: bool = False) -> float:
        raise EntriesUnreadable("this process reads entries from the store itself")

    def finish(self) -> WrittenFile:
        written = self._writer.close()
        self._writing.finish()
        self._is_finished = True
        return written

    def abandon(self) -> None:
        if not self._is_finished:
            self._writer.abandon()
            self._writing.abandon()
