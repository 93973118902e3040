"""``geminga topics``: topics, their policies and permissions."""

import time
from collections.abc import Sequence
from typing import Any

import click

from geminga.cli.common import Commands, confirm, emit, pairs, wants_json, yes_option
from geminga.cli.connecting import operation
from geminga.cli.policies import add_permission_commands, add_policy_commands
from geminga.cli.tables import TableColumn, print_rows
from geminga.cli.units import SIZE, backlog_of, count, id_text, rate, size
from geminga.client.admin.sync import TopicPolicies
from geminga.client.admin.types import LedgerInfo
from geminga.client.cluster import Cluster
from geminga.diagnosis.commands import how_many
from geminga.ids import MessageId, TopicName

_POLL_SECONDS = 0.2
_STATUS_WORDS = {"NOT_RUN": "never run", "RUNNING": "running", "SUCCESS": "done", "ERROR": "failed"}
_LISTED = (
    TableColumn("topic", "topic"),
    TableColumn("partitions", "partitions", lambda n: count(n) if n else "", right=True),
)


@click.group("topics", cls=Commands)
def command() -> None:
    """List, create, describe, configure, compact, offload and delete topics."""


@operation(command, "list")
@click.argument("namespace", default="public/default")
def list_topics(namespace: str, cluster: Cluster) -> None:
    """List the topics of NAMESPACE (tenant/namespace); a partitioned topic is one row."""
    if namespace.count("/") != 1 or not all(namespace.split("/")):
        raise click.BadParameter(f"{namespace!r} is not tenant/namespace", param_hint="NAMESPACE")
    topics = cluster.admin().topics
    plain = [TopicName.parse(t) for t in topics.list(namespace)]
    partitioned = topics.list_partitioned(namespace)
    rows: list[dict[str, Any]] = [
        {"topic": name, "partitions": topics.partitions(name)} for name in partitioned
    ]
    inside = set(partitioned)
    rows += [
        {"topic": str(t), "partitions": 0} for t in plain if t.partition < 0 or str(t.base) not in inside
    ]
    none = f"{namespace} has no topics"
    print_rows(sorted(rows, key=lambda row: str(row["topic"])), _LISTED, none)


@operation(command, "create", "topic")
@click.option("--partitions", "-p", type=click.IntRange(0), default=0,
              help="Number of partitions; 0: not partitioned.")  # fmt: skip
def create(topic: str, partitions: int, cluster: Cluster) -> None:
    """Create TOPIC."""
    name = TopicName.parse(topic)
    cluster.admin().topics.create(name, partitions=partitions)
    emit({"topic": str(name), "partitions": partitions}, f"created {name}")


@operation(command, "partitions", "topic")
@click.option("--set", "-p", "new_count", type=click.IntRange(1), help="Grow to this many partitions.")
def partitions(topic: str, new_count: int | None, cluster: Cluster) -> None:
    """Show or grow the number of partitions of TOPIC."""
    name, topics = TopicName.parse(topic), cluster.admin().topics
    if new_count is not None:
        topics.update_partitions(name, new_count)
    found = topics.partitions(name)
    emit({"topic": str(name), "partitions": found}, str(found))


@operation(command, "delete", "topic")
@click.option("--force", is_flag=True, help="Disconnect its clients first.")
@yes_option
def delete(topic: str, force: bool, cluster: Cluster) -> None:
    """Delete TOPIC with its messages and subscriptions."""
    name = TopicName.parse(topic)
    confirm(f"Delete {name} with its messages and subscriptions?")
    cluster.admin().topics.delete(name, force=force)
    emit({"topic": str(name), "deleted": True}, f"deleted {name}")


@operation(command, "stats", "topic")
@click.option("--internal", is_flag=True, help="Ledgers and cursors of a partition or unpartitioned topic.")
def stats(topic: str, internal: bool, cluster: Cluster) -> None:
    """Show rates, backlog, producers and subscriptions of TOPIC."""
    name, topics = TopicName.parse(topic), cluster.admin().topics
    if internal:
        _internal(topics.internal_stats(name))
        return
    found = topics.stats(name)
    lines = [
        str(name) + (f", {how_many(len(found.partitions), 'partition')}" if found.partitions else ""),
        f"  in {_flow(found.msg_rate_in, found.msg_throughput_in)}; "
        f"out {_flow(found.msg_rate_out, found.msg_throughput_out)}; "
        f"{how_many(found.msg_in_counter)} since the topic was loaded",
        f"  stored {size(found.storage_size)}; {how_many(len(found.publishers), 'producer')}",
    ]
    for subscription, row in sorted(found.subscriptions.items()):
        consumers = how_many(len(row.consumers), f"{row.type} consumer") if row.consumers else "no consumer"
        unacknowledged = f"{count(row.unacked_messages)} unacknowledged"
        lines.append(f"  {subscription}: {consumers}, backlog {backlog_of(row)}, {unacknowledged}")
    emit(found.raw, "\n".join(lines))


def _flow(messages: float, size_of_all: float) -> str:
    return f"{rate(messages).removesuffix('/s')} messages/s, {size(size_of_all)}/s"


