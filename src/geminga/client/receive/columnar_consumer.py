"""Receiving and acknowledging by Arrow tables.

`receive_table` takes whole entries from the receive queue and decodes them at once
(`geminga.wire.columnar.decode_entries`), without a Python object per message. The first call switches the
consumer to whole entries; `receive` still works afterwards, splitting one entry at a time.

A table may exceed the requested number of rows by less than one entry, since entries are not split.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from geminga.client.handles.context import ClientContext
from geminga.client.receive.multi_consumer import HandleGroup
from geminga.config import MILLISECONDS_MAX, check_int
from geminga.consumer.core import ConsumerCore
from geminga.consumer.message import EntryAcks, ReceivedEntry, UnbatchedRun, in_ack_set
from geminga.consumer.opening import kind_of_damage, plain_metadata
from geminga.consumer.queue import ReceiveQueue, Taken
from geminga.consumer.settings import ConsumerSettings
from geminga.consumer.unbatching import CHECKSUM_MISMATCH, DECOMPRESSION_ERROR, InvalidEntry
from geminga.errors import (
    CorruptPayload,
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
    Timeout,
)
from geminga.extras import need
from geminga.ids import MessageId
from geminga.wire.compression import CodecError
from geminga.wire.metadata import RawEntry, build_entry

if TYPE_CHECKING:
    import pyarrow as pa

_origins: dict[int, tuple[weakref.ref[Any], list[ReceivedEntry]]] = {}
"""Entries by the ``id`` of the table made of them, as long as that table exists."""

_U64 = (1 << 64) - 1

_ID_COLUMNS = ("topic", "ledger_id", "entry_id", "batch_index")


class TableSource(Protocol):
    """Consumer whose messages are received and acknowledged as tables."""

    context: ClientContext
    settings: ConsumerSettings
    group: HandleGroup
    queue: ReceiveQueue
    tracks_taken: bool

    def check_receiving(self) -> None: ...

    def wait(self, deadline: float | None) -> Awaitable[bool]: ...


# --- receiving -----------------------------------------------------------------------------------


async def collect_entries(
    consumer: TableSource, max_rows: int, timeout_millis: int | None
) -> list[ReceivedEntry]:
    """Take entries of about ``max_rows`` messages, on the loop's thread; wait for the first. Raises `Timeout`
    if none arrives within ``timeout_millis``, and the error that ended the consumer; `OperationNotSupported`
    if undecryptable messages are to be delivered (``ConsumerCryptoFailureAction.CONSUME``), which a table
    cannot hold."""
    check_int("max_rows", max_rows, 1)
    need("receiving Arrow tables", "pyarrow", "numpy")  # before anything is taken
    if consumer.settings.delivers_ciphertext:
        raise OperationNotSupported(
            "a table cannot hold what is still encrypted: crypto_failure_action must be FAIL or DISCARD"
        )
    if timeout_millis is not None:
        check_int("timeout_millis", timeout_millis, 0, MILLISECONDS_MAX)
    deadline = None if timeout_millis is None else consumer.context.now() + timeout_millis / 1000
    consumer.group.receive_whole_entries()
    queue = consumer.queue
    consumer.check_receiving()
    while not queue:
        if not await consumer.wait(deadline) and not queue:
            raise Timeout(f"no message within {timeout_millis} ms")
    # Messages queued before the switch are regrouped into their entries.
    taken = queue.take_many(max_rows)
    entries = _regroup(taken)
    rows = 0
    for opened, indexes in taken:
        rows += len(indexes)
        if opened.releases:
            consumer.group.took_of(opened, indexes)
    while queue.entries and rows < max_rows:
        entry = queue.entries.popleft()
        rows += entry.count
        entries.append(entry)
    consumer.group.took_entries(entries)
    if consumer.tracks_taken:
        _track(consumer, entries)
    return entries


def _regroup(taken: list[Taken]) -> list[ReceivedEntry]:
    """Return the entries of messages that were taken singly, each with the set of taken messages.

    Messages of an entry are adjacent, except those that were put back in front of others. An entry that was
    delivered twice is returned once.
    """
    of_entry: dict[Any, tuple[ReceivedEntry, set[int]]] = {}
    for taken_from, indexes in taken:
        parts = [(taken_from, indexes)]
        if isinstance(taken_from, UnbatchedRun):
            parts = [(taken_from.entry_of(row), [-1]) for row in indexes]
        for opened, part in parts:
            # The ids of non-persistent entries are all equal.
            key = (opened.origin, opened.key(-1)) if opened.origin.keeps else opened
            of_entry.setdefault(key, (opened, set()))[1].update(part)
    return [_whole(opened, indexes) for opened, indexes in of_entry.values()]


def _whole(opened: ReceivedEntry, indexes: set[int]) -> ReceivedEntry:
    raw = opened.raw
    if raw is None:
        raw = _raw_of(opened)
    entry = ReceivedEntry(
        opened.origin, opened.ledger_id, opened.entry_id, opened.metadata, batched=opened.batched,
        raw=raw, count=opened.count, redelivery_count=opened.redelivery_count, acks=opened.acks,
        chunk_ids=opened.chunk_ids,
    )  # fmt: skip
    if opened.acks is not None and len(indexes) < opened.count:
        wanted = EntryAcks(opened.count)
        wanted.settle_through(opened.count - 1)
        for index in indexes:
            wanted.flags[index] = 1
        entry.ack_set = wanted.ack_set()
    return entry


def _raw_of(entry: ReceivedEntry) -> bytes:
    """Rebuild the raw form of an entry, discarded after decryption or chunk assembly, from its plain one."""
    metadata = plain_metadata(entry.metadata)
    metadata.ClearField("compression")
    metadata.ClearField("uncompressed_size")
    assert entry.body is not None
    return build_entry(metadata.SerializeToString(), entry.body)


def _track(consumer: TableSource, entries: list[ReceivedEntry]) -> None:
    """Start the acknowledgement time-out of whole entries."""
    now = consumer.context.now()
    for entry in entries:
        handle = consumer.group.handles.get(entry.origin.topic)
        if handle is not None:
            handle.consumer.unsettled.ack_timeout.taken((entry.ledger_id, entry.entry_id), now)
            handle.flush_soon()


def put_back_entries(consumer: TableSource, entries: Sequence[ReceivedEntry]) -> None:
    """Put entries back into the queue that were not delivered, and stop their acknowledgement time-outs; on
    the loop's thread."""
    consumer.queue.put_back_entries(entries)
    for entry in entries:
        handle = consumer.group.handles.get(entry.origin.topic)
        # The time-out continues if another caller holds messages of the entry.
        if handle is not None and not _is_shared(entry):
            handle.consumer.unsettled.ack_timeout.settled((entry.ledger_id, entry.entry_id))


