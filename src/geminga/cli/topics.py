"""``geminga topics``: the everyday part of admin REST."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import click

from geminga.cli.common import SIZE, admin_url_option, emit, json_option
from geminga.client.admin import admin, topic_path
from geminga.ids import TopicName

_LOOK_AGAIN_SECONDS = 0.2


@click.group("topics")
def command() -> None:
    """List, create, describe, compact, offload and delete topics."""


@command.command("list")
@click.argument("namespace", default="public/default")
@admin_url_option
@json_option
def list_topics(namespace: str, admin_url: str, as_json: bool) -> None:
    """Topics of NAMESPACE (tenant/namespace), partitioned ones as one."""
    if namespace.count("/") != 1 or not all(namespace.split("/")):
        raise click.BadParameter(f"{namespace!r} is not tenant/namespace", param_hint="NAMESPACE")
    plain = [TopicName.parse(t) for t in admin(admin_url, "GET", f"persistent/{quote(namespace)}") or []]
    partitioned = admin(admin_url, "GET", f"persistent/{quote(namespace)}/partitioned") or []
    rows: list[dict[str, Any]] = []
    for name in partitioned:
        answer = admin(admin_url, "GET", f"{topic_path(TopicName.parse(name))}/partitions")
        rows.append({"topic": name, "partitions": answer["partitions"]})
    inside = set(partitioned)
    rows += [
        {"topic": str(t), "partitions": 0} for t in plain if t.partition < 0 or str(t.base) not in inside
    ]
    for row in sorted(rows, key=lambda r: r["topic"]):
        count = row["partitions"]
        emit(row, as_json=as_json, text=row["topic"] + (f"  ({count} partitions)" if count else ""))


@command.command("create")
@click.argument("topic")
@click.option("--partitions", "-p", type=click.IntRange(0), default=0, help="0 makes a plain topic.")
@admin_url_option
@json_option
def create(topic: str, partitions: int, admin_url: str, as_json: bool) -> None:
    """Make TOPIC."""
    name = TopicName.parse(topic)
    if partitions:
        admin(admin_url, "PUT", f"{topic_path(name)}/partitions", partitions)
    else:
        admin(admin_url, "PUT", topic_path(name), {})
    emit({"topic": str(name), "partitions": partitions}, as_json=as_json, text=f"created {name}")


@command.command("partitions")
@click.argument("topic")
@click.option("--set", "new_count", type=click.IntRange(1), help="Grow to this many partitions.")
@admin_url_option
@json_option
def partitions(topic: str, new_count: int | None, admin_url: str, as_json: bool) -> None:
    """Show or grow the number of partitions of TOPIC."""
    name = TopicName.parse(topic)
    if new_count is not None:
        admin(admin_url, "POST", f"{topic_path(name)}/partitions", new_count)
    count = admin(admin_url, "GET", f"{topic_path(name)}/partitions")["partitions"]
    emit({"topic": str(name), "partitions": count}, as_json=as_json, text=str(count))


@command.command("delete")
@click.argument("topic")
@click.option("--force", is_flag=True, help="Also with producers and consumers connected.")
@admin_url_option
@json_option
def delete(topic: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete TOPIC with its messages and subscriptions."""
    name = TopicName.parse(topic)
    count = admin(admin_url, "GET", f"{topic_path(name)}/partitions")["partitions"]
    path = topic_path(name) + ("/partitions" if count else "")
    admin(admin_url, "DELETE", f"{path}?force={str(force).lower()}")
    emit({"topic": str(name), "deleted": True}, as_json=as_json, text=f"deleted {name}")


@command.command("stats")
@click.argument("topic")
@admin_url_option
@json_option
def stats(topic: str, admin_url: str, as_json: bool) -> None:
    """Rates, backlog, producers and subscriptions of TOPIC."""
    name = TopicName.parse(topic)
    count = admin(admin_url, "GET", f"{topic_path(name)}/partitions")["partitions"]
    answer = admin(admin_url, "GET", f"{topic_path(name)}/{'partitioned-stats' if count else 'stats'}")
    lines = [
        str(name) + (f", {count} partitions" if count else ""),
        f"  in {answer['msgRateIn']:.1f} msg/s, {answer['msgThroughputIn'] / 1e6:.2f} MB/s; "
        f"{answer['msgInCounter']} messages since the topic was loaded",
        f"  kept {answer['storageSize'] / 1e6:.2f} MB; {len(answer['publishers'])} producers",
    ]
    for subscription, row in sorted(answer["subscriptions"].items()):
        lines.append(
            f"  {subscription}: {row.get('type') or 'no consumer'}, backlog {_backlog(row)}, "
            f"unacknowledged {row.get('unackedMessages', 0)}, {len(row['consumers'])} consumers"
        )
    emit(answer, as_json=as_json, text="\n".join(lines))


