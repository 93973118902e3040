"""A Spark standalone cluster and an S3 object store on one machine, as separate processes.

For tests that a local session does not allow: tasks in processes without the driver's folders and memory, and
executors that die while the driver lives. The Spark processes are those of the installed PySpark; the object
store is ``moto``'s S3 server::

    with ObjectStore.start(folder) as store, SparkCluster.start(folder) as cluster:
        spark = SparkSession.builder.master(cluster.url).config(map=store.spark_settings()).getOrCreate()
"""

from __future__ import annotations

import importlib.util
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from geminga.errors import OperationNotSupported
from geminga.testing.apache_pulsar import free_ports
from geminga.testing.processes import Process, Stoppable

DAEMON_MEMORY = "256m"
AWS_SDK = "2.35.4"
HADOOP = "3.5.0"
S3A_PACKAGES = ",".join(
    [
        f"org.apache.hadoop:hadoop-aws:{HADOOP}",
        *(
            f"software.amazon.awssdk:{module}:{AWS_SDK}"
            for module in ("s3", "s3-transfer-manager", "sts", "apache-client")
        ),
    ]
)
"""Hadoop's S3 connector in the version of Spark 4.3's Hadoop, with the modules of the SDK that it uses."""
S3A_EXCLUDES = ",".join(
    [
        "software.amazon.awssdk:bundle",
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
    ]
)
"""Excluded: the bundle of the whole SDK, and libraries that Spark includes."""


@dataclass(slots=True)
class SparkCluster(Stoppable):
    """A master and its workers, created by `start`."""

    folder: Path
    master: Process
    port: int
    workers: list[Process] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @staticmethod
    def start(
        folder: Path, *, hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1"), cores: int = 1, memory: str = "1g"
    ) -> SparkCluster:
        """Start all and wait until every worker is registered. ``cores`` and ``memory`` are per worker.

        ``hosts``: an address per worker. With different addresses (127.0.0.2 is local too) Spark regards the
        workers as machines, and runs a speculative task on another worker.
        """
        from pyspark.find_spark_home import _find_spark_home

        (port,) = free_ports(1)
        spark_class = str(Path(_find_spark_home()) / "bin/spark-class")
        environment = {
            "SPARK_HOME": _find_spark_home(), "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY, "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        web = ["--webui-port", "0"]
        place = ["--host", "127.0.0.1", "--port", str(port)]
        master = [spark_class, "org.apache.spark.deploy.master.Master", *place, *web]
        cluster = SparkCluster(folder, Process.start("spark-master", folder, master, **environment), port)
        try:
            cluster.master.wait_for_port(port)
            for number, host in enumerate(hosts):
                name = f"spark-worker-{number}"
                size = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder / name)]
                place = ["--host", host, *web, *size]
                command = [spark_class, "org.apache.spark.deploy.worker.Worker", *place, cluster.url]
                cluster.workers.append(Process.start(name, folder, command, **environment))
            for worker in cluster.workers:
                worker.wait_for_line("Successfully registered with master")
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors (SIGKILL), as a power failure would."""
        self.workers[number].kill()

    def stop(self) -> None:
        for process in (*self.workers, self.master):
            process.kill()


@dataclass(slots=True)
class ObjectStore(Stoppable):
    """An S3 server with data in memory, created by `start`."""

    server: Process
    port: int
    bucket: str = "lake"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @staticmethod
    def start(folder: Path) -> ObjectStore:
        """Start it with an empty bucket. Raises `OperationNotSupported` without ``moto`` and ``flask``."""
        if any(importlib.util.find_spec(name) is None for name in ("moto", "flask", "flask_cors")):
            raise OperationNotSupported("the object store needs: pip install 'moto[s3]' flask flask-cors")
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        store = ObjectStore(Process.start("object-store", folder, command), port)
        try:
            store.server.wait_for_port(port)
            bucket = urllib.request.Request(f"{store.url}/{store.bucket}", method="PUT")
            urllib.request.urlopen(bucket, timeout=30).close()
        except BaseException:
            store.stop()
            raise
        return store

    def environment(self) -> dict[str, str]:
        """Return environment variables for Arrow's S3 file system, in the driver and in Python workers."""
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip

    def spark_settings(self) -> dict[str, str]:
        """Return session settings: Hadoop's connector for the JVMs, the environment for Python workers."""
        return {
            "spark.jars.packages": S3A_PACKAGES,
            "spark.jars.excludes": S3A_EXCLUDES,
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "test",
            "spark.hadoop.fs.s3a.secret.key": "test",
            **{f"spark.executorEnv.{name}": value for name, value in self.environment().items()},
        }

    def stop(self) -> None:
        self.server.kill()
