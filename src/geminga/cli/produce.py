"""``geminga produce``: messages from arguments, a file or standard input to a topic."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

import click

from geminga.cli.common import SECONDS, Number, emit, how_many, json_option, show_warnings
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.client.cluster import Cluster

COMPRESSIONS = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}
"""As it is written here: as the enumeration (and pulsar-client) spells it."""


def _properties(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        pairs[key] = text
    return pairs


def _contents(messages: tuple[str, ...], lines: IO[bytes] | None, repeat: int) -> Iterator[bytes]:
    if messages:
        encoded = [m.encode() for m in messages]
        for _ in range(repeat):
            yield from encoded
        return
    source = lines if lines is not None else sys.stdin.buffer
    for line in source:
        yield line.rstrip(b"\r\n")


@click.command("produce", cls=ConnectingCommand)
@click.argument("topic")
@click.option("--message", "-m", "messages", multiple=True, help="A message; may be repeated.")
@click.option(
    "--file", "-f", "lines", type=click.File("rb"), help="A message a line; without -m and -f: stdin."
)
@click.option(
    "--repeat",
    "-n",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Send the -m messages n times.",
)
@click.option("--key", "-k", help="Key of every message.")
@click.option(
    "--property", "-p", "properties", multiple=True, callback=_properties, help="NAME=VALUE; may be repeated."
)
@click.option(
    "--compression",
    type=click.Choice(tuple(COMPRESSIONS), case_sensitive=False),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)
@click.option("--rate", type=Number(min=0.001), help="At most this many messages a second.")
@click.option(
    "--timeout", "timeout_seconds", type=SECONDS, default=30.0, show_default=True,
    help="Seconds that connecting, and each receipt, may take.",
)  # fmt: skip
@connecting
@json_option
def command(
    topic: str,
    messages: tuple[str, ...],
    lines: IO[bytes] | None,
    repeat: int,
    key: str | None,
    properties: dict[str, str],
    compression: str,
    rate: float | None,
    timeout_seconds: float,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Publish to TOPIC and wait for every receipt."""
    import geminga

    show_warnings()
    failures: list[Any] = []
    last_ids: list[Any] = []

    def receipted(result: Any, message_id: Any) -> None:
        if result == geminga.Result.Ok:
            last_ids[:] = [message_id]
        else:
            failures.append(result)

    started = time.perf_counter()
    with cluster.client(operation_timeout_seconds=max(1, round(timeout_seconds))) as client:
        producer = client.create_producer(
            topic,
            send_timeout_millis=round(timeout_seconds * 1000),
            block_if_queue_full=True,
            batching_enabled=True,  # all messages have one key: no consumer tells the difference
            compression_type=geminga.CompressionType[COMPRESSIONS[compression]],
        )
        sent = 0
        for content in _contents(messages, lines, repeat):
            producer.send_async(content, receipted, properties=properties or None, partition_key=key)
            sent += 1
            if rate:
                time.sleep(max(0.0, started + sent / rate - time.perf_counter()))
        producer.flush()
        producer.close()
    seconds = time.perf_counter() - started
    value = {
        "topic": topic,
        "messages": sent - len(failures),
        "failed": len(failures),
        "seconds": round(seconds, 3),
        "last_message_id": str(last_ids[0]) if last_ids else None,
    }
    text = f"{how_many(sent - len(failures))} to {topic} in {seconds:.2f} s"
    if failures:
        reasons = ", ".join(sorted({f.name for f in itertools.islice(failures, 1000)}))
        text += f"; {len(failures)} failed ({reasons})"
    emit(value, as_json=as_json, text=text)
    if failures:
        raise click.exceptions.Exit(1)
