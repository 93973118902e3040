"""``geminga peek``: print the next messages of a subscription without consuming them."""

import base64
import dataclasses
import datetime as dt
import functools
import json
import re
from typing import Any, NamedTuple

import click

from geminga.cli.common import json_option, pairs, say, wants_json, with_options
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.units import PATTERN, WHERE, Where, id_text, moment
from geminga.client.admin.types import SchemaVersion, StoredMessage
from geminga.client.cluster import Cluster
from geminga.diagnosis.commands import how_many
from geminga.ids import MessageId
from geminga.schema_info import SchemaInfo, SchemaType

LOOKED_AT_MAX = 10_000
"""Limit of messages that a filter looks at: each entry is one request."""
decode_option = click.option("--decode", is_flag=True, help="Decode values by the topic's schema, to JSON.")


class PrintFilter(NamedTuple):
    """Filter of printed messages, by their values as of `describe`."""

    key: str | None
    pattern: re.Pattern[str] | None
    properties: dict[str, str]

    def __bool__(self) -> bool:
        return self.key is not None or self.pattern is not None or bool(self.properties)

    def matches(self, row: dict[str, Any]) -> bool:
        """Return whether the message has the key and properties, and text that matches the pattern."""
        if self.key is not None and row["key"] != self.key:
            return False
        if any(row["properties"].get(name) != value for name, value in self.properties.items()):
            return False
        return self.pattern is None or self.pattern.search(value_text(row)) is not None


def filter_options(command: Any) -> Any:
    """Add ``--key``, ``--grep`` and ``--property``; the command receives a `PrintFilter` as ``only``."""

    @functools.wraps(command)
    def wrapped(key: Any, grep: Any, properties: Any, **given: Any) -> Any:
        return command(only=PrintFilter(key, grep, properties), **given)

    return with_options(
        click.option("--key", help="Only messages with this key."),
        click.option("--grep", type=PATTERN, metavar="REGEX", help="Only messages whose text matches."),
        click.option(
            "--property", "-p", "properties", multiple=True, metavar="NAME=VALUE", callback=pairs,
            help="Only messages with this property; may be repeated.",
        ),
    )(wrapped)  # fmt: skip


@click.command("peek", cls=ConnectingCommand)
@click.argument("topic")
@click.argument("subscription")
@click.option(
    "--count", "-n", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Messages to print."
)
@click.option(
    "--from", "where", type=WHERE, metavar="WHERE", default=MessageId.earliest,
    help="Start: '10m ago', a time, or LEDGER:ENTRY.  [default: the oldest]",
)  # fmt: skip
@filter_options
@decode_option
@connecting
@json_option
def command(
    topic: str, subscription: str, count: int, where: Where, only: PrintFilter, decode: bool, cluster: Cluster
) -> None:
    """Print the next messages of SUBSCRIPTION of TOPIC, one per line, without consuming them.

    A batch is printed whole, with its messages that are acknowledged already.

    --from, --key, --grep and --property choose among the next 10,000. --decode uses the newest schema.
    """
    admin = cluster.admin()
    schema = reading(admin.schemas.get(topic)) if decode else None
    start = where if isinstance(where, MessageId) else moment(where)
    number, looked_at = count, 0
    while True:
        found = admin.subscriptions.peek(topic, subscription, number)
        described = [describe(each, schema) for each in found if _is_behind(each, start)]
        rows = [row for row in described if only.matches(row)][:count]
        if len(rows) == count or len(found) == looked_at or number >= LOOKED_AT_MAX:
            break
        looked_at, number = len(found), min(LOOKED_AT_MAX, 4 * number)
    for row in rows:
        show(row)
    if not wants_json():
        say(how_many(len(rows)))


def _is_behind(message: StoredMessage, start: MessageId | dt.datetime) -> bool:
    """Return whether a message is at or after a position of its topic."""
    if isinstance(start, MessageId):
        found = message.message_id
        return (found.ledger_id(), found.entry_id(), max(found.batch_index(), 0)) >= (
            start.ledger_id(), start.entry_id(), start.batch_index(),
        )  # fmt: skip
    return message.publish_time >= start


def reading(version: SchemaVersion | None) -> Any:
    """Return the schema of a topic, from its definition."""
    from geminga.schema import schema_of

    return schema_of(None if version is None else info_of(version))


def info_of(version: SchemaVersion) -> SchemaInfo:
    """Return the description of a version as the client has it."""
    return SchemaInfo(type=SchemaType[version.type], data=version.data.encode())


def describe(message: StoredMessage, schema: Any = None) -> dict[str, Any]:
    """Return a message as JSON values; a payload that is not UTF-8 is base64 in ``value_base64``."""
    row: dict[str, Any] = {
        "message_id": id_text(message.message_id),
        "key": message.key,
        "publish_time": int(message.publish_time.timestamp() * 1000),
        "event_time": None if message.event_time is None else int(message.event_time.timestamp() * 1000),
        "properties": dict(message.properties),
        "producer_name": message.producer_name,
        "sequence_id": message.sequence_id,
        "encrypted": message.encrypted,
    }
    decoded = schema is not None and not message.encrypted
    return {**row, **(decoded_value(schema.decode(message.data)) if decoded else payload_of(message.data))}


def decoded_value(value: Any) -> dict[str, Any]:
    """Return ``value`` as JSON values, bytes as of `payload_of`."""
    return payload_of(value) if isinstance(value, bytes) else {"value": _plain(value)}


def _plain(value: Any) -> Any:
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


def payload_of(data: bytes) -> dict[str, str]:
    """Return ``value`` for UTF-8 text, else ``value_base64``."""
    try:
        return {"value": data.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(data).decode()}


def show(row: dict[str, Any]) -> None:
    """Print a message: as JSON, or as a line of text."""
    click.echo(_json(row) if wants_json() else line(row))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


def value_text(row: dict[str, Any]) -> str:
    """Return a message's value as text: decoded as JSON, bytes that are not UTF-8 as ``base64:...``."""
    value = row["value"] if "value" in row else f"base64:{row['value_base64']}"
    return value if isinstance(value, str) else _json(value)


def line(row: dict[str, Any]) -> str:
    """Return a message as a line of text: id, key and properties, value. Control characters are escaped."""
    extras = [f"key={row['key']}"] if row["key"] else []
    extras += [f"{name}={text}" for name, text in row["properties"].items()]
    parts = [click.style(row["message_id"], fg="cyan")]
    if extras:
        parts.append(click.style(printable(" ".join(extras)), fg="yellow"))
    return "  ".join([*parts, printable(value_text(row))])


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
