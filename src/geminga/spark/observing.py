"""Metrics of streaming queries: their lag, as Python values and in Prometheus' text format.

::

    geminga.spark.query_lag(query.lastProgress)  # {'persistent://...': {'messages': 7000, ...}}
    with geminga.spark.serve_metrics(spark, port=9095): ...
    frame = geminga.spark.observed(frame)      # query.lastProgress.observedMetrics["pulsar"]["malformed"]

The lag comes from the queries' progress, where `geminga.spark.source.lag` puts it; so Spark's own listeners,
logs and event files have it too. Spark gives Python sources no metrics of their own: what is in the rows is
counted by Spark's observed metrics.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from geminga.client.io.runtime import LoopThread
from geminga.client.observe.metrics_port import exposition, serve
from geminga.spark.source.lag import LAG

_TOPIC_GAUGES = {
    "messages": ("geminga_spark_lag_messages", "Messages behind the end of the last micro-batch."),
    "bytes": ("geminga_spark_lag_bytes", "Stored bytes behind the end of the last micro-batch."),
    "entries": ("geminga_spark_lag_entries", "Entries behind the end of the last micro-batch."),
}
_QUERY_GAUGES = {
    "numInputRows": ("geminga_spark_input_rows", "Rows of the last micro-batch."),
    "inputRowsPerSecond": ("geminga_spark_input_rows_per_second", "Rows that arrived a second."),
    "processedRowsPerSecond": (
        "geminga_spark_processed_rows_per_second",
        "Rows that were processed a second.",
    ),
    "batchId": ("geminga_spark_micro_batch", "Number of the last micro-batch."),
}
_OBSERVED = ("geminga_spark_observed", "Spark's observed metrics of the last micro-batch.")
FAMILIES = (
    *((*each, "gauge", ("query", "id")) for each in _QUERY_GAUGES.values()),
    *((*each, "gauge", ("query", "id", "topic")) for each in _TOPIC_GAUGES.values()),
    (*_OBSERVED, "gauge", ("query", "id", "metrics", "field")),
)
"""Name, help text, type and labels of the metrics of `serve_metrics`."""


def query_lag(progress: Any) -> dict[str, dict[str, Any]]:
    """Return the lag of each Pulsar topic that a query reads, from its progress (``query.lastProgress``).

    By topic: ``entries``, ``messages`` and ``bytes`` behind the end of the last micro-batch; the last two are
    None before an entry was looked at, and ``isEstimate`` is true where not all ledgers were counted.
    """
    found: dict[str, dict[str, Any]] = {}
    for latest in _latest_offsets(progress):
        found.update(latest.get(LAG, {}))
    return found


def _latest_offsets(progress: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the ``latestOffset`` of each source."""
    for source in _as_json(progress).get("sources", ()):
        latest = source.get("latestOffset")
        if isinstance(latest, str):
            try:
                latest = json.loads(latest)
            except ValueError:  # PySpark 4.0 writes a map as text; below 4.2 the offset has no lag
                continue
        if isinstance(latest, dict):
            yield latest


def observed(frame: DataFrame, name: str = "pulsar", *, corrupt_column: str = "_corrupt_record") -> DataFrame:
    """Return ``frame`` with metrics collected while it is read.

    ``observedMetrics[name]`` of a query's progress then has ``rows``, ``malformed`` (rows with a value in
    ``corrupt_column``, if the frame has it) and ``newestPublishTime`` (if it has ``__publishTime``). For a
    batch query, read them with ``pyspark.sql.Observation``. Messages that ``mode=DROPMALFORMED`` leaves out
    are in no row: read with ``PERMISSIVE``, count, and drop them afterwards.
    """
    from pyspark.sql import functions as F

    metrics = [F.count(F.lit(1)).alias("rows")]
    if corrupt_column in frame.columns:
        metrics.append(F.count(F.col(corrupt_column)).alias("malformed"))
    if "__publishTime" in frame.columns:
        metrics.append(F.max("__publishTime").alias("newestPublishTime"))
    return frame.observe(name, *metrics)


def _as_json(progress: Any) -> Mapping[str, Any]:
    if progress is None:
        return {}
    if isinstance(progress, Mapping):
        return progress
    parsed: dict[str, Any] = json.loads(progress.json)
    return parsed


class MetricsListener(StreamingQueryListener):
    """Keeps the newest progress of each query of a session; `text` is what Prometheus scrapes."""

    def __init__(self, newest: Callable[[str], Any] = lambda query: None) -> None:
        """``newest`` returns a query's last progress by its id, needed for idle queries."""
        self._newest = newest
        self._lock = threading.Lock()
        self._progress: dict[str, Mapping[str, Any]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.saw(_as_json(event.progress))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Update from the last progress, whose lag may have grown."""
        progress = _as_json(self._newest(str(event.id)))
        if progress:
            self.saw(progress)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        with self._lock:
            self._progress.pop(str(event.id), None)

    def saw(self, progress: Mapping[str, Any]) -> None:
        with self._lock:
            self._progress[str(progress["id"])] = progress

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        with self._lock:
            kept = list(self._progress.values())
        samples = (sample for progress in kept for sample in _samples(progress))
        return exposition(((name, kind, about) for name, about, kind, _ in FAMILIES), samples)


def _samples(progress: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of each metric."""
    query = {"query": str(progress.get("name") or ""), "id": str(progress["id"])}
    for field, (name, _) in _QUERY_GAUGES.items():
        if progress.get(field) is not None:
            yield name, query, progress[field]
    for topic, lag in query_lag(progress).items():
        for field, (name, _) in _TOPIC_GAUGES.items():
            if lag.get(field) is not None:
                yield name, {**query, "topic": topic}, lag[field]
    for metrics, observed in (progress.get("observedMetrics") or {}).items():
        for field, value in observed.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield _OBSERVED[0], {**query, "metrics": metrics, "field": field}, value


class MetricsServer:
    """HTTP server of ``http://host:port/metrics`` for Prometheus, until it is closed."""

    def __init__(self, spark: SparkSession, host: str, port: int) -> None:
        self.listener = MetricsListener(self._newest)
        self._spark = spark
        self._loop = LoopThread("geminga-metrics")
        self._server = self._loop.call(serve(self.listener.text, port, host))
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}/metrics"
        spark.streams.addListener(self.listener)

    def _newest(self, query: str) -> Any:
        known = self._spark.streams.get(query)
        return None if known is None else known.lastProgress

    def close(self) -> None:
        self._spark.streams.removeListener(self.listener)
        self._loop.post(self._server.close)
        self._loop.close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve_metrics(spark: SparkSession, port: int = 0, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the streaming queries' metrics for Prometheus; ``url`` of the returned server is its address.

    ``port`` 0 takes a free one. ``host`` is the loopback address by default.
    """
    return MetricsServer(spark, host, port)
