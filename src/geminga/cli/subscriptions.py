"""``geminga subscriptions``: subscriptions of topics and their positions."""

import datetime as dt
from typing import Any

import click

from geminga.cli.common import Commands, asks, confirm, emit, pairs, wants_json, yes_option
from geminga.cli.connecting import operation
from geminga.cli.tables import TableColumn, print_rows, trouble
from geminga.cli.units import ID, SPAN, TIME, WHERE, Where, backlog_of, count, id_text, rate, size, span
from geminga.client.cluster import Cluster
from geminga.diagnosis.commands import how_many
from geminga.errors import AdminSubscriptionNotFound
from geminga.ids import MessageId, TopicName

_COLUMNS = (
    TableColumn("subscription", "subscription"),
    TableColumn("consumers", "consumers"),
    TableColumn("messages", "messages", count, right=True),
    TableColumn("entries", "entries", count, right=True),
    TableColumn("bytes", "bytes", size, right=True),
    TableColumn("oldest", "oldest_seconds", span, right=True),
    TableColumn("unacked", "unacknowledged", count, right=True),
    TableColumn("holes", "holes", count, right=True, style=trouble),
    TableColumn("out", "rate_out", rate, right=True),
)


@click.group("subscriptions", cls=Commands)
def command() -> None:
    """List, create, move and delete subscriptions of topics."""


@operation(command, "list", "topic")
def list_subscriptions(topic: str, cluster: Cluster) -> None:
    """List the subscriptions of TOPIC with their backlogs.

    The table has the backlog in messages, of an Apache Pulsar in entries. A dash: not reported.
    """
    stats = cluster.admin().topics.stats(TopicName.parse(topic))
    rows: list[dict[str, Any]] = [
        {
            "subscription": name,
            "type": one.type if one.consumers else "",
            "consumers": len(one.consumers),
            "messages": one.messages_in_backlog,
            "entries": one.msg_backlog,
            "bytes": one.bytes_in_backlog if one.messages_in_backlog >= 0 else one.backlog_size,
            "oldest_seconds": one.oldest_backlog_message_age_seconds,
            "unacknowledged": one.unacked_messages,
            "holes": one.ack_holes if one.ack_holes >= 0 else one.non_contiguous_deleted_messages_ranges,
            "rate_out": one.msg_rate_out,
        }
        for name, one in sorted(stats.subscriptions.items())
    ]
    has_messages = all(row["messages"] >= 0 for row in rows)
    if not wants_json():  # the table fits 80 columns
        for row in rows:
            row["consumers"] = f"{count(row['consumers'])} {row['type']}".rstrip()
    columns = [each for each in _COLUMNS if each.key != ("entries" if has_messages else "messages")]
    print_rows(rows, columns, f"{topic} has no subscriptions")


@operation(command, "create", "topic", "subscription")
@click.option(
    "--from", "where", type=WHERE, default="latest", show_default=True,
    help="earliest, latest, '2h ago', a time, or LEDGER:ENTRY.",
)  # fmt: skip
def create(topic: str, subscription: str, where: Where, cluster: Cluster) -> None:
    """Create SUBSCRIPTION on TOPIC."""
    part = cluster.admin().subscriptions
    if isinstance(where, MessageId):
        part.create(topic, subscription, position=where)
    else:
        part.create(topic, subscription)
        part.reset_to_time(topic, subscription, where)
    emit(
        {"topic": topic, "subscription": subscription, "from": _said(where)},
        f"created {subscription} on {topic}, from {_said(where)}",
    )


@operation(command, "delete", "topic", "subscription")
@click.option("--force", is_flag=True, help="Disconnect its consumers first.")
@yes_option
def delete(topic: str, subscription: str, force: bool, cluster: Cluster) -> None:
    """Delete SUBSCRIPTION of TOPIC with its backlog."""
    admin = cluster.admin()
    if asks():
        waiting = _backlog(admin, topic, subscription)
        confirm(f"Delete the subscription {subscription!r} of {topic} with its backlog ({waiting})?")
    admin.subscriptions.delete(topic, subscription, force=force)
    emit(
        {"topic": topic, "subscription": subscription, "deleted": True}, f"deleted {subscription} of {topic}"
    )


