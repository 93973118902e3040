"""Broker without I/O: bytes and time in, bytes out.

A server (`serving.server`, or a test) owns the sockets, the clock and the thread. It opens a session for each
connection, passes it received bytes, calls `Broker.poll` when the store wakes it up and `Broker.tick` at
`Broker.deadline`. Everything is called on one thread.

Within one call nothing waits. Bytes written to a `PeerOutput` may be sent together at the end of the call;
acknowledgements received during one call are passed to the store as one delta per cursor, at its end, or
together with others when the store has finished its present write.
"""

from collections.abc import Callable
from itertools import count
from typing import NamedTuple, cast

from geminga._version import __version__
from geminga.broker.commands.permissions import disconnect_forbidden, prove_again
from geminga.broker.commands.services import Services
from geminga.broker.commands.session import Session
from geminga.broker.commands.table import TABLE
from geminga.broker.commands.watchers import WatchedLists
from geminga.broker.delivery.limits import RateLimit
from geminga.broker.entries.entry_counts import CountsCache
from geminga.broker.entries.managed_ledger import ReadAheadCache
from geminga.broker.rules.authentication import Authenticator
from geminga.broker.rules.authorization import Authorization
from geminga.broker.rules.dynamic import DynamicSettings
from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.broker.rules.schemas import SchemaRegistry
from geminga.broker.runtime.background_jobs import WorkQueue
from geminga.broker.runtime.cooperative import CooperativeScheduler, Job
from geminga.broker.runtime.disk import DiskGuard
from geminga.broker.runtime.memory_backpressure import MemoryBackpressure
from geminga.broker.runtime.peer import PeerOutput
from geminga.broker.runtime.rate_limited_logger import AuditLog, RateLimitedLogger
from geminga.broker.runtime.scheduler import Scheduler
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.expiry_index import ExpiryIndex
from geminga.broker.topics.pending_adds import PendingAdds
from geminga.broker.topics.retention_evictor import RetentionEvictor
from geminga.broker.topics.topic import TopicServices
from geminga.broker.topics.topic_maintenance import TopicMaintenance
from geminga.broker.topics.topic_registry import TopicRegistry
from geminga.broker.topics.transaction_coordinator import TransactionCoordinator
from geminga.broker.topics.transactions import Transactions
from geminga.ledger.api import EntryStore
from geminga.policies import DispatchRate, PublishRate

READ_AHEAD_CACHE_BYTES = 16 * 1024 * 1024


class LoopAccess(NamedTuple):
    """Calls into the event loop: ``clock`` measures work, ``wake`` requests `Broker.turn` soon."""

    clock: Callable[[], float] = lambda: 0.0
    wake: Callable[[], None] = lambda: None


