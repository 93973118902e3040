"""Parquet tables written by Spark's streams: their current files, and compaction of small files.

A stream writes its files first and then lists them in ``_spark_metadata``; that list, not the folder, defines
the table. Files of a failed or killed micro-batch are in the folder alone. So another Parquet reader must use
the list::

    pyarrow.dataset.dataset(lake.files("my_lake/lake/events"), format="parquet")

With ``spark.sql.streaming.fileSink.log.compactInterval`` 1, as the templates set it, every list is complete
in one file. That makes compaction safe against crashes: the new files are written beside the old ones, and
renaming the new list replaces them. Readers see the old files or the new ones, never both.
"""

import io
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
from pyarrow import fs

from geminga.errors import InvalidConfiguration, StoreDamaged, UsageError
from geminga.filesystems import puts_whole_files, resolve, sync, write_whole

METADATA = "_spark_metadata"
TARGET_BYTES = 128 << 20
"""Target size of Parquet files, best for Spark's own defaults: a file is one task."""
SMALL = 0.75
"""Files smaller than this fraction of the target are merged."""
KEEP_SECONDS = 24 * 3600.0
"""Seconds for which unlisted files are kept, for readers and writers that still use them."""
DAY = "__day"
"""Column of the templates' tables with each row's day: a file holds one."""
_LIST = re.compile(r"(\d+)(\.compact)?\Z")
_VERSION = "v1"
_ROWS_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A listed file: its path on the table's file system, and its line in the list."""

    path: str
    line: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of the micro-batches up to ``batch``; ``whole``: one list names them all."""

    batch: int
    whole: bool
    entries: tuple[ListedFile, ...]


@dataclass(frozen=True, slots=True)
class TableCompaction:
    """File counts and bytes of a table before and after its compaction."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class TableSize:
    """Rows and files of a table, from the files' footers."""

    rows: int
    files: int


# --- valid files ----------------------------------------------------------------------------------------


def listing(table: str) -> Listing | None:
    """Return the table's newest list; None for a folder that no stream has written.

    Raises `StoreDamaged` when a list is not in Spark's format: guessing would hide or duplicate rows.
    """
    files, root = resolve(table)
    found = files.get_file_info(fs.FileSelector(f"{root}/{METADATA}", allow_not_found=True))
    names = {match: info for info in found if (match := _LIST.match(info.base_name))}
    if not names:
        return None
    batches = {int(match[1]): (bool(match[2]), info.path) for match, info in names.items()}
    newest = max(batches)
    begin = max((batch for batch, (compact, _) in batches.items() if compact), default=0)
    missing = [batch for batch in range(begin, newest + 1) if batch not in batches]
    if missing:
        raise StoreDamaged(f"{table}: the lists of micro-batches {missing} are missing in {METADATA}")
    entries: dict[str, ListedFile] = {}
    for batch in range(begin, newest + 1):
        for line in _lines(files, batches[batch][1]):
            path = _path(files, line["path"])
            if line["action"] != "add":
                entries.pop(path, None)
            else:
                entries[path] = ListedFile(path, line)
    return Listing(newest, batches[newest][0], tuple(entries.values()))


def _lines(files: fs.FileSystem, path: str) -> Iterator[dict[str, Any]]:
    with files.open_input_stream(path) as stream:
        version, *lines = stream.read().decode().splitlines()
    if version != _VERSION:
        raise StoreDamaged(f"{path} is a list of version {version!r}; known: {_VERSION!r}")
    for line in lines:
        try:
            entry = json.loads(line)
            entry["path"], entry["action"]
        except (ValueError, KeyError, TypeError):
            raise StoreDamaged(f"{path} has a line that names no file: {line[:200]!r}") from None
        yield entry


def _path(files: fs.FileSystem, uri: str) -> str:
    parts = urlsplit(uri)
    if isinstance(files, fs.LocalFileSystem):
        return unquote(parts.path)
    return resolve(uri)[1]


