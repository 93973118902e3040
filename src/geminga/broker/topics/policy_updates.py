"""Changed policies are applied to the topics in memory, in steps."""

import logging
from collections.abc import Mapping, Sequence

from geminga.broker.rules.effective_policies import Policies, cautious
from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.broker.runtime.cooperative import Job
from geminga.broker.topics.topic import Topic, TopicServices
from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done

log = logging.getLogger("geminga.broker")


class PolicyUpdates:
    """Applies changed policies. ``loaded`` are the topics in memory."""

    def __init__(
        self, services: TopicServices, namespaces: NamespaceRegistry, loaded: Mapping[str, Topic]
    ) -> None:
        self._services = services
        self._scheduler = services.scheduler
        self._namespaces = namespaces
        self._loaded = loaded
        self._changed: dict[tuple[str | None, TopicName | None], None] = {}
        """Changed policies not applied yet: of a namespace, of a topic in it, or of all."""
        self._is_running = False
        self._waiting: list[Done] = []
        namespaces.watchers.append(lambda namespace, base, _: self.changed(namespace, base))
        namespaces.settings_watchers.append(lambda: self.changed(None, None))

    def changed(self, namespace: str | None, base: TopicName | None) -> None:
        """Apply changed policies to the topics in memory; changes during a run are applied in the next."""
        self._changed[namespace, base] = None
        if not self._is_running:
            self._is_running = True
            self._services.slices.start(self._apply(), "policies")

    def when_applied(self, then: Done) -> None:
        """Call ``then`` when all earlier changes of policies are applied to the topics in memory."""
        if self._is_running:
            self._waiting.append(then)
        else:
            then(None)

    def _apply(self) -> Job:
        """Return a job that applies changed policies. Topics loaded meanwhile have them already."""
        slices = self._services.slices
        waiting: list[Done] = []
        try:
            while self._changed:
                waiting, self._waiting = self._waiting, []
                changed, self._changed = self._changed, {}
                spaces = {namespace for namespace, base in changed if base is None}
                bases = {str(base) for _, base in changed if base is not None}
                for number, topic in enumerate([*self._loaded.values()], 1):
                    name = topic.name
                    is_meant = (
                        None in spaces
                        or (spaces and name.namespace_name in spaces)
                        or (bases and str(name.base) in bases)
                    )
                    exists = is_meant and self._namespaces.exists(name.tenant, name.namespace)
                    if exists and self._loaded.get(topic.text) is topic:
                        self._scheduler.isolated(
                            "job", topic, topic.policies_changed, self._policies_of(topic)
                        )
                        self._services.due.plan(topic)
                    if (is_meant or number % 64 == 0) and slices.should_yield:
                        yield None
                told, waiting = waiting, []
                self._go_on(told)
        finally:
            self._is_running = False
            rest, self._waiting = self._waiting, []
            self._go_on([*waiting, *rest])

    def _go_on(self, waiting: Sequence[Done]) -> None:
        for then in waiting:
            self._scheduler.isolated("job", "policies", then, None)

    def _policies_of(self, topic: Topic) -> Policies:
        """Return the policies of a topic in memory; cautious ones if the disk fails to read its own."""
        try:
            return self._namespaces.topic_policies(topic.name)
        except StoreError as error:
            log.error("%r: cannot read its policies, and deletes nothing by them: %s", topic, error)
            return cautious(topic.policies)
