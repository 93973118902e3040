"""Figures of topics that are not in memory: their subscriptions, backlogs and sizes, without loading them.

An unused topic leaves memory, but its backlog stays in the metrics, because alerts watch for the backlogs of
dead consumers. A topic does not change while it is not in memory. So its figures are added to the sums of its
namespace when it leaves memory, and subtracted when it is loaded. Topics that were not in memory at the first
request for metrics are read from the store once, in background work.

Memory is bounded: each namespace has its sums, and at most `LISTED_MAX` subscriptions are listed by name.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Final, NamedTuple

from geminga.broker.delivery.consumer import Subscription
from geminga.broker.delivery.cursor import Cursor
from geminga.broker.delivery.cursor_writer import cursor_key, cursor_prefix
from geminga.broker.entries import ledger_list
from geminga.broker.entries.entry_counts import CountsCache, EntryCounts
from geminga.broker.runtime.background_jobs import start_in_background
from geminga.broker.runtime.cooperative import Job
from geminga.broker.topics.persistent import PersistentTopic, topic_key
from geminga.broker.topics.topic import Topic, TopicServices
from geminga.broker.topics.topic_names import TopicNames
from geminga.errors import StoreError
from geminga.ledger.api import KEYS_END, Done, EntryStore, PrefetchRequest

LISTED_MAX: Final = 10_000
"""Limit of subscriptions listed by name, those of the topics with the largest backlogs."""
TOPICS_AT_ONCE: Final = 128
"""Topics that are read ahead together."""


class Figures(NamedTuple):
    """Figures of one topic, or sums of a namespace. Backlogs are counted in entries."""

    subscriptions: int = 0
    backlog: int = 0
    size_bytes: int = 0

    def plus(self, other: Figures, sign: int = 1) -> Figures:
        """Return the sum of these figures and ``other``, or with ``sign`` -1 the difference."""
        return Figures(*(own + sign * more for own, more in zip(self, other, strict=True)))


Traffic = tuple[int, ...]
"""Messages and bytes in, then messages and bytes out."""


def traffic_of(topic: Topic) -> Traffic:
    """Return the counters of a loaded topic since it was loaded."""
    left: list[Topic | Subscription] = [topic, *topic.subscriptions.values()]
    consumers = [consumer for each in topic.subscriptions.values() for consumer in each.consumers]
    return (
        topic.messages_in,
        topic.bytes_in,
        sum(each.messages_out_gone for each in left) + sum(each.messages_out for each in consumers),
        sum(each.bytes_out_gone for each in left) + sum(each.bytes_out for each in consumers),
    )


Backlogs = dict[str, int]
"""Number of unacknowledged entries of each subscription that has any."""


class RestingTopics:
    """Figures of topics not in memory. ``sums`` are by namespace, ``listed`` by topic."""

    def __init__(
        self,
        services: TopicServices,
        bring: Callable[[PrefetchRequest, Done], None],
        in_memory: Callable[[str], object],
    ) -> None:
        self._services = services
        self._store = services.store
        self._bring = bring
        self._in_memory = in_memory
        self._walk: TopicNames | None = None
        self._unread: dict[str, None] = {}
        """Names of the walk's last page that are still to be read."""
        self._damaged: set[str] = set()
        """Topics that could not be read: they are in no sum."""
        self._waiting: list[Callable[[], None]] = []
        self._listed_count = 0
        self.sums: dict[str, Figures] = {}
        self.listed: dict[str, Backlogs] = {}
        self.traffic: dict[str, Traffic] = {}
        """Counters of all topics that have left memory or were deleted, by namespace."""
        self.with_backlog = 0
        """Subscriptions that have a backlog, listed or not."""

    def __repr__(self) -> str:
        return "figures of topics that are not in memory"

    # --- created, loaded and deleted topics ---
    def figures_of(self, topic: Topic) -> tuple[Figures, Backlogs]:
        """Return the figures of a loaded topic; empty before the first request for metrics."""
        if self._walk is None or not isinstance(topic, PersistentTopic):
            return Figures(), {}
        kept = [each for each in topic.subscriptions.values() if each.durable]
        backlogs = {each.name: each.backlog for each in kept if each.backlog}
        return Figures(len(kept), sum(backlogs.values()), topic.ledger.size_bytes), backlogs

    def entered(self, topic: Topic) -> None:
        """Record that a topic was loaded or created."""
        text = topic.text
        if text in self._damaged:
            self._damaged.discard(text)
            return
        if not self._is_known(text):
            return
        figures, backlogs = self.figures_of(topic)
        self._add(text, figures, -1)
        self.with_backlog -= len(backlogs)
        self._listed_count -= len(self.listed.pop(text, ()))

    def keep_traffic(self, namespace: str, traffic: Traffic) -> None:
        """Keep the counters of a topic that is no longer in memory: those of its namespace never fall."""
        before = self.traffic.get(namespace, (0,) * len(traffic))
        self.traffic[namespace] = tuple(map(add, before, traffic))

    def left(self, text: str, figures: Figures, backlogs: Backlogs) -> None:
        """Record that a topic with these figures has left memory."""
        if self._is_known(text):
            self._take(text, figures, backlogs)

    def _is_known(self, text: str) -> bool:
        """Whether the topic's figures are in the sums while it is not in memory."""
        walk = self._walk
        if walk is None or text in self._unread:
            return False
        return walk.is_over or text <= walk.passed

    def _take(self, text: str, figures: Figures, backlogs: Backlogs) -> None:
        self._add(text, figures)
        if backlogs:
            self.with_backlog += len(backlogs)
            self._listed_count += len(backlogs)
            self.listed[text] = backlogs
            if self._listed_count > 2 * LISTED_MAX:
                self._shorten()

    def _add(self, text: str, figures: Figures, sign: int = 1) -> None:
        namespace = "/".join(text.split("/", 4)[2:4])
        self.sums[namespace] = self.sums.get(namespace, Figures()).plus(figures, sign)

    def _shorten(self) -> None:
        """Keep the topics with the largest backlogs, of about `LISTED_MAX` subscriptions."""
        self.listed, listed, self._listed_count = {}, self.listed, 0
        for text in heapq.nlargest(LISTED_MAX, listed, key=lambda each: sum(listed[each].values())):
            if self._listed_count + len(listed[text]) <= LISTED_MAX:
                self.listed[text] = listed[text]
                self._listed_count += len(listed[text])

    @property
    def not_listed(self) -> int:
        """Number of subscriptions with a backlog that are not listed by name."""
        return self.with_backlog - self._listed_count

    def backlog(self, text: str, subscription: str) -> int:
        """Return the entries in the backlog of a stored subscription; 1 if the topic cannot be read, 0 if its
        backlog is not listed."""
        return 1 if text in self._damaged else self.listed.get(text, {}).get(subscription, 0)

    # --- topics that were not in memory from the beginning ---
    @property
    def is_complete(self) -> bool:
        """Whether the sums include every topic that is not in memory."""
        return self._walk is not None and self._walk.is_over and not self._unread

    def begin(self, then: Callable[[], None]) -> None:
        """Read the remaining topics; ``then`` is called when that is done or has failed."""
        if self.is_complete:
            then()
            return
        is_running = bool(self._waiting)
        self._waiting.append(then)
        if self._walk is None:
            self._walk = TopicNames(self._store, topic_key(""), "persistent://")
        if not is_running:
            services, work = self._services, self._read_all(self._walk)
            start_in_background(services.scheduler, services.slices, self, work, self._over)

    def _over(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _read_all(self, walk: TopicNames) -> Job:
        """Read a topic per step. If the disk does not answer, the next `begin` continues."""
        wait = self._services.slices.wait
        while self._unread or not walk.is_over:
            if not self._unread:
                if (yield from wait(partial(self._bring, walk.wanted))) is not None:
                    return
                self._unread = dict.fromkeys(walk.page())
            names = [*self._unread]
            for start in range(0, len(names), TOPICS_AT_ONCE):
                part = names[start : start + TOPICS_AT_ONCE]
                if (yield from wait(partial(self._bring, _wanted(part)))) is not None:
                    return
                for text in part:
                    del self._unread[text]
                    if not self._in_memory(text):
                        self._read(text)
                    yield None

    def _read(self, text: str) -> None:
        try:
            found = ledger_list.load(self._store, text, self._services.scheduler.now_ms)
            size = sum(info.size_bytes for info, _ in found.ledgers)
            opened = dict(_open_entries(self._store, text, found.end))
        except StoreError:
            self._damaged.add(text)
            return
        backlogs = {name: entries for name, entries in opened.items() if entries}
        self._take(text, Figures(len(opened), sum(backlogs.values()), size), backlogs)


def _wanted(texts: Sequence[str]) -> PrefetchRequest:
    """Ledger lists, ledgers and cursors of topics."""
    lists = ((ledger_list.key_of(text),) * 2 for text in texts)
    cursors = ((cursor_prefix(text), f"{cursor_prefix(text)}{KEYS_END}") for text in texts)
    return PrefetchRequest((*lists, *cursors), tuple((text, text) for text in texts))


def _open_entries(store: EntryStore, text: str, end: int) -> Iterator[tuple[str, int]]:
    prefix = cursor_prefix(text)
    for key in store.keys.names(prefix):
        yield key[len(prefix) :], open_entries(store, text, key[len(prefix) :], end)


def open_entries(store: EntryStore, topic: str, subscription: str, end: int) -> int:
    """Return the number of entries before ``end`` that a stored subscription has not acknowledged.

    Raises `StoreError`.
    """
    value = store.keys.get(cursor_key(topic, subscription))
    if value is None:
        return 0
    counts = EntryCounts(store, topic, CountsCache(), (), ())  # only entries are counted
    return Cursor.load(value, f"cursor {subscription} of {topic}", counts).backlog(end)