def _is_shared(entry: ReceivedEntry) -> bool:
    """Return whether some of the entry's unacknowledged messages are not in its ``ack_set``."""
    if entry.acks is None or not entry.ack_set:
        return False
    return sum((word & _U64).bit_count() for word in entry.ack_set) < entry.acks.remaining


def raw_entry(entry: ReceivedEntry) -> RawEntry:
    assert entry.raw is not None
    origin = entry.origin
    return RawEntry(
        origin.topic, origin.partition, entry.ledger_id, entry.entry_id, entry.raw,
        entry.redelivery_count, entry.ack_set,
    )  # fmt: skip


def decode_table(
    consumer: TableSource,
    entries: list[ReceivedEntry],
    columns: Sequence[str] | None,
    post: Callable[..., None] | None = None,
) -> pa.Table:
    """Decode entries to a table. An entry that cannot be read is reported to the broker and skipped.

    May run on any thread; ``post`` then runs functions on the loop's thread. On any other error the entries
    return to the queue.
    """
    try:
        return _decode_table(consumer, entries, columns, post)
    except BaseException:
        if post is None:
            put_back_entries(consumer, entries)
        else:
            with contextlib.suppress(PulsarException):  # the client has ended
                post(put_back_entries, consumer, entries)
        raise


def _decode_table(
    consumer: TableSource,
    entries: list[ReceivedEntry],
    columns: Sequence[str] | None,
    post: Callable[..., None] | None,
) -> pa.Table:
    import pyarrow as pa

    from geminga.wire.columnar import decode_entries

    limit = consumer.settings.message_bytes_max
    try:
        batch = decode_entries([raw_entry(entry) for entry in entries], columns, max_uncompressed_size=limit)
        batches = [batch]
    except CorruptPayload:
        batches = []
        readable = []
        for entry in entries:
            try:
                batches.append(decode_entries([raw_entry(entry)], columns, max_uncompressed_size=limit))
                readable.append(entry)
            except CorruptPayload as error:
                if post is None:
                    _refuse(consumer, entry, error)
                else:
                    post(_refuse, consumer, entry, error)
        entries = readable
        if not batches:
            batches = [decode_entries([], columns)]
    # Separately decoded entries have separate dictionaries for their dictionary columns.
    table = pa.Table.from_batches(batches).unify_dictionaries() if batches else pa.table({})
    _origins[id(table)] = (weakref.ref(table, _forgetter(id(table))), entries)
    return table


