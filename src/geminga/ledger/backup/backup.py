"""Backups: copy a store as it was at one moment, whether or not a process has it open, and restore it.

All state of a store is in its log, which only grows at its end: the log up to a position *is* the store at
that moment. So a backup copies the log files, the newest only up to the end of its last whole group. The
catalog is left out; opening the copy rebuilds it. The process that has the store open is not involved.

Why the copy is of one moment: files are only added at the end, and a file is deleted only after the log has
recorded it. The backup opens all files, so that they stay readable after a deletion, and lists the folder
again: if no file was added or deleted in between, it holds all log files of that moment. Then it looks for
the end of the newest file.

The superblock is written last, so that an unfinished copy is not taken for a store.
"""

import contextlib
import datetime as dt
import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from geminga.errors import StoreDamaged, StoreError
from geminga.ledger.files.filesystem import File, FileSystem, RealFileSystem, read_start, write_fully
from geminga.ledger.files.folder import (
    SUPERBLOCK_FILE,
    VERSION_FILE,
    check_format,
    check_is_store,
    read_version,
)
from geminga.ledger.files.format import (
    FILE_HEADER_BYTES,
    MARK_BYTES,
    OFFSET_BITS,
    OFFSET_MASK,
    SUPERBLOCK_BYTES,
    GroupHeader,
    decode_mark,
    decode_superblock,
    encode_superblock,
    file_name,
    file_number,
)
from geminga.ledger.log.log import (
    MARK_FILE,
    SequentialReader,
    bad_records,
    read_directory,
    read_payload,
    scan_headers,
)
from geminga.wire.checksum import crc32c

PIECE_BYTES = 1024 * 1024
_NAME = "%Y-%m-%dT%H-%M-%SZ"
LOOKS_MAX = 1000
"""Maximum listings of the folder, repeated until two agree."""

Say = Callable[[int, int], None]
"""Progress callback: (bytes copied, total bytes)."""


@dataclass(frozen=True, slots=True)
class BackupResult:
    """Size and duration of a copy. ``end`` is the file and offset up to which the log was copied."""

    files: int
    bytes: int
    end: str
    seconds: float
    linked_files: int = 0
    """Files that were not copied, because an earlier backup has them."""


class EarlierBackup:
    """Earlier backup of the same store, whose files are used again: closed log files never change.

    This base class stands for none: every file is copied.
    """

    def link(self, name: str, size: int, path: str) -> bool:
        """Make ``path`` a hard link to the backup's log file; False if it has none of this content."""
        return False

    def copied(self, name: str, path: str) -> None:
        """Prepare the copy of a closed log file for `link` by a later backup."""


def backup(
    folder: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    filesystem: FileSystem | None = None,
    target_filesystem: FileSystem | None = None,
    say: Say = lambda done, total: None,
    earlier: EarlierBackup | None = None,
) -> BackupResult:
    """Copy the store in ``folder``, which may be in use, to ``target``, a new or empty folder.

    Every write that was confirmed before the call is in the copy. Log files that ``earlier`` has are links to
    its files. ``target_filesystem``: that of the target, if it is another one. Raises `NotAStore`,
    `StoreDamaged` when the superblock cannot be read, `StoreError` when ``target`` cannot be created or the
    store has a newer format, `OSError` of the disks; a partial copy is removed.
    """
    began = time.monotonic()
    found: BackupResult | None = None
    filesystem = filesystem or RealFileSystem()
    earlier = earlier or EarlierBackup()
    for step in steps(_path(folder), _path(target), filesystem, say, earlier, target_filesystem):
        found = step or found
    assert found is not None
    return replace(found, seconds=time.monotonic() - began)


def restore(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    filesystem: FileSystem | None = None,
    say: Say = lambda done, total: None,
) -> BackupResult:
    """Copy a backup to ``folder``, a new or empty one, which a broker can then use as its data folder.

    ``filesystem`` is that of the backup, which is not changed. Raises as `backup` does.
    """
    return backup(source, folder, filesystem=filesystem, target_filesystem=RealFileSystem(), say=say)


