"""What a topic is to the rest of the broker, persistent or not, and what all topics share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from geminga.broker.cooperative import CooperativeScheduler
from geminga.broker.delivery.consumer import Subscription
from geminga.broker.delivery.limits import RateLimit, TopicLimits
from geminga.broker.entry_counts import CountsCache
from geminga.broker.managed_ledger import EntryCache
from geminga.broker.rules.policies import Policies
from geminga.broker.scheduler import Scheduler
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.access import ProducerAccess
from geminga.broker.topics.compaction import CompactionQueue
from geminga.broker.topics.expiry_index import ExpiryIndex
from geminga.broker.topics.maintenance_queue import MaintenanceQueue
from geminga.broker.topics.offloading import OffloadQueue
from geminga.broker.topics.pending_adds import PendingAdds
from geminga.broker.topics.producer import PublishedTopic
from geminga.broker.topics.quota import QuotaExceeded
from geminga.broker.topics.record import TopicRecord
from geminga.by_fields import ByFields
from geminga.ids import TopicName
from geminga.ledger.api import Done, EntryStore


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TopicServices(ByFields):
    """What every topic of a broker works with."""

    scheduler: Scheduler
    slices: CooperativeScheduler
    store: EntryStore
    settings: BrokerSettings
    cache: EntryCache
    counts: CountsCache
    due: ExpiryIndex
    looks: MaintenanceQueue[Topic]
    entries: PendingAdds
    compactions: CompactionQueue
    offloads: OffloadQueue
    limits: tuple[RateLimit, RateLimit]
    """What all producers, and all consumers, of the broker share."""
    most_limits: TopicLimits
    """What topics share that have no limits of their own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SubscriptionRequest(ByFields):
    """What SUBSCRIBE asks for: which subscription, and where a new one begins.

    ``start`` is a ledger and an entry id, for readers; ``rollback_seconds`` begins that long ago.
    """

    name: str
    durable: bool
    earliest: bool
    start: tuple[int, int] | None
    rollback_seconds: int
    properties: dict[str, str]
    replicated: bool


class Topic(PublishedTopic, Protocol):
    """A loaded topic."""

    name: TopicName
    scheduler: Scheduler
    policies: Policies
    rate_limits: TopicLimits
    access: ProducerAccess
    consumers_connected: int
    last_used_ms: int
    """When somebody was connected last: wall-clock time, looked at only while nobody is."""
    look_round: int
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
        """Whether entries are kept."""

    @property
    def terminated(self) -> bool:
        """Whether it takes no more entries, ever."""

    @property
    def idle(self) -> bool:
        """Whether nobody is connected and nothing is under way."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """By name."""

    def used(self) -> None:
        """A producer connects. Raises `Refused`."""

    def subscribe(self, request: SubscriptionRequest) -> Subscription:
        """The subscription, made if it is new and may be; raises `Refused`."""

    def check_quota(self) -> QuotaExceeded | None:
        """Which backlog quota holds producers now."""

    def initial_subscription(self, name: str) -> None:
        """See that messages from now on are kept for this subscription; raises `Refused`."""

    def policies_changed(self, policies: Policies) -> None:
        """Take over what the namespace or the topic's own policies say now."""

    def dispatch(self) -> None:
        """Hand out new entries."""

    def disconnect_all(self) -> None:
        """Close all producers and consumers: their clients look the topic up again."""

    def delete(self, done: Done | None) -> None:
        """Forget everything that is durable of the topic; everybody is disconnected."""

    def save_record(self, done: Done | None = None) -> None:
        """Write the topic's own properties."""

    def close(self) -> None:
        """Leave memory: what is not written yet is written."""