def _backlog(row: dict[str, Any]) -> str:
    """A subscription's backlog in messages where the broker counts them, else in entries."""
    messages = row.get("messagesInBacklog", -1)
    if messages < 0:
        return f"{row['msgBacklog']} entries"
    text = f"{messages} messages, {row['bytesInBacklog'] / 1e6:.2f} MB"
    if row["oldestBacklogMessageAgeSeconds"] >= 0:
        text += f", the oldest {row['oldestBacklogMessageAgeSeconds']} s old"
    return text + (f", {row['ackHoles']} ack holes" if row["ackHoles"] else "")


@command.command("compact")
@click.argument("topic")
@click.option("--status", is_flag=True, help="Only say what became of the last compaction.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Come back when it is over.")
@admin_url_option
@json_option
def compact(topic: str, status: bool, wait: bool, admin_url: str, as_json: bool) -> None:
    """Compact TOPIC: readers of what is compacted get the newest message of each key.

    Exits with 1 when it fails.
    """
    name = TopicName.parse(topic)
    count = admin(admin_url, "GET", f"{topic_path(name)}/partitions")["partitions"]
    names = [name.partition_name(index) for index in range(count)] if count else [name]
    if not status:
        admin(admin_url, "PUT", f"{topic_path(name)}/compaction")
    failed = False
    for each in names:
        answer = admin(admin_url, "GET", f"{topic_path(each)}/compaction")
        while wait and not status and answer["status"] == "RUNNING":
            time.sleep(_LOOK_AGAIN_SECONDS)
            answer = admin(admin_url, "GET", f"{topic_path(each)}/compaction")
        failed |= answer["status"] == "ERROR"
        error = f": {answer['lastError']}" if answer["lastError"] else ""
        emit({"topic": str(each), **answer}, as_json=as_json, text=f"{each}  {answer['status']}{error}")
    if failed and not status:
        raise SystemExit(1)


@command.command("offload")
@click.argument("topic")
@click.option("--keep", type=SIZE, default="0", help="Leave about so much of the newest here, such as 1G.")
@click.option("--status", is_flag=True, help="Only say what became of the last offload.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Come back when it is over.")
@admin_url_option
@json_option
def offload(topic: str, keep: int, status: bool, wait: bool, admin_url: str, as_json: bool) -> None:
    """Move the closed ledgers of TOPIC to the broker's offload location; readers notice nothing.

    Exits with 1 when it fails.
    """
    name = TopicName.parse(topic)
    count = admin(admin_url, "GET", f"{topic_path(name)}/partitions")["partitions"]
    failed = False
    for each in [name.partition_name(index) for index in range(count)] if count else [name]:
        path = f"{topic_path(each)}/offload"
        if not status:
            ledgers = admin(admin_url, "GET", f"{topic_path(each)}/internalStats")["ledgers"]
            first_kept = _first_kept(ledgers, keep)
            if first_kept is not None:
                admin(admin_url, "PUT", path, {"ledgerId": first_kept, "entryId": 0, "partitionIndex": -1})
        answer = admin(admin_url, "GET", path)
        while wait and not status and answer["status"] == "RUNNING":
            time.sleep(_LOOK_AGAIN_SECONDS)
            answer = admin(admin_url, "GET", path)
        failed |= answer["status"] == "ERROR"
        error = f": {answer['lastError']}" if answer["lastError"] else ""
        emit({"topic": str(each), **answer}, as_json=as_json, text=f"{each}  {answer['status']}{error}")
    if failed and not status:
        raise SystemExit(1)


def _first_kept(ledgers: list[dict[str, Any]], keep: int) -> int | None:
    """The oldest ledger that stays: the last one, and as many before it as ``keep`` bytes have room for."""
    kept, size = None, 0
    for ledger in reversed(ledgers):
        size += ledger["size"]
        if kept is not None and size > keep:
            break
        kept = int(ledger["ledgerId"])
    return kept


@command.command("subscriptions")
@click.argument("topic")
@admin_url_option
@json_option
def subscriptions(topic: str, admin_url: str, as_json: bool) -> None:
    """Names of the subscriptions of TOPIC."""
    for name in admin(admin_url, "GET", f"{topic_path(TopicName.parse(topic))}/subscriptions") or []:
        emit({"subscription": name}, as_json=as_json, text=name)


