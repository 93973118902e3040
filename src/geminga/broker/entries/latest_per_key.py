"""Selection of compaction: the newest message of each key.

The rules are Apache Pulsar's. The newest message of a key stays, unless its payload is empty. Messages
without a key are removed, unless ``retain_null_key``. Unreadable entries stay whole: encrypted or damaged
batches; so do all chunks of large messages. A single encrypted message has a readable key and is treated as
any other. Removed messages of a batch are replaced by empty ones with ``compacted_out``, so that the others
keep their indexes (`geminga.broker.entries.batch_rewrite`). Slow work is a generator of steps, which the
caller runs.

Messages are numbered in their order, from 0; a bit for each holds whether it stays.
"""

import logging
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from geminga.broker.entries.batch_rewrite import STEP_MESSAGES, key_bytes, opened
from geminga.broker.runtime.cooperative import Steps
from geminga.errors import CorruptPayload, StoreError
from geminga.wire.metadata import parse_entry, peek_entry

log = logging.getLogger("geminga.broker")

_KEY_OVERHEAD_BYTES = 150
"""Approximate memory of a key besides its own bytes."""


class TooManyKeys(StoreError):
    """The keys of a topic do not fit into the memory for them."""


class KeptMessages(NamedTuple):
    """Kept messages of an entry: a bit per message, the number of messages, and the number of kept ones."""

    bits: int
    messages: int
    staying: int


class LatestPerKey:
    """Selection of messages: `note` every entry, `end`, then `kept` every entry."""

    def __init__(self, *, bytes_max: int, retain_null_key: bool) -> None:
        """``bytes_max`` is the approximate memory limit of keys."""
        self._bytes_max = bytes_max
        self._retain_null_key = retain_null_key
        self._newest: dict[bytes, int] = {}
        self._newest_bytes = 0
        self._bits = bytearray()
        self._ordinal = 0
        self.messages = 0
        """Number of messages, after `end`."""
        self._runs, self._repeats = array("I"), array("Q")
        """Runs of consecutive entries with equal message counts: messages per entry, and entries."""
        self._run = self._run_entry = 0
        self._deletes = True
        """False behind the first entry that stays whole and may have any key: from there on a key without
        value stays, or its deleted value would reappear."""
        self.closed = 0
        """Unreadable entries: encrypted batches, and damaged entries."""

    # --- finding out ---
    def note(self, entry: bytes) -> Steps[None] | None:
        """Add the next entry; return its remaining steps, to run before the next entry.

        Raises `TooManyKeys`, as the steps do.
        """
        ordinal = self._ordinal
        try:
            head = peek_entry(entry)
            if head.num_chunks > 1:
                self._keep_whole(ordinal)
            elif head.is_batch and head.marker_type is None:
                if not head.encrypted:
                    return self._note_batch(ordinal, entry)
                self._keep_unreadable(ordinal)
            elif head.marker_type is None:
                self._note_single(ordinal, entry)
        except CorruptPayload as error:
            log.debug("cannot parse an entry: %s", error)
            self._keep_unreadable(ordinal)
        self._noted(1)
        return None

    def _noted(self, count: int) -> None:
        """Record an entry with ``count`` messages."""
        self._ordinal += count
        runs = self._runs
        if runs and runs[-1] == count:
            self._repeats[-1] += 1
        else:
            runs.append(count)
            self._repeats.append(1)
        if self._newest_bytes > self._bytes_max:
            raise TooManyKeys(
                f"the keys take more than {self._bytes_max} bytes: raise compaction_memory_bytes_max"
            )

    def _note_single(self, ordinal: int, entry: bytes) -> None:
        parsed = parse_entry(entry, verify=False)
        metadata = parsed.metadata
        if metadata.HasField("partition_key"):
            size = len(parsed.payload)
            if metadata.HasField("uncompressed_size"):
                size = metadata.uncompressed_size
            self._put(key_bytes(metadata.partition_key), ordinal, has_value=size > 0)
        elif self._retain_null_key:
            self._keep(ordinal)

    def _note_batch(self, ordinal: int, entry: bytes) -> Steps[None]:
        batch = yield from opened(entry)
        if batch is None:
            self._keep_unreadable(ordinal)
            count = 1
        else:
            count = len(batch.keys)
            yield from self._put_all(ordinal, batch.keys, batch.is_emptied)
            if self._retain_null_key:
                for number, index in enumerate(batch.unkeyed, 1):
                    self._keep(ordinal + index)
                    if not number % STEP_MESSAGES:
                        yield
        self._noted(count)

    def _put_all(self, ordinal: int, keys: Sequence[bytes | None], is_emptied: Sequence[int]) -> Steps[None]:
        """Record consecutive messages as the newest of their keys; one without a value removes its key."""
        newest, size, deletes = self._newest, 0, self._deletes
        for first in range(0, len(keys), STEP_MESSAGES):
            if first:
                yield
            for index, key in enumerate(keys[first : first + STEP_MESSAGES], first):
                if key is None:
                    continue
                if deletes and is_emptied[index]:
                    if newest.pop(key, None) is not None:
                        size -= len(key) + _KEY_OVERHEAD_BYTES
                    continue
                if key not in newest:
                    size += len(key) + _KEY_OVERHEAD_BYTES
                newest[key] = ordinal + index
        self._newest_bytes += size

    def _put(self, key: bytes, ordinal: int, *, has_value: bool) -> None:
        """Run `_put_all` for one message."""
        for _ in self._put_all(ordinal, (key,), (not has_value,)):
            raise AssertionError("one message is one step")

    def _keep_whole(self, ordinal: int) -> None:
        self._keep(ordinal)
        self._deletes = False

    def _keep_unreadable(self, ordinal: int) -> None:
        self._keep_whole(ordinal)
        self.closed += 1

    def _keep(self, ordinal: int) -> None:
        self._reach(ordinal)
        self._bits[ordinal >> 3] |= 1 << (ordinal & 7)

    def _reach(self, ordinal: int) -> None:
        """Enlarge the bit set, so that it has the bit of ``ordinal``."""
        missing = (ordinal >> 3) + 1 - len(self._bits)
        if missing > 0:
            self._bits.extend(bytes(max(4096, missing, len(self._bits) // 8)))

    def end(self) -> Steps[None]:
        """Set the bits of the newest messages after all entries were added, and free the keys."""
        if self._ordinal:
            self._reach(self._ordinal - 1)
        bits, newest = self._bits, self._newest
        while newest:
            for _ in range(min(len(newest), STEP_MESSAGES)):
                ordinal = newest.popitem()[1]
                bits[ordinal >> 3] |= 1 << (ordinal & 7)
            yield
        self.messages, self._ordinal = self._ordinal, 0

    # --- result ---
    @property
    def is_over(self) -> bool:
        """Whether `kept` was called for every entry."""
        return self._ordinal >= self.messages

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
