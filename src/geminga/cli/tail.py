"""``geminga tail``: print a topic's messages as they are published."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import click

from geminga.cli.common import json_option, pairs, show_warnings
from geminga.cli.connecting import ConnectingCommand, check_exists, connecting
from geminga.cli.consume import describe, open_reader, schema_arguments
from geminga.cli.peek import decode_option, show
from geminga.cli.units import PATTERN, SPAN, WHERE, Where
from geminga.client.cluster import Cluster
from geminga.errors import Timeout
from geminga.ids import MessageId

_POLL_MS = 500
"""Interval at which Ctrl-C and the end of --for are checked."""


@click.command("tail", cls=ConnectingCommand)
@click.argument("topic")
@click.option(
    "--since", "--from", type=WHERE, metavar="WHERE", default=MessageId.latest,
    help="Start: '10m ago', a time, earliest or LEDGER:ENTRY.  [default: now]",
)  # fmt: skip
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--key", help="Only messages with this key.")
@click.option("--grep", type=PATTERN, metavar="REGEX", help="Only messages whose text matches.")
@click.option(
    "--property", "-p", "properties", multiple=True, metavar="NAME=VALUE", callback=pairs,
    help="Only messages with this property; may be repeated.",
)  # fmt: skip
@decode_option
@click.option(
    "--for", "seconds", type=SPAN, metavar="TIME", help="Stop after this time.  [default: at Ctrl-C]"
)
@connecting
@json_option
def command(
    topic: str,
    since: Where,
    count: int | None,
    key: str | None,
    grep: re.Pattern[str] | None,
    properties: dict[str, str],
    decode: bool,
    seconds: dt.timedelta | None,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Print new messages of TOPIC as they are published, one per line, until Ctrl-C.

    Uses a reader: creates no durable subscription and acknowledges nothing.
    """
    import time

    show_warnings()
    deadline = None if seconds is None else time.monotonic() + seconds.total_seconds()
    with cluster.client() as client:
        check_exists(client, topic)
        reader = open_reader(client, topic, since, **schema_arguments(decode))
        printed = 0
        while count is None or printed < count:
            left = _POLL_MS
            if deadline is not None:
                left = min(left, max(0, round((deadline - time.monotonic()) * 1000)))
            try:
                message = reader.read_next(left)
            except Timeout:
                if deadline is not None and time.monotonic() >= deadline:
                    break
                continue
            row = describe(message, decode)
            if not _matches(row, key, grep, properties):
                continue
            show(row, as_json)
            printed += 1


def _matches(
    row: dict[str, Any], key: str | None, grep: re.Pattern[str] | None, wanted: dict[str, str]
) -> bool:
    if key is not None and row["key"] != key:
        return False
    if any(row["properties"].get(name) != value for name, value in wanted.items()):
        return False
    return grep is None or grep.search(str(row.get("value", ""))) is not None
