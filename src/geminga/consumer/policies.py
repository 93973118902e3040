"""Policies of a consumer: batch receiving, key sharing, dead letters, and redelivery delays.

The ``Consumer…Policy`` classes are the arguments of ``subscribe``. Each has a base class with getters that
``pulsar-client`` exposes as well: `BatchReceivePolicy`, `KeySharedPolicy` and `DeadLetterPolicy` with its
builder. There ``policy()`` returns such an object, here the policy itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from geminga._util.choices import Choice
from geminga.config import check_int, check_seconds, check_type, refuse
from geminga.ids import TopicName

HASH_RANGE_MAX = 65535
"""The last slot of the Key_Shared hash range (algorithms.md section 3)."""
REDELIVER_COUNT_MAX = (1 << 31) - 1


class KeySharedMode(Choice):
    """Assignment of keys to a Key_Shared consumer: by the broker, or by the consumer's own ranges."""

    AutoSplit = 0
    Sticky = 1


class _Fixed:
    """Base class of policies whose attributes, once checked, are not set again."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name):
            raise AttributeError(f"{name} of a {type(self).__name__} cannot be changed: make another policy")
        super().__setattr__(name, value)


class BatchReceivePolicy(_Fixed):
    """The limits of `ConsumerBatchReceivePolicy`; a limit that is not above 0 is ignored."""

    __slots__ = ("max_num_bytes", "max_num_message", "timeout_ms")

    def __init__(self, max_num_messages: int, max_num_bytes: int, timeout_ms: int) -> None:
        self.max_num_message = check_int("max_num_message", max_num_messages)
        self.max_num_bytes = check_int("max_num_bytes", max_num_bytes)
        self.timeout_ms = check_int("timeout_ms", timeout_ms)
        if max_num_messages <= 0 and max_num_bytes <= 0 and timeout_ms <= 0:
            refuse(
                "ConsumerBatchReceivePolicy", (max_num_messages, max_num_bytes, timeout_ms), "one limit > 0"
            )

    def getMaxNumMessages(self) -> int:
        """Return the maximum number of messages; not above 0: no limit."""
        return self.max_num_message

    def getMaxNumBytes(self) -> int:
        """Return the maximum number of payload bytes; not above 0: no limit."""
        return self.max_num_bytes

    def getTimeoutMs(self) -> int:
        """Return the time-out in milliseconds; not above 0: no limit."""
        return self.timeout_ms


class ConsumerBatchReceivePolicy(BatchReceivePolicy):
    """Limits at which `batch_receive` returns: a number of messages, their payload bytes (except of a single
    larger message), or a time-out in milliseconds, after which the messages received so far are returned.

    A negative limit is ignored. The arguments are attributes.
    """

    __slots__ = ()

    def __init__(
        self, max_num_message: int = -1, max_num_bytes: int = 10 * 1024 * 1024, timeout_ms: int = 100
    ) -> None:
        super().__init__(max_num_message, max_num_bytes, timeout_ms)

    def policy(self) -> BatchReceivePolicy:
        """Return this object, which has ``pulsar-client``'s getters."""
        return self


class KeySharedPolicy:
    """The choices of `ConsumerKeySharedPolicy`; every setter checks its argument and returns this object."""

    __slots__ = ("allow_out_of_order_delivery", "key_shared_mode", "sticky_ranges")

    def __init__(self) -> None:
        self.key_shared_mode = KeySharedMode.AutoSplit
        self.allow_out_of_order_delivery = False
        self.sticky_ranges: list[tuple[int, int]] = []

    def set_key_shared_mode(self, key_shared_mode: KeySharedMode) -> KeySharedPolicy:
        """Set whether the broker assigns the keys, or the consumer's own ranges do."""
        self.key_shared_mode = check_type("key_shared_mode", key_shared_mode, KeySharedMode)
        return self

    def get_key_shared_mode(self) -> KeySharedMode:
        """Return whether the broker assigns the keys, or the consumer's own ranges do."""
        return self.key_shared_mode

    def set_allow_out_of_order_delivery(self, allow_out_of_order_delivery: bool) -> KeySharedPolicy:
        """Set whether a key may move to another consumer while some of its messages are unacknowledged."""
        self.allow_out_of_order_delivery = check_type(
            "allow_out_of_order_delivery", allow_out_of_order_delivery, bool
        )
        return self

    def is_allow_out_of_order_delivery(self) -> bool:
        """Return whether a key may move to another consumer while some of its messages are unacknowledged."""
        return self.allow_out_of_order_delivery

    def set_sticky_ranges(self, sticky_ranges: Sequence[tuple[int, int]]) -> KeySharedPolicy:
        """Set at least one inclusive pair within 0..65535; pairs may not overlap."""
        if not sticky_ranges:
            refuse("sticky_ranges", sticky_ranges, "at least one (first, last) pair")
        previous = -1
        for low, high in sorted(sticky_ranges):
            check_int("sticky_ranges", low, 0, HASH_RANGE_MAX)
            check_int("sticky_ranges", high, low, HASH_RANGE_MAX)
            if low <= previous:
                refuse("sticky_ranges", sticky_ranges, "ranges that do not overlap")
            previous = high
        self.sticky_ranges = [(low, high) for low, high in sticky_ranges]
        return self

    def get_sticky_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges in the order in which they were given."""
        return list(self.sticky_ranges)


class ConsumerKeySharedPolicy(KeySharedPolicy):
    """Key_Shared behaviour, with ``pulsar-client``'s constructor. The arguments are attributes.

    ``sticky_ranges`` are inclusive pairs within 0..65535; they are required for ``KeySharedMode.Sticky``.
    """

    __slots__ = ()

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__()
        if key_shared_mode is KeySharedMode.Sticky and sticky_ranges is None:
            refuse(
                "sticky_ranges", sticky_ranges, "at least one (first, last) pair with KeySharedMode.Sticky"
            )
        self.set_key_shared_mode(key_shared_mode)
        self.set_allow_out_of_order_delivery(allow_out_of_order_delivery)
        if sticky_ranges is not None:
            self.set_sticky_ranges(sticky_ranges)

    def policy(self) -> KeySharedPolicy:
        """Return this object, which has ``pulsar-client``'s getters."""
        return self


