"""``geminga peek``: print the next messages of a subscription without consuming them."""

from __future__ import annotations

import base64
import json
from typing import Any

import click

from geminga.cli.common import how_many, json_option
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.client.admin.types import StoredMessage
from geminga.client.cluster import Cluster


@click.command("peek", cls=ConnectingCommand)
@click.argument("topic")
@click.argument("subscription")
@click.option(
    "--count", "-n", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Messages to print."
)
@connecting
@json_option
def command(topic: str, subscription: str, count: int, cluster: Cluster, as_json: bool) -> None:
    """Print the next messages of SUBSCRIPTION of TOPIC, one per line, without consuming them."""
    found = cluster.admin().subscriptions.peek(topic, subscription, count)
    for message in found:
        row = describe(message)
        click.echo(json.dumps(row, separators=(",", ":")) if as_json else line(row))
    if not as_json:
        click.echo(how_many(len(found)), err=True)


def describe(message: StoredMessage) -> dict[str, Any]:
    """Return a message as JSON values; a payload that is not UTF-8 is base64 in ``value_base64``."""
    row: dict[str, Any] = {
        "message_id": str(message.message_id),
        "key": message.key,
        "publish_time": int(message.publish_time.timestamp() * 1000),
        "event_time": None if message.event_time is None else int(message.event_time.timestamp() * 1000),
        "properties": dict(message.properties),
        "producer_name": message.producer_name,
        "sequence_id": message.sequence_id,
        "encrypted": message.encrypted,
    }
    return {**row, **payload_of(message.data)}


def payload_of(data: bytes) -> dict[str, str]:
    """Return ``value`` for UTF-8 text, else ``value_base64``."""
    try:
        return {"value": data.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(data).decode()}


def line(row: dict[str, Any]) -> str:
    """Return a message as a line of text: id, key and properties, value. Control characters are escaped."""
    value = row.get("value", row.get("value_base64"))
    extras = [f"key={row['key']}"] if row["key"] else []
    extras += [f"{name}={text}" for name, text in row["properties"].items()]
    parts = [click.style(row["message_id"], fg="cyan")]
    if extras:
        parts.append(click.style(printable(" ".join(extras)), fg="yellow"))
    return "  ".join([*parts, printable(str(value))])


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
