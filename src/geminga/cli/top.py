"""``geminga top``: topics or subscriptions as they change, those with the most to do first."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from geminga.cli.common import json_option
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.tables import TableColumn, table, trouble
from geminga.cli.units import SPAN, count, rate, size, span
from geminga.client.cluster import Cluster
from geminga.errors import AdminNotFound, PulsarException
from geminga.ids import TopicName

CALLS_AT_ONCE = 8
LISTED_EACH_LOOK_MAX = 1000
LIST_AGAIN_SECONDS = 30.0
"""Names of more topics than that are asked for only so often: of 600,000 they are 40 MB."""
_TOPICS = (
    TableColumn("topic", "topic"),
    TableColumn("in", "rate_in", rate, right=True),
    TableColumn("in", "bytes_in", lambda v: f"{size(v)}/s", right=True),
    TableColumn("out", "rate_out", rate, right=True),
    TableColumn("backlog", "backlog", count, right=True),
    TableColumn("unacked", "unacknowledged", count, right=True),
    TableColumn("kept", "stored", size, right=True),
    TableColumn("producers", "producers", count, right=True),
    TableColumn("subscriptions", "subscriptions", count, right=True),
    TableColumn("consumers", "consumers", count, right=True),
)
_SUBSCRIPTIONS = (
    TableColumn("topic", "topic"),
    TableColumn("subscription", "subscription"),
    TableColumn("type", "type"),
    TableColumn("backlog", "backlog", count, right=True),
    TableColumn("oldest", "oldest_seconds", span, right=True),
    TableColumn("unacked", "unacknowledged", count, right=True),
    TableColumn("holes", "holes", count, right=True, style=trouble),
    TableColumn("out", "rate_out", rate, right=True),
    TableColumn("again", "rate_redelivered", rate, right=True, style=trouble),
    TableColumn("consumers", "consumers", count, right=True),
)
SORTS = ("backlog", "in", "out", "name")


@click.command("top", cls=ConnectingCommand)
@click.argument("namespaces", nargs=-1, metavar="[TENANT/NAMESPACE]...")
@click.option("--subscriptions", "by_subscription", is_flag=True, help="A row a subscription, not a topic.")
@click.option("--every", type=SPAN, default="2s", show_default=True, help="How often it is looked.")
@click.option("--count", "-n", "frames", type=click.IntRange(1), help="Stop after so many looks.")
@click.option(
    "--sort", type=click.Choice(SORTS), default="backlog", show_default=True, help="What comes first."
)
@click.option("--pattern", default="", metavar="REGEX", help="Only topics whose name matches.")
@click.option(
    "--topics",
    "topics_max",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Look at so many topics at most.",
)
@connecting
@json_option
def command(
    namespaces: tuple[str, ...],
    by_subscription: bool,
    every: dt.timedelta,
    frames: int | None,
    sort: str,
    pattern: str,
    topics_max: int,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Topics of the namespaces (public/default) as they change, until Ctrl-C.

    Where the output is no terminal it is looked once, unless --count says otherwise. With --json each look
    is a line of its own.
    """
    live = sys.stdout.isatty() and not as_json
    left = frames if frames is not None else (None if live else 1)
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise click.BadParameter(
            f"{pattern!r} is no regular expression: {error}", param_hint="--pattern"
        ) from None
    names: list[str] = []
    listed_at = float("-inf")
    with cluster.admin() as admin:
        while left is None or left > 0:
            began = time.monotonic()
            if len(names) < LISTED_EACH_LOOK_MAX or began - listed_at > LIST_AGAIN_SECONDS:
                names, listed_at = _names(admin, namespaces or ("public/default",), wanted), began
            rows = look(admin, names[:topics_max], by_subscription)
            rows.sort(key=_key(sort))
            if as_json:
                click.echo(json.dumps({"time": int(time.time() * 1000), "rows": rows}, separators=(",", ":")))
            else:
                _show(rows, _SUBSCRIPTIONS if by_subscription else _TOPICS, len(names), topics_max, live)
            left = None if left is None else left - 1
            if left != 0:
                time.sleep(max(0.05, every.total_seconds() - (time.monotonic() - began)))


