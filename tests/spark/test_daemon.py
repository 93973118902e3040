import importlib
import os
import socket
import struct
import subprocess
import sys
import zipfile
from typing import Protocol

from interpreter import run_python

from geminga.spark.daemon import leave_archives


def test_a_preloaded_process_can_be_forked():
    """Workers are forked right after: no event loop, no client, no pandas, and kernels that work."""
    script = (
        "import os, sys, threading\n"
        "from geminga.spark.daemon import preload\n"
        "preload()\n"
        "assert threading.active_count() == 1\n"
        "assert 'pandas' not in sys.modules\n"
        "assert 'geminga.wire.columnar_kernels' in sys.modules\n"
        "child = os.fork()\n"
        "preload()\n"
        "if not child: os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )
    run_python(script)


def test_workers_do_not_read_the_file_list_of_sparks_archive(tmp_path, monkeypatch):
    """At its first task a worker calls `importlib.invalidate_caches`, which would read the archive's file
    list once for each of its folders in the importer cache. Later imports from the archive still work."""
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        for name in ("geminga_one/__init__.py", "geminga_one/first.py", "geminga_one/second.py"):
            archive.writestr(name, "")
    monkeypatch.syspath_prepend(str(tmp_path / "archive.zip"))
    importlib.import_module("geminga_one.first")
    folders = [path for path in sys.path_importer_cache if "archive.zip" in path]
    assert len(folders) == 2
    leave_archives()
    assert not sys.path_importer_cache.keys() & set(folders)
    importlib.import_module("geminga_one.second")


def test_a_preload_that_fails_stops_no_worker():
    script = (
        "import sys\n"
        "sys.modules['geminga.client.api.entry_reader'] = None\n"
        "from geminga.spark.daemon import preload_if_possible\n"
        "preload_if_possible()\n"
    )
    done = run_python(script)
    assert "workers start without preloading" in done.stderr


def test_workers_do_not_collect_preloaded_objects(tmp_path, monkeypatch):
    """Workers collect garbage after each task, so preloaded objects are frozen."""
    (tmp_path / "pyspark_asked.py").write_text(
        "import gc, struct, sys\n"
        "def main(infile, outfile):\n"
        "    if not infile.read(1):\n"
        "        sys.exit(1)\n"  # as Spark's workers: one that returns is called again
        "    outfile.write(struct.pack('!ii', len(gc.get_objects()), gc.get_freeze_count()))\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "secret")
    monkeypatch.delenv("SPARK_PREFER_IPV6", raising=False)
    monkeypatch.delenv("PYTHON_UNIX_DOMAIN_ENABLED", raising=False)
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    command = [sys.executable, "-m", "geminga.spark.daemon", "pyspark_asked"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        try:
            place = ("127.0.0.1", _number(daemon.stdout))
            with socket.create_connection(place, 60) as connection, connection.makefile("rwb") as worker:
                _number(worker)  # its process
                worker.write(struct.pack("!i", len(b"secret")) + b"secret")
                worker.flush()
                assert _read(worker, _number(worker)) == b"ok"
                for _ in range(2):
                    worker.write(b"?")
                    worker.flush()
                    tracked, frozen = _number(worker), _number(worker)
                    assert frozen > 100_000
                    assert tracked < 20_000
        finally:
            daemon.terminate()


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _number(stream: _Stream) -> int:
    (number,) = struct.unpack("!i", _read(stream, 4))
    return int(number)


def _read(stream: _Stream, size: int) -> bytes:
    found = stream.read(size)
    assert len(found) == size, "the daemon or its worker ended"
    return found
