"""What the commands of peers work on: the parts of the broker, handed to every session by the core."""

from __future__ import annotations

from dataclasses import dataclass, field

from geminga.broker.commands.watchers import WatchedLists
from geminga.broker.cooperative import CooperativeScheduler
from geminga.broker.disk import DiskGuard
from geminga.broker.memory_backpressure import MemoryBackpressure
from geminga.broker.peer import Peer
from geminga.broker.rate_limited_logger import RateLimitedLogger
from geminga.broker.rules.authentication import Authenticator
from geminga.broker.rules.authorization import Authorization
from geminga.broker.rules.schemas import SchemaRegistry
from geminga.broker.scheduler import Scheduler
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.producer import ProducerNames
from geminga.broker.topics.topic_registry import TopicRegistry
from geminga.by_fields import ByFields


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Services(ByFields):
    """One object for all sessions. ``peers`` holds the sessions that have not ended.

    ``gone`` are those of them that nobody is behind any more: what their peers had sent is still worked on,
    or what they had open is being closed. Nobody is refused because of that, but waits for it.
    """

    version: str
    settings: BrokerSettings
    scheduler: Scheduler
    slices: CooperativeScheduler
    topics: TopicRegistry
    schemas: SchemaRegistry
    producer_names: ProducerNames
    watched: WatchedLists
    bytes: MemoryBackpressure
    rate_limited_log: RateLimitedLogger
    disk: DiskGuard
    instance_id: str
    """Sent on both ports, so that clients can compare whether they belong to one broker."""
    authentication: Authenticator | None = None
    """None: nobody is asked who they are."""
    authorization: Authorization | None = None
    """Who may do what; set where permissions count."""
    peers: set[Peer] = field(default_factory=set)
    gone: set[Peer] = field(default_factory=set)
