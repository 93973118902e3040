"""Rewriting of log files that are mostly garbage, to free their space.

Live records of such a file are written again at the end of the log, as ordinary records: entries as MOVED,
keys as RESTATE, ledgers' creations as CREATE, and deletions as long as older files could still hold the
deleted record. When all are on disk, a DROP_FILE record states that the file may be missing, and once that is
on disk too the file is deleted. A crash in between leaves the file, or duplicates of records, which replay
handles without the catalog.

Rewriting has a budget: bytes written by the owner and bytes freed by rewriting add to it, bytes written by
rewriting are subtracted. So rewriting cannot keep itself busy with any content. When space is
short (``is_eager``) there is no budget: every file worth it is rewritten, which happens only once per file.

The worker reads and checks the file in slices; the owner then submits the records that are still live.
Appends never wait for more than a slice. Damaged records of known keys and ledgers do not stop the rewriting:
these are written again from the store's state. Two kinds of damage keep a file, as the only evidence left: a
damaged live entry, until its loss is accepted, and bytes that are not a group of records at all.
"""

import logging
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from geminga.errors import StoreError, StoreStopped
from geminga.ledger.catalog.catalog import Catalog, EntryChunk
from geminga.ledger.files.filesystem import File
from geminga.ledger.files.format import (
    FILE_HEADER_BYTES,
    OFFSET_MASK,
    RECORD_BYTES,
    Directory,
    RecordKind,
    encode_remains,
    encode_value,
    file_name,
    key_name,
)
from geminga.ledger.log.log import Gap, read_directory, scan_headers
from geminga.ledger.state.index import GIVEN_UP
from geminga.ledger.state.ledger_table import NOBODY
from geminga.ledger.state.state import StoreState
from geminga.ledger.steps import Begin, follow
from geminga.ledger.store_parts import StoreParts
from geminga.wire.checksum import crc32c

logger = logging.getLogger("geminga.ledger")

NewRecord = tuple[int, int, int, bytes]

EAGER_LIVE_FRACTION = 0.8
"""When space is short, files with up to this live share are rewritten; each frees at least the rest."""
_SLICE_BYTES = 1024 * 1024
_SLICE_RECORDS = 1000
_ENTRIES = frozenset((RecordKind.ENTRY, RecordKind.MOVED))


class FileDamagedError(Exception):
    """The file cannot be rewritten: part of it cannot be read."""