def _internal(found: Any) -> None:
    if wants_json():
        emit(found.raw, "")
        return
    click.echo(
        f"{how_many(len(found.ledgers), 'ledger')}, {how_many(found.number_of_entries, 'entry')}, "
        f"{size(found.total_size)}; last {found.last_confirmed_entry}"
    )
    rows = [{"ledger": one.ledger_id, "entries": one.entries, "size": one.size} for one in found.ledgers]
    columns = (
        TableColumn("ledger", "ledger", right=True),
        TableColumn("entries", "entries", count, right=True),
        TableColumn("size", "size", size, right=True),
    )
    print_rows(rows, columns)
    for name, cursor in sorted(found.cursors.items()):
        first, behind, _ = cursor.individually_deleted_messages.strip("[]").partition("]")
        also = f", and behind it {first}], ..." if behind or first else ""
        click.echo(
            f"{name}: acknowledged up to {cursor.mark_delete_position}{also}; read up to "
            f"{cursor.read_position}"
        )


@operation(command, "compact", "topic")
@click.option("--status", is_flag=True, help="Only show the status of the last compaction.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the compaction ends.")
def compact(topic: str, status: bool, wait: bool, cluster: Cluster) -> None:
    """Compact TOPIC: readers with read_compacted receive the newest message of each key.

    Exits with 1 if the compaction fails.
    """
    topics = cluster.admin().topics
    names = topics.names(topic)
    if not status:
        topics.compact(topic)
    _print_status(names, topics.compaction_status, status, wait)


@operation(command, "offload", "topic")
@click.option("--keep", type=SIZE, default="0", help="Size of the newest ledgers to keep, such as 1G.")
@click.option("--status", is_flag=True, help="Only show the status of the last offload.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the offload ends.")
def offload(topic: str, keep: int, status: bool, wait: bool, cluster: Cluster) -> None:
    """Move the closed ledgers of TOPIC to the broker's offload location; readers are not affected.

    Exits with 1 if the offload fails.
    """
    topics = cluster.admin().topics
    names = topics.names(topic)
    moving = list(names) if status else []
    for each in names if not status else ():
        ledgers = topics.internal_stats(each).ledgers
        first_kept = _first_kept(ledgers, keep)
        if any(one.ledger_id < first_kept and not one.offloaded for one in ledgers):
            topics.offload(each, MessageId(-1, first_kept, 0))
            moving.append(each)
        else:
            text = f"{each}  nothing to move: the open ledger and --keep stay; see `topics stats --internal`"
            emit({"topic": each, "status": "NOTHING_TO_MOVE"}, text)
    _print_status(moving, topics.offload_status, status, wait)


def _first_kept(ledgers: Sequence[LedgerInfo], keep: int) -> int:
    """Return the first ledger to keep, -1 without ledgers: the last ledger stays, and those before it up to
    ``keep`` bytes."""
    kept, total = -1, 0
    for ledger in reversed(ledgers):
        total += ledger.size
        if kept >= 0 and total > keep:
            break
        kept = ledger.ledger_id
    return kept


def _print_status(names: Sequence[str], query: Any, status: bool, wait: bool) -> None:
    """Print the status of an operation on each topic; with ``wait``, after its end."""
    failed = False
    for each in names:
        found = query(each)
        while wait and not status and found.status == "RUNNING":
            time.sleep(_POLL_SECONDS)
            found = query(each)
        failed |= found.status == "ERROR"
        error = f": {found.last_error}" if found.last_error else ""
        emit({"topic": each, **found.raw}, f"{each}  {_STATUS_WORDS.get(found.status, found.status)}{error}")
    if failed and not status:
        raise SystemExit(1)


@operation(command, "unload", "topic")
def unload(topic: str, cluster: Cluster) -> None:
    """Disconnect all clients from TOPIC: they reconnect, and unacknowledged messages are redelivered."""
    name = TopicName.parse(topic)
    cluster.admin().topics.unload(name)
    emit({"topic": str(name), "unloaded": True}, f"unloaded {name}")


@operation(command, "terminate", "topic")
@yes_option
def terminate(topic: str, cluster: Cluster) -> None:
    """Refuse new messages for TOPIC forever; consumers can still read to its end."""
    name = TopicName.parse(topic)
    confirm(f"Refuse new messages for {name} forever?")
    for each, last in cluster.admin().topics.terminate(name).items():
        emit({"topic": each, "last": id_text(last)}, f"{each} ends with {id_text(last)}")


@operation(command, "truncate", "topic")
@yes_option
def truncate(topic: str, cluster: Cluster) -> None:
    """Delete all messages of TOPIC, acknowledged or not."""
    name = TopicName.parse(topic)
    confirm(f"Delete all messages of {name}?")
    cluster.admin().topics.truncate(name)
    emit({"topic": str(name), "truncated": True}, f"truncated {name}")


@operation(command, "properties", "topic")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...", callback=pairs)
def properties(topic: str, changes: dict[str, str], cluster: Cluster) -> None:
    """Show or set properties of TOPIC; NAME= removes a property."""
    topics = cluster.admin().topics
    for name, value in changes.items():
        if value:
            topics.update_properties(topic, {name: value})
        else:
            topics.remove_property(topic, name)
    rows = [{"name": name, "value": value} for name, value in sorted(topics.properties(topic).items())]
    print_rows(rows, (TableColumn("name", "name"), TableColumn("value", "value")))


add_permission_commands(command, "topics", click.argument("resource", metavar="TOPIC"))
add_policy_commands(command, "topic_policies", "TOPIC", TopicPolicies)
