"""Spark queries of the demo: from the topic to the lake, and back to a topic.

Three streaming queries read the same topic, each with its own checkpoint:

* ``flights``: every event, joined with airline, plane, destination and weather, one row per event;
* ``delays``: delays per day, origin and carrier with a watermark; each window is written when it closes;
* ``rollup``: the same windows as messages of another topic, each exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geminga.demo import flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES = ("flights", "delays")
QUERIES = (*TABLES, "rollup")
EVENT_SCHEMA = (
    "carrier string, flight int, tailnum string, origin string, dest string, scheduled_departure string, "
    "departure_delay double, arrival_delay double, air_time double, distance int"
)
WATERMARK = "60 days"
"""Watermark delay. Partitions are read at different speeds, so that a batch may hold flights of different
weeks; the state (one row per day, origin and carrier) is small enough for a long delay."""
CLOSING_PROPERTY = "closing"
"""Property of the closing event, which moves the watermark past the year and is in no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Folders of the demo's output."""

    folder: Path

    @property
    def staging(self) -> str:
        """Folder in which the exactly-once sink stores unpublished rows."""
        return str(self.folder / "staging")

    def table(self, query: str) -> str:
        return str(self.folder / "lake" / query)

    def checkpoint(self, query: str) -> str:
        return str(self.folder / "checkpoints" / query)


def dimension_frames(spark: SparkSession) -> dict[str, DataFrame]:
    """Return the dimension tables as Spark frames for joins: one row per key."""
    from pyspark.sql import functions as F

    planes, airlines, airports, weather = (
        spark.createDataFrame(flights.dimension(name)) for name in flights.DIMENSIONS
    )
    return {
        "airlines": airlines.select("carrier", F.col("name").alias("airline")),
        "planes": planes.select(
            "tailnum", "manufacturer", "model", "seats", F.col("year").cast("int").alias("plane_year")
        ),
        "airports": airports.select(
            F.col("faa").alias("dest"), F.col("name").alias("destination"), "lat", "lon"
        ),
        # The hour repeated at the end of daylight saving time occurs twice.
        "weather": weather.select(
            "origin",
            F.to_timestamp("time_hour").alias("weather_hour"),
            "temp",
            "wind_speed",
            "precip",
            "visib",
        ).dropDuplicates(["origin", "weather_hour"]),
    }


def decode(stream: DataFrame) -> DataFrame:
    """Return events as columns, with the raw value's CRC-32 for the comparison with the source."""
    from pyspark.sql import functions as F

    return (
        stream.select(
            F.crc32("value").alias("crc32"),
            F.from_json(F.col("value").cast("string"), EVENT_SCHEMA).alias("event"),
            F.col("__eventTime").alias("event_time"),
            F.col("__messageProperties").getItem(CLOSING_PROPERTY).isNotNull().alias("closing"),
        )
        .select("crc32", "event.*", "event_time", F.coalesce("closing", F.lit(False)).alias("closing"))
    )  # fmt: skip


def enriched(stream: DataFrame, dimensions: dict[str, DataFrame]) -> DataFrame:
    """Return every flight joined with airline, plane, destination and weather; no row is dropped."""
    from pyspark.sql import functions as F

    return (
        decode(stream)
        .where(~F.col("closing"))
        .drop("closing")
        .withColumn("weather_hour", F.date_trunc("hour", "event_time"))
        .join(F.broadcast(dimensions["airlines"]), "carrier", "left")
        .join(F.broadcast(dimensions["planes"]), "tailnum", "left")
        .join(F.broadcast(dimensions["airports"]), "dest", "left")
        .join(F.broadcast(dimensions["weather"]), ["origin", "weather_hour"], "left")
    )


def delays(stream: DataFrame, dimensions: dict[str, DataFrame]) -> DataFrame:
    """Return delay statistics per day, origin and carrier, in minutes."""
    from pyspark.sql import functions as F

    windowed = (
        decode(stream)
        .withWatermark("event_time", WATERMARK)
        # The closing event is not filtered out: Spark would move the filter before the watermark. It has its
        # own window, which the watermark never passes.
        .groupBy(F.window("event_time", "1 day"), "origin", "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.sum("crc32").alias("crc32_sum"),
            F.sum(F.col("departure_delay").isNull().cast("long")).alias("cancelled"),
            F.avg("departure_delay").alias("mean_departure_delay"),
            F.max("departure_delay").alias("worst_departure_delay"),
            F.avg((F.col("departure_delay") <= 15).cast("double")).alias("on_time_share"),
        )
    )
    return (
        windowed.join(F.broadcast(dimensions["airlines"]), "carrier", "left")
        .withColumn("day", F.to_date("window.start"))
        .drop("window")
    )


def start(
    spark: SparkSession,
    query: str,
    source: dict[str, str],
    lake: Lake,
    dimensions: dict[str, DataFrame],
    *,
    rollup_topic: str,
) -> Any:
    """Start a query over the messages that the topic holds now; it resumes at its checkpoint."""
    from pyspark.sql import functions as F

    columns = "value,__eventTime,__messageProperties"
    stream = spark.readStream.format("pulsar").options(**source, columns=columns).load()
    frame = enriched(stream, dimensions) if query == "flights" else delays(stream, dimensions)
    if query in TABLES:
        writer = frame.writeStream.format("parquet").option("path", lake.table(query))
    else:
        told = frame.select(F.col("carrier").alias("__key"), F.to_json(F.struct("*")).alias("value"))
        writer = told.writeStream.format("pulsar").options(
            **{"service.url": source["service.url"], "topic": rollup_topic, "exactlyOnce": "true"},
            stagingLocation=lake.staging,
        )
    return (
        writer.queryName(query)
        .option("checkpointLocation", lake.checkpoint(query))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
