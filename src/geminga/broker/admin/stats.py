"""Topic statistics of the admin API and CONSUMER_STATS, in the format that Pulsar's tools expect.

Field names are Pulsar's. Fields of absent features (replication) are empty.

A topic may have tens of thousands of subscriptions and consumers. Its statistics are made by a generator
that yields after each, so that the caller can serve others in between (`Resource.in_steps`) or not
(`at_once`). Who leaves meanwhile is left out.
"""

import heapq
from collections.abc import Iterable
from itertools import islice
from typing import Any

from geminga.broker.admin.facts import trouble
from geminga.broker.delivery.consumer import Consumer, Subscription, type_name
from geminga.broker.delivery.key_shared import KeySharedDispatcher
from geminga.broker.delivery.limits import RateLimit
from geminga.broker.delivery.shared import SharedDispatcher
from geminga.broker.delivery.single_active import SingleActiveDispatcher
from geminga.broker.delivery.subscription import COMPACTION, PersistentSubscription
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.entries.position_lookup import last_position
from geminga.broker.runtime.cooperative import Steps
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.producer import Producer
from geminga.broker.topics.topic import Topic
from geminga.broker.topics.transactions import TransactionStatus
from geminga.diagnosis.commands import iso_time
from geminga.wire.proto import pulsar_wire_pb2 as pb

Json = dict[str, Any]


# --- topics ---
_ALWAYS_0 = (
    "systemTopicBytesInCounter", "bytesOutInternalCounter", "earliestMsgPublishTimeInBacklogs",
    "delayedMessageIndexSizeInBytes",
    "nonContiguousDeletedMessagesRangesSerializedSize",
)  # fmt: skip
_OFFLOADED = (
    "offloadedStorageSize", "lastOffloadLedgerId", "lastOffloadSuccessTimeStamp",
    "lastOffloadFailureTimeStamp",
)  # fmt: skip
_COMPACTION = (
    "lastCompactionRemovedEventCount", "lastCompactionSucceedTimestamp", "lastCompactionFailedTimestamp",
    "lastCompactionDurationTimeInMills",
)  # fmt: skip


_SUMMED = (
    "msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgOutCounter",
    "nonContiguousDeletedMessagesRanges",
)  # fmt: skip


def topic_stats(topic: Topic, now: float, broker_id: str, *, key_ranges: bool = True) -> Steps[Json]:
    """``GET .../stats`` of one topic; ``now`` is monotonic, for rates. ``key_ranges``: with the hash ranges
    of Key_Shared consumers, which are long lists."""
    backlog_size = 0
    oldest: Json = {"oldestBacklogMessageAgeSeconds": -1}
    listed: dict[str, Json] = {}
    for name in sorted(topic.subscriptions):
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            continue
        stats = listed[name] = yield from _subscription_stats(subscription, now, key_ranges)
        if isinstance(topic, PersistentTopic) and isinstance(subscription, PersistentSubscription):
            stats["trouble"] = trouble(topic, subscription)
        backlog_size = max(backlog_size, stats["backlogSize"])
        age = stats.get("oldestBacklogMessageAgeSeconds", -1)
        if age > oldest["oldestBacklogMessageAgeSeconds"]:
            oldest = {"oldestBacklogMessageAgeSeconds": age, "oldestBacklogMessageSubscriptionName": name}
        yield
    publishers = []
    for producer in list(topic.access.producers.values()):
        publishers.append(_publisher_stats(producer, now))
        yield
    # The topic's own counters now include those of subscriptions that were deleted meanwhile.
    listed = {name: each for name, each in listed.items() if name in topic.subscriptions}
    sums = {field: sum(each[field] for each in listed.values()) for field in _SUMMED}
    return _whole(topic, broker_id, publishers, sums) | {
        "backlogSize": backlog_size, **oldest, "publishers": publishers, "subscriptions": listed,
    }  # fmt: skip


