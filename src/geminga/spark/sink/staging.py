"""Staging folder of the exactly-once sink, for the rows that a micro-batch is about to publish.

::

    sink.json          the sink's name: the name of its producers
    staged/<id>.arrow  the encoded batches of one task attempt
    epochs/<n>.json    the `Epoch` n: written once, before anything is published
    epochs/<n>.done    micro-batch n is published

The folder belongs to one query and one target: its name, below the location in the options, is made from
both. The location may be on any file system that `geminga.filesystems` supports, as long as the driver and
all executors access the same one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import fs

from geminga.errors import CorruptPayload, InvalidConfiguration, StoreDamaged
from geminga.filesystems import folder_name, puts_whole_files, resolve, sync, write_whole
from geminga.wire.checksum import crc32c

STAGED_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("uncompressed_size", pa.int64(), nullable=False),
        pa.field("compression", pa.int32(), nullable=False),
        pa.field("partition_key", pa.string()),
        pa.field("partition_key_b64", pa.bool_(), nullable=False),
        pa.field("ordering_key", pa.binary()),
        pa.field("deliver_at_ms", pa.int64(), nullable=False),
        pa.field("schema_version", pa.binary()),
        pa.field("sealed", pa.binary()),
        pa.field("checksum", pa.uint32(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""Schema of a staged batch: the fields of `geminga.client.publish.columnar_producer.ReadyBatch` except the
sequence ids. ``checksum``: CRC32C of the body. ``sealed``: metadata fields of an encrypted body, null for a
plain one. A batch names the schema version it was encoded with: a restarted stream may have another one when
it publishes the batch."""

ABANDONED_SECONDS = 7 * 24 * 3600.0
"""Age at which the folder of a batch query that was killed is deleted: longer than any batch query takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Content of a micro-batch: the staged ``files``, with their number of ``rows``.

    ``plan`` identifies the offsets between which it was read, as in Spark's checkpoint. None of either:
    unknown. ``since``: by partition's full name an offset before which it has no rows, noted at
    ``decided_ms``, milliseconds since 1970.
    """

    files: tuple[str, ...]
    rows: int | None = None
    plan: str | None = None
    since: dict[str, str] = field(default_factory=dict, compare=False)
    decided_ms: int | None = field(default=None, compare=False)

    def is_same(self, other: Epoch) -> bool:
        """Return whether both are the same micro-batch, not two with the same number.

        If the offsets are known they decide: the rows may differ, since a query need not return the same rows
        twice.
        """
        if self.plan is not None and other.plan is not None:
            return self.plan == other.plan
        return self.rows is None or other.rows is None or self.rows == other.rows


