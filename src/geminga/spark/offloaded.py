"""Offloaded ledgers in Spark's scans: read as files by the tasks, the broker's entries around them.

The driver reads the manifests (`geminga.offload.manifest`) and gives each range the ledgers that lie in it;
what is offloaded later is read from the broker, which is as good. A task goes through its range by place, the
id of the next entry: in an offloaded ledger it is read from the file, anywhere else the broker is asked from
there on. So every entry comes once, whichever side of the seam it is on, and a range that lies in files alone
asks the broker nothing. Where a file's columns say all of its entries, which is almost always, they are taken
as they are; else the entries are put together, byte for byte as the broker would have given them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from geminga.errors import CorruptPayload, InvalidConfiguration, ReadError
from geminga.ids import MessageId
from geminga.offload.arrow_storage import ArrowStorage
from geminga.offload.entry_envelope import COLUMNS
from geminga.offload.file import DERIVED, LedgerFile, NotOffloaded
from geminga.offload.manifest import ManifestUnreadable, OffloadedLedger, load
from geminga.offload.storage import folder_of
from geminga.spark.cluster import EntrySource, closed_quietly
from geminga.spark.offsets import Offset, Partition, partition_topic
from geminga.wire.checksum import crc32c
from geminga.wire.metadata import RawEntry

logger = logging.getLogger("geminga.spark")

_COLUMNS = frozenset((*COLUMNS, *DERIVED))
LOOK_AGAIN_SECONDS = 30.0
"""A query that goes on looks at a manifest again after this."""
CHECKED_AT_ONCE = 16
"""Files that are looked into at once, to find out whether they are the broker's."""


