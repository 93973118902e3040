"""Figures of a subscription from the admin REST of an Apache Pulsar: ``stats`` and ``internalStats``.

Apache Pulsar counts backlogs in entries, and does not report which messages a consumer holds, or which
keys are blocked; such figures stay unknown.
"""

from collections.abc import Mapping
from typing import Any, Final

from geminga.diagnosis.commands import distinct, size
from geminga.diagnosis.conclude import CONSUMERS_NAMED_MAX
from geminga.diagnosis.facts import ConsumerFacts, HoleFacts, QuotaFacts, Relief, SubscriptionFacts

Json = Mapping[str, Any]
RATE_SECONDS: Final = 60
"""Apache Pulsar's rates are averages over this time."""


def facts_from_stats(
    topic: str, subscription: str, stats: Json, inside: Json, now_ms: int
) -> SubscriptionFacts:
    """Figures of a subscription in ``stats``; ``inside`` is the topic's internalStats, empty if not known.

    Raises `KeyError` if ``stats`` has no such subscription.
    """
    own, stats = _known(stats["subscriptions"][subscription]), _known(stats)
    cursor = inside.get("cursors", {}).get(subscription, {})
    consumers = tuple(_consumer(_known(each), own, now_ms) for each in own.get("consumers", []))
    backlog, delayed, held = (own.get(key, 0) for key in ("msgBacklog", "msgDelayed", "unackedMessages"))
    rate_in = stats.get("msgRateIn", 0.0)
    delivered_ms = max((each.delivered_ms for each in consumers), default=0)
    delivered_ms = max(delivered_ms, own.get("lastConsumedTimestamp", 0))
    waiting = _waiting(backlog - delayed, held, cursor, inside, own)
    oldest = own.get("earliestMsgPublishTimeInBacklog", 0)
    holes = own.get("nonContiguousDeletedMessagesRanges", 0)
    oldest_open = _next(cursor.get("markDeletePosition", ""))
    return SubscriptionFacts(
        topic=topic,
        subscription=subscription,
        now_ms=now_ms,
        is_geminga=False,
        type=own.get("type", ""),
        durable=own.get("isDurable", True),
        backlog=backlog,
        messages=own.get("messagesInBacklog", -1),
        bytes=own.get("backlogSize", -1),
        oldest_seconds=(now_ms - oldest) // 1000 if oldest > 0 else -1,
        waiting=waiting,
        waiting_since_ms=now_ms - RATE_SECONDS * 1000 if cursor and not rate_in else 0,
        held=held,
        blocked=own.get("blockedSubscriptionOnUnackedMsgs", False),
        delivered_ms=delivered_ms,
        acked_ms=max([own.get("lastAckedTimestamp", 0), *(each.acked_ms for each in consumers)]),
        published_ms=now_ms if rate_in > 0 else 0,
        rate_in=rate_in,
        consumers=tuple(sorted(consumers, key=lambda each: each.ready)[:CONSUMERS_NAMED_MAX]),
        consumer_count=len(consumers),
        any_ready=any(each.ready and not each.standby for each in consumers),
        quota=_quota(subscription, stats, own),
        delayed=delayed,
        open_transactions=stats.get("ongoingTxnCount", 0),
        newcomers=tuple(own.get("consumersAfterMarkDeletePosition", ())),
        holes=holes,
        mark_ms=own.get("lastMarkDeleteAdvancedTimestamp", 0),
        hole=HoleFacts(message=oldest_open, acknowledged_behind=-1) if holes and oldest_open else None,
        oldest_open=oldest_open,
        expired=own.get("totalMsgExpired", 0),
        expired_ms=own.get("lastExpireTimestamp", 0),
        read_position=cursor.get("readPosition", ""),
    )


def _known(found: Json) -> Json:
    """The fields that have a value: Java writes null, and rates that do not exist as a text."""
    return {name: value for name, value in found.items() if value not in (None, "NaN", "Infinity")}


def _consumer(each: Json, own: Json, now_ms: int) -> ConsumerFacts:
    name, acked_ms = each.get("consumerName", ""), each.get("lastAckedTimestamp", 0)
    held, delivered_ms = each.get("unackedMessages", 0), each.get("lastConsumedTimestamp", 0)
    since_ms = delivered_ms
    rate, acks = each.get("msgRateOut", 0.0), each.get("messageAckRate", 0.0)
    if not acks and held > rate * RATE_SECONDS > 0:
        # It holds more than a minute's deliveries, and acknowledged none meanwhile: some of it is older.
        since_ms = min(since_ms, now_ms - RATE_SECONDS * 1000)
    active = own.get("activeConsumerName", "")
    return ConsumerFacts(
        name=name,
        address=each.get("address", ""),
        permits=each.get("availablePermits", 0),
        held=held,
        held_since_ms=max(since_ms, acked_ms),
        blocked=each.get("blockedConsumerOnUnackedMsgs", False),
        standby=own.get("type") == "Failover" and active not in ("", name),
        asked_ms=each.get("lastConsumedFlowTimestamp", 0) or -1,
        delivered_ms=delivered_ms,
        acked_ms=acked_ms,
        acks_per_second=acks,
    )


def _waiting(due: int, held: int, cursor: Json, inside: Json, own: Json) -> int:
    """Entries that no consumer has, at least; ``due`` are those of the backlog that are not delayed."""
    if cursor.get("readPosition"):
        behind = ids_of(cursor["readPosition"]) > ids_of(str(inside.get("lastConfirmedEntry", "-1:-1")))
        return own.get("msgInReplay", 0) if behind else max(0, due)
    return max(0, due - held)


def _quota(subscription: str, stats: Json, own: Json) -> QuotaFacts | None:
    limit = stats.get("backlogQuotaLimitSize", -1)
    kept = own.get("backlogSize", 0)
    if not 0 < limit < kept:
        return None
    others = {n: s.get("backlogSize", 0) for n, s in stats["subscriptions"].items() if n != subscription}
    still = next((name for name, value in others.items() if value > limit), "")
    found, allowed = distinct(size, kept, limit)
    return QuotaFacts(
        text=f"the backlog is beyond its quota: {found}, {allowed} are allowed; producers may be stopped",
        subscription=subscription,
        certain=False,
        details=(("found", kept), ("limit", limit)),
        enough=Relief(up_to="", messages=own.get("messagesInBacklog", -1), frees=kept, still_over=still),
    )


def ids_of(position: str) -> tuple[int, int]:
    """Return ledger id and entry id of ``3:5``; the entry id of ``3`` is -1."""
    ledger, _, entry = position.partition(":")
    return int(ledger), int(entry or -1)


def _next(position: str) -> str:
    """The position behind ``position``."""
    try:
        ledger, entry = ids_of(position)
    except ValueError:
        return position
    return f"{ledger}:{entry + 1}"
