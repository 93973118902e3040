"""Log of a store: files with the records of all ledgers and keys, appended in groups.

`LogFiles` hands out open files, `LogWriter` appends groups to the last one, `scan_headers` and
`read_directory` read them back. The meaning of records is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import NamedTuple, Protocol

from geminga.errors import StoreDamaged
from geminga.ledger.api import Buffer, Done
from geminga.ledger.files.filesystem import File, FileSystem, write_fully
from geminga.ledger.files.folder import file_gone
from geminga.ledger.files.format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
    GROUP_MAGIC,
    OFFSET_BITS,
    OFFSET_MASK,
    Directory,
    GroupHeader,
    RecordKind,
    decode_directory,
    decode_file_header,
    decode_group_header,
    encode_file_header,
    encode_group,
    encode_mark,
    file_name,
    mend_group_header,
    pack_numbers,
)
from geminga.ledger.files.space import NO_SPACE
from geminga.wire.checksum import crc32c

logger = logging.getLogger("geminga.ledger")

Record = tuple[int, int, int, Buffer, Done | None]
"""(kind, first number, second number, bytes, callback)."""

MARK_FILE = "synced"
_OPEN_FILES_MAX = 64
_SEARCH_BYTES = 1024 * 1024
_READ_AHEAD_BYTES = 256 * 1024
# Releasing the GIL while 100 KB are summed (5 µs) costs the writer up to a whole switch interval (5 ms) per
# entry when the owner is busy.
_HOLD_GIL = 0
_ALLOCATE_AGAIN_BYTES = 1024 * 1024
_JOIN_BYTES_MAX = 2 * 1024  # below this average, copying into one buffer is cheaper than an iovec each


@dataclass(slots=True, eq=False, repr=False)
class Group:
    """A written group: its records, the positions of their bytes, and the position behind the group."""

    position: int
    end: int
    sequence: int
    kinds: bytes
    firsts: Sequence[int]
    seconds: Sequence[int]
    datas: Sequence[Buffer]
    dones: Sequence[Done | None]
    sizes: array[int]
    crcs: array[int]
    positions: list[int]
    payload_bytes: int
    sealed: tuple[int, int] | None
    """(number, size) of the file that was closed before this group, if one was."""


class LogFiles:
    """Bounded set of a store's open log files. Threads may share them."""

    def __init__(self, filesystem: FileSystem, folder: str) -> None:
        self._opens = filesystem.open
        self._folder = folder
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()

    def path(self, number: int) -> str:
        return f"{self._folder}/{file_name(number)}"

    def get(self, number: int) -> File:
        """Return the file, opened if necessary, for one thread only; raises `StoreDamaged` without one."""
        with self._lock:
            return self._opened(number).file

    @contextlib.contextmanager
    def borrowed(self, number: int) -> Iterator[File]:
        """Return the file while other threads may `forget` it: it stays open until the context ends."""
        with self._lock:
            held = self._opened(number)
            held.users += 1
        try:
            yield held.file
        finally:
            with self._lock:
                held.users -= 1
                held.close_if_unused()

    def _opened(self, number: int) -> _OpenFile:
        held = self._open.get(number)
        if held is not None:
            self._open.move_to_end(number)
            return held
        try:
            held = _OpenFile(self._opens(self.path(number)))
        except FileNotFoundError:
            raise StoreDamaged(f"{file_name(number)} is missing from the store in {self._folder}") from None
        self._open[number] = held
        if len(self._open) > _OPEN_FILES_MAX:
            self._let_go(next(iter(self._open)))
        return held

    def _let_go(self, number: int) -> None:
        held = self._open.pop(number, None)
        if held is not None:
            held.is_unwanted = True
            held.close_if_unused()

    def forget(self, number: int) -> None:
        """Close the file, or make its last user close it."""
        with self._lock:
            self._let_go(number)

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._let_go(next(iter(self._open)))


@dataclass(slots=True, eq=False, repr=False)
class _OpenFile:
    file: File
    users: int = 0
    is_unwanted: bool = False

    def close_if_unused(self) -> None:
        if self.is_unwanted and not self.users:
            self.file.close()


