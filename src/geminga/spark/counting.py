"""Counts of the messages that a streaming query leaves out, shown in its progress.

Tasks of a Python source can return rows only. So a task that left out messages publishes its counts, when it
ends, to a non-persistent topic of the query; the driver adds them up and reports them beside the lag. They
appear from the next micro-batch on (or when Spark reports that the query is idle). A lost count is missing in
the progress only: the tasks' log and the dead letters are complete.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from geminga.errors import PulsarException
from geminga.ids import TopicName
from geminga.spark.cluster import Cluster, PulsarMailbox
from geminga.spark.options import ReadOptions
from geminga.spark.ranges import Range

logger = logging.getLogger("geminga.spark")

SKIPPED = "skipped"
"""The key in ``latestOffset`` of a query's progress."""
MALFORMED, DEAD_LETTERS, UNDECRYPTABLE, LOST = "malformed", "deadLetters", "undecryptable", "lostIntervals"
"""Messages without a row; those of them kept as dead letters; entries that no key decrypts; intervals in
which messages may have been lost."""
PLANS_KEPT = 3
"""Number of plans whose reports are kept apart; later reports for older plans are ignored."""


@dataclass(frozen=True, slots=True)
class CountsAddress:
    """Topic and plan number to which the tasks of one plan send their counts."""

    topic: str
    plan: int


@dataclass(slots=True)
class SkipCounters:
    """Counts of the messages that one task has left out, by reason."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, count: int = 1) -> None:
        self.counts[reason] += count

    def tell(self, cluster: Cluster, to: CountsAddress | None, part: Range) -> None:
        """Send the counts, if there are any, to the driver, if it collects them. Failures are only logged."""
        if to is None or not self.counts:
            return
        report = {
            "plan": to.plan, "part": f"{part.partition[1]} {part.start}", "topic": part.partition[0],
            "counts": self.counts,
        }  # fmt: skip
        try:
            cluster.post(to.topic, json.dumps(report).encode())
        except PulsarException as error:
            logger.warning(
                "cannot send the counts %s of %s to the driver: %s", dict(self.counts), part, error
            )


def may_skip(options: ReadOptions) -> bool:
    """Return whether a query can leave out messages."""
    return (
        options.payload_mode == "DROPMALFORMED"
        or options.has_dead_letters
        or options.crypto_failure_action == "DISCARD"
        or not options.fail_on_data_loss
    )


class SkipCountCollector:
    """Adds up the counts of one query's tasks. Several attempts at one task count once."""

    def __init__(self, cluster: Cluster, a_topic: str) -> None:
        """``a_topic``: a topic that the query reads; the counts go through its namespace."""
        namespace = TopicName.parse(a_topic).namespace_name
        self.topic = f"non-persistent://{namespace}/__geminga-counts-{uuid.uuid4().hex}"
        self._mailbox: PulsarMailbox | None = None
        try:
            self._mailbox = cluster.mailbox(self.topic)
        except PulsarException as error:
            logger.warning("counts of left-out messages are in the tasks' log only: %s", error)
        self._plan = 0
        self._what: object = None
        self._known: dict[int, dict[tuple[str, str], dict[str, int]]] = {}
        self._done: dict[str, Counter[str]] = {}

    def plan(self, what: object) -> CountsAddress | None:
        """Return the address for the tasks now planned for ``what``, which may be planned again."""
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
        """Return the counts since the query was started, by topic and reason."""
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
            logger.warning("from now on counts of left-out messages are in the tasks' log only: %s", error)
            self.close()
            return
        for message in messages:
            try:
                report: dict[str, Any] = json.loads(message)
                plan, place = int(report["plan"]), (str(report["topic"]), str(report["part"]))
                counts = {str(reason): int(count) for reason, count in report["counts"].items()}
            except (ValueError, TypeError, KeyError, AttributeError):
                logger.warning("ignoring a message of %s that is no report", self.topic)
                continue
            if self._plan - PLANS_KEPT < plan <= self._plan:
                self._known.setdefault(plan, {})[place] = counts

    def close(self) -> None:
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.close()
