"""The whole demo: broker, publishing, Spark with a killed driver, proof, summary."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import fs

import geminga
from geminga.client.admin.sync import Admin
from geminga.demo import driver, flights, proof
from geminga.demo.flights import Checksum
from geminga.errors import PulsarException, UsageError
from geminga.spark.source.offset_log import last_batch

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS = 4
ROWS_PER_BATCH = 40_000
BATCHES_MIN = 8
"""Minimum number of micro-batches of a query, so that it can be killed between them."""
KILLED_AFTER = 2
"""Micro-batches that every query has committed when the driver is killed."""
POLL_SECONDS = 0.1
MARKER = ".geminga-demo"

Say = Callable[[str], None]


class ProofFailed(PulsarException):
    """Lake or rollup differ from the published events: rows were lost or duplicated."""


class SparkFailed(PulsarException):
    """The Spark driver ended before it was done. Its log has details."""


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


def publish_rows(client: Any, table: pa.Table) -> None:
    """Publish with one ``send_async`` per event, as ordinary programs do."""
    keys = table.column("key").to_pylist()
    values = table.column("value").to_pylist()
    times = table.column("event_time").cast("int64").to_pylist()
    failed: list[Any] = []

    def receipted(result: Any, _message_id: Any) -> None:
        if result != geminga.Result.Ok:
            failed.append(result)

    with client.create_producer(
        driver.TOPIC,
        batching_enabled=True,
        block_if_queue_full=True,
        compression_type=geminga.CompressionType.LZ4,
    ) as producer:
        for key, value, event_time in zip(keys, values, times, strict=True):
            producer.send_async(value, receipted, partition_key=key, event_timestamp=event_time)
        producer.flush()
    if failed:
        raise ProofFailed(f"{len(failed)} of {len(values)} sends were not receipted: {failed[0]}")


def publish_columns(client: Any, table: pa.Table) -> None:
    """Publish the events as Arrow tables."""
    with client.create_producer(driver.TOPIC, compression_type=geminga.CompressionType.LZ4) as producer:
        for first in range(0, table.num_rows, 50_000):
            producer.send_table(table.slice(first, 50_000))


def run_demo(folder: Path, say: Say, *, rows: int | None = None) -> dict[str, Any]:
    """Run everything and return a summary; ``say`` is called with each step's description.

    Raises `ProofFailed` if a row is missing or duplicated, and `SparkFailed` if Spark fails.
    """
    from geminga.spark.java import check_java

    check_java()  # fail before minutes of work, not after
    folder = prepare_folder(folder)
    say("Reading the flights")
    table = flights.events(rows)
    published: dict[str, float] = {}
    # Exactly-once needs the broker's deduplication.
    with geminga.embedded(folder / "store", deduplication=True) as broker:
        say(f"Broker at {broker.service_url}, its store in {folder / 'store'}: every receipt synced")
        Admin(broker.admin_url).topics.create(driver.TOPIC, partitions=PARTITIONS)
        half = table.num_rows // 2
        with broker.client() as client:
            for how, publish, part in (
                ("rows", publish_rows, table.slice(0, half)),
                ("columns", publish_columns, table.slice(half)),
            ):
                started = time.perf_counter()
                publish(client, part)
                published[how] = round(part.num_rows / (time.perf_counter() - started))
                say(f"Published {part.num_rows:,} events as {how}: {published[how]:,} a second")
            per_batch = min(ROWS_PER_BATCH, max(1, table.num_rows // BATCHES_MIN))
            command = [broker.service_url, str(folder), str(per_batch)]
            say(f"Starting Spark; what it prints goes to {folder / 'spark.log'}")
            _drive(folder, command, say, is_enough=lambda: min(_committed(folder)) >= KILLED_AFTER - 1)
            say(f"Killed the Spark driver (SIGKILL) after micro-batches {_committed(folder)} of its queries")
            say("Starting Spark again: every query goes on from its checkpoint")
            started = time.perf_counter()
            _drive(folder, command, say)
            seconds = round(time.perf_counter() - started, 1)
            say("Reading the rollup back from its topic, and the lake from its files")
            messages = proof.messages(client, driver.ROLLUP_TOPIC)
    expected = Checksum.of(table.column("value").to_pylist())
    found = proof.account(expected, proof.rows(driver.lake(folder)), messages)
    if not found["is_equal"]:
        raise ProofFailed(f"what was published is not what was found: {found}")
    return {
        "published_per_second": published,
        "seconds_after_kill": seconds,
        "lake": driver.lake(folder),
        "proof": found,
    }


def _committed(folder: Path) -> list[int]:
    """Return the last committed micro-batch of each query; -1 before the first."""
    system = fs.LocalFileSystem()
    return [last_batch(system, f"{driver.checkpoint(folder, query)}/commits") for query in driver.QUERIES]


def _drive(
    folder: Path, arguments: list[str], say: Say, *, is_enough: Callable[[], bool] | None = None
) -> None:
    """Run a driver until it is done, or until ``is_enough``: then kill it. One that ends too early is started
    again, once: on a loaded machine, Spark's Python workers may not start in time."""
    try:
        run_driver(folder / "spark.log", arguments, is_enough)
    except SparkFailed as error:
        say(f"{error}. Starting it again")
        run_driver(folder / "spark.log", arguments, is_enough)


def run_driver(log: Path, arguments: list[str], is_enough: Callable[[], bool] | None) -> None:
    """Run a driver, with its JVM and workers, until it is done or ``is_enough``; none outlives this call.
    Raises `SparkFailed` if it ends before."""
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [sys.executable, "-m", driver.__name__, *arguments],
            stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            while process.poll() is None:
                if is_enough is not None and is_enough():
                    return
                time.sleep(POLL_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode or is_enough is not None:
        raise SparkFailed(f"The Spark driver ended by itself; its log is {log}")
