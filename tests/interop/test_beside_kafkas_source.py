"""The same everyday jobs on Spark's own Kafka source with a Kafka broker, and on ``format("pulsar")``.

A job is written once, over the columns `Rows.COLUMNS`; the two sources differ in options and names of columns
alone. ``tools/fetch_kafka.py`` fetches the broker and the source.
"""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import geminga
from geminga.testing.apache_pulsar import free_ports

HOME = Path(__file__).parents[2] / ".cache/kafka/broker"
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
"""

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(500)]


@dataclass
class Rows:
    """Topics of one of the two, as frames with the same columns."""

    spark: SparkSession
    folder: Path
    format: str
    server: dict[str, str]

    COLUMNS = ("key", "value", "topic", "at", "headers")

    @property
    def is_kafka(self) -> bool:
        return self.format == "kafka"

    def read(self, topic: str, *, stream: bool = False, **options: object) -> DataFrame:
        reader: Any = self.spark.readStream if stream else self.spark.read
        named = {} if "subscribePattern" in options else {"subscribe": topic}
        headers = {"includeHeaders": "true"} if self.is_kafka else {}
        start = {} if "startingTimestamp" in options else {"startingOffsets": "earliest"}
        given = {**self.server, **named, **headers, **start, **options}
        rows = reader.format(self.format).options(**given).load()
        texts = "transform(headers, each -> struct(each.key, cast(each.value AS STRING)))"
        names = (
            ("key", "topic", "timestamp", f"map_from_entries({texts})")
            if self.is_kafka
            else ("__key", "regexp_extract(__topic, '[^/]+$', 0)", "__publishTime", "__messageProperties")
        )
        values = (f"cast({names[0]} AS STRING)", "cast(value AS STRING)", *names[1:])
        return rows.selectExpr(
            *(f"{each} AS {name}" for each, name in zip(values, self.COLUMNS, strict=True))
        )

    def target(self, topic: str) -> dict[str, str]:
        return {**self.server, "topic": topic}

    def write(self, rows: str | DataFrame, topic: str, **options: object) -> None:
        frame = self.spark.sql(rows) if isinstance(rows, str) else rows
        frame.write.format(self.format).options(**self.target(topic), **options).mode("append").save()

    def to_topic(self, rows: DataFrame, topic: str, checkpoint: str) -> Any:
        return self.run(rows, self.format, checkpoint, **self.target(topic))

    def run(self, rows: DataFrame, kind: str, checkpoint: str, mode: str = "append", **options: str) -> Any:
        """Run a stream to its end; return its query."""
        writer = rows.writeStream.format(kind).outputMode(mode).options(**options).trigger(availableNow=True)
        query = writer.start(checkpointLocation=str(self.folder / self.format / checkpoint))
        query.awaitTermination()
        return query


@pytest.fixture(scope="module")
def sides(spark_with_modules, tmp_path_factory):
    if not (HOME / "lib").exists():
        pytest.skip("no Kafka: python tools/fetch_kafka.py")
    folder = tmp_path_factory.mktemp("kafka")
    port, controller = free_ports(2)
    (folder / "settings").write_text(SETTINGS.format(port=port, controller=controller, folder=folder))
    java = ["java", "-Xmx512m", "-cp", f"{HOME}/lib/*"]
    cluster = "AAAAAAAAAAAAAAAAAAAAAA"
    formatting = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(folder / "settings")]
    subprocess.run([*java, *formatting], check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        kafka = subprocess.Popen([*java, "kafka.Kafka", str(folder / "settings")], stdout=log, stderr=log)
    try:
        with geminga.embedded(web_port=None) as broker:
            yield [
                Rows(spark_with_modules, folder, "kafka", {"kafka.bootstrap.servers": f"127.0.0.1:{port}"}),
                Rows(spark_with_modules, folder, "pulsar", {"service.url": broker.service_url}),
            ]
    finally:
        kafka.kill()
        kafka.wait()


TEN = "SELECT 'k' || id % 3 AS key, 'v' || id AS value FROM range(10)"


def collected(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows.collect()), key=repr)


def rows_of_a_topic(rows: Rows) -> object:
    rows.write(TEN, "all")
    return collected(rows.read("all").select("key", "value", "topic"))


def headers(rows: Rows) -> object:
    pair = "array(struct('h' AS key, cast('x' AS BINARY) AS value)) AS headers"
    properties = pair if rows.is_kafka else "map('h', 'x') AS __messageProperties"
    rows.write(f"SELECT 'v' AS value, {properties}", "headers")
    return [row.headers for row in rows.read("headers").collect()]


def tombstones(rows: Rows) -> object:
    rows.write("SELECT 'k' AS key, cast(NULL AS STRING) AS value", "gone")
    return collected(rows.read("gone").select("key", "value"))


def rows_between_two_times(rows: Rows) -> object:
    times = []
    for part in range(3):
        rows.write(f"SELECT 'part{part}' AS value FROM range(2)", "parts")
        times.append(rows.read("parts").selectExpr("max(unix_millis(at))").first()[0])
    chosen = rows.read("parts", startingTimestamp=times[0] + 1, endingTimestamp=times[1] + 1)
    return collected(chosen.select("value"))


def topics_of_a_pattern(rows: Rows) -> object:
    for name in ("match-a", "match-b", "other"):
        rows.write(f"SELECT '{name}' AS value", name)
    pattern = rows.read("", stream=True, subscribePattern="match-.*").select("topic", "value")
    rows.run(pattern, "memory", "pattern", queryName=f"pattern_{rows.format}")
    return collected(rows.spark.table(f"pattern_{rows.format}"))


def newest_values_of_a_copied_topic(rows: Rows) -> object:
    changes = rows.spark.range(0, 2000, 1, 1).selectExpr(
        "'k' || id % 10 AS key", "cast(id AS STRING) AS value"
    )
    rows.write(changes, "changes")
    rows.to_topic(rows.read("changes", stream=True).select("key", "value"), "copied", "copied")
    read = [(row.key, row.value) for row in rows.read("copied").collect()]
    return dict(read), len(read)


def rows_of_limited_micro_batches(rows: Rows) -> object:
    whole = {} if rows.is_kafka else {"batchingMaxMessages": "5"}
    rows.write(rows.spark.range(0, 35, 1, 1).selectExpr("cast(id AS STRING) AS value"), "limited", **whole)
    query = rows.run(rows.read("limited", stream=True, maxOffsetsPerTrigger=10), "noop", "limited")
    return [progress.numInputRows for progress in query.recentProgress]


def rows_after_a_restart(rows: Rows) -> object:
    found = []
    for part in range(3):
        rows.write(f"SELECT 'part{part}' AS value FROM range(3)", "restarted")
        query = rows.run(rows.read("restarted", stream=True), "noop", "restarted")
        found.append(sum(progress.numInputRows for progress in query.recentProgress))
    return found


def counts_by_window_and_key(rows: Rows) -> object:
    rows.write(TEN, "counted")
    timed = rows.read("counted", stream=True).withWatermark("at", "1 hour")
    counts = timed.groupBy(F.window("at", "1 day"), "key").count().select("key", "count")
    rows.run(counts, "memory", "counted", "complete", queryName=f"counts_{rows.format}")
    return collected(rows.spark.table(f"counts_{rows.format}").groupBy("key").sum())


def orders_joined_with_payments(rows: Rows) -> object:
    rows.write(TEN, "orders")
    rows.write("SELECT 'v' || id AS key, 'paid' AS value FROM range(0, 10, 2)", "payments")
    orders = rows.read("orders", stream=True).withWatermark("at", "1 hour").alias("o")
    payments = rows.read("payments", stream=True).withWatermark("at", "1 hour").alias("p")
    both = orders.join(payments, F.expr("o.value = p.key AND p.at BETWEEN o.at AND o.at + INTERVAL 1 HOUR"))
    rows.run(both.select("o.value"), "memory", "joined", queryName=f"joined_{rows.format}")
    return collected(rows.spark.table(f"joined_{rows.format}"))


JOBS: list[Callable[[Rows], object]] = [
    rows_of_a_topic, headers, tombstones, rows_between_two_times, topics_of_a_pattern,
    newest_values_of_a_copied_topic, rows_of_limited_micro_batches, rows_after_a_restart,
    counts_by_window_and_key, orders_joined_with_payments,
]  # fmt: skip


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_a_job_has_the_same_result_as_on_kafkas_source(job, sides):
    kafka, pulsar = map(job, sides)
    assert pulsar == kafka
    assert kafka


def test_the_update_mode_of_kafkas_sink_is_foreach_batch_here(sides):
    """Spark passes no updates to a sink in Python, as the page `docs/coming-from-kafka.md` explains."""
    kafka, pulsar = sides
    counts = {}
    for rows in sides:
        rows.write(TEN, "updated")
        counts[rows.format] = rows.read("updated", stream=True).groupBy("key").count()
        counts[rows.format] = counts[rows.format].selectExpr("key", "cast(count AS STRING) AS value")
    kafka.run(counts["kafka"], "kafka", "updated", "update", **kafka.target("totals"))
    with pytest.raises(Exception, match=r"[Uu]pdate"):
        pulsar.run(counts["pulsar"], "pulsar", "refused", "update", **pulsar.target("totals"))
    writer = counts["pulsar"].writeStream.outputMode("update").trigger(availableNow=True)
    query = writer.foreachBatch(lambda frame, batch: pulsar.write(frame, "totals"))
    query.start(checkpointLocation=str(pulsar.folder / "each")).awaitTermination()
    found, expected = (collected(rows.read("totals").select("key", "value")) for rows in (pulsar, kafka))
    assert found == expected != []
