"""Spark driver process of the demo: ``python -m geminga.demo.driver JOB``.

It runs the queries over the topic's messages, publishes the closing event, and runs the queries again. It may
be killed at any moment; a restarted driver resumes. Events are written as JSON lines to a pipe, since Spark
prints to standard output.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from geminga.client.sync import Client
from geminga.demo import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_SECONDS = 0.1
_NO_WORKER = re.compile("connect back|failed to launch worker|socket to Python daemon")
"""Errors of Spark when a Python worker does not start in time, on a loaded machine."""
SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    # Each file list of a table is complete, so that files can be merged.
    "spark.sql.streaming.fileSink.log.compactInterval": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverJob:
    """Job of the driver, encoded as JSON. ``events_fd``: pipe for events."""

    service_url: str
    topic: str
    rollup_topic: str
    folder: str
    rows_per_batch: int
    last_event: str
    """Time of the last event, in ISO format."""
    events_fd: int

    def as_json(self) -> str:
        return json.dumps(asdict(self))


class EventWriter:
    """Writes events: each has a name and fields."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __call__(self, event: str, **fields: Any) -> None:
        self._stream.write(json.dumps({"event": event, **fields}) + "\n")
        self._stream.flush()


def main() -> None:
    job = DriverJob(**json.loads(sys.argv[1]))
    tell = EventWriter(os.fdopen(job.events_fd, "w"))
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    try:
        _work(job, tell)
    except Exception as error:
        tell("failed", error=str(error).strip().splitlines()[0], kind=type(error).__name__)
        raise


def _end_with_parent() -> None:
    """End this process when standard input closes, as the demo has ended; the JVM ends with it."""
    sys.stdin.buffer.read()
    os._exit(1)


def _work(job: DriverJob, tell: EventWriter) -> None:
    from geminga.spark.sessions import session

    spark = session("local[2]", "geminga-demo", SPARK_SETTINGS)
    source = {"service.url": job.service_url, "topic": job.topic, "startingOffsets": "earliest"}
    dimensions = pipeline.dimension_frames(spark)
    # The closing event moves the watermark past the year, so it must follow all others: partitions are read
    # in parallel, at different speeds.
    run_queries(spark, job, source, dimensions, tell)
    _publish_closing(job)
    run_queries(spark, job, source, dimensions, tell)
    spark.stop()
    tell("done")


def run_queries(
    spark: SparkSession,
    job: DriverJob,
    source: dict[str, str],
    dimensions: dict[str, DataFrame],
    tell: EventWriter,
) -> None:
    """Run all queries in parallel, until they have processed the messages that the topic holds now. A query
    whose Python worker does not start is started again, once."""
    limited = {**source, "maxRowsPerTrigger": str(job.rows_per_batch)}
    lake = pipeline.Lake(folder=Path(job.folder))
    started = time.perf_counter()

    def start(name: str) -> Any:
        return pipeline.start(spark, name, limited, lake, dimensions, rollup_topic=job.rollup_topic)

    queries = {name: start(name) for name in pipeline.QUERIES}
    restarted: set[str] = set()
    told: set[tuple[str, int]] = set()
    running = True
    while running:
        time.sleep(POLL_SECONDS)
        running = any(query.isActive for query in queries.values())  # before its last progress is read
        for name, query in list(queries.items()):
            error = query.exception()
            if error is not None:
                if name in restarted or not _NO_WORKER.search(str(error)):
                    raise error
                restarted.add(name)
                tell("restarted", query=name)
                queries[name], running = start(name), True
                continue
            for progress in query.recentProgress:
                if (name, progress["batchId"]) not in told:
                    told.add((name, progress["batchId"]))
                    tell("progress", query=name, **_figures(progress))
    tell("caught up", seconds=time.perf_counter() - started)


def _figures(progress: Any) -> dict[str, Any]:
    from geminga.spark.observing import query_lag

    lag = list(query_lag(progress).values())
    return {
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "lag_messages": _total(lag, "messages"),
        "lag_bytes": _total(lag, "bytes"),
        "dropped_late": sum(each.get("numRowsDroppedByWatermark", 0) for each in progress["stateOperators"]),
    }


def _total(lag: list[dict[str, Any]], name: str) -> int | None:
    found = [each[name] for each in lag]
    return None if not found or None in found else sum(found)


def _publish_closing(job: DriverJob) -> None:
    """Publish one event long after the last, so that the watermark passes and every window is written."""
    closing = datetime.fromisoformat(job.last_event) + timedelta(days=366)
    with Client(job.service_url) as client, client.create_producer(job.topic) as producer:
        producer.send(
            b"{}",
            properties={pipeline.CLOSING_PROPERTY: "true"},
            event_timestamp=int(closing.timestamp() * 1000),
        )


if __name__ == "__main__":
    main()
