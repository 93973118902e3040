"""Checks of an entry before a topic stores it: policies, rates, deduplication."""

import math

from geminga.broker.delivery.limits import TopicLimits
from geminga.broker.entries.entry_facts import head_of
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.topics.dedup import Deduplication, DedupVerdict
from geminga.broker.topics.producer import Producer, slow_down
from geminga.broker.topics.topic import Topic
from geminga.errors import CorruptPayload
from geminga.wire.frames import SendFrame
from geminga.wire.metadata import peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb


def is_restricted(policies: Policies, rate_limits: TopicLimits, message_size_max: int) -> bool:
    """Return whether entries have to be checked with `is_allowed`."""
    return bool(
        policies.encryption_required
        or policies.delayed_delivery_seconds_max
        or 0 < policies.max_message_size < message_size_max
        or rate_limits.publish
    )


def lowers_limits(policies: Policies, before: Policies) -> bool:
    """Return whether the limit of entry sizes or of delivery delays is lower than before. Producers then
    have to reconnect, so that their clients repeat a refused entry before they send entries behind it."""
    delay = policies.delayed_delivery_seconds_max
    return policies.max_message_size < before.max_message_size or (
        0 < delay < (before.delayed_delivery_seconds_max or math.inf)
    )


def is_allowed(topic: Topic, producer: Producer, frame: SendFrame) -> bool:
    """Return whether policies allow an entry; a refused one is answered here."""
    policies = topic.policies
    sequence_id = frame.highest_sequence_id or frame.sequence_id
    limit = policies.max_message_size
    if limit and len(frame.entry) > limit:
        producer.error(
            sequence_id,
            pb.NotAllowedError,
            f"The message of {len(frame.entry)} bytes exceeds the topic's limit of {limit}",
        )
        return False
    try:
        head = peek_entry(frame.entry)
    except CorruptPayload as error:
        producer.error(sequence_id, pb.MetadataError, str(error))
        return False
    if policies.encryption_required and not head.encrypted:
        producer.error(sequence_id, pb.MetadataError, "Messages must be encrypted: the namespace requires it")
        return False
    delay_ms = head.deliver_at_time - topic.scheduler.now_ms
    if 0 < policies.delayed_delivery_seconds_max * 1000 < delay_ms:
        producer.error(
            sequence_id,
            pb.NotAllowedError,
            f"Exceeds max allowed delivery delay of {policies.delayed_delivery_seconds_max:g} s",
        )
        return False
    slow_down(producer, topic.rate_limits.publish, frame.num_messages, len(frame.entry), topic.scheduler.now)
    return True


def check_duplicate(dedup: Deduplication, producer: Producer, frame: SendFrame) -> DedupVerdict:
    """Check whether an entry is a duplicate; one whose earlier copy is undecided is refused here."""
    sequence_id, highest = frame.sequence_id, max(frame.sequence_id, frame.highest_sequence_id)
    if frame.is_chunk:
        head = head_of(frame.entry)
        if head is not None and head.chunk_id != head.num_chunks - 1:
            return DedupVerdict.UNCHECKED
    verdict = dedup.check(producer.name, sequence_id, highest)
    if verdict is DedupVerdict.UNKNOWN:
        reason = "Cannot determine whether the message is a duplicate at this time"
        producer.error(highest, pb.PersistenceError, reason)
    return verdict