@operation(command, "clear", "topic", "subscription")
@yes_option
def clear(topic: str, subscription: str, cluster: Cluster) -> None:
    """Skip the whole backlog of SUBSCRIPTION."""
    admin = cluster.admin()
    if asks():
        waiting = _backlog(admin, topic, subscription)
        confirm(f"Skip the backlog of {subscription!r} of {topic} ({waiting})?")
    admin.subscriptions.clear(topic, subscription)
    emit(
        {"topic": topic, "subscription": subscription, "cleared": True},
        f"{subscription} continues after the last message",
    )


@operation(command, "skip", "topic", "subscription")
@click.option("--count", "-n", "messages", type=click.IntRange(1), help="Messages to skip.")
@click.option("--entries", type=click.IntRange(1), help="Entries to skip; a batch is one entry.")
@click.option(
    "--message", type=ID, metavar="LEDGER:ENTRY", help="Skip only this entry, such as a damaged one."
)
@yes_option
def skip(
    topic: str,
    subscription: str,
    messages: int | None,
    entries: int | None,
    message: MessageId | None,
    cluster: Cluster,
) -> None:
    """Skip the next messages of SUBSCRIPTION. Messages in a batch count individually.

    Apache Pulsar skips whole batches only: if the count ends inside a batch, nothing is skipped and the error
    names the possible counts.
    """
    if [messages, entries, message].count(None) != 2:
        raise click.UsageError("give one of --count, --entries and --message")
    part, name = cluster.admin().subscriptions, TopicName.parse(topic)
    if message is not None:
        ledger, entry = message.ledger_id(), message.entry_id()
        confirm(f"Skip entry {ledger}:{entry} in {subscription!r} of {name}?")
        part.skip_entry(name, subscription, MessageId(name.partition, ledger, entry))
        skipped, unit, text = 1, "entries", f"{subscription} skipped {ledger}:{entry}"
    else:
        unit, noun = ("messages", "message") if entries is None else ("entries", "entry")
        next_ones = how_many(messages or entries or 1, noun)
        confirm(f"Skip the next {next_ones} in {subscription!r} of {name}?")
        skipped = part.skip(name, subscription, messages or entries or 1, unit=unit)
        text = f"{subscription} skipped {how_many(skipped, noun)}"
    value = {"topic": str(name), "subscription": subscription, "skipped": skipped, "unit": unit}
    emit(value, text, is_done=True)


@operation(command, "reset", "topic", "subscription")
@click.argument("where", nargs=-1, required=True)
@click.option("--after", is_flag=True, help="Start after the message of WHERE.")
@yes_option
def reset(topic: str, subscription: str, where: tuple[str, ...], after: bool, cluster: Cluster) -> None:
    """Reset SUBSCRIPTION of TOPIC to the position WHERE.

    WHERE is earliest, latest, 2h ago, 2026-01-31T12:00 (local time without a zone), milliseconds since 1970,
    or a message id as printed by consume and peek.
    """
    start = WHERE.convert(" ".join(where), None, None)
    part = cluster.admin().subscriptions
    if after and not isinstance(start, MessageId):
        raise click.UsageError("--after is for LEDGER:ENTRY")
    confirm(f"Move {subscription!r} of {topic} to {_said(start)} and lose its acknowledgements?")
    if isinstance(start, MessageId):
        part.reset_to_id(topic, subscription, start, exclusive=after)
    else:
        part.reset_to_time(topic, subscription, start)
    emit(
        {"topic": topic, "subscription": subscription, "from": _said(start)},
        f"{subscription} reads from {_said(start)} on",
    )