def files(table: str | os.PathLike[str]) -> list[str]:
    """Return the paths of the table's files, for any Parquet reader.

    If no stream wrote the table, such as a materialized view, return all files of its folder.
    """
    table = os.fspath(table)
    listed = listing(table)
    if listed is not None:
        return [entry.path for entry in listed.entries]
    return [info.path for info in _in_folder(*resolve(table))]


def _in_folder(files: fs.FileSystem, root: str) -> list[fs.FileInfo]:
    found = files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    prefix = len(root.rstrip("/")) + 1
    return [
        info
        for info in found
        if info.type == fs.FileType.File
        and info.base_name.endswith(".parquet")
        and not any(part.startswith(("_", ".")) for part in info.path[prefix:].split("/"))
    ]


def table_dataset(table: str | os.PathLike[str]) -> dataset.Dataset:
    """Return a table as an Arrow dataset with the columns of all of its files, null where a file has none."""
    table = os.fspath(table)
    system, _ = resolve(table)
    paths = files(table)
    if not paths:
        raise UsageError(f"{table} holds no rows yet")
    schema = pa.unify_schemas([parquet.read_schema(path, filesystem=system) for path in paths])
    return dataset.dataset(paths, schema=schema, format="parquet", filesystem=system)


def size(table: str) -> TableSize:
    """Return rows and files of a table. A file that Spark replaces meanwhile is not counted."""
    system, _ = resolve(table)
    rows = count = 0
    for path in files(table):
        try:
            rows += parquet.read_metadata(path, filesystem=system).num_rows
        except FileNotFoundError:
            continue
        count += 1
    return TableSize(rows, count)


# --- fewer files ----------------------------------------------------------------------------------------


def compact(table: str, *, target_bytes: int = TARGET_BYTES) -> TableCompaction:
    """Merge small files into files of at most about ``target_bytes``.

    Of a table with the column `DAY`, only files of the same day are merged. No pipeline should run on the
    table meanwhile: no rows would be lost, but the compaction might be undone. The old files stay until
    `clean`. Raises `UsageError` for a table whose lists are not each complete, and for file systems that
    can't replace a file atomically.
    """
    system, root = resolve(table)
    listed = listing(table)
    if listed is None:
        raise UsageError(f"{table} was not written by a stream: it has no {METADATA}")
    if not listed.whole:
        raise UsageError(
            f"{table}: its newest list is not complete in itself. Set "
            "spark.sql.streaming.fileSink.log.compactInterval to 1 in spark-defaults.conf and run the "
            "pipeline once more with new messages"
        )
    if not (isinstance(system, fs.LocalFileSystem) or puts_whole_files(system)):
        raise UsageError(f"{table}: on {system.type_name} a list can't be replaced atomically")
    groups = _groups(system, listed.entries, target_bytes)
    before = sum(int(entry.line["size"]) for entry in listed.entries)
    replaced: dict[str, ListedFile | None] = {}
    for group in groups:
        written = _put_together(system, root, group)
        replaced.update(dict.fromkeys((entry.path for entry in group), None))
        replaced[group[0].path] = written
    kept = [found for entry in listed.entries if (found := replaced.get(entry.path, entry)) is not None]
    if groups:
        _replace_list(system, f"{root}/{METADATA}/{listed.batch}.compact", kept)
    return TableCompaction(
        len(listed.entries), len(kept), before, sum(int(entry.line["size"]) for entry in kept)
    )


def _groups(system: fs.FileSystem, entries: Sequence[ListedFile], target: int) -> list[list[ListedFile]]:
    """Return the groups of small files to merge, in the order in which they were written."""
    open_groups: dict[object, tuple[list[ListedFile], int]] = {}
    closed: list[list[ListedFile]] = []
    empty: list[ListedFile] = []
    for entry in entries:
        length = int(entry.line["size"])
        if length >= target * SMALL:
            continue
        metadata = parquet.read_metadata(entry.path, filesystem=system)
        if not metadata.num_rows:  # Spark sometimes writes one, to store a schema
            empty.append(entry)
            continue
        key = _day(metadata)
        group, total = open_groups.get(key, ([], 0))
        if total + length > target:
            closed.append(group)
            group, total = [], 0
        open_groups[key] = ([*group, entry], total + length)
    groups = [*closed, *(group for group, _ in open_groups.values())]
    if empty:
        groups = [[*groups[0], *empty], *groups[1:]] if groups else [empty]
    return [group for group in groups if len(group) > 1]


