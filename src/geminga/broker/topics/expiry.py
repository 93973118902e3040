"""Automatic deletion of a topic's messages: TTL, backlog quotas (`quota`), trimming.

The rules are Pulsar's. A message is deleted when every durable subscription has acknowledged it and retention
is over; TTL acknowledges old messages on all subscriptions.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from heapq import nsmallest
from typing import Final

from geminga.broker.delivery.subscription import COMPACTION
from geminga.broker.entries.managed_ledger import Segment
from geminga.broker.entries.position_lookup import arrived_ms
from geminga.broker.topics import compaction, deadlines, offloading, quota
from geminga.broker.topics.delivery_expiry import DeliveryExpiry, report_expired, waiting_for
from geminga.broker.topics.expiry_index import NEVER
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import Topic
from geminga.diagnosis.commands import size
from geminga.errors import StoreBusy, StoreError, StoreStopped

log = logging.getLogger("geminga.broker")

OPEN_LEDGER_UNUSED_SECONDS = 300
"""The ledger that a topic writes to is deleted only when nothing was written for this long."""
EXPIRED_AT_ONCE_MAX = 300
"""Subscriptions of a topic whose messages expire in one round: the slowest; the others follow."""
READER_LEFTOVER_SECONDS = 60
"""Time after which a reader that does not reconnect after a seek is removed."""


def keep(topic: PersistentTopic) -> None:
    """Expire old messages, check the backlog quota, delete unneeded ledgers.

    If the age of messages cannot be read now, from slow or unreachable storage, the other steps are still
    done.
    """
    for step in _STEPS:
        try:
            step(topic)
        except StoreStopped as error:
            log.error("%r: maintenance failed: %s", topic, error)
            return
        except StoreBusy as error:
            log.info("%r: maintenance waits for the disk: %s", topic, error)
            topic.touch()
        except StoreError as error:
            log.error("%r: maintenance failed: %s", topic, error)


def expire(topic: PersistentTopic) -> None:
    """Acknowledge messages that are older than the TTL."""
    seconds = topic.policies.message_ttl_seconds
    if seconds <= 0:
        return
    waiting = waiting_for(topic)
    if not waiting:
        return
    first = min(each.cursor.mark for each in waiting)
    offset = too_old_below(topic, first, topic.scheduler.now_ms - seconds * 1000)
    if topic.policies.ttl_from_delivery:
        topic.delivery_expiry = topic.delivery_expiry or DeliveryExpiry(topic)
        topic.delivery_expiry.expire(first, offset)
        return
    behind = (each for each in waiting if each.cursor.mark < offset)
    for subscription in nsmallest(EXPIRED_AT_ONCE_MAX, behind, key=lambda each: each.cursor.mark):
        report_expired(topic, subscription, subscription.expire(offset))


def too_old_below(topic: PersistentTopic, first: int, before_ms: int) -> int:
    """Return the first entry from ``first`` on that was published at ``before_ms`` or later.

    The broker's clock decides which ledgers are too old as a whole, the producers' clocks only the offset
    within the one ledger that is not: see `position_lookup.arrived_ms`.
    """
    ledger, now_ms = topic.ledger, topic.scheduler.now_ms
    index = max(0, ledger.index_of(first))
    while index < len(ledger.segments) and ledger.written_ms(index) < before_ms:
        first = ledger.segments[index].end
        index += 1
    if index == len(ledger.segments) or ledger.segments[index].created_ms >= before_ms:
        return first
    segment = ledger.segments[index]
    low, high = max(first, segment.base), min(segment.end, ledger.confirmed)
    if low < high and arrived_ms(ledger, low, now_ms) >= before_ms:
        return first
    return low + bisect_left(range(low, high), before_ms, key=lambda at: arrived_ms(ledger, at, now_ms))


def forget_unused_subscriptions(topic: PersistentTopic) -> None:
    """Delete subscriptions unused for longer than the policies allow, and leftover readers."""
    now_ms = topic.scheduler.now_ms
    minutes = topic.policies.subscription_expiration_minutes
    for subscription in list(topic.subscriptions.values()):
        if subscription.consumers or subscription.name == COMPACTION:
            continue
        unused_ms = now_ms - subscription.last_active_ms
        if not subscription.durable:
            if unused_ms >= READER_LEFTOVER_SECONDS * 1000:
                topic.forget_subscription(subscription)
        elif minutes and unused_ms >= minutes * 60_000:
            log.info("%r: deleted after %d minutes without use", subscription, minutes)
            topic.scheduler.event_log.tell(
                "forgotten", now_ms, topic.text, subscription.name,
                text=f"deleted: nobody had used it for {minutes} minutes",
            )  # fmt: skip
            subscription.delete(None)


def readers_due(topic: PersistentTopic) -> int:
    """Return when the first leftover reader is to be removed."""
    left = (
        each.last_active_ms for each in topic.subscriptions.values() if not (each.durable or each.consumers)
    )
    return min((since + READER_LEFTOVER_SECONDS * 1000 for since in left), default=NEVER)


def is_inactive(topic: Topic) -> bool:
    """Return whether the policies delete the topic because of its inactivity."""
    return deadlines.inactive_due(topic) <= topic.scheduler.now_ms


def trim(topic: PersistentTopic) -> int:
    """Delete ledgers that all durable subscriptions have passed and retention allows; return their number.

    The current ledger is deleted, too, after a time without writes: the next entry begins another.
    """
    compaction.prepare(topic)
    policies = topic.policies
    ledger = topic.ledger
    minutes, megabytes = policies.retention_minutes, policies.retention_megabytes
    if (minutes < 0 and megabytes < 0) or not ledger.segments:
        return 0
    now_ms = topic.scheduler.now_ms
    left_bytes = ledger.size_bytes

    def expired(segment: Segment, written_ms: int) -> bool:
        nonlocal left_bytes
        unused_ms = now_ms - written_ms
        too_old = minutes >= 0 and unused_ms >= minutes * 60_000
        too_large = megabytes >= 0 and left_bytes - segment.size_bytes >= megabytes << 20
        left_bytes -= segment.size_bytes
        may_close = not ledger.is_open(segment) or unused_ms >= OPEN_LEDGER_UNUSED_SECONDS * 1000
        return (too_old or too_large) and may_close

    gone = ledger.unneeded(deadlines.slowest(topic), expired)
    if gone:
        going = ledger.segments[:gone]
        topic.scheduler.event_log.tell(
            "retention", now_ms, topic.text, count=sum(each.entries for each in going), unit="entry",
            text=f"acknowledged and past retention: {size(sum(each.size_bytes for each in going))}",
        )  # fmt: skip
    _delete(topic, gone)
    return gone


def give_up(topic: PersistentTopic, ledger_id: int) -> bool:
    """Delete a topic's oldest ledger before its retention ends, to free space; return whether it was deleted.

    Only the oldest ledger, once every durable subscription has passed it. Ledgers that policies keep forever
    stay. Of an offloaded ledger only the local copy is deleted, even if it is needed.
    """
    policies, ledger, offload = topic.policies, topic.ledger, topic.offload
    if (
        offload is not None
        and offload.has(ledger_id)
        and not (offload.is_borrowed and offload.is_here(ledger_id))
    ):
        return offload.give_way(ledger_id)  # False if the copy was deleted meanwhile
    if policies.retention_minutes < 0 and policies.retention_megabytes < 0:
        return False
    if not ledger.segments or ledger.segments[0].ledger_id != ledger_id:
        return False
    compaction.prepare(topic)
    is_unneeded = ledger.unneeded(deadlines.slowest(topic), lambda segment, _: segment.ledger_id == ledger_id)
    _delete(topic, is_unneeded)
    return bool(is_unneeded)


def _delete(topic: PersistentTopic, ledgers: int) -> None:
    """Delete the oldest ledgers; non-durable subscriptions in them continue behind."""
    if ledgers:
        topic.delete_ledgers(ledgers)
        start = topic.ledger.start
        for subscription in topic.subscriptions.values():
            if subscription.cursor.mark < start:
                subscription.skip_to(start)
        log.debug("%r: %d ledgers deleted", topic, ledgers)


_STEPS: Final[tuple[Callable[[PersistentTopic], object], ...]] = (
    forget_unused_subscriptions,
    expire,
    quota.check,
    trim,
    compaction.check,
    offloading.check,
)
"""Steps of `keep`, in their order."""
