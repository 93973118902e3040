"""Sessions that know ``format("pulsar")``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from geminga.spark.java import check_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_CONFIGURATION = {
    # Workers are forked from a process that has loaded what they need.
    "spark.python.daemon.module": "geminga.spark.daemon",
    # Workers run the interpreter that has this package, not the first python3 of the PATH.
    "spark.pyspark.python": sys.executable,
    # Half the time of a micro-batch goes into TCP between the JVM and its Python workers.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


def register(spark: SparkSession) -> SparkSession:
    """Make ``format("pulsar")`` known to ``spark``; returns it."""
    from geminga.spark.datasource import PulsarDataSource

    _use_this_interpreter(spark)
    spark.dataSource.register(PulsarDataSource)
    return spark


def _use_this_interpreter(spark: SparkSession) -> None:
    """Let the workers of a local session run this interpreter, unless somebody chose one.

    Spark's default is the first python3 of the PATH; in an environment that is not activated that one
    knows neither this package nor Arrow.
    """
    try:
        context = spark.sparkContext
    except Exception:  # a Spark Connect session has none, and its workers run elsewhere
        return
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if str(context.master).startswith("local") and not chosen:
        context.pythonExec = sys.executable


def session(
    master: str | None = None, app_name: str = "geminga", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made if there is none, with ``format("pulsar")`` registered.

    ``master`` defaults to Spark's configuration, else to ``local[*]``. ``config`` overrides this module's
    settings: workers run this interpreter, talk to the JVM through Unix domain sockets, time zone UTC.
    Raises `InvalidConfiguration` when Java is missing.
    """
    from pyspark.sql import SparkSession

    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**_CONFIGURATION, **(config or {})}.items():
        builder = builder.config(name, value)
    return register(_made(builder))


def _made(builder: SparkSession.Builder) -> SparkSession:
    """``builder.getOrCreate()`` with Ctrl-C put off until the JVM is up; a second one ends the wait.

    Interrupted while the JVM starts, PySpark forgets it, and it stays behind without a parent.
    """
    if threading.current_thread() is not threading.main_thread():
        return builder.getOrCreate()
    interrupted = False

    def put_off(_number: int, _frame: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    before = signal.signal(signal.SIGINT, put_off)
    try:
        spark = builder.getOrCreate()
    finally:
        if signal.getsignal(signal.SIGINT) is put_off:  # PySpark sets a handler of its own
            signal.signal(signal.SIGINT, before)
    if interrupted:
        spark.stop()
        raise KeyboardInterrupt
    return spark
