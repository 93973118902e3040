"""The queries of the demo: from the topic to the lake, and back into a topic.

Three streaming queries read the same topic, each with its own checkpoint:

* ``flights``: every event decoded, joined with airline, plane, destination and weather, one row an event;
* ``delays``: with a watermark, delays a day, origin and carrier; a window is written once it is closed;
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
"""Keyed partitions are read at slightly different speeds, so a batch may hold flights of different
weeks; the state (one row a day, origin and carrier) is small enough to wait for them."""
CLOSING_PROPERTY = "closing"
"""An event that carries this property moves the watermark past the year; it is in no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Where the demo's output lies."""

    folder: Path

    @property
    def staging(self) -> str:
        """Where the exactly-once sink keeps what is not published yet."""
        return str(self.folder / "staging")

    def table(self, query: str) -> str:
        return str(self.folder / "lake" / query)

    def checkpoint(self, query: str) -> str:
        return str(self.folder / "checkpoints" / query)


def dimension_frames(spark: SparkSession) -> dict[str, DataFrame]:
    """The small tables as Spark frames, ready to be joined: one row a key."""
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
        # The hour that clocks were put back occurs twice.
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
    """Events as columns, with the raw value's CRC-32 so that the lake can be summed like the source."""
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
    """Every flight with what is known of airline, plane, destination and weather; no row is lost."""
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
    """Delay statistics a day, origin and carrier, in minutes."""
    from pyspark.sql import functions as F

    windowed = (
        decode(stream)
        .withWatermark("event_time", WATERMARK)
        # The closing event is not filtered out: Spark would move the filter before the watermark. It
        # falls into a window of its own, which the watermark never passes.
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
    """Start one query over what the topic holds now; it goes on from its checkpoint, if it has one."""
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
