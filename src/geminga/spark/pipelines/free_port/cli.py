"""Spark's program ``spark-pipelines``, whose client connects to its own Spark at any port.

Spark's program uses the port 15002 alone, so that only one could run on a machine at a time. This file has a
folder of its own, because Python puts a script's folder before all others on the search path.
"""

import runpy

from pyspark import SparkContext
from pyspark.sql.connect.client.core import DefaultChannelBuilder


def local_port() -> int:
    """Return the port of the Spark that this process has started; 15002 without one."""
    jvm = SparkContext._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$", None)
    return 15002 if service is None else int(getattr(service, "MODULE$").localPort())


if __name__ == "__main__":
    DefaultChannelBuilder.default_port = staticmethod(local_port)
    runpy.run_module("pyspark.pipelines.cli", run_name="__main__", alter_sys=True)
