"""What of an interrupted micro-batch is published already, told by the topics themselves.

The exactly-once sink has the broker's deduplication, which forgets a producer that was silent for long
(``brokerDeduplicationProducerInactivityTimeoutMinutes``). Topics do not forget: what the sink published of
a micro-batch lies behind the places that were noted when that was decided, under the sink's name and the
micro-batch's sequence ids. That may have been trimmed as well, without any trace in a topic that had nothing
when the place was noted: unless that is a short while ago, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from geminga.errors import Timeout
from geminga.ids import MessageId, TopicName
from geminga.spark.cluster import Cluster, closed_quietly
from geminga.spark.offsets import EARLIEST, Offset, Partition, partition_topic
from geminga.spark.planning import behind_message
from geminga.spark.retry_policy import RetryPolicy
from geminga.wire.metadata import peek_entry

_READ_ENTRIES = 1000
_QUEUE_MESSAGES = 20_000
_WAIT_SECONDS = 30.0


class TopicTails:
    """The newest messages of the partitions that one sink publishes to; they go by their full names."""

    def __init__(self, cluster: Cluster, sink: str, retry_policy: RetryPolicy) -> None:
        self.cluster = cluster
        self.sink = sink
        self.retry_policy = retry_policy

    def places(self, names: Iterable[str]) -> dict[str, str]:
        """The places of the newest messages, as text."""
        partitions = [_partition(name) for name in names]
        watch = self.cluster.watch(name=self.sink)
        try:
            newest = self.retry_policy.call(
                "asking for the newest messages", lambda: watch.newest(partitions)
            )
        finally:
            watch.close()
        return {partition_topic(each): str(behind_message(found)) for each, found in newest.items()}

    def through(self, name: str, since: str, ids: range, *, is_old: bool = False) -> int | None:
        """The highest of the sequence ids that the sink has published behind ``since``; -1: none.

        None: nobody can tell, for what was there at ``since`` is gone, and perhaps more. Where nothing was
        there, nothing can be gone; but what came since may be, when that is long ago (``is_old``).
        """
        partition, place = _partition(name), Offset.parse(since)
        found = self.retry_policy.call(
            f"reading what is published to {name}", lambda: self._through(partition, place, ids)
        )
        return None if found == -1 and place == EARLIEST and is_old else found

    def _through(self, partition: Partition, place: Offset, ids: range) -> int | None:
        watch = self.cluster.watch(name=self.sink)
        try:
            newest = behind_message(watch.newest([partition])[partition])
            if newest == place:
                return -1
            if place != EARLIEST:
                (there,) = watch.first([(partition, MessageId(-1, place.ledger, place.entry))])
                if there is None or (there.ledger_id, there.entry_id) != place[:2]:
                    return None
        finally:
            watch.close()
        return self._highest(partition, place, newest, ids)

    def _highest(self, partition: Partition, place: Offset, newest: Offset, ids: range) -> int:
        """Read from ``place`` to ``newest``."""
        highest = -1
        source = self.cluster.open(
            partition, place.next_place, newest, queue_size=_QUEUE_MESSAGES, name=self.sink
        )
        try:
            while place < newest:
                entries = source.read(_READ_ENTRIES, _WAIT_SECONDS)
                if not entries:
                    raise Timeout(f"{partition_topic(partition)}: the messages behind {place} did not come")
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
    """``known`` with the places of what was published since."""
    found = dict(known)
    for name, last in published.items():
        place = Offset.after_entry(last.ledger_id, last.entry_id)
        if place > Offset.parse(known.get(name, str(EARLIEST))):
            found[name] = str(place)
    return found


def _partition(name: str) -> Partition:
    topic = TopicName.parse(name)
    return str(topic.base), topic.partition
