"""What a streaming query leaves out: counted by its tasks, told to its driver, shown in its progress.

Spark gives the tasks of a Python source no way to say more than rows. So a task that has left something out
publishes its counts, when it is done, to a topic that is not persistent and is the query's alone; the driver
adds them up and puts them beside the lag. They are known from the micro-batch after on (or as soon as
Spark tells of a query that is idle). A count that does not arrive is missing there and nowhere else: the
tasks' log and the dead letters have all.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from geminga.errors import PulsarException
from geminga.ids import TopicName
from geminga.spark.options import ReadOptions

if TYPE_CHECKING:
    from geminga.spark.cluster import Cluster
    from geminga.spark.planning import Range

logger = logging.getLogger("geminga.spark")

SKIPPED = "skipped"
"""The key in ``latestOffset`` of a query's progress."""
MALFORMED, DEAD_LETTERS, UNDECRYPTABLE, LOST = "malformed", "deadLetters", "undecryptable", "lostIntervals"
"""Messages that no row is made of; those of them that are kept elsewhere; entries that no key opens; places
where messages may have been lost."""
PLANS_KEPT = 3
"""Reports of older plans have been added up, and what comes late for them does not count."""


class CountsTopic(Protocol):
    """The driver's end of a query's topic of counts."""

    def messages(self) -> list[bytes]:
        """Those that came since it was asked last; it does not wait."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CountsAddress:
    """Where the tasks of one plan tell their counts."""

    topic: str
    plan: int


@dataclass(slots=True)
class SkipCounters:
    """What one task has left out, by reason."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, count: int = 1) -> None:
        self.counts[reason] += count

    def tell(self, cluster: Cluster, to: CountsAddress | None, part: Range) -> None:
        """To the driver, if it asks and there is anything. A count that can't be told is no error."""
        if to is None or not self.counts:
            return
        report = {
            "plan": to.plan, "part": f"{part.partition[1]} {part.start}", "topic": part.partition[0],
            "counts": self.counts,
        }  # fmt: skip
        try:
            cluster.post(to.topic, json.dumps(report).encode())
        except PulsarException as error:
            logger.warning("the counts %s of %s can't be told: %s", dict(self.counts), part, error)


def may_skip(options: ReadOptions) -> bool:
    """Whether a query can leave anything out."""
    return (
        options.payload_mode == "DROPMALFORMED"
        or options.has_dead_letters
        or options.crypto_failure_action == "DISCARD"
        or not options.fail_on_data_loss
    )


class SkipCountCollector:
    """Adds up what the tasks of one query tell. The attempts at a task's work count once."""

    def __init__(self, cluster: Cluster, a_topic: str) -> None:
        """``a_topic``: one that the query reads; the counts go through its namespace."""
        namespace = TopicName.parse(a_topic).namespace_name
        self.topic = f"non-persistent://{namespace}/__geminga-counts-{uuid.uuid4().hex}"
        self._mailbox: CountsTopic | None = None
        try:
            self._mailbox = cluster.mailbox(self.topic)
        except PulsarException as error:
            logger.warning("what tasks leave out will be in their log only: %s", error)
        self._plan = 0
        self._what: object = None
        self._known: dict[int, dict[tuple[str, str], dict[str, int]]] = {}
        self._done: dict[str, Counter[str]] = {}

    def plan(self, what: object) -> CountsAddress | None:
        """For the tasks that are planned now to read ``what``; that may be planned several times."""
        if self._mailbox is None:
            return None
        if what == self._what:
            return CountsAddress(self.topic, self._plan)
        self._what = what
        self._plan += 1
        for old in [plan for plan in self._known if plan <= self._plan - PLANS_KEPT]:
            for (topic, _), counts in self._known.pop(old).items():
                self._done.setdefault(topic, Counter()).update(counts)
        return CountsAddress(self.topic, self._plan)

    def totals(self) -> dict[str, dict[str, int]]:
        """By topic and reason, since the query was started."""
        self._collect()
        found = {topic: Counter(counts) for topic, counts in self._done.items()}
        for reports in self._known.values():
            for (topic, _), counts in reports.items():
                found.setdefault(topic, Counter()).update(counts)
        return {topic: dict(sorted(counts.items())) for topic, counts in sorted(found.items())}

    def _collect(self) -> None:
        if self._mailbox is None:
            return
        try:
            messages = self._mailbox.messages()
        except PulsarException as error:
            logger.warning("what tasks leave out will be in their log only from now on: %s", error)
            self.close()
            return
        for message in messages:
            try:
                report: dict[str, Any] = json.loads(message)
                plan, place = int(report["plan"]), (str(report["topic"]), str(report["part"]))
                counts = {str(reason): int(count) for reason, count in report["counts"].items()}
            except (ValueError, TypeError, KeyError, AttributeError):
                logger.warning("a message of %s is no report", self.topic)
                continue
            if self._plan - PLANS_KEPT < plan <= self._plan:
                self._known.setdefault(plan, {})[place] = counts

    def close(self) -> None:
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.close()
