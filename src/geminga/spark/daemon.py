"""The process that Spark forks its Python workers from, with what every task needs loaded already.

A worker that starts empty spends about a second on imports and on loading compiled kernels before its
first row. `geminga.spark.session` sets this module as ``spark.python.daemon.module``; sessions that were
made otherwise work without it.
"""

import contextlib
import gc
import importlib
import sys
import zipimport

SPARKS_OWN = (
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
)
"""Modules that Spark's workers run, by release; a missing name is loaded by the workers themselves."""


def preload() -> None:
    """Import what tasks import, and load the compiled kernels by using them once.

    No thread of ours starts here, and those of NumPy and Arrow are theirs to restart after a fork.
    """
    for name in SPARKS_OWN:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

    import pyarrow.json  # noqa: F401

    import geminga.client.api.entry_reader
    import geminga.client.api.sync
    import geminga.client.publish.columnar_producer
    import geminga.spark.datasource
    import geminga.spark.payloads.held_json
    import geminga.spark.payloads.rows
    import geminga.spark.sink.writing  # noqa: F401
    from geminga.wire import compiled

    compiled.load()


def leave_archives() -> None:
    """Forget the archives' import caches; the next import from an archive reads them again.

    Spark runs from an archive, and each of its folders that was searched keeps the list of all files. A
    worker rereads each of these lists at its first task (`importlib.invalidate_caches`), which costs more
    than the rest of its start.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def preload_if_possible() -> None:
    """Call `preload`; print a failure and continue: only tasks that need the failing module fail."""
    try:
        preload()
    except Exception as error:
        print(f"geminga.spark.daemon: workers start without preloading ({error!r})", file=sys.stderr)


if __name__ == "__main__":
    from pyspark.daemon import manager

    preload_if_possible()
    leave_archives()
    # A worker collects garbage after every task or plan. The objects loaded here are not garbage; scanning
    # them takes 60 ms each time and delays the worker's next task.
    gc.freeze()
    manager()
