"""Next maintenance time of a topic, and the time since which it is unused.

The maintenance time is computed from the stored entries and the policies (`next_due`), and stored in the
expiry index (`expiry_index`). Inactive topics and unused subscriptions are deleted by the second time. It is
stored in the topic's record only while it is valid: ``unused_ms`` and ``unused_subscriptions`` are removed
before a client connects, so that after a crash no used topic counts as unused.

Times are milliseconds since 1970, by the broker's clock.
"""

import logging
from typing import Final

from geminga.broker.delivery.subscription import COMPACTION
from geminga.broker.entries.position_lookup import arrived_ms
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.topics.expiry_index import NEVER
from geminga.broker.topics.offloading import OffloadedTopic
from geminga.broker.topics.quota import EVICTION
from geminga.broker.topics.topic import Topic
from geminga.errors import StoreError

log = logging.getLogger("geminga.broker")

CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"
HELD_MS: Final = 3_600_000
"""Delay of the next check of a topic whose oldest entries a subscription holds, or retention if longer.

In memory, the topic is checked when they are acknowledged; this is for what a crash left behind.
"""
SOONEST_MS: Final = 15_000
"""Shortest interval of two checks of a topic."""
_LEDGER_SECONDS_MIN = 60.0
_LEDGERS_PER_TIME = 8
"""Part of the TTL or the retention for which a ledger takes entries: expiry deletes whole ledgers."""
_LEDGERS_KEPT_MAX = 200
"""Approximate limit of ledgers kept by retention."""


# --- times that follow from policies ---
def ledger_seconds(policies: Policies, seconds_max: float) -> float:
    """Return for how many seconds a ledger takes entries.

    Expired entries free their space by whole ledgers, and within a ledger only producers' clocks show the
    age of an entry. So short TTLs have short ledgers, unless retention would keep very many of them.
    """
    wanted = [seconds_max]
    if policies.message_ttl_seconds > 0:
        wanted.append(policies.message_ttl_seconds / _LEDGERS_PER_TIME)
    if policies.retention_minutes >= 0:
        wanted.append(policies.retention_minutes * 60 / _LEDGERS_PER_TIME)
    least = _LEDGER_SECONDS_MIN
    if policies.retention_minutes:
        kept = (
            policies.retention_minutes * 60 / _LEDGERS_KEPT_MAX
            if policies.retention_minutes > 0
            else seconds_max
        )
        least = max(least, kept)
    return min(seconds_max, max(least, min(wanted)))


def _times_ms(policies: Policies) -> list[int]:
    """Return the times after which each policy acts; at least `NEVER` for those that do not."""
    inactive = policies.inactive_topic_seconds * 1000 if policies.delete_inactive_topics else NEVER
    return [
        policies.message_ttl_seconds * 1000 or NEVER,
        _unlimited(policies.retention_minutes) * 60_000,
        _eviction_seconds(policies) * 1000 or NEVER,
        policies.subscription_expiration_minutes * 60_000 or NEVER,
        inactive,
        _unlimited(policies.offload_threshold_seconds) * 1000,
    ]


def soonest_ms(policies: Policies) -> int:
    """Return the shortest time until maintenance under these policies; `NEVER` if they need none.

    Limits of size are not included: they are checked while a topic grows, and if they cannot be enforced
    then, `next_due` returns the next try.
    """
    return min(*_times_ms(policies), NEVER)


def acts_earlier(before: Policies, after: Policies) -> bool:
    """Return whether a change of policies may make maintenance due earlier: topics must be checked."""
    limits = [
        (*_times_ms(policies), _unlimited(policies.retention_megabytes),
         policies.backlog_quota_bytes if _evicts_by_size(policies) else NEVER,
         policies.compaction_threshold_bytes or NEVER, _unlimited(policies.offload_threshold_bytes),
         _unlimited(policies.offload_deletion_lag_ms), policies.ttl_from_delivery)
        for policies in (before, after)
    ]  # fmt: skip
    modes = before.inactive_topic_mode != after.inactive_topic_mode and after.delete_inactive_topics
    return modes or any(new < old for old, new in zip(*limits, strict=True))


