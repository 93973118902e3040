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
REPORTS_KEPT = 10_000
"""Number of reports that are kept apart, to count several attempts at one task once."""


@dataclass(slots=True)
class SkipCounters:
    """Counts of the messages that one task has left out, by reason."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, count: int = 1) -> None:
        self.counts[reason] += count

    def tell(self, cluster: Cluster, topic: str | None, part: Range) -> None:
        """Send the counts, if there are any, to the driver, if it collects them in ``topic``. Failures are
        only logged."""
        if topic is None or not self.counts:
            return
        name, index = part.partition
        report = {"topic": name, "part": f"{index} {part.start}", "counts": self.counts}
        try:
            cluster.post(topic, json.dumps(report).encode())
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
        self.topic: str | None = f"non-persistent://{namespace}/__geminga-counts-{uuid.uuid4().hex}"
        """Topic to which tasks send their counts; None if they are not collected."""
        self._mailbox: PulsarMailbox | None = None
        try:
            self._mailbox = cluster.mailbox(self.topic)
        except PulsarException as error:
            self.topic = None
            logger.warning("counts of left-out messages are in the tasks' log only: %s", error)
        self._reports: dict[tuple[str, str], dict[str, int]] = {}
        self._done: dict[str, Counter[str]] = {}

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the counts since the query was started, by topic and reason."""
        self._collect()
        found = {topic: Counter(counts) for topic, counts in self._done.items()}
        for (topic, _), counts in self._reports.items():
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
                place = str(report["topic"]), str(report["part"])
                self._reports[place] = {str(reason): int(n) for reason, n in report["counts"].items()}
            except (ValueError, TypeError, KeyError, AttributeError):
                logger.warning("ignoring a message of %s that is no report", self.topic)
        for place in list(self._reports)[:-REPORTS_KEPT]:
            self._done.setdefault(place[0], Counter()).update(self._reports.pop(place))

    def close(self) -> None:
        mailbox, self._mailbox, self.topic = self._mailbox, None, None
        if mailbox is not None:
            mailbox.close()