def _names(admin: Any, namespaces: tuple[str, ...], wanted: re.Pattern[str]) -> list[str]:
    """Topics, partitioned ones as one."""
    found: dict[str, None] = {}
    for namespace in namespaces:
        for name in admin.topics.list(namespace):
            base = str(TopicName.parse(name).base)
            if wanted.search(base):
                found[base] = None
    return list(found)


def look(admin: Any, names: list[str], by_subscription: bool) -> list[dict[str, Any]]:
    """A row a topic, or a subscription; topics that have gone meanwhile are left out."""
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        return [row for found in pool.map(lambda n: _rows(admin, n, by_subscription), names) for row in found]


def _rows(admin: Any, name: str, by_subscription: bool) -> list[dict[str, Any]]:
    try:
        stats = admin.topics.stats(name)
    except AdminNotFound:
        return []
    except PulsarException as error:
        if by_subscription:
            return []
        return [{"topic": name, "failed": str(error)}]
    if by_subscription:
        return list(_subscription_rows(name, stats))
    subscriptions = stats.subscriptions.values()
    return [
        {
            "topic": name,
            "rate_in": stats.msg_rate_in,
            "bytes_in": stats.msg_throughput_in,
            "rate_out": stats.msg_rate_out,
            "backlog": sum(_backlog(one) for one in subscriptions),
            "unacknowledged": sum(one.unacked_messages for one in subscriptions),
            "stored": stats.storage_size,
            "producers": len(stats.publishers),
            "subscriptions": len(stats.subscriptions),
            "consumers": sum(len(one.consumers) for one in subscriptions),
        }
    ]


def _subscription_rows(name: str, stats: Any) -> Iterator[dict[str, Any]]:
    for subscription, one in stats.subscriptions.items():
        yield {
            "topic": name,
            "subscription": subscription,
            "type": one.type if one.consumers else "",
            "backlog": _backlog(one),
            "oldest_seconds": one.oldest_backlog_message_age_seconds,
            "unacknowledged": one.unacked_messages,
            "holes": one.ack_holes if one.ack_holes >= 0 else one.non_contiguous_deleted_messages_ranges,
            "rate_out": one.msg_rate_out,
            "rate_redelivered": one.msg_rate_redeliver,
            "consumers": len(one.consumers),
        }


def _backlog(one: Any) -> int:
    """Messages where the broker counts them, else entries."""
    return int(one.messages_in_backlog if one.messages_in_backlog >= 0 else one.msg_backlog)


def _key(sort: str) -> Any:
    field = {"backlog": "backlog", "in": "rate_in", "out": "rate_out"}.get(sort)
    if field is None:
        return lambda row: (row["topic"], row.get("subscription", ""))
    return lambda row: (
        -row.get(field, 0),
        -row.get("rate_out", 0),
        row["topic"],
        row.get("subscription", ""),
    )


def _show(
    rows: list[dict[str, Any]], columns: tuple[TableColumn, ...], total: int, looked_at: int, live: bool
) -> None:
    lines = table(rows, columns, heads=True)
    if live:
        height = shutil.get_terminal_size().lines - 3
        hidden = len(lines) - height
        lines = lines[:height] + ([f"... {hidden} more"] if hidden > 0 else [])
        click.echo("\x1b[H\x1b[J", nl=False)
    what = f"{total} topics" + (f", the first {looked_at} looked at" if total > looked_at else "")
    click.echo(f"{time.strftime('%H:%M:%S')}  {what}")
    click.echo("\n".join(lines))
    for row in rows:
        if "failed" in row:
            click.echo(f"{row['topic']}: {row['failed']}", err=True)
