"""Events of a consumer core for its caller, besides the frames to send."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from geminga.consumer.flow import Release
from geminga.consumer.message import EntryKey, Message
from geminga.errors import PulsarException


class DeadLettered(NamedTuple):
    """Messages to publish to the dead letter topic; then call ``ConsumerCore.dead_letters_settled``."""

    messages: Sequence[Message[Any]]
    release: Release


class AcksSettled(NamedTuple):
    """The acknowledgements with these tokens are receipted, or failed with ``error``."""

    tokens: Sequence[Any]
    error: PulsarException | None = None


class EntryRefused(NamedTuple):
    """An entry that cannot be read. ``acknowledged`` is false if it stays unacknowledged."""

    key: EntryKey
    error: PulsarException
    acknowledged: bool


class ActiveChanged(NamedTuple):
    """Failover: this consumer became, or is no longer, the active one."""

    is_active: bool


class EndOfTopic(NamedTuple):
    """The topic is terminated and all of its messages were delivered."""


class KeysMixed(NamedTuple):
    """Key_Shared: a batch holds messages of several keys, and was dispatched by its first one."""

    producer_name: str


ConsumerEvent = DeadLettered | AcksSettled | EntryRefused | ActiveChanged | EndOfTopic | KeysMixed
