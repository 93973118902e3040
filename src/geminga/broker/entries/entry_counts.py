"""Message counts and sizes of a topic's entries: exact backlogs without reading entries.

A backlog in entries is imprecise, because an entry may be a batch of a thousand messages. So every topic
stores, for each of its ledgers, the messages and bytes of each entry. The backlog of a subscription is then a
difference of two sums, and an acknowledgement out of order looks up one entry.

Counts are sent with the publish command and stored in *blocks* of entries: in memory as two columns
(`columns`; a byte or two per entry), in the store as one delta per block under ``counts/<topic>\\0<ledger>``.
Counts of the entries behind the last block, a mebibyte at most, are in memory alone, and those entries are
read again after a restart; of a ledger that is only in offload storage every count is in blocks
(`EntryCounts.cover`). The totals of closed ledgers are under ``counts/<topic>``, so that a long backlog is
added up without its blocks. Counts are read at their first use, and unused ones are evicted (`CountsCache`):
an idle topic costs nothing.

A chunk of a large message counts as no message, except the last, which counts as the whole message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from geminga.broker.entries.columns import IntegerColumn
from geminga.broker.entries.entry_facts import backlog_count
from geminga.broker.entries.records import RecordReader, put_varint
from geminga.errors import StoreDamaged
from geminga.ledger.api import EntryStore
from geminga.ledger.damage import EntriesDamaged

BLOCK_ENTRIES = 512
BLOCK_BYTES = 1024 * 1024
"""A block is closed at the first of these limits: it bounds what is read again after a restart."""
TAIL_KEPT_ENTRIES = 32
"""Least number of a closed ledger's last entries that are stored as a block; fewer are read again."""
COUNTS_CACHE_BYTES = 64 * 1024 * 1024

Tally = tuple[int, int]
"""(messages, bytes) of some entries."""


class OffsetSet(Protocol):
    """Set of offsets (`delivery.ranges.RangeSet`)."""

    def bits(self, start: int, stop: int) -> int:
        """Return the elements of ``start <= offset < stop`` as bits, ``start`` the lowest."""


class CountedLedger(Protocol):
    """Ledger of the topic (`managed_ledger.Segment`)."""

    ledger_id: int
    base: int
    entries: int
    size_bytes: int


