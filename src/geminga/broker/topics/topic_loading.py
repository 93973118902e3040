"""Loading of topics: they are read on other threads, and loaded in steps."""

import logging
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.broker.runtime.cooperative import Job
from geminga.broker.topics.persistent import PersistentTopic, topic_key
from geminga.broker.topics.prefetch import counts_of, topic_of
from geminga.broker.topics.record import TopicRecord
from geminga.broker.topics.topic import Topic, TopicServices
from geminga.broker.topics.topic_counts import TopicCounts
from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done, PrefetchRequest

log = logging.getLogger("geminga.broker")

LOADS_AT_ONCE: Final = 256
"""Topics that are read from the disk at once; more are queued."""


@dataclass(slots=True, eq=False, repr=False)
class _PendingLoad:
    """Topic that is being loaded, and its waiting callers. Outdated once it was loaded otherwise."""

    waiting: list[Done]
    is_outdated: bool = False


class TopicLoader:
    """Loads topics before they are used. ``loaded`` are the topics in memory."""

    def __init__(
        self,
        services: TopicServices,
        namespaces: NamespaceRegistry,
        loaded: Mapping[str, Topic],
        enter: Callable[[Topic], None],
        bring: Callable[[PrefetchRequest, Done], None],
        counts: TopicCounts,
    ) -> None:
        """``enter`` receives each topic that was loaded; ``bring`` reads keys ahead."""
        self._services = services
        self._scheduler = services.scheduler
        self._store = services.store
        self._namespaces = namespaces
        self._loaded = loaded
        self._enter = enter
        self._bring = bring
        self._counts = counts
        self._preparing: dict[str, _PendingLoad] = {}
        self._unprepared: deque[TopicName] = deque()
        self._under_way = 0
        self._is_beginning = False

    def prepare(self, name: TopicName, then: Done) -> None:
        """Call ``then`` when the topic, if it is stored, is in memory; at once if it is.

        ``then`` receives an error if the disk failed; damage shows when the topic is used. The topic is read
        on other threads, and loaded in steps, a subscription each: large cursors take long. Waiting callers
        are called one after the other, in slices, because many topics may be read at once and follow-up work,
        such as creating a topic, takes time, too. A caller that cannot wait uses `find`, which supersedes the
        load.
        """
        text = str(name)
        if not name.persistent or text in self._loaded:
            then(None)
            return
        preparation = self._preparing.get(text)
        if preparation is not None:
            preparation.waiting.append(then)
            return
        self._preparing[text] = _PendingLoad([then])
        self._unprepared.append(name)
        self._prepare_more()

    def prepare_all(self, names: Sequence[TopicName], then: Callable[[set[TopicName]], None]) -> None:
        """Load several topics; ``then`` receives those that the disk failed to read."""
        failed: set[TopicName] = set()
        left = len(names)
        if not left:
            then(failed)

        def prepared(name: TopicName, error: StoreError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                log.warning("topic %s cannot be read: %s", name, error)
                failed.add(name)
            if not left:
                then(failed)

        for name in names:
            self.prepare(name, partial(prepared, name))

    def _prepare_more(self) -> None:
        """Start queued loads, `LOADS_AT_ONCE` at a time."""
        if self._is_beginning:
            return  # the running call continues with it
        self._is_beginning = True
        try:
            while self._unprepared and self._under_way < LOADS_AT_ONCE:
                name = self._unprepared.popleft()
                self._under_way += 1
                self._services.slices.start(self._prepare(name, self._preparing[str(name)]), name)
        finally:
            self._is_beginning = False

    def _prepare(self, name: TopicName, preparation: _PendingLoad) -> Job:
        """Return a job that reads a topic, loads it, and calls the waiting callers."""
        text, slices = str(name), self._services.slices
        error: StoreError | None = None
        try:
            error = yield from self._read(name)
            if slices.should_yield:
                yield None
            if error is None:
                yield from self._load_in_steps(name, preparation)
        except StoreError:
            pass  # the caller that uses the topic receives the error
        except Exception as problem:
            self._scheduler.failed("job", text, problem)
        waiting = self._preparing.pop(text).waiting
        for number, then in enumerate(waiting, 1):
            self._scheduler.isolated("job", text, then, error)
            if number < len(waiting) and slices.should_yield:
                yield None
        self._under_way -= 1
        self._prepare_more()

    def _read(self, name: TopicName) -> Generator[bool | None, None, StoreError | None]:
        """Prefetch what loading or creating a topic reads; return the error if that fails."""
        text, slices = str(name), self._services.slices
        error: StoreError | None = yield from slices.wait(partial(self._bring, topic_of(name)))
        if error is not None:
            return error
        try:
            if self._store.keys.get(topic_key(text)) is None:
                # Count first, so that creating the topic is not refused with a request to retry.
                yield from slices.wait(partial(self.when_counted, name))
                return None
            wanted = counts_of(text, self._store.ledgers(text))
        except StoreError as problem:
            return problem
        if wanted is None:
            return None
        error = yield from slices.wait(partial(self._bring, wanted))
        return error

    def _load_in_steps(self, name: TopicName, preparation: _PendingLoad) -> Job:
        text = str(name)
        value = self._store.keys.get(topic_key(text))
        if value is None or preparation.is_outdated:
            return
        record = TopicRecord.decode(value, f"record of topic {text}")
        policies = self._namespaces.topic_policies(name)
        topic = PersistentTopic(self._services, name, record)
        for _ in topic.load(policies):
            if self._services.slices.should_yield:
                yield None
                if preparation.is_outdated:
                    return  # it was loaded at once, and has perhaps changed since
        if self._namespaces.topic_policies(name) != policies:
            topic.policies_changed(self._namespaces.topic_policies(name))
        self._enter(topic)

    def entered(self, topic: Topic) -> None:
        """Record that a topic is in memory: a pending load of it is outdated."""
        preparation = self._preparing.get(topic.text)
        if preparation is not None:
            preparation.is_outdated = True

    def when_counted(self, name: TopicName, then: Callable[[None], object]) -> None:
        """Call ``then`` when the namespace's topics are counted, if their number is limited."""
        if not self._namespaces.exists(name.tenant, name.namespace) or not (
            self._namespaces.topic_policies(name).max_topics_per_namespace
        ):
            then(None)
        else:
            self._counts.when_counted(name.namespace_name, then)
