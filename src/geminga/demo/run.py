"""The whole demo: broker, publishing, Spark with a killed driver, proof, summary."""

from __future__ import annotations

import resource
import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import geminga
from geminga.client.admin.sync import Admin
from geminga.demo import flights, pipeline, proof
from geminga.demo.application import DriverProgress, follow
from geminga.demo.console import Console, Update
from geminga.demo.driver import DriverJob
from geminga.demo.flights import Checksum
from geminga.errors import PulsarException, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC = "persistent://public/default/flights"
ROLLUP_TOPIC = "persistent://public/default/delays-by-day"
PARTITIONS = 4
ROWS_PER_BATCH = 40_000
BATCHES_MIN = 8
"""Minimum number of micro-batches of a query, so that it can be killed half-way."""
MARKER = ".geminga-demo"


class ProofFailed(PulsarException):
    """Lake or rollup differ from the published events: rows were lost or duplicated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A way of publishing and its measurements."""

    how: str
    rows: int
    bytes: int
    seconds: float
    cpu_seconds: float


def prepare_folder(folder: Path) -> Path:
    """Prepare an empty output folder; the folder of an earlier demo is emptied, any other is refused."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise UsageError(
                f"{folder} holds files that are not from this demo: choose another with --output"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    return folder.absolute()


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def publish_rows(client: Any, table: pa.Table, console: Console) -> Published:
    """Publish with one ``send_async`` per event, as ordinary programs do."""
    keys = table.column("key").to_pylist()
    values = table.column("value").to_pylist()
    times = table.column("event_time").cast("int64").to_pylist()
    failed: list[Any] = []

    def receipted(result: Any, _message_id: Any) -> None:
        if result != geminga.Result.Ok:
            failed.append(result)

    producer = client.create_producer(
        TOPIC,
        batching_enabled=True,
        block_if_queue_full=True,
        compression_type=geminga.CompressionType.LZ4,
    )
    started, cpu = time.perf_counter(), _cpu_seconds()
    with console.progress(("row by row",), len(values)) as progress:
        for index, (key, value, event_time) in enumerate(zip(keys, values, times, strict=True)):
            producer.send_async(value, receipted, partition_key=key, event_timestamp=event_time)
            if not index % 5_000:
                progress("row by row", index, "")
        producer.flush()
        progress("row by row", len(values), "")
    seconds, cpu = time.perf_counter() - started, _cpu_seconds() - cpu
    producer.close()
    if failed:
        raise ProofFailed(f"{len(failed)} of {len(values)} sends were not receipted: {failed[0]}")
    size = sum(map(len, values))
    return Published(how="rows", rows=len(values), bytes=size, seconds=seconds, cpu_seconds=cpu)


def publish_columns(client: Any, table: pa.Table, console: Console) -> Published:
    """Publish the events as Arrow tables."""
    size = table.column("value").nbytes
    # Kernels for partitioning, encoding and compression are compiled at their first use.
    warm = client.create_producer("persistent://public/default/warm-up")
    warm.send_table(table.slice(0, 100))
    warm.close()
    producer = client.create_producer(TOPIC, compression_type=geminga.CompressionType.LZ4)
    started, cpu = time.perf_counter(), _cpu_seconds()
    with console.progress(("columns",), table.num_rows) as progress:
        for first in range(0, table.num_rows, 50_000):
            part = table.slice(first, 50_000)
            producer.send_table(part)
            progress("columns", first + part.num_rows, "")
    seconds, cpu = time.perf_counter() - started, _cpu_seconds() - cpu
    producer.close()
    return Published(how="columns", rows=table.num_rows, bytes=size, seconds=seconds, cpu_seconds=cpu)


def run_demo(folder: Path, console: Console, *, rows: int | None = None) -> dict[str, Any]:
    """Run everything and return the printed summary.

    Raises `ProofFailed` if a row is missing or duplicated, and `SparkFailed` if Spark fails.
    """
    from geminga.spark.java import check_java

    check_java()  # fail before minutes of work, not after
    folder = prepare_folder(folder)
    started = time.perf_counter()
    console.step("Reading the flights")
    table = flights.events(rows)
    expected = Checksum.of(table.column("value").to_pylist())
    half = table.num_rows // 2
    told = DriverProgress()
    # Exactly-once needs the broker's deduplication.
    with geminga.embedded(folder / "store", deduplication=True) as broker:
        console.step(f"Broker at {broker.service_url}, its store in {folder / 'store'}: every receipt synced")
        with broker.client() as client:
            _create_topic(broker.admin_url)
            published = [
                publish_rows(client, table.slice(0, half), console),
                publish_columns(client, table.slice(half), console),
            ]
            for one in published:
                console.line(
                    f"{one.how:>8}: {one.rows:,} events in {one.seconds:.2f} s = "
                    f"{one.rows / one.seconds:,.0f} a second, "
                    f"{one.cpu_seconds / one.rows * 1e6:.1f} µs of CPU each (broker included)"
                )
            job = DriverJob(
                service_url=broker.service_url, topic=TOPIC, rollup_topic=ROLLUP_TOPIC, folder=str(folder),
                rows_per_batch=min(ROWS_PER_BATCH, max(1, table.num_rows // BATCHES_MIN)),
                last_event=table.column("event_time")[-1].as_py().isoformat(), events_fd=-1,
            )  # fmt: skip
            rows_after_kill = _stream(job, folder / "spark.log", told, table.num_rows, console)
            console.step("Reading the rollup back from its topic, and the lake from its files")
            messages = proof.messages(client, ROLLUP_TOPIC)
    summary = _summary(folder, expected, published, told, rows_after_kill, messages)
    summary["seconds"] = round(time.perf_counter() - started, 1)
    console.summary(summary)
    if not summary["proof"]["is_equal"]:
        raise ProofFailed(f"what was published is not what was found: {summary['proof']}")
    return summary


def _summary(
    folder: Path,
    expected: Checksum,
    published: list[Published],
    told: DriverProgress,
    rows_after_kill: int,
    messages: list[Any],
) -> dict[str, Any]:
    """Return the numbers of a run, and the proof that what was published is what was found."""
    lake = pipeline.Lake(folder=folder)
    files = {name: proof.tidy(lake.table(name)) for name in pipeline.TABLES}
    windows = proof.windows(lake)
    return {
        "events": expected.count,
        "published": [
            {"how": p.how, "rows": p.rows, "bytes": p.bytes, "seconds": round(p.seconds, 3)}
            for p in published
        ],
        "spark": {
            "rows": rows_after_kill,
            "seconds": round(told.passes[0], 2),
            "queries": {name: {"rows": q.rows, "batches": q.batches} for name, q in told.queries.items()},
        },
        "lake": {
            name: {"path": lake.table(name), "rows": size.rows, "files": size.files}
            for name, size in files.items()
        },
        "proof": {
            **proof.account(expected, proof.of_rows(lake), windows, messages),
            "dropped_late": sum(query.dropped_late for query in told.queries.values()),
        },
    }


def _create_topic(admin_url: str) -> None:
    Admin(admin_url).topics.create(TOPIC, partitions=PARTITIONS)


def _stream(job: DriverJob, log: Path, told: DriverProgress, total: int, console: Console) -> int:
    """Run the queries: a driver that is killed half-way, and a second one. Returns the rows of the second."""
    console.step(f"Starting Spark; what it prints goes to {log}")
    with console.progress(pipeline.QUERIES, total) as update:
        follow(job, log, told, partial(_show, total, update, console), kill_when=partial(_is_half, total))
    console.step("Killed the Spark driver half-way (SIGKILL), in the middle of its micro-batches")
    lake = pipeline.Lake(folder=Path(job.folder))
    for name in pipeline.QUERIES:
        planned, committed = proof.micro_batches(lake.checkpoint(name))
        state = f"micro-batch {planned} was at work" if planned > committed else "between two micro-batches"
        console.line(f"{name}: {told.queries[name].rows:,} rows done, {state}")
    before = sum(query.rows for query in told.queries.values())
    console.step("Starting Spark again: every query goes on from its checkpoint")
    with console.progress(pipeline.QUERIES, total) as update:
        _show(total, update, console, told)
        follow(job, log, told, partial(_show, total, update, console))
    return sum(query.rows for query in told.queries.values()) - before


def _show(total: int, update: Update, console: Console, told: DriverProgress) -> None:
    """Show progress: all messages except the lag."""
    while told.restarted:
        console.line(f"{told.restarted.pop()}: its Python worker did not start in time; started again")
    for name, query in told.queries.items():
        if query.lag_messages is not None:
            size = "" if query.lag_bytes is None else f", {query.lag_bytes / 1e6:.1f} MB"
            update(name, total - query.lag_messages, f"lag {query.lag_messages:,} messages{size}")
        elif query.batches:
            update(name, query.rows, "")


def _is_half(total: int, told: DriverProgress) -> bool:
    """Return whether every query has made progress, and all together have done half of the work."""
    done = [query.rows for query in told.queries.values()]
    return min(done) > 0 and sum(done) >= total * len(done) // 2
