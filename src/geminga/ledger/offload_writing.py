"""Making the file of a ledger that is offloaded: what is asked for, and doing it on the thread that asks.

`geminga.ledger.offload_worker` has it done in another process.
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
    """Entries cannot be read from their places: they were moved, or are damaged, or the disk says so."""


class OffloadRequest(NamedTuple):
    """The file of one ledger: at ``path`` of the place, with what stands in its footer."""

    path: str
    topic: str
    partition: int
    ledger_id: int
    uuid: str


class OffloadWriting(Protocol):
    """A file that is being made; on the worker's thread. What is raised is what is wrong with the place, or
    with the entries; then it is to be abandoned."""

    shares_lock: bool
    """Whether the work needs the Python that the owner's thread needs."""
    shares_processor: bool
    """Whether the owner lacks what processor time the work takes, whatever its priority is."""

    def add(self, entries: Sequence[bytes], *, hurries: bool) -> float:
        """Add the next entries; returns how many seconds of work that was. ``hurries``: there is a reason not
        to leave the processor to others."""

    def add_places(self, ledger_id: int, places: EntryChunk, *, hurries: bool) -> float:
        """The same for entries that are to be read from the files of the store's log. Raises `EntriesUnreadable`."""

    def finish(self) -> WrittenFile:
        """Returns when the file is there to stay."""

    def abandon(self) -> None:
        """It is not wanted. What is left of it is to be deleted, and nothing writes to it any more."""


class InlineOffloadWriting:
    """`OffloadWriting` on the thread that asks."""

    shares_lock = shares_processor = True

    def __init__(
        self, place: OffloadStorage, order: OffloadRequest, writes: ThreadPoolExecutor | None = None
    ) -> None:
        """``writes``: a thread that is to write the file."""
        create = partial(place.create, order.path)
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

    def add_places(self, ledger_id: int, places: EntryChunk, *, hurries: bool = False) -> float:
        raise EntriesUnreadable("the store is here, and is to be asked")

    def finish(self) -> WrittenFile:
        written = self._writer.close()
        self._writing.finish()
        self._is_finished = True
        return written

    def abandon(self) -> None:
        if not self._is_finished:
            self._writer.abandon()
            self._writing.abandon()
