"""Offloaded ledgers in Spark's scans: tasks read them as files, and all other entries from the broker.

The driver reads the manifests (`geminga.offload.manifest`) and gives each range its offloaded ledgers;
ledgers offloaded later are read from the broker. A task tracks the id of the next entry: in an offloaded
ledger it is read from the file, otherwise from the broker. So every entry is read once, and a range that is
entirely in files needs no broker. The entries are rebuilt byte for byte.
"""

import contextlib
import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from geminga.errors import CorruptPayload, InvalidConfiguration, ReadError
from geminga.ids import MessageId
from geminga.offload.arrow_storage import ArrowStorage
from geminga.offload.file import LedgerFile, NotOffloaded
from geminga.offload.manifest import ManifestUnreadable, OffloadedLedger, load
from geminga.offload.storage import folder_of
from geminga.spark.cluster.clients import EntrySource, closed_quietly
from geminga.spark.offsets import Offset, Partition, partition_topic
from geminga.wire.checksum import crc32c
from geminga.wire.metadata import RawEntry

T = TypeVar("T")

logger = logging.getLogger("geminga.spark")

LOOK_AGAIN_SECONDS = 30.0
"""Age after which a streaming query rereads a manifest."""
CHECKED_AT_ONCE = 16
"""Files checked in parallel against the broker's entries."""