class Manifests:
    """What is offloaded of the partitions of a query; on the driver."""

    def __init__(self, location: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `InvalidConfiguration`."""
        self._place = ArrowStorage(location)
        self._clock = clock
        self._found: dict[Partition, tuple[float, tuple[OffloadedLedger, ...]]] = {}

    def within(self, partition: Partition, start: Offset, end: Offset) -> tuple[OffloadedLedger, ...]:
        """The offloaded ledgers of which something may lie in a range. Raises `ReadError`."""
        looked, ledgers = self._found.get(partition, (float("-inf"), ()))
        if self._clock() - looked > LOOK_AGAIN_SECONDS:
            ledgers = self._load(partition)
            self._found[partition] = self._clock(), ledgers
        first = bisect_left(ledgers, start.ledger, key=lambda each: each.ledger)
        return ledgers[first : bisect_right(ledgers, end.ledger, lo=first, key=lambda each: each.ledger)]

    def confirmed(self, asked: Sequence[tuple[Partition, OffloadedLedger, RawEntry | None]]) -> list[bool]:
        """Whether each ledger is what the broker has, by its last entry as the broker gives it; None: it has
        none such. A place of another cluster, or of a store that is no more, names the same ledgers."""
        with ThreadPoolExecutor(min(CHECKED_AT_ONCE, len(asked) or 1)) as threads:
            return list(threads.map(lambda each: self._is_confirmed(*each), asked))

    def _is_confirmed(self, partition: Partition, ledger: OffloadedLedger, entry: RawEntry | None) -> bool:
        topic, last = partition_topic(partition), ledger.entries - 1
        if entry is None or (entry.ledger_id, entry.entry_id) != (ledger.ledger, last):
            return False
        try:
            source = self._place.open(f"{folder_of(topic)}/{ledger.file}")
            with contextlib.closing(source):
                is_same = LedgerFile(source).has(last, bytes(entry.entry))
        except (OSError, pa.ArrowException, NotOffloaded, CorruptPayload) as error:
            logger.warning("%s of %s: %s; its entries are asked of the broker", ledger.file, topic, error)
            return False
        if not is_same:
            logger.warning(
                "option offloadLocation: in %s, the entry %d:%d of %s is another than the broker's: that is "
                "of another cluster, or of a store that is no more. The broker is asked for all entries",
                self._place.location, ledger.ledger, last, topic,
            )  # fmt: skip
        return is_same

    def undamaged(self, asked: Sequence[tuple[Partition, OffloadedLedger]]) -> list[bool]:
        """Whether the file of each ledger is there, with the size and the footer that were written. Parquet
        has no checksum for footers: with a flipped bit there, rows are missing without a word."""
        with ThreadPoolExecutor(min(CHECKED_AT_ONCE, len(asked) or 1)) as threads:
            return list(threads.map(lambda each: self._is_undamaged(*each), asked))

    def _is_undamaged(self, partition: Partition, ledger: OffloadedLedger) -> bool:
        if ledger.tail is None:
            return False
        topic, (size, crc) = partition_topic(partition), ledger.tail
        try:
            with contextlib.closing(self._place.open(f"{folder_of(topic)}/{ledger.file}")) as source:
                has_size = source.size() == ledger.file_bytes
                if has_size and crc32c(source.read_at(size, ledger.file_bytes - size)) == crc:
                    return True
                problem = "its footer is damaged" if has_size else f"it is not {ledger.file_bytes} bytes long"
        except (OSError, pa.ArrowException) as error:
            problem = str(error)
        logger.warning("%s of %s: %s; format('pulsar') reads what it holds", ledger.file, topic, problem)
        return False

    def _load(self, partition: Partition) -> tuple[OffloadedLedger, ...]:
        topic = partition_topic(partition)
        try:
            found = load(self._place, topic)
        except OSError as error:
            raise ReadError(f"what is offloaded of {topic} cannot be read now: {error}") from error
        except ManifestUnreadable as error:
            raise InvalidConfiguration(f"option offloadLocation: {error}") from error
        if found is None:
            return ()
        if found.topic != topic:
            raise InvalidConfiguration(
                f"option offloadLocation: the manifest in {self._place.location}/{folder_of(topic)} is of "
                f"{found.topic}"
            )
        return found.ledgers


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The messages of entries that follow each other in a ledger, as columns."""

    ledger_id: int
    entry_id: int
    """The first entry."""
    last_entry_id: int
    batch: pa.RecordBatch
    entries: Callable[[], list[RawEntry]]
    """The entries themselves; to be asked before the source reads on."""


class OffloadedSource:
    """The entries of one partition from a place on: an `EntrySource` over files and another one."""

    def __init__(
        self,
        location: str,
        partition: Partition,
        ledgers: Sequence[OffloadedLedger],
        start: MessageId,
        open_broker: Callable[[MessageId], EntrySource],
    ) -> None:
        """``open_broker`` opens a source of the broker at a place, that entry included."""
        self._place = ArrowStorage(location)
        self._partition = partition
        self._folder = folder_of(partition_topic(partition))
        self._topic, self._index = partition_topic(partition), partition[1]
        self._ledgers = {each.ledger: each for each in ledgers}
        self._by_offset = {each.offset: each for each in ledgers}
        self._next = start
        self._open_broker = open_broker
        self._broker: EntrySource | None = None
        self._file: tuple[int, LedgerFile] | None = None
        self._entries: list[bytes] = []
        self._first = 0
        self._without_columns: tuple[int, int] | None = None
        """The last group, by ledger and number, that columns alone do not tell."""

    def read(self, max_entries: int, timeout: float) -> list[RawEntry]:
        while True:
            ledger = self._at()
            if ledger is None:
                return self._from_broker(max_entries, timeout)
            found = self._from_file(ledger, max_entries)
            if found:
                return found

    def read_messages(self, columns: Sequence[str], last: tuple[int, int]) -> MessageColumns | None:
        """What comes next, as columns, where the next entries lie in a file whose columns say all of them;
        none behind the entry ``last``. None: `read` has it. Raises `ReadError`."""
        ledger = self._at()
        if ledger is None or not _COLUMNS.issuperset(columns):
            return None
        first = max(self._next.entry_id, 0)
        if (ledger.ledger, first) > last or self._has(ledger, first):
            return None
        found: list[MessageColumns] = []

        def take() -> None:
            file = self._opened(ledger)
            group = file.group_of(first)
            if (ledger.ledger, group) == self._without_columns:
                return
            told = file.messages(group, columns)
            if told is None:
                self._without_columns = ledger.ledger, group
                return
            batch, counts = told
            offset, begins = file.first_of(group), np.concatenate(([0], np.cumsum(counts)))
            stop = offset + len(counts)
            if ledger.ledger == last[0]:
                stop = min(stop, last[1] + 1)
            start_row, stop_row = int(begins[first - offset]), int(begins[stop - offset])

            def entries() -> list[RawEntry]:
                whole = self._joined(file, group)[first - offset : stop - offset]
                return self._raw(ledger, first, whole)

            batch = batch.slice(start_row, stop_row - start_row)
            found.append(MessageColumns(ledger.ledger, first, stop - 1, batch, entries))
            self._next = MessageId(self._index, ledger.ledger, stop)

        self._from(ledger, first, take)
        return found[0] if found else None

    def _at(self) -> OffloadedLedger | None:
        """The offloaded ledger that the next entry is in; None where nobody but the broker knows."""
        found = self._ledgers.get(self._next.ledger_id)
        if found is None or self._next.entry_id < found.entries:
            return found
        following = self._by_offset.get(found.offset + found.entries)
        if following is not None:
            # Nothing lies between them, or ever did: places in a topic are never given twice.
            self._next = MessageId(self._index, following.ledger, 0)
        return following

    def _from_file(self, ledger: OffloadedLedger, max_entries: int) -> list[RawEntry]:
        first = max(self._next.entry_id, 0)
        if not self._has(ledger, first) and not self._from(ledger, first, lambda: self._load(ledger, first)):
            return []
        at = first - self._first
        entries = self._entries[at : at + max_entries]
        self._next = MessageId(self._index, ledger.ledger, first + len(entries))
        return self._raw(ledger, first, entries)

    def _raw(self, ledger: OffloadedLedger, first: int, entries: Sequence[bytes]) -> list[RawEntry]:
        return [
            RawEntry(self._topic, self._index, ledger.ledger, first + number, entry)
            for number, entry in enumerate(entries)
        ]

    def _from(self, ledger: OffloadedLedger, first: int, take: Callable[[], None]) -> bool:
        """Take something out of a ledger's file; False where the broker has to be asked instead, from the
        entry ``first`` on. Raises `ReadError`."""
        try:
            take()
            return True
        except FileNotFoundError:
            # Deleted since the manifest was read: what is left, or that nothing is, the broker knows.
            logger.warning("%s is gone: its entries are asked of the broker", ledger.file)
        except (OSError, pa.ArrowException) as error:
            self._close_file()
            raise ReadError(f"{ledger.file} of {self._topic} cannot be read now: {error}") from error
        except (NotOffloaded, CorruptPayload) as error:
            # The broker has checked the file before it let go of its own entries, and says what is lost.
            logger.warning(
                "%s of %s: %s; its entries are asked of the broker", ledger.file, self._topic, error
            )
            self._close_file()
        del self._ledgers[ledger.ledger]
        self._next = MessageId(self._index, ledger.ledger, first)
        return False

    def _has(self, ledger: OffloadedLedger, entry_id: int) -> bool:
        """Whether the entry is among those at hand."""
        return self._is_open(ledger) and self._first <= entry_id < self._first + len(self._entries)

    def _is_open(self, ledger: OffloadedLedger) -> bool:
        return self._file is not None and self._file[0] == ledger.ledger

    def _opened(self, ledger: OffloadedLedger) -> LedgerFile:
        if not self._is_open(ledger):
            self._close_file()
            source = self._place.open(f"{self._folder}/{ledger.file}")
            try:
                file = LedgerFile(source)
            except BaseException:
                source.close()
                raise
            self._file = ledger.ledger, file
            if (file.summary.uuid, file.summary.entries) != (ledger.uuid, ledger.entries):
                raise NotOffloaded("the file is another one")
        assert self._file is not None
        return self._file[1]

    def _load(self, ledger: OffloadedLedger, entry_id: int) -> None:
        file = self._opened(ledger)
        group = file.group_of(entry_id)
        self._entries, self._first = self._joined(file, group), file.first_of(group)

    def _joined(self, file: LedgerFile, group: int) -> list[bytes]:
        found = file.entries(group)
        if found.bad:
            raise CorruptPayload(f"{len(found.bad)} entries fail their checksums")
        return found.entries

    def _close_file(self) -> None:
        opened, self._file = self._file, None
        self._entries = []
        if opened is not None:
            opened[1].close()

    def _from_broker(self, max_entries: int, timeout: float) -> list[RawEntry]:
        if self._broker is None:
            self._broker = self._open_broker(self._next)
        found = self._broker.read(max_entries, timeout)
        for number, entry in enumerate(found):
            if entry.ledger_id in self._ledgers:
                # From here on it is in files.
                closed_quietly(self._broker)
                self._broker = None
                self._next = MessageId(self._index, entry.ledger_id, entry.entry_id)
                return found[:number] or self.read(max_entries, timeout)
        if found:
            self._next = MessageId(self._index, found[-1].ledger_id, found[-1].entry_id + 1)
        return found

    @property
    def gives_all(self) -> bool:
        return self._broker is None or self._broker.gives_all

    def last_message_id(self) -> MessageId:
        if self._broker is None:
            self._broker = self._open_broker(self._next)
        return self._broker.last_message_id()

    def close(self) -> None:
        self._close_file()
        if self._broker is not None:
            closed_quietly(self._broker)
            self._broker = None
