"""A Spark cluster, an object store and a broker as processes; the page is docs/past-one-machine.md."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import spark_cluster
from tests.support.modules import module_at

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def script() -> ModuleType:
    return module_at("past_one_machine", ROOT / "tools/past_one_machine.py")


@pytest.mark.rotating(2, group="whole pipelines")
@pytest.mark.usefixtures("package_cache")
def test_rows_are_complete_and_single_after_a_worker_dies(tmp_path):
    found = script().run(tmp_path, rows=12_000)
    assert found["is_equal"], found
    assert found["written"] == 12_000
    assert 0 < found["written_at_kill"] < 12_000, "the worker died when all was done"


@pytest.mark.long
def test_rows_are_complete_and_single_with_two_apache_brokers(tmp_path, pulsar_home):
    found = script().run(tmp_path, rows=12_000, apache_pulsar=pulsar_home)
    assert found["is_equal"], found
    assert found["written"] == 12_000
    assert 0 < found["written_at_kill"] < 12_000, "the worker died when all was done"


SENT_PACKAGE = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
import geminga.spark
geminga.spark.register(spark)
options = {"service.url": sys.argv[1], "topic": "sent-package", "valueSchema": "JSON"}
rows = spark.range(0, 100, 1, 4).selectExpr("id", "concat('row ', id) AS text")
rows.write.format("pulsar").options(**options).mode("append").save()
found = spark.read.format("pulsar").options(**options, maxEntriesPerSplit=1).load()
assert sorted(row.id for row in found.collect()) == list(range(100))
def location(_):
    import os
    import geminga
    yield os.path.abspath(geminga.__file__)
for each in sorted(set(spark.sparkContext.range(0, 16, 1, 16).mapPartitions(location).collect())):
    print("imported", each)
spark.stop()
"""


@pytest.mark.rotating(2, group="whole pipelines")
def test_a_query_sends_the_package_to_two_workers(tmp_path, pulsar_broker):
    shutil.make_archive(str(tmp_path / "geminga"), "zip", ROOT / "src")
    (tmp_path / "query.py").write_text(SENT_PACKAGE)
    command = ["--py-files", "geminga.zip", "query.py", pulsar_broker.service_url]
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.executor.memory": "700m", "spark.ui.enabled": "false",
        # Tasks wait until both workers have their executor.
        "spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }  # fmt: skip
    configured = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYTHONPATH", None)
    submit = str(Path(sys.executable).parent / "spark-submit")
    with spark_cluster.SparkCluster.start(tmp_path) as cluster:
        done = subprocess.run(
            [submit, "--master", cluster.url, *configured, *command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("imported ")]
    # Each worker has the file below its own folder.
    assert len(found) == 2
    assert all(each.endswith("geminga.zip/geminga/__init__.py") for each in found)


def test_the_page_names_the_tested_packages():
    page = (ROOT / "docs/past-one-machine.md").read_text()
    assert spark_cluster.S3A_PACKAGES in page
    assert spark_cluster.S3A_EXCLUDES in page
