"""Why a subscription does not go on, concluded from statistics: for brokers that do not say it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from geminga.client.admin.types import (
    ConsumerStats,
    CursorInfo,
    Explanation,
    Finding,
    InternalStats,
    SubscriptionStats,
    TopicStats,
)

QUIET_SECONDS = 30
"""A consumer that got nothing for so long, though it could not take more, is called paused."""


def from_stats(
    topic: str, subscription: str, stats: TopicStats, inside: InternalStats, now: float
) -> Explanation:
    """The explanation for one subscription; ``now`` is seconds since 1970."""
    found = stats.subscriptions[subscription]
    cursor = inside.cursors.get(subscription, CursorInfo())
    findings = sorted(
        _findings(topic, subscription, stats, found, cursor, now), key=lambda each: not each.stops
    )
    stopping = [each for each in findings if each.stops]
    if stopping:
        summary = stopping[0].text
    elif not found.msg_backlog:
        summary = "everything is acknowledged"
    elif found.unacked_messages:
        summary = "messages are delivered, and wait to be acknowledged"
    else:
        summary = "nothing stands in the way: messages are on their way"
    return Explanation(
        topic=topic,
        subscription=subscription,
        summary=summary,
        facts=_facts(found, cursor, inside),
        findings=tuple(findings),
    )


def _facts(found: SubscriptionStats, cursor: CursorInfo, inside: InternalStats) -> dict[str, Any]:
    return {
        "type": found.type if found.consumers else "",
        "consumers": len(found.consumers),
        "messagesInBacklog": found.messages_in_backlog,
        "bytesInBacklog": found.backlog_size,
        "entriesInBacklog": found.msg_backlog,
        "oldestBacklogMessageAgeSeconds": found.oldest_backlog_message_age_seconds,
        "ackHoles": found.non_contiguous_deleted_messages_ranges,
        "oldestOpenMessage": _next(cursor.mark_delete_position),
        "readPosition": cursor.read_position,
        "lastConfirmedEntry": inside.last_confirmed_entry,
    }


def _next(position: str) -> str:
    ledger, _, entry = position.partition(":")
    try:
        return f"{ledger}:{int(entry) + 1}"
    except ValueError:
        return position


def _findings(
    topic: str,
    subscription: str,
    stats: TopicStats,
    found: SubscriptionStats,
    cursor: CursorInfo,
    now: float,
) -> Iterator[Finding]:
    place = f"{shlex.quote(topic)} {shlex.quote(subscription)}"
    unload = f"geminga topics unload {shlex.quote(topic)}"
    if not found.msg_backlog:
        yield Finding(kind="caught-up", text="no message waits: all are acknowledged")
        return
    if not found.consumers:
        yield Finding(
            kind="nobody-connected", stops=True, text="no consumer is connected",
            mend=f"start the consumer; to look at what waits: geminga peek {place}",
        )  # fmt: skip
    if found.blocked_subscription_on_unacked_msgs:
        yield Finding(
            kind="unacked-limit", stops=True,
            text=f"its consumers hold {found.unacked_messages} messages that they have not acknowledged, the "
            "most that is allowed",
            mend=f"acknowledge them; or hand them out again: {unload}",
            details={"unackedMessages": found.unacked_messages},
        )  # fmt: skip
    stuck = all(_is_full(each) for each in found.consumers)
    for consumer in found.consumers:
        if found.type == "Failover" and found.active_consumer_name not in ("", consumer.consumer_name):
            yield Finding(
                kind="standby",
                text=f"{_name(consumer)} stands by: {found.active_consumer_name} is the one that receives",
            )
            continue
        yield from _consumer(consumer, stuck, unload, now)
    if found.msg_delayed:
        alone = found.msg_delayed >= found.msg_backlog
        yield Finding(
            kind="delayed", stops=alone,
            text=f"{found.msg_delayed} messages are to be delivered later",
            mend="wait", details={"messages": found.msg_delayed},
        )  # fmt: skip
    after = found.raw.get("consumersAfterMarkDeletePosition") or {}
    for name in after:
        yield Finding(
            kind="key-blocked", stops=True,
            text=f"consumer {name!r} joined a Key_Shared subscription and waits for what was delivered "
            "before it to be acknowledged",
            mend=f"acknowledge that, or hand it out again: {unload}",
        )  # fmt: skip
    holes = found.non_contiguous_deleted_messages_ranges
    if holes:
        oldest = _next(cursor.mark_delete_position)
        yield Finding(
            kind="hole",
            text=f"message {oldest} is not acknowledged, messages behind it are, in {holes} "
            f"range{'s' if holes > 1 else ''}",
            mend=f"have what is open delivered again: {unload}; or give up all before a time or a message: "
            f"geminga subscriptions expire {place} --help",
            details={"message": oldest, "holes": holes},
        )  # fmt: skip
    if (
        stats.raw.get("backlogQuotaLimitSize", -1) > 0
        and stats.backlog_size > stats.raw["backlogQuotaLimitSize"]
    ):
        yield Finding(
            kind="quota", text="the backlog is beyond its quota: producers may be stopped",
            mend=f"acknowledge, or give up what waits: geminga subscriptions clear {place}",
        )  # fmt: skip


def _is_full(consumer: ConsumerStats) -> bool:
    return consumer.available_permits <= 0 or consumer.blocked_consumer_on_unacked_msgs


def _name(consumer: ConsumerStats) -> str:
    return f"consumer {consumer.consumer_name} at {consumer.address}"


def _consumer(consumer: ConsumerStats, stuck: bool, unload: str, now: float) -> Iterator[Finding]:
    who = _name(consumer)
    details = {"consumer": consumer.consumer_name, "address": consumer.address}
    if consumer.blocked_consumer_on_unacked_msgs:
        yield Finding(
            kind="unacked-limit", stops=stuck,
            text=f"{who} holds {consumer.unacked_messages} messages that it has not acknowledged, the most "
            "that is allowed to one consumer",
            mend=f"acknowledge them; or hand them to the others: {unload}",
            details={**details, "unackedMessages": consumer.unacked_messages},
        )  # fmt: skip
    if consumer.available_permits > 0:
        return
    quiet = int(now - consumer.last_consumed_timestamp / 1000) if consumer.last_consumed_timestamp else -1
    if quiet < 0:
        yield Finding(
            kind="no-permits", stops=stuck, text=f"{who} has no permits and got nothing yet",
            mend="its application must receive: a receiver queue of 0 asks only when it does",
            details=details,
        )  # fmt: skip
        return
    held = f", and holds {consumer.unacked_messages} unacknowledged" if consumer.unacked_messages else ""
    yield Finding(
        kind="paused" if quiet >= QUIET_SECONDS else "no-permits", stops=stuck,
        text=f"{who} has room for no more{held}: the last message went to it {quiet} s ago, and its "
        "application does not receive, or is paused",
        mend=f"receive or resume there, or hand its messages to the others: {unload}",
        details={**details, "lastConsumedTimestamp": consumer.last_consumed_timestamp},
    )  # fmt: skip
