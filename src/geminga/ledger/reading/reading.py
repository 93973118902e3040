"""Reading of entries: from memory while they are recent, else from the log, with verified checksums.

Entries in memory are returned at once. Reads of the disk are jobs for the threads of `pool`: each looks
up the positions of the entries, reads them in few pieces, and looks them up again if an entry was moved,
because the catalog, which has the new position, is on the disk too. Faults that remain are judged on the
owner's thread.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from queue import SimpleQueue

from geminga.errors import LedgerNotFound, StoreDamaged, StoreError
from geminga.ledger.api import Done, Fetched, PrefetchRequest, ReadAhead
from geminga.ledger.callbacks import run_callback
from geminga.ledger.catalog.catalog import Catalog, CatalogFile
from geminga.ledger.damage import Damage, DamageLoss, EntriesDamaged
from geminga.ledger.files.format import OFFSET_BITS, OFFSET_MASK, describe, file_name
from geminga.ledger.log.log import LogFiles
from geminga.ledger.reading.pool import ReadPool
from geminga.ledger.state.index import GIVEN_UP, MISSING, Index, LedgerState, empty_chunk
from geminga.ledger.store_parts import StoreParts
from geminga.wire.checksum import crc32c

logger = logging.getLogger("geminga.ledger")

_GAP_BYTES_MAX = 16 * 1024  # reading over this much foreign data is cheaper than another read
_RUN_BYTES_MAX = 4 * 1024 * 1024
_HOLD_GIL = 0
_LOOKS_MAX = 3
"""Maximum number of lookups of an entry that is moved while it is read."""
_SUSPECTS_MAX = 1_000
"""Number of entries remembered as unreadable for now; the oldest are forgotten."""
_AHEAD_CACHE_KIB = 128
"""Cache of connections that read ahead: small, as they only fill the operating system's cache."""
_AHEAD_SHARE = 64
"""The pending requests to read ahead are at most this fraction of ``StoreSettings.reads_waiting_max``."""
_UNREADABLE = frozenset((errno.EIO, errno.ENXIO, errno.ENODEV, getattr(errno, "EUCLEAN", errno.EIO)))
"""Errors of a disk that cannot read a sector; other errors may be temporary."""

EntryPosition = tuple[int, int, int, int]
"""(entry id, position, size, checksum)."""


@dataclass(slots=True, eq=False, repr=False)
class ReadEntries:
    """Result of a read of the disk: entries in order, or the obstacle to reading the first one.

    ``bad`` are the positions that cannot be read, or the first and the last of them; ``what`` is the reason.
    ``error`` is a temporary error.
    """

    entries: list[bytes] = field(default_factory=list)
    bad: list[EntryPosition] = field(default_factory=list)
    what: str = ""
    may_pass: bool = False
    """Whether the disk reported the error, so that a retry may succeed; False for wrong bytes."""
    file_is_gone: bool = False
    error: StoreError | None = None

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.entries))


