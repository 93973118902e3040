"""Spark's program ``spark-pipelines``, with its own Spark at any port: alone it takes the port 15002.

On Linux it ends Spark's Java processes when the process that runs the pipeline was killed.

Python puts a script's folder before all others on the search path: hence a folder of its own.
"""

import os
import runpy
import select
import signal
import sys
import threading
from contextlib import suppress


def _end_with(process_id: int) -> None:
    """Wait until a process has ended, then end all processes of this session. Java first: it does not have
    the lock of the project, which this process holds until its end."""
    with suppress(ProcessLookupError):  # it has ended already
        select.select([os.pidfd_open(process_id)], [], [])
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    gateway = getattr(context, "_gateway", None)
    if gateway is not None:
        gateway.proc.terminate()
        gateway.proc.wait()
    os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    run_by = os.environ.pop("GEMINGA_PIPELINE_PROCESS", "")
    if run_by and hasattr(os, "pidfd_open"):
        threading.Thread(target=_end_with, args=(int(run_by),), daemon=True).start()
    os.environ["SPARK_TESTING"] = "1"  # PySpark's own switch for it, in this process alone
    runpy.run_module("pyspark.pipelines.cli", run_name="__main__", alter_sys=True)
