"""Offloading: its size and speed, reading files back, its effect on publishing, and Spark.

Run: ``python -m benchmarks.offload [--only files|beside|spark]``; prints Markdown tables, and ratios in the
last line. *Files*: JSON of about 100 B and, for the worst case, random bytes of 100 B, in batches of 1,000;
CPU is that of all threads of the broker's process, and during an offload that of the process that makes the
files. The others: `benchmarks.offload_beside`, `benchmarks.offload_spark`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

import geminga
from benchmarks import brokers, load, offload_beside
from benchmarks.brokers import RunningBroker
from benchmarks.harness import children_of, process_cpu_seconds
from geminga.client.admin import admin, topic_path
from geminga.ids import TopicName
from geminga.offload.storage import folder_of

BATCH = 1_000
PARTS = ("files", "beside", "spark")
COLUMNAR_RUNS = 4
DROPPED_SECONDS = 5.0
"""By then the copies in the store are checked and gone."""


def values(kind: str, count: int) -> pa.Array:
    chance = random.Random(count)
    if kind == "random":
        return pa.array([chance.randbytes(100) for _ in range(count)], pa.binary())
    origins = ("JFK", "LGA", "EWR")
    return pa.array(
        [
            b'{"flight": "UA%d", "origin": "%s", "delay": %d, "scheduled": %d, "tail": "N%05dUA", "leg": %d}'
            % (
                chance.randrange(2000), origins[number % 3].encode(), chance.randrange(-20, 400),
                1_357_034_400 + 60 * (number // 9), chance.randrange(4000), number,
            )
            for number in range(count)
        ],
        pa.binary(),
    )  # fmt: skip


def fill(
    broker: RunningBroker, topic: str, kind: str, messages: int, compression: str, batch: int = BATCH
) -> None:
    """Publish, and see that the ledger is closed."""
    with geminga.Client(broker.service_url) as client:
        producer = client.create_producer(
            topic, batching_enabled=batch > 1, batching_max_messages=batch,
            batching_max_allowed_size_in_bytes=4 << 20,
            compression_type=getattr(geminga.CompressionType, compression),
        )  # fmt: skip
        table = pa.table({"value": values(kind, 100_000)})
        for _ in range(messages // 100_000):
            producer.send_table(table)
        producer.flush()
    path = topic_path(TopicName.parse(topic))
    admin(broker.admin_url, "PUT", f"{path}/unload")
    with geminga.Client(broker.service_url) as client:
        client.create_producer(topic).send(b"the next ledger begins")


def cpu_seconds(broker: RunningBroker) -> float:
    """CPU of the broker and of the processes that it has started."""
    return sum(process_cpu_seconds(each) for each in (broker.pid, *children_of(broker.pid)))


def offload(broker: RunningBroker, topic: str) -> tuple[float, float, int]:
    """Seconds, CPU seconds and ledger bytes of offloading all that is closed."""
    path = topic_path(TopicName.parse(topic))
    newest = admin(broker.admin_url, "GET", f"{path}/internalStats")["ledgers"][-1]["ledgerId"]
    cpu, start = cpu_seconds(broker), time.perf_counter()
    admin(
        broker.admin_url, "PUT", f"{path}/offload", {"ledgerId": newest, "entryId": 0, "partitionIndex": -1}
    )
    while (found := admin(broker.admin_url, "GET", f"{path}/offload"))["status"] == "RUNNING":
        time.sleep(0.2)  # to be asked costs the broker's event loop as much as 100 kB of messages
    if found["status"] != "SUCCESS":
        raise RuntimeError(found["lastError"])
    seconds, cpu = time.perf_counter() - start, cpu_seconds(broker) - cpu
    return seconds, cpu, admin(broker.admin_url, "GET", f"{path}/stats")["offloadedStorageSize"]


def files_of(folder: Path, topic: str) -> list[Path]:
    return sorted((folder / "tier" / folder_of(topic)).glob("*.parquet"))


def sizes_and_rates(folder: Path, broker: RunningBroker, messages: int) -> None:
    print(
        "| messages | file / ledger | written | CPU µs | to a consumer | CPU µs | columnar, value "
        "| all columns |"
    )
    print("|---|---|---|---|---|---|---|---|")
    offload_warm = "persistent://public/default/warm"
    fill(broker, offload_warm, "json", 100_000, "NONE")
    offload(broker, offload_warm)
    for kind, compression in (("json", "NONE"), ("json", "LZ4"), ("json", "ZSTD"), ("random", "NONE")):
        topic = f"persistent://public/default/{kind}-{compression.lower()}"
        fill(broker, topic, kind, messages, compression)
        seconds, cpu, ledger_bytes = offload(broker, topic)
        files = files_of(folder, topic)
        ratio = sum(file.stat().st_size for file in files) / ledger_bytes
        time.sleep(DROPPED_SECONDS)
        path = topic_path(TopicName.parse(topic))
        ledgers = admin(broker.admin_url, "GET", f"{path}/internalStats")["ledgers"]
        receiver = load.Receiver(broker.address, topic, "all")
        read_cpu = process_cpu_seconds(broker.pid)
        read_seconds = receiver.receive(
            entries=sum(each["entries"] for each in ledgers), messages=BATCH, permits=200_000
        )
        read_cpu = process_cpu_seconds(broker.pid) - read_cpu
        receiver.close()
        columnar = []
        for columns in (["value"], None):
            rates = []
            for _ in range(COLUMNAR_RUNS):
                start = time.perf_counter()
                rows = ds.dataset(files, format="parquet").to_table(columns=columns).num_rows
                rates.append(rows / (time.perf_counter() - start))
            columnar.append(statistics.median(rates[1:]))  # the first one waits for its memory
        print(
            f"| {kind}, {compression} | {ratio:.2f} | {messages / seconds / 1e6:.2f} M/s "
            f"| {cpu / messages * 1e6:.2f} | {messages / read_seconds / 1e6:.2f} M/s "
            f"| {read_cpu / messages * 1e6:.2f} | {columnar[0] / 1e6:.1f} M/s "
            f"| {columnar[1] / 1e6:.1f} M/s |",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated (default: all)")
    parser.add_argument("--messages", type=int, default=2_000_000, help="of each kind of file")
    parser.add_argument("--rounds", type=int, default=5, help="brokers beside which it is offloaded")
    parser.add_argument("--cycles", type=int, default=2, help="times ABBA in a round")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each window")
    parser.add_argument("--placements", action="store_true", help="also with files and log in memory")
    parser.add_argument("--whole", type=int, default=0, metavar="PAIRS", help="also whole turns")
    parser.add_argument("--rows", type=int, default=4_000_000, help="in Spark")
    parser.add_argument("--ledgers", type=int, default=4, help="in Spark")
    parser.add_argument("--runs", type=int, default=7, help="pairs of queries in Spark")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    parts = given.only or PARTS
    told = []
    if "files" in parts:
        with brokers.work_folder(given.folder) as folder:
            extra = ("--offload-location", str(folder / "tier"))
            with brokers.geminga(folder, extra=extra) as broker:
                admin(broker.admin_url, "PUT", "namespaces/public/default/offloadDeletionLagMs", 0)
                sizes_and_rates(folder, broker, given.messages)
    if "beside" in parts:
        told.append(
            offload_beside.measure(
                given.folder, rounds=given.rounds, seconds=given.seconds, cycles=given.cycles,
                wholes=given.whole, placements=given.placements,
            )
        )  # fmt: skip
    if "spark" in parts:
        from benchmarks import offload_spark

        told.append(
            offload_spark.measure(given.folder, rows=given.rows, ledgers=given.ledgers, runs=given.runs)
        )
    print(f"\n{'; '.join(told)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
