"""The broker without I/O: bytes and time in, bytes out.

A shell (`server`, or a test) owns the sockets, the clock and the thread. It opens a session for each
connection, feeds it what arrives, calls `Broker.poll` when the store wakes it up and `Broker.tick`
when `Broker.deadline` has come. Everything is called on one thread.

Within one call nothing waits. What is written to an `Output` belongs together and may be sent at the
end of the call; acknowledgements that came in during one call are handed to the store as one delta a
cursor, at its end.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Protocol

from geminga._version import __version__
from geminga.broker.admin.topic_actions import TopicRegistry
from geminga.broker.commands.session import Session
from geminga.broker.rules.namespaces import Namespaces
from geminga.broker.rules.schemas import Schemas
from geminga.broker.settings import BrokerSettings
from geminga.broker.timers import Timers
from geminga.broker.topics.managed_ledger import EntryCache
from geminga.ids import TopicName
from geminga.ledger.api import Buffer, EntryStore

if TYPE_CHECKING:
    import random

    from geminga.broker.commands.lookup import TopicListWatcher
    from geminga.broker.delivery.subscription import Subscription
    from geminga.broker.topics.persistent import Topic

log = logging.getLogger("geminga.broker")

HOUSEKEEPING_SECONDS = 15.0
"""How often idle topics are let go, and retention, TTL and quotas are looked at."""
HOUSEKEEPING_SLICE_SECONDS = 0.02
"""With many topics a round is made in slices, this far apart."""
ENTRY_CACHE_BYTES = 16 * 1024 * 1024
PENDING_BYTES_PER_SESSION_MAX = 32 * 1024 * 1024
"""A connection with this much taken in and not yet durable is not read from; reading resumes at half."""
PENDING_BYTES_MAX = 256 * 1024 * 1024
"""The same for all connections together."""


class Output(Protocol):
    """Where a session's answers go: one connection, implemented by the shell."""

    def write(self, data: Buffer) -> None:
        """Send, in order. Never blocks; the shell may collect what one call into the core wrote.

        Does nothing once the connection is closed.
        """

    def close(self) -> None:
        """Send what was written and end the connection."""

    def pause_reading(self) -> None:
        """Stop feeding `Session.receive`."""

    def resume_reading(self) -> None:
        """Go on feeding."""

    @property
    def writable(self) -> bool:
        """False while the peer does not read: `Session.writable_again` says when it does again."""


