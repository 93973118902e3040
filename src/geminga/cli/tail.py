"""``geminga tail``: print a topic's messages as they are published."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from typing import Any

import click

from geminga.cli.common import json_option, show_warnings
from geminga.cli.connecting import ConnectingCommand, check_exists, connecting
from geminga.cli.consume import describe
from geminga.cli.peek import line
from geminga.cli.units import SPAN
from geminga.client.cluster import Cluster
from geminga.errors import Timeout

_POLL_MS = 500
"""Interval at which Ctrl-C and the end of --for are checked."""


class _Pattern(click.ParamType):  # type: ignore[type-arg]  # no subscript before click 8.4
    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return re.compile(value)
        except re.error as error:
            self.fail(f"{value!r} is no regular expression: {error}", param, ctx)


@click.command("tail", cls=ConnectingCommand)
@click.argument("topic")
@click.option(
    "--since", type=SPAN, help="Start with messages published this long ago, such as 10m.  [default: now]"
)
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--key", help="Only messages with this key.")
@click.option("--grep", type=_Pattern(), metavar="REGEX", help="Only messages whose text matches.")
@click.option(
    "--property",
    "-p",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only messages with this property; may be repeated.",
)
@click.option("--decode", is_flag=True, help="Decode values by the topic's schema.")
@click.option(
    "--for", "seconds", type=SPAN, metavar="TIME", help="Stop after this time.  [default: at Ctrl-C]"
)
@connecting
@json_option
def command(
    topic: str,
    since: dt.timedelta | None,
    count: int | None,
    key: str | None,
    grep: re.Pattern[str] | None,
    properties: tuple[str, ...],
    decode: bool,
    seconds: dt.timedelta | None,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Print new messages of TOPIC as they are published, one per line, until Ctrl-C.

    Uses a reader: creates no durable subscription and acknowledges nothing.
    """
    import time

    import geminga

    wanted = dict(_pair(text) for text in properties)
    show_warnings()
    deadline = None if seconds is None else time.monotonic() + seconds.total_seconds()
    arguments: dict[str, Any] = {}
    if decode:
        from geminga.schema import AutoConsumeSchema

        arguments["schema"] = AutoConsumeSchema()
    with cluster.client() as client:
        check_exists(client, topic)
        if since is None:
            reader = client.create_reader(topic, geminga.MessageId.latest, **arguments)
        else:
            reader = client.create_reader(topic, start_time=since, **arguments)
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
            row = describe(message)
            if decode:
                row["value"] = _plain(message.value())
                row.pop("value_base64", None)
            if not _matches(row, key, grep, wanted):
                continue
            click.echo(json.dumps(row, separators=(",", ":"), default=str) if as_json else line(row))
            printed += 1


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


def _matches(
    row: dict[str, Any], key: str | None, grep: re.Pattern[str] | None, wanted: dict[str, str]
) -> bool:
    if key is not None and row["key"] != key:
        return False
    if any(row["properties"].get(name) != value for name, value in wanted.items()):
        return False
    return grep is None or grep.search(str(row.get("value", ""))) is not None


def _plain(value: Any) -> Any:
    """Return a decoded value as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if hasattr(value, "__dict__"):
        return {name: _plain(one) for name, one in vars(value).items() if not name.startswith("_")}
    return value
