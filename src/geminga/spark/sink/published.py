"""Published part of an interrupted micro-batch, determined from the topics themselves.

The exactly-once sink relies on the broker's deduplication, which forgets an inactive producer
(``brokerDeduplicationProducerInactivityTimeoutMinutes``). The topics still have the published rows: after the
offsets noted when the micro-batch was decided, under the sink's name and the micro-batch's sequence ids. They
may have been trimmed as well, which leaves no trace in a topic that was empty at the noted offset: unless
that was recent, the published part is then unknown.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

from geminga.errors import Timeout
from geminga.ids import MessageId, TopicName
from geminga.spark.cluster.clients import Cluster, closed_quietly
from geminga.spark.offsets import EARLIEST, Offset, Partition, behind_message, partition_topic
from geminga.spark.retry_policy import RetryPolicy
from geminga.wire.metadata import peek_entry

_READ_ENTRIES = 1000
_QUEUE_MESSAGES = 20_000
_WAIT_SECONDS = 30.0


@dataclass
class TopicTails:
    """The newest messages of the partitions, by full name, that one sink publishes to."""

    cluster: Cluster
    sink: str
    retry_policy: RetryPolicy

    def places(self, names: Iterable[str]) -> dict[str, str]:
        """Return the positions of the newest messages, as text."""
        partitions = [_partition(name) for name in names]
        with closing(self.cluster.watch(name=self.sink)) as watch:
            newest = self.retry_policy.call(
                "asking for the newest messages", lambda: watch.newest(partitions)
            )
        return {partition_topic(each): str(behind_message(found)) for each, found in newest.items()}

    def through(self, name: str, since: str, ids: range, *, is_old: bool = False) -> int | None:
        """Return the highest of the sequence ids that the sink has published after ``since``; -1: none.

        None: unknown, because messages at ``since`` and perhaps later ones are gone. An empty topic had none
        to lose then, but later messages may be gone if that was long ago (``is_old``).
        """
        partition, place = _partition(name), Offset.parse(since)
        found = self.retry_policy.call(
            f"reading what is published to {name}", lambda: self._through(partition, place, ids)
        )
        return None if found == -1 and place == EARLIEST and is_old else found

    def _through(self, partition: Partition, place: Offset, ids: range) -> int | None:
        with closing(self.cluster.watch(name=self.sink)) as watch:
            newest = behind_message(watch.newest([partition])[partition])
            if newest == place:
                return -1
            if place != EARLIEST:
                (there,) = watch.first([(partition, MessageId(-1, place.ledger, place.entry))])
                if there is None or (there.ledger_id, there.entry_id) != place[:2]:
                    return None
        return self._highest(partition, place, newest, ids)

    def _highest(self, partition: Partition, place: Offset, newest: Offset, ids: range) -> int:
        """Return the highest sequence id from ``place`` to ``newest``."""
        highest = -1
        source = self.cluster.open(
            partition, place.next_place, newest, queue_size=_QUEUE_MESSAGES, name=self.sink
        )
        try:
            while place < newest:
                entries = source.read(_READ_ENTRIES, _WAIT_SECONDS)
                if not entries:
                    raise Timeout(f"{partition_topic(partition)}: the messages after {place} did not arrive")
                for entry in entries:
                    head = peek_entry(entry.entry)
                    last = max(head.sequence_id, head.highest_sequence_id)
                    if head.producer_name == self.sink and last in ids:
                        highest = max(highest, last)
                place = Offset.after_entry(entries[-1].ledger_id, entries[-1].entry_id)
        finally:
            closed_quietly(source)
        return highest


def later(known: Mapping[str, str], published: Mapping[str, MessageId]) -> dict[str, str]:
    """Return ``known`` updated with the positions of newly published messages."""
    found = dict(known)
    for name, last in published.items():
        place = Offset.after_entry(last.ledger_id, last.entry_id)
        if place > Offset.parse(known.get(name, str(EARLIEST))):
            found[name] = str(place)
    return found


def _partition(name: str) -> Partition:
    topic = TopicName.parse(name)
    return str(topic.base), topic.partition