def _unlimited(value: int) -> int:
    return NEVER if value < 0 else value


def _evicts_by_size(policies: Policies) -> bool:
    return policies.backlog_quota_action == EVICTION and policies.backlog_quota_bytes >= 0


def _eviction_seconds(policies: Policies) -> int:
    """Return the age after which the quota evicts the oldest messages; 0 if it does not."""
    if policies.backlog_quota_age_action == EVICTION and policies.backlog_quota_seconds > 0:
        return policies.backlog_quota_seconds
    return 0


# --- when a topic needs something ---
def slowest(topic: OffloadedTopic, other_than: str = "") -> int:
    """Return the first entry that a durable subscription waits for; the end if all are caught up."""
    wanted = [
        each.wanted_from for name, each in topic.subscriptions.items() if each.durable and name != other_than
    ]
    return min(wanted, default=topic.ledger.confirmed)


def next_due(topic: OffloadedTopic) -> int:
    """Return when maintenance is needed if nothing happens until then; `NEVER` if it is not."""
    wanted_from = slowest(topic)
    return min(
        _waiting_due(topic, slowest(topic, COMPACTION) if COMPACTION in topic.subscriptions else wanted_from),
        _retention_due(topic, wanted_from),
        _subscriptions_due(topic),
        inactive_due(topic),
        NEVER if topic.offload is None else min(topic.offload.due_ms, NEVER),
    )


def _waiting_due(topic: OffloadedTopic, wanted_from: int) -> int:
    """Return when the oldest open entry exceeds the TTL or a quota, or a delivery time the TTL."""
    policies, later = topic.policies, topic.delivery_expiry
    quota = _eviction_seconds(policies) if topic.idle else policies.backlog_quota_seconds
    limits = [seconds for seconds in (policies.message_ttl_seconds, quota) if seconds > 0]
    if later is None or not (policies.ttl_from_delivery and policies.message_ttl_seconds):
        return _age_due(topic, wanted_from, min(limits, default=0))
    ttl, examined = policies.message_ttl_seconds, max(wanted_from, later.examined)
    delivered_due = later.next_ms + ttl * 1000 if wanted_from < topic.ledger.confirmed else NEVER
    return min(_age_due(topic, wanted_from, quota), _age_due(topic, examined, ttl), delivered_due)


def _age_due(topic: OffloadedTopic, offset: int, seconds: int) -> int:
    """Return when an entry exceeds this age; `NEVER` without one, or if ``seconds`` is no limit."""
    ledger = topic.ledger
    index = ledger.index_of(offset)
    if seconds <= 0 or offset >= ledger.confirmed or index < 0:
        return NEVER
    # No entry is read for this unless its ledger is as old already.
    due = ledger.segments[index].created_ms + seconds * 1000
    if due <= topic.scheduler.now_ms:
        try:
            due = arrived_ms(ledger, offset, topic.scheduler.now_ms) + seconds * 1000
        except StoreError as error:
            log.warning("%r: cannot read the age of the oldest message: %s", topic, error)
            due = topic.scheduler.now_ms + HELD_MS
    return due


def _retention_due(topic: OffloadedTopic, wanted_from: int) -> int:
    """Return when retention allows deleting the oldest ledger."""
    policies, ledger, now_ms = topic.policies, topic.ledger, topic.scheduler.now_ms
    minutes, megabytes = policies.retention_minutes, policies.retention_megabytes
    if not ledger.segments or (minutes < 0 and megabytes < 0):
        return NEVER
    if ledger.segments[0].end <= wanted_from and minutes >= 0:
        return ledger.written_ms(0) + minutes * 60_000
    is_too_large = megabytes >= 0 and ledger.size_bytes > megabytes << 20
    if is_too_large or minutes < 0:
        return now_ms + HELD_MS if is_too_large else NEVER
    return now_ms + max(minutes * 60_000, HELD_MS)


def _subscriptions_due(topic: OffloadedTopic) -> int:
    minutes = topic.policies.subscription_expiration_minutes
    unused = _unused_subscriptions(topic).values() if minutes > 0 else ()
    return min((since + minutes * 60_000 for since in unused), default=NEVER)


