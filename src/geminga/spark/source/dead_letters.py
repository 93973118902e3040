"""Messages that can't become rows, kept with their bytes in files below a path.

A task keeps them before it ends, so no message is lost that Spark takes for read. A task may run again, in
parallel or after a restart, and the messages are kept once all the same: a file name holds the query and the
covered range of a partition. A task whose range is covered writes nothing; of a partly covered range it
writes the uncovered part.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa
from pyarrow import fs

from geminga.filesystems import folder_name, resolve, write_whole
from geminga.spark.offsets import WHOLE_ENTRY, Offset, Partition, partition_topic
from geminga.spark.source.ranges import Range

PART_BYTES_MAX = 16 * 1024 * 1024
"""Bytes collected before they are written; the rest of a range is written at its end."""

_US = pa.timestamp("us", tz="UTC")
_OF_MESSAGES: dict[str, tuple[str, pa.DataType]] = {
    "value": ("value", pa.binary()),
    "__key": ("key_bytes", pa.binary()),
    "__messageProperties": ("properties", pa.map_(pa.string(), pa.string())),
    "__topic": ("topic", pa.string()),
    "__partition": ("partition", pa.int32()),
    "__ledgerId": ("ledger_id", pa.int64()),
    "__entryId": ("entry_id", pa.int64()),
    "__batchIndex": ("batch_index", pa.int32()),
    "__messageId": ("message_id", pa.binary()),
    "__publishTime": ("publish_time", _US),
    "__eventTime": ("event_time", _US),
    "__producerName": ("producer_name", pa.string()),
}
"""Columns of the files that are the source's, with the message columns that they are made of."""
MESSAGE_COLUMNS = [*(column for column, _ in _OF_MESSAGES.values()), "schema_version"]
"""Columns read of a message that becomes a dead letter."""
LETTERS = pa.schema(
    [
        *((name, kind) for name, (_, kind) in _OF_MESSAGES.items()),
        ("schemaVersion", pa.int64()),  # null: its producer named none
        ("error", pa.string()),
    ]
)
"""Columns of the files: those of the source, the schema version, and the error."""


class DeadLetters:
    """Dead letters of one task; a context manager that keeps the added messages at its end, unless it fails.

    ``query``: id of the query; the same for all attempts at the same work.
    """

    def __init__(self, location: str, part: Range, query: str) -> None:
        self.part = part
        self.files = _Files(location, query, part.partition)
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._through = part.start
        """Offset up to which everything is kept."""

    def add(self, messages: pa.RecordBatch, errors: Sequence[str]) -> None:
        """Add messages with the columns `MESSAGE_COLUMNS` and one text of ``errors`` for each.

        Raises the errors of the file system when they can't be kept: the task has then failed.
        """
        self._rows.append(_with_errors(messages, errors))
        self._bytes += messages.nbytes
        if self._bytes >= PART_BYTES_MAX:
            self._keep(None)

    def _keep(self, end: Offset | None) -> None:
        """Keep the collected messages; ``end``: they are complete up to this offset."""
        if not self._rows:
            return
        rows = pa.Table.from_batches(self._rows, schema=LETTERS)
        last = _place(rows, rows.num_rows - 1)
        through = last if end is None else max(last, end)
        self.files.keep(rows, self._through, through)
        self._rows, self._bytes, self._through = [], 0, through

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._keep(self.part.end)
        elif kind is GeneratorExit:
            self._keep(None)  # Spark needs no more rows, since it has read all before


_INT64_MAX = (1 << 63) - 1


def _with_errors(messages: pa.RecordBatch, errors: Sequence[str]) -> pa.RecordBatch:
    found = dict(zip(MESSAGE_COLUMNS, messages.columns, strict=True))
    numbers = [int.from_bytes(raw, "big") if raw else -1 for raw in found["schema_version"].to_pylist()]
    versions = [number if 0 <= number <= _INT64_MAX else None for number in numbers]
    columns = [found[column].cast(kind, safe=False) for column, kind in _OF_MESSAGES.values()]
    columns += [pa.array(versions, pa.int64()), pa.array(errors, pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=LETTERS)


def _place(rows: pa.Table, number: int) -> Offset:
    ledger, entry, index = (
        rows.column(name)[number].as_py() for name in ("__ledgerId", "__entryId", "__batchIndex")
    )
    return Offset(ledger, entry, WHOLE_ENTRY if index < 0 else index)


@dataclass(frozen=True, slots=True)
class _Covered:
    """Range of messages whose dead letters a file holds: after ``start``, up to and with ``end``."""

    start: Offset
    end: Offset

    @property
    def text(self) -> str:
        return "_".join(".".join(map(str, place)) for place in (self.start, self.end))

    @staticmethod
    def parse(name: str, prefix: str) -> _Covered | None:
        number = r"(-?\d+)"
        place = rf"{number}\.{number}\.{number}"
        match = re.fullmatch(rf"{re.escape(prefix)}_{place}_{place}\.parquet", name)
        if match is None:
            return None
        numbers = [int(each) for each in match.groups()]
        return _Covered(Offset(*numbers[:3]), Offset(*numbers[3:]))

    def without(self, rows: pa.Table) -> pa.Table:
        """Return the rows outside this range; they are sorted by position."""
        begin, behind = (
            bisect_right(range(rows.num_rows), place, key=lambda number: _place(rows, number))
            for place in (self.start, self.end)
        )
        return pa.concat_tables([rows.slice(0, begin), rows.slice(behind)])


class _Files:
    """Parquet files below ``location/query=ID``; Spark reads the location as one table."""

    def __init__(self, location: str, query: str, partition: Partition) -> None:
        self.files, root = resolve(location)
        self.folder = f"{root.rstrip('/')}/query={folder_name(query)}"
        self.prefix = folder_name(partition_topic(partition))

    def keep(self, rows: pa.Table, start: Offset, end: Offset) -> None:
        wanted = _Covered(start, end)
        for known in self._known():
            if known.start < wanted.end and wanted.start < known.end:
                rows = known.without(rows)
        if rows.num_rows:
            self._write(rows, f"{self.prefix}_{wanted.text}.parquet")

    def _known(self) -> Iterator[_Covered]:
        selector = fs.FileSelector(self.folder, allow_not_found=True, recursive=False)
        for info in self.files.get_file_info(selector):
            known = _Covered.parse(info.base_name, self.prefix)
            if known is not None:
                yield known

    def _write(self, rows: pa.Table, name: str) -> None:
        from pyarrow import parquet

        path, content = f"{self.folder}/{name}", pa.BufferOutputStream()
        parquet.write_table(rows, content)
        try:
            write_whole(self.files, path, content.getvalue())
        except OSError:
            # The file system's renaming does not replace files: another attempt at this task was faster, and
            # its file has the same rows.
            if self.files.get_file_info(path).type == fs.FileType.NotFound:
                raise
