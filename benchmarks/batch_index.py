"""CPU a message of the client and of the broker, with batch index acknowledgement and without.

    python -m benchmarks.batch_index [--rounds 3] [--no-apache]

A Shared consumer takes messages of 100 bytes one by one, from batches of 10 and of 1,000, and acknowledges
them in order, or as 64 workers of different speed do (one of the last 64, at random). Apache Pulsar runs
twice: with its default, with which the broker ignores batch indexes, and with
acknowledgmentAtBatchIndexLevelEnabled. Runs with and without take turns; the result is in
docs/decisions/batch-index-acks.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import geminga
from benchmarks import brokers
from benchmarks.harness import cpu_seconds
from geminga.testing.apache_pulsar import ApachePulsar

MESSAGES = 120_000
WORKERS = 64
BATCHES = (10, 1000)
ORDERS = ("in order", "as workers")


def cpu_of(process_id: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(url: str, topic: str, batch: int) -> None:
    with geminga.Client(url) as client:
        client.subscribe(topic, "keeps", initial_position=geminga.InitialPosition.Earliest).close()
        with client.create_producer(
            topic, batching_enabled=True, batching_max_messages=batch, block_if_queue_full=True
        ) as producer:
            producer.send_many([b"x" * 100] * MESSAGES, callback=lambda _: None)
            producer.flush()


def one(url: str, topic: str, order: str, told: bool) -> float:
    """Receive and acknowledge all messages in this process; return the CPU seconds."""
    client = geminga.Client(url)
    consumer = client.subscribe(
        topic, f"s-{time.time_ns()}", geminga.ConsumerType.Shared, receiver_queue_size=10_000,
        initial_position=geminga.InitialPosition.Earliest, batch_index_ack_enabled=told,
    )  # fmt: skip
    pick, held = random.Random(1).randrange, []
    before = cpu_seconds()
    for _ in range(MESSAGES):
        message = consumer.receive(30_000)
        if order == ORDERS[0]:
            consumer.acknowledge(message)
            continue
        held.append(message)
        if len(held) == WORKERS:
            place = pick(WORKERS)
            held[place], held[-1] = held[-1], held[place]
            consumer.acknowledge(held.pop())
    for message in held:
        consumer.acknowledge(message)
    consumer.close()
    return cpu_seconds() - before


def measure(who: str, url: str, process_id: int, rounds: int) -> None:
    for batch in BATCHES:
        topic = f"persistent://public/default/batches-of-{batch}"
        fill(url, topic, batch)
        found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        for _, order, told in itertools.product(range(rounds), ORDERS, (False, True)):
            before = cpu_of(process_id)
            command = [sys.executable, "-m", "benchmarks.batch_index", "--one", url, topic, order, str(told)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
            client = json.loads(done.stdout)
            of_each = (client / MESSAGES * 1e6, (cpu_of(process_id) - before) / MESSAGES * 1e6)
            found.setdefault((order, told), []).append(of_each)
        for order in ORDERS:
            cells = []
            for side in (0, 1):
                without, told_it = (
                    statistics.median(each[side] for each in found[order, told]) for told in (False, True)
                )
                cells.append(f"{without:.2f} -> {told_it:.2f}")
            print(f"| {who} | {batch} | {order} | {cells[0]} | {cells[1]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-apache", action="store_true")
    given = parser.parse_args()
    if given.one:
        url, topic, order, told = given.one
        print(json.dumps(one(url, topic, order, told == "True")), flush=True)
        os._exit(0)
    print(f"load {os.getloadavg()[0]:.1f}; µs of CPU a message, without -> with batch indexes")
    print("| broker | messages a batch | acknowledged | client | broker |\n|---|---|---|---|---|", flush=True)
    with brokers.work_folder() as folder:
        with brokers.geminga(folder) as ours:
            measure(ours.who, ours.service_url, ours.pid, given.rounds)
        if given.no_apache:
            return
        for name, taken in (("its default", False), ("takes batch indexes", True)):
            with ApachePulsar.start(
                brokers.pulsar_home(), folder / name.replace(" ", "-"),
                acknowledgmentAtBatchIndexLevelEnabled=taken,
            ) as apache:  # fmt: skip
                measure(
                    f"{brokers.APACHE}, {name}", apache.service_url, apache.process.process.pid, given.rounds
                )


if __name__ == "__main__":
    main()
