"""``readCompacted``: read a compacted topic, the newest message of each key.

Compaction may run while a query reads: a message that existed when the query was planned may then be replaced
by a newer one of its key, beyond the planned end. A batch query that stopped there would have no message of
that key at all. So it reads the compacted topic up to its end, and then all messages published meanwhile,
uncompacted: any replacement is among them. A stream gets the replacements in its next micro-batch.
"""

from contextlib import closing
from dataclasses import replace

from geminga.ids import MessageId
from geminga.spark.cluster.clients import EntrySource
from geminga.spark.offsets import EARLIEST, Offset, behind_message
from geminga.spark.source.range_entries import RangeEntries
from geminga.spark.source.ranges import Range
from geminga.wire.metadata import RawEntry


class CompactedEntries(RangeEntries):
    """Entries of one range of a compacted topic, where missing entries are no loss."""

    idle_seconds = (0.05, 1.0)

    def open(self, start: MessageId, stop: Offset) -> EntrySource:
        return self._open_broker(start, stop)

    def _check_follows(self, place: Offset, entry: RawEntry) -> None:
        """Accept any entry: compaction may have removed those before it."""

    def _check_missing(self, place: Offset, entry: RawEntry) -> None:
        """Accept gaps: compaction removes single entries."""

    def _is_at_end(self) -> bool:
        last = behind_message(
            self._ask("asking for the newest message of", lambda source: source.last_message_id())
        )
        if last > self._read_through:
            return False
        self._check_end(last)
        return True

    def _check_end(self, last: Offset) -> None:
        """Check that the topic still reaches the range's end, which itself may be compacted away. If the
        topic's own ledgers are all gone, compaction has seen all of them."""
        newest = self.retry_policy.call(f"asking for the newest message of {self.topic}", self.newest)
        if newest == EARLIEST < last:
            return
        if newest < self.part.end:
            self.lost(
                f"{self.topic} ends at {newest}, before {self.part.end}, up to which this query was to read: "
                "it was truncated, or deleted and made again"
            )

    def newest(self) -> Offset:
        """Return the offset after the newest message that the partition itself holds."""
        with closing(self.cluster.watch(name=self.options.subscription_prefix)) as watch:
            return behind_message(watch.newest([self.part.partition])[self.part.partition])

    def published_meanwhile(self) -> Range | None:
        """Return the range after this one, up to the newest message, uncompacted; None if it is empty."""
        newest = self.retry_policy.call(f"asking for the newest message of {self.topic}", self.newest)
        if newest <= self.part.end:
            return None
        start = self.part.end
        return replace(self.part, start=start, end=newest, compacted=False, goes_on=False, beginning=None)
