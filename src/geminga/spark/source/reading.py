"""Work of a task: read the entries of one range and yield record batches for Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from geminga.errors import CryptoError, PulsarException, Timeout, TopicNotFound
from geminga.ids import MessageId
from geminga.spark.cluster.clients import Cluster, closed_quietly
from geminga.spark.offsets import WHOLE_ENTRY, Offset, partition_topic
from geminga.spark.options import ReadOptions
from geminga.spark.retry_policy import RetryPolicy
from geminga.spark.source.compacted import CompactedEntries
from geminga.spark.source.range_entries import READ_ENTRIES, RangeEntries
from geminga.spark.source.ranges import Range
from geminga.spark.source.search import run, stepped_back
from geminga.wire.metadata import RawEntry

if TYPE_CHECKING:
    from geminga.wire.columnar import ChunkCarry

T = TypeVar("T")

logger = logging.getLogger("geminga.spark")

BATCH_ROWS = 16_384
"""Rows per record batch handed to Spark; any value between 1,000 and 50,000 is equally fast."""

BATCH_BYTES = 2 * 1024 * 1024
"""Stored bytes after which entries are decoded: so few that their memory is reused, without page faults."""

OPEN_CHUNKED_MAX = 10_000
"""Maximum incomplete chunked messages in one range."""

_LOOK_BACK_ENTRIES = (100, 1000, 10_000)


Again = Callable[[list[str]], pa.RecordBatch]
"""Returns further message columns of messages that were decoded already."""


class BatchConverter(Protocol):
    """Converts decoded messages to the columns that Spark requested."""

    @property
    def columns(self) -> list[str]:
        """Names of the required message columns."""

    def shape(self, messages: pa.RecordBatch, again: Again | None = None) -> pa.RecordBatch:
        """Convert ``messages``, which has those columns; ``again`` returns further columns of the same
        messages, for the rare case that needs them."""


class RangeReader:
    """Reader of one range of a partition, for a single pass."""

    def __init__(
        self,
        cluster: Cluster,
        options: ReadOptions,
        part: Range,
        converter: BatchConverter,
        *,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        from geminga.wire.columnar import ChunkCarry

        self.cluster = cluster
        self.options = options
        self.part = part
        self.converter = converter
        self.topic = partition_topic(part.partition)
        self.retry_policy = retry_policy or options.connection.retry_policy
        self.chunks: ChunkCarry = ChunkCarry(limit=OPEN_CHUNKED_MAX)
        self._open_entries: Opener = opener(options)
        # Ends inside a batch are cut by row; no other range needs the extra columns.
        self.cuts_batches = any(WHOLE_ENTRY != place.batch_index >= 0 for place in (part.start, part.end))
        entries = CompactedEntries if part.compacted else RangeEntries
        self.entries = entries(cluster, options, part, retry_policy=self.retry_policy)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the schema that Spark requested.

        Raises `DataLossError` when retention removed unread messages, `Timeout` when messages do not arrive.
        """
        try:
            pending: list[RawEntry] = []
            size = 0
            for entry in self.entries:
                pending.append(entry)
                size += len(entry.entry)
                if size >= BATCH_BYTES or len(pending) >= BATCH_ROWS:
                    yield from self._decoded(pending)
                    pending, size = [], 0
            if pending:
                yield from self._decoded(pending)
        finally:
            self.entries.close()

    def _decoded(self, arrived: list[RawEntry]) -> Iterator[pa.RecordBatch]:
        """Decode in even steps of about `BATCH_ROWS` rows."""
        from geminga.wire.columnar import message_counts

        entries = self._open_entries(arrived)
        counts = message_counts(entries)
        step = sum(counts) / max(1, round(sum(counts) / BATCH_ROWS))
        rows, first = 0, 0
        for number, count in enumerate(counts):
            rows += count
            if rows >= step:
                yield self._decode(entries[first : number + 1])
                rows, first = 0, number + 1
        if first < len(entries):
            yield self._decode(entries[first:])

    def _decode(self, entries: list[RawEntry]) -> pa.RecordBatch:
        columns = self.converter.columns
        known = len(self.chunks.headless)
        before = self.chunks.copy()
        messages = self._messages(entries, self.chunks, columns)
        if len(self.chunks.headless) > known and self._look_back(entries, before):
            self.chunks = before.copy()
            messages = self._messages(entries, self.chunks, columns)
        return self.converter.shape(messages, lambda more: self._messages(entries, before.copy(), more))

    def _messages(self, entries: list[RawEntry], chunks: ChunkCarry, columns: list[str]) -> pa.RecordBatch:
        """Decode these columns of the messages in the range."""
        from geminga.wire.columnar import decode_entries

        if not self.cuts_batches:
            return decode_entries(entries, columns, chunks=chunks)
        places = ["ledger_id", "entry_id", "batch_index"]
        messages = decode_entries(entries, [*columns, *places], chunks=chunks)
        return self._cut(messages, len(columns)).select(range(len(columns)))

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
            self.entries.lost(
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
        (first,) = self.entries.first_entries([(self.part.partition, MessageId.earliest)])
        return first is not None and Offset.after_entry(first.ledger_id, first.entry_id - 1) <= beginning

    def _stepped_back(self, first: RawEntry, entries: int) -> MessageId:
        partition = self.part.partition
        search = stepped_back(first.ledger_id, first.entry_id, entries)
        return run({partition: search}, self.entries.first_entries)[partition]

    def _carry_from(self, start: MessageId, end: RawEntry, chunks: ChunkCarry) -> ChunkCarry:
        """Return ``chunks`` plus those of the entries from ``start`` on, before ``end``."""
        from geminga.wire.columnar import decode_entries

        carry = chunks.copy()
        source = self.entries.open(start, Offset.after_entry(end.ledger_id, end.entry_id))
        try:
            while True:
                entries = source.read(READ_ENTRIES, self.options.poll_timeout_ms / 1000)
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


Opener = Callable[[Sequence[RawEntry]], list[RawEntry]]


def opener(options: ReadOptions) -> Opener:
    """Return the function that decrypts a range's entries. By the options, entries that can't be decrypted
    fail or are left out. Raises `CryptoError` naming the entry, and if ``cryptography`` is missing."""
    key = options.crypto_private_key_path
    discards = options.crypto_failure_action == "DISCARD"
    if key is None and not discards:
        return list  # decoding rejects encrypted entries

    from geminga.client.options.crypto import CryptoKeyReader, decryptor
    from geminga.consumer.opening import plain_metadata
    from geminga.wire.columnar import encrypted_entries
    from geminga.wire.metadata import build_entry, parse_entry

    decrypt = None if key is None else decryptor(CryptoKeyReader("", key))

    def opened(entry: RawEntry) -> RawEntry:
        parsed = parse_entry(entry.entry)
        if decrypt is None:
            raise CryptoError("the entry is encrypted, and the option crypto.privateKeyPath is not set")
        payload = decrypt(parsed.metadata, parsed.payload)
        metadata = plain_metadata(parsed.metadata)
        if parsed.metadata.num_chunks_from_msg > 1:  # each chunk is encrypted by itself
            metadata.num_chunks_from_msg = parsed.metadata.num_chunks_from_msg
            metadata.total_chunk_msg_size = parsed.metadata.total_chunk_msg_size
            metadata.chunk_id = parsed.metadata.chunk_id
        return entry._replace(entry=build_entry(metadata.SerializeToString(), payload))

    def open_all(entries: Sequence[RawEntry]) -> list[RawEntry]:
        found: list[RawEntry | None] = list(entries)
        for number in encrypted_entries(entries):
            entry = entries[number]
            place = f"{entry.topic}:{entry.ledger_id}:{entry.entry_id}"
            try:
                found[number] = opened(entry)
            except CryptoError as error:
                if not discards:
                    raise CryptoError(f"{place}: {error}") from None
                logger.warning("leaving out %s: %s", place, error)
                found[number] = None
        return [entry for entry in found if entry is not None]

    return open_all


def read_range(
    cluster: Cluster, options: ReadOptions, part: Range, converter: BatchConverter
) -> Iterator[pa.RecordBatch]:
    """Read ``part``; errors name the range. With ``failOnDataLoss=false`` a topic that was deleted after
    planning ends it."""
    try:
        reader = RangeReader(cluster, options, part, converter)
        yield from reader.batches()
        entries = reader.entries
        if part.goes_on and isinstance(entries, CompactedEntries) and (rest := entries.published_meanwhile()):
            yield from RangeReader(cluster, options, rest, converter).batches()
    except PulsarException as error:
        if isinstance(error, TopicNotFound) and not options.fail_on_data_loss:
            logger.warning("%s was deleted before it was read: %s", part, error)
            return
        error.add_note(f"while reading {part}")
        if isinstance(error, CryptoError) and options.crypto_private_key_path is None:
            error.add_note("the option crypto.privateKeyPath names the key that opens encrypted messages")
        raise
