"""What compaction keeps of entries: the messages that are the newest of their keys.

The rules are Apache Pulsar's. The newest message of a key stays, and none when its payload is empty.
Messages without a key go, unless ``retain_null_key``. What cannot be looked into stays whole: a batch that is
encrypted, or cannot be read. A single encrypted message has its key outside and is treated as any other. In a
batch the messages that go leave an empty one with ``compacted_out``, so that the others keep their indexes.
A few kilobytes may hold a million messages: what takes long is done in steps, which whoever calls takes
one by one.

Messages are counted as they are met, from 0; a bit says of each whether it stays. Keys are held in memory
only while they are counted, and no more of them than fit: the others are left to another pass over the
entries, each pass for its share of the keys by their hashes.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Generator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple, TypeVar

from geminga.errors import CorruptPayload
from geminga.wire.metadata import MAGIC_CHECKSUM, EntryHead, build_entry, parse_entry, peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import parse

log = logging.getLogger("geminga.broker")

BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""A batch that says it is larger than this, decompressed, is not looked into."""
BATCH_MESSAGES_MAX: Final = 1_000_000
"""Nor one of more messages, which no client of ours makes."""
STEP_MESSAGES: Final = 1_000
"""So many are looked at in a step."""
_KEY_OVERHEAD_BYTES = 150
"""About what a key takes in memory beside its own bytes."""
OPEN_CHUNKS_BYTES_MAX: Final = 16 * 1024 * 1024
"""What chunked messages may take in memory whose last chunk has not come."""
_CHUNKED_OVERHEAD_BYTES = 400
_CHUNK_BYTES = 48
"""About what a chunked message takes, and each of its chunks."""
_SIZE = Struct(">I")
_HEAD = Struct(">IBB")
_KEY, _PAYLOAD_SIZE = 0x12, 0x18
_COMPACTED_OUT, _OTHER_MIN = 0x20, 0x28
_CHECKED = MAGIC_CHECKSUM.to_bytes(2, "big")
_NOTHING_BYTES_MAX = 40
"""No codec, with encryption on top, makes more of an empty payload."""
_MARK_OUT = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_EMPTIED = _SIZE.pack(len(_MARK_OUT)) + _MARK_OUT

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps, and what it comes to."""
Keyed = tuple[bytes | None, bool]
"""A message's key, None without one, and whether it has a value."""


class Batch(NamedTuple):
    """A batch that was opened. ``starts`` has where each message begins, and the end of the last."""

    body: bytes
    starts: Sequence[int]
    messages: list[Keyed | None]
    """None for a message that was compacted out before."""