def _whole(topic: Topic, broker_id: str, publishers: list[Json], sums: dict[str, float]) -> Json:
    policies = topic.policies
    stored = topic.ledger.size_bytes if isinstance(topic, PersistentTopic) else 0
    is_deduplicated = isinstance(topic, PersistentTopic) and topic.dedup is not None
    return {
        **dict.fromkeys((*_ALWAYS_0, *_OFFLOADED), 0),
        "replication": {},
        "publishRateLimitedTimes": sum(
            limit.held_by_messages + limit.held_by_bytes for limit in topic.rate_limits.publish
        ),
        "msgRateIn": sum(each["msgRateIn"] for each in publishers),
        "msgThroughputIn": sum(each["msgThroughputIn"] for each in publishers),
        **sums,
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "bytesOutCounter": topic.bytes_out_gone + sums["bytesOutCounter"],
        "msgOutCounter": topic.messages_out_gone + sums["msgOutCounter"],
        "averageMsgSize": topic.bytes_in / topic.messages_in if topic.messages_in else 0.0,
        "msgChunkPublished": any(producer.chunked for producer in topic.access.producers.values()),
        "storageSize": stored,
        "backlogQuotaLimitSize": policies.backlog_quota_bytes,
        "backlogQuotaLimitTime": policies.backlog_quota_seconds,
        "backlogQuotaExceeded": str(topic.quota_exceeded or ""),
        "waitingPublishers": topic.access.waiting,
        "deduplicationStatus": "Enabled" if is_deduplicated else "Disabled",
        "compaction": _compaction(topic),
        "ownerBroker": broker_id,
        **_offloaded(topic),
        **_transactions(topic),
    }


def _transactions(topic: Topic) -> Json:
    part = topic.transactions if isinstance(topic, PersistentTopic) else None
    return {
        "ongoingTxnCount": 0 if part is None else len(part.open),
        "abortedTxnCount": 0 if part is None else part.ended[TransactionStatus.ABORTED],
        "committedTxnCount": 0 if part is None else part.ended[TransactionStatus.COMMITTED],
    }


_OTHER_NAMES = {
    "msgInCount": "msgInCounter", "bytesInCount": "bytesInCounter",
    "msgOutCount": "msgOutCounter", "bytesOutCount": "bytesOutCounter",
}  # fmt: skip


def stats_among_all(topic: Topic, now: float, broker_id: str) -> Steps[Json]:
    """Return one topic's part of ``broker-stats/topics``: `topic_stats` and further fields."""
    found = yield from topic_stats(topic, now, broker_id)
    found |= {name: found[known] for name, known in _OTHER_NAMES.items()}
    found |= {"producerCount": len(found["publishers"]), "filteredEntriesCount": 0}
    if isinstance(topic, PersistentTopic):
        found["pendingAddEntriesCount"] = topic.pending_adds
        for name, listed in found["subscriptions"].items():
            subscription = topic.subscriptions.get(name)
            if isinstance(subscription, PersistentSubscription):
                listed |= _read_and_open(subscription)
            yield
    return found


def _read_and_open(subscription: PersistentSubscription) -> Json:
    cursor = subscription.cursor
    read_offset = getattr(subscription.dispatcher, "read_offset", cursor.mark)
    return {
        "numberOfEntriesSinceFirstNotAckedMessage": max(0, read_offset - cursor.mark) + 1,
        "totalNonContiguousDeletedMessagesRange": cursor.holes.range_count(),
    }


def _offloaded(topic: Topic) -> Json:
    offload = topic.offload if isinstance(topic, PersistentTopic) else None
    if offload is None:
        return {}
    values = (offload.size_bytes, offload.last_ledger, offload.succeeded_ms, offload.failed_ms)
    return dict(zip(_OFFLOADED, values, strict=True))


def _compaction(topic: Topic) -> Json:
    if not isinstance(topic, PersistentTopic) or (last := topic.compaction) is None:
        return dict.fromkeys(_COMPACTION, 0)
    view = topic.compacted
    values = (last.removed, last.succeeded_ms, last.failed_ms, last.duration_ms)
    return {
        **dict(zip(_COMPACTION, values, strict=True)),
        "succeeded": last.succeeded,
        "failed": last.failed,
        "removed": last.removed_total,
        "bytesRead": last.bytes_read,
        "bytesWritten": last.bytes_written,
        "entries": 0 if view is None else view.entries,
        "size": 0 if view is None else view.size_bytes,
    }


