"""An exactly-once stream where nothing is shared but the network, and a worker that dies on the way.

    python tools/past_one_machine.py                       # Geminga's broker as a process of its own
    python tools/past_one_machine.py --apache-pulsar HOME  # Apache Pulsar: two brokers, a bookie, ZooKeeper

Starts a broker, an object store (``moto``), a Spark standalone cluster with two workers, and a driver whose
checkpoint and staging are in the object store; kills a worker with its executor half-way; compares what was
written with what was published, as multisets. Exits 1 when they differ. See docs/past-one-machine.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support
sys.path.insert(0, str(Path(__file__).parent))
from apache_cluster import ApacheCluster

import geminga
from geminga.testing.apache_pulsar import free_ports
from geminga.testing.processes import Process
from tests.support.spark_cluster import ObjectStore, SparkCluster

SOURCE = "persistent://public/default/past-one-machine"
TARGET = "persistent://public/default/past-one-machine-out"
PARTITIONS = 4
BATCHES = 6
READ_SECONDS_MAX = 30

APPLICATION = """
import json, sys
from pyspark.sql import SparkSession
job = json.loads(sys.argv[1])
builder = SparkSession.builder.master(job["master"]).appName("past-one-machine")
for name, value in job["settings"].items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = (
    spark.readStream.format("pulsar").option("service.url", job["url"]).option("topic", job["source"])
    .option("startingOffsets", "earliest").option("columns", "value,__key")
    .option("maxRowsPerTrigger", job["rows_per_batch"]).load()
)
query = (
    rows.repartition(3).writeStream.format("pulsar").option("service.url", job["url"])
    .option("topic", job["target"]).option("exactlyOnce", "true")
    .option("checkpointLocation", job["checkpoint"]).trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
"""


@contextmanager
def geminga_broker(folder: Path) -> Iterator[tuple[str, str]]:
    """Our broker as a process; yields its service URL and its admin URL."""
    port, web_port = free_ports(2)
    command = [
        sys.executable, "-m", "geminga.cli.main", "standalone", "--data-dir", str(folder / "store"),
        "--port", str(port), "--web-port", str(web_port),
    ]  # fmt: skip
    broker = Process.start("broker", folder, command)
    try:
        broker.wait_for_port(web_port)
        yield f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{web_port}"
    finally:
        broker.kill()


@contextmanager
def apache_brokers(home: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Two brokers of Apache Pulsar, likewise."""
    with ApacheCluster.start(home, folder / "apache") as cluster:
        yield cluster.service_url, cluster.admin_url()


def run(folder: Path, *, rows: int, apache_pulsar: Path | None = None) -> dict[str, object]:
    """Everything; returns what was found. Raises `TimeoutError` when a process does not come up."""
    started = time.monotonic()
    with ExitStack() as held:
        broker = apache_brokers(apache_pulsar, folder) if apache_pulsar else geminga_broker(folder)
        url, admin_url = held.enter_context(broker)
        store = held.enter_context(ObjectStore.start(folder))
        cluster = held.enter_context(SparkCluster.start(folder))
        client = held.enter_context(geminga.Client(url))
        admin = held.enter_context(geminga.Admin(admin_url))
        admin.namespaces.deduplication.set("public/default", True)
        for topic in (SOURCE, TARGET):
            admin.topics.create(topic, partitions=PARTITIONS)
        values = [b"%d" % number for number in range(rows)]
        with client.create_producer(SOURCE, batching_enabled=True, batching_max_messages=100) as producer:
            keys = [f"k{number % 50}" for number in range(rows)]
            producer.send_table(pa.table({"value": pa.array(values, pa.binary()), "key": keys}))
        job = {
            "master": cluster.url, "url": url, "source": SOURCE, "target": TARGET,
            "checkpoint": f"s3a://{store.bucket}/checkpoints/stream", "rows_per_batch": rows // BATCHES,
            "settings": {
                **store.spark_settings(), "spark.ui.enabled": "false", "spark.driver.memory": "700m",
                "spark.executor.memory": "700m", "spark.driver.host": "127.0.0.1",
            },
        }  # fmt: skip
        driver = Process.start(
            "driver", folder, [sys.executable, "-c", APPLICATION, json.dumps(job)],
            **store.environment(), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1",
        )  # fmt: skip
        held.callback(driver.kill)
        at_kill = 0
        with client.create_reader(TARGET, geminga.MessageId.earliest) as reader:
            found: Counter[bytes] = Counter()
            while driver.process.poll() is None or reader.has_message_available():
                while reader.has_message_available():
                    found[reader.read_next(READ_SECONDS_MAX * 1000).value()] += 1
                if not at_kill and found:
                    at_kill = found.total()
                    cluster.kill_worker(0)
                time.sleep(0.05)
        if driver.process.returncode:
            raise RuntimeError(f"the driver failed: {driver.log.read_text(errors='replace')[-3000:]}")
    return {
        "published": rows,
        "written": found.total(),
        "written_at_kill": at_kill,
        "is_equal": found == Counter(values),
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--apache-pulsar", type=Path, metavar="HOME")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="past-one-machine-") as folder:
        found = run(Path(folder), rows=arguments.rows, apache_pulsar=arguments.apache_pulsar)
    print(json.dumps(found))
    sys.exit(0 if found["is_equal"] else 1)


if __name__ == "__main__":
    main()