def _day(metadata: parquet.FileMetaData) -> object:
    """Return the day of a file's rows if its statistics show a single one; None otherwise."""
    index = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == DAY), None)
    if index is None:
        return None
    found: set[object] = set()
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(index).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        found |= {statistics.min, statistics.max}
    return found.pop() if len(found) == 1 else None


def _put_together(system: fs.FileSystem, root: str, group: Sequence[ListedFile]) -> ListedFile:
    """Write one file with the rows of all, check it and sync it to disk."""
    paths = [entry.path for entry in group]
    schemas = [parquet.read_schema(path, filesystem=system) for path in paths]
    schema = pa.unify_schemas(schemas)
    notes = dict(schemas[-1].metadata or {})
    if schema.names != schemas[-1].names:
        notes.pop(_ROWS_SCHEMA, None)  # Spark's own schema note covers one file's columns only
    schema = schema.with_metadata(notes)
    target = f"{root}/part-compacted-{uuid.uuid4()}.zstd.parquet"
    rows = 0
    with parquet.ParquetWriter(target, schema, filesystem=system, compression="zstd") as writer:
        for path in paths:
            source = dataset.dataset(path, schema=schema, format="parquet", filesystem=system)
            for batch in source.to_batches():
                writer.write_batch(batch)
                rows += batch.num_rows
    wanted = sum(parquet.read_metadata(path, filesystem=system).num_rows for path in paths)
    written = parquet.read_metadata(target, filesystem=system).num_rows
    if not rows == wanted == written:
        raise StoreDamaged(f"{target} has {written} rows of {wanted}: nothing was replaced")
    sync(system, target)
    sync(system, root)
    info = system.get_file_info(target)
    first = group[0].line
    line = {
        **first,
        "path": f"{first['path'].rpartition('/')[0]}/{quote(target.rpartition('/')[2])}",
        "size": info.size,
        "modificationTime": int(time.time() * 1000),
    }
    return ListedFile(target, line)


def _replace_list(system: fs.FileSystem, path: str, entries: Sequence[ListedFile]) -> None:
    text = io.StringIO()
    text.write(_VERSION)
    for entry in entries:
        text.write("\n" + json.dumps(entry.line, separators=(",", ":")))
    # Hadoop rejects a local file whose checksum file does not match; a missing one is allowed.
    _delete_checksum(system, path)
    write_whole(system, path, text.getvalue().encode())


def _delete_checksum(system: fs.FileSystem, path: str) -> None:
    folder, _, name = path.rpartition("/")
    if isinstance(system, fs.LocalFileSystem) and os.path.exists(checksum := f"{folder}/.{name}.crc"):
        os.unlink(checksum)


def clean(table: str, *, keep_seconds: float = KEEP_SECONDS) -> list[str]:
    """Delete unlisted files of a stream's table that are older than ``keep_seconds``; return their paths.

    They are files replaced by compaction and files of failed micro-batches.
    """
    if keep_seconds < 0:
        raise InvalidConfiguration(f"keep_seconds={keep_seconds} is not allowed; allowed: 0 or more")
    system, root = resolve(table)
    # List the folder first, so that files listed in the metadata after that are not among its files.
    present = _in_folder(system, root)
    listed = listing(table)
    if listed is None:
        raise UsageError(f"{table} was not written by a stream: it has no {METADATA}")
    counting = {entry.path for entry in listed.entries}
    limit_ns = (time.time() - keep_seconds) * 1e9
    gone = [info.path for info in present if info.path not in counting and info.mtime_ns <= limit_ns]
    for path in gone:
        system.delete_file(path)
        _delete_checksum(system, path)
    return gone
