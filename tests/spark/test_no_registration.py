"""``format("pulsar")`` where nothing of ours is imported or called before: Spark finds it by itself."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from interpreter import run_python

from geminga import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(450)]

PLAIN = """
import sys
from pyspark.sql import SparkSession

url, topic = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
options = f"OPTIONS ('service.url' '{url}', topic '{topic}', columns 'value,__key')"
spark.sql(f"CREATE TEMPORARY VIEW a_view USING pulsar {options}")
spark.sql("CREATE TABLE a_table (value BINARY) USING pulsar")
named = f"WITH ('service.url' = '{url}', topic = '{topic}')"
spark.sql(f"INSERT INTO a_table {named} SELECT cast('inserted' AS BINARY)")
frames = {
    "format": spark.read.format("pulsar").option("service.url", url).load(topic),
    "view": spark.sql("SELECT value FROM a_view"),
    "table": spark.sql(f"SELECT value FROM a_table {named}"),
}
for name, frame in frames.items():
    print(name, sorted(bytes(row.value).decode() for row in frame.select("value").collect()))
spark.stop()
"""

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

@dp.table
def rows():
    source = SparkSession.active().readStream.format("pulsar").option("service.url", {url!r})
    return source.option("startingOffsets", "earliest").schema("value string").load({topic!r})
"""


def environment() -> dict[str, str]:
    """That of an activated environment, as a user of plain Spark has it."""
    folder = str(Path(sys.executable).parent)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def publish(client: Client, topic: str) -> list[str]:
    values = [f"v{number}" for number in range(20)]
    with client.create_producer(topic) as producer:
        for value in values:
            producer.send(value.encode())
    return sorted(values)


@pytest.mark.rotating(1, group="Spark in a process of its own")
def test_plain_pyspark_finds_the_format_for_views_and_tables(
    pulsar_broker, pulsar_client, pulsar_topic, tmp_path
):
    values = publish(pulsar_client, pulsar_topic)
    output = run([sys.executable, "-c", PLAIN, pulsar_broker.service_url, pulsar_topic], tmp_path)
    wanted = sorted(["inserted", *values])
    assert output.splitlines() == [f"{name} {wanted}" for name in ("format", "view", "table")]


@pytest.mark.rotating(1, group="Spark in a process of its own")
def test_declarative_pipelines_find_the_format(pulsar_broker, pulsar_client, pulsar_topic, tmp_path):
    """``spark-pipelines run`` works through a Spark Connect session of its own."""
    pytest.importorskip("grpc_status")
    values = publish(pulsar_client, pulsar_topic)
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: p\nstorage: {(tmp_path / 'storage').as_uri()}\n"
        "libraries:\n  - glob:\n      include: transformations/**\n"
    )
    (tmp_path / "transformations").mkdir()
    program = PIPELINE.format(url=pulsar_broker.service_url, topic=pulsar_topic)
    (tmp_path / "transformations/rows.py").write_text(program)
    run([str(Path(sys.executable).parent / "spark-pipelines"), "run"], tmp_path)
    assert sorted(pq.read_table(tmp_path / "spark-warehouse/rows").column("value").to_pylist()) == values


@pytest.mark.rotating(1, group="Spark in a process of its own")
def test_sparks_sql_shell_finds_the_format(pulsar_broker, pulsar_client, pulsar_topic, tmp_path):
    values = publish(pulsar_client, pulsar_topic)
    options = f"('service.url' = '{pulsar_broker.service_url}', topic = '{pulsar_topic}')"
    script = tmp_path / "script.sql"
    script.write_text(
        "CREATE TABLE t (value BINARY) USING pulsar;\n"
        f"INSERT INTO t WITH {options} SELECT cast('inserted' AS BINARY);\n"
        f"SELECT concat('row ', cast(value AS STRING)) FROM t WITH {options};\n"
    )
    shell = str(Path(sys.executable).parent / "spark-sql")
    output = run(
        [shell, "--master", "local[2]", "--conf", "spark.ui.enabled=false", "-f", str(script)], tmp_path
    )
    found = [line.removeprefix("row ") for line in output.splitlines() if line.startswith("row ")]
    assert sorted(found) == sorted(["inserted", *values])


def test_a_missing_package_does_not_affect_other_formats():
    script = (
        "import sys, warnings\n"
        "sys.modules['pyarrow'] = None\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    import pyspark_pulsar\n"
        "assert not hasattr(pyspark_pulsar, 'DefaultSource')\n"
        'assert "geminga[spark]" in str(told[-1].message), told\n'
    )
    run_python(script)