class DeadLetterPolicy(_Fixed):
    """Result of a `DeadLetterPolicyBuilder`; a text that was not given is empty."""

    __slots__ = ("dead_letter_topic", "initial_subscription_name", "max_redeliver_count")

    def __init__(
        self,
        max_redeliver_count: int = REDELIVER_COUNT_MAX,
        dead_letter_topic: str = "",
        initial_subscription_name: str = "",
    ) -> None:
        self.max_redeliver_count = check_int("max_redeliver_count", max_redeliver_count, 1)
        self.dead_letter_topic: str = check_type("dead_letter_topic", dead_letter_topic, str)
        self.initial_subscription_name: str = check_type(
            "initial_subscription_name", initial_subscription_name, str
        )
        if dead_letter_topic:
            TopicName.parse(dead_letter_topic)

    def getDeadLetterTopic(self) -> str:
        """Return the dead letter topic; empty: ``<topic>-<subscription>-DLQ``."""
        return self.dead_letter_topic

    def getMaxRedeliverCount(self) -> int:
        """Return the number of redeliveries before a message is sent to the dead letter topic."""
        return self.max_redeliver_count

    def getInitialSubscriptionName(self) -> str:
        """Return the subscription that is created with the dead letter topic; empty: none."""
        return self.initial_subscription_name


class DeadLetterPolicyBuilder:
    """Builds a `DeadLetterPolicy` step by step; every step returns the builder."""

    __slots__ = ("_given",)

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}

    def maxRedeliverCount(self, max_redeliver_count: int) -> DeadLetterPolicyBuilder:
        """Set the number of redeliveries before a message is sent to the dead letter topic."""
        self._given["max_redeliver_count"] = max_redeliver_count
        return self

    def deadLetterTopic(self, dead_letter_topic: str) -> DeadLetterPolicyBuilder:
        """Set the dead letter topic."""
        self._given["dead_letter_topic"] = dead_letter_topic
        return self

    def initialSubscriptionName(self, initial_subscription_name: str) -> DeadLetterPolicyBuilder:
        """Set the subscription that is created with the dead letter topic."""
        self._given["initial_subscription_name"] = initial_subscription_name
        return self

    def build(self) -> DeadLetterPolicy:
        """Return the policy. Raises `InvalidConfiguration` or `InvalidTopicName` for invalid values."""
        return DeadLetterPolicy(**self._given)


class ConsumerDeadLetterPolicy(DeadLetterPolicy):
    """Topics for messages that were redelivered more than ``max_redeliver_count`` times.

    ``dead_letter_topic`` is ``<topic>-<subscription>-DLQ`` by default, and that of `reconsume_later`,
    ``retry_letter_topic``, ``<topic>-<subscription>-RETRY``. ``initial_subscription_name`` is created with
    the dead letter topic, so that its messages are kept. The arguments are attributes; a text that was not
    given is empty.
    """

    __slots__ = ("retry_letter_topic",)

    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
        *,
        retry_letter_topic: str | None = None,
    ) -> None:
        super().__init__(
            max_redeliver_count,
            "" if dead_letter_topic is None else dead_letter_topic,
            "" if initial_subscription_name is None else initial_subscription_name,
        )
        if retry_letter_topic is not None:
            TopicName.parse(retry_letter_topic)
        self.retry_letter_topic = retry_letter_topic or ""

    def policy(self) -> DeadLetterPolicy:
        """Return this object, which has ``pulsar-client``'s getters."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class RedeliveryBackoff:
    """Delay before a negatively acknowledged message is redelivered, by its redelivery count.

    ``first × multiplier ** redelivery_count``, never above ``max``.
    """

    first_seconds: float = 1.0
    """The first delay."""
    max_seconds: float = 60.0
    """The longest delay."""
    multiplier: float = 2.0
    """Factor from each delay to the next."""

    def __post_init__(self) -> None:
        check_seconds("first_seconds", self.first_seconds, 0.001)
        check_seconds("max_seconds", self.max_seconds, self.first_seconds)
        if not self.multiplier >= 1.0:
            refuse("multiplier", self.multiplier, "a number >= 1")

    def delay_seconds(self, redelivery_count: int) -> float:
        """Return the delay of the redelivery after ``redelivery_count`` earlier ones."""
        # Beyond 64 doublings a float power only overflows; the maximum was reached long before.
        return float(min(self.max_seconds, self.first_seconds * self.multiplier ** min(redelivery_count, 64)))