def steps(
    folder: str,
    target: str,
    filesystem: FileSystem,
    say: Say,
    earlier: EarlierBackup,
    target_filesystem: FileSystem | None = None,
) -> Iterator[BackupResult | None]:
    """Run `backup` in steps; the last step yields the result."""
    store_id = store_id_of(filesystem, folder)
    written = target_filesystem or filesystem
    _prepare(written, target, folder)
    made: list[str] = []
    files: dict[int, File] = {}
    try:
        # The mark is read first: it must not be ahead of the copied log.
        mark = _mark(filesystem, folder, store_id)
        yield None
        files = _held(filesystem, folder)
        yield None
        number = max(files, default=0)
        stop = _end(files[number], number, store_id, mark) if files else 0
        sizes = {one: stop if one == number else file.size() for one, file in files.items()}
        total, done, linked = sum(sizes.values()), 0, 0
        for one, file in sorted(files.items()):
            path = f"{target}/{file_name(one)}"
            made.append(path)
            is_linked = one != number and earlier.link(file_name(one), sizes[one], path)
            linked += is_linked
            for size in (sizes[one],) if is_linked else _copied(written, file, sizes[one], path):
                done += size
                say(done, total)
                yield None
            if one != number and not is_linked:
                earlier.copied(file_name(one), path)
        yield None
        version = read_version(filesystem, folder)
        if version:
            made.append(f"{target}/{VERSION_FILE}")
            _write(written, made[-1], f"{version}\n".encode())
        if mark is not None:
            made.append(f"{target}/{MARK_FILE}")
            _write(written, made[-1], mark)
        made.append(f"{target}/{SUPERBLOCK_FILE}.new")
        _write(written, made[-1], encode_superblock(store_id))
        written.sync_folder(target)
        yield None
        written.rename(made[-1], f"{target}/{SUPERBLOCK_FILE}")
        written.sync_folder(target)
        made.clear()
        end = f"{file_name(number)} at offset {stop}" if files else "nothing"
        yield BackupResult(len(files), done, end, 0.0, linked)
    finally:
        for file in files.values():
            file.close()
        for path in made:
            with contextlib.suppress(OSError):
                written.unlink(path)


def _copied(filesystem: FileSystem, file: File, size: int, path: str) -> Iterator[int]:
    """Copy the first ``size`` bytes of a file to a new one; yield the sizes of the pieces."""
    with contextlib.closing(filesystem.open(path, create=True)) as copy:
        start = 0
        while start < size:
            data = file.read(min(PIECE_BYTES, size - start), start)
            if not data:
                break  # space that was allocated ahead was freed
            write_fully(copy, [data], start)
            start += len(data)
            yield len(data)
        copy.sync()


def _write(filesystem: FileSystem, path: str, content: bytes) -> None:
    with contextlib.closing(filesystem.open(path, create=True)) as file:
        write_fully(file, [content], 0)
        file.sync()


def _mark(filesystem: FileSystem, folder: str, store_id: bytes) -> bytes | None:
    """Return the current synced-through mark, which tells damage from a torn tail; None if damaged."""
    try:
        data = read_start(filesystem, f"{folder}/{MARK_FILE}", MARK_BYTES)
    except FileNotFoundError:
        return None
    return data if decode_mark(data, crc32c(store_id)) is not None else None


def is_name(text: str) -> bool:
    """Return whether a text is the name of a backup."""
    with contextlib.suppress(ValueError):
        return dt.datetime.strptime(text, _NAME).strftime(_NAME) == text
    return False


def name_at(moment: dt.datetime) -> str:
    """Return the name of a backup that is begun at a moment."""
    return moment.astimezone(dt.UTC).strftime(_NAME)


def _path(folder: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.fspath(folder))


