"""Numbers of topics per namespace, for limits and metrics: counted once, in slices, then updated."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from geminga.broker.runtime.cooperative import Job
from geminga.broker.topics.topic import TopicServices
from geminga.broker.topics.topic_names import TopicNames
from geminga.ids import TopicName


@dataclass(slots=True, eq=False, repr=False)
class TopicCount:
    """Topic count of a namespace: of the names up to ``passed`` while counting, then of all."""

    topics: int = 0
    passed: str = ""
    is_complete: bool = False
    waiting: list[Callable[[None], object]] = field(default_factory=list)

    def take(self, names: list[str], walk: TopicNames) -> None:
        """Count the next names of a walk."""
        self.topics += len(names)
        self.passed, self.is_complete = walk.passed, walk.is_over

    def changed(self, text: str, by: int) -> None:
        """Update the count after a creation or deletion; names not passed yet are counted later."""
        if self.is_complete or text <= self.passed:
            self.topics += by


class TopicCounts:
    """Topic counts by namespace. Only persistent topics are counted."""

    def __init__(
        self,
        services: TopicServices,
        walk: Callable[[str], TopicNames],
        turn_page: Callable[[TopicNames], Generator[bool | None, None, list[str]]],
    ) -> None:
        """``walk`` returns the topics of ``tenant/namespace``, ``turn_page`` the next page of a walk."""
        self._services = services
        self._walk = walk
        self._turn_page = turn_page
        self._counts: dict[str, TopicCount] = {}

    def changed(self, name: TopicName, by: int) -> None:
        """Update the count after a topic was created or deleted."""
        if self._counts:
            count = self._counts.get(name.namespace_name)
            if count is not None:
                count.changed(str(name), by)

    def of(self, namespace: str) -> TopicCount:
        """Return the count of ``tenant/namespace``; the first call starts counting."""
        count = self._counts.get(namespace)
        if count is None:
            count = self._counts[namespace] = TopicCount()
            self._services.slices.start(self._count_all(namespace, count), namespace)
        return count

    def when_counted(self, namespace: str, then: Callable[[None], object]) -> None:
        """Call ``then`` when counting, which may begin now, is complete or has failed."""
        count = self.of(namespace)
        if count.is_complete:
            then(None)
        else:
            count.waiting.append(then)

    def _count_all(self, namespace: str, count: TopicCount) -> Job:
        walk = self._walk(namespace)
        try:
            while not walk.is_over:
                names = yield from self._turn_page(walk)
                count.take(names, walk)
                if self._services.slices.should_yield:
                    yield None
        finally:
            if not count.is_complete:
                del self._counts[namespace]  # it failed: the next call starts again
            waiting, count.waiting = count.waiting, []
            for then in waiting:
                self._services.scheduler.isolated("job", namespace, then, None)
