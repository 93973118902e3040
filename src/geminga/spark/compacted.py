"""``readCompacted``: a topic as compaction has left it, the newest message of each key.

Compaction may go on while a query reads: a message that was there when the query was planned is then gone,
because a newer one of its key has come, behind the place where the query was to end. A batch query that
stopped there would have no message of that key at all. So it reads what is compacted up to its end, and then,
as it is, everything that came meanwhile: whatever took the place of a message lies there. A stream needs no
more than its next micro-batch for that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from geminga.ids import MessageId
from geminga.spark.cluster import Cluster, EntrySource
from geminga.spark.counting import SkipCounters
from geminga.spark.offsets import EARLIEST, Offset
from geminga.spark.options import ReadOptions
from geminga.spark.planning import Range, behind_message
from geminga.spark.reading import BatchConverter, RangeReader

if TYPE_CHECKING:
    from geminga.spark.offloaded import MessageColumns
    from geminga.wire.metadata import RawEntry

_IDLE_SECONDS = (0.05, 1.0)
"""After so long without an entry it is asked whether there are more; the first time, and later."""


class CompactedReader(RangeReader):
    """Reads one range of what is compacted: what is not there any more is no loss."""

    compacted = True

    def _open(self, start: MessageId, stop: Offset) -> EntrySource:
        return self._open_broker(start, stop)

    def _check_follows(self, place: Offset, entry: RawEntry | MessageColumns) -> None:
        """Any entry may be the next that is left."""

    def _check_missing(self, place: Offset, entry: RawEntry | MessageColumns) -> None:
        """Compaction takes single ones."""

    def _arriving(self, after: Offset) -> Iterator[RawEntry]:
        poll_seconds = self.options.poll_timeout_ms / 1000
        deadline = time.monotonic() + poll_seconds
        self._place = after.next_place
        idle, later = _IDLE_SECONDS
        while True:
            entries = self._take(min(idle, poll_seconds))
            if entries:
                yield from entries
                deadline = time.monotonic() + poll_seconds
                continue
            last = behind_message(
                self._ask("asking for the newest message of", lambda source: source.last_message_id())
            )
            if last <= self._read_through:
                self._check_end(last)
                return
            if time.monotonic() > deadline:
                self._give_up()
                return
            idle = later

    def _check_end(self, last: Offset) -> None:
        """The range's end may be compacted away, but the topic itself goes no less far. When its own ledgers
        are all gone, compaction has seen all of them, if it has left anything."""
        newest = self.retry_policy.call(
            f"asking for the newest message of {self.topic}",
            lambda: newest_of(self.cluster, self.options, self.part),
        )
        if newest == EARLIEST < last:
            return
        if newest < self.part.end:
            self._lost(
                f"{self.topic} ends at {newest}, before {self.part.end}, up to which this query was to read: "
                "it was truncated, or deleted and made again"
            )


def newest_of(cluster: Cluster, options: ReadOptions, part: Range) -> Offset:
    """The offset behind the newest message that the range's partition itself holds."""
    watch = cluster.watch(name=options.subscription_prefix)
    try:
        return behind_message(watch.newest([part.partition])[part.partition])
    finally:
        watch.close()


def read_compacted(
    cluster: Cluster,
    options: ReadOptions,
    part: Range,
    converter: BatchConverter,
    skip_counters: SkipCounters | None,
) -> Iterator[pa.RecordBatch]:
    """The record batches of a range that is ``compacted``."""
    reader = CompactedReader(cluster, options, part, converter, skip_counters=skip_counters)
    yield from reader.batches()
    if not part.goes_on:
        return
    newest = reader.retry_policy.call(
        f"asking for the newest message of {reader.topic}", lambda: newest_of(cluster, options, part)
    )
    if newest > part.end:
        rest = replace(part, start=part.end, end=newest, compacted=False, goes_on=False, beginning=None)
        yield from RangeReader(cluster, options, rest, converter, skip_counters=skip_counters).batches()
