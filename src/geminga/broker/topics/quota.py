"""Backlog quotas: limits of size and age of a subscription's backlog.

There are two limits, for size and for age, each with its own action: producers are blocked
(``producer_request_hold``) or refused (``producer_exception``), or the oldest messages are skipped
(``consumer_backlog_eviction``). The backlog is what a subscription retains on the disk: everything from its
oldest open message on, acknowledged messages behind it included. So a single forgotten acknowledgement may
exceed the limit; the error sent to producers names that message and its subscription.

Quotas are checked in maintenance, and whenever a producer is created while one is exceeded or set: a blocked
producer resumes at its client's first try after the backlog has shrunk.
"""

import logging
from bisect import bisect_left

from geminga.broker.delivery.subscription import COMPACTION, PersistentSubscription
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.entries.position_lookup import offset_by_time
from geminga.broker.topics.topic import QuotaExceeded, StoredTopic

log = logging.getLogger("geminga.broker")

HOLD = "producer_request_hold"
EVICTION = "consumer_backlog_eviction"


def check(topic: StoredTopic) -> None:
    """Apply the exceeded quotas: skip messages, or disconnect producers."""
    exceeded = _exceeded(topic)
    if any(each.action == EVICTION for each in exceeded):
        _evict(topic, exceeded)
        exceeded = _exceeded(topic)
    _hold(topic, exceeded)


def refresh(topic: StoredTopic) -> QuotaExceeded | None:
    """Return the quota that blocks producers now, for a new producer. No message is skipped here."""
    if topic.policies.backlog_quota_bytes >= 0 or topic.policies.backlog_quota_seconds > 0:
        _hold(topic, _exceeded(topic))
    else:
        topic.quota_exceeded = None
    return topic.quota_exceeded


def _hold(topic: StoredTopic, exceeded: list[QuotaExceeded]) -> None:
    holding = next((each for each in exceeded if each.action != EVICTION), None)
    before, topic.quota_exceeded = topic.quota_exceeded, holding
    if holding is not None and before is None:
        log.warning("%r: producers are disconnected, %s", topic, holding)
        topic.scheduler.event_log.tell(
            "quota", topic.scheduler.now_ms, topic.text, holding.subscription,
            text=f"producers are stopped: {holding}",
        )  # fmt: skip
        for producer in topic.access.everyone():
            producer.hold()
    elif holding is None and before is not None:
        log.info("%r: the backlog is within its quota again, producers may reconnect", topic)
        topic.scheduler.event_log.tell(
            "quota", topic.scheduler.now_ms, topic.text, before.subscription,
            text="the backlog is within its quota again, producers may reconnect",
        )  # fmt: skip


Moved = tuple[PersistentSubscription, int]
"""A subscription, and the first unacknowledged entry that it would have after the move."""


def would_hold(topic: StoredTopic, moved: Moved | None = None) -> QuotaExceeded | None:
    """Return the exceeded quota that blocks producers; ``moved``: as if a subscription skipped entries."""
    return next((each for each in _exceeded(topic, moved) if each.action != EVICTION), None)


def held_by(topic: StoredTopic, subscription: PersistentSubscription) -> QuotaExceeded | None:
    """Return the quota that blocks producers and that this subscription exceeds, be it the slowest or not."""
    found = _exceeded_by(topic, subscription, subscription.wanted_from) if _counts(subscription) else []
    return next((each for each in found if each.action != EVICTION), None)


def enough_from(topic: StoredTopic, quota: QuotaExceeded) -> int:
    """Return the offset of the first entry from which on a backlog is within ``quota``."""
    if quota.kind == "size":
        return _offset_of_size(topic.ledger, quota.limit)
    now_ms = topic.scheduler.now_ms
    return offset_by_time(topic.ledger, now_ms - quota.limit * 1000, now_ms)


def _exceeded(topic: StoredTopic, moved: Moved | None = None) -> list[QuotaExceeded]:
    """Return the quotas that the subscription with the oldest backlog exceeds."""
    slowest, offset = _slowest(topic, moved)
    return [] if slowest is None else _exceeded_by(topic, slowest, offset)


def _exceeded_by(topic: StoredTopic, slowest: PersistentSubscription, offset: int) -> list[QuotaExceeded]:
    """Return the quotas that a subscription exceeds; ``offset`` is its oldest open entry."""
    policies, ledger = topic.policies, topic.ledger
    if offset >= ledger.confirmed:
        return []
    found = []
    size = ledger.size_from(offset)
    if 0 <= policies.backlog_quota_bytes < size:
        found.append(("size", policies.backlog_quota_bytes, size, policies.backlog_quota_action))
    age = slowest.age_seconds_of(offset)
    if 0 < policies.backlog_quota_seconds < age:
        found.append(("age", policies.backlog_quota_seconds, age, policies.backlog_quota_age_action))
    return [
        QuotaExceeded(
            action=action,
            kind=kind,
            limit=limit,
            found=value,
            subscription=slowest.name,
            oldest=ledger.position(offset),
            age_seconds=age,
            acknowledged_behind=slowest.acknowledged_behind,
        )
        for kind, limit, value, action in found
    ]


def _slowest(topic: StoredTopic, moved: Moved | None) -> tuple[PersistentSubscription | None, int]:
    """Return the durable subscription with the oldest open entry, and its offset; None without one."""
    waiting = [each for each in topic.subscriptions.values() if _counts(each)]
    offsets = {each: moved[1] if moved and each is moved[0] else each.wanted_from for each in waiting}
    slowest = min(waiting, key=offsets.__getitem__, default=None)
    return slowest, 0 if slowest is None else offsets[slowest]


def _counts(subscription: PersistentSubscription) -> bool:
    """Return whether quotas apply to the subscription."""
    return subscription.durable and subscription.name != COMPACTION


def _evict(topic: StoredTopic, exceeded: list[QuotaExceeded]) -> None:
    """Skip the oldest messages of slow subscriptions until the evicting quotas are met."""
    target = 0
    for quota in exceeded:
        if quota.action != EVICTION:
            continue
        target = max(target, enough_from(topic, quota))
    for subscription in list(topic.subscriptions.values()):
        if _counts(subscription) and subscription.cursor.mark < target:
            evicted = subscription.skip_to(target)
            log.warning("%r: %d entries evicted because the backlog quota is exceeded", subscription, evicted)
            topic.scheduler.event_log.tell(
                "evicted", topic.scheduler.now_ms, topic.text, subscription.name, count=evicted,
                unit="entry", text="given up unacknowledged: the backlog quota is exceeded",
            )  # fmt: skip


def _offset_of_size(ledger: ManagedLedger, size: int) -> int:
    """Return the first offset from which at most ``size`` bytes follow."""
    offsets = range(ledger.start, ledger.confirmed)
    return ledger.start + bisect_left(offsets, -size, key=lambda offset: -ledger.size_from(offset))
