"""The Spark side of the demo: from the topic to the lake, and the sums that prove it.

Two streaming queries read the same topic, each with its own checkpoint:

* ``flights``: every event decoded, joined with airline, plane, destination and weather, one row an event;
* ``delays``: with a watermark, delays a day, origin and carrier; a window is written once it is closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geminga.demo import flights
from geminga.demo.flights import Checksum

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERIES = ("flights", "delays")
EVENT_SCHEMA = (
    "carrier string, flight int, tailnum string, origin string, dest string, scheduled_departure string, "
    "departure_delay double, arrival_delay double, air_time double, distance int"
)
WATERMARK = "60 days"
"""Keyed partitions are read at slightly different speeds, so a batch may hold flights of different
weeks; the state (one row a day, origin and carrier) is small enough to wait for them."""
CLOSING_PROPERTY = "closing"
"""An event that carries this property moves the watermark past the year; it is in no result."""

Progress = Callable[[int], None]
"""Called with the rows done so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Where the demo's output lies."""

    folder: Path

    def table(self, query: str) -> str:
        return str(self.folder / "lake" / query)

    def checkpoint(self, query: str) -> str:
        return str(self.folder / "checkpoints" / query)


@dataclass(slots=True)
class RunReport:
    """What one run of one query did."""

    query: str
    rows: int = 0
    batches: int = 0
    seconds: float = 0.0
    dropped_late: int = 0


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
        .withColumn("month", F.month("event_time"))
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


def run_query(
    spark: SparkSession,
    query: str,
    source: dict[str, str],
    lake: Lake,
    dimensions: dict[str, DataFrame],
    *,
    progress: Progress | None = None,
    rows_before: int = 0,
    stop_after_rows: int | None = None,
) -> RunReport:
    """Run one query over what the topic holds now; with ``stop_after_rows``, break it off in between.

    ``progress`` counts from ``rows_before``. A broken-off run is stopped while it works on a batch: what
    that batch had written is put right by the next run from the same checkpoint.
    """
    stream = spark.readStream.format("pulsar").options(**source).load()
    frame = enriched(stream, dimensions) if query == "flights" else delays(stream, dimensions)
    writer = (
        frame.writeStream.queryName(query)
        .format("parquet")
        .option("path", lake.table(query))
        .option("checkpointLocation", lake.checkpoint(query))
        .outputMode("append")
        .trigger(availableNow=True)
    )
    if query == "flights":
        writer = writer.partitionBy("month")
    report = RunReport(query)
    started = time.perf_counter()
    running = writer.start()
    try:
        _watch(running, report, lambda done: progress and progress(rows_before + done), stop_after_rows)
    finally:
        if running.isActive:
            running.stop()
    error = running.exception()
    if error is not None:
        raise error
    report.seconds = time.perf_counter() - started
    return report


def _watch(
    running: Any, report: RunReport, progress: Callable[[int], object], stop_after_rows: int | None
) -> None:
    """Follow a query's batches until it ends or has done enough."""
    seen: set[int] = set()
    ended = False
    while not ended:
        ended = running.awaitTermination(0.2)
        for batch in running.recentProgress:
            if batch["batchId"] in seen:
                continue
            seen.add(batch["batchId"])
            report.rows += batch["numInputRows"]
            report.batches += 1 if batch["numInputRows"] else 0
            report.dropped_late += sum(o.get("numRowsDroppedByWatermark", 0) for o in batch["stateOperators"])
            progress(report.rows)
        if stop_after_rows is not None and report.rows >= stop_after_rows:
            return


@dataclass(frozen=True, slots=True)
class LakeSums:
    """What the lake holds: the multiset of values twice over, once a row and once a window."""

    rows: Checksum
    windows: Checksum
    window_count: int


def sums(spark: SparkSession, lake: Lake) -> LakeSums:
    """Count and checksum of both tables, read back from Parquet."""
    from pyspark.sql import functions as F

    rows = spark.read.parquet(lake.table("flights")).agg(F.count("*"), F.sum("crc32")).first()
    windows = (
        spark.read.parquet(lake.table("delays"))
        .agg(F.sum("flights"), F.sum("crc32_sum"), F.count("*"))
        .first()
    )
    assert rows is not None
    assert windows is not None
    return LakeSums(
        Checksum(rows[0] or 0, rows[1] or 0), Checksum(windows[0] or 0, windows[1] or 0), windows[2] or 0
    )


def highlights(spark: SparkSession, lake: Lake) -> list[dict[str, Any]]:
    """Per airline over the year: flights, mean delay, share on time; the most punctual first."""
    from pyspark.sql import functions as F

    table = spark.read.parquet(lake.table("delays"))
    flown = F.col("flights") - F.col("cancelled")
    rows = (
        table.groupBy("airline")
        .agg(
            F.sum("flights").alias("flights"),
            (F.sum(F.col("mean_departure_delay") * flown) / F.sum(flown)).alias("mean_delay"),
            (F.sum(F.col("on_time_share") * flown) / F.sum(flown)).alias("on_time"),
            (F.sum("cancelled") / F.sum("flights")).alias("cancelled"),
        )
        .orderBy(F.desc("on_time"))
        .collect()
    )
    return [row.asDict() for row in rows]
