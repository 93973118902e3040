"""Services of the broker that all sessions use for commands."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from geminga.broker.commands.watchers import WatchedLists
from geminga.broker.rules.authentication import Authenticator
from geminga.broker.rules.authorization import Authorization
from geminga.broker.rules.schemas import SchemaRegistry
from geminga.broker.runtime.cooperative import CooperativeScheduler
from geminga.broker.runtime.disk import DiskGuard
from geminga.broker.runtime.memory_backpressure import MemoryBackpressure
from geminga.broker.runtime.peer import Peer
from geminga.broker.runtime.rate_limited_logger import AuditLog, RateLimitedLogger
from geminga.broker.runtime.scheduler import Scheduler
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.topic_registry import TopicRegistry
from geminga.broker.topics.transaction_coordinator import TransactionCoordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Services for all sessions. ``peers`` holds the sessions that have not ended.

    ``gone`` are those whose connections have ended and whose handles are still being closed. Another client
    that needs one of these handles waits, and is not refused.
    """

    version: str
    settings: BrokerSettings
    scheduler: Scheduler
    slices: CooperativeScheduler
    topics: TopicRegistry
    coordinator: TransactionCoordinator
    schemas: SchemaRegistry
    producer_names: Iterator[str]
    """Names for producers without one, never used again: two producers of one name, of two starts, could not
    be distinguished, also by deduplication."""
    watched: WatchedLists
    backpressure: MemoryBackpressure
    rate_limited_log: RateLimitedLogger
    audit: AuditLog
    disk: DiskGuard
    instance_id: str
    """Sent on both ports, so that clients can check whether both belong to one broker."""
    authentication: Authenticator | None = None
    """None: connections are not authenticated."""
    authorization: Authorization | None = None
    """Permissions of roles; None without authorization."""
    peers: set[Peer] = field(default_factory=set)
    gone: set[Peer] = field(default_factory=set)
