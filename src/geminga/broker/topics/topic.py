"""Interface of topics, persistent or not, and the services that all topics share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from geminga.broker.delivery.consumer import Subscription
from geminga.broker.delivery.limits import RateLimit, TopicLimits
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.entries.entry_counts import CountsCache
from geminga.broker.entries.managed_ledger import ManagedLedger, ReadAheadCache
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.runtime.background_jobs import WorkQueue
from geminga.broker.runtime.cooperative import CooperativeScheduler
from geminga.broker.runtime.scheduler import Scheduler
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.access import ProducerAccess
from geminga.broker.topics.expiry_index import ExpiryIndex
from geminga.broker.topics.pending_adds import PendingAdds
from geminga.broker.topics.producer import PublishedTopic
from geminga.broker.topics.record import TopicRecord
from geminga.broker.topics.transactions import Transactions
from geminga.diagnosis.commands import distinct, size, span
from geminga.ids import TopicName
from geminga.ledger.api import Done, EntryStore

ROUND_SECONDS: Final = 15.0
"""Interval of rounds of maintenance."""
UNUSED_SECONDS: Final = 60.0
"""Time after which a topic without clients leaves memory."""


@dataclass(frozen=True, slots=True)
class TopicServices:
    """Services of a broker for its topics."""

    scheduler: Scheduler
    slices: CooperativeScheduler
    store: EntryStore
    settings: BrokerSettings
    cache: ReadAheadCache
    counts: CountsCache
    due: ExpiryIndex[Topic]
    entries: PendingAdds
    transactions: Transactions
    compactions: WorkQueue
    offloads: WorkQueue
    limits: tuple[RateLimit, RateLimit]
    """Limits that all producers, and all consumers, of the broker share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRequest:
    """Content of SUBSCRIBE: the subscription, and the start of a new one.

    ``start`` is a ledger and an entry id, for readers; ``rollback_seconds`` starts that long ago.
    """

    name: str
    durable: bool
    earliest: bool
    start: tuple[int, int] | None
    rollback_seconds: int
    properties: dict[str, str]
    replicated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaExceeded:
    """Quota that a subscription exceeds. ``limit`` and ``found`` are bytes (size) or seconds (age)."""

    action: str
    kind: str
    """``size`` or ``age``."""
    limit: int
    found: int
    subscription: str
    oldest: tuple[int, int]
    """Ledger and entry id of the oldest unacknowledged message."""
    age_seconds: int
    """Age of the oldest unacknowledged message; -1 without a publish time."""
    acknowledged_behind: int
    """Acknowledged messages after the oldest unacknowledged one, if that is in a hole; -1 if unknown."""

    def __str__(self) -> str:
        if self.kind == "size":
            found, limit = distinct(size, self.found, self.limit)
            what = f"keeps {found} of backlog, {limit} are allowed"
        else:
            what = f"has a backlog of {self.found:,} s, {self.limit:,} s are allowed"
        ledger_id, entry_id = self.oldest
        knows_age = self.age_seconds >= 0 and self.kind == "size"
        age = f", published {span(self.age_seconds)} ago" if knows_age else ""
        behind = self.acknowledged_behind
        hole = f"; it is a hole, later messages acknowledged: {behind:,}" if behind > 0 else ""
        return (
            f"backlog quota exceeded ({self.action}): subscription {self.subscription!r} {what}; its oldest "
            f"unacknowledged message is {ledger_id}:{entry_id}{age}{hole}"
        )


class Topic(PublishedTopic, Protocol):
    """Loaded topic."""

    name: TopicName
    scheduler: Scheduler
    policies: Policies
    rate_limits: TopicLimits
    access: ProducerAccess
    consumers_connected: int
    last_used_ms: int
    """Wall-clock time at which a client was last connected; used only while no client is."""
    check_ms: int
    loaded_at: float
    """Monotonic time."""
    messages_in: int
    bytes_in: int
    messages_out_gone: int
    bytes_out_gone: int
    quota_exceeded: QuotaExceeded | None
    record: TopicRecord

    @property
    def persistent(self) -> bool:
        """Whether entries are stored."""

    @property
    def terminated(self) -> bool:
        """Whether it refuses further entries for good."""

    @property
    def idle(self) -> bool:
        """Whether no client is connected and no work is pending."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Subscriptions by name."""

    def used(self) -> None:
        """Record that a client connects. Raises `Refused`."""

    def subscribe(self, request: SubscriptionRequest) -> Subscription:
        """Return the subscription, created if it is new and may be; raises `Refused`."""

    def check_quota(self) -> QuotaExceeded | None:
        """Return the backlog quota that blocks producers now."""

    def initial_subscription(self, name: str) -> None:
        """Retain messages for this subscription from now on; raises `Refused`."""

    def policies_changed(self, policies: Policies) -> None:
        """Apply changed policies of the namespace or the topic."""

    def dispatch(self) -> None:
        """Dispatch new entries."""

    def disconnect_all(self) -> None:
        """Close all producers and consumers: their clients look the topic up again."""

    def delete(self, done: Done | None) -> None:
        """Delete the topic's durable data and disconnect its clients."""

    def has_pending(self, producer_name: str) -> bool:
        """Return whether deduplication waits for an entry of a producer."""

    def save_record(self, done: Done | None = None) -> None:
        """Write the topic's own properties."""

    def close(self) -> None:
        """Leave memory: pending changes are written."""


class StoredTopic(Topic, Protocol):
    """Persistent topic, for what is done with its entries."""

    services: TopicServices
    ledger: ManagedLedger

    @property
    def subscriptions(self) -> Mapping[str, PersistentSubscription]: ...

    def subscription(self, name: str, *, offset: int, done: Done | None = None) -> PersistentSubscription:
        """Create a durable subscription at ``offset``; ``done`` is called when it is durable."""

    def touch(self) -> None:
        """Queue the topic for maintenance after a change."""