class SequentialReader:
    """Reads a file from start to end in small pieces, with one large disk read for many of them."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._window = b""

    def read(self, size: int, offset: int) -> bytes:
        start = offset - self._start
        if start >= 0 and start + size <= len(self._window):
            return self._window[start : start + size]
        if size >= _READ_AHEAD_BYTES:
            return self._file.read(size, offset)
        self._start = offset
        self._window = self._file.read(_READ_AHEAD_BYTES, offset)
        return self._window[:size]

    def size(self) -> int:
        return self._file.size()


class SyncFailed(Exception):
    """A sync failed, so the content of the disk is unknown. The cause is the system's error."""


def _synced(sync: Callable[[], None]) -> None:
    try:
        sync()
    except OSError as error:
        raise SyncFailed(str(error)) from error


class ReadableFile(Protocol):
    def read(self, size: int, offset: int) -> bytes: ...

    def size(self) -> int: ...


class LogEnd(NamedTuple):
    """End of a log, where a writer continues."""

    position: int = 0
    sequence: int = 0
    live_files: Set[int] = frozenset()
    """Numbers of the log's files."""
    next_ledger_id: int = 0


class LogWriter:
    """Appends groups to the log. All methods but the constructor run on the writer's thread.

    When the disk is full, `write` raises the system's OSError (`space.NO_SPACE`) and may be called again with
    the same records, which overwrite the partial group. Any other error, and any error of a sync
    (`SyncFailed`), leaves the writer unusable: the content of the disk is unknown, the store must be
    reopened.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        store_id: bytes,
        *,
        end: LogEnd,
        file_bytes_max: int,
        preallocate_bytes: int,
    ) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._store_id = store_id
        self._seed = crc32c(store_id)
        self._file_bytes_max = file_bytes_max
        self._preallocate_bytes = preallocate_bytes
        self._allocated = 0
        self._allocates_from = 0
        self._sealed: tuple[int, int] | None = None
        self._has_records = True
        self.number = end.position >> OFFSET_BITS
        self.offset = end.position & OFFSET_MASK
        self.sequence = end.sequence
        self.synced_through = end.position
        self._marked = 0
        self.live_files = set(end.live_files)
        self.next_ledger_id = end.next_ledger_id
        self._mark = filesystem.open(f"{folder}/{MARK_FILE}", create=True)
        self._file: File | None = None
        if self.offset:
            self._file = filesystem.open(f"{folder}/{file_name(self.number)}")
            self._allocated = self._file.size()
        self._in_place = None if self._file is None else self._identified(self.number)

    @property
    def position(self) -> int:
        return self.number << OFFSET_BITS | self.offset

    def write(self, records: Sequence[Record]) -> Group:
        """Write the records as one group; it is on the disk only after `sync`."""
        kinds, firsts, seconds, datas, dones = zip(*records, strict=True)
        sizes = array("I", map(len, datas))
        directory = Directory(
            bytes(kinds),
            sizes,
            array("I", map(crc32c, datas, repeat(0), repeat(_HOLD_GIL))),
            array("Q", firsts),
            array("Q", seconds),
        )
        payload_bytes = sum(sizes)
        needed = GROUP_HEADER_BYTES + len(records) * 25 + payload_bytes
        if self._file is None or (self.offset + needed > self._file_bytes_max and self._has_records):
            self._roll()
        assert self._file is not None
        self._allocate(needed)
        position = self.position
        head = encode_group(
            directory,
            position=position,
            sequence=self.sequence + 1,
            synced_through=self.synced_through,
            payload_bytes=payload_bytes,
            seed=self._seed,
        )
        try:
            written = write_fully(self._file, _gathered(head, datas, payload_bytes), self.offset)
        except OSError:
            # The next attempt begins at the same offset; until then the space is free for others.
            with contextlib.suppress(OSError):
                self._file.truncate(self.offset)
            self._allocated = self.offset
            raise
        if written != needed:
            raise ValueError(
                f"a group of {needed} bytes took {written}: an entry is no buffer of single bytes"
            )
        self.sequence += 1
        self.offset += needed
        self._has_records = True
        sealed, self._sealed = self._sealed, None
        if RecordKind.CREATE in directory.kinds or RecordKind.DROP_FILE in directory.kinds:
            self._note(kinds, firsts)
        return Group(
            position,
            position + needed,
            self.sequence,
            directory.kinds,
            firsts,
            seconds,
            datas,
            dones,
            sizes,
            directory.crcs,
            directory.positions(position + len(head)),
            payload_bytes,
            sealed,
        )

    def _note(self, kinds: Sequence[int], firsts: Sequence[int]) -> None:
        """Update the next ledger id and the list of live files, which each new file begins with."""
        for kind, number in zip(kinds, firsts, strict=True):
            if kind == RecordKind.CREATE:
                self.next_ledger_id = max(self.next_ledger_id, number + 1)  # an older one is written again
            elif kind == RecordKind.DROP_FILE:
                self.live_files.discard(number)

    def sync(self) -> None:
        """Return once all written groups are on the disk."""
        end = self.position
        if self._file is None or self.synced_through == end:
            return
        _synced(self._file.sync)
        self.synced_through = end

    def note_mark(self) -> None:
        """Write the synced-through mark, which distinguishes a torn tail from damage.

        Call it when writing pauses: consecutive groups record it for their predecessors. The mark itself is
        not synced, as an older mark that survives is still true.
        """
        if self._marked != self.synced_through:
            try:
                write_fully(self._mark, [encode_mark(self.synced_through, self.sequence, self._seed)], 0)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
            else:
                self._marked = self.synced_through

    def close(self, *, clean: bool) -> None:
        """Close the files; a clean close also frees preallocated space."""
        if self._file is not None:
            if clean and self._allocated > self.offset:
                self._file.truncate(self.offset)
                self._file.sync()
            self._file.close()
        if clean:
            self.note_mark()
            self._mark.sync()
        self._mark.close()

    def check_in_place(self) -> None:
        """Raise `StoreError` if the file being written is no longer in the folder. For any thread."""
        written = self._in_place
        if written is None:
            return
        try:
            if self._identified(written[0]) == written:
                return
        except FileNotFoundError:
            pass
        if written is self._in_place:  # otherwise the writer has started another file
            raise file_gone(self._folder, file_name(written[0]))

    def _identified(self, number: int) -> tuple[int, str]:
        return number, self._filesystem.identity_of(f"{self._folder}/{file_name(number)}")

    def _roll(self) -> None:
        """Start the next file: write its header and the list of files, and sync the file and the folder."""
        if self._file is not None:
            if self._allocated > self.offset:
                self._file.truncate(self.offset)
            _synced(self._file.sync)
            self._file.close()
            self._file = self._in_place = None
            self._sealed = (self.number, self.offset)
        # The writer's fields change only after success: if the disk is full, this is tried again.
        number = self.number + 1
        file = self._filesystem.open(f"{self._folder}/{file_name(number)}", create=True)
        try:
            written = self._begin(file, number)
            in_place = self._identified(number)
        except BaseException:
            file.close()
            raise
        self._file = file
        self.live_files.add(number)
        self.sequence += 1
        self.number, self.offset = number, written
        self._in_place = in_place
        self.synced_through = self.position
        self._allocated = self._allocates_from = self.offset
        self._has_records = False

    def _begin(self, file: File, number: int) -> int:
        """Write the header and the list of files; returns the number of bytes."""
        file.truncate(0)
        manifest = pack_numbers("Q", sorted({*self.live_files, number}))
        directory = Directory(
            bytes((RecordKind.MANIFEST,)),
            array("I", (len(manifest),)),
            array("I", (crc32c(manifest),)),
            array("Q", (self.next_ledger_id,)),
            array("Q", (0,)),
        )
        head = encode_group(
            directory,
            position=number << OFFSET_BITS | FILE_HEADER_BYTES,
            sequence=self.sequence + 1,
            synced_through=self.position,
            payload_bytes=len(manifest),
            seed=self._seed,
        )
        written = write_fully(file, [encode_file_header(number, self._store_id), head, manifest], 0)
        _synced(file.sync)
        _synced(lambda: self._filesystem.sync_folder(self._folder))
        return written

    def _allocate(self, needed: int) -> None:
        """Preallocate the file in steps that grow with it: syncing is cheaper in allocated space."""
        end = self.offset + needed
        if end <= self._allocated or not self._preallocate_bytes or self._file is None:
            return
        if end < self._allocates_from:
            return
        step = min(self._preallocate_bytes, max(1024 * 1024, self._allocated))
        target = min(max(end, self._allocated + step), max(self._file_bytes_max, end))
        try:
            self._file.allocate(self._allocated, target - self._allocated)
            self._allocated = target
        except OSError as error:
            # Write without it: the file system does not support it, or lacks the space (tried again later).
            if error.errno in NO_SPACE:
                self._allocates_from = end + _ALLOCATE_AGAIN_BYTES
            else:
                self._preallocate_bytes = 0
            with contextlib.suppress(OSError):
                self._file.truncate(self.offset)
            self._allocated = self.offset


def _gathered(head: bytes, datas: Sequence[Buffer], payload_bytes: int) -> list[Buffer]:
    """Return the group's bytes as few buffers: one of them all if they are small."""
    if payload_bytes <= len(datas) * _JOIN_BYTES_MAX:
        return [head, b"".join(datas)]
    return [head, *datas]