def inactive_due(topic: Topic) -> int:
    """Return when the topic is deleted because of its inactivity, if it stays unused."""
    policies = topic.policies
    if not policies.delete_inactive_topics or not topic.idle:
        return NEVER
    if not topic.persistent or policies.inactive_topic_mode == CAUGHT_UP:
        is_needed = any(each.backlog for each in topic.subscriptions.values())
    else:
        is_needed = bool(topic.subscriptions)
    return NEVER if is_needed else topic.last_used_ms + policies.inactive_topic_seconds * 1000


# --- since when it is unused ---
def in_use(topic: OffloadedTopic, subscription: str | None = None) -> None:
    """Remove the stored unused times of the topic and of a subscription, because a client connects."""
    record = topic.record
    is_news = bool(record.unused_ms)
    record.unused_ms = 0
    unused = record.unused_subscriptions
    if unused is not None and unused.pop(subscription or "", None) is not None:
        is_news = True
    if is_news:
        try:
            topic.save_record()
        except StoreError as error:
            log.warning("%r: cannot record when it was last used: %s", topic, error)


def recall(topic: OffloadedTopic) -> None:
    """Restore the times of last use of a loaded topic and its subscriptions from its record."""
    record = topic.record
    topic.last_used_ms = record.unused_ms or topic.scheduler.now_ms
    for name, unused_ms in (record.unused_subscriptions or {}).items():
        subscription = topic.subscriptions.get(name)
        if subscription is not None:
            subscription.last_active_ms = unused_ms
    if record.written_ms:
        segment = topic.ledger.segment(record.written_ledger)
        if segment is not None:
            segment.written_ms = record.written_ms
            record.written_ledger = segment.ledger_id  # the same number, kept once


def _remember(topic: OffloadedTopic, *, leaving: bool) -> bool:
    """Update the record for `recall`; return whether it changed."""
    policies, record, segments = topic.policies, topic.record, topic.ledger.segments
    before = record.unused_ms, record.unused_subscriptions, record.written_ledger, record.written_ms
    record.unused_ms = topic.last_used_ms if policies.delete_inactive_topics and topic.idle else 0
    unused = _unused_subscriptions(topic) if policies.subscription_expiration_minutes > 0 else None
    record.unused_subscriptions = unused or None
    if leaving and segments and segments[-1].written_ms:
        record.written_ledger, record.written_ms = segments[-1].ledger_id, segments[-1].written_ms
    after = record.unused_ms, record.unused_subscriptions, record.written_ledger, record.written_ms
    return before != after


def _unused_subscriptions(topic: OffloadedTopic) -> dict[str, int]:
    """Return when each durable subscription without consumers was used last."""
    return {
        name: each.last_active_ms
        for name, each in topic.subscriptions.items()
        if each.durable and not each.consumers and name != COMPACTION
    }


# --- the index of what is due ---
def arm_by(topic: OffloadedTopic, when_ms: int) -> None:
    """Ensure a check of the topic by then, also after a crash. Raises `StoreError`."""
    if when_ms < (topic.record.due_ms or NEVER):
        _arm(topic, when_ms)


def settle(topic: OffloadedTopic, *, leaving: bool) -> int:
    """Store when maintenance is due and since when the topic is unused, if that has changed.

    When the topic leaves memory only the index schedules it. Until then a key that is due already suffices:
    it is read after a crash. Returns when it is due. Raises `StoreError`.
    """
    is_news = _remember(topic, leaving=leaving)
    wanted = max(next_due(topic), topic.scheduler.now_ms + SOONEST_MS)
    due_ms = topic.record.due_ms or NEVER
    if due_ms > wanted or (leaving and due_ms <= topic.services.due.frontier):
        _arm(topic, wanted)
    elif is_news:
        topic.save_record()
    return wanted


def _arm(topic: OffloadedTopic, when_ms: int) -> None:
    due_ms = topic.record.due_ms
    try:
        before = topic.services.due.arm(topic.text, topic.record, when_ms)
        topic.save_record()
    except StoreError:
        # The stored time remains valid; an outdated key is removed when it is read.
        topic.record.due_ms = due_ms
        raise
    topic.services.due.disarm(topic.text, before)
