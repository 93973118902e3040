"""``geminga bench``: latency and throughput between this machine and a broker, in a few seconds."""

import datetime as dt
import statistics
import time
from typing import Any
from uuid import uuid4

import click

from geminga.cli.common import emit, json_option, say, show_warnings
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.units import SIZE, SPAN, size
from geminga.client.cluster import Cluster
from geminga.errors import PulsarException, Timeout

LONE_SENDS_MAX = 2000
RECEIVE_SECONDS_MAX = 60


@click.command("bench", cls=ConnectingCommand)
@click.option(
    "--seconds", "length", type=SPAN, default="3s", show_default=True,
    help="Seconds to publish in each part.",
)  # fmt: skip
@click.option(
    "--size", "payload_size", type=SIZE, default="1K", show_default=True,
    help="Payload size; the bytes are random.",
)  # fmt: skip
@click.option(
    "--partitions", "-p", type=click.IntRange(0), default=0, show_default=True,
    help="Number of partitions; 0: not partitioned.",
)  # fmt: skip
@click.option("--namespace", default="public/default", show_default=True, help="Namespace of the test topic.")
@click.option("--keep", is_flag=True, help="Do not delete the test topic.")
@connecting
@json_option
def command(
    length: dt.timedelta, payload_size: int, partitions: int, namespace: str, keep: bool, cluster: Cluster
) -> None:
    """Measure a broker with a new topic: latency of single sends, messages per second sent unbatched, sent
    in batches, and received.

    One client in one process runs the test: the broker's own limit may be higher.
    """
    import os

    show_warnings()
    topic = f"persistent://{namespace}/geminga-bench-{uuid4().hex[:10]}"
    payload = os.urandom(max(1, payload_size))
    seconds = max(0.1, length.total_seconds())
    admin = cluster.admin()
    with cluster.client() as client:
        if partitions:
            admin.topics.create(topic, partitions=partitions)
        try:
            lone = _lone(client, topic, payload, seconds)
            _say("a send, waited for", lone)
            published = int(lone["messages"])
            for name, batching in (("published one by one", False), ("published in batches", True)):
                found = _publish(client, topic, payload, seconds, batching)
                published += int(found["messages"])
                _say(name, found)
            _say("received", _receive(client, topic, published, len(payload)))
        finally:
            if not keep:
                try:
                    admin.topics.delete(topic, force=True)
                except PulsarException as error:
                    say(f"geminga: {topic} is still there: {error}")


def _say(name: str, found: dict[str, Any]) -> None:
    parts = [f"{found['messages']:,} messages"]
    if "p50_ms" in found:
        parts.append(f"{found['p50_ms']:.2f} ms (p50), {found['p99_ms']:.2f} ms (p99)")
    else:
        parts.append(f"{found['messages_per_second']:,.0f}/s, {size(found['megabytes_per_second'] * 1e6)}/s")
    emit({"part": name, **found}, f"{name:<22} {'; '.join(parts)}")


def _lone(client: Any, topic: str, payload: bytes, seconds: float) -> dict[str, Any]:
    """Measure the latency of sends; each starts after the previous send's receipt."""
    producer = client.create_producer(topic)
    producer.send(payload)  # the connection is made, the topic loaded
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end and len(times) < LONE_SENDS_MAX:
        producer.send(payload)
        times.append((time.perf_counter() - began) * 1000)
    producer.close()
    cuts = statistics.quantiles(times, n=100) if len(times) > 1 else times * 99
    return {"messages": len(times) + 1, "p50_ms": round(cuts[49], 3), "p99_ms": round(cuts[98], 3)}


def _publish(client: Any, topic: str, payload: bytes, seconds: float, batching: bool) -> dict[str, Any]:
    import geminga

    failures: list[Any] = []

    def receipted(result: Any, _message_id: Any) -> None:
        if result != geminga.Result.Ok:
            failures.append(result)

    producer = client.create_producer(
        topic, batching_enabled=batching, block_if_queue_full=True, max_pending_messages=20_000
    )
    sent, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            producer.send_async(payload, receipted)
        sent += 100
    producer.flush()
    elapsed = time.perf_counter() - began
    producer.close()
    if failures:
        raise PulsarException(f"{len(failures)} of {sent} messages failed, the first with {failures[0]}")
    return _rates(sent, elapsed, len(payload))


def _receive(client: Any, topic: str, expected: int, size: int) -> dict[str, Any]:
    import geminga

    reader = client.create_reader(topic, geminga.MessageId.earliest)
    received, began = 0, time.perf_counter()
    deadline = began + RECEIVE_SECONDS_MAX
    while received < expected:
        if time.perf_counter() > deadline:
            raise Timeout(f"{received} of {expected} messages came within {RECEIVE_SECONDS_MAX} s")
        reader.read_next(10_000)
        received += 1
    elapsed = time.perf_counter() - began
    reader.close()
    return _rates(received, elapsed, size)


def _rates(messages: int, seconds: float, size: int) -> dict[str, Any]:
    return {
        "messages": messages,
        "seconds": round(seconds, 3),
        "messages_per_second": round(messages / seconds, 1),
        "megabytes_per_second": round(messages * size / seconds / 1e6, 3),
    }