class Broker:
    """See the module. ``deadline`` is when `tick` wants to be called, in monotonic seconds."""

    def __init__(
        self,
        store: EntryStore,
        settings: BrokerSettings,
        *,
        random: random.Random,
        now: float,
        now_ms: int,
    ) -> None:
        self.store = store
        self.settings = settings
        self.random = random
        self.now = now
        self.now_ms = now_ms
        self._wall_offset_ms = now_ms - now * 1000
        self.version = f"Geminga {__version__}"
        self.timers = Timers()
        self.cache = EntryCache(ENTRY_CACHE_BYTES)
        self.sessions: set[Session] = set()
        self.pending_bytes = 0
        self.paused_sessions: dict[Session, None] = {}
        self.ready_topics: dict[Topic, None] = {}
        self._changed_cursors: dict[Subscription, None] = {}
        self.watched_topics = 0
        self._watchers: dict[str, dict[TopicListWatcher, None]] = {}
        self._start_number: int | None = None
        self._producer_count = 0
        self.namespaces = Namespaces(store, settings)
        self.topics = TopicRegistry(self, self.namespaces)
        self.topics.watch(self._topic_changed)
        self.schemas = Schemas(self)
        self._schedule_housekeeping(HOUSEKEEPING_SECONDS)

    # --- from the shell ---
    def open_session(self, output: Output, peer: str, now: float) -> Session:
        """A connection was accepted; ``peer`` is its address for logs and stats."""
        self.enter(now)
        session = Session(self, output, peer)
        self.sessions.add(session)
        return session

    def poll(self, now: float, now_ms: int) -> None:
        """Take in what the store reports: receipts go out and new entries to consumers."""
        self.enter(now, now_ms)
        try:
            self.store.poll()
            self._dispatch_ready()
            self._resume_paused()
        finally:
            self.leave()

    def tick(self, now: float, now_ms: int) -> float:
        """Run what is due; returns the next `deadline`."""
        self.enter(now, now_ms)
        try:
            self.timers.run(now)
        finally:
            self.leave()
        return self.deadline

    @property
    def deadline(self) -> float:
        return self.timers.deadline

    def close(self) -> None:
        """End all sessions and write what is not written yet. The store stays open."""
        for session in list(self.sessions):
            session.close()
        self.flush_cursors()
        self.topics.close()

    # --- one call into the core ---
    def enter(self, now: float, now_ms: int | None = None) -> None:
        """A call into the core begins; what gives no wall-clock time goes on from the last that did."""
        self.now = now
        if now_ms is None:
            self.now_ms = int(self._wall_offset_ms + now * 1000)
        else:
            self.now_ms = now_ms
            self._wall_offset_ms = now_ms - now * 1000

    def leave(self) -> None:
        """A call into the core ends."""
        if self._changed_cursors:
            self.flush_cursors()

    def flush_cursors(self) -> None:
        """Hand acknowledgements that came in to the store."""
        changed, self._changed_cursors = self._changed_cursors, {}
        for subscription in changed:
            subscription.flush()

    def mark_cursor(self, subscription: Subscription) -> None:
        """The subscription's cursor has something to write."""
        self._changed_cursors[subscription] = None

    def _dispatch_ready(self) -> None:
        while self.ready_topics:
            ready, self.ready_topics = self.ready_topics, {}
            for topic in ready:
                topic.dispatch()

    # --- back-pressure ---
    def must_pause(self, session_bytes: int) -> bool:
        """Whether a session with so many bytes under way should not be read from."""
        return session_bytes >= PENDING_BYTES_PER_SESSION_MAX or self.pending_bytes >= PENDING_BYTES_MAX

    def _resume_paused(self) -> None:
        if not self.paused_sessions or self.pending_bytes > PENDING_BYTES_MAX // 2:
            return
        for session in list(self.paused_sessions):
            if session.pending_bytes <= PENDING_BYTES_PER_SESSION_MAX // 2:
                del self.paused_sessions[session]
                session.resume_reading()

    # --- names ---
    def new_producer_name(self) -> str:
        """``<cluster>-<n>-<counter>``: n counts the starts of this store, so names are never reused."""
        if self._start_number is None:
            value = self.store.get("broker/starts")
            self._start_number = json.loads(value.base) if value is not None else 0
            self.store.put("broker/starts", json.dumps(self._start_number + 1).encode())
        name = f"{self.settings.cluster}-{self._start_number}-{self._producer_count}"
        self._producer_count += 1
        return name

    # --- watchers of topic lists ---
    def add_watcher(self, namespace: str, watcher: TopicListWatcher) -> None:
        self._watchers.setdefault(namespace, {})[watcher] = None

    def remove_watcher(self, namespace: str, watcher: TopicListWatcher) -> None:
        watchers = self._watchers.get(namespace)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[namespace]

    def _topic_changed(self, name: TopicName, exists: bool) -> None:
        for watcher in list(self._watchers.get(name.namespace_name, ())):
            watcher.changed(name, exists)

    # --- housekeeping ---
    def _schedule_housekeeping(self, seconds: float) -> None:
        self.timers.at(self.now + seconds, self._housekeeping)

    def _housekeeping(self) -> None:
        unfinished = self.topics.housekeeping(self.now)
        self._schedule_housekeeping(HOUSEKEEPING_SLICE_SECONDS if unfinished else HOUSEKEEPING_SECONDS)