@dataclass(slots=True, eq=False, repr=False)
class Gap:
    """Bytes between two positions of one file that are not a group."""

    position: int
    end: int
    is_zero: bool


def check_file_header(file: ReadableFile, number: int, store_id: bytes) -> str | None:
    """Describe the fault of a file's header; None if the header is right."""
    header = decode_file_header(file.read(FILE_HEADER_BYTES, 0))
    if header is None:
        return "the file's header fails its checksum"
    if header[1] != store_id:
        return "the file belongs to another store"
    if header[0] != number:
        return f"the file is {file_name(header[0])} under another name"
    return None


def scan_headers(file: ReadableFile, number: int, offset: int, seed: int) -> Iterator[GroupHeader | Gap]:
    """Return the headers of the groups in a file from ``offset`` on, and the gaps between them."""
    size = file.size()
    base = number << OFFSET_BITS
    while offset < size:
        data = file.read(GROUP_HEADER_BYTES, offset)
        header = decode_group_header(data, base | offset, seed)
        if header is None and any(data):
            header = mend_group_header(data, base | offset, seed)
        if header is not None and header.end <= base | size:
            yield header
            offset = header.end & OFFSET_MASK
            continue
        found, is_zero = _find_group(file, base, offset + 1 if header is not None else offset, size, seed)
        yield Gap(base | offset, base | found, is_zero and header is None)
        offset = found