class Manifests:
    """Offloaded ledgers of a query's partitions; on the driver."""

    def __init__(self, location: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `InvalidConfiguration` for a faulty location."""
        self._place = ArrowStorage(location)
        self._clock = clock
        self._found: dict[Partition, tuple[float, tuple[OffloadedLedger, ...]]] = {}

    def within(self, partition: Partition, start: Offset, end: Offset) -> tuple[OffloadedLedger, ...]:
        """Return the offloaded ledgers that may have entries of a range. Raises `ReadError`."""
        looked, ledgers = self._found.get(partition, (float("-inf"), ()))
        if self._clock() - looked > LOOK_AGAIN_SECONDS:
            ledgers = self._load(partition)
            self._found[partition] = self._clock(), ledgers
        first = bisect_left(ledgers, start.ledger, key=lambda each: each.ledger)
        return ledgers[first : bisect_right(ledgers, end.ledger, lo=first, key=lambda each: each.ledger)]

    def confirmed(self, asked: Sequence[tuple[Partition, OffloadedLedger, RawEntry | None]]) -> list[bool]:
        """Return whether each ledger is the broker's, by comparing its last entry with the broker's (None:
        the broker lacks it). Storage of another cluster, or of a deleted store, has the same ledger ids."""
        return _in_parallel(lambda each: self._is_confirmed(*each), asked)

    def _is_confirmed(self, partition: Partition, ledger: OffloadedLedger, entry: RawEntry | None) -> bool:
        topic, last = partition_topic(partition), ledger.entries - 1
        if entry is None or (entry.ledger_id, entry.entry_id) != (ledger.ledger, last):
            return False
        try:
            source = self._place.open(f"{folder_of(topic)}/{ledger.file}")
            with contextlib.closing(source):
                is_same = LedgerFile(source).has(last, bytes(entry.entry))
        except (OSError, pa.ArrowException, NotOffloaded, CorruptPayload) as error:
            logger.warning("%s of %s: %s; reading its entries from the broker", ledger.file, topic, error)
            return False
        if not is_same:
            logger.warning(
                "option offloadLocation: in %s, the entry %d:%d of %s differs from the broker's: it belongs "
                "to another cluster, or a deleted store. Reading all entries from the broker",
                self._place.location, ledger.ledger, last, topic,
            )  # fmt: skip
        return is_same

    def undamaged(self, asked: Sequence[tuple[Partition, OffloadedLedger]]) -> list[bool]:
        """Return whether the file of each ledger exists with the size and footer that were written. Parquet
        has no checksum for footers: a flipped bit there would silently drop rows."""
        return _in_parallel(lambda each: self._is_undamaged(*each), asked)

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
        logger.warning("%s of %s: %s; reading it with format('pulsar') instead", ledger.file, topic, problem)
        return False

    def _load(self, partition: Partition) -> tuple[OffloadedLedger, ...]:
        topic = partition_topic(partition)
        try:
            found = load(self._place, topic)
        except OSError as error:
            raise ReadError(f"the offloaded ledgers of {topic} cannot be read now: {error}") from error
        except ManifestUnreadable as error:
            raise InvalidConfiguration(f"option offloadLocation: {error}") from error
        if found is None:
            return ()
        if found.topic != topic:
            raise InvalidConfiguration(
                f"option offloadLocation: the manifest in {self._place.location}/{folder_of(topic)} belongs "
                f"to {found.topic}"
            )
        return found.ledgers


def _in_parallel(check: Callable[[T], bool], asked: Sequence[T]) -> list[bool]:
    with ThreadPoolExecutor(min(CHECKED_AT_ONCE, len(asked) or 1)) as threads:
        return list(threads.map(check, asked))


class OffloadedSource:
    """Entries of one partition from an offset on: an `EntrySource` over files and a broker's source."""

    def __init__(
        self,
        location: str,
        partition: Partition,
        ledgers: Sequence[OffloadedLedger],
        start: MessageId,
        open_broker: Callable[[MessageId], EntrySource],
    ) -> None:
        """``open_broker`` opens a broker's source that starts with the given entry."""
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

    def read(self, max_entries: int, timeout: float) -> list[RawEntry]:
        while True:
            ledger = self._at()
            if ledger is None:
                return self._from_broker(max_entries, timeout)
            found = self._from_file(ledger, max_entries)
            if found:
                return found

    def _at(self) -> OffloadedLedger | None:
        """Return the offloaded ledger of the next entry; None if only the broker knows it."""
        found = self._ledgers.get(self._next.ledger_id)
        if found is None or self._next.entry_id < found.entries:
            return found
        following = self._by_offset.get(found.offset + found.entries)
        if following is not None:
            # No entry was ever between them: offsets in a topic are never reused.
            self._next = MessageId(self._index, following.ledger, 0)
        return following

    def _from_file(self, ledger: OffloadedLedger, max_entries: int) -> list[RawEntry]:
        first = max(self._next.entry_id, 0)
        if not self._has(ledger, first) and not self._from(ledger, first, lambda: self._load(ledger, first)):
            return []
        at = first - self._first
        entries = self._entries[at : at + max_entries]
        self._next = MessageId(self._index, ledger.ledger, first + len(entries))
        return [
            RawEntry(self._topic, self._index, ledger.ledger, first + number, entry)
            for number, entry in enumerate(entries)
        ]

    def _from(self, ledger: OffloadedLedger, first: int, take: Callable[[], None]) -> bool:
        """Read from a ledger's file; return False if the broker must be read instead, from the entry
        ``first`` on. Raises `ReadError`."""
        try:
            take()
            return True
        except FileNotFoundError:
            # Deleted since the manifest was read: the broker knows whether entries are left.
            logger.warning("%s was deleted: reading its entries from the broker", ledger.file)
        except (OSError, pa.ArrowException) as error:
            self._close_file()
            raise ReadError(f"{ledger.file} of {self._topic} cannot be read now: {error}") from error
        except (NotOffloaded, CorruptPayload) as error:
            # The broker checked the file before deleting its own entries, and reports a loss.
            logger.warning(
                "%s of %s: %s; reading its entries from the broker", ledger.file, self._topic, error
            )
            self._close_file()
        del self._ledgers[ledger.ledger]
        self._next = MessageId(self._index, ledger.ledger, first)
        return False

    def _has(self, ledger: OffloadedLedger, entry_id: int) -> bool:
        """Return whether the entry is loaded already."""
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
                raise NotOffloaded("the file was replaced")
        assert self._file is not None
        return self._file[1]

    def _load(self, ledger: OffloadedLedger, entry_id: int) -> None:
        file = self._opened(ledger)
        group = file.group_of(entry_id)
        found = file.entries(group)
        if found.bad:
            raise CorruptPayload(f"{len(found.bad)} entries fail their checksums")
        self._entries, self._first = found.entries, file.first_of(group)

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
                # The following entries are in files.
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