def _forgetter(key: int) -> Callable[[object], None]:
    def forget(_: object) -> None:
        _origins.pop(key, None)

    return forget


def _refuse(consumer: TableSource, entry: ReceivedEntry, error: CorruptPayload) -> None:
    """Refuse an unreadable entry, on the loop's thread."""
    assert entry.raw is not None
    handle = consumer.group.handles.get(entry.origin.topic)
    if handle is None:
        return
    kind = kind_of_damage(entry.raw)
    if kind != CHECKSUM_MISMATCH and isinstance(error, CodecError):
        kind = DECOMPRESSION_ERROR
    handle.consumer.refuse_entry(entry, InvalidEntry(kind, str(error)))
    handle.flush_soon()


# --- acknowledging -------------------------------------------------------------------------------


def acknowledge_rows(consumer: TableSource, table: pa.Table | pa.RecordBatch) -> None:
    """Acknowledge the messages of a table, on the loop's thread.

    A table returned by `receive_table` is recognised and costs one step per entry. Of any other table
    (filtered, sliced, joined) the columns ``topic``, ``ledger_id``, ``entry_id``, ``batch_index`` and
    ``batch_size`` are read: an entry is acknowledged when all messages of its batch are. Raises
    `InvalidConfiguration` if columns are missing or hold values that `receive_table` never returns, and
    `TypeError` for another object, before anything is acknowledged; ``batch_size`` may be missing if this
    consumer itself received the batches.
    """
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    elif not isinstance(table, pa.Table):
        raise TypeError(f"table must be a pyarrow.Table or RecordBatch, not {type(table).__name__}")
    now = consumer.context.now()
    known = _origins.pop(id(table), None)
    if known is not None and known[0]() is table:
        for entry in known[1]:
            _acknowledge_entry(consumer, entry, now)
    else:
        missing = [name for name in _ID_COLUMNS if name not in table.column_names]
        if missing:
            raise InvalidConfiguration(
                f"acknowledge_table needs the columns {', '.join(missing)}, or the very table that "
                "receive_table returned"
            )
        _acknowledge_by_columns(consumer, table, now)
    for handle in consumer.group.handles.values():
        handle.flush_soon()


def refuse_rows(consumer: TableSource, table: pa.Table) -> None:
    """Negatively acknowledge the messages of a table with the columns of `receive_table`, on the loop's
    thread. They are redelivered after the delay for their redelivery count."""
    now = consumer.context.now()
    counts = table.column("redelivery_count").to_numpy()
    for rows in _rows_by_entry(consumer, table):
        rows.consumer.negative_acknowledge_id(MessageId(-1, *rows.key), now, int(counts[rows.first]))
    for handle in consumer.group.handles.values():
        handle.flush_soon()


