"""Receiving and acknowledging by Arrow tables.

`receive_table` takes whole entries from the receive queue and decodes them at once
(`geminga.wire.columnar.decode_entries`): no Python object is made a message. The first call switches
the consumer to whole entries; `receive` still works afterwards, one entry at a time.

A table may hold more rows than asked for by less than one entry, since entries are not cut.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from geminga.config import check_int
from geminga.consumer.core import ConsumerCore
from geminga.consumer.message import EntryAcks, Message, ReceivedEntry
from geminga.consumer.settings import ConsumerCryptoFailureAction
from geminga.consumer.unbatching import BATCH_DESERIALIZE_ERROR, CHECKSUM_MISMATCH, InvalidEntry
from geminga.errors import CorruptPayload, InvalidConfiguration, OperationNotSupported
from geminga.wire.metadata import RawEntry, build_entry, checksum_matches

if TYPE_CHECKING:
    import pyarrow as pa

    from geminga.client.async_consumer import AsyncConsumer

logger = logging.getLogger("geminga")

_origins: dict[int, tuple[weakref.ref[Any], list[ReceivedEntry]]] = {}
"""Entries by the ``id`` of the table that they became, as long as that table lives."""

_ID_COLUMNS = ("topic", "ledger_id", "entry_id", "batch_index")


# --- receiving -----------------------------------------------------------------------------------


async def collect_entries(
    consumer: AsyncConsumer, max_rows: int, timeout_millis: int | None
) -> list[ReceivedEntry]:
    """On the loop's thread: entries of about ``max_rows`` messages; waits for the first.

    Raises `Timeout` when none comes within ``timeout_millis``, and what ends the consumer;
    `OperationNotSupported` when messages that cannot be decrypted are to be delivered
    (``ConsumerCryptoFailureAction.CONSUME``), which a table has no place for.
    """
    check_int("max_rows", max_rows, 1)
    if consumer.settings.crypto_failure_action is ConsumerCryptoFailureAction.CONSUME:
        raise OperationNotSupported(
            "a table cannot hold what is still encrypted: crypto_failure_action must be FAIL or DISCARD"
        )
    consumer.check_receiving()
    consumer.group.receive_whole_entries()
    items = consumer.queue.items
    while not items:
        await consumer.wait(timeout_millis)
    entries: list[ReceivedEntry] = []
    singles: dict[tuple[Any, int, int], ReceivedEntry] = {}
    rows = 0
    while items and rows < max_rows:
        try:
            item = items.popleft()
        except IndexError:  # taken by another receiver
            break
        if isinstance(item, Message):
            # Queued before the switch: the messages of an entry are put together again.
            rows += 1
            _regroup(item, singles, entries)
            consumer.took(item)
            continue
        rows += item.count
        entries.append(item)
    for entry in entries:
        _account(consumer, entry)
    return entries


def _regroup(
    message: Message,
    singles: dict[tuple[Any, int, int], ReceivedEntry],
    entries: list[ReceivedEntry],
) -> None:
    opened = message._entry
    key = (opened.origin, opened.ledger_id, opened.entry_id)
    entry = singles.get(key)
    if entry is None:
        raw = opened.raw
        if raw is None:
            raw = _raw_of(opened)
        entry = ReceivedEntry(
            opened.origin, opened.ledger_id, opened.entry_id, opened.metadata, batched=opened.batched,
            raw=raw, count=opened.count, redelivery_count=opened.redelivery_count, acks=opened.acks,
            chunk_ids=opened.chunk_ids,
        )  # fmt: skip
        singles[key] = entry
        entries.append(entry)
        if opened.acks is not None:
            wanted = EntryAcks(opened.ledger_id, opened.entry_id, opened.count)
            wanted.settle_through(opened.count - 1)
            entry.ack_set = wanted  # type: ignore[assignment]
    if isinstance(entry.ack_set, EntryAcks):
        entry.ack_set.flags[message._index] = 1


def _raw_of(entry: ReceivedEntry) -> bytes:
    """An entry whose raw form was given up (it was encrypted or chunked), rebuilt from its open one."""
    from geminga.consumer.opening import plain_metadata

    metadata = plain_metadata(entry.metadata)
    metadata.ClearField("compression")
    metadata.ClearField("uncompressed_size")
    assert entry.body is not None
    return build_entry(metadata.SerializeToString(), entry.body)


def _account(consumer: AsyncConsumer, entry: ReceivedEntry) -> None:
    """Give the permits back and finish the entry for decoding."""
    if isinstance(entry.ack_set, EntryAcks):
        wanted = entry.ack_set
        full = wanted.flags.count(1) == entry.count
        entry.ack_set = () if full else wanted.ack_set()
    handle = entry.origin.consumer.shell
    for _, release in entry.releases:
        handle.released(release)
    entry.releases = []
    if consumer.tracks_taken:
        core: ConsumerCore = entry.origin.consumer
        core.ack_timeout.taken((entry.ledger_id, entry.entry_id), consumer.core.now())
        handle.flush_soon()


def raw_entry(entry: ReceivedEntry) -> RawEntry:
    assert entry.raw is not None
    origin = entry.origin
    return RawEntry(
        origin.topic, origin.partition, entry.ledger_id, entry.entry_id, entry.raw,
        entry.redelivery_count, entry.ack_set,
    )  # fmt: skip


def decode_table(
    consumer: AsyncConsumer,
    entries: list[ReceivedEntry],
    columns: Sequence[str] | None,
    post: Callable[..., None] | None = None,
) -> pa.Table:
    """The table of entries. An entry that cannot be read is reported to the broker and left out.

    May run on any thread; ``post`` then runs functions on the loop's thread.
    """
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
                report = (_refuse, entry, error)
                if post is None:
                    _refuse(entry, error)
                else:
                    post(*report)
        entries = readable
        if not batches:
            batches = [decode_entries([], columns)]
    # Dictionary columns of separately decoded entries have dictionaries of their own.
    table = pa.Table.from_batches(batches).unify_dictionaries() if batches else pa.table({})
    _origins[id(table)] = (weakref.ref(table, _forgetter(id(table))), entries)
    return table


def _forgetter(key: int) -> Callable[[object], None]:
    def forget(_: object) -> None:
        _origins.pop(key, None)

    return forget


def _refuse(entry: ReceivedEntry, error: CorruptPayload) -> None:
    """On the loop's thread: acknowledge an unreadable entry as such."""
    assert entry.raw is not None
    try:
        intact = checksum_matches(entry.raw) is not False
    except CorruptPayload:
        intact = False
    kind = BATCH_DESERIALIZE_ERROR if intact else CHECKSUM_MISMATCH
    core: ConsumerCore = entry.origin.consumer
    core.refuse_entry(entry, InvalidEntry(kind, str(error)))
    core.shell.flush_soon()


