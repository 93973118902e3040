"""Selection of compaction: the newest message of each key.

The rules are Apache Pulsar's. The newest message of a key stays, unless its payload is empty. Messages
without a key are removed, unless ``retain_null_key``. Unreadable entries stay whole: encrypted or damaged
batches. A single encrypted message has a readable key and is treated as any other. Removed messages of a
batch are replaced by empty ones with ``compacted_out``, so that the others keep their indexes
(`geminga.broker.batch_rewrite`). Slow work is a generator of steps, which the caller runs.

Messages are numbered in their order, from 0; a bit for each holds whether it stays. Keys are in memory only
during the passes, within a limit: each further pass over the entries handles another share of the keys by
their hashes.
"""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from geminga.broker.batch_rewrite import STEP_MESSAGES, key_bytes, opened
from geminga.broker.cooperative import Steps
from geminga.errors import CorruptPayload
from geminga.wire.metadata import MAGIC_CHECKSUM, EntryHead, parse_entry, peek_entry

log = logging.getLogger("geminga.broker")

_KEY_OVERHEAD_BYTES = 150
"""Approximate memory of a key besides its own bytes."""
OPEN_CHUNKS_BYTES_MAX: Final = 16 * 1024 * 1024
"""Memory limit of incomplete chunked messages."""
_CHUNKED_OVERHEAD_BYTES = 400
_CHUNK_BYTES = 48
"""Approximate memory of a chunked message, and of each of its chunks."""
_SIZE = Struct(">I")
_CHECKED = MAGIC_CHECKSUM.to_bytes(2, "big")
_REPLACED = "\N{REPLACEMENT CHARACTER}"
"""Replacement for invalid UTF-8 in a key's text: such keys are distinguished by their bytes."""
_NOTHING_BYTES_MAX = 40
"""Largest encoding of an empty payload by any codec, encryption included."""
_TABLES = 64
"""Number of hash tables for keys: growing or freeing a single large one would block too long."""
_TABLE_SHIFT = sys.hash_info.width - 6
"""Right shift of a key's hash for the table's index, which may be negative: Python then indexes from the end.
Lower bits are used within a table, and to split keys among passes."""


class KeptMessages(NamedTuple):
    """Kept messages of an entry: a bit per message, the number of messages, and the number of kept ones."""

    bits: int
    messages: int
    staying: int