def _publisher_stats(producer: Producer, now: float) -> Json:
    rates = producer.rates.read(now, producer.messages_in, producer.bytes_in)
    return {
        "accessMode": pb.ProducerAccessMode.Name(producer.access_mode),
        "msgRateIn": rates[0],
        "msgThroughputIn": rates[1],
        "averageMsgSize": producer.bytes_in / producer.messages_in if producer.messages_in else 0.0,
        "messagesPerEntry": producer.messages_in / producer.entries_in if producer.entries_in else 0.0,
        "chunkedMessageRate": 0.0,
        "producerId": producer.producer_id,
        "supportsPartialProducer": False,
        "producerName": producer.name,
        IS_NAME_GENERATED: not producer.user_provided_name,
        "address": producer.peer.address,
        "connectedSince": iso_time(producer.connected_since_ms),
        "clientVersion": producer.peer.client_version,
        "metadata": dict(producer.metadata),
    }


IS_NAME_GENERATED = "isNameGenerated"
"""Field of a producer that the broker named: it has another name on each partition."""


# --- subscriptions ---
def _subscription_stats(subscription: Subscription, now: float, key_ranges: bool) -> Steps[Json]:
    listed: dict[Consumer, Json] = {}
    for consumer in list(subscription.consumers):
        listed[consumer] = _consumer_stats(consumer, now)
        yield
    dispatcher = subscription.dispatcher if isinstance(subscription, PersistentSubscription) else None
    if isinstance(dispatcher, KeySharedDispatcher):
        ranges = dispatcher.selector.ranges() if key_ranges else {}
        for consumer, found in listed.items():
            if consumer not in subscription.consumers:
                continue
            found["entriesQueued"] = dispatcher.queued_for(consumer)
            if key_ranges:
                found["keyHashRangeArrays"] = [list(each) for each in ranges.get(consumer, ())]
                found["drainingHashes"] = []
            yield
    consumers = [listed[consumer] for consumer in subscription.consumers if consumer in listed]
    stats: Json = {
        "msgRateOut": sum(each["msgRateOut"] for each in consumers),
        "msgThroughputOut": sum(each["msgThroughputOut"] for each in consumers),
        "bytesOutCounter": subscription.bytes_out_gone + sum(each["bytesOutCounter"] for each in consumers),
        "msgOutCounter": subscription.messages_out_gone + sum(each["msgOutCounter"] for each in consumers),
        "msgRateRedeliver": sum(each["msgRateRedeliver"] for each in consumers),
        "messageAckRate": sum(each["messageAckRate"] for each in consumers),
        "chunkedMessageRate": 0.0,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgRateExpired": 0.0,
        "consumers": consumers,
        "isDurable": subscription.durable,
        "durable": subscription.durable,
        "isReplicated": subscription.replicated,
        "replicated": subscription.replicated,
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": 0,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        **dict.fromkeys(_FILTERS, 0),
        **_throttled(subscription),
        "type": "None" if subscription.type is None else type_name(subscription.type),
    }
    if isinstance(subscription, PersistentSubscription):
        stats |= _cursor_stats(subscription)
    else:
        stats |= {
            "msgBacklog": 0, "backlogSize": 0, "msgBacklogNoDelayed": 0, "unackedMessages": 0,
            "nonContiguousDeletedMessagesRanges": 0, "msgDropRate": 0.0, "subscriptionProperties": {},
        }  # fmt: skip
    return stats


_FILTERS = (
    "filterProcessedMsgCount", "filterAcceptedMsgCount", "filterRejectedMsgCount",
    "filterRescheduledMsgCount",
)  # fmt: skip