# --- acknowledging -------------------------------------------------------------------------------


def acknowledge_rows(consumer: AsyncConsumer, table: pa.Table) -> None:
    """On the loop's thread: acknowledge the messages of a table.

    A table as `receive_table` gave it is recognised and costs a step an entry. Of any other (filtered,
    sliced, joined) the columns ``topic``, ``ledger_id``, ``entry_id`` and ``batch_index`` are read.
    Raises `InvalidConfiguration` when they are missing.
    """
    now = consumer.core.now()
    known = _origins.pop(id(table), None)
    if known is not None and known[0]() is table:
        for entry in known[1]:
            if entry.ack_set and entry.acks is not None:
                _settle_words(entry.acks, entry.ack_set)
            by_consumer = entry.origin.consumer
            if entry.acks is None or not entry.ack_set or not entry.acks.remaining:
                by_consumer.acknowledge_entries((entry,), now)
        consumer.arm_acks()
        return
    missing = [name for name in _ID_COLUMNS if name not in table.column_names]
    if missing:
        raise InvalidConfiguration(
            f"acknowledge_table needs the columns {', '.join(missing)}, or the very table that "
            "receive_table returned"
        )
    _acknowledge_by_columns(consumer, table)


def _settle_words(acks: EntryAcks, words: Sequence[int]) -> None:
    """Settle the messages whose bit is set: the rows of a partly acknowledged entry."""
    for index in range(len(acks.flags)):
        if index >> 6 < len(words) and words[index >> 6] >> (index & 63) & 1:
            acks.settle(index)


def _acknowledge_by_columns(consumer: AsyncConsumer, table: pa.Table) -> None:
    import numpy as np

    from geminga.ids import MessageId

    if table.num_rows == 0:
        return
    topics = [str(t) for t in table.column("topic").to_pylist()] if len(consumer.group.handles) > 1 else None
    ledgers = table.column("ledger_id").to_numpy()
    entries = table.column("entry_id").to_numpy()
    indexes = table.column("batch_index").fill_null(-1).to_numpy()
    changes = (np.diff(ledgers) != 0) | (np.diff(entries) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), table.num_rows]
    now = consumer.core.now()
    for start, end in itertools.pairwise(bounds):
        key = (int(ledgers[start]), int(entries[start]))
        for row in range(start, end):
            topic = next(iter(consumer.group.handles)) if topics is None else topics[row]
            handle = consumer.group.handles.get(topic)
            if handle is None:
                continue
            core = handle.consumer
            index = int(indexes[row])
            if index < 0 or core.acks.known_batch(key) is None:
                core.acknowledge_id(MessageId(-1, *key), now)
            else:
                core.acknowledge_id(MessageId(-1, *key, index), now)
    consumer.arm_acks()