class Broker:
    """Broker core. ``deadline`` is the next time for `tick`, in monotonic seconds."""

    def __init__(
        self,
        store: EntryStore,
        settings: BrokerSettings,
        *,
        now: float,
        now_ms: int,
        loop: LoopAccess | None = None,
        authentication: Authenticator | None = None,
        instance_id: str = "",
    ) -> None:
        """Without ``authentication`` all connections may do everything."""
        loop = loop or LoopAccess()
        self.store = store
        self.settings = settings
        self.instance_id = instance_id
        self.scheduler = Scheduler(
            now, now_ms, lambda: store.is_writing, lambda: self.slices.should_yield, self._go_on_later
        )
        self._catches_up = self._has_more = False
        self.slices = CooperativeScheduler(
            loop.clock, loop.wake, lambda about, error: self.scheduler.failed("job", about, error)
        )
        self.backpressure = MemoryBackpressure(self.scheduler, settings, lambda: store.is_behind)
        self.watched = WatchedLists(self.scheduler, self.slices)
        self.dynamic = DynamicSettings(store, settings)
        self.namespaces = NamespaceRegistry(store, self.dynamic.current, is_sure=not self.dynamic.lost)
        self.schemas = SchemaRegistry(store, self.namespaces)
        self._publishing, self._dispatching = RateLimit(), RateLimit()
        services = self._topic_services()
        self.topics = TopicRegistry(services, self.namespaces)
        self._upkeep = TopicMaintenance(services, self.topics, self.namespaces)
        self.retention_evictor = RetentionEvictor(services, self.topics)
        self.disk = DiskGuard(self.scheduler, store, settings, self.backpressure)
        self.disk.give_way = self.retention_evictor.go
        self._limit(self.dynamic.current)
        self.dynamic.watch(self._use)
        self.topics.no_room = lambda: self.disk.refusal
        self.topics.changes.append(self.watched.topic_changed)
        self.coordinator = TransactionCoordinator(services, self.topics)
        self.authentication = authentication
        self.authorization = None
        if authentication is not None and settings.authorization:
            self.authorization = Authorization(
                self.namespaces, settings.super_user_roles, settings.metrics_roles
            )
            self.namespaces.permission_watchers.append(self._permissions_changed)
        self.rate_limited_log = RateLimitedLogger(self.scheduler)
        """Log of peers' faults."""
        self.audit = AuditLog(self.scheduler)
        self._services = self._session_services(now_ms)

    def _topic_services(self) -> TopicServices:
        """Return what the topics share."""
        limits = self._publishing, self._dispatching
        return TopicServices(
            self.scheduler,
            self.slices,
            self.store,
            self.settings,
            ReadAheadCache(READ_AHEAD_CACHE_BYTES),
            CountsCache(),
            ExpiryIndex(self.store),
            PendingAdds(),
            Transactions(self.store),
            WorkQueue(),
            WorkQueue(),
            limits,
        )

    def _session_services(self, now_ms: int) -> Services:
        """Return what the sessions share."""
        return Services(
            version=f"Geminga {__version__}",
            settings=self.settings,
            scheduler=self.scheduler,
            slices=self.slices,
            topics=self.topics,
            coordinator=self.coordinator,
            schemas=self.schemas,
            producer_names=(f"{self.settings.cluster}-{now_ms}-{number}" for number in count()),
            watched=self.watched,
            backpressure=self.backpressure,
            rate_limited_log=self.rate_limited_log,
            audit=self.audit,
            disk=self.disk,
            instance_id=self.instance_id,
            authentication=self.authentication,
            authorization=self.authorization,
        )

    def _use(self, settings: BrokerSettings) -> None:
        """Apply settings that an administrator changed while the broker runs."""
        self._limit(settings)
        self.namespaces.use(settings, is_sure=not self.dynamic.lost)

    def _limit(self, settings: BrokerSettings) -> None:
        now = self.scheduler.now
        self._publishing.set(
            PublishRate(messages=settings.publish_rate_messages_max, bytes=settings.publish_rate_bytes_max),
            now,
        )
        self._dispatching.set(
            DispatchRate(
                messages=settings.dispatch_rate_messages_max, bytes=settings.dispatch_rate_bytes_max
            ),
            now,
        )
        self.disk.use(settings)

    # --- from the shell ---
    def open_session(
        self, output: PeerOutput, address: str, now: float, certificate_name: str | None = None
    ) -> Session:
        """Open the session of an accepted connection; ``address`` is its peer's for logs and stats.

        ``certificate_name`` is the common name of a verified client certificate.
        """
        self.scheduler.enter(now)
        return Session(self._services, TABLE, output, address, certificate_name)

    def replace_authentication(self, authentication: Authenticator) -> bool:
        """Use other keys and users; if they are different, return True, and clients prove their roles."""
        if self.authentication is None or not self.authentication.replace(authentication):
            return False
        self.slices.start(prove_again(list(self.sessions), self.slices), "authentication")
        return True

    def _permissions_changed(self, tenant: str) -> None:
        assert self.authorization is not None
        sessions = list(self.sessions)
        self.slices.start(disconnect_forbidden(sessions, self.authorization, tenant, self.slices), tenant)

    @property
    def sessions(self) -> set[Session]:
        """The sessions that have not ended, with their handles."""
        return cast("set[Session]", self._services.peers)

    def poll(self, now: float, now_ms: int) -> None:
        """Handle the store's reports: receipts are sent, and new entries dispatched.

        Work that exceeds a turn of the loop takes turns with the jobs from then on, in its order.
        """
        self.scheduler.enter(now, now_ms)
        self._take_in()

    def _take_in(self) -> None:
        scheduler = self.scheduler
        try:
            self._has_more = False
            self.store.poll(self._is_enough)
            self.disk.look()
            scheduler.dispatch_ready()
            self.backpressure.resume()
        finally:
            scheduler.flush_some()
            if self._has_more:
                self._go_on_later()

    def _is_enough(self) -> bool:
        self._has_more = self._has_more or self.slices.should_yield
        return self._has_more

    def _go_on_later(self) -> None:
        if not self._catches_up:
            self._catches_up = True
            self.slices.start(self._catch_up(), "what the store reported")

    def _catch_up(self) -> Job:
        """Return a job that does the rest of a turn's work, starting with the next turn."""
        try:
            yield None
            while self._has_more or self.scheduler.is_behind:
                # One failing report must not stop the others.
                self.scheduler.isolated("store", "what the store reported", self._take_in)
                yield None
        finally:
            self._catches_up = False

    def turn(self, now: float, now_ms: int) -> None:
        """Run a new turn of the loop with the rest of the last one's work."""
        self.scheduler.enter(now, now_ms)
        try:
            self.slices.turn()
        finally:
            self.scheduler.leave()

    def tick(self, now: float, now_ms: int) -> float:
        """Run due timers; return the next `deadline`."""
        self.scheduler.enter(now, now_ms)
        try:
            self.scheduler.run_timers()
        finally:
            self.scheduler.leave()
        return self.deadline

    @property
    def deadline(self) -> float:
        return self.scheduler.deadline

    def close(self) -> None:
        """End all sessions and write pending changes. The store stays open."""
        self.slices.close()
        for session in list(self.sessions):
            self.scheduler.isolated("session", session, session.end_at_once)
        self.scheduler.flush_cursors()
        self.topics.close()
