"""``geminga produce``: publish messages from arguments, a file or standard input to a topic."""

import base64
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import click

from geminga.cli.common import (
    SECONDS,
    Number,
    WordChoice,
    emit,
    json_option,
    pairs,
    say,
    show_warnings,
    wants_json,
)
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.peek import info_of
from geminga.cli.units import id_text
from geminga.client.cluster import Cluster
from geminga.diagnosis.commands import how_many
from geminga.errors import CorruptPayload

COMPRESSIONS = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}
"""Value of --compression: name in `geminga.CompressionType`."""
_PROGRESS_SECONDS = 0.5
_INTERRUPTED = 130


def _lines(messages: tuple[str, ...], lines: IO[bytes] | None, repeat: int) -> Iterator[bytes]:
    if messages:
        encoded = [m.encode(errors="surrogateescape") for m in messages]  # the bytes that were given
        for _ in range(repeat):
            yield from encoded
        return
    if lines is None and sys.stdin.isatty():
        say("one message per line; end with Ctrl-D")
    for line in lines if lines is not None else sys.stdin.buffer:
        yield line.rstrip(b"\r\n")


class _Form(NamedTuple):
    """Form of the lines: what each holds besides its value, and the encoder of values in JSON, if any."""

    common: dict[str, Any]
    separator: str | None
    from_json: bool
    encode: Callable[[Any], bytes] | None

    def arguments(self, line: bytes) -> dict[str, Any]:
        """Return the arguments of a send. Raises `ValueError` for a line of the wrong form."""
        send: dict[str, Any] = {**self.common, "content": line}
        if self.separator is not None:
            key, found, send["content"] = line.partition(self.separator.encode())
            if not found:
                raise ValueError(f"no {self.separator!r} after the key")
            send["partition_key"] = key.decode()
        elif self.from_json:
            row = json.loads(line)
            if not isinstance(row, dict) or not row.keys() & {"value", "value_base64"}:
                raise ValueError('no JSON object with "value" or "value_base64"')
            send["content"] = row.get("value", base64.b64decode(row.get("value_base64", ""), validate=True))
            send["partition_key"] = row.get("key") or self.common["partition_key"]
            send["properties"] = {**self.common["properties"], **(row.get("properties") or {})}
            send["event_timestamp"] = row.get("event_time")
        value = send["content"]
        if self.encode is not None:
            send["content"] = self.encode(json.loads(value) if isinstance(value, bytes) else value)
        elif not isinstance(value, bytes):
            send["content"] = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        return send


class _Receipts:
    """Counts of sent and stored messages; printed on a terminal while messages are sent."""

    def __init__(self) -> None:
        self.sent = self.stored = 0
        self.failures: list[Any] = []
        self.last_id: Any = None
        self.started = self._shown = time.perf_counter()
        self._is_shown = sys.stderr.isatty() and not wants_json()

    def receipted(self, result: Any, message_id: Any) -> None:
        if result.name == "Ok":
            self.stored += 1
            self.last_id = message_id
        else:
            self.failures.append(result)

    def count(self) -> None:
        self.sent += 1
        if self._is_shown and (now := time.perf_counter()) - self._shown > _PROGRESS_SECONDS:
            self._shown = now
            say(f"\r\x1b[K{self.sent:,} sent, {self.stored:,} stored", nl=False)

    def report(self, topic: str) -> None:
        seconds = time.perf_counter() - self.started
        value = {
            "topic": topic,
            "messages": self.stored,
            "failed": len(self.failures),
            "seconds": round(seconds, 3),
            "last_message_id": None if self.last_id is None else id_text(self.last_id),
        }
        text = f"{how_many(self.stored)} to {topic} in {seconds:.2f} s"
        if self.failures:
            reasons = ", ".join(sorted({f.name for f in itertools.islice(self.failures, 1000)}))
            text += f"; {len(self.failures):,} failed ({reasons})"
        if unknown := self.sent - self.stored - len(self.failures):
            text += f"; {unknown:,} sent without a receipt: they may be stored or not"
        if self._shown > self.started:
            say("\r\x1b[K", nl=False)
        emit(value, text, is_done=True)