class StoreReading:
    """Reads entries of ledgers, and pages of the catalog ahead, for the owner.

    Without `use_threads` it waits for the disk itself.
    """

    def __init__(self, parts: StoreParts, note_damage: Callable[[Damage], None]) -> None:
        self._settings = parts.settings
        self._suspects: OrderedDict[tuple[int, int], tuple[float, float]] = OrderedDict()
        self._state = parts.state
        self._files = parts.files
        self._note_damage = note_damage
        self.pool: ReadPool[ReadEntries] | None = None
        self.index = parts.state.index
        """Index by which entries are found: that of the owner or of the reader threads."""
        self._catalogs: SimpleQueue[Catalog] = SimpleQueue()
        """Connections for reading ahead, one for each reader thread."""
        self._ahead: deque[tuple[PrefetchRequest, Done]] = deque()
        """Requests to read ahead that are not submitted yet."""
        self._ahead_pending = 0
        self._error: StoreError | None = None

    def use_threads(
        self, catalog: CatalogFile, finished: deque[Callable[[], None]], signal: Callable[[], None]
    ) -> None:
        """Read on threads, once the pool is started: ``finished`` receives their callbacks."""
        settings = self._settings
        self.index = Index(catalog.connect(), self._state.index)
        self.pool = ReadPool(
            finished,
            signal,
            threads=settings.read_threads,
            wait_seconds=settings.read_wait_seconds,
            waiting_max=settings.reads_waiting_max,
            undelivered_bytes_max=settings.read_ahead_bytes_max,
        )
        for _ in range(settings.read_threads):
            self._catalogs.put(catalog.connect(_AHEAD_CACHE_KIB))

    def stop(self, error: StoreError) -> bool:
        """Refuse reads with ``error`` and end the threads; returns whether they have ended."""
        self._error = error
        return self.pool is None or self.pool.stop(ReadEntries(error=error))

    def bring(self, wanted: PrefetchRequest, done: Done) -> bool:
        """Implement `geminga.ledger.api.EntryStore.bring`.

        SQLite has no asynchronous queries. But rows that another thread has just read are in the operating
        system's page cache, for every connection. So no data is passed between threads.
        """
        if self.pool is None or not wanted:
            return True
        self._ahead.append((wanted, done))
        self._submit_ahead()
        return False

    def _submit_ahead(self) -> None:
        """Submit requests to read ahead, a few at once: however many there are, entries can be read too."""
        assert self.pool is not None
        pending_max = max(1, self._settings.reads_waiting_max // _AHEAD_SHARE)
        while self._ahead and self._ahead_pending < pending_max:
            wanted, done = self._ahead.popleft()
            try:
                if self._error is not None:
                    raise self._error
                job = partial(self._read_ahead, wanted)
                self.pool.submit(wanted, job, partial(self._has_read_ahead, done))
                self._ahead_pending += 1
            except StoreError as error:
                run_callback(done, error)

    def _has_read_ahead(self, done: Done, answer: ReadEntries) -> None:
        self._ahead_pending -= 1
        self._submit_ahead()
        done(answer.error)

    def _read_ahead(self, wanted: PrefetchRequest) -> ReadEntries:
        """Read pages of the catalog; on any thread. Raises nothing."""
        catalog = self._catalogs.get()
        try:
            catalog.read_ahead(wanted)
        except StoreError as error:
            return ReadEntries(error=error)
        except Exception as error:
            return ReadEntries(error=StoreError(f"the store's catalog cannot be read: {error}"))
        finally:
            self._catalogs.put(catalog)
        return ReadEntries()

    def read(self, ledger_id: int, first_entry_id: int, *, entries_max: int, bytes_max: int) -> list[bytes]:
        """Implement `geminga.ledger.api.EntryStore.read`."""
        ledger, first = self._state.ledgers.ledger(ledger_id), max(first_entry_id, 0)
        if first >= ledger.recent_first:
            return _recent(ledger, first, entries_max, bytes_max)
        job = self._job(ledger, first, entries_max, bytes_max)
        key = (ledger_id, first, entries_max, bytes_max)
        answer = job() if self.pool is None else self.pool.ask(key, job)
        return self._taken(ledger, first, entries_max, bytes_max, answer)

    def fetch(
        self,
        ledger_id: int,
        first_entry_id: int,
        *,
        entries_max: int,
        bytes_max: int,
        ahead: ReadAhead | None,
        done: Fetched,
    ) -> list[bytes] | None:
        """Implement `geminga.ledger.api.EntryStore.fetch`."""
        ledger, first = self._state.ledgers.ledger(ledger_id), max(first_entry_id, 0)
        if first >= ledger.recent_first:
            return _recent(ledger, first, entries_max, bytes_max)
        if self.pool is None:
            return self.read(ledger_id, first, entries_max=entries_max, bytes_max=bytes_max)
        if ahead is None:
            return None

        def deliver(answer: ReadEntries) -> None:
            entries: list[bytes] = []
            error: StoreError | None = None
            try:
                if not self._state.ledgers.exists(ledger_id):
                    raise LedgerNotFound(f"ledger {ledger_id} was trimmed away")
                entries = self._taken(ledger, first, ahead.entries_max, ahead.bytes_max, answer)
            except StoreError as problem:
                error = problem
            done(entries, error)

        job = self._job(ledger, first, ahead.entries_max, ahead.bytes_max)
        self.pool.submit((ledger_id, first, ahead), job, deliver)
        return None

    def _job(
        self, ledger: LedgerState, first: int, entries_max: int, bytes_max: int
    ) -> Callable[[], ReadEntries]:
        finder, files = self.index, self._files
        count = min(entries_max, ledger.recent_first - first)
        return lambda: _from_disk(finder, files, ledger, first, count, bytes_max)

    def _taken(
        self, ledger: LedgerState, first: int, entries_max: int, bytes_max: int, found: ReadEntries
    ) -> list[bytes]:
        if found.error is not None:
            raise found.error
        entries = found.entries
        if found.bad:
            if found.may_pass and self._is_to_be_tried_again(ledger.ledger_id, found.bad[0][0]):
                raise StoreError(
                    f"ledger {ledger.ledger_id}, entry {found.bad[0][0]} ({describe(found.bad[0][1])}) "
                    f"cannot be read now: {found.what}"
                )
            raise self._damaged(ledger, found)
        more = entries_max - len(entries)
        if more > 0 and first + len(entries) == ledger.recent_first and ledger.recent:
            rest = bytes_max - sum(map(len, entries))
            if rest >= len(ledger.recent[0]):
                entries = entries + _recent(ledger, ledger.recent_first, more, rest)
        return entries

    def _is_to_be_tried_again(self, ledger_id: int, entry_id: int) -> bool:
        """Whether to retry an entry that the disk cannot read: the cause may be temporary (a loose cable)."""
        now, key = time.monotonic(), (ledger_id, entry_id)
        since, last = self._suspects.pop(key, (now, now))
        if now - last > self._settings.unreadable_seconds:
            since = now  # the disk worked meanwhile, or the entry was not read
        if now - since >= self._settings.unreadable_seconds:
            return False
        self._suspects[key] = since, now
        if len(self._suspects) > _SUSPECTS_MAX:
            self._suspects.popitem(last=False)
        return True

    def _damaged(self, ledger: LedgerState, found: ReadEntries) -> EntriesDamaged:
        """List the damage unless its loss is accepted, and return the error for it."""
        entry_id, position, _, _ = found.bad[0]
        ledger_id, last, what = ledger.ledger_id, found.bad[-1][0], found.what
        if position <= GIVEN_UP:
            damage = Damage("log", 0, what, ledger_id, entry_id, last, DamageLoss.ENTRIES)
            if position == MISSING:
                self._note_damage(damage)
            return EntriesDamaged(f"{damage.thing}: {what}; the store's other data is not affected", damage)
        name, offset = file_name(position >> OFFSET_BITS), position & OFFSET_MASK
        damage = Damage(name, offset, what, ledger_id, entry_id, last, DamageLoss.ENTRIES)
        self._note_damage(damage)
        where = f"{damage.thing} ({describe(position)})"
        return EntriesDamaged(f"{where}: {what}; the store's other data is not affected", damage)


# --- disk; run on any thread ---


def _from_disk(
    finder: Index, files: LogFiles, ledger: LedgerState, first: int, count: int, bytes_max: int
) -> ReadEntries:
    """Read entries from ``first`` on, which are all in the log. Raises nothing."""
    found = ReadEntries()
    try:
        for _ in range(_LOOKS_MAX):
            found = ReadEntries()
            _read_at(files, _look_up(finder, ledger, first, count, bytes_max), found)
            if found.entries or not found.bad or _is_unmoved(finder, ledger, found.bad[0]):
                break
        if found.file_is_gone:
            found.bad = _ends_in_file(finder, ledger, found.bad[0])
    except StoreError as error:
        found.error = error
    except OSError as error:
        found.error = StoreError(f"the store's log cannot be read now: {error}")
    except Exception as error:
        logger.exception("ledger %d could not be read from entry %d on", ledger.ledger_id, first)
        found.error = StoreError(f"reading the store failed ({type(error).__name__}: {error})")
    if found.entries:
        # The next read meets the obstacle again.
        found.bad, found.error = [], None
    return found


def _read_at(files: LogFiles, positions: list[EntryPosition], found: ReadEntries) -> None:
    """Add the entries at these positions to ``found``, up to the first bad one."""
    start = 0
    while start < len(positions) and not found.bad:
        stop = _run_end(positions, start)
        _read_run(files, positions[start:stop], found)
        start = stop


def _is_unmoved(finder: Index, ledger: LedgerState, expected: EntryPosition) -> bool:
    """Whether an entry that could not be read was not moved meanwhile.

    A file is deleted only after the moves of its entries are known: an entry whose position is unchanged was
    there when the read failed. Looked up twice, as a checkpoint may end between the two steps of a lookup.
    """

    def position() -> int:
        located = finder.locate(ledger, expected[0])
        return MISSING if located is None else finder.position(ledger.ledger_id, *located)

    return position() == expected[1] and position() == expected[1]


def _ends_in_file(finder: Index, ledger: LedgerState, entry: EntryPosition) -> list[EntryPosition]:
    """Return the first and the last of the entries around one that are in the same file, as far as its chunk
    has them: one damage for all, as a file may hold a million."""
    chunk, at = finder.locate(ledger, entry[0]) or (empty_chunk(entry[0]), 0)

    def end(step: int) -> EntryPosition:
        last, index = entry, at + step
        while 0 <= index < len(chunk):
            position = finder.position(ledger.ledger_id, chunk, index)
            if position >> OFFSET_BITS != entry[1] >> OFFSET_BITS:
                break
            last, index = (chunk.first + index, position, 0, 0), index + step
        return last

    return [end(-1), end(1)]


def _look_up(
    finder: Index, ledger: LedgerState, first: int, count: int, bytes_max: int
) -> list[EntryPosition]:
    positions: list[EntryPosition] = []
    total = 0
    entry_id, end = first, first + count
    while entry_id < end:
        located = finder.locate(ledger, entry_id)
        if located is None:
            # Ids that `append` skipped, as damage may have destroyed their entries.
            positions.append((entry_id, MISSING, 0, 0))
            return positions
        chunk, start = located
        for at in range(start, min(len(chunk), start + end - entry_id)):
            size = chunk.sizes[at]
            total += size
            if total > bytes_max and positions:
                return positions
            positions.append((entry_id, finder.position(ledger.ledger_id, chunk, at), size, chunk.crcs[at]))
            entry_id += 1
    return positions


def _run_end(positions: list[EntryPosition], start: int) -> int:
    """Return the end of the run of entries that one read fetches, or that are all lost or all given up."""
    first = positions[start][1]
    end = first + positions[start][2]
    stop = start + 1
    while stop < len(positions):
        _, position, size, _ = positions[stop]
        if first <= GIVEN_UP:
            if position != first:
                break
            stop += 1
            continue
        if not end <= position <= end + _GAP_BYTES_MAX or position >> OFFSET_BITS != first >> OFFSET_BITS:
            break
        if position + size - first > _RUN_BYTES_MAX:
            break
        end = position + size
        stop += 1
    return stop


def _read_run(files: LogFiles, run: list[EntryPosition], found: ReadEntries) -> None:
    """Add the entries of a run up to the first bad one, and record the bad one."""
    base = run[0][1]
    if base <= GIVEN_UP:
        found.bad = run
        found.what = "entries lost to damage" if base == MISSING else "entries lost to damage and given up"
        return
    size = run[-1][1] + run[-1][2] - base
    try:
        with files.borrowed(base >> OFFSET_BITS) as file:
            data = file.read(size, base & OFFSET_MASK)
    except StoreDamaged as error:
        found.bad, found.what, found.file_is_gone = run[:1], str(error), True
        return
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        if len(run) == 1:
            found.bad, found.what, found.may_pass = run, f"the entry cannot be read ({error})", True
            return
        for expected in run:
            # Read one by one to find the bad entry: it may be the gap between them that is unreadable.
            _read_run(files, [expected], found)
            if found.bad:
                break
        return
    if len(run) == 1:
        _take(data if len(data) == size else b"", run[0], found)
        return
    entries = [data[expected[1] - base : expected[1] - base + expected[2]] for expected in run]
    crcs = list(map(crc32c, entries, repeat(0), repeat(_HOLD_GIL)))
    if len(data) == size and crcs == [expected[3] for expected in run]:
        found.entries += entries
        return
    for expected in run:
        start = expected[1] - base
        _take(data[start : start + expected[2]], expected, found)
        if found.bad:
            return


def _take(entry: bytes, expected: EntryPosition, found: ReadEntries) -> None:
    # Releasing the GIL for such a short sum would cost up to a whole switch interval.
    if len(entry) != expected[2] or crc32c(entry, 0, _HOLD_GIL) != expected[3]:
        found.bad, found.what = [expected], "entry fails its checksum"
    else:
        found.entries.append(entry)


# --- memory ---


def _recent(ledger: LedgerState, first: int, entries_max: int, bytes_max: int) -> list[bytes]:
    recent, start = ledger.recent, first - ledger.recent_first
    entries, total = list[bytes](), 0
    for at in range(start, min(len(recent), start + entries_max)):
        entry = recent[at]
        total += len(entry)
        if total > bytes_max and entries:
            break
        if not isinstance(entry, bytes):
            # Converted once for all readers.
            recent[at] = entry = bytes(entry)
        entries.append(entry)
    return entries
