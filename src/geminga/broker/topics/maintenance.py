"""What happens to a topic's messages by themselves: expiry, backlog quotas (`quota`), trimming.

The rules are Pulsar's. A message leaves when every durable subscription has acknowledged it and
retention lets it go; TTL acknowledges old messages for subscriptions that did not.
"""

from __future__ import annotations

import logging

from geminga.broker.managed_ledger import Segment
from geminga.broker.topics import quota
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import Topic
from geminga.errors import StoreError

log = logging.getLogger("geminga.broker")

CAUGHT_UP = "delete_when_subscriptions_caught_up"
READER_LEFTOVER_SECONDS = 60
"""A reader that was told to come back after a seek and does not is forgotten after this."""
_MEGABYTE = 1024 * 1024


def keep(topic: PersistentTopic) -> None:
    """Expire old messages, look at the backlog quota, delete what nobody needs any more."""
    try:
        forget_unused_subscriptions(topic)
        expire(topic)
        quota.check(topic)
        trim(topic)
    except StoreError as error:
        log.error("%r: housekeeping failed: %s", topic, error)


def expire(topic: PersistentTopic) -> None:
    """Acknowledge messages that are older than the TTL."""
    seconds = topic.policies.message_ttl_seconds
    if seconds <= 0:
        return
    before_ms = topic.agenda.now_ms - seconds * 1000
    offset = -1
    for subscription in list(topic.subscriptions.values()):
        if not subscription.durable or not subscription.backlog:
            continue
        if topic.publish_time(subscription.cursor.mark) >= before_ms:
            continue
        if offset < 0:
            offset = topic.offset_by_time(before_ms)
        expired = subscription.expire(offset)
        if expired:
            log.info("%r: %d entries expired after %d s", subscription, expired, seconds)


def forget_unused_subscriptions(topic: PersistentTopic) -> None:
    """Delete subscriptions that nobody has used for as long as the policies say, and leftover readers."""
    now_ms = topic.agenda.now_ms
    minutes = topic.policies.subscription_expiration_minutes
    for subscription in list(topic.subscriptions.values()):
        if subscription.consumers:
            continue
        unused_ms = now_ms - subscription.last_active_ms
        if not subscription.durable:
            if unused_ms >= READER_LEFTOVER_SECONDS * 1000:
                topic.forget_subscription(subscription)
        elif minutes and unused_ms >= minutes * 60_000:
            log.info("%r: deleted, it has not been used for %d minutes", subscription, minutes)
            subscription.delete(None)


def is_inactive(topic: Topic, unused_seconds: float) -> bool:
    """Whether the policies want a topic deleted that nobody has been connected to for so long."""
    policies = topic.policies
    if not policies.delete_inactive_topics or unused_seconds < policies.inactive_topic_seconds:
        return False
    if not topic.persistent or policies.inactive_topic_mode == CAUGHT_UP:
        return not any(each.backlog for each in topic.subscriptions.values())
    return not topic.subscriptions


def _slowest(topic: PersistentTopic) -> int:
    """The first entry that a durable subscription waits for; the end when none waits for any."""
    wanted = [each.wanted_from for each in topic.subscriptions.values() if each.durable]
    return min(wanted, default=topic.ledger.confirmed)


def trim(topic: PersistentTopic) -> int:
    """Delete ledgers that every durable subscription is past and retention lets go."""
    policies = topic.policies
    ledger = topic.ledger
    minutes, megabytes = policies.retention_minutes, policies.retention_megabytes
    now_ms = topic.agenda.now_ms
    size = ledger.size_bytes

    def expired(segment: Segment, closed_ms: int) -> bool:
        nonlocal size
        too_old = minutes >= 0 and now_ms - closed_ms >= minutes * 60_000
        too_large = megabytes >= 0 and size - segment.size_bytes >= megabytes * _MEGABYTE
        size -= segment.size_bytes
        return too_old or too_large

    slowest = _slowest(topic)
    segments = ledger.segments
    if (minutes < 0 and megabytes < 0) or len(segments) < 2 or segments[0].end > slowest:
        return 0
    gone = ledger.unneeded(slowest, expired)
    if gone:
        topic.delete_ledgers(gone)
        for subscription in topic.subscriptions.values():
            if subscription.cursor.mark < ledger.start:
                subscription.skip_to(ledger.start)
        log.info("%r: %d ledgers deleted", topic, gone)
    return gone