def _acknowledge_entry(consumer: TableSource, entry: ReceivedEntry, now: float) -> None:
    """Acknowledge the rows of an entry in a table: the whole entry, or the messages in its ``ack_set``."""
    handle = consumer.group.handles.get(entry.origin.topic)
    if handle is None:
        return
    core = handle.consumer
    if core.origin is not entry.origin:
        core.acknowledge_foreign(entry, _indexes_of(entry), now)
        return
    if entry.ack_set and entry.acks is not None:
        for index in _indexes_of(entry):
            entry.acks.settle(index)
        if entry.acks.remaining:
            key = (entry.ledger_id, entry.entry_id)
            core.acknowledge_indexes(key, entry.count, (), now)  # a partial acknowledgement
            return
    core.acknowledge_entries((entry,), now)


def _indexes_of(entry: ReceivedEntry) -> Sequence[int]:
    """Return the indexes of an entry's messages that a table holds."""
    return in_ack_set(range(entry.count), entry.ack_set) if entry.batched else (-1,)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one entry: ``indexes`` into a batch of ``size``, or an unbatched message (``size`` 0)."""

    consumer: ConsumerCore
    key: tuple[int, int]
    size: int
    indexes: list[int]
    first: int
    """Index of the first of these rows in the table."""


def _acknowledge_by_columns(consumer: TableSource, table: pa.Table, now: float) -> None:
    # All rows are read before any is acknowledged: a refused table has no effect.
    for rows in list(_rows_by_entry(consumer, table)):
        if rows.size:
            rows.consumer.acknowledge_indexes(rows.key, rows.size, rows.indexes, now)
        else:
            rows.consumer.acknowledge_id(MessageId(-1, *rows.key), now)


def _rows_by_entry(consumer: TableSource, table: pa.Table) -> Iterator[_Rows]:
    """Yield the rows of ``table`` entry by entry, without those of topics that this consumer does not
    read."""
    import numpy as np

    handles = consumer.group.handles
    if table.num_rows == 0 or not handles:
        return
    ledgers = _whole_numbers(table, "ledger_id")
    entries = _whole_numbers(table, "entry_id")
    indexes = _whole_numbers(table, "batch_index", -1)
    sizes = _whole_numbers(table, "batch_size", 0) if "batch_size" in table.column_names else None
    changes = (np.diff(ledgers) != 0) | (np.diff(entries) != 0)
    topics = None
    column = table.column("topic")
    if not consumer.group.is_alone or column.unique().to_pylist() != list(handles):
        topics = np.array(column.to_pylist(), object)
        changes |= topics[1:] != topics[:-1]
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), table.num_rows]
    only = next(iter(handles.values()))
    for start, end in itertools.pairwise(bounds):
        handle = only if topics is None else handles.get(topics[start])
        if handle is None:
            continue
        key = (int(ledgers[start]), int(entries[start]))
        if indexes[start] < 0:
            yield _Rows(handle.consumer, key, 0, [], start)
            continue
        known = handle.consumer.acks.parts.batches.get(key)
        if known is not None:
            size = len(known.flags)
        elif sizes is not None:
            size = int(sizes[start])
        else:
            raise InvalidConfiguration(
                "acknowledge_table needs the column batch_size: this consumer did not receive the batch "
                f"{key[0]}:{key[1]} and does not know whether the rows are all of it"
            )
        rows = indexes[start:end].tolist()
        if not 0 <= min(rows) <= max(rows) < size:
            raise InvalidConfiguration(
                f"acknowledge_table: the batch {key[0]}:{key[1]} has {size} messages, and the table names "
                f"batch_index={min(rows) if min(rows) < 0 else max(rows)} of it"
            )
        yield _Rows(handle.consumer, key, size, rows, start)


def _whole_numbers(table: pa.Table, name: str, missing: int | None = None) -> Any:
    """Return a column as an array of int64, with ``missing`` for nulls."""
    import pyarrow as pa

    column = table.column(name)
    try:
        numbers = column.cast(pa.int64())  # pandas may have turned them into floats
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidConfiguration(
            f"acknowledge_table: the column {name} is of {column.type}; allowed: whole numbers, as "
            f"receive_table gives them ({error})"
        ) from None
    if missing is None and numbers.null_count:
        raise InvalidConfiguration(f"acknowledge_table: the column {name} has {numbers.null_count} nulls")
    return (numbers if missing is None else numbers.fill_null(missing)).to_numpy()
