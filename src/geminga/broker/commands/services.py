"""What the commands of peers work on: the parts of the broker, handed to every session by the core."""

from __future__ import annotations

from dataclasses import dataclass, field

from geminga.broker.agenda import Agenda
from geminga.broker.byte_ledger import ByteLedger
from geminga.broker.commands.watchers import WatchedLists
from geminga.broker.complaints import Complaints
from geminga.broker.disk import DiskGuard
from geminga.broker.peer import Peer
from geminga.broker.rules.authentication import Authentication
from geminga.broker.rules.authorization import Authorization
from geminga.broker.rules.schemas import Schemas
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.loaded import LoadedTopics
from geminga.broker.topics.producer import ProducerNames
from geminga.broker.turns import Turns
from geminga.by_fields import ByFields


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Services(ByFields):
    """One object for all sessions. ``peers`` holds the sessions that have not ended.

    ``gone`` are those of them that nobody is behind any more: what their peers had sent is still worked on,
    or what they had open is being closed. Nobody is refused because of that, but waits for it.
    """

    version: str
    settings: BrokerSettings
    agenda: Agenda
    turns: Turns
    topics: LoadedTopics
    schemas: Schemas
    producer_names: ProducerNames
    watched: WatchedLists
    bytes: ByteLedger
    complaints: Complaints
    disk: DiskGuard
    instance_id: str
    """Sent on both ports, so that clients can compare whether they belong to one broker."""
    authentication: Authentication | None = None
    """None: nobody is asked who they are."""
    authorization: Authorization | None = None
    """Who may do what; set where permissions count."""
    peers: set[Peer] = field(default_factory=set)
    gone: set[Peer] = field(default_factory=set)
