"""A Spark cluster, an object store and a broker as processes; the page is docs/past-one-machine.md."""

import os
import re
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


def submitted(folder: Path, script: str) -> list[str]:
    """Run a shell script that submits ``query.py`` in ``folder`` to two workers; return where the tasks found
    the package."""
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.executor.memory": "700m", "spark.ui.enabled": "false",
        # Tasks wait until both workers have their executor.
        "spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }  # fmt: skip
    (folder / "query.py").write_text(SENT_PACKAGE)
    scripts = str(Path(sys.executable).parent)
    environment = {
        **os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(folder), "PATH": f"{scripts}:{os.environ['PATH']}",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    with spark_cluster.SparkCluster.start(folder) as cluster:
        settings["spark.master"] = cluster.url
        lines = "".join(f"{name} {value}\n" for name, value in settings.items())
        (folder / "spark-defaults.conf").write_text(lines)
        done = subprocess.run(
            ["bash", "-ec", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("imported ")]


@pytest.mark.rotating(2, group="whole pipelines")
def test_a_query_sends_the_package_to_two_workers(tmp_path, pulsar_broker):
    shutil.make_archive(str(tmp_path / "geminga"), "zip", ROOT / "src")
    found = submitted(tmp_path, f"spark-submit --py-files geminga.zip query.py {pulsar_broker.service_url}")
    # Each worker has the file below its own folder.
    assert len(found) == 2
    assert all(each.endswith("geminga.zip/geminga/__init__.py") for each in found)


@pytest.mark.long
def test_a_query_sends_a_whole_environment_to_two_workers(tmp_path, pulsar_broker):
    """The commands of the page, as they stand there."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/past-one-machine.md").read_text(), re.DOTALL)
    (commands,) = [each for each in blocks if "--archives" in each]
    assert commands.endswith(" query.py\n")
    found = submitted(tmp_path, f"{commands.rstrip()} {pulsar_broker.service_url}")
    assert len(found) == 2
    assert all("/environment/lib/python" in each for each in found)
    assert not any(each.startswith(str(tmp_path / "environment/")) for each in found)


def test_the_page_names_the_tested_packages():
    page = (ROOT / "docs/past-one-machine.md").read_text()
    assert spark_cluster.S3A_PACKAGES in page
    assert spark_cluster.S3A_EXCLUDES in page
