"""Watchers of topic lists: clients that receive the changes of the topics that match their pattern.

Watchers of one namespace and pattern share a list. Changes of a long list are collected for a while
(`SECONDS_PER_NAME`) before they are sent, since each update has a hash over all names: so the cost per
created topic is constant.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from geminga.broker.commands.answers import frame
from geminga.broker.commands.topic_list import TopicsPattern, hash_in_steps, is_hidden
from geminga.broker.runtime.cooperative import CooperativeScheduler, Job
from geminga.broker.runtime.refusal import Refused
from geminga.broker.runtime.scheduler import Scheduler, Timer
from geminga.ids import TopicName
from geminga.ledger.api import Buffer
from geminga.wire.proto import pulsar_wire_pb2 as pb

WATCHED_TOPICS_MAX: Final = 2_000_000
"""Limit of names in all lists together; beyond it clients fall back to polling."""
SHORT_LIST: Final = 500
"""Longest list whose changes are sent at once."""
SECONDS_PER_NAME: Final = 2e-6
"""Time for which changes are collected, per name in the list: 1.2 s for 600,000."""
UPDATE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of names in one update; more are sent in several."""


class WatchedList:
    """Names of one namespace that match one pattern, and the watchers of their changes."""

    __slots__ = (
        "_changes", "_is_dropped", "_is_telling", "_lists", "_timer", "_watchers", "hash", "is_filled", "key",
        "names", "number", "pattern",
    )  # fmt: skip

    def __init__(self, lists: WatchedLists, namespace: str, pattern: TopicsPattern, number: int) -> None:
        self._lists = lists
        self.number = number
        self.key = (namespace, pattern.text)
        self.pattern = pattern
        self.names: list[str] = []
        self.hash = ""
        self.is_filled = False
        self._is_dropped = self._is_telling = False
        self._changes: dict[str, bool] = {}
        self._watchers: dict[TopicListWatcher, None] = {}
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"WatchedList({self.key[0]}, {self.key[1]!r}, {len(self.names)} topics)"

    def take(self, names: Iterable[str]) -> Job:
        """Return a job that adds existing names. Raises `Refused` if all lists have too many."""
        lists = self._lists
        for name in names:
            if not is_hidden(name) and self.pattern.matches(name):
                lists.hold(1)
                self.names.append(name)
            if lists.slices.should_yield:
                yield None

    def filled(self) -> Job:
        """Return a job that ends the adding of existing names."""
        yield from self._hash()
        self.is_filled = True
        self._changed()

    def changed(self, name: str, exists: bool) -> None:
        """Record that a topic of the namespace was created or deleted."""
        if self.pattern.matches(name):
            self._changes[name] = exists
            if self.is_filled:
                self._changed()

    def watch(self, watcher: TopicListWatcher) -> None:
        self._watchers[watcher] = None

    def leave(self, watcher: TopicListWatcher) -> None:
        """Remove a watcher; without any the list is dropped."""
        self._watchers.pop(watcher, None)
        self.drop_unwatched()

    def drop_unwatched(self) -> None:
        """Drop the list if it has no watchers."""
        if not self._watchers:
            self.drop()

    def drop(self) -> None:
        """Drop the list."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_dropped = True
        self._lists.remove(self)

    def _changed(self) -> None:
        if not self._changes or self._timer is not None or self._is_telling or self._is_dropped:
            return
        lists = self._lists
        if len(self.names) <= SHORT_LIST:
            self._begin_to_tell()
        else:
            self._timer = lists.scheduler.after(len(self.names) * SECONDS_PER_NAME, self._due, self)

    def _due(self) -> None:
        self._timer = None
        self._begin_to_tell()

    def _begin_to_tell(self) -> None:
        self._is_telling = True
        self._lists.slices.start(self._tell(), self)

    def _tell(self) -> Job:
        """Return a job, one at a time, that sends the collected changes."""
        try:
            yield from self._tell_changes()
        finally:
            self._is_telling = False
        self._changed()

    def _tell_changes(self) -> Job:
        slices = self._lists.slices
        changes, self._changes = self._changes, {}
        names, merged = self.names, list[str]()
        added, removed, copied = list[str](), list[str](), 0
        for name in sorted(changes):
            place = bisect_left(names, name, copied)
            is_there = place < len(names) and names[place] == name
            if changes[name] != is_there:
                merged += names[copied:place]
                copied = place
                if is_there:
                    copied += 1
                    removed.append(name)
                else:
                    merged.append(name)
                    added.append(name)
            if slices.should_yield:
                yield None
        if self._is_dropped or not (added or removed):
            return
        merged += names[copied:]
        self._lists.hold(len(added) - len(removed), refuse=False)
        self.names = merged
        yield from self._hash()
        watchers = list(self._watchers)  # later watchers receive the whole list
        for some_added, some_removed in _in_parts(added, removed):
            for watcher in watchers:
                if watcher in self._watchers:
                    watcher.tell(some_added, some_removed, self.hash)
                if slices.should_yield:
                    yield None

    def _hash(self) -> Job:
        self.hash = yield from hash_in_steps(self.names, self._lists.slices)


def _in_parts(added: Sequence[str], removed: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the changes in updates of a bounded size."""
    part: tuple[list[str], list[str]] = [], []
    size = 0
    for which, names in enumerate((removed, added)):
        for name in names:
            if size >= UPDATE_BYTES_MAX:
                yield part
                part, size = ([], []), 0
            part[1 - which].append(name)
            size += len(name)
    yield part