@click.command("produce", cls=ConnectingCommand)
@click.argument("topic")
@click.argument("values", nargs=-1, metavar="[MESSAGE]...")
@click.option("--message", "-m", "messages", multiple=True, help="Message text; may be repeated.")
@click.option(
    "--file", "-f", "lines", type=click.File("rb"),
    help="File with one message per line; without messages and -f: stdin.",
)  # fmt: skip
@click.option(
    "--repeat", "-n", type=click.IntRange(1), default=1, show_default=True,
    help="Send the messages of the command line this many times.",
)  # fmt: skip
@click.option("--key", "-k", help="Key of every message.")
@click.option(
    "--property", "-p", "properties", multiple=True, callback=pairs, help="NAME=VALUE; may be repeated."
)
@click.option("--key-separator", metavar="TEXT", help="Each line is a key, TEXT and a value.")
@click.option(
    "--from-json", is_flag=True,
    help="Each line is an object with value, key, properties and event_time, as of `consume --json`.",
)  # fmt: skip
@click.option(
    "--schema", "by_schema", is_flag=True, help="Values are JSON; encode them by the topic's schema."
)
@click.option(
    "--compression", type=WordChoice(tuple(COMPRESSIONS)), default="none", show_default=True,
    help="Compression of batches.",
)  # fmt: skip
@click.option("--rate", type=Number(min=0.001), help="Limit in messages per second.")
@click.option(
    "--timeout", "timeout_seconds", type=SECONDS, default="30s", show_default=True,
    help="Time limit for connecting and for each receipt: seconds, or such as 1m.",
)  # fmt: skip
@connecting
@json_option
def command(
    topic: str,
    values: tuple[str, ...],
    messages: tuple[str, ...],
    lines: IO[bytes] | None,
    repeat: int,
    key: str | None,
    properties: dict[str, str],
    key_separator: str | None,
    from_json: bool,
    by_schema: bool,
    compression: str,
    rate: float | None,
    timeout_seconds: float,
    cluster: Cluster,
) -> None:
    """Publish MESSAGEs, or lines of a file or of standard input, to TOPIC and wait for every receipt.

    At Ctrl-C the number of stored messages is printed.
    """
    import geminga

    if lines is not None and (messages or values):
        raise click.UsageError("give either messages or --file")
    if from_json and key_separator is not None:
        raise click.UsageError("give either --from-json or --key-separator")
    show_warnings()
    encode = _encoder(cluster, topic) if by_schema else None
    form = _Form({"properties": properties, "partition_key": key}, key_separator, from_json, encode)
    texts = _lines((*messages, *values), lines, repeat)
    receipts, code = _Receipts(), 0
    with cluster.client(operation_timeout_seconds=max(1, round(timeout_seconds))) as client:
        producer = client.create_producer(
            topic,
            send_timeout_millis=round(timeout_seconds * 1000),
            block_if_queue_full=True,
            batching_enabled=True,
            batching_type=geminga.BatchingType.KeyBased,
            compression_type=geminga.CompressionType[COMPRESSIONS[compression]],
            schema=geminga.schema.AutoProduceBytesSchema() if by_schema else None,
        )
        try:
            _send(producer, texts, form, receipts, rate)
            producer.flush()
        except KeyboardInterrupt:
            code = _INTERRUPTED
        finally:
            with contextlib.suppress(KeyboardInterrupt):
                producer.close()
            receipts.report(topic)
    if code or receipts.failures:
        raise click.exceptions.Exit(code or 1)


def _send(
    producer: Any, lines: Iterator[bytes], form: _Form, receipts: _Receipts, rate: float | None
) -> None:
    for number, line in enumerate(lines, start=1):
        try:
            producer.send_async(callback=receipts.receipted, **form.arguments(line))
        except (ValueError, TypeError, RecursionError, CorruptPayload) as error:
            raise click.ClickException(f"line {number}: {error}") from None
        receipts.count()
        if rate:
            time.sleep(max(0.0, receipts.started + number / rate - time.perf_counter()))


def _encoder(cluster: Cluster, topic: str) -> Callable[[Any], bytes]:
    """Return the encoder of the topic's schema."""
    from geminga.schema.from_json import json_encoder

    found = cluster.admin().schemas.get(topic)
    if found is None:
        raise click.UsageError(
            f"--schema: {topic} has no schema; register one: geminga schemas upload --help"
        )
    return json_encoder(info_of(found))
