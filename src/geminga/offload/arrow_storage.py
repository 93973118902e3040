"""Storage for offloaded ledgers on any file system that Arrow or fsspec support."""

import contextlib
import errno
import re
from typing import Any

import pyarrow as pa
from pyarrow import fs

from geminga.filesystems import resolve
from geminga.locations import without_secrets
from geminga.offload.storage import StorageWriter


class ArrowStorage:
    """File system that Arrow or fsspec support, by its location (`geminga.filesystems.resolve`)."""

    def __init__(self, location: str, *, fails_soon: bool = False) -> None:
        """``fails_soon``: for callers that retry (`resolve_soon_failing`). Raises
        `InvalidConfiguration`."""
        self.location = without_secrets(location)
        self._files, self._root = (resolve_soon_failing if fails_soon else resolve)(location)
        # An in-memory file system exists in this process only, under any fsspec name.
        self.worker_location: str | None = None if "memory" in self._files.type_name else location

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def create(self, path: str) -> StorageWriter:
        full = self._path(path)
        self._files.create_dir(full.rpartition("/")[0], recursive=True)
        return _ArrowWriter(self._files, full)

    def open(self, path: str) -> Any:
        return self._files.open_input_file(self._path(path))

    def read(self, path: str) -> bytes | None:
        try:
            with self._files.open_input_stream(self._path(path)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        writing = self.create(path)
        writing.write(data)
        writing.finish()

    def overwrite(self, path: str, data: bytes) -> None:
        raise OSError(errno.EOPNOTSUPP, "files are replaced as a whole here", path)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._files.get_file_info(self._path(path)).type != fs.FileType.NotFound:
                self._files.delete_file(self._path(path))

    def names(self, folder: str) -> list[str]:
        found = self._files.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        return sorted(each.base_name for each in found if each.type == fs.FileType.File)


class _ArrowWriter:
    def __init__(self, files: fs.FileSystem, path: str) -> None:
        self._stream: pa.NativeFile = files.open_output_stream(path)

    def write(self, data: Any) -> object:
        return self._stream.write(data)

    def finish(self) -> None:
        self._stream.close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._stream.close()


CONNECT_SECONDS = 5.0
SILENT_SECONDS = 5.0
"""Time without data after which a request to an object store has failed."""
ATTEMPTS = 5
GCS_SECONDS = 30
"""Retry limit of Google's client."""


def resolve_soon_failing(location: str) -> tuple[fs.FileSystem, str]:
    """Resolve a location, like `resolve`, to a file system whose requests fail within about half a minute
    without an answer.

    For callers that retry and have a time limit themselves: by default Arrow's S3 client retries a request
    for a minute and a half, Google's for a quarter of an hour, and the interpreter's end waits for both.
    Raises `InvalidConfiguration`.
    """
    if re.match(r"(gs|gcs)://", location, re.IGNORECASE) and "retry_limit_seconds=" not in location:
        location += f"{'&' if '?' in location else '?'}retry_limit_seconds={GCS_SECONDS}"
    files, path = resolve(location)
    kind = getattr(fs, "S3FileSystem", None)
    if kind is None or not isinstance(files, kind):
        return files, path
    # URIs cannot express this; a file system pickles as the arguments of its constructor.
    arguments = {**files.__reduce__()[1][0]}
    for name, seconds in (("connect_timeout", CONNECT_SECONDS), ("request_timeout", SILENT_SECONDS)):
        if arguments[name] < 0:
            arguments[name] = seconds
    if "allow_delayed_open" in arguments:  # small files need one request, and leave no partial upload
        arguments["allow_delayed_open"] = True
    return kind(**arguments, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS)), path
