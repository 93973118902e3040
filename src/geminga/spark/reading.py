"""A task's work: the entries of one range, as record batches for Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from geminga.errors import PulsarException, ReadError, Timeout
from geminga.ids import MessageId
from geminga.spark.cluster import Cluster, EntrySource, closed_quietly
from geminga.spark.offsets import WHOLE_ENTRY, Offset, partition_topic
from geminga.spark.options import ReadOptions
from geminga.spark.planning import Range
from geminga.spark.schema import ArrowShaper

if TYPE_CHECKING:
    from geminga.wire.columnar import ChunkCarry
    from geminga.wire.metadata import RawEntry

logger = logging.getLogger("geminga.spark")

BATCH_ROWS = 16_384
"""Rows after which a record batch is handed to Spark; between 1,000 and 50,000 it makes no difference."""

BATCH_BYTES = 16 * 1024 * 1024
"""Stored bytes after which it is, however few its rows are."""

_READ_ENTRIES = 1000
_IDLE_SECONDS = 1.0
_LOOK_BACK_ENTRIES = (100, 1000, 10_000)


class DataLossError(ReadError):
    """Messages that were planned to be read are no longer there."""

    retriable = False


class RangeReader:
    """Reads one range, once."""

    def __init__(self, cluster: Cluster, options: ReadOptions, part: Range, shaper: ArrowShaper) -> None:
        from geminga.wire.columnar import ChunkCarry

        self.cluster = cluster
        self.options = options
        self.part = part
        self.shaper = shaper
        self.topic = partition_topic(part.partition)
        self.chunks: ChunkCarry = ChunkCarry()
        # Ends inside a batch are cut by row; no other range needs the extra columns.
        self.cuts_batches = any(WHOLE_ENTRY != place.batch_index >= 0 for place in (part.start, part.end))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches of the schema that Spark asked for.

        Raises `DataLossError` when retention overtook the range, `Timeout` when its messages do not arrive.
        """
        source = self._open(self.part.start.reader_start)
        try:
            pending: list[RawEntry] = []
            size = 0
            for entry in self._entries(source):
                pending.append(entry)
                size += len(entry.entry)
                if size >= BATCH_BYTES or len(pending) >= BATCH_ROWS:
                    yield from self._decoded(pending)
                    pending, size = [], 0
            if pending:
                yield from self._decoded(pending)
        finally:
            closed_quietly(source)

    def _open(self, start: MessageId) -> EntrySource:
        return self.cluster.open(
            self.part.partition,
            start,
            queue_size=self.options.receiver_queue_size,
            name=self.options.subscription_prefix,
        )

    # --- entries ------------------------------------------------------------------------------

    def _entries(self, source: EntrySource) -> Iterator[RawEntry]:
        start, end = self.part.start, self.part.end
        if start >= end:
            return
        deadline = time.monotonic() + self.options.poll_timeout_ms / 1000
        is_first = True
        while True:
            entries = source.read(_READ_ENTRIES, min(_IDLE_SECONDS, self.options.poll_timeout_ms / 1000))
            if not entries:
                if self._is_lost(source) or time.monotonic() > deadline:
                    self._give_up(source)
                    return
                continue
            deadline = time.monotonic() + self.options.poll_timeout_ms / 1000
            if is_first:
                is_first = False
                self._check_start(entries[0])
            for entry in entries:
                place = (entry.ledger_id, entry.entry_id)
                if place > end[:2]:
                    return
                if place < start[:2] or (place == start[:2] and start.batch_index == WHOLE_ENTRY):
                    continue
                yield entry
                if place == end[:2]:
                    return

    def _check_start(self, first: RawEntry) -> None:
        """The entry at the start is delivered first, when it is still there: if not, ask why."""
        start = self.part.start
        expected = (start.ledger, max(start.entry, 0))
        if start.ledger < 0 or (first.ledger_id, first.entry_id) <= expected:
            return
        self._lost(
            f"the entry {expected[0]}:{expected[1]} of {self.topic} is gone, the first one left is "
            f"{first.ledger_id}:{first.entry_id}: messages between them may have been removed before they "
            "were read"
        )

    def _is_lost(self, source: EntrySource) -> bool:
        last = source.last_message_id()
        return (last.ledger_id, last.entry_id) < self.part.end[:2]

    def _give_up(self, source: EntrySource) -> None:
        if self._is_lost(source):
            last = source.last_message_id()
            self._lost(
                f"{self.topic} ends at {last.ledger_id}:{last.entry_id}, before {self.part.end}, up to which "
                "this query was to read: it was truncated, or deleted and made again"
            )
            return
        raise Timeout(
            f"nothing arrived for {self.options.poll_timeout_ms} ms while reading {self.part}: is the broker "
            "overloaded? The option pollTimeoutMs allows more"
        )

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"{what}. Keep messages longer (retention), or set failOnDataLoss=false to go on"
            )
        logger.warning("%s", what)

    # --- rows ---------------------------------------------------------------------------------

    def _decoded(self, entries: list[RawEntry]) -> Iterator[pa.RecordBatch]:
        """Decode in steps of about `BATCH_ROWS` rows."""
        from geminga.wire.columnar import message_counts

        rows, first = 0, 0
        for number, count in enumerate(message_counts(entries)):
            rows += count
            if rows >= BATCH_ROWS:
                yield self._decode(entries[first : number + 1])
                rows, first = 0, number + 1
        if first < len(entries):
            yield self._decode(entries[first:])

    def _decode(self, entries: list[RawEntry]) -> pa.RecordBatch:
        from geminga.wire.columnar import decode_entries

        columns = list(self.shaper.columns)
        if self.cuts_batches:
            columns += ["ledger_id", "entry_id", "batch_index"]
        known = len(self.chunks.headless)
        before = self.chunks.copy()
        messages = decode_entries(entries, columns, chunks=self.chunks)
        if len(self.chunks.headless) > known and self._look_back(entries, before):
            self.chunks = before
            messages = decode_entries(entries, columns, chunks=self.chunks)
        if self.cuts_batches:
            messages = self._cut(messages, len(self.shaper.columns))
        return self.shaper.shape(messages)

    def _cut(self, messages: pa.RecordBatch, first_extra: int) -> pa.RecordBatch:
        """Drop the rows of the first and last batch that lie outside the range."""
        ledger, entry, index = (messages.column(first_extra + number) for number in range(3))
        start, end = self.part.start, self.part.end

        def at(place: Offset) -> pa.BooleanArray:
            return pc.and_(pc.equal(ledger, place.ledger), pc.equal(entry, place.entry))

        too_early = pc.and_(at(start), pc.less_equal(index, start.batch_index))
        too_late = pc.and_(at(end), pc.greater(index, end.batch_index))
        return messages.filter(pc.invert(pc.or_(too_early, too_late)))

    def _look_back(self, entries: list[RawEntry], chunks: ChunkCarry) -> bool:
        """Fetch the chunks before this range of messages that end in it: a chunked message belongs to the
        range that holds its last chunk. True when ``chunks`` now holds more."""
        from geminga.wire.columnar import decode_entries

        first = entries[0]
        for entries_back in _LOOK_BACK_ENTRIES:
            start = MessageId(-1, first.ledger_id, max(0, first.entry_id - entries_back))
            trial = chunks.copy()
            for earlier in self._between(start, first):
                decode_entries([earlier], [], chunks=trial)
            check = trial.copy()
            decode_entries(entries, [], chunks=check)
            if len(check.headless) == len(chunks.headless):
                chunks.open.update(trial.open)
                return True
        logger.warning("%s: chunks before %d:%d are gone; their messages are left out",
                       self.topic, first.ledger_id, first.entry_id)  # fmt: skip
        return False

    def _between(self, start: MessageId, end: RawEntry) -> Iterator[RawEntry]:
        source = self._open(start)
        try:
            while True:
                entries = source.read(_READ_ENTRIES, self.options.poll_timeout_ms / 1000)
                for entry in entries:
                    if (entry.ledger_id, entry.entry_id) >= (end.ledger_id, end.entry_id):
                        return
                    yield entry
                if not entries:
                    return
        finally:
            closed_quietly(source)


def read_range(
    cluster: Cluster, options: ReadOptions, part: Range, shaper: ArrowShaper
) -> Iterator[pa.RecordBatch]:
    """Read ``part``; errors name the range."""
    try:
        yield from RangeReader(cluster, options, part, shaper).batches()
    except PulsarException as error:
        error.add_note(f"while reading {part}")
        raise
