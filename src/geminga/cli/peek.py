"""``geminga peek``: what waits in a subscription, without consuming it."""

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
    "--count", "-n", type=click.IntRange(1, 100_000), default=10, show_default=True, help="How many."
)
@connecting
@json_option
def command(topic: str, subscription: str, count: int, cluster: Cluster, as_json: bool) -> None:
    """Print the next messages that wait in SUBSCRIPTION of TOPIC, one a line; nothing is consumed."""
    found = cluster.admin().subscriptions.peek(topic, subscription, count)
    for message in found:
        row = describe(message)
        click.echo(json.dumps(row, separators=(",", ":")) if as_json else line(row))
    if not as_json:
        click.echo(how_many(len(found)), err=True)


def describe(message: StoredMessage) -> dict[str, Any]:
    """A message as JSON values; a payload that is no text is given as base64 in ``value_base64``."""
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
    """``value``, or ``value_base64`` for what is no text."""
    try:
        return {"value": data.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(data).decode()}


def line(row: dict[str, Any]) -> str:
    """A message for people: id, key and properties, value. What would steer a terminal is escaped."""
    value = row.get("value", row.get("value_base64"))
    extras = [f"key={row['key']}"] if row["key"] else []
    extras += [f"{name}={text}" for name, text in row["properties"].items()]
    parts = [click.style(row["message_id"], fg="cyan")]
    if extras:
        parts.append(click.style(printable(" ".join(extras)), fg="yellow"))
    return "  ".join([*parts, printable(str(value))])


def printable(text: str) -> str:
    """``text`` with control characters as escapes."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