class Staging:
    """The staging folder of one sink. Every write is atomic.

    ``keys``: identify the owner of this folder below ``location``.
    """

    def __init__(self, location: str, *keys: str) -> None:
        self.files, root = resolve(location)
        self.root = "/".join((root.rstrip("/"), *map(folder_name, keys)))
        self.puts_whole_files = puts_whole_files(self.files)

    def _path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    # --- small files --------------------------------------------------------------------------

    def _read(self, path: str) -> bytes | None:
        try:
            with self.files.open_input_stream(path) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    def _json(self, *parts: str) -> dict[str, Any] | None:
        path = self._path(*parts)
        content = self._read(path)
        return None if content is None else _parsed(path, content)

    # --- the sink and its micro-batches -----------------------------------------------------------

    def sink_name(self, wanted: str | None, default: str) -> str:
        """Return the name of this sink: the stored one, or the one to store (`keep_name`). Raises
        `InvalidConfiguration` when another name is stored."""
        known = self._json("sink.json")
        if known is None:
            return wanted or default
        if wanted is not None and known["name"] != wanted:
            raise InvalidConfiguration(
                f"option sinkName={wanted!r}: this checkpoint's sink is {known['name']!r}, "
                "and must keep its name"
            )
        return str(known["name"])

    def keep_name(self, name: str) -> None:
        """Store the sink's name."""
        if self._json("sink.json") is None:
            write_whole(self.files, self._path("sink.json"), json.dumps({"name": name}).encode())

    def epoch(self, number: int) -> Epoch | None:
        """Return the decision for a micro-batch; None before that."""
        known = self._json("epochs", f"{number}.json")
        if known is None:
            return None
        return Epoch(
            files=tuple(map(str, known["files"])),
            rows=known.get("rows"),
            plan=known.get("plan"),
            since=known.get("since", {}),
            decided_ms=known.get("decided_ms"),
        )

    def decide(self, number: int, epoch: Epoch) -> None:
        """Fix the content of micro-batch ``number``; from now on every attempt publishes this."""
        write_whole(self.files, self._path("epochs", f"{number}.json"), json.dumps(asdict(epoch)).encode())

    def revoke(self, number: int) -> None:
        """Revoke the decision for micro-batch ``number``: the rows published under it are another query's."""
        self._delete(self._path("epochs", f"{number}.json"))

    def is_done(self, number: int) -> bool:
        return self._read(self._path("epochs", f"{number}.done")) is not None

    def places(self, number: int) -> dict[str, str]:
        """Return the offsets given to `finish` for micro-batch ``number``; empty if there were none."""
        path = self._path("epochs", f"{number}.done")
        content = self._read(path)
        return _parsed(path, content) if content else {}

    def finish(self, number: int, places: Mapping[str, str] | None = None) -> None:
        """Mark micro-batch ``number`` as published; delete its files, and those of unused attempts.

        ``places``: by partition's full name, offsets up to which all rows published so far are.
        """
        content = json.dumps(places).encode() if places else b""
        write_whole(self.files, self._path("epochs", f"{number}.done"), content)
        for info in self._list("staged"):
            self.discard([info.base_name])
        for info in self._list("epochs"):
            name = info.base_name.partition(".")[0]
            if name.isdigit() and int(name) < number - 1:
                self._delete(info.path)

    def _list(self, folder: str) -> list[Any]:
        found: list[Any] = self.files.get_file_info(
            fs.FileSelector(self._path(folder), allow_not_found=True, recursive=False)
        )
        return found

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files.delete_file(path)

    # --- staged batches -----------------------------------------------------------------------------

    def stage(self, batches: Iterator[pa.RecordBatch]) -> str:
        """Write the batches of one task attempt; return the file's name."""
        name = f"{uuid.uuid4().hex}.arrow"
        path = self._path("staged", name)
        if not self.puts_whole_files:
            self.files.create_dir(self._path("staged"), recursive=True)
        with (
            self.files.open_output_stream(path) as stream,
            pa.ipc.new_stream(stream, STAGED_SCHEMA) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
        sync(self.files, path)
        sync(self.files, path.rpartition("/")[0])
        return name

    def staged(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the batches of a staged file, checked. Raises `StoreDamaged` naming the file."""
        path = self._path("staged", name)
        try:
            with self.files.open_input_stream(path) as stream, pa.ipc.open_stream(stream) as reader:
                for batch in reader:
                    yield from _checked(batch)
        except FileNotFoundError:
            raise StoreDamaged(
                f"{path} is missing: its micro-batch can't be published. Was it deleted, or "
                "does the driver not see the folder that the executors write to (option stagingLocation)?"
            ) from None
        except (pa.ArrowInvalid, OSError, CorruptPayload) as error:
            raise StoreDamaged(f"{path} of the exactly-once sink is damaged: {error}") from error

    def discard(self, names: Sequence[str]) -> None:
        for name in names:
            self._delete(self._path("staged", name))

    def remove(self) -> None:
        """Delete the folder with all of its files."""
        with contextlib.suppress(FileNotFoundError):
            self.files.delete_dir(self.root)


def job_folder(location: str) -> str:
    """Return a new folder for a batch query below ``location``."""
    return f"{location}/job-{uuid.uuid4().hex}"


def remove_abandoned_jobs(location: str) -> None:
    """Delete the folders of batch queries in which nothing was written for `ABANDONED_SECONDS`."""
    files, root = resolve(location)
    for folder in files.get_file_info(fs.FileSelector(root, allow_not_found=True)):
        if folder.type == fs.FileType.Directory and re.fullmatch(r"job-[0-9a-f]{32}", folder.base_name):
            inside = files.get_file_info(fs.FileSelector(folder.path, allow_not_found=True, recursive=True))
            times = [info.mtime_ns for info in inside if info.mtime_ns]  # not every file system has times
            if times and max(times) < (time.time() - ABANDONED_SECONDS) * 1e9:
                files.delete_dir(folder.path)


def planned(checkpoint: str | None, number: int) -> str | None:
    """Return a text that identifies the offsets of micro-batch ``number`` in Spark's checkpoint.

    None if unknown: without a checkpoint, or with one that Arrow can't read.
    """
    if checkpoint is None:
        return None
    try:
        files, root = resolve(checkpoint)
        logs = [_offsets(files, f"{root.rstrip('/')}/offsets/{each}") for each in (number - 1, number)]
    except (InvalidConfiguration, OSError):
        return None
    if logs[1] is None:
        return None
    return hashlib.sha256(repr(logs).encode()).hexdigest()


def _parsed(path: str, content: bytes) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise StoreDamaged(f"{path} of the exactly-once sink is damaged: {error}") from None
    return value


def _offsets(files: fs.FileSystem, path: str) -> list[str] | None:
    """Return a file of Spark's offset log without its time: version, metadata, lines of sources."""
    try:
        with files.open_input_stream(path) as stream:
            lines: list[str] = stream.read().decode().splitlines()
    except FileNotFoundError:
        return None
    return lines[2:] if lines[:1] == ["v1"] else lines


def _checked(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    bodies = batch.column("body")
    for number, row in enumerate(batch.drop_columns(["body"]).to_pylist()):
        body = bodies[number].as_buffer()
        if crc32c(body) != row["checksum"]:
            raise CorruptPayload(f"batch {number} fails its checksum")
        yield {**row, "body": memoryview(body).cast("B")}