def _find_group(file: ReadableFile, base: int, offset: int, size: int, seed: int) -> tuple[int, bool]:
    """Return (offset of the next group or the end of the file, whether all bytes up to there are zero)."""
    is_zero = True
    while offset < size:
        data = file.read(min(_SEARCH_BYTES + GROUP_HEADER_BYTES, size - offset), offset)
        if not data:
            return size, is_zero
        at = data.find(GROUP_MAGIC)
        while at >= 0:
            if at + GROUP_HEADER_BYTES > len(data) and offset + len(data) < size:
                break  # cut off by the end of the data; found again in the next round
            candidate = data[at : at + GROUP_HEADER_BYTES]
            header = decode_group_header(candidate, base | (offset + at), seed)
            if header is not None and header.end <= base | size:
                return offset + at, is_zero and not any(data[:at])
            at = data.find(GROUP_MAGIC, at + 1)
        if len(data) <= GROUP_HEADER_BYTES or offset + len(data) >= size:
            return size, is_zero and not any(data)
        used = len(data) - GROUP_HEADER_BYTES
        is_zero = is_zero and data.count(0, 0, used) == used
        offset += used
    return size, is_zero


def read_directory(file: ReadableFile, header: GroupHeader) -> Directory | None:
    """Return the group's directory; None if its checksum does not match."""
    offset = (header.position & OFFSET_MASK) + GROUP_HEADER_BYTES
    return decode_directory(header, file.read(header.directory_bytes, offset))


def read_payload(file: ReadableFile, header: GroupHeader) -> memoryview:
    return memoryview(file.read(header.payload_bytes, header.payload_position & OFFSET_MASK))


def bad_records(directory: Directory, payload: memoryview) -> set[int]:
    """Return the indexes of records that fail their checksum."""
    ends = accumulate(directory.sizes)
    found = [crc32c(payload[end - size : end]) for end, size in zip(ends, directory.sizes, strict=True)]
    return {index for index, crc in enumerate(directory.crcs) if crc != found[index]}
