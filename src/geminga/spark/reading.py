"""Work of a task: read the entries of one range and yield record batches for Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from geminga.errors import CryptoError, PulsarException, Timeout
from geminga.ids import MessageId
from geminga.spark.cluster import Cluster, EntrySource, closed_quietly
from geminga.spark.counting import LOST, SkipCounters
from geminga.spark.data_loss import refusal
from geminga.spark.decrypting import Opener, opener
from geminga.spark.offsets import WHOLE_ENTRY, Offset, Partition, partition_topic
from geminga.spark.options import ReadOptions
from geminga.spark.planning import Range
from geminga.spark.retry_policy import RetryPolicy
from geminga.spark.search import run, stepped_back
from geminga.wire.metadata import RawEntry

if TYPE_CHECKING:
    from geminga.spark.offloaded import MessageColumns
    from geminga.wire.columnar import ChunkCarry

T = TypeVar("T")

logger = logging.getLogger("geminga.spark")

BATCH_ROWS = 16_384
"""Rows per record batch handed to Spark; any value between 1,000 and 50,000 is equally fast."""

BATCH_BYTES = 16 * 1024 * 1024
"""Maximum stored bytes per record batch."""

OPEN_CHUNKED_MAX = 10_000
"""Maximum incomplete chunked messages in one range."""

_READ_ENTRIES = 1000
_IDLE_SECONDS = 1.0
_LOOK_BACK_ENTRIES = (100, 1000, 10_000)


Again = Callable[[list[str]], pa.RecordBatch]
"""Returns further message columns of messages that were decoded already."""


class BatchConverter(Protocol):
    """Converts decoded messages to the columns that Spark requested."""

    @property
    def columns(self) -> list[str]:
        """Names of the required message columns."""

    def shape(self, messages: pa.RecordBatch, again: Again | None = None) -> pa.RecordBatch:
        """Convert ``messages``, which has those columns, perhaps followed by others; ``again`` returns
        further columns of the same messages, for the rare case that needs them."""


class RangeReader:
    """Reads one range, once."""

    compacted = False
    """Whether the broker sends the compacted topic."""

    def __init__(
        self,
        cluster: Cluster,
        options: ReadOptions,
        part: Range,
        converter: BatchConverter,
        *,
        retry_policy: RetryPolicy | None = None,
        skip_counters: SkipCounters | None = None,
    ) -> None:
        from geminga.wire.columnar import ChunkCarry

        self.skip_counters = skip_counters or SkipCounters()

        self.cluster = cluster
        self.options = options
        self.part = part
        self.converter = converter
        self.topic = partition_topic(part.partition)
        self.retry_policy = retry_policy or RetryPolicy(options.connection.operation_timeout_ms / 1000)
        self.chunks: ChunkCarry = ChunkCarry(limit=OPEN_CHUNKED_MAX)
        self._open_entries: Opener = opener(options, self.skip_counters)
        self._source: EntrySource | None = None
        self._place = part.start.next_place
        """Position at which a reopened reader resumes."""
        self._read_through = part.start
        self._told_missing = False
        # Ends inside a batch are cut by row; no other range needs the extra columns.
        self.cuts_batches = any(WHOLE_ENTRY != place.batch_index >= 0 for place in (part.start, part.end))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the schema that Spark requested.

        Raises `DataLossError` when retention removed unread messages, `Timeout` when messages do not arrive.
        """
        try:
            pending: list[RawEntry] = []
            size = 0
            for found in self._entries():
                if not isinstance(found, RawEntry):
                    if pending:
                        yield from self._decoded(pending)
                        pending, size = [], 0
                    yield from self._shaped(found)
                    continue
                entry = found
                pending.append(entry)
                size += len(entry.entry)
                if size >= BATCH_BYTES or len(pending) >= BATCH_ROWS:
                    yield from self._decoded(pending)
                    pending, size = [], 0
            if pending:
                yield from self._decoded(pending)
        finally:
            self._let_go()

    def _open(self, start: MessageId, stop: Offset) -> EntrySource:
        location = self.options.offload_location
        if not self.part.offloaded or location is None:
            return self._open_broker(start, stop)
        from geminga.spark.offloaded import OffloadedSource

        return OffloadedSource(
            location,
            self.part.partition,
            self.part.offloaded,
            start,
            lambda place: self._open_broker(place, stop),
        )

    def _open_broker(self, start: MessageId, stop: Offset) -> EntrySource:
        return self.cluster.open(
            self.part.partition,
            start,
            stop,
            queue_size=self.options.receiver_queue_size,
            name=self.options.subscription_prefix,
            compacted=self.compacted,
        )

    def _ask(self, what: str, question: Callable[[EntrySource], T]) -> T:
        """Call ``question`` with the reader; if the reader broke, with a new one that resumes there."""

        def ask() -> T:
            if self._source is None:
                self._source = self._open(self._place, self.part.end)
            try:
                return question(self._source)
            except PulsarException:
                self._let_go()
                raise

        return self.retry_policy.call(f"{what} {self.topic}", ask)

    def _let_go(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            closed_quietly(source)

    # --- entries ------------------------------------------------------------------------------

    def _entries(self) -> Iterator[RawEntry | MessageColumns]:
        """Yield the range's entries: first the planner's, then those of the broker or of files."""
        after, end = self.part.start, self.part.end
        for entry in self.part.head:
            self._check_follows(after, entry)
            yield entry
            after = Offset.after_entry(entry.ledger_id, entry.entry_id)
        if after >= end:
            return
        previous: Offset | None = None
        for found in self._arriving(after):
            if previous is None:
                previous = after
                self._check_follows(after, found)
            elif found.ledger_id != previous.ledger or found.entry_id != previous.entry + 1:
                self._check_follows(previous, found)
            last = found.entry_id if isinstance(found, RawEntry) else found.last_entry_id
            place = (found.ledger_id, last)
            if place > end[:2]:
                if previous.ledger == end.ledger < found.ledger_id and previous[:2] < end[:2]:
                    self._check_missing(previous, found)
                return
            yield found
            if place == end[:2]:
                return
            previous = Offset.after_entry(*place)

    def _arriving(self, after: Offset) -> Iterator[RawEntry | MessageColumns]:
        """Yield the entries after ``after``, until none arrives any more."""
        poll_seconds = self.options.poll_timeout_ms / 1000
        deadline = time.monotonic() + poll_seconds
        self._place = after.next_place
        while True:
            messages = self._take_messages()
            if messages is not None:
                yield messages
                deadline = time.monotonic() + poll_seconds
                continue
            entries = self._take(min(_IDLE_SECONDS, poll_seconds))
            if entries:
                yield from entries
                deadline = time.monotonic() + poll_seconds
            elif self._ends_early() or time.monotonic() > deadline:
                self._give_up()
                return

    def _take_messages(self) -> MessageColumns | None:
        """Return the next messages as columns, if they are in a file with such columns."""
        if not self.part.offloaded or self.compacted or self.cuts_batches:
            return None
        from geminga.spark.offloaded import OffloadedSource

        columns, last = self.converter.columns, self.part.end[:2]

        def take(source: EntrySource) -> MessageColumns | None:
            return source.read_messages(columns, last) if isinstance(source, OffloadedSource) else None

        found = self._ask("reading", take)
        if found is not None:
            self._place = MessageId(-1, found.ledger_id, found.last_entry_id + 1)
            self._read_through = Offset.after_entry(found.ledger_id, found.last_entry_id)
        return found

    def _take(self, idle_seconds: float) -> list[RawEntry]:
        """Return the available entries; wait ``idle_seconds`` for the first one."""
        entries = self._ask("reading", lambda source: source.read(_READ_ENTRIES, idle_seconds))
        if entries:
            last = entries[-1]
            self._place = MessageId(-1, last.ledger_id, last.entry_id + 1)
            self._read_through = Offset.after_entry(last.ledger_id, last.entry_id)
        return entries

    def _check_follows(self, place: Offset, entry: RawEntry | MessageColumns) -> None:
        """Check that no entry between ``place`` and ``entry`` is missing; otherwise look for the cause.

        An entry in a later ledger may follow if ``place`` is the last entry of its own ledger, which is
        verified if that ledger still exists. If the ledger is gone, its later entries are unknown: that may
        be retention overtaking the reader.
        """
        wanted = place.next_place
        if (
            (place == self.part.start and (entry.ledger_id, entry.entry_id) == self.part.next_kept)
            or place.ledger < 0
            or (entry.ledger_id, entry.entry_id) == (wanted.ledger_id, wanted.entry_id)
            or self._follows_by_manifest(wanted, entry)
        ):
            return
        if entry.ledger_id == place.ledger and place.batch_index == WHOLE_ENTRY:
            self._check_missing(place, entry)
            return
        if entry.ledger_id > place.ledger and wanted.entry_id > 0:
            (found,) = self._firsts([(self.part.partition, MessageId(-1, place.ledger, place.entry))])
            if found is not None and (found.ledger_id, found.entry_id) == place[:2]:
                return
        self._lost(
            f"the entry {wanted.ledger_id}:{wanted.entry_id} of {self.topic} is gone, the first one left is "
            f"{entry.ledger_id}:{entry.entry_id}: messages from the one to before the other may have been "
            "removed before they were read"
        )

    def _check_missing(self, place: Offset, entry: RawEntry | MessageColumns) -> None:
        """Handle missing entries after ``place`` whose ledger exists. Retention removes whole ledgers only,
        so either a damaged store lost single entries, or Apache Pulsar's broker withholds them (markers of
        transactions and replication); a reader can't distinguish the two."""
        what = (
            f"the entry {place.ledger}:{place.entry + 1} of {self.topic} is gone, the first one left is "
            f"{entry.ledger_id}:{entry.entry_id}"
        )
        if self._ask("reading", lambda source: source.gives_all):
            self._lost(f"{what}: the broker's store was damaged, and what was between is lost")
        elif not self._told_missing:
            self._told_missing = True
            logger.warning(
                "%s: the broker withholds markers of transactions and replication, or the "
                "entries between are lost; this task logs no further gaps", what,
            )  # fmt: skip

    def _follows_by_manifest(self, wanted: MessageId, entry: RawEntry | MessageColumns) -> bool:
        """Return whether ``entry`` directly follows an offloaded ledger that ends at ``wanted``: one ledger's
        offset is then the end of the other. No broker is needed for that."""
        offloaded = self.part.offloaded
        ends = {
            each.offset + each.entries
            for each in offloaded
            if (each.ledger, each.entries) == (wanted.ledger_id, wanted.entry_id)
        }
        return entry.entry_id == 0 and any(
            each.ledger == entry.ledger_id and each.offset in ends for each in offloaded
        )

    def _ends_early(self) -> MessageId | None:
        """Return the topic's newest message, if it is before the range's end."""
        last = self._ask("asking for the newest message of", lambda source: source.last_message_id())
        return last if (last.ledger_id, last.entry_id) < self.part.end[:2] else None

    def _give_up(self) -> None:
        last = self._ends_early()
        if last is None:
            raise Timeout(
                f"nothing arrived for {self.options.poll_timeout_ms} ms while reading {self.part}: is the "
                "broker overloaded? The option pollTimeoutMs allows more"
            )
        self._lost(
            f"{self.topic} ends at {last.ledger_id}:{last.entry_id}, before {self.part.end}, up to which "
            f"this query was to read: what was after {self._read_through} was truncated, or the topic was "
            "deleted and made again"
        )

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise refusal(what)
        self.skip_counters.add(LOST)
        logger.warning("%s", what)

    # --- rows ---------------------------------------------------------------------------------

    def _shaped(self, found: MessageColumns) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a file in steps of about `BATCH_ROWS` rows."""
        from geminga.wire.columnar import decode_entries

        def again(first: int, rows: int, columns: list[str]) -> pa.RecordBatch:
            return decode_entries(found.entries(), columns).slice(first, rows)

        for first in range(0, found.batch.num_rows, BATCH_ROWS):
            piece = found.batch.slice(first, BATCH_ROWS)
            yield self.converter.shape(piece, partial(again, first, piece.num_rows))

    def _decoded(self, arrived: list[RawEntry]) -> Iterator[pa.RecordBatch]:
        """Decode in steps of about `BATCH_ROWS` rows."""
        from geminga.wire.columnar import message_counts

        entries = self._open_entries(arrived)
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

        columns = list(self.converter.columns)
        if self.cuts_batches:
            columns += ["ledger_id", "entry_id", "batch_index"]
        known = len(self.chunks.headless)
        before = self.chunks.copy()
        messages = decode_entries(entries, columns, chunks=self.chunks)
        if len(self.chunks.headless) > known and self._look_back(entries, before):
            self.chunks = before.copy()
            messages = decode_entries(entries, columns, chunks=self.chunks)
        if self.cuts_batches:
            messages = self._cut(messages, len(self.converter.columns))
        return self.converter.shape(messages, partial(self._again, entries, before))

    def _again(self, entries: list[RawEntry], chunks: ChunkCarry, columns: list[str]) -> pa.RecordBatch:
        from geminga.wire.columnar import decode_entries

        places = ["ledger_id", "entry_id", "batch_index"] if self.cuts_batches else []
        messages = decode_entries(entries, [*columns, *places], chunks=chunks.copy())
        if self.cuts_batches:
            messages = self._cut(messages, len(columns)).select(range(len(columns)))
        return messages

    def _cut(self, messages: pa.RecordBatch, first_extra: int) -> pa.RecordBatch:
        """Drop the rows of the first and last batch that are outside the range."""
        ledger, entry, index = (messages.column(first_extra + number) for number in range(3))
        start, end = self.part.start, self.part.end

        def at(place: Offset) -> pa.BooleanArray:
            return pc.and_(pc.equal(ledger, place.ledger), pc.equal(entry, place.entry))

        too_early = pc.and_(at(start), pc.less_equal(index, start.batch_index))
        too_late = pc.and_(at(end), pc.greater(index, end.batch_index))
        return messages.filter(pc.invert(pc.or_(too_early, too_late)))

    def _look_back(self, entries: list[RawEntry], chunks: ChunkCarry) -> bool:
        """Fetch the chunks before this range of messages that end in it: a chunked message belongs to the
        range that holds its last chunk. Return whether ``chunks`` now holds more."""
        from geminga.wire.columnar import decode_entries

        first = entries[0]
        for entries_back in _LOOK_BACK_ENTRIES:
            start = self._stepped_back(first, entries_back)
            trial = self.retry_policy.call(
                f"reading chunks of {self.topic}", partial(self._carry_from, start, first, chunks)
            )
            check = trial.copy()
            decode_entries(entries, [], chunks=check)
            lost = check.headless[len(trial.headless) :]
            if not lost:
                chunks.open.update(trial.open)
                return True
            if start == MessageId.earliest:
                break
        places = ", ".join(lost)
        if start == MessageId.earliest and self._begins_so():
            logger.warning("%s begins in the middle of chunked messages: %s", self.topic, places)
        else:
            self._lost(
                f"{self.topic}: the chunks at {places} belong to messages whose first chunks are gone, or "
                f"more than {entries_back} entries before: these messages are lost"
            )
        return False

    def _begins_so(self) -> bool:
        """Return whether the partition still begins as it did at the query's start, and is read from there
        on: earlier messages were then never part of the query."""
        beginning = self.part.beginning
        if beginning is None or beginning == self.part.start:
            return beginning is not None or self.part.start.ledger < 0
        (first,) = self._firsts([(self.part.partition, MessageId.earliest)])
        return first is not None and Offset.after_entry(first.ledger_id, first.entry_id - 1) <= beginning

    def _stepped_back(self, first: RawEntry, entries: int) -> MessageId:
        partition = self.part.partition
        search = stepped_back(first.ledger_id, first.entry_id, entries)
        return run({partition: search}, self._firsts)[partition]

    def _firsts(self, places: list[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        """Return the first entry at or after each position, by a rarely needed `Watch` of this task."""
        watch = self.cluster.watch(name=self.options.subscription_prefix)
        try:
            return self.retry_policy.call(f"looking for entries of {self.topic}", lambda: watch.first(places))
        finally:
            watch.close()

    def _carry_from(self, start: MessageId, end: RawEntry, chunks: ChunkCarry) -> ChunkCarry:
        """Return ``chunks`` plus those of the entries from ``start`` on, before ``end``."""
        from geminga.wire.columnar import decode_entries

        carry = chunks.copy()
        source = self._open(start, Offset.after_entry(end.ledger_id, end.entry_id))
        try:
            while True:
                entries = source.read(_READ_ENTRIES, self.options.poll_timeout_ms / 1000)
                if not entries:
                    raise Timeout(
                        f"{self.topic}: the entries before {end.ledger_id}:{end.entry_id} did not arrive"
                    )
                for entry in entries:
                    if (entry.ledger_id, entry.entry_id) >= (end.ledger_id, end.entry_id):
                        return carry
                    decode_entries(self._open_entries([entry]), [], chunks=carry)
        finally:
            closed_quietly(source)


def read_range(
    cluster: Cluster,
    options: ReadOptions,
    part: Range,
    converter: BatchConverter,
    skip_counters: SkipCounters | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read ``part``; errors name the range. ``skip_counters`` counts the messages left out."""
    try:
        if part.compacted:
            from geminga.spark.compacted import read_compacted

            yield from read_compacted(cluster, options, part, converter, skip_counters)
        else:
            yield from RangeReader(cluster, options, part, converter, skip_counters=skip_counters).batches()
    except PulsarException as error:
        error.add_note(f"while reading {part}")
        if isinstance(error, CryptoError) and options.crypto_private_key_path is None:
            error.add_note("the option crypto.privateKeyPath names the key that opens encrypted messages")
        raise
