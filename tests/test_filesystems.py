import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from geminga import filesystems
from geminga.errors import InvalidConfiguration
from geminga.filesystems import puts_whole_files, resolve
from geminga.offload.arrow_storage import resolve_soon_failing


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_local_folders_are_resolved_to_paths(form, tmp_path):
    folder = tmp_path / "a b" / "c%d"
    files, path = resolve(form.format(folder))
    assert isinstance(files, fs.LocalFileSystem)
    assert path == str(folder)
    assert not puts_whole_files(files)


def test_a_uri_that_python_made(tmp_path):
    folder = tmp_path / "a b"
    assert resolve(folder.as_uri())[1] == str(folder)


def test_relative_paths_are_this_machines(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert resolve("x/y")[1] == str(tmp_path / "x/y")


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3A"])
def test_schemes_of_s3_resolve_to_its_file_system(scheme):
    files, path = resolve(
        f"{scheme}://bucket/a/b?region=us-east-1&endpoint_override=localhost:9000&scheme=http"
    )
    assert isinstance(files, fs.S3FileSystem)
    assert path == "bucket/a/b"
    assert puts_whole_files(files)


def test_resolve_soon_failing_sets_short_timeouts_and_few_retries():
    location = "s3://key:secret@bucket/a/b?region=eu-west-1&scheme=http&endpoint_override=localhost:9000"
    usual, soon = resolve(location), resolve_soon_failing(location)
    assert soon[1] == usual[1]
    assert puts_whole_files(soon[0])
    differs = {
        name: (before, now)
        for (name, before), now in zip(
            _arguments(usual[0]).items(), _arguments(soon[0]).values(), strict=True
        )
        if before != now
    }
    assert differs == {
        "connect_timeout": (-1, 5), "request_timeout": (-1, 5), "allow_delayed_open": (False, True)
    }  # fmt: skip
    for google in ("gs://anonymous@bucket/a", "gs://anonymous@bucket/a?scheme=http"):
        files, path = resolve_soon_failing(google)
        assert (_arguments(files)["retry_time_limit"].total_seconds(), path) == (30, "bucket/a")
    files, path = resolve_soon_failing(f"{google}&retry_limit_seconds=7")
    assert _arguments(files)["retry_time_limit"].total_seconds() == 7
    assert isinstance(resolve_soon_failing("/x")[0], fs.LocalFileSystem)


def _arguments(files: Any) -> dict[str, Any]:
    """Return the arguments with which a file system is pickled."""
    return files.__reduce__()[1][0]


def test_databricks_mount(monkeypatch, tmp_path):
    """A folder called ``dbfs:`` on the driver alone would lose what the executors stage."""
    with pytest.raises(InvalidConfiguration, match="'dbfs:/x/y': /dbfs is not mounted"):
        resolve("dbfs:/x/y")
    monkeypatch.setattr(filesystems, "_DBFS", str(tmp_path))
    assert resolve("dbfs:/x/y")[1] == f"{tmp_path}/x/y"


def test_hadoop_at_the_cluster_that_is_configured(monkeypatch):
    asked: list[str] = []

    def from_uri(uri: str) -> Any:
        asked.append(uri)
        return fs.LocalFileSystem(), "/x/y"

    monkeypatch.setattr(filesystems.fs, "FileSystem", SimpleNamespace(from_uri=from_uri))
    for location in ("hdfs:/x/y", "hdfs:///x/y", "hdfs://host:9000/x/y"):
        resolve(location)
    assert asked == ["hdfs:///x/y", "hdfs:///x/y", "hdfs://host:9000/x/y"]


def test_an_unknown_scheme_is_refused_with_the_location(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    for location in ("nosuch://x/y", "maprfs:/x"):
        with pytest.raises(InvalidConfiguration, match=rf"'{location}' can't be used: .* pip install fsspec"):
            resolve(location)
        assert not os.path.exists(location.partition("/")[0])
    with pytest.raises(InvalidConfiguration, match="is on another machine"):
        resolve("file://elsewhere/x")


def test_what_is_refused_is_named_without_its_secrets():
    for location in (
        "nosuch://me:canary@host/p?key=canary", "s3://key:canary@bucket/p?nosuch=canary",
        "hdfs://me:canary@host:99999/p", "s3a://key:canary@/p", "gs://key:canary@bucket/p?x=canary",
    ):  # fmt: skip
        with pytest.raises(InvalidConfiguration, match="can't be used: ") as refused:
            resolve(location)
        assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "location", ["gs://", "gcs://", "s3://", "S3A://", "s3:bucket", "gs:", "file://", "", "~/x"]
)
def test_locations_without_bucket_folder_or_slashes_are_refused_by_name(location):
    with pytest.raises(InvalidConfiguration, match=f"location='{location}' is not allowed"):
        resolve(location)


def test_a_folder_may_be_named_like_a_url(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert resolve("./s3:bucket")[1] == str(tmp_path / "s3:bucket")
