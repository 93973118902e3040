"""``geminga consume``: print the messages of a topic as text or as JSON lines."""

from __future__ import annotations

import json
from typing import Any

import click

from geminga.cli.common import SECONDS, how_many, json_option, show_warnings
from geminga.cli.connecting import ConnectingCommand, check_exists, connecting
from geminga.cli.peek import line, payload_of
from geminga.client.cluster import Cluster
from geminga.errors import Timeout

TYPES = ("Exclusive", "Shared", "Failover", "KeyShared")


def describe(message: Any) -> dict[str, Any]:
    """Return a message as JSON values; a payload that is not UTF-8 is base64 in ``value_base64``."""
    row: dict[str, Any] = {
        "message_id": str(message.message_id()),
        "topic": message.topic_name(),
        "key": message.partition_key() or None,
        "publish_time": message.publish_timestamp(),
        "event_time": message.event_timestamp() or None,
        "properties": message.properties(),
        "redelivery_count": message.redelivery_count(),
    }
    return {**row, **payload_of(bytes(message.data()))}


@click.command("consume", cls=ConnectingCommand)
@click.argument("topic")
@click.option(
    "--subscription", "-s", help="Consume with this subscription and acknowledge; without: use a reader."
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(TYPES, case_sensitive=False),
    default="Exclusive",
    show_default=True,
    help="Subscription type.",
)
@click.option(
    "--from", "position", type=click.Choice(("earliest", "latest")), default="earliest", show_default=True,
    help="Start position of a reader or of a new subscription.",
)  # fmt: skip
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after this many messages.")
@click.option(
    "--timeout", "timeout_seconds", type=SECONDS,
    help="Stop after this many seconds without a message. Default: 5 without --follow.",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Keep waiting for new messages.")
@connecting
@json_option
def command(
    topic: str,
    subscription: str | None,
    kind: str,
    position: str,
    count: int | None,
    timeout_seconds: float | None,
    follow: bool,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC, one per line."""
    import geminga

    show_warnings()
    wait_ms = None if follow else round((timeout_seconds or 5.0) * 1000)
    printed = 0
    operation_seconds = max(1.0, timeout_seconds or 30.0)
    with cluster.client(operation_timeout_seconds=operation_seconds) as client:
        if subscription is None:
            check_exists(client, topic)
            start = geminga.MessageId.earliest if position == "earliest" else geminga.MessageId.latest
            source: Any = client.create_reader(topic, start)
            receive = source.read_next
        else:
            source = client.subscribe(
                topic,
                subscription,
                consumer_type=geminga.ConsumerType[kind],
                initial_position=geminga.InitialPosition[position.capitalize()],
                # Messages acknowledged before a stop inside a batch must not be redelivered.
                batch_index_ack_enabled=True,
            )
            receive = source.receive
        while count is None or printed < count:
            try:
                message = receive(wait_ms)
            except Timeout:
                break
            row = describe(message)
            click.echo(json.dumps(row, separators=(",", ":")) if as_json else line(row))
            if subscription is not None:
                source.acknowledge(message)
            printed += 1
        source.close()
    if not as_json:
        click.echo(how_many(printed), err=True)
    if count is not None and printed < count:
        raise Timeout(f"{printed} of {count} messages came; raise --timeout or use --follow to wait longer")
