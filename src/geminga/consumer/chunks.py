"""Assembly of chunked messages: messages that are split into several entries.

The rules are those of algorithms.md section 12. Entries of different producers interleave, so the chunks are
kept by the message's uuid. Every verdict names the entries to be acknowledged without delivery, and those
dropped in the hope of a redelivery.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from geminga.consumer.message import EntryKey
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text

Buffer = bytes | bytearray | memoryview

FORGOTTEN_MAX = 1000
"""Maximum messages that `ChunkAssembler.clear` remembers; the oldest is forgotten first."""


@dataclass(slots=True, eq=False, repr=False)
class ChunkVerdict:
    """Result of adding a chunk.

    ``payload`` is the whole message when this was its last chunk, with the ids of all chunks in
    ``chunk_ids``; else None. ``acknowledge``: entries to acknowledge without delivery. ``dropped``: entries
    that a redelivery may complete, due after the acknowledgement time-out as in the official clients.
    """

    payload: bytes | None = None
    chunk_ids: list[EntryKey] = field(default_factory=list)
    acknowledge: list[EntryKey] = field(default_factory=list)
    dropped: list[EntryKey] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class _Open:
    count: int
    total_bytes: int
    opened_at: float
    parts: list[bytes] = field(default_factory=list)
    ids: list[EntryKey] = field(default_factory=list)
    superseded: list[EntryKey] = field(default_factory=list)
    """Chunks of earlier attempts: acknowledged once this attempt is complete, dropped if it fails."""
    size_bytes: int = 0
    earlier: _Open | None = None
    """An earlier attempt whose chunks are redelivered, from its first one on."""
    is_repeated: bool = False
    """Whether the message was delivered from an earlier attempt: this one is only acknowledged."""

    def append(self, payload: Buffer, key: EntryKey) -> None:
        self.parts.append(bytes(payload))
        self.ids.append(key)
        self.size_bytes += len(payload)

    @property
    def is_whole(self) -> bool:
        return len(self.parts) == self.count and self.size_bytes == self.total_bytes

    def is_hopeless(self, bytes_max: int) -> bool:
        """Return whether the message can never be complete: it has another size than announced, or one that
        is not allowed."""
        size, allowed = self.size_bytes, min(self.total_bytes, bytes_max)
        return size > allowed or (len(self.parts) == self.count and not self.is_whole)


class ChunkAssembler:
    """The incomplete chunked messages of one consumer.

    At most ``pending_max`` are kept; the oldest is dropped for a new one, and is acknowledged when
    ``acknowledge_oldest``. A message that is incomplete for longer than ``expiry_seconds`` is dropped and
    acknowledged (0: never). A message larger than ``bytes_max`` is dropped and left unacknowledged.
    """

    def __init__(
        self, *, pending_max: int, acknowledge_oldest: bool, expiry_seconds: float, bytes_max: int
    ) -> None:
        self._pending_max = pending_max
        self._acknowledge_oldest = acknowledge_oldest
        self._expiry_seconds = expiry_seconds
        self._bytes_max = bytes_max
        self._open: dict[str, _Open] = {}
        self._cleared: dict[str, None] = {}
        """Messages that were open when all were forgotten, and have not begun again."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def size_bytes(self) -> int:
        """Bytes held for incomplete messages."""
        return sum(context.size_bytes for context in self._open.values())

    def clear(self) -> None:
        """Forget all: after a reconnect, a redelivery or a seek the broker sends every chunk again."""
        self._cleared |= dict.fromkeys(self._open)
        while len(self._cleared) > FORGOTTEN_MAX:
            del self._cleared[next(iter(self._cleared))]
        self._open.clear()

    def next_deadline(self) -> float:
        """Return when the oldest incomplete message expires, infinite without one."""
        if not self._open or not self._expiry_seconds:
            return float("inf")
        return next(iter(self._open.values())).opened_at + self._expiry_seconds

    def expire(self, now: float) -> ChunkVerdict | None:
        """Forget expired messages; return their entries, None if no message has expired."""
        if self.next_deadline() > now:
            return None
        verdict = ChunkVerdict()
        while self.next_deadline() <= now:
            verdict.acknowledge += self._forget(next(iter(self._open)), verdict).ids
        return verdict

    def _forget(self, uuid: str, verdict: ChunkVerdict) -> _Open:
        """Forget a message that is not completed; a redelivery may complete an earlier attempt of it."""
        context = self._open.pop(uuid)
        verdict.dropped += context.superseded
        return context

    def add(
        self, metadata: pb.MessageMetadata, payload: Buffer, key: EntryKey, now: float, now_ms: int
    ) -> ChunkVerdict:
        """Add one chunk (decrypted, not decompressed). ``now_ms``: wall clock, for the age of the chunk."""
        verdict = ChunkVerdict()
        uuid = text(metadata.uuid)
        context = self._open.get(uuid)
        if context is not None and key < context.ids[-1] and key not in context.ids:
            self._add_earlier(context, metadata, payload, key, now, verdict)
            return verdict
        if metadata.chunk_id == 0:
            context = self._begin(uuid, context, metadata, key, now, verdict)
        if context is None or metadata.chunk_id != len(context.parts):
            self._out_of_order(uuid, context, metadata, key, now_ms, verdict)
            return verdict
        context.append(payload, key)
        if context.is_hopeless(self._bytes_max):
            self._forget(uuid, verdict)
        elif context.is_whole and context.is_repeated:
            self._forget(uuid, verdict)
            verdict.acknowledge += context.ids
            if context.earlier is not None:
                self._open[uuid] = context.earlier
        elif context.is_whole:
            del self._open[uuid]
            verdict.payload, verdict.chunk_ids = b"".join(context.parts), context.ids
            verdict.acknowledge += context.superseded
        return verdict

    def _add_earlier(
        self, later: _Open, metadata: pb.MessageMetadata, payload: Buffer, key: EntryKey, now: float,
        verdict: ChunkVerdict,
    ) -> None:  # fmt: skip
        """Add a chunk of an earlier attempt of the producer, not to be mixed with those of the later one.

        The attempt that is complete first is delivered. If that is the later one, this chunk has no use.
        """
        later.superseded.append(key)
        if metadata.chunk_id == 0:
            later.earlier = _Open(metadata.num_chunks_from_msg, metadata.total_chunk_msg_size, now)
        earlier = later.earlier
        if earlier is None or metadata.chunk_id != len(earlier.parts):
            return
        earlier.append(payload, key)
        if earlier.is_hopeless(self._bytes_max):
            later.earlier = None
        elif earlier.is_whole:
            verdict.payload, verdict.chunk_ids = b"".join(earlier.parts), earlier.ids
            later.superseded = [each for each in later.superseded if each not in earlier.ids]
            later.earlier, later.is_repeated = None, True

    def _begin(
        self, uuid: str, older: _Open | None, metadata: pb.MessageMetadata, key: EntryKey, now: float,
        verdict: ChunkVerdict,
    ) -> _Open:  # fmt: skip
        begun = _Open(metadata.num_chunks_from_msg, metadata.total_chunk_msg_size, now)
        if older is not None:
            del self._open[uuid]
            begun.superseded = older.superseded
            if older.ids[0] != key:
                # The producer sent the message again: the first attempt will never be completed.
                verdict.acknowledge += older.ids
        if len(self._open) >= self._pending_max:
            oldest = self._forget(next(iter(self._open)), verdict)
            (verdict.acknowledge if self._acknowledge_oldest else verdict.dropped).extend(oldest.ids)
        self._open[uuid] = begun
        self._cleared.pop(uuid, None)
        return begun

    def _out_of_order(
        self, uuid: str, context: _Open | None, metadata: pb.MessageMetadata, key: EntryKey, now_ms: int,
        verdict: ChunkVerdict,
    ) -> None:  # fmt: skip
        if context is not None and metadata.chunk_id < len(context.parts):
            # A known chunk. The same entry is a redelivery; another entry is the producer's repetition.
            if key not in context.ids:
                verdict.acknowledge.append(key)
            return
        ids = [key]
        if context is not None:
            ids = [*self._forget(uuid, verdict).ids, key]
        # A chunk is missing. It may still be redelivered, unless the message is too old for that. If earlier
        # chunks were forgotten, this one was on its way before they are sent again.
        age_seconds = (now_ms - metadata.publish_time) / 1000
        is_expired = self._expiry_seconds and age_seconds > self._expiry_seconds and uuid not in self._cleared
        (verdict.acknowledge if is_expired else verdict.dropped).extend(ids)
