"""Storage for offloaded ledgers on any file system that Arrow or fsspec support."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import pyarrow as pa
from pyarrow import fs

from geminga.filesystems import resolve, resolve_soon_failing
from geminga.locations import without_secrets
from geminga.offload.storage import StorageWriter


class ArrowStorage:
    """File system that Arrow or fsspec support, by its location (`geminga.filesystems.resolve`)."""

    def __init__(self, location: str, *, fails_soon: bool = False) -> None:
        """``fails_soon``: for callers that retry (`geminga.filesystems.resolve_soon_failing`). Raises
        `InvalidConfiguration`."""
        self.location = without_secrets(location)
        self._files, self._root = (resolve_soon_failing if fails_soon else resolve)(location)
        # An in-memory file system exists in this process only, under any fsspec name.
        self.worker_location: str | None = None if "memory" in self._files.type_name else location

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def create(self, path: str) -> StorageWriter:
        return _ArrowWriter(self._made(path), self._path(path))

    def _made(self, path: str) -> fs.FileSystem:
        self._files.create_dir(self._path(path).rpartition("/")[0], recursive=True)
        return self._files

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
