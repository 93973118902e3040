"""``geminga peek``: print the next messages of a subscription without consuming them."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import click

from geminga.cli.common import how_many, json_option
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.units import id_text
from geminga.client.admin.types import SchemaVersion, StoredMessage
from geminga.client.cluster import Cluster

decode_option = click.option("--decode", is_flag=True, help="Decode values by the topic's schema, to JSON.")


@click.command("peek", cls=ConnectingCommand)
@click.argument("topic")
@click.argument("subscription")
@click.option(
    "--count", "-n", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Messages to print."
)
@decode_option
@connecting
@json_option
def command(topic: str, subscription: str, count: int, decode: bool, cluster: Cluster, as_json: bool) -> None:
    """Print the next messages of SUBSCRIPTION of TOPIC, one per line, without consuming them.

    --decode uses the topic's newest schema.
    """
    admin = cluster.admin()
    found = admin.subscriptions.peek(topic, subscription, count)
    schema = reading(admin.schemas.get(topic)) if decode else None
    for message in found:
        show(describe(message, schema), as_json)
    if not as_json:
        click.echo(how_many(len(found)), err=True)


def reading(version: SchemaVersion | None) -> Any:
    """Return the schema of a topic, from its definition."""
    from geminga.schema import schema_of
    from geminga.schema_info import SchemaInfo, SchemaType

    if version is None:
        return schema_of(None)
    return schema_of(SchemaInfo(type=SchemaType[version.type], data=version.data.encode()))


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


def show(row: dict[str, Any], as_json: bool) -> None:
    """Print a message: as JSON, or as a line of text."""
    click.echo(_json(row) if as_json else line(row))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


def line(row: dict[str, Any]) -> str:
    """Return a message as a line of text: id, key and properties, value. Control characters are escaped; a
    decoded value is JSON, and bytes that are not UTF-8 are ``base64:...``."""
    value = row["value"] if "value" in row else f"base64:{row['value_base64']}"
    value = value if isinstance(value, str) else _json(value)
    extras = [f"key={row['key']}"] if row["key"] else []
    extras += [f"{name}={text}" for name, text in row["properties"].items()]
    parts = [click.style(row["message_id"], fg="cyan")]
    if extras:
        parts.append(click.style(printable(" ".join(extras)), fg="yellow"))
    return "  ".join([*parts, printable(value)])


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