class CountsCache:
    """Ledgers with their blocks in memory; the oldest in the cache are evicted first.

    ``bytes_max`` bounds the memory of all topics' blocks together.
    """

    def __init__(self, bytes_max: int = COUNTS_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._held: OrderedDict[LedgerCounts, int] = OrderedDict()

    def keep(self, ledger: LedgerCounts, more_bytes: int) -> None:
        """Add the size of a ledger's new blocks, and evict others if needed."""
        self._held[ledger] = self._held.get(ledger, 0) + more_bytes
        self._bytes += more_bytes
        while self._bytes > self._bytes_max and len(self._held) > 1:
            oldest, size = self._held.popitem(last=False)
            self._bytes -= size
            oldest.release()

    def forget(self, ledger: LedgerCounts) -> None:
        self._bytes -= self._held.pop(ledger, 0)


@dataclass(slots=True, eq=False, repr=False)
class CountBlock:
    """Counts of consecutive entries; ``messages_before`` and ``bytes_before`` are sums of earlier entries."""

    first: int
    messages: IntegerColumn
    sizes: IntegerColumn
    messages_before: int
    bytes_before: int

    @property
    def end(self) -> int:
        return self.first + len(self.sizes)


class LedgerCounts:
    """Counts of one ledger: of its first ``counted`` entries, of which ``sealed`` are in blocks.

    Behind the blocks there is no column of messages while each entry has one message.
    """

    __slots__ = (
        "_blocks", "_cache", "_firsts", "_messages", "_open_bytes", "_owner", "_sizes", "_store", "in_memory",
        "ledger_id", "sealed", "sealed_bytes", "sealed_messages",
    )  # fmt: skip

    def __init__(self, store: EntryStore, owner: str, ledger_id: int, cache: CountsCache) -> None:
        self._store = store
        self.ledger_id = ledger_id
        self._owner = owner
        self._cache = cache
        self._blocks: list[CountBlock] = []
        self._firsts: list[int] = []
        self.in_memory = True
        self._messages: array[int] | None = None
        self._sizes = array("I")
        self._open_bytes = 0
        self.sealed = self.sealed_messages = self.sealed_bytes = 0

    @property
    def _key(self) -> str:
        return blocks_key(self._owner, self.ledger_id)

    # --- counting ---
    def append(self, messages: int, size: int) -> None:
        """Add the next entry."""
        sizes = self._sizes
        if messages != 1 and self._messages is None:
            self._messages = _ones(len(sizes))
        if self._messages is not None:
            self._messages.append(messages)
        sizes.append(size)
        self._open_bytes += size
        if len(sizes) >= BLOCK_ENTRIES or self._open_bytes >= BLOCK_BYTES:
            self.seal()

    def append_run(self, sizes: Sequence[int], size: int) -> None:
        """Add entries of one message each, with their sizes and total size."""
        if self._messages is not None:
            self._messages.extend(repeat(1, len(sizes)))
        self._sizes.extend(sizes)
        self._open_bytes += size
        if len(self._sizes) >= BLOCK_ENTRIES or self._open_bytes >= BLOCK_BYTES:
            self.seal()

    @property
    def counted(self) -> int:
        return self.sealed + len(self._sizes)

    @property
    def total_messages(self) -> int:
        return self.sealed_messages + self._open_messages(len(self._sizes))

    def _open_messages(self, entries: int) -> int:
        """Return the messages of the first ``entries`` entries behind the blocks."""
        return entries if self._messages is None else sum(self._messages[:entries])

    @property
    def total_bytes(self) -> int:
        return self.sealed_bytes + self._open_bytes

    def seal(self) -> None:
        """Store the entries since the last block as a block."""
        sizes = IntegerColumn(self._sizes)
        messages = IntegerColumn(_ones(len(sizes)) if self._messages is None else self._messages)
        record = bytearray()
        put_varint(record, self.sealed)
        messages.encode(record)
        sizes.encode(record)
        self._take(messages, sizes)
        self._messages = None
        del self._sizes[:]
        self._open_bytes = 0
        self._store.keys.merge(self._key, bytes(record))

    def _take(self, messages: IntegerColumn, sizes: IntegerColumn) -> None:
        block = CountBlock(self.sealed, messages, sizes, self.sealed_messages, self.sealed_bytes)
        if self.in_memory:
            self._blocks.append(block)
            self._firsts.append(block.first)
            self._cache.keep(self, messages.held_bytes + sizes.held_bytes)
        self.sealed += len(sizes)
        self.sealed_messages += messages.sum(0, len(messages))
        self.sealed_bytes += sizes.sum(0, len(sizes))

    def keep_tail(self) -> None:
        """Store the tail of a closed ledger as a block if it is long enough."""
        if len(self._sizes) >= TAIL_KEPT_ENTRIES:
            self.seal()

    def restore(self) -> bool:
        """Load the blocks into memory; False if some are missing in the store (damage)."""
        if not self.in_memory:
            sealed = self.sealed
            self.load(sealed)
            return self.sealed == sealed
        return True

    def load(self, entries: int) -> None:
        """Load the stored blocks of a ledger with that number of entries."""
        self._blocks, self._firsts, self.in_memory = [], [], True
        self.sealed = self.sealed_messages = self.sealed_bytes = 0
        value = self._store.keys.get(self._key)
        for part in () if value is None else (value.base, *value.deltas):
            try:
                self._read(RecordReader(part, self._key), entries)
            except StoreDamaged:
                # The following blocks have no known index; the entries are counted again.
                break

    def _read(self, reader: RecordReader, entries: int) -> None:
        while reader:
            first = reader.varint()
            messages, sizes = IntegerColumn.decode(reader), IntegerColumn.decode(reader)
            if first != self.sealed or len(messages) != len(sizes) or first + len(sizes) > entries:
                raise reader.damaged(f"a block at {first} where {self.sealed} is expected")
            self._take(messages, sizes)

    def release(self) -> None:
        """Drop the blocks from memory; `restore` reads them again."""
        self._blocks, self._firsts, self.in_memory = [], [], False

    # --- answers ---
    def _block(self, entry: int) -> CountBlock:
        return self._blocks[bisect_right(self._firsts, entry) - 1]

    def of(self, entry: int) -> Tally:
        """Return the messages and bytes of one counted entry."""
        if entry >= self.sealed:
            index = entry - self.sealed
            return 1 if self._messages is None else self._messages[index], self._sizes[index]
        block = self._block(entry)
        index = entry - block.first
        return block.messages[index], block.sizes[index]

    def singles(self, start: int, stop: int) -> int:
        """Like `EntryCounts.singles`, within one block."""
        if start >= self.sealed:
            if self._messages is None:
                return max(0, min(stop, self.counted) - start)
            held = self._messages[start - self.sealed : stop - self.sealed]
            return len(held) if held.count(1) == len(held) else 0
        block = self._block(start)
        stop = min(stop, block.end)
        return stop - start if block.messages.all_are(1, start - block.first, stop - block.first) else 0

    def below(self, entry: int) -> Tally:
        """Return the messages and bytes of the entries below ``entry``."""
        if entry == self.counted:
            return self.total_messages, self.total_bytes
        if entry >= self.sealed:
            index = entry - self.sealed
            return (
                self.sealed_messages + self._open_messages(index),
                self.sealed_bytes + sum(self._sizes[:index]),
            )
        block = self._block(entry)
        index = entry - block.first
        return (
            block.messages_before + block.messages.sum(0, index),
            block.bytes_before + block.sizes.sum(0, index),
        )

    def between(self, start: int, stop: int) -> Tally:
        """Return the messages and bytes of ``start <= entry < stop``; fast for few entries."""
        if stop - start == 1:
            return self.of(start)
        if start < self.sealed:
            block = self._block(start)
            if stop <= block.end:
                low, high = start - block.first, stop - block.first
                return block.messages.sum(low, high), block.sizes.sum(low, high)
        messages, size = self.below(stop)
        messages_before, size_before = self.below(start)
        return messages - messages_before, size - size_before

    def held(self, offsets: OffsetSet, base: int, start: int, stop: int) -> Tally:
        """Return the counts of ``start <= entry < stop`` in a set; ``base`` is the ledger's offset."""
        messages = size = 0
        while start < min(stop, self.sealed):
            block = self._block(start)
            end = min(stop, block.end)
            bits = offsets.bits(base + start, base + end) << (start - block.first)
            messages += block.messages.sum_where(bits)
            size += block.sizes.sum_where(bits)
            start = end
        if start < stop:
            bits = offsets.bits(base + start, base + stop) << (start - self.sealed)
            messages += (
                bits.bit_count() if self._messages is None else IntegerColumn(self._messages).sum_where(bits)
            )
            size += IntegerColumn(self._sizes).sum_where(bits)
        return messages, size


def _ones(count: int) -> array[int]:
    return array("I", (1,)) * count


class LedgerTotals:
    """Messages and bytes of the closed ledgers of a topic, as stored. Read when they are first needed."""

    __slots__ = ("_known", "_owner", "_store")

    def __init__(self, store: EntryStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._known: dict[int, Tally] | None = None

    def of(self, ledger_id: int) -> Tally | None:
        """Return the totals of a ledger, None if they are not stored."""
        return self._all().get(ledger_id)

    def add(self, counts: LedgerCounts) -> None:
        """Store the totals of a ledger that was closed and counted."""
        record = bytearray()
        _put_total(record, counts.ledger_id, counts.total_messages, counts.total_bytes)
        self._all()[counts.ledger_id] = counts.total_messages, counts.total_bytes
        self._store.keys.merge(totals_key(self._owner), bytes(record))

    def remove(self, ledger_ids: Iterable[int]) -> None:
        """Remove the totals of deleted ledgers."""
        known = self._all()
        gone = [ledger_id for ledger_id in ledger_ids if known.pop(ledger_id, None) is not None]
        if not gone:
            return
        record = bytearray()
        for ledger_id, (messages, size) in known.items():
            _put_total(record, ledger_id, messages, size)
        if known:
            self._store.keys.put(totals_key(self._owner), bytes(record))
        else:
            self._store.keys.delete(totals_key(self._owner))

    def _all(self) -> dict[int, Tally]:
        known = self._known
        if known is None:
            known = self._known = {}
            value = self._store.keys.get(totals_key(self._owner))
            for part in () if value is None else (value.base, *value.deltas):
                reader = RecordReader(part, f"message counts of {self._owner}")
                try:
                    while reader:
                        ledger_id = reader.varint()
                        known[ledger_id] = reader.varint(), reader.varint()
                except StoreDamaged:
                    continue  # they can be recomputed from the blocks and the entries
        return known


class EntryCounts:
    """Counts of a topic. ``ledgers`` and ``bases`` are the topic's own shared lists, oldest first."""

    __slots__ = (
        "_bases", "_cache", "_current", "_known", "_ledgers", "_owner", "_prefixes", "_store", "_totals",
    )  # fmt: skip

    def __init__(
        self,
        store: EntryStore,
        owner: str,
        cache: CountsCache,
        ledgers: Sequence[CountedLedger],
        bases: Sequence[int],
    ) -> None:
        self._store = store
        self._owner = owner
        self._cache = cache
        self._ledgers = ledgers
        self._bases = bases
        self._known: dict[int, LedgerCounts] = {}
        self._current: LedgerCounts | None = None
        self._totals = LedgerTotals(store, owner)
        self._prefixes: list[Tally] = [(0, 0)]
        """Sums of the ledgers before the one at each index, from the oldest ledger on."""

    # --- changes of the ledger ---
    def append(self, messages: int, size: int) -> None:
        """Add an entry to the newest ledger."""
        assert self._current is not None
        self._current.append(messages, size)

    def append_run(self, sizes: Sequence[int], size: int) -> None:
        """Add entries of one message each, with their sizes and total size, to the newest ledger."""
        assert self._current is not None
        self._current.append_run(sizes, size)

    def roll(self, ledger_id: int) -> None:
        """Begin a new ledger: the previous one will not change any more."""
        current = self._current
        if current is not None:
            if current.counted:
                current.keep_tail()
                self._totals.add(current)
            self._known[current.ledger_id] = current
        self._current = LedgerCounts(self._store, self._owner, ledger_id, self._cache)

    def _find(self, ledger_id: int) -> LedgerCounts | None:
        """Return the ledger's counts, if it is the newest or was used."""
        current = self._current
        if current is not None and current.ledger_id == ledger_id:
            return current
        return self._known.get(ledger_id)

    def forget(self, ledgers: Sequence[CountedLedger]) -> None:
        """Drop the counts of deleted ledgers, which were removed from the shared lists."""
        self._prefixes = self._prefixes[len(ledgers) :] or [(0, 0)]
        for ledger in ledgers:
            counts = self._find(ledger.ledger_id)
            if counts is not None:
                self._cache.forget(counts)
                if counts is self._current:
                    self._current = None
                else:
                    del self._known[ledger.ledger_id]
            if self._has_blocks(ledger):
                self._store.keys.delete(blocks_key(self._owner, ledger.ledger_id))
        self._totals.remove(ledger.ledger_id for ledger in ledgers)

    def delete_all(self, ledgers: Sequence[CountedLedger]) -> None:
        """Delete the counts of a topic that is being deleted."""
        self.forget(ledgers)
        self._store.keys.delete(totals_key(self._owner))

    def cover(self, ledger: CountedLedger) -> None:
        """Store the counts of all entries of a closed ledger before it is offloaded. Raises `StoreError`."""
        counts = self._counts(bisect_right(self._bases, ledger.base) - 1)
        if counts.sealed < counts.counted:
            counts.seal()

    # --- answers ---
    def of(self, offset: int) -> Tally:
        """Return the messages and bytes of an entry; (0, 0) if it does not exist."""
        index = bisect_right(self._bases, offset) - 1
        if index < 0:
            return 0, 0
        ledger, entry = self._ledgers[index], offset - self._bases[index]
        counts = self._find(ledger.ledger_id)
        if counts is None or not counts.in_memory or counts.counted < ledger.entries:
            counts = self._counts(index)
        return counts.of(entry) if entry < counts.counted else (0, 0)

    def singles(self, start: int, stop: int) -> int:
        """Return the number of entries from ``start`` on, before ``stop``, that hold a message each.

        Fewer, or 0, if the counts are not in memory: callers use it for optimization only.
        """
        index = bisect_right(self._bases, start) - 1
        if index < 0:
            return 0
        base = self._bases[index]
        counts = self._find(self._ledgers[index].ledger_id)
        if counts is None or not counts.in_memory:
            return 0
        return counts.singles(start - base, min(stop - base, counts.counted))

    def between(self, start: int, stop: int) -> Tally:
        """Return the messages and bytes of the entries at ``start <= offset < stop``."""
        if stop <= start or not self._bases:
            return 0, 0
        bases = self._bases
        first, last = max(0, bisect_right(bases, start) - 1), max(0, bisect_right(bases, stop) - 1)
        if first == last:
            counts, base = self._counts(first), bases[first]
            low, high = (min(max(offset - base, 0), counts.counted) for offset in (start, stop))
            return counts.between(low, high)
        messages, size = self._below(last, stop)
        messages_before, size_before = self._below(first, start)
        return messages - messages_before, size - size_before

    def held(self, offsets: OffsetSet, start: int, stop: int) -> Tally:
        """Return the messages and bytes of the entries at ``start <= offset < stop`` that are in a set."""
        messages = size = 0
        index = max(0, bisect_right(self._bases, start) - 1)
        while index < len(self._bases) and self._bases[index] < stop:
            counts, base = self._counts(index), self._bases[index]
            low, high = max(0, start - base), min(stop - base, counts.counted)
            own_messages, own_size = counts.held(offsets, base, low, high) if low < high else (0, 0)
            messages, size, index = messages + own_messages, size + own_size, index + 1
        return messages, size

    def _below(self, index: int, offset: int) -> Tally:
        """Return the sums below an offset of the ledger at ``index``, from the oldest ledger on."""
        messages, size = self._prefix(index)
        within = offset - self._bases[index]
        if within <= 0:
            return messages, size
        counts = self._counts(index)
        own_messages, own_size = counts.below(min(within, counts.counted))
        return messages + own_messages, size + own_size

    def _prefix(self, index: int) -> Tally:
        """Return the sums of the ledgers before the one at ``index``, from the oldest ledger on."""
        prefixes = self._prefixes
        while len(prefixes) <= index:
            messages, size = self._total(len(prefixes) - 1)
            prefixes.append((prefixes[-1][0] + messages, prefixes[-1][1] + size))
        return prefixes[index]

    def _total(self, index: int) -> Tally:
        ledger = self._ledgers[index]
        found = self._totals.of(ledger.ledger_id)
        if found is None:
            counts = self._counts(index)
            found = counts.total_messages, counts.total_bytes
        return found

    # --- ledgers and their blocks ---
    def _counts(self, index: int) -> LedgerCounts:
        """Return the complete counts of the ledger at ``index``."""
        ledger = self._ledgers[index]
        counts = self._find(ledger.ledger_id)
        if counts is None:
            counts = self._loaded(ledger)
        elif not counts.restore():
            counts = self._start_over(counts)
        while counts.counted < ledger.entries:
            self._read_some(ledger, counts)
        return counts

    def _loaded(self, ledger: CountedLedger) -> LedgerCounts:
        counts = LedgerCounts(self._store, self._owner, ledger.ledger_id, self._cache)
        self._known[ledger.ledger_id] = counts
        if self._has_blocks(ledger):
            counts.load(ledger.entries)
        return counts

    def _has_blocks(self, ledger: CountedLedger) -> bool:
        """Return whether blocks of a ledger may be in the store: always if it is offloaded, see `cover`."""
        if has_blocks(ledger.entries, ledger.size_bytes):
            return True
        tier = self._store.tier
        return tier is not None and tier.record(ledger.ledger_id) is not None

    def _start_over(self, lost: LedgerCounts) -> LedgerCounts:
        """Recount a ledger whose blocks were damaged, by reading its entries."""
        ledger_id = lost.ledger_id
        self._cache.forget(lost)
        self._store.keys.delete(blocks_key(self._owner, ledger_id))
        counts = LedgerCounts(self._store, self._owner, ledger_id, self._cache)
        if lost is self._current:
            self._current = counts
        else:
            self._known[ledger_id] = counts
        return counts

    def _read_some(self, ledger: CountedLedger, counts: LedgerCounts) -> None:
        """Count a block's worth of entries by reading them; a damaged one counts as a message of no bytes."""
        entries: list[bytes] = []
        damaged_to = counts.counted + 1
        try:
            entries = self._store.read(
                ledger.ledger_id, counts.counted, entries_max=BLOCK_ENTRIES, bytes_max=BLOCK_BYTES
            )
        except StoreDamaged as error:
            damage = error.damage if isinstance(error, EntriesDamaged) else None
            if damage is not None and damage.last_entry_id is not None:
                damaged_to = max(damaged_to, damage.last_entry_id + 1)  # a lost file may hold a million
        if not entries:
            for _ in range(min(damaged_to, ledger.entries) - counts.counted):
                counts.append(1, 0)
        for entry in entries[: ledger.entries - counts.counted]:
            counts.append(backlog_count(entry), len(entry))
        if counts.counted == ledger.entries and counts is not self._current:
            counts.keep_tail()
            self._totals.add(counts)


def totals_key(owner: str) -> str:
    return f"counts/{owner}"


def blocks_key(owner: str, ledger_id: int) -> str:
    return f"counts/{owner}\x00{ledger_id}"


def has_blocks(entries: int, size_bytes: int) -> bool:
    """Return whether blocks of a ledger may be in the store."""
    return entries >= TAIL_KEPT_ENTRIES or size_bytes >= BLOCK_BYTES


def _put_total(record: bytearray, ledger_id: int, messages: int, size: int) -> None:
    put_varint(record, ledger_id)
    put_varint(record, messages)
    put_varint(record, size)