def _throttled(subscription: Subscription) -> Json:
    """Return how often each limit delayed dispatching."""
    limits: dict[str, RateLimit | None] = dict.fromkeys(("Subscription", "Topic", "Broker"))
    if isinstance(subscription, PersistentSubscription):
        topic = subscription.topic
        limits["Subscription"] = subscription.dispatch_limit
        limits["Topic"] = topic.rate_limits.own_dispatch
        limits["Broker"] = topic.rate_limits.shared_dispatch
    found = {}
    for name, limit in limits.items():
        found[f"dispatchThrottledMsgEventsBy{name}Limit"] = 0 if limit is None else limit.held_by_messages
        found[f"dispatchThrottledBytesEventsBy{name}Limit"] = 0 if limit is None else limit.held_by_bytes
    return found


def _cursor_stats(subscription: PersistentSubscription) -> Json:
    cursor = subscription.cursor
    dispatcher = subscription.dispatcher
    backlog = subscription.backlog
    messages, size = subscription.backlog_tally()
    stats: Json = {
        "msgBacklog": backlog,
        "messagesInBacklog": messages,
        "bytesInBacklog": size,
        "oldestBacklogMessageAgeSeconds": subscription.oldest_age_seconds,
        "ackHoles": cursor.hole_count(),
        "redeliverUnackedAfterSeconds": subscription.compensation.after_seconds,
        "messagesPushedAgain": subscription.compensation.messages,
        "entriesTooOldToPushAgain": subscription.compensation.given_up,
        "lastPushedAgainTimestamp": subscription.compensation.last_ms,
        "backlogSize": subscription.topic.ledger.size_from(cursor.mark) if backlog else 0,
        "msgBacklogNoDelayed": backlog,
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": 0,
        "msgInReplay": 0,
        "unackedMessages": 0,
        "totalMsgExpired": subscription.messages_expired,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "lastConsumedFlowTimestamp": subscription.last_flow_ms,
        "lastConsumedTimestamp": subscription.last_consumed_ms,
        "lastConsumerLeftTimestamp": subscription.last_left_ms,
        "lastAckedTimestamp": subscription.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": subscription.last_mark_ms,
        "nonContiguousDeletedMessagesRanges": cursor.holes.range_count(),
        "subscriptionProperties": {} if subscription.name == COMPACTION else dict(cursor.properties),
    }
    if isinstance(dispatcher, SharedDispatcher):
        stats["blockedSubscriptionOnUnackedMsgs"] = dispatcher.blocked
        stats["msgDelayed"] = dispatcher.delayed_size
        stats["msgBacklogNoDelayed"] = backlog - dispatcher.delayed_size
        stats["msgInReplay"] = dispatcher.replay_size
        stats["unackedMessages"] = dispatcher.unacked_messages
    if isinstance(dispatcher, KeySharedDispatcher):
        stats["keySharedMode"] = pb.KeySharedMode.Name(dispatcher.mode)
        stats["allowOutOfOrderDelivery"] = dispatcher.out_of_order
        stats["drainingHashesCount"] = dispatcher.draining_slots
        stats["entriesReadAhead"] = len(dispatcher.ahead)
        stats["lookAheadFull"] = dispatcher.look_ahead_full
    if isinstance(dispatcher, SingleActiveDispatcher) and dispatcher.active is not None:
        stats["activeConsumerName"] = dispatcher.active.name
    return stats


def _consumer_stats(consumer: Consumer, now: float) -> Json:
    rates = consumer.rates_now(now)
    return {
        "msgRateOut": rates[0],
        "msgThroughputOut": rates[1],
        "msgRateRedeliver": rates[2],
        "messageAckRate": rates[3],
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "chunkedMessageRate": 0.0,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "avgMessagesPerEntry": round(consumer.batch_average),
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": 0,
        "address": consumer.peer.address,
        "connectedSince": iso_time(consumer.connected_since_ms),
        "clientVersion": consumer.peer.client_version,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_consumed_ms,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "unackedSinceTimestamp": consumer.unacked_since_ms,
        "lastAckedTime": iso_time(consumer.last_acked_ms),
        "lastConsumedTime": iso_time(consumer.last_consumed_ms),
        "metadata": dict(consumer.metadata),
    }


