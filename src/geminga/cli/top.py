"""``geminga top``: live table of topics or subscriptions, the largest backlog first."""

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

from geminga.cli.common import WordChoice, json_option, say, wants_json
from geminga.cli.connecting import ConnectingCommand, as_pasted, connecting
from geminga.cli.tables import TableColumn, fitted, table, trouble
from geminga.cli.units import PATTERN, SPAN, count, rate, size, span
from geminga.client.cluster import Cluster
from geminga.diagnosis.commands import how_many
from geminga.errors import AdminNotFound, PulsarException
from geminga.ids import TopicName

CALLS_AT_ONCE = 8
LISTED_EACH_TIME_MAX = 1000
DEFAULT_NAMESPACE = "public/default"
LIST_AGAIN_SECONDS = 30.0
"""Interval between listings of more than LISTED_EACH_TIME_MAX topics: 600,000 names take 40 MB."""
TOPICS = (
    TableColumn("topic", "topic"),
    TableColumn("in", "rate_in", rate, right=True),
    TableColumn("bytes in", "bytes_in", lambda v: f"{size(v)}/s", right=True),
    TableColumn("out", "rate_out", rate, right=True),
    TableColumn("backlog", "backlog", count, right=True),
    TableColumn("unacked", "unacknowledged", count, right=True),
    TableColumn("stored", "stored", size, right=True),
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
    TableColumn("redelivered", "rate_redelivered", rate, right=True, style=trouble),
    TableColumn("consumers", "consumers", count, right=True),
)
SORTS = ("backlog", "in", "out", "name")


@click.command("top", cls=ConnectingCommand)
@click.argument("namespaces", nargs=-1, metavar="[TENANT/NAMESPACE]...")
@click.option(
    "--subscriptions", "by_subscription", is_flag=True, help="One row per subscription instead of per topic."
)
@click.option("--all", "-a", "everything", is_flag=True, help="All namespaces, and idle topics too.")
@click.option("--every", type=SPAN, default="2s", show_default=True, help="Refresh interval.")
@click.option("--count", "-n", "frames", type=click.IntRange(1), help="Stop after this many refreshes.")
@click.option("--sort", type=WordChoice(SORTS), default="backlog", show_default=True, help="Sort key.")
@click.option("--pattern", type=PATTERN, default="", metavar="REGEX", help="Only topics whose name matches.")
@click.option(
    "--topics", "topics_max", type=click.IntRange(1), default=2000, show_default=True,
    help="Maximum number of topics to query.",
)  # fmt: skip
@connecting
@json_option
def command(
    namespaces: tuple[str, ...],
    by_subscription: bool,
    everything: bool,
    every: dt.timedelta,
    frames: int | None,
    sort: str,
    pattern: re.Pattern[str],
    topics_max: int,
    cluster: Cluster,
) -> None:
    """Show a live table of the topics of namespaces (default: public/default), until Ctrl-C.

    Idle topics, without traffic and backlog, are hidden. If the output is not a terminal, print once, or
    --count times. With --json, print one line per refresh.
    """
    live = sys.stdout.isatty() and not wants_json()
    left = frames if frames is not None else (None if live else 1)
    names: list[str] = []
    listed_at = float("-inf")
    with cluster.admin() as admin:
        if everything and not namespaces:
            namespaces = tuple(_namespaces(admin))
        while left is None or left > 0:
            began = time.monotonic()
            if len(names) < LISTED_EACH_TIME_MAX or began - listed_at > LIST_AGAIN_SECONDS:
                names, listed_at = _names(admin, namespaces or (DEFAULT_NAMESPACE,), pattern), began
            rows = look(admin, names[:topics_max], by_subscription)
            rows.sort(key=_key(sort))
            if wants_json():
                click.echo(json.dumps({"time": int(time.time() * 1000), "rows": rows}, separators=(",", ":")))
            else:
                active = rows if everything else [row for row in rows if not _is_idle(row)]
                summary = _summary(admin, namespaces, len(names), topics_max, len(rows) - len(active))
                show(active, _SUBSCRIPTIONS if by_subscription else TOPICS, summary, live)
            left = None if left is None else left - 1
            if left != 0:
                time.sleep(max(0.05, every.total_seconds() - (time.monotonic() - began)))


def _names(admin: Any, namespaces: tuple[str, ...], wanted: re.Pattern[str]) -> list[str]:
    """Return the names of topics; a partitioned topic is one name."""
    found: dict[str, None] = {}
    for namespace in namespaces:
        for name in admin.topics.list(namespace):
            base = str(TopicName.parse(name).base)
            if wanted.search(base):
                found[base] = None
    return list(found)


def look(admin: Any, names: list[str], by_subscription: bool) -> list[dict[str, Any]]:
    """Query one row per topic or per subscription; deleted topics are left out."""
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
    """Return the backlog in messages if the broker counts them, else in entries."""
    return int(one.messages_in_backlog if one.messages_in_backlog >= 0 else one.msg_backlog)


def _key(sort: str) -> Any:
    field = {"in": "rate_in", "out": "rate_out"}.get(sort, sort)
    fields = () if sort == "name" else (field, "rate_out")
    return lambda row: (*(-row.get(each, 0) for each in fields), row["topic"], row.get("subscription", ""))


def _is_idle(row: dict[str, Any]) -> bool:
    return not any(row.get(name) for name in ("failed", "rate_in", "rate_out", "backlog", "unacknowledged"))


def _namespaces(admin: Any) -> list[str]:
    return [name for tenant in admin.tenants.list() for name in admin.namespaces.list(tenant)]


def _summary(admin: Any, namespaces: tuple[str, ...], total: int, queried: int, idle: int) -> str:
    text = how_many(total, "topic")
    if len(namespaces) <= 1:
        text += f" in {(*namespaces, DEFAULT_NAMESPACE)[0]}"
    if total == 0 and not namespaces:
        found = [len(admin.topics.list(name)) for name in _namespaces(admin) if name != DEFAULT_NAMESPACE]
        if other := [number for number in found if number]:
            where = how_many(len(other), "other namespace")
            text += f"; {sum(other):,} in {where}: {as_pasted('geminga top --all')}"
    if total > queried:
        text += f", the first {queried:,} queried"
    return text + (f", {idle:,} idle (-a shows them)" if idle else "")


def show(rows: list[dict[str, Any]], columns: tuple[TableColumn, ...], summary: str, live: bool) -> None:
    lines = [f"{time.strftime('%H:%M:%S')}  {summary}"]
    if live:
        width, height = shutil.get_terminal_size()
        height -= 4 + len(lines[0]) // width  # a long summary wraps: it may have a command to paste
        name = columns[0]._replace(show=lambda topic: topic.removeprefix("persistent://"))
        lines += fitted(rows[:height], (name, *columns[1:]), width)
        lines += [f"... {len(rows) - height:,} more"] if len(rows) > height else []
        lines[0] = f"\x1b[H\x1b[J{lines[0]}"
    else:
        lines += table(rows, columns)
    click.echo("\n".join(lines))
    for row in rows:
        if "failed" in row:
            say(f"{row['topic']}: {row['failed']}")
