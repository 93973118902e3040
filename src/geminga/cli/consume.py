"""``geminga consume``: print the messages of a topic as text or as JSON lines."""

import time
from collections.abc import Callable
from typing import Any

import click

from geminga.cli.common import SECONDS, WordChoice, json_option, say, show_warnings, wants_json
from geminga.cli.connecting import ConnectingCommand, check_exists, connecting
from geminga.cli.peek import PrintFilter, decode_option, decoded_value, filter_options, payload_of, show
from geminga.cli.units import WHERE, Where, id_text
from geminga.client.cluster import Cluster
from geminga.diagnosis.commands import how_many
from geminga.errors import Timeout
from geminga.ids import MessageId

TYPES = ("Exclusive", "Shared", "Failover", "KeyShared")


def describe(message: Any, decode: bool) -> dict[str, Any]:
    """Return a message as JSON values; a payload that is not UTF-8 is base64 in ``value_base64``."""
    row: dict[str, Any] = {
        "message_id": id_text(message.message_id()),
        "topic": message.topic_name(),
        "key": message.partition_key() or None,
        "publish_time": message.publish_timestamp(),
        "event_time": message.event_timestamp() or None,
        "properties": message.properties(),
        "redelivery_count": message.redelivery_count(),
    }
    return {**row, **(decoded_value(message.value()) if decode else payload_of(bytes(message.data())))}


def schema_arguments(decode: bool) -> dict[str, Any]:
    """Return the arguments of a reader or consumer that decodes values, or takes them as bytes."""
    if not decode:
        return {}
    from geminga.schema import AutoConsumeSchema

    return {"schema": AutoConsumeSchema()}


def open_reader(client: Any, topic: str, where: Where, **arguments: Any) -> Any:
    """Open a reader at a position: an end of the topic, a message, a time or a duration before now."""
    if isinstance(where, MessageId):
        return client.create_reader(topic, where, start_message_id_inclusive=True, **arguments)
    return client.create_reader(topic, start_time=where, **arguments)


def print_messages(
    receive: Callable[[int | None], Any],
    only: PrintFilter,
    count: int | None,
    *,
    idle_ms: int | None,
    seconds: float | None = None,
    decode: bool = False,
    acknowledge: Callable[[Any], object] = lambda message: None,
) -> int:
    """Print ``count`` messages that match (None: without end), fewer after ``idle_ms`` without a message or
    after ``seconds``, and return their number."""
    deadline = None if seconds is None else time.monotonic() + seconds
    printed = 0
    while count is None or printed < count:
        left = idle_ms
        if deadline is not None:
            left = max(0, round((deadline - time.monotonic()) * 1000))
        try:
            message = receive(left)
        except Timeout:
            break
        row = describe(message, decode)
        if only.matches(row):
            show(row)
            printed += 1
        acknowledge(message)
    return printed


@click.command("consume", cls=ConnectingCommand)
@click.argument("topic")
@click.option(
    "--subscription", "-s", help="Consume with this subscription and acknowledge; without: use a reader."
)
@click.option(
    "--type", "kind", type=WordChoice(TYPES), default="Exclusive", show_default=True,
    help="Subscription type.",
)  # fmt: skip
@click.option(
    "--from", "where", type=WHERE, metavar="WHERE", default="earliest", show_default=True,
    help="Start: earliest, latest, '2h ago', a time, or LEDGER:ENTRY; a new subscription: the first two.",
)  # fmt: skip
@click.option("--count", "-n", type=click.IntRange(0), help="Stop after this many messages; 0: never.")
@click.option(
    "--timeout", "timeout_seconds", type=SECONDS,
    help="Stop after this time without a message. Default: 5s without --follow.",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Keep waiting for new messages.")
@filter_options
@decode_option
@connecting
@json_option
def command(
    topic: str,
    subscription: str | None,
    kind: str,
    where: Where,
    count: int | None,
    timeout_seconds: float | None,
    follow: bool,
    only: PrintFilter,
    decode: bool,
    cluster: Cluster,
) -> None:
    """Print the messages of TOPIC, one per line.

    A subscription acknowledges each message after it is printed.
    """
    import geminga

    if subscription is not None and only:
        raise click.UsageError("--key, --grep and --property are for reading without --subscription")

    if subscription is not None and where not in (MessageId.earliest, MessageId.latest):
        raise click.UsageError(
            "--from of a subscription is earliest or latest; another position: geminga subscriptions reset"
        )
    show_warnings()
    follow, count = follow or count == 0, count or None
    wait_ms = None if follow and timeout_seconds is None else round((timeout_seconds or 5.0) * 1000)
    operation_seconds = max(1.0, timeout_seconds or 30.0)
    with cluster.client(operation_timeout_seconds=operation_seconds) as client:
        if subscription is None:
            check_exists(client, topic)
            source: Any = open_reader(client, topic, where, **schema_arguments(decode))
            receive, acknowledge = source.read_next, lambda message: None
        else:
            source = client.subscribe(
                topic,
                subscription,
                consumer_type=geminga.ConsumerType[kind],
                initial_position=geminga.InitialPosition(int(where == MessageId.earliest)),
                # Messages acknowledged before a stop inside a batch must not be redelivered.
                batch_index_ack_enabled=True,
                **schema_arguments(decode),
            )
            receive, acknowledge = source.receive, source.acknowledge
        printed = print_messages(
            receive, only, count, idle_ms=wait_ms, decode=decode, acknowledge=acknowledge
        )
        source.close()
    if not wants_json():
        say(how_many(printed))
    if count is not None and printed < count:
        raise Timeout(
            f"{printed:,} of {count:,} messages came; raise --timeout or use --follow to wait longer"
        )