def store_id_of(filesystem: FileSystem, folder: str) -> bytes:
    """Return the id of the store in a folder.

    Raises `NotAStore`, `StoreDamaged` for its superblock, and `StoreError` for a newer format.
    """
    check_is_store(filesystem, folder)
    superblock = None
    with contextlib.suppress(FileNotFoundError):
        data = read_start(filesystem, f"{folder}/{SUPERBLOCK_FILE}", SUPERBLOCK_BYTES + 1)
        superblock = decode_superblock(data)
    if superblock is None:
        raise StoreDamaged(
            f"{folder}/{SUPERBLOCK_FILE} is missing or fails its checksum: opening the store repairs it"
        )
    version, store_id = superblock
    check_format(filesystem, folder, version)
    return store_id


def check_outside(target: str, store: str) -> None:
    """Raise `StoreError` for a target in the folder of the store."""
    if f"{os.path.realpath(target)}/".startswith(f"{os.path.realpath(store)}/"):
        raise StoreError(f"{target} is in the store itself: name another folder")


def _prepare(filesystem: FileSystem, target: str, source: str) -> None:
    """Create the target folder; raise `StoreError` if it is not empty."""
    check_outside(target, source)
    try:
        names = [name for name in filesystem.list_folder(target) if name != "lost+found"]
    except FileNotFoundError:
        filesystem.make_folder(target)
        filesystem.sync_folder(os.path.dirname(target))
        return
    except NotADirectoryError:
        raise StoreError(f"{target} is a file: name a new or an empty folder") from None
    if names:
        raise StoreError(f"{target} is not empty: name a new or an empty folder")


def _held(filesystem: FileSystem, folder: str) -> dict[int, File]:
    """Open all log files of one moment; they stay readable if they are deleted meanwhile."""
    held: dict[int, File] = {}
    try:
        for _ in range(LOOKS_MAX):
            numbers = _numbers(filesystem, folder)
            for number in [one for one in held if one not in numbers]:
                held.pop(number).close()
            try:
                for number in numbers:
                    if number not in held:
                        held[number] = filesystem.open_to_read(f"{folder}/{file_name(number)}")
            except FileNotFoundError:
                if _numbers(filesystem, folder) == numbers:  # listed, and not there: an object was deleted
                    raise StoreDamaged(f"{file_name(number)} is missing from {folder}") from None
                continue
            if _numbers(filesystem, folder) == numbers:
                return held
    except OSError as error:
        _close(held)
        if error.errno == errno.EMFILE:
            raise StoreError(
                f"{len(held)} log files are open and no more may be: raise the limit with ulimit -n"
            ) from None
        raise
    except BaseException:
        _close(held)
        raise
    _close(held)
    raise StoreError(f"the files in {folder} come and go too fast: try again")


def _close(held: dict[int, File]) -> None:
    for file in held.values():
        file.close()
    held.clear()


def _numbers(filesystem: FileSystem, folder: str) -> set[int]:
    return {number for name in filesystem.list_folder(folder) if (number := file_number(name)) is not None}


def _end(file: File, number: int, store_id: bytes, mark: bytes | None) -> int:
    """Return the end of the newest file's last whole group or, where damage is, of its synced part: bytes
    before that offset do not change any more."""
    stop = FILE_HEADER_BYTES
    reader = SequentialReader(file)
    for item in scan_headers(reader, number, FILE_HEADER_BYTES, crc32c(store_id)):
        if isinstance(item, GroupHeader):
            if _is_whole(reader, item):
                stop = max(stop, item.end & OFFSET_MASK)
        elif item.position == item.end:
            # A group that was not there a moment ago: the store continues to write. All groups written
            # before the backup began end before it.
            break
    marked = decode_mark(mark, crc32c(store_id)) if mark is not None else None
    if marked is not None and marked[0] >> OFFSET_BITS == number:
        stop = max(stop, marked[0] & OFFSET_MASK)
    return min(stop, file.size())


def _is_whole(reader: SequentialReader, header: GroupHeader) -> bool:
    directory = read_directory(reader, header)
    if directory is None or header.was_mended or directory.was_mended:
        return False
    return not bad_records(directory, read_payload(reader, header))