@operation(command, "expire", "topic", "subscription")
@click.option("--older-than", "age", type=SPAN, help="Expire messages published longer ago, such as 2h.")
@click.option(
    "--to", "last", type=ID, metavar="LEDGER:ENTRY", help="Expire messages up to and including this one."
)
@yes_option
def expire(
    topic: str, subscription: str, age: dt.timedelta | None, last: MessageId | None, cluster: Cluster
) -> None:
    """Expire old messages of SUBSCRIPTION: they count as acknowledged."""
    if (age is None) == (last is None):
        raise click.UsageError("give either --older-than or --to")
    part = cluster.admin().subscriptions
    if age is not None:
        older = span(age.total_seconds())
        confirm(f"Expire the messages older than {older} in {subscription!r} of {topic}?")
        part.expire(topic, subscription, age)
        text = f"{subscription} continues without messages older than {older}"
    elif last is not None:
        confirm(f"Expire the messages in {subscription!r} of {topic} up to {id_text(last)}?")
        part.expire_to_id(topic, subscription, last)
        text = f"{subscription} continues after {id_text(last)}"
    emit({"topic": topic, "subscription": subscription, "expired": True}, text)


@operation(command, "redeliver-unacked", "topic", "subscription")
@click.argument("after", type=SPAN)
def redeliver_unacked(topic: str, subscription: str, after: dt.timedelta, cluster: Cluster) -> None:
    """Redeliver messages of SUBSCRIPTION that are not acknowledged within AFTER, such as 60s; 0: never.

    Works with Geminga brokers; Apache Pulsar stores the property and ignores it.
    """
    seconds = after.total_seconds()
    part, name = cluster.admin().subscriptions, TopicName.parse(topic)
    properties = dict(part.properties(name, subscription))
    part.set_properties(name, subscription, {**properties, "redeliver-unacked-after-seconds": f"{seconds:g}"})
    emit(
        {"topic": str(name), "subscription": subscription, "seconds": seconds},
        f"{subscription}: unacknowledged messages "
        + (f"are redelivered after {seconds:g} s" if seconds else "are not redelivered"),
    )


@operation(command, "redrive", "topic", "subscription")
@click.option(
    "--dead-letters", metavar="TOPIC", help="The dead-letter topic.  [default: TOPIC-SUBSCRIPTION-DLQ]"
)
@click.option("--to", metavar="TOPIC", help="Send to this topic.  [default: the one each message came from]")
@click.option("--key", help="Only messages with this key.")
@click.option("--contains", metavar="TEXT", help="Only messages whose payload contains this text.")
@click.option("--property", "-p", "properties", multiple=True, callback=pairs,
              help="Only messages with this NAME=VALUE.")  # fmt: skip
@click.option("--since", type=TIME, help="Only dead letters published since then: '2h ago', or a time.")
@click.option("--before", type=TIME, help="Only dead letters published before then.")
@click.option(
    "--rate", type=click.FloatRange(0), default=0, help="Limit in messages per second.  [default: no limit]"
)
@click.option("--count", "-n", "count_max", type=click.IntRange(1), help="Maximum messages to send.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent, and send nothing.")
@yes_option
def redrive(topic: str, subscription: str, cluster: Cluster, dry_run: bool, **options: Any) -> None:
    """Send dead letters of SUBSCRIPTION back to the topic they came from.

    All subscriptions of that topic get them. A consumer with retry_enabled also takes them from its retry
    topic: --to TOPIC-SUBSCRIPTION-RETRY. Each message is sent once, also if the command is interrupted and
    given again. Messages that the options leave out stay for later.
    """
    from geminga.cli import redriving

    redriving.run(cluster, topic, subscription, options, only_looks=dry_run)


def _said(where: Any) -> str:
    if isinstance(where, dt.timedelta):
        return f"{span(where.total_seconds())} ago"
    if isinstance(where, dt.datetime):
        return where.isoformat(timespec="seconds")
    if where == MessageId.earliest:
        return "earliest"
    if where == MessageId.latest:
        return "latest"
    return id_text(where) if isinstance(where, MessageId) else str(where)


def _backlog(admin: Any, topic: str, subscription: str) -> str:
    found = admin.topics.stats(topic).subscriptions
    if subscription not in found:
        name = TopicName.parse(topic)
        raise AdminSubscriptionNotFound(f"{name} has no subscription {subscription}", status=404)
    return backlog_of(found[subscription])
