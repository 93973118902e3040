"""Spark driver process of the demo: ``python -m geminga.demo.driver SERVICE_URL FOLDER ROWS_PER_BATCH``.

Two streaming queries read the topic, each with its own checkpoint:

* ``flights``: every event, joined with airline and plane, as a row of the lake;
* ``delays``: delays per day, origin and carrier with a watermark; each window is a message of another topic,
  exactly once.

They end when they have processed the messages that the topic holds now. Then the closing event is published,
and they run again. A driver may be killed at any moment; the next one resumes.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geminga.client.api.sync import Client
from geminga.demo import flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "persistent://public/default/flights"
ROLLUP_TOPIC = "persistent://public/default/delays-by-day"
QUERIES = ("flights", "delays")
EVENT_SCHEMA = (
    "carrier string, flight int, tailnum string, origin string, dest string, scheduled_departure string, "
    "departure_delay double, arrival_delay double, air_time double, distance int"
)
WATERMARK = "60 days"
"""Watermark delay. Partitions are read at different speeds, so that a batch may hold flights of different
weeks; the state (one row per day, origin and carrier) is small enough for a long delay."""
CLOSING = datetime(2015, 1, 1, tzinfo=UTC)
"""Time of the closing event, which moves the watermark past the year and is in no result."""
SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Each file list of a table is complete, so that files can be merged.
    "spark.sql.streaming.fileSink.log.compactInterval": "1",
}


def lake(folder: Path) -> str:
    """Return the folder of the table ``flights``."""
    return str(folder / "lake" / "flights")


def checkpoint(folder: Path, query: str) -> str:
    return str(folder / "checkpoints" / query)


def main() -> None:
    from geminga.spark.sessions import session

    service_url, folder, rows = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    spark = session("local[2]", "geminga-demo", SPARK_SETTINGS)
    source = {
        "service.url": service_url, "topic": TOPIC, "startingOffsets": "earliest", "maxRowsPerTrigger": rows,
        "columns": "value,__eventTime",
    }  # fmt: skip
    run_queries(spark, source, folder)
    # It must follow all others: partitions are read in parallel, at different speeds.
    with Client(service_url) as client, client.create_producer(TOPIC) as producer:
        producer.send(b"{}", event_timestamp=int(CLOSING.timestamp() * 1000))
    run_queries(spark, source, folder)
    spark.stop()


def _end_with_parent() -> None:
    """End this process when standard input closes, as the demo has ended; the JVM ends with it."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def run_queries(spark: SparkSession, source: dict[str, str], folder: Path) -> None:
    """Run the queries side by side, until they have processed the messages that the topic holds now."""
    for query in [start(spark, name, source, folder) for name in QUERIES]:
        query.awaitTermination()


def start(spark: SparkSession, query: str, source: dict[str, str], folder: Path) -> Any:
    """Start a query; it resumes at its checkpoint."""
    from pyspark.sql import functions as F

    stream = spark.readStream.format("pulsar").options(**source).load()
    names = spark.createDataFrame(flights.dimension("airlines")).withColumnRenamed("name", "airline")
    airlines = F.broadcast(names)
    # The raw value's CRC-32 is for the comparison with what was published.
    events = stream.select(
        F.crc32("value").alias("crc32"),
        F.from_json(F.col("value").cast("string"), EVENT_SCHEMA).alias("event"),
        F.col("__eventTime").alias("event_time"),
    ).select("crc32", "event.*", "event_time")
    if query == "flights":
        planes = spark.createDataFrame(flights.dimension("planes"))
        frame = with_names(events.where(F.col("event_time") < F.lit(CLOSING)), airlines, planes)
        writer = frame.writeStream.format("parquet").option("path", lake(folder))
    else:
        windows = delays(events).join(airlines, "carrier", "left")
        told = windows.select(F.col("carrier").alias("__key"), F.to_json(F.struct("*")).alias("value"))
        writer = told.writeStream.format("pulsar").options(
            **{"service.url": source["service.url"], "topic": ROLLUP_TOPIC, "exactlyOnce": "true"},
            stagingLocation=str(folder / "staging"),
        )
    return (
        writer.queryName(query)
        .option("checkpointLocation", checkpoint(folder, query))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )


def with_names(events: DataFrame, airlines: DataFrame, planes: DataFrame) -> DataFrame:
    """Return every flight with its airline and plane; no row is dropped."""
    from pyspark.sql import functions as F

    known = planes.select("tailnum", "manufacturer", "model", "seats", F.col("year").alias("plane_year"))
    return events.join(airlines, "carrier", "left").join(F.broadcast(known), "tailnum", "left")


def delays(events: DataFrame) -> DataFrame:
    """Return delay statistics per day, origin and carrier, in minutes."""
    from pyspark.sql import functions as F

    return (
        events.withWatermark("event_time", WATERMARK)
        # The closing event is not filtered out: Spark would move the filter before the watermark. It has its
        # own window, which the watermark never passes.
        .groupBy(F.window("event_time", "1 day"), "origin", "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.sum("crc32").alias("crc32_sum"),
            F.avg("departure_delay").alias("mean_departure_delay"),
            F.max("departure_delay").alias("worst_departure_delay"),
        )
        .withColumn("day", F.to_date("window.start"))
        .drop("window")
    )


if __name__ == "__main__":
    main()
