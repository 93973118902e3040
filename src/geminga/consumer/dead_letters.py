"""Dead letters and retries: their topics and properties (algorithms.md section 10).

A message that was redelivered more often than allowed is published to the dead letter topic and then
acknowledged. `reconsume_later` publishes it to the retry topic with a delay instead, to which the consumer is
subscribed as well. Published messages carry the Java client's properties.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from geminga.consumer.message import Message
from geminga.consumer.settings import ConsumerDeadLetterPolicy
from geminga.ids import MessageId, TopicName

RETRY_SUFFIX = "-RETRY"
DEAD_LETTER_SUFFIX = "-DLQ"

PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_ORIGIN_MESSAGE_ID_OLD = "ORIGIN_MESSAGE_IDY_TIME"
"""An older spelling that Java clients still write and read."""
PROPERTY_RECONSUME_TIMES = "RECONSUMETIMES"
PROPERTY_DELAY_TIME = "DELAY_TIME"

RETRY_MAX_DEFAULT = 16
"""Maximum reconsume attempts without a policy, as in the Java client."""


def dead_letter_topic(topic: str, subscription: str, policy: ConsumerDeadLetterPolicy | None) -> str:
    """Return ``<topic>-<subscription>-DLQ``, without the partition's suffix, unless the policy names another.

    Slashes of the subscription's name, as those of functions have, become dashes: topic names have no
    slashes.
    """
    if policy is not None and policy.dead_letter_topic:
        return str(TopicName.parse(policy.dead_letter_topic))
    return f"{TopicName.parse(topic).base}-{subscription.replace('/', '-')}{DEAD_LETTER_SUFFIX}"


def retry_topic(topic: str, subscription: str, policy: ConsumerDeadLetterPolicy | None) -> str:
    """Return ``<topic>-<subscription>-RETRY``, without the partition's suffix, unless the policy names
    another; see `dead_letter_topic`."""
    if policy is not None and policy.retry_letter_topic:
        return str(TopicName.parse(policy.retry_letter_topic))
    return f"{TopicName.parse(topic).base}-{subscription.replace('/', '-')}{RETRY_SUFFIX}"


def is_dead(redelivery_count: int, policy: ConsumerDeadLetterPolicy | None) -> bool:
    """Return whether the redelivery count is above the maximum; at the maximum it is delivered."""
    return policy is not None and redelivery_count > policy.max_redeliver_count


def _java_text(message_id: MessageId) -> str:
    text = f"{message_id.ledger_id}:{message_id.entry_id}:{message_id.partition}"
    return f"{text}:{message_id.batch_index}" if message_id.batch_index >= 0 else text


def origin_properties(message: Message[Any], subscription: str) -> dict[str, str]:
    """Return the message's properties with its origin; origins from earlier hops are kept."""
    properties = message.properties()
    origin = _java_text(message.message_id())
    properties.setdefault(PROPERTY_REAL_TOPIC, message.topic_name())
    properties.setdefault(PROPERTY_REAL_SUBSCRIPTION, subscription)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, origin)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID_OLD, origin)
    return properties


class DeadLetter(NamedTuple):
    """A message to publish to another topic before the original is acknowledged."""

    topic: str
    properties: Mapping[str, str]
    delay_ms: int = 0
    dead: bool = False


def plan_dead_letter(
    message: Message[Any], topic: str, subscription: str, policy: ConsumerDeadLetterPolicy | None
) -> DeadLetter:
    """Return the dead letter for a message that was redelivered too often."""
    return DeadLetter(
        topic=dead_letter_topic(topic, subscription, policy),
        properties=origin_properties(message, subscription),
        dead=True,
    )


def plan_retry(
    message: Message[Any],
    topic: str,
    subscription: str,
    policy: ConsumerDeadLetterPolicy | None,
    delay_ms: int,
    properties: Mapping[str, str] | None = None,
) -> DeadLetter:
    """Return the letter for a message to consume later: to the retry topic, or after too many attempts to the
    dead letter topic.

    ``topic`` is the one that the consumer subscribed to, not the retry topic that the message may have come
    from. ``properties`` are added to the message's.
    """
    merged = {**origin_properties(message, subscription), **(properties or {})}
    times = merged.get(PROPERTY_RECONSUME_TIMES, "0")
    attempt = (int(times) if times.isdecimal() else 0) + 1
    maximum = RETRY_MAX_DEFAULT if policy is None else policy.max_redeliver_count
    merged[PROPERTY_RECONSUME_TIMES] = str(attempt)
    if attempt > maximum:
        return DeadLetter(topic=dead_letter_topic(topic, subscription, policy), properties=merged, dead=True)
    merged[PROPERTY_DELAY_TIME] = str(delay_ms)
    return DeadLetter(topic=retry_topic(topic, subscription, policy), properties=merged, delay_ms=delay_ms)
