"""Spark sessions with ``format("pulsar")``."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geminga.spark.java import check_java

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("geminga.spark")

_NO_WORKER = re.compile(r"Python worker (failed )?to connect back|Python (daemon )?failed to launch worker")
"""Errors of Spark when a Python worker does not start in time, on a loaded machine."""

_LOCAL_CONFIGURATION = {
    # Workers are forked from a process that has loaded the modules they need.
    "spark.python.daemon.module": "geminga.spark.daemon",
    # Workers run the interpreter that has this package, not the first python3 of the PATH.
    "spark.pyspark.python": sys.executable,
    # TCP between the JVM and its Python workers takes half the time of a micro-batch.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # By default, a snapshot's job that lists many files has a task for each: 8 ms instead of 0.1.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of a local session created here. Workers on other machines are configured by their owners."""


def register(spark: SparkSession) -> SparkSession:
    """Register ``format("pulsar")`` in ``spark``; return it.

    Makes ``spark`` the calling thread's active session too: Spark looks for the format of a write there, and
    a new thread has no active session.
    """
    from pyspark.errors import AnalysisException

    from geminga.spark.datasource import PulsarDataSource

    _use_this_interpreter(spark)
    try:
        spark.dataSource.register(PulsarDataSource)
    except AnalysisException as error:
        # PySpark 4.0 refuses what it has found by itself.
        if error.getErrorClass() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    spark.createDataFrame([], "a INT")  # activates the session
    return spark


def _use_this_interpreter(spark: SparkSession) -> None:
    """Let the workers of a local session run this interpreter, unless another one is configured.

    Spark's default is the first python3 of the PATH; in an environment that is not activated it has neither
    this package nor Arrow.
    """
    try:
        context = spark.sparkContext
    except Exception:  # a Spark Connect session has none; its workers are remote
        return
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if str(context.master).startswith("local") and not chosen:
        context.pythonExec = sys.executable


def session(
    master: str | None = None, app_name: str = "geminga", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return this process's session, created if missing, with ``format("pulsar")`` registered.

    ``master`` defaults to Spark's configuration, else to ``local[*]``; ``sc://host:port`` is a Spark Connect
    server. A local session created here is tuned: its workers run this interpreter and start with all modules
    loaded, use Unix domain sockets to the JVM, and the time zone is UTC. Any other session gets ``config``
    and nothing else; so does one whose master Spark's own configuration names (``spark-submit``, ``MASTER``,
    ``spark-defaults.conf``) or may name (``spark-env.sh``). Raises `InvalidConfiguration` when Java is
    missing.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    given = dict(config or {})
    if master is not None and master.startswith("sc://"):
        return _configured(SparkSession.builder.remote(master), app_name, given).getOrCreate()
    if is_remote():  # SPARK_REMOTE, or a server connected to before
        return _connected(app_name, given)
    if SparkContext._active_spark_context is not None:
        return register(_configured(SparkSession.builder, None, given).getOrCreate())
    check_java()
    builder = SparkSession.builder
    if master is not None:
        builder = builder.master(master)
    if _is_local(master or given.get("spark.master")):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        given = {**_LOCAL_CONFIGURATION, **given}
    return register(_configured(builder, app_name, given).getOrCreate())


def _configured(
    builder: SparkSession.Builder, app_name: str | None, config: Mapping[str, str]
) -> SparkSession.Builder:
    if app_name is not None:
        builder = builder.appName(app_name)
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder


def _connected(app_name: str, config: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    active: Any = ConnectSession.getActiveSession()
    if active is None:
        return _configured(SparkSession.builder, app_name, config).getOrCreate()
    for name, value in config.items():
        active.conf.set(name, value)
    return active  # type: ignore[no-any-return]


CONFIGURED = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "MASTER")
"""Environment variables with which ``spark-submit`` and others may name a master."""


def _is_local(master: str | None) -> bool:
    """Return whether Spark runs in this process's JVM: the configured master is local or not set."""
    import pyspark

    if master is None:
        if any(name in os.environ for name in CONFIGURED):
            return False
        home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
        folder = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"))
        if (folder / "spark-env.sh").exists():
            return False  # a program, which may set MASTER
        settings = folder / "spark-defaults.conf"
        text = settings.read_text("utf-8", "replace") if settings.is_file() else ""
        named = re.findall(r"^\s*spark\.master[\s=:]+(\S+)", text, re.MULTILINE)
        master = named[-1] if named else "local"
    return master.startswith("local")


def run_query(start: Callable[[], StreamingQuery], restarts: int = 3) -> StreamingQuery:
    """Return the streaming query that ``start`` starts, after its end.

    Spark ends a query if a Python process does not load within ten seconds, as on a busy machine. Such a
    query is started again, and continues at its checkpoint: up to ``restarts`` times without a micro-batch in
    between. One without the option ``checkpointLocation`` is not. Raises the query's
    `StreamingQueryException` then, and for all other errors::

        geminga.spark.run_query(lambda: rows.writeStream.option("checkpointLocation", "c").start("lake"))
    """
    from pyspark.errors import StreamingQueryException

    query, failed = start(), 0
    while True:
        try:
            query.awaitTermination()
            return query
        except StreamingQueryException as error:
            failed = 0 if query.lastProgress else failed + 1
            if failed > restarts or not _NO_WORKER.search(str(error)):
                raise
            logger.warning("a Python process of Spark did not start in time: the query is started again")
            ended, query = query, start()
            if query.id != ended.id:  # of its checkpoint
                query.stop()
                error.add_note("run_query starts only queries with the option checkpointLocation again")
                raise
