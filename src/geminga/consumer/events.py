"""Events of a consumer core for its caller, besides the frames to send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from geminga.consumer.flow import Release
from geminga.consumer.message import Message
from geminga.errors import PulsarException

EntryKey = tuple[int, int]
"""Ledger id and entry id."""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """Messages to publish to the dead letter topic; then call ``ConsumerCore.dead_letters_settled``."""

    messages: Sequence[Message[Any]]
    release: Release


@dataclass(frozen=True, slots=True)
class AcksSettled:
    """The acknowledgements with these tokens are receipted, or failed with ``error``."""

    tokens: Sequence[Any]
    error: PulsarException | None = None


@dataclass(frozen=True, slots=True)
class EntryRefused:
    """An entry that cannot be read. ``acknowledged`` is false if it stays unacknowledged."""

    key: EntryKey
    error: PulsarException
    acknowledged: bool


@dataclass(frozen=True, slots=True)
class ActiveChanged:
    """Failover: this consumer became, or is no longer, the active one."""

    is_active: bool


@dataclass(frozen=True, slots=True)
class EndOfTopic:
    """The topic is terminated and all of its messages were delivered."""


@dataclass(frozen=True, slots=True)
class KeysMixed:
    """Key_Shared: a batch holds messages of several keys, and was dispatched by its first one."""

    producer_name: str


ConsumerEvent = DeadLettered | AcksSettled | EntryRefused | ActiveChanged | EndOfTopic | KeysMixed