# --- internals ---
def internal_stats(topic: Topic) -> Steps[Json]:
    """``GET .../internalStats`` of one topic."""
    cursors, waiting = {}, 0
    for name in sorted(topic.subscriptions):
        subscription = topic.subscriptions.get(name)
        if isinstance(subscription, PersistentSubscription):
            cursors[name] = _cursor_internals(subscription)
        elif subscription is not None:
            cursors[name] = dict(_LIGHT_CURSOR)
        waiting += subscription is not None and bool(subscription.consumers and not subscription.backlog)
        yield
    if not isinstance(topic, PersistentTopic):
        return {
            "cursors": cursors,
            "entriesAddedCounter": topic.messages_in,
            **dict.fromkeys(("numberOfEntries", "totalSize", "currentLedgerEntries"), 0),
            **dict.fromkeys(("currentLedgerSize", "waitingCursorsCount", "pendingAddEntriesCount"), 0),
        }
    ledger = topic.ledger
    last_ledger, last_entry = last_position(topic.ledger)
    segments, view = ledger.segments, topic.compacted
    return {
        "cursors": cursors,
        "entriesAddedCounter": ledger.end,
        "numberOfEntries": ledger.confirmed - ledger.start,
        "totalSize": ledger.size_bytes,
        "currentLedgerEntries": segments[-1].entries if segments else 0,
        "currentLedgerSize": segments[-1].size_bytes if segments else 0,
        "lastLedgerCreatedTimestamp": iso_time(segments[-1].created_ms if segments else 0),
        "waitingCursorsCount": waiting,
        "pendingAddEntriesCount": topic.pending_adds,
        "lastConfirmedEntry": f"{last_ledger}:{last_entry}",
        "state": "Terminated" if topic.terminated else "LedgerOpened",
        "ledgers": [
            {
                "ledgerId": segment.ledger_id,
                "entries": segment.entries,
                "size": segment.size_bytes,
                "offloaded": topic.offload is not None and topic.offload.has(segment.ledger_id),
                "underReplicated": False,
            }
            for segment in segments
        ],
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": -1 if view is None else view.ledger_id,
            "entries": -1 if view is None else view.entries,
            "size": -1 if view is None else view.size_bytes,
            "offloaded": False,
            "underReplicated": False,
        },
    }


_LIGHT_CURSOR: Json = {
    "waitingReadOp": False, "pendingReadOps": 0, "messagesConsumedCounter": 0, "cursorLedger": 0,
    "cursorLedgerLastEntry": 0, "active": False, "numberOfEntriesSinceFirstNotAckedMessage": 0,
    "totalNonContiguousDeletedMessagesRange": 0, "subscriptionHavePendingRead": False,
    "subscriptionHavePendingReplayRead": False,
}  # fmt: skip
"""Cursor of a topic that stores nothing."""


def internal_info(topic: PersistentTopic) -> Steps[Json]:
    """Return ``GET .../internal-info``: ledgers and cursors as they are stored.

    The creation time of a cursor is not stored; the topic's is shown instead.
    """
    segments = topic.ledger.segments
    created_ms = topic.record.created_ms
    cursors = {}
    for name, subscription in sorted(topic.subscriptions.items()):
        ledger_id, entry_id = topic.ledger.position_before(subscription.cursor.mark)
        moved = iso_time(subscription.last_mark_ms or created_ms)
        cursors[name] = {
            "version": 0,
            "creationDate": iso_time(created_ms),
            "modificationDate": moved,
            "cursorsLedgerId": -1,
            "markDelete": {"ledgerId": ledger_id, "entryId": entry_id},
        }
        yield
    return {
        "version": 1,
        "creationDate": iso_time(created_ms),
        "modificationDate": iso_time(segments[-1].created_ms if segments else created_ms),
        "ledgers": [
            {
                "ledgerId": segment.ledger_id,
                "entries": segment.entries,
                "size": segment.size_bytes,
                "timestamp": segment.created_ms,
                "isOffloaded": topic.offload is not None and topic.offload.has(segment.ledger_id),
            }
            for segment in segments
        ],
        "cursors": cursors,
    }


RANGES_MAX = 10_000
"""Ranges of one `cursor_page`."""
RANGES_SHOWN_MAX = 100
BATCHES_SHOWN_MAX = 100