@command.command("skip")
@click.argument("topic")
@click.argument("subscription")
@click.option("--count", "-n", type=click.IntRange(1), help="The next so many messages.")
@click.option("--message", metavar="LEDGER:ENTRY", help="This message alone, for example a damaged one.")
@admin_url_option
@json_option
def skip(
    topic: str, subscription: str, count: int | None, message: str | None, admin_url: str, as_json: bool
) -> None:
    """Let SUBSCRIPTION go on without messages; those of a batch are counted one by one."""
    if (count is None) == (message is None):
        raise click.UsageError("give either --count or --message")
    name = TopicName.parse(topic)
    path = f"{topic_path(name)}/subscription/{quote(subscription, safe='')}/skip"
    if message is not None:
        ledger, _, entry = message.partition(":")
        if not (ledger.isdecimal() and entry.isdecimal()):
            raise click.BadParameter(f"{message!r} is not LEDGER:ENTRY", param_hint="--message")
        admin(admin_url, "POST", f"{path}/{int(ledger)}/{int(entry)}")
        emit(
            {"topic": str(name), "subscription": subscription, "skipped": 1, "unit": "entries"},
            as_json=as_json,
            text=f"{subscription} goes on without {message}",
        )
        return
    path += f"/{count}"
    answer = admin(admin_url, "POST", f"{path}?unit=messages")
    if answer is None:
        # Apache Pulsar knows no unit and says nothing.
        unit, skipped = "entries (this broker counts a batch as one)", count
    else:
        unit, skipped = "messages", answer["skippedMessages"]
    emit(
        {"topic": str(name), "subscription": subscription, "skipped": skipped, "unit": unit.split()[0]},
        as_json=as_json,
        text=f"{subscription} goes on behind {skipped} {unit}",
    )


@command.command("reset-cursor")
@click.argument("topic")
@click.argument("subscription")
@click.option("--time", "timestamp_ms", type=int, required=True, help="Publish time in ms since 1970.")
@admin_url_option
@json_option
def reset_cursor(topic: str, subscription: str, timestamp_ms: int, admin_url: str, as_json: bool) -> None:
    """Let SUBSCRIPTION read TOPIC again from a publish time."""
    name = TopicName.parse(topic)
    path = f"{topic_path(name)}/subscription/{quote(subscription, safe='')}/resetcursor/{timestamp_ms}"
    admin(admin_url, "POST", path)
    emit(
        {"topic": str(name), "subscription": subscription, "timestamp": timestamp_ms},
        as_json=as_json,
        text=f"{subscription} reads from {timestamp_ms} on",
    )


@command.command("unload")
@click.argument("topic")
@admin_url_option
@json_option
def unload(topic: str, admin_url: str, as_json: bool) -> None:
    """Disconnect everybody from TOPIC: clients come back, and what was not acknowledged is dealt out anew."""
    name = TopicName.parse(topic)
    admin(admin_url, "PUT", f"{topic_path(name)}/unload")
    emit({"topic": str(name), "unloaded": True}, as_json=as_json, text=f"unloaded {name}")


@command.command("policy")
@click.argument("topic")
@click.argument("policy")
@click.argument("value", required=False)
@click.option("--remove", is_flag=True, help="What the namespace says is in force again.")
@admin_url_option
@json_option
def policy(topic: str, policy: str, value: str | None, remove: bool, admin_url: str, as_json: bool) -> None:
    """Show, set or remove a POLICY of TOPIC, by its name in admin REST: retention, messageTTL ...

    VALUE is JSON.
    """
    if remove and value is not None:
        raise click.UsageError("give either a value or --remove")
    name = TopicName.parse(topic)
    path = f"{topic_path(name)}/{quote(policy, safe='?=&')}"
    base = policy.partition("?")[0]
    if remove:
        admin(admin_url, "DELETE", path)
    elif value is not None:
        try:
            content = json.loads(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is no JSON", param_hint="VALUE") from None
        if base == "messageTTL":
            admin(admin_url, "POST", f"{path}?messageTTL={quote(str(content))}")
        else:
            admin(admin_url, "PUT" if base == "schemaCompatibilityStrategy" else "POST", path, content)
    shown = f"{topic_path(name)}/backlogQuotaMap" if base == "backlogQuota" else path
    found = admin(admin_url, "GET", shown)
    emit({"topic": str(name), "policy": policy, "value": found}, as_json=as_json, text=json.dumps(found))


@command.command("redeliver-unacked")
@click.argument("topic")
@click.argument("subscription")
@click.argument("seconds", type=click.FloatRange(0))
@admin_url_option
@json_option
def redeliver_unacked(topic: str, subscription: str, seconds: float, admin_url: str, as_json: bool) -> None:
    """Have messages of SUBSCRIPTION pushed again that are not acknowledged within SECONDS; 0: not."""
    name = TopicName.parse(topic)
    path = f"{topic_path(name)}/subscription/{quote(subscription, safe='')}/properties"
    properties = admin(admin_url, "GET", path) or {}
    admin(admin_url, "PUT", path, {**properties, "redeliver-unacked-after-seconds": f"{seconds:g}"})
    emit(
        {"topic": str(name), "subscription": subscription, "seconds": seconds},
        as_json=as_json,
        text=f"{subscription}: unacknowledged messages "
        + (f"are pushed again after {seconds:g} s" if seconds else "are not pushed again"),
    )
