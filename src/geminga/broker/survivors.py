"""What compaction keeps of entries: the messages that are the newest of their keys.

The rules are Apache Pulsar's. The newest message of a key stays, and none when its payload is empty.
Messages without a key go, unless ``retain_null_key``. What cannot be looked into stays whole: a batch that is
encrypted, or cannot be read. A single encrypted message has its key outside and is treated as any other. In a
batch the messages that go leave an empty one with ``compacted_out``, so that the others keep their indexes.

Messages are counted as they are met, from 0; a bit says of each whether it stays. Keys are held in memory
only while they are counted, and no more of them than fit: the others are left to another pass over the
entries, each pass for its share of the keys by their hashes.
"""

from __future__ import annotations

import logging
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from geminga.errors import CorruptPayload
from geminga.wire.metadata import MAGIC_CHECKSUM, EntryHead, build_entry, parse_entry, peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import parse

log = logging.getLogger("geminga.broker")

BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""A batch that says it is larger than this, decompressed, is not looked into."""
_KEY_OVERHEAD_BYTES = 150
"""About what a key takes in memory beside its own bytes."""
_SIZE = Struct(">I")
_HEAD = Struct(">IBB")
_KEY, _PAYLOAD_SIZE = 0x12, 0x18
_COMPACTED_OUT, _OTHER_MIN = 0x20, 0x28
_CHECKED = MAGIC_CHECKSUM.to_bytes(2, "big")
_NOTHING_BYTES_MAX = 40
"""No codec, with encryption on top, makes more of an empty payload."""
_MARK_OUT = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_EMPTIED = _SIZE.pack(len(_MARK_OUT)) + _MARK_OUT

Keyed = tuple[bytes | None, bool]
"""A message's key, None without one, and whether it has a value."""


class Batch(NamedTuple):
    """A batch that was opened. ``starts`` has where each message begins, and the end of the last."""

    body: bytes
    starts: list[int]
    messages: list[Keyed | None]
    """None for a message that was compacted out before."""


def open_batch(entry: bytes) -> Batch | None:
    """The messages of a batch; None when it cannot be looked into."""
    try:
        parsed = parse_entry(entry, verify=False)
        metadata = parsed.metadata
        if metadata.encryption_keys:
            return None
        from geminga.wire.compression import decompress  # with all its codecs: no start waits for them

        body = decompress(
            metadata.compression, parsed.payload, metadata.uncompressed_size, limit=BATCH_BYTES_MAX
        ) if metadata.compression else bytes(parsed.payload)  # fmt: skip
        return _split(body, metadata.num_messages_in_batch)
    except (CorruptPayload, StructError, IndexError) as error:
        log.debug("a batch cannot be opened: %s", error)
        return None


def _split(body: bytes, count: int) -> Batch:
    size = len(body)
    if not 0 < count <= size // 4:
        raise CorruptPayload(f"{count} messages announced in a batch of {size} bytes")
    starts = [0]
    messages: list[Keyed | None] = []
    position = 0
    read_head = _HEAD.unpack_from
    for _ in range(count):
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