@dataclass(slots=True, eq=False, repr=False)
class FileSlice:
    """Records of a file that may still be live, a limited number of them."""

    entries: list[tuple[int, int, bytes]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    fingerprints: set[int] = field(default_factory=set)
    created: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    given_up: list[tuple[int, int]] = field(default_factory=list)
    settled: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    is_last: bool = False

    @property
    def is_full(self) -> bool:
        records = len(self.entries) + len(self.keys) + len(self.created) + len(self.deleted)
        records += len(self.given_up) + len(self.settled)
        return self.size_bytes >= _SLICE_BYTES or records >= _SLICE_RECORDS


class LiveRecordReader:
    """Reads the live records of a file in slices, on the worker's thread."""

    def __init__(self, file: File, number: int, size: int, seed: int, catalog: Catalog) -> None:
        self._file = file
        self._number = number
        self._size = size
        self._seed = seed
        self._catalog = catalog
        self._slices = self._read()
        self._keys_seen: set[str] = set()
        self._gone: dict[int, bool] = {}
        """Whether the ledgers of the last group's entries were deleted."""
        self._chunk: EntryChunk | None = None
        self._chunk_ledger = -1

    def next_slice(self) -> FileSlice:
        """Return the next slice; raises `FileDamagedError`."""
        return next(self._slices)

    def close(self) -> None:
        self._file.close()

    def _read(self) -> Iterator[FileSlice]:
        current = FileSlice()
        for header in scan_headers(self._file, self._number, FILE_HEADER_BYTES, self._seed):
            if header.position & OFFSET_MASK >= self._size:
                break
            if isinstance(header, Gap):
                raise FileDamagedError(f"no group of records at offset {header.position & OFFSET_MASK}")
            directory = read_directory(self._file, header)
            if directory is None:
                raise FileDamagedError(
                    f"a directory fails its checksum at offset {header.position & OFFSET_MASK}"
                )
            if self._has_nothing(directory):
                continue
            for index, position in enumerate(directory.positions(header.payload_position)):
                self._take(directory, index, position, current)
                if current.is_full:
                    yield current
                    current = FileSlice()
        current.is_last = True
        yield current

    def _has_nothing(self, directory: Directory) -> bool:
        """Look for the ledgers of the group's entries; return whether it has only entries of deleted ones.

        That is so for most groups of most files: one query for each group, and no work for each entry.
        """
        kinds = set(directory.kinds)
        if kinds.isdisjoint(_ENTRIES):
            return False
        firsts: Iterable[int] = directory.firsts
        if not kinds <= _ENTRIES:
            firsts = (each for kind, each in zip(directory.kinds, firsts, strict=True) if kind in _ENTRIES)
        known, self._gone = self._gone, {}
        for ledger_id in set(firsts):
            gone = known.get(ledger_id)
            self._gone[ledger_id] = self._catalog.ledger(ledger_id) is None if gone is None else gone
        return kinds <= _ENTRIES and all(self._gone.values())

    def _take(self, directory: Directory, index: int, position: int, into: FileSlice) -> None:
        """Add record ``index`` to the slice if it may still be live."""
        kind, first, second = directory.kinds[index], directory.firsts[index], directory.seconds[index]
        if kind in _ENTRIES:
            if not self._gone[first] and self._lives(first, second, position):
                data = self._payload(directory, index, position)
                into.entries.append((first, second, data))
                into.size_bytes += len(data)
        elif kind in RecordKind.OF_KEYS:
            name = key_name(self._file.read(first, position & OFFSET_MASK), second)
            if name is None:
                into.keys.update(*self._catalog.keys.named({second}).values())
                into.fingerprints.add(second)
            elif (key := str(name, "utf-8")) not in self._keys_seen:
                self._keys_seen.add(key)
                into.keys.add(key)
        elif kind == RecordKind.CREATE:
            into.created.add(first)
        elif kind == RecordKind.DELETE_LEDGER:
            into.deleted.add(first)
        elif kind == RecordKind.GIVE_UP:
            into.given_up.append((first, second))
        elif kind == RecordKind.SETTLE:
            into.settled.append(self._payload(directory, index, position))

    def _lives(self, ledger_id: int, entry_id: int, position: int) -> bool:
        """Whether the catalog has the entry at this position; False if it was moved or deleted."""
        chunk = self._chunk
        if chunk is None or self._chunk_ledger != ledger_id or not 0 <= entry_id - chunk.first < len(chunk):
            chunk = self._chunk = self._catalog.chunk(ledger_id, entry_id)
            self._chunk_ledger = ledger_id
        return chunk is not None and chunk.positions[entry_id - chunk.first] == position

    def _payload(self, directory: Directory, index: int, position: int) -> bytes:
        data = self._file.read(directory.sizes[index], position & OFFSET_MASK)
        if crc32c(data) != directory.crcs[index]:
            raise FileDamagedError(f"a record fails its checksum at offset {position & OFFSET_MASK}")
        return data


def restatement(state: StoreState, key: str, *, with_deletion: bool) -> NewRecord | None:
    """Return a record with the current value of a key; None if there is nothing to write."""
    value = state.keys.get(key)
    if value is None:
        if not with_deletion:
            return None
        change = state.keys.delete(key)
        return RecordKind.DELETE_KEY, len(change.key_bytes), change.fingerprint, change.key_bytes
    change = state.keys.restate(key, value.base, list(value.deltas))
    lost = value.lost
    if lost is None:
        data = encode_value(change.key_bytes, value.base, value.deltas)
        return RecordKind.RESTATE, len(change.key_bytes), change.fingerprint, data
    data = encode_remains(change.key_bytes, lost.values, lost.deltas, value.base, value.deltas)
    return RecordKind.REMAINS, len(change.key_bytes), change.fingerprint, data


class LogRewriter:
    """Rewrites one log file at a time. Its methods run on the owner's thread."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._seed = crc32c(parts.store_id)
        self._settings = parts.settings
        self._state = parts.state
        self._files = parts.files
        self._catalog = parts.catalog
        self._worker = parts.worker
        self._submit = parts.writes.submit
        self._sizes = parts.sizes
        self._reader: LiveRecordReader | None = None
        self._left_alone: set[int] = set()
        self.is_running = False
        self.is_eager = False
        """Whether space is short: then files that are mostly live are rewritten, too."""
        self._stopping = False
        self._budget_bytes = parts.settings.log_file_bytes

    def earn(self, size_bytes: int) -> None:
        """Add bytes written by the owner to the budget."""
        most = 4 * self._settings.log_file_bytes
        self._budget_bytes = min(most, self._budget_bytes + size_bytes)

    def stop(self) -> None:
        """Start no more rewriting; a running one ends at its next slice."""
        self._stopping = True

    def look_again(self) -> None:
        """Reconsider files kept because of damage, after a loss was accepted."""
        self._left_alone.clear()

    def consider(self, sealed_before: int) -> None:
        """Rewrite the files that are worth it among those before the number, which are all in the catalog."""
        if not self.is_running:
            self.is_running = True
            follow(self._rewrite_files(sealed_before))

    def _rewrite_files(self, sealed_before: int) -> Generator[Begin, None, None]:
        number = 0
        try:
            while not self._stopping and (self._budget_bytes >= 0 or self.is_eager):
                numbers = [n for n in self._sizes if n < sealed_before and n not in self._left_alone]
                if not numbers:
                    break
                live: dict[int, int] = {}
                yield partial(self._worker.submit, partial(self._look, live))
                number = self._choose({number: live.get(number, 0) for number in numbers})
                if not number or self._stopping:
                    break
                yield from self._rewrite(number)
                number = 0
        except StoreStopped:
            pass
        except Exception as error:
            # The fault is in this file; other files are still rewritten.
            self._left_alone.add(number)
            is_unexpected = not isinstance(error, FileDamagedError | StoreError | OSError)
            what = f"cannot free the space of {file_name(number)}" if number else "cannot look for garbage"
            logger.warning("%s: %s", what, error, exc_info=is_unexpected)
        finally:
            self._close_reader()
            self.is_running = False

    def _look(self, live: dict[int, int]) -> None:
        live.update(self._catalog.live_bytes())

    def _choose(self, live: dict[int, int]) -> int:
        """Return the file with the smallest live share, if rewriting it is worth it; else 0."""
        sizes = self._sizes
        candidates = {number: size for number, size in live.items() if number in sizes}
        if not candidates:
            return 0
        garbage = sum(sizes[number] - live for number, live in candidates.items())
        number = min(candidates, key=lambda n: (candidates[n] / max(1, sizes[n]), n))
        if candidates[number] <= 0:
            return number
        if self.is_eager:
            return number if candidates[number] <= EAGER_LIVE_FRACTION * sizes[number] else 0
        worth = candidates[number] <= self._settings.rewrite_live_fraction * sizes[number]
        return number if worth and garbage >= self._settings.garbage_bytes_min else 0

    def _rewrite(self, number: int) -> Iterator[Begin]:
        """Write the live records of a file again, and delete the file."""
        size, written_bytes = self._sizes[number], 0
        path = self._files.path(number)
        part = FileSlice()

        def read() -> None:
            nonlocal part
            if self._reader is None:
                file = self._parts.filesystem.open(path)
                self._reader = LiveRecordReader(file, number, size, self._seed, self._catalog)
            part = self._reader.next_slice()

        while not part.is_last:
            yield partial(self._worker.submit, read)
            if self._stopping:
                return
            records = self._living(number, part)
            written_bytes += sum(len(record[3]) + RECORD_BYTES for record in records)
            for record in records[:-1]:
                self._submit(*record, None)
            if records:
                yield partial(self._submit, *records[-1])
            if self._stopping:
                return
        yield partial(self._submit, RecordKind.DROP_FILE, number, 0, b"")
        self._close_reader()
        # Written bytes were also added as the owner's when they reached the disk: hence three times.
        self.earn(size - 3 * written_bytes)
        self._files.forget(number)

        def delete() -> None:
            self._parts.filesystem.unlink(path)
            # A reader at an old position may have opened it again, which would keep its space.
            self._files.forget(number)
            self._parts.filesystem.sync_folder(self._parts.folder)
            self._parts.gauge.measure()

        yield partial(self._worker.submit, delete)
        logger.info("deleted %s, which had no live records any more", file_name(number))

    def _living(self, number: int, part: FileSlice) -> list[NewRecord]:
        """Return the records that preserve the live content of the slice."""
        state = self._state
        records: list[NewRecord] = []
        has_older = any(other < number for other in self._sizes)
        for ledger_id in sorted(part.created):
            owner = state.ledgers.ledger(ledger_id).owner if state.ledgers.exists(ledger_id) else NOBODY
            if owner != NOBODY:
                records.append((RecordKind.CREATE, ledger_id, 0, owner.encode()))
        for ledger_id, entry_id, data in part.entries:
            if state.ledgers.exists(ledger_id):
                records.append((RecordKind.MOVED, ledger_id, entry_id, data))
        if has_older:
            records += ((RecordKind.DELETE_LEDGER, ledger_id, 0, b"") for ledger_id in sorted(part.deleted))
            records += ((RecordKind.SETTLE, 0, 0, name) for name in part.settled)
        for ledger_id, entry_id in part.given_up:
            if state.ledgers.is_at(ledger_id, entry_id, GIVEN_UP):
                records.append((RecordKind.GIVE_UP, ledger_id, entry_id, b""))
        if part.fingerprints:
            part.keys.update(*state.keys.named_unsaved(part.fingerprints).values())
        for key in sorted(part.keys):
            record = restatement(state, key, with_deletion=has_older)
            if record is not None:
                records.append(record)
        return records

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
