"""Costs of a mirror: the CPU of its process for a message, and its rate.

``python -m benchmarks.mirror [--apache-pulsar HOME]`` starts a Geminga and, as the target, another or a real
Apache Pulsar, publishes to the source, and mirrors it from a process of its own. CPU is that of the mirror's
process from its first to its last receipt; on a busy machine it is more reliable than the rate, which is that
of the slowest of the three.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import geminga
from benchmarks import brokers
from benchmarks.harness import python
from geminga.mirror import Cluster, Mirror, MirrorSettings

SIZE = 100
WARM = 0.1
"""Share of the messages that is not counted."""


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _mirror(source: Cluster, target: Cluster, topic: str, messages: int) -> None:
    """In a process of its own: a line of JSON with messages, seconds, CPU seconds and resident bytes."""
    settings = MirrorSettings(source=source, target=target, topics=[topic], subscriptions=False)
    with Mirror(settings) as mirror:
        while mirror.status().messages < messages * WARM:
            time.sleep(0.002)
        first, started, before = mirror.status().messages, time.perf_counter(), _cpu()
        while mirror.status().messages < messages:
            time.sleep(0.002)
        seconds, cpu = time.perf_counter() - started, _cpu() - before
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([messages - first, seconds, cpu, resident]), flush=True)


def _publish(source: Cluster, topic: str, messages: int, batch: int, partitions: int) -> None:
    with source.admin() as admin:
        admin.topics.create(topic, partitions=partitions)
        admin.subscriptions.create(topic, "keeps", position=geminga.MessageId.earliest)
    with source.client() as client:
        producer = client.create_producer(
            topic, batching_enabled=batch > 1, batching_max_messages=max(1, batch),
            batching_max_allowed_size_in_bytes=1 << 20, block_if_queue_full=True, max_pending_messages=20_000,
        )  # fmt: skip
        values = [os.urandom(SIZE) for _ in range(10_000)]
        for _ in range(messages // len(values)):
            producer.send_many(values)
        producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apache-pulsar", type=Path, metavar="HOME", help="the target is a real one")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--singles", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        source, target = (Cluster(**json.loads(text)) for text in given.child[:2])
        topic, _, messages = given.child[2].partition(" ")
        _mirror(source, target, topic, int(messages))
        return
    with ExitStack() as stack:
        folder = stack.enter_context(brokers.work_folder())
        source = _cluster(stack.enter_context(brokers.geminga(folder / "source")))
        if given.apache_pulsar:
            from geminga.testing.apache_pulsar import ApachePulsar

            pulsar = stack.enter_context(ApachePulsar.start(given.apache_pulsar, folder / "target"))
            target = Cluster(service_url=pulsar.service_url, admin_url=pulsar.admin_url)
        else:
            target = _cluster(stack.enter_context(brokers.geminga(folder / "target")))
        print(f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
        for run in range(given.runs):
            for kind, messages, batch, partitions in (
                ("batches of 1000", given.messages, 1000, 0),
                ("batches of 1000, 4 partitions", given.messages, 1000, 4),
                ("batches of 100", given.messages, 100, 0),
                ("single messages", given.singles, 1, 0),
            ):
                topic = f"run-{run}-{batch}-{partitions}"
                _publish(source, topic, messages, batch, partitions)
                ends = [json.dumps(one.as_dict()) for one in (source, target)]
                command = python("benchmarks.mirror", "--child", *ends, f"{topic} {messages}")
                done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
                count, seconds, cpu, resident = json.loads(done.stdout)
                print(
                    f"{kind:32} {count / seconds:12,.0f} msg/s {cpu / count * 1e6:8.3f} µs CPU a message "
                    f"{resident / 1e6:6.0f} MB   load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )


def _cluster(broker: brokers.RunningBroker) -> Cluster:
    """Return the addresses of a broker once its web server answers."""
    cluster = Cluster(service_url=broker.service_url, admin_url=broker.admin_url)
    deadline = time.monotonic() + 60
    while True:
        try:
            with cluster.admin() as admin:
                admin.clusters.list()
            return cluster
        except geminga.PulsarException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