def at_once(steps: Steps[T]) -> T:
    """All of the steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def open_batch(entry: bytes) -> Batch | None:
    """The messages of a batch; None when it cannot be looked into."""
    return at_once(opened(entry))


def opened(entry: bytes) -> Steps[Batch | None]:
    """The same in steps."""
    try:
        parsed = parse_entry(entry, verify=False)
        metadata = parsed.metadata
        if metadata.encryption_keys:
            return None
        from geminga.wire.compression import decompress  # with all its codecs: no start waits for them

        body = decompress(
            metadata.compression, parsed.payload, metadata.uncompressed_size, limit=BATCH_BYTES_MAX
        ) if metadata.compression else bytes(parsed.payload)  # fmt: skip
        return (yield from _split(body, metadata.num_messages_in_batch))
    except (CorruptPayload, StructError, IndexError) as error:
        log.debug("a batch cannot be opened: %s", error)
        return None


def _split(body: bytes, count: int) -> Steps[Batch]:
    size = len(body)
    if not 0 < count <= min(size // 4, BATCH_MESSAGES_MAX):
        raise CorruptPayload(f"{count} messages announced in a batch of {size} bytes")
    starts = array("Q", (0,))
    messages: list[Keyed | None] = []
    position = 0
    read_head = _HEAD.unpack_from
    for number in range(count):
        if number and not number % STEP_MESSAGES:
            yield
        metadata_size, tag, key_size = read_head(body, position)
        start = position + 4
        end = start + metadata_size
        at = start + 2 + key_size
        # The usual message: a short key, then a payload size of one byte or two, then nothing of interest.
        if tag == _KEY and key_size < 128 and at + 3 < min(end, size) and body[at] == _PAYLOAD_SIZE:
            payload_size, following = body[at + 1], body[at + 2]
            if payload_size > 127:
                if following < 128:
                    payload_size += (following << 7) - 128
                    following = body[at + 3]
                else:
                    following = _COMPACTED_OUT
            if following >= _OTHER_MIN:
                messages.append((body[start + 2 : at], payload_size > 0))
                position = end + payload_size
                starts.append(position)
                continue
        if end > size:
            raise CorruptPayload(f"a message's metadata end at byte {end} of {size}")
        single = parse(pb.SingleMessageMetadata, body[start:end], "a message's metadata", CorruptPayload)
        if single.compacted_out:
            messages.append(None)
        elif single.HasField("partition_key"):
            messages.append((_key_bytes(single.partition_key), single.payload_size > 0))
        else:
            messages.append((None, single.payload_size > 0))
        if single.payload_size < 0:
            raise CorruptPayload(f"a message of {single.payload_size} bytes")
        position = end + single.payload_size
        starts.append(position)
    if position != size:
        raise CorruptPayload(f"{count} messages end at byte {position} of a batch of {size} bytes")
    return Batch(body, starts, messages)


def _key_bytes(key: str | bytes) -> bytes:
    """A key as it travels: protobuf gives one that is no UTF-8 as bytes."""
    return key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")


def rebatched(entry: bytes, kept: int) -> Steps[bytes]:
    """A batch with only those of its messages that ``kept`` has a bit for; the others are marked."""
    batch = yield from opened(entry)
    if batch is None:
        return entry
    body, starts, count = batch.body, batch.starts, len(batch.messages)
    parts = []
    for first in range(0, count, STEP_MESSAGES):
        if first:
            yield
        wanted = kept >> first
        parts += [
            body[starts[index] : starts[index + 1]] if wanted >> (index - first) & 1 else _EMPTIED
            for index in range(first, min(first + STEP_MESSAGES, count))
        ]
    found = b"".join(parts)
    metadata = parse_entry(entry, verify=False).metadata
    metadata.uncompressed_size = len(found)
    from geminga.wire.compression import compress

    payload = compress(metadata.compression, found) if metadata.compression else found
    return build_entry(metadata.SerializeToString(), payload)


class Kept(NamedTuple):
    """What stays of an entry: a bit for each of its messages, how many there are, and how many stay."""

    bits: int
    messages: int
    staying: int


class Survivors:
    """See the module. Use: `note` every entry, `next_pass` until it is False, then `kept` every entry."""

    def __init__(self, *, bytes_max: int, retain_null_key: bool) -> None:
        """``bytes_max``: what keys may take in memory, about."""
        self._bytes_max = bytes_max
        self._retain_null_key = retain_null_key
        self._newest: dict[bytes, int] = {}
        self._newest_bytes = 0
        self._part, self._parts = 0, 1
        self._left: list[tuple[int, int]] = []
        self._bits = bytearray()
        self._ordinal = 0
        self._total = 0
        self._runs: list[list[int]] = []
        self._run = self._run_left = 0
        self._open_chunks: dict[tuple[str, str], list[int]] = {}
        self._open_bytes = 0
        self._chunks: dict[int, list[int]] = {}
        self._chunks_bytes = 0
        self.keys = 0
        self.passes = 1
        self.closed = 0
        """Entries that cannot be looked into: encrypted batches, and what cannot be read."""

    # --- finding out ---
    def note(self, entry: bytes) -> Steps[None] | None:
        """The next entry of the pass; what is left to do of it in steps, before the next one."""
        ordinal = self._ordinal
        try:
            head = peek_entry(entry)
        except CorruptPayload as error:
            log.debug("an entry cannot be read: %s", error)
            self._keep_whole(ordinal)
        else:
            if head.num_chunks > 1:
                self._note_chunk(ordinal, head)
            elif head.is_batch and head.marker_type is None:
                if not head.encrypted:
                    return self._note_batch(ordinal, entry)
                self._keep_whole(ordinal)
            elif head.marker_type is None:
                self._note_single(ordinal, head, entry)
        self._noted(1)
        return None

    def _noted(self, count: int) -> None:
        """The entry was one of so many messages."""
        self._ordinal += count
        if self.passes == 1:
            runs = self._runs
            if runs and runs[-1][0] == count:
                runs[-1][1] += 1
            else:
                runs.append([count, 1])
        if self._newest_bytes + self._chunks_bytes > self._bytes_max and len(self._newest) > 1:
            self._share()

    def _note_single(self, ordinal: int, head: EntryHead, entry: bytes) -> None:
        key = head.partition_key
        if key is None:
            if self._retain_null_key:
                self._keep(ordinal)
        else:
            self._put(key.encode("utf-8", "surrogatepass"), ordinal, has_value=_has_value(entry))

    def _note_batch(self, ordinal: int, entry: bytes) -> Steps[None]:
        batch = yield from opened(entry)
        if batch is None:
            self._keep_whole(ordinal)
            self._noted(1)
            return
        newest, parts, part = self._newest, self._parts, self._part
        for number, message in enumerate(batch.messages):
            if number and not number % STEP_MESSAGES:
                yield
            if message is not None:
                key, has_value = message
                if key is None:
                    if self._retain_null_key:
                        self._keep(ordinal)
                elif parts == 1 or hash(key) % parts == part:
                    if not has_value:
                        self._drop(key)
                        ordinal += 1
                        continue
                    if key not in newest:
                        self._newest_bytes += len(key) + _KEY_OVERHEAD_BYTES
                    newest[key] = ordinal
            ordinal += 1
        self._noted(len(batch.messages))

    def _put(self, key: bytes, ordinal: int, *, has_value: bool) -> None:
        if self._parts > 1 and hash(key) % self._parts != self._part:
            return
        if not has_value:
            self._drop(key)
            return
        if key not in self._newest:
            self._newest_bytes += len(key) + _KEY_OVERHEAD_BYTES
        self._newest[key] = ordinal

    def _drop(self, key: bytes) -> None:
        if self._newest.pop(key, None) is not None:
            self._newest_bytes -= len(key) + _KEY_OVERHEAD_BYTES

    def _note_chunk(self, ordinal: int, head: EntryHead) -> None:
        """A chunked message counts as one when its last chunk has come; then all of them stay, or none."""
        name = head.producer_name, head.uuid
        chunks = self._open_chunks.pop(name, None)
        if chunks is not None:
            self._open_bytes -= _open_size(name, chunks)
        if chunks is None or not head.chunk_id:
            chunks = []
        chunks.append(ordinal)
        if head.chunk_id < head.num_chunks - 1:
            self._open_chunks[name] = chunks
            self._open_bytes += _open_size(name, chunks)
            while self._open_bytes > OPEN_CHUNKS_BYTES_MAX:
                # What is left of the oldest stays, and may have a rest.
                oldest = next(iter(self._open_chunks))
                self._open_bytes -= _open_size(oldest, self._open_chunks[oldest])
                self._keep_all(self._open_chunks.pop(oldest))
        elif head.partition_key is not None:
            key = head.partition_key.encode("utf-8", "surrogatepass")
            self._put(key, ordinal, has_value=True)
            if self._newest.get(key) == ordinal:
                self._chunks[ordinal] = chunks
                self._chunks_bytes += _chunked_size(chunks)
        elif self._retain_null_key:
            self._keep_all(chunks)

    def _share(self) -> None:
        """There is too much in memory: old chunks go, or a half of this share is for another pass."""
        self._forget_chunks()
        if self._newest_bytes + self._chunks_bytes <= self._bytes_max // 2:
            return
        part, parts = self._part, self._parts
        self._parts = parts * 2
        self._left.append((part + parts, self._parts))
        self._newest = {
            key: ordinal for key, ordinal in self._newest.items() if hash(key) % self._parts == part
        }
        self._newest_bytes = sum(map(len, self._newest)) + len(self._newest) * _KEY_OVERHEAD_BYTES
        self._forget_chunks()

    def _forget_chunks(self) -> None:
        """Those of messages that are not the newest of their keys."""
        if self._chunks:
            newest = set(self._newest.values())
            self._chunks = {last: chunks for last, chunks in self._chunks.items() if last in newest}
            self._chunks_bytes = sum(map(_chunked_size, self._chunks.values()))

    def _keep_whole(self, ordinal: int) -> None:
        self._keep(ordinal)
        if self.passes == 1:
            self.closed += 1

    def _keep_all(self, ordinals: Sequence[int]) -> None:
        for ordinal in ordinals:
            self._keep(ordinal)

    def _keep(self, ordinal: int) -> None:
        place = ordinal >> 3
        if place >= len(self._bits):
            self._bits.extend(bytes(max(4096, place + 1 - len(self._bits), len(self._bits) // 8)))
        self._bits[place] |= 1 << (ordinal & 7)

    def next_pass(self) -> bool:
        """The pass is over; whether there is to be another, over the same entries."""
        for ordinal in self._newest.values():
            self._keep_all(self._chunks.get(ordinal) or (ordinal,))
        for chunks in self._open_chunks.values():
            self._keep_all(chunks)  # the rest may come yet
        self.keys += len(self._newest)
        self._newest, self._newest_bytes = {}, 0
        self._open_chunks, self._chunks = {}, {}
        self._open_bytes = self._chunks_bytes = 0
        self._total = self._ordinal
        self._ordinal = 0
        if self._left:
            self._part, self._parts = self._left.pop()
            self.passes += 1
            return True
        self._runs.reverse()
        return False

    # --- what it was ---
    @property
    def messages(self) -> int:
        """How many there were in a pass."""
        return self._total

    def kept(self) -> Kept:
        """What is left of the next entry; `rebatched` makes it where that is neither nothing nor all."""
        if not self._run_left:
            self._run, self._run_left = self._runs.pop()
        self._run_left -= 1
        count, ordinal = self._run, self._ordinal
        self._ordinal += count
        first = ordinal >> 3
        word = int.from_bytes(self._bits[first : (ordinal + count + 7) >> 3], "little")
        kept = word >> (ordinal & 7) & ((1 << count) - 1)
        return Kept(kept, count, kept.bit_count())


def _chunked_size(chunks: Sequence[int]) -> int:
    return _CHUNKED_OVERHEAD_BYTES + len(chunks) * _CHUNK_BYTES


def _open_size(name: tuple[str, str], chunks: Sequence[int]) -> int:
    return len(name[0]) + len(name[1]) + _chunked_size(chunks)


def _has_value(entry: bytes) -> bool:
    """Whether a single message's payload holds something, by what its metadata say of its size."""
    is_checked = len(entry) > 10 and entry[:2] == _CHECKED
    if is_checked and len(entry) - 10 - _SIZE.unpack_from(entry, 6)[0] > _NOTHING_BYTES_MAX:
        return True
    parsed = parse_entry(entry, verify=False)
    metadata = parsed.metadata
    size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(parsed.payload)
    return size > 0