class LatestPerKey:
    """Selection of messages: `note` every entry, `next_pass` until it is False, then `kept` every entry."""

    def __init__(self, *, bytes_max: int, retain_null_key: bool) -> None:
        """``bytes_max`` is the approximate memory limit of keys."""
        self._bytes_max = bytes_max
        self._retain_null_key = retain_null_key
        self._tables: list[dict[bytes, int]] = [{} for _ in range(_TABLES)]
        """The newest message of each key, by the key's hash."""
        self._newest_bytes = 0
        self._part, self._parts = 0, 1
        self._left: list[tuple[int, int]] = []
        self._bits = bytearray()
        self._ordinal = 0
        self._total = 0
        self._runs, self._repeats = array("I"), array("Q")
        """Runs of consecutive entries with equal message counts: messages per entry, and entries."""
        self._run = self._run_entry = 0
        self._open_chunks: dict[tuple[str, str], list[int]] = {}
        self._open_bytes = 0
        self._has_forgotten = False
        """Whether first chunks of messages were dropped."""
        self._chunks: dict[int, tuple[bytes, list[int]]] = {}
        """By the last chunk, the message's key and all of its chunks."""
        self._chunks_bytes = 0
        self.keys = 0
        self.passes = 1
        self._closed_from: int | None = None
        """The first unreadable message, which may have any key. After it, a key without value stays, or its
        deleted value would reappear."""
        self.closed = 0
        """Unreadable entries: encrypted batches, and damaged entries."""

    # --- finding out ---
    def note(self, entry: bytes) -> Steps[None] | None:
        """Add the next entry of the pass; return its remaining steps, to run before the next entry."""
        ordinal = self._ordinal
        try:
            head = peek_entry(entry)
            if head.num_chunks > 1:
                self._note_chunk(ordinal, head, entry)
            elif head.is_batch and head.marker_type is None:
                if not head.encrypted:
                    return self._note_batch(ordinal, entry)
                self._keep_whole(ordinal)
            elif head.marker_type is None:
                self._note_single(ordinal, head, entry)
        except CorruptPayload as error:
            log.debug("cannot parse an entry: %s", error)
            self._keep_whole(ordinal)
        return self._noted(1)

    def _noted(self, count: int) -> Steps[None] | None:
        """Record an entry with ``count`` messages."""
        self._ordinal += count
        if self.passes == 1:
            runs = self._runs
            if runs and runs[-1] == count:
                self._repeats[-1] += 1
            else:
                runs.append(count)
                self._repeats.append(1)
        if self._newest_bytes + self._chunks_bytes > self._bytes_max and sum(map(len, self._tables)) > 1:
            return self._share()
        return None

    def _note_single(self, ordinal: int, head: EntryHead, entry: bytes) -> None:
        key = _key_of(head, entry)
        if key is not None:
            self._put(key, ordinal, has_value=_has_value(entry))
        elif self._retain_null_key:
            self._keep(ordinal)

    def _note_batch(self, ordinal: int, entry: bytes) -> Steps[None]:
        batch = yield from opened(entry)
        if batch is None:
            self._keep_whole(ordinal)
            count = 1
        else:
            count = len(batch.keys)
            yield from self._put_all(ordinal, batch.keys, batch.is_emptied)
            if self._retain_null_key:
                for number, index in enumerate(batch.unkeyed, 1):
                    self._keep(ordinal + index)
                    if not number % STEP_MESSAGES:
                        yield
        steps = self._noted(count)
        if steps is not None:
            yield from steps

    def _put_all(self, ordinal: int, keys: Sequence[bytes | None], is_emptied: Sequence[int]) -> Steps[None]:
        """Run `_put` for consecutive messages."""
        tables, shift, part, parts = self._tables, _TABLE_SHIFT, self._part, self._parts
        is_parted, size = parts > 1, 0
        deletes = self._closed_from is None or ordinal < self._closed_from
        for first in range(0, len(keys), STEP_MESSAGES):
            if first:
                yield
            for index, key in enumerate(keys[first : first + STEP_MESSAGES], first):
                if key is None:
                    continue
                hashed = hash(key)
                if is_parted and hashed % parts != part:
                    continue
                table = tables[hashed >> shift]
                if deletes and is_emptied[index]:
                    if table.pop(key, None) is not None:
                        size -= len(key) + _KEY_OVERHEAD_BYTES
                    continue
                if key not in table:
                    size += len(key) + _KEY_OVERHEAD_BYTES
                table[key] = ordinal + index
        self._newest_bytes += size

    def _put(self, key: bytes, ordinal: int, *, has_value: bool) -> None:
        """Record a message as the newest of its key; one without a value removes the key."""
        for _ in self._put_all(ordinal, (key,), (not has_value,)):
            raise AssertionError("one message is one step")

    def _note_chunk(self, ordinal: int, head: EntryHead, entry: bytes) -> None:
        """Record a chunk. A chunked message counts as one with its last chunk; all its chunks stay, or none.

        Chunks that clients skip do not stay, and are not the newest of a key: repeated chunks, and those with
        a missing chunk before them.
        """
        name = head.producer_name, head.uuid
        chunks = self._open_chunks.pop(name, None)
        if chunks is not None:
            self._open_bytes -= _open_size(name, chunks)
        if not head.chunk_id:
            chunks = []
        elif chunks is None:
            if self._has_forgotten:
                self._keep_whole(ordinal)  # its beginning may be among those that are not known any more
            return
        if head.chunk_id > len(chunks):
            return
        is_next = head.chunk_id == len(chunks)
        if is_next:
            chunks.append(ordinal)
        if not is_next or len(chunks) < head.num_chunks:
            self._open_chunks[name] = chunks
            self._open_bytes += _open_size(name, chunks)
            while self._open_bytes > OPEN_CHUNKS_BYTES_MAX:
                # The chunks of the oldest stay, and its remaining ones may follow.
                oldest = next(iter(self._open_chunks))
                self._open_bytes -= _open_size(oldest, self._open_chunks[oldest])
                self._keep_all(self._open_chunks.pop(oldest))
                self._has_forgotten = True
            return
        key = _key_of(head, entry)
        if key is not None:
            self._put(key, ordinal, has_value=True)
            if self._newest(key) == ordinal:
                self._chunks[ordinal] = key, chunks
                self._chunks_bytes += len(key) + _chunked_size(chunks)
        elif self._retain_null_key:
            self._keep_all(chunks)

    def _newest(self, key: bytes) -> int | None:
        return self._tables[hash(key) >> _TABLE_SHIFT].get(key)

    def _share(self) -> Steps[None]:
        """Reduce memory: drop old chunks, or move half of this pass's share of keys to another pass."""
        yield from self._forget_chunks()
        if self._newest_bytes + self._chunks_bytes <= self._bytes_max // 2:
            return
        part, parts = self._part, self._parts * 2
        self._left.append((part + self._parts, parts))
        self._parts = parts
        self._newest_bytes = 0
        for place, table in enumerate(self._tables):
            yield
            kept = {key: ordinal for key, ordinal in table.items() if hash(key) % parts == part}
            self._tables[place] = kept
            self._newest_bytes += sum(map(len, kept)) + len(kept) * _KEY_OVERHEAD_BYTES
        yield from self._forget_chunks()

    def _forget_chunks(self) -> Steps[None]:
        """Drop the chunks of messages that are not the newest of their keys."""
        for number, (last, (key, chunks)) in enumerate(list(self._chunks.items()), 1):
            if self._newest(key) != last:
                del self._chunks[last]
                self._chunks_bytes -= len(key) + _chunked_size(chunks)
            if not number % STEP_MESSAGES:
                yield

    def _keep_whole(self, ordinal: int) -> None:
        self._keep(ordinal)
        if self.passes == 1:
            self.closed += 1
            if self._closed_from is None:
                self._closed_from = ordinal

    def _keep_all(self, ordinals: Sequence[int]) -> None:
        for ordinal in ordinals:
            self._keep(ordinal)

    def _keep(self, ordinal: int) -> None:
        self._reach(ordinal)
        self._bits[ordinal >> 3] |= 1 << (ordinal & 7)

    def _reach(self, ordinal: int) -> None:
        """Extend the bits to ``ordinal``."""
        missing = (ordinal >> 3) + 1 - len(self._bits)
        if missing > 0:
            self._bits.extend(bytes(max(4096, missing, len(self._bits) // 8)))

    def next_pass(self) -> Steps[bool]:
        """End the pass; return whether another pass over the same entries is needed."""
        yield from self._keep_newest()
        for chunks in self._open_chunks.values():
            self._keep_all(chunks)  # its remaining chunks may follow
        self._open_chunks, self._has_forgotten = {}, False
        self._newest_bytes = self._open_bytes = self._chunks_bytes = 0
        self._total = self._ordinal
        self._ordinal = 0
        if self._left:
            self._part, self._parts = self._left.pop()
            self.passes += 1
            return True
        return False

    def _keep_newest(self) -> Steps[None]:
        """Set the bits of the newest messages, and free the keys."""
        if self._ordinal:
            self._reach(self._ordinal - 1)
        bits = self._bits
        for table in self._tables:
            self.keys += len(table)
            while table:
                for _ in range(min(len(table), STEP_MESSAGES)):
                    ordinal = table.popitem()[1]
                    bits[ordinal >> 3] |= 1 << (ordinal & 7)
                yield
            table.clear()
        while self._chunks:
            for _ in range(min(len(self._chunks), STEP_MESSAGES)):
                last, (_key, chunks) = self._chunks.popitem()
                if bits[last >> 3] >> (last & 7) & 1:
                    self._keep_all(chunks)
            yield

    # --- what it was ---
    @property
    def messages(self) -> int:
        """Number of messages in a pass."""
        return self._total

    @property
    def is_over(self) -> bool:
        """Whether `kept` was called for every entry."""
        return self._ordinal >= self._total

    def kept(self) -> KeptMessages:
        """Return the kept messages of the next entry; `rebatched` rewrites it if only some stay."""
        if self._run_entry == self._repeats[self._run]:
            self._run, self._run_entry = self._run + 1, 0
        self._run_entry += 1
        count, ordinal = self._runs[self._run], self._ordinal
        self._ordinal += count
        first = ordinal >> 3
        word = int.from_bytes(self._bits[first : (ordinal + count + 7) >> 3], "little")
        kept = word >> (ordinal & 7) & ((1 << count) - 1)
        return KeptMessages(kept, count, kept.bit_count())


def _chunked_size(chunks: Sequence[int]) -> int:
    return _CHUNKED_OVERHEAD_BYTES + len(chunks) * _CHUNK_BYTES


def _open_size(name: tuple[str, str], chunks: Sequence[int]) -> int:
    return len(name[0]) + len(name[1]) + _chunked_size(chunks)


def _key_of(head: EntryHead, entry: bytes) -> bytes | None:
    """Return the key in an entry's metadata, in wire format. Raises `CorruptPayload`."""
    key = head.partition_key
    if key is None:
        return None
    return key_bytes(parse_entry(entry, verify=False).metadata.partition_key if _REPLACED in key else key)


def _has_value(entry: bytes) -> bool:
    """Return whether a single message's payload is not empty, by the size in its metadata.

    Raises `CorruptPayload`.
    """
    is_checked = len(entry) > 10 and entry[:2] == _CHECKED
    if is_checked and len(entry) - 10 - _SIZE.unpack_from(entry, 6)[0] > _NOTHING_BYTES_MAX:
        return True
    parsed = parse_entry(entry, verify=False)
    metadata = parsed.metadata
    size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(parsed.payload)
    return size > 0