class TopicListWatcher:
    """Watch of one client on a list."""

    __slots__ = ("_watched", "_watcher_id", "_write")

    def __init__(self, watched: WatchedList, watcher_id: int, write: Callable[[Buffer], None]) -> None:
        self._watched = watched
        self._watcher_id = watcher_id
        self._write = write
        watched.watch(self)

    @property
    def namespace(self) -> str:
        """``tenant/namespace``"""
        return self._watched.key[0]

    def tell(self, added: Sequence[str], removed: Sequence[str], topics_hash: str) -> None:
        """Send changes of the list."""
        changes = {"new_topics": added, "deleted_topics": removed, "topics_hash": topics_hash}
        self._write(frame("watchTopicUpdate", watcher_id=self._watcher_id, **changes))

    def close(self) -> None:
        self._watched.leave(self)


class WatchedLists:
    """Lists of the broker by namespace; ``held`` is the number of names in all of them."""

    __slots__ = ("_by_namespace", "_changes", "_is_updating", "_made", "held", "scheduler", "slices")

    def __init__(self, scheduler: Scheduler, slices: CooperativeScheduler) -> None:
        self.scheduler = scheduler
        self.slices = slices
        self.held = 0
        self._by_namespace: dict[str, dict[WatchedList, None]] = {}
        self._made = 0
        self._changes: deque[tuple[TopicName, bool, int]] = deque()
        """Changes of topics that lists do not have yet, with the number of lists made before."""
        self._is_updating = False

    def __repr__(self) -> str:
        return f"WatchedLists({len(self)})"

    def __len__(self) -> int:
        return sum(len(lists) for lists in self._by_namespace.values())

    def hold(self, count: int, *, refuse: bool = True) -> None:
        """Count further names; raises `Refused` if there are too many."""
        if refuse and self.held + count > WATCHED_TOPICS_MAX:
            raise Refused(
                pb.NotAllowedError, f"Watchers hold {self.held} topics; at most {WATCHED_TOPICS_MAX}"
            )
        self.held += count

    def find(self, namespace: str, pattern: TopicsPattern) -> WatchedList | None:
        """Return the list if another client watches it already."""
        for watched in self._by_namespace.get(namespace, ()):
            if watched.is_filled and watched.key[1] == pattern.text:
                return watched
        return None

    def make(self, namespace: str, pattern: TopicsPattern) -> WatchedList:
        """Create a list to be filled; changes are collected meanwhile."""
        watched = WatchedList(self, namespace, pattern, self._made)
        self._made += 1
        self._by_namespace.setdefault(namespace, {})[watched] = None
        return watched

    def remove(self, watched: WatchedList) -> None:
        lists = self._by_namespace.get(watched.key[0])
        if lists is not None and watched in lists:
            del lists[watched]
            self.held -= len(watched.names)
            if not lists:
                del self._by_namespace[watched.key[0]]

    def topic_changed(self, name: TopicName, exists: bool) -> None:
        """Update the lists after a topic was created or deleted, at once or in steps: matching takes time."""
        if name.persistent and name.namespace_name in self._by_namespace and not is_hidden(str(name)):
            self._changes.append((name, exists, self._made))
            if not self._is_updating:
                self._is_updating = True
                self.slices.start(self._update(), self)

    def _update(self) -> Job:
        """Return a job, one at a time, that updates the lists that were made before each change."""
        try:
            while self._changes:
                name, exists, made = self._changes.popleft()
                for watched in list(self._by_namespace.get(name.namespace_name, ())):
                    if watched.number < made:
                        watched.changed(str(name), exists)
                    if self.slices.should_yield:
                        yield None
        finally:
            self._is_updating = False