def rebatched(entry: bytes, kept: int) -> bytes:
    """A batch with only those of its messages that ``kept`` has a bit for; the others are marked."""
    batch = open_batch(entry)
    if batch is None:
        return entry
    body, starts = batch.body, batch.starts
    found = b"".join(
        [
            body[starts[index] : starts[index + 1]] if kept >> index & 1 else _EMPTIED
            for index in range(len(batch.messages))
        ]
    )
    metadata = parse_entry(entry, verify=False).metadata
    metadata.uncompressed_size = len(found)
    from geminga.wire.compression import compress

    payload = compress(metadata.compression, found) if metadata.compression else found
    return build_entry(metadata.SerializeToString(), payload)


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
        self._chunks: dict[int, list[int]] = {}
        self.keys = 0
        self.passes = 1
        self.closed = 0
        """Entries that cannot be looked into: encrypted batches, and what cannot be read."""

    # --- finding out ---
    def note(self, entry: bytes) -> None:
        """The next entry of the pass."""
        ordinal = self._ordinal
        count = 1
        try:
            head = peek_entry(entry)
        except CorruptPayload as error:
            log.debug("an entry cannot be read: %s", error)
            self._keep_whole(ordinal)
        else:
            if head.num_chunks > 1:
                self._note_chunk(ordinal, head)
            elif head.is_batch and head.marker_type is None:
                batch = None if head.encrypted else open_batch(entry)
                if batch is None:
                    self._keep_whole(ordinal)
                else:
                    count = len(batch.messages)
                    self._note_batch(ordinal, batch.messages)
            elif head.marker_type is None:
                self._note_single(ordinal, head, entry)
        self._ordinal = ordinal + count
        if self.passes == 1:
            runs = self._runs
            if runs and runs[-1][0] == count:
                runs[-1][1] += 1
            else:
                runs.append([count, 1])
        if self._newest_bytes > self._bytes_max:
            self._share()

    def _note_single(self, ordinal: int, head: EntryHead, entry: bytes) -> None:
        key = head.partition_key
        if key is None:
            if self._retain_null_key:
                self._keep(ordinal)
        else:
            self._put(key.encode("utf-8", "surrogatepass"), ordinal, has_value=_has_value(entry))

    def _note_batch(self, ordinal: int, messages: list[Keyed | None]) -> None:
        newest, parts, part = self._newest, self._parts, self._part
        for message in messages:
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
        chunks = self._open_chunks.pop(name, []) if head.chunk_id else []
        chunks.append(ordinal)
        if head.chunk_id < head.num_chunks - 1:
            self._open_chunks[name] = chunks
        elif head.partition_key is not None:
            self._chunks[ordinal] = chunks
            self._put(head.partition_key.encode("utf-8", "surrogatepass"), ordinal, has_value=True)
        elif self._retain_null_key:
            for each in chunks:
                self._keep(each)

    def _share(self) -> None:
        """There are too many keys: a half of this share is for another pass."""
        part, parts = self._part, self._parts
        self._parts = parts * 2
        self._left.append((part + parts, self._parts))
        self._newest = {
            key: ordinal for key, ordinal in self._newest.items() if hash(key) % self._parts == part
        }
        self._newest_bytes = sum(map(len, self._newest)) + len(self._newest) * _KEY_OVERHEAD_BYTES

    def _keep_whole(self, ordinal: int) -> None:
        self._keep(ordinal)
        if self.passes == 1:
            self.closed += 1

    def _keep(self, ordinal: int) -> None:
        place = ordinal >> 3
        if place >= len(self._bits):
            self._bits.extend(bytes(max(4096, place + 1 - len(self._bits), len(self._bits) // 8)))
        self._bits[place] |= 1 << (ordinal & 7)

    def next_pass(self) -> bool:
        """The pass is over; whether there is to be another, over the same entries."""
        for ordinal in self._newest.values():
            chunks = self._chunks.get(ordinal)
            for each in (ordinal,) if chunks is None else chunks:
                self._keep(each)
        for chunks in self._open_chunks.values():
            # The rest may come yet.
            for each in chunks:
                self._keep(each)
        self.keys += len(self._newest)
        self._newest, self._newest_bytes = {}, 0
        self._open_chunks, self._chunks = {}, {}
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

    def kept(self, entry: bytes) -> tuple[bytes | None, int, int, int]:
        """What is left of the next entry, None for nothing.

        With it: how many messages it holds and how many of them stay, and the index of the last that does.
        """
        if not self._run_left:
            self._run, self._run_left = self._runs.pop()
        self._run_left -= 1
        count, ordinal = self._run, self._ordinal
        self._ordinal += count
        first = ordinal >> 3
        word = int.from_bytes(self._bits[first : (ordinal + count + 7) >> 3], "little")
        kept = word >> (ordinal & 7) & ((1 << count) - 1)
        if not kept:
            return None, count, 0, -1
        staying = kept.bit_count()
        left = entry if staying == count else rebatched(entry, kept)
        return left, count, staying, kept.bit_length() - 1


def _has_value(entry: bytes) -> bool:
    """Whether a single message's payload holds something, by what its metadata say of its size."""
    is_checked = len(entry) > 10 and entry[:2] == _CHECKED
    if is_checked and len(entry) - 10 - _SIZE.unpack_from(entry, 6)[0] > _NOTHING_BYTES_MAX:
        return True
    parsed = parse_entry(entry, verify=False)
    metadata = parsed.metadata
    size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(parsed.payload)
    return size > 0
