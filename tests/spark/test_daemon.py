import importlib
import sys
import zipfile

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


def test_workers_do_not_collect_preloaded_objects():
    """Workers collect garbage after each task, so preloaded objects are frozen before they are forked."""
    script = (
        "import gc, runpy\n"
        "import pyspark.daemon\n"
        "pyspark.daemon.manager = lambda: print(len(gc.get_objects()), gc.get_freeze_count())\n"
        "runpy.run_module('geminga.spark.daemon', run_name='__main__')\n"
    )
    tracked, frozen = map(int, run_python(script).stdout.split())
    assert frozen > 100_000
    assert tracked < 20_000