def _cursor_internals(subscription: PersistentSubscription) -> Json:
    topic = subscription.topic
    ledger = topic.ledger
    cursor = subscription.cursor
    mark = ledger.position_before(cursor.mark)
    dispatcher = subscription.dispatcher
    read_offset = getattr(dispatcher, "read_offset", cursor.mark)
    before = ledger.position_before(read_offset)
    return {
        "markDeletePosition": f"{mark[0]}:{mark[1]}",
        "readPosition": f"{before[0]}:{before[1] + 1}",
        "waitingReadOp": bool(subscription.consumers) and read_offset >= ledger.confirmed,
        "pendingReadOps": 0,
        "messagesConsumedCounter": cursor.mark + len(cursor.holes),
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": _ranges_text(ledger, cursor.holes.ranges(RANGES_SHOWN_MAX)),
        "lastLedgerSwitchTimestamp": iso_time(0),
        "state": "Open" if subscription.durable else "NoLedger",
        "active": bool(subscription.consumers),
        **_read_and_open(subscription),
        "partlyAcknowledgedBatches": _partly(
            subscription, heapq.nsmallest(BATCHES_SHOWN_MAX, cursor.batches)
        ),
        "partlyAcknowledgedBatchCount": len(cursor.batches),
        "subscriptionHavePendingRead": bool(subscription.consumers),
        "subscriptionHavePendingReplayRead": False,
        "properties": _cursor_properties(subscription),
    }


def _cursor_properties(subscription: PersistentSubscription) -> Json:
    """Return the broker's own properties of a cursor: the ledger of the last compaction."""
    if subscription.name != COMPACTION:
        return {}
    return {name: int(value) for name, value in subscription.cursor.properties.items()}


def _ranges_text(ledger: ManagedLedger, ranges: Iterable[tuple[int, int]]) -> str:
    """Return ranges of entries in the form of internal statistics: each begins behind its first position."""
    shown = []
    for start, stop in ranges:
        low, high = ledger.position_before(start), ledger.position(stop - 1)
        shown.append(f"({low[0]}:{low[1]}..{high[0]}:{high[1]}]")
    return f"[{','.join(shown)}]"


def _partly(subscription: PersistentSubscription, offsets: Iterable[int]) -> Json:
    """Return the messages of each partly acknowledged entry, and the indexes of its open ones."""
    cursor, ledger = subscription.cursor, subscription.topic.ledger
    shown: Json = {}
    for offset in offsets:
        ledger_id, entry_id = ledger.position(offset)
        messages = ledger.counts.of(offset)[0]
        shown[f"{ledger_id}:{entry_id}"] = {"messages": messages, "open": cursor.open_ranges(offset)}
    return shown


def cursor_page(subscription: PersistentSubscription, after: int | None, limit: int) -> Json:
    """Return a page of everything that a subscription has acknowledged, for mirroring it to another broker:
    at most ``limit`` ranges, and as many batches, behind ``after``, the previous page's ``next``.

    The fields are those of internal statistics, and ``next``: None on the last page. Consecutive pages are no
    snapshot: an acknowledgement made between two pages may be missing.
    """
    ledger, cursor = subscription.topic.ledger, subscription.cursor
    mark = ledger.position_before(cursor.mark)
    begin = after or 0
    ranges = list(islice(cursor.holes.ranges(begin=begin), limit))
    batches = heapq.nsmallest(limit, (offset for offset in cursor.batches if offset >= begin))
    stops = []
    if len(ranges) == limit:
        stops.append(ranges[-1][1])
    if len(batches) == limit:
        stops.append(batches[-1] + 1)
    stop = min(stops, default=None)
    if stop is not None:
        ranges = [(low, min(high, stop)) for low, high in ranges if low < stop]
        batches = [offset for offset in batches if offset < stop]
    return {
        "markDeletePosition": f"{mark[0]}:{mark[1]}",
        "individuallyDeletedMessages": _ranges_text(ledger, ranges),
        "partlyAcknowledgedBatches": _partly(subscription, batches),
        "next": stop,
    }
