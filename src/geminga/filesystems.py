"""Locations in Spark's and Hadoop's notation as Arrow file systems, without a JVM.

Arrow's own file systems serve local folders, S3, Google and Azure storage and (with Hadoop's native library)
HDFS. Other schemes use ``fsspec``, if it and the protocol's package are installed.
"""

import hashlib
import os
import re
import uuid
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from geminga.config import refuse
from geminga.errors import InvalidConfiguration
from geminga.locations import url_parts, without_secrets

_S3 = ("s3", "s3a", "s3n")
_KEYED = (*_S3, "gs", "gcs")
_SAME = {"s3a": "s3", "s3n": "s3"}
"""Schemes of Hadoop's connectors that Arrow names differently."""

_DBFS = "/dbfs"
"""Mount point of ``dbfs:/`` on all machines of Databricks."""


def resolve(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location and the path in it.

    A location is a path, or a URI in Spark's notation: ``file:/x``, ``s3a://bucket/x``, ``hdfs:/x``,
    ``abfss://container@account.dfs.core.windows.net/x``, ``gs://bucket/x``, ``dbfs:/x``. S3 settings come
    from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` ...) or the URI
    (``s3a://bucket/x?endpoint_override=host:9000&scheme=http``). Raises `InvalidConfiguration`.
    """
    parts = url_parts(location)
    if parts is None:
        return fs.LocalFileSystem(), os.path.abspath(location)
    scheme, rest = parts
    if scheme == "file":
        return fs.LocalFileSystem(), _local_path(location, rest)
    if scheme == "dbfs":
        return fs.LocalFileSystem(), _mounted(location, rest)
    if not rest.startswith("//"):
        rest = f"//{rest}"  # `hdfs:/x` is at the cluster that the configuration names
    uri = f"{_SAME.get(scheme, scheme)}:{rest}"
    try:
        found, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        return _by_fsspec(location, uri, error)
    if scheme in _KEYED and not path:
        refuse("location", without_secrets(location), f"{scheme}://BUCKET/path")
    return found, path


def hadoop_location(location: str) -> str:
    """Return a location in the notation of Spark's own (Hadoop's) file systems.

    URI options are Arrow's and may include secrets, and Spark shows its locations in plans, so they are
    removed: the session sets ``spark.hadoop.fs.*`` instead.
    """
    parts = url_parts(location)
    if parts is None:
        return f"file:{os.path.abspath(location)}"
    scheme, rest = parts
    if scheme == "file":
        return f"file:{os.path.abspath(_local_path(location, rest))}"
    if not rest.startswith("//"):
        return f"{scheme}:{rest}"
    host, slash, path = rest.partition("?")[0].removeprefix("//").partition("/")
    user, at, host = host.rpartition("@")
    # The user part is the key for S3, and the container for Azure, possibly with a password.
    user = "" if scheme in _KEYED else user.partition(":")[0]
    return f"{'s3a' if scheme in _S3 else scheme}://{user}{at if user else ''}{host}{slash}{path}"


def puts_whole_files(files: fs.FileSystem) -> bool:
    """Return whether files are written whole, as in object stores: a file exists when it is complete, and
    renaming copies it."""
    kinds = [getattr(fs, name, None) for name in ("S3FileSystem", "GcsFileSystem", "AzureFileSystem")]
    return isinstance(files, tuple(kind for kind in kinds if kind is not None))


def write_whole(files: fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file of which readers see all or nothing, even after a crash; create its folder. Raises
    `OSError`, also where renaming does not replace a file that exists."""
    folder, _, name = path.rpartition("/")
    written = path if puts_whole_files(files) else f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
    if written != path:
        files.create_dir(folder, recursive=True)
    with files.open_output_stream(written) as stream:
        stream.write(content)
    if written == path:
        return
    sync(files, written)
    try:
        files.move(written, path)
    except OSError:
        files.delete_file(written)
        raise
    sync(files, folder)


def sync(files: fs.FileSystem, path: str) -> None:
    """Sync a file or a folder to disk, on a local file system."""
    if isinstance(files, fs.LocalFileSystem):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _local_path(location: str, rest: str) -> str:
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(f"file:{rest}")
    if parts.netloc not in ("", "localhost"):
        raise InvalidConfiguration(f"location {location!r} is on another machine; allowed: file:///path")
    # Python writes `%20` into a URI, which Hadoop does not decode: prefer the path that exists.
    plain = parts.path
    if not plain:
        refuse("location", location, "file:///path")
    return plain if os.path.exists(plain) else unquote(plain)


def _mounted(location: str, rest: str) -> str:
    if not Path(_DBFS).is_dir():
        raise InvalidConfiguration(
            f"location {location!r}: {_DBFS} is not mounted on this machine, as it is on those of Databricks"
        )
    return f"{_DBFS}/{rest.lstrip('/')}"


def _by_fsspec(location: str, uri: str, error: Exception) -> tuple[fs.FileSystem, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InvalidConfiguration(
            f"location {without_secrets(location)!r} can't be used: {_reason(error, location, uri)}. "
            "Other file systems need pip install fsspec"
        ) from None
    try:
        found, path = url_to_fs(uri)
    except (ImportError, ValueError, OSError) as other:
        raise InvalidConfiguration(
            f"location {without_secrets(location)!r} can't be used: {_reason(error, location, uri)}; fsspec: "
            f"{_reason(other, location, uri)}"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path


def _reason(error: Exception, *locations: str) -> str:
    """Return the text of an error, which may quote a location, without the secrets in that."""
    found = str(error)
    for each in locations:
        found = found.replace(each, without_secrets(each))
    return found


def folder_name(key: str) -> str:
    """Return a name that every file system accepts, different for different keys."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", key)
    return (
        readable if readable == key else f"{readable[-40:]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    )
