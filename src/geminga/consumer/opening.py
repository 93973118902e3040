"""Conversion of a MESSAGE frame to a `ReceivedEntry`: decrypt, assemble chunks, decompress, split.

`EntryOpener.open` returns the entry, or the reason why it is missing: an inner chunk, a marker, an entry that
cannot be read. The `OpenedFrame` result lists entries to acknowledge or report.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from geminga.consumer.chunks import ChunkAssembler
from geminga.consumer.message import ConsumerOrigin, EntryKey, ReceivedEntry, Row
from geminga.consumer.settings import ConsumerCryptoFailureAction, ConsumerSettings
from geminga.consumer.unbatching import (
    BATCH_DESERIALIZE_ERROR,
    CHECKSUM_MISMATCH,
    DECRYPTION_ERROR,
    InvalidEntry,
    open_payload,
)
from geminga.errors import CorruptPayload, CryptoError
from geminga.wire.batch import split_batch
from geminga.wire.frames import MessageFrame
from geminga.wire.message_runs import MessageRun, are_plain, encrypted_alike, parse_together
from geminga.wire.metadata import build_entry, checksum_matches, metadata_of, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

Buffer = bytes | bytearray | memoryview

BATCH_COUNT_MAX = 1 << 24
"""Maximum messages that a batch may announce. 2^24 of 6 bytes would fill a frame of 100 MB."""


@dataclass(slots=True, eq=False, repr=False)
class OpenedFrame:
    """Result of opening a frame.

    ``entry``: the entry to deliver, None for none. ``permits``: permits that the broker charged.
    ``acknowledge`` and ``dropped``: see `ChunkVerdict`. ``invalid``: the validation error with which the
    entry is acknowledged. ``undecryptable``: it stays unacknowledged (``ConsumerCryptoFailureAction.FAIL``).
    ``compacted_out``: indexes of its batch that compaction removed.
    """

    permits: int = 1
    entry: ReceivedEntry | None = None
    compacted_out: Sequence[int] = ()
    acknowledge: Sequence[EntryKey] = ()
    dropped: Sequence[EntryKey] = ()
    invalid: InvalidEntry | None = None
    undecryptable: CryptoError | None = None


class EntryOpener:
    """Opens the entries of one consumer. ``whole``: entries stay closed, for readers of columns.

    ``untouched`` in addition: chunks, markers, encrypted and damaged entries are passed on as well, for
    readers that account for every entry of a range.
    """

    def __init__(self, settings: ConsumerSettings, origin: ConsumerOrigin) -> None:
        self.whole = False
        self.untouched = False
        self.chunks = ChunkAssembler(
            pending_max=settings.max_pending_chunked_message,
            acknowledge_oldest=settings.auto_ack_oldest_chunked_message_on_queue_full,
            expiry_seconds=settings.expire_time_of_incomplete_chunked_message_ms / 1000,
            bytes_max=settings.message_bytes_max,
        )
        self._origin = origin
        self._decryptor = settings.decryptor
        self._delivers_ciphertext = settings.delivers_ciphertext
        self._discards = settings.crypto_failure_action is ConsumerCryptoFailureAction.DISCARD
        self._bytes_max = settings.message_bytes_max

    def open(self, frame: MessageFrame, now: float, now_ms: int) -> OpenedFrame:
        """Open one MESSAGE, independently of the consumer's state."""
        opened = OpenedFrame()
        try:
            if not (self.whole and self._pass_whole(frame, opened)):
                self._open(frame, opened, now, now_ms)
        except InvalidEntry as error:
            opened.entry = None
            opened.invalid = error
        except CryptoError as error:
            opened.undecryptable = error
        return opened

    def open_run(self, run: MessageRun, keys: Sequence[EntryKey]) -> list[Row] | None:
        """Return the messages of a run with the ids ``keys``; None unless all can be read at once."""
        columns = run.columns()
        if columns is None:
            return None
        metadata: Sequence[Any] = columns[0]
        payloads = columns[1]
        try:
            if are_plain(metadata):
                pass
            elif self._decryptor is not None and (alike := encrypted_alike(metadata)):
                payloads = self._decryptor.decrypt_run(*alike, payloads)
            elif (together := parse_together(metadata)) is None:
                return None
            else:
                metadata, merged = together
                if merged.encryption_keys:
                    if self._decryptor is None:
                        return None
                    payloads = list(map(self._decryptor, metadata, payloads))
                if merged.compression:
                    payloads = list(map(open_payload, metadata, payloads, repeat(self._bytes_max)))
        except (CryptoError, InvalidEntry):
            return None
        return list(zip(range(len(payloads)), keys, metadata, payloads, strict=True))

    def _pass_whole(self, frame: MessageFrame, opened: OpenedFrame) -> bool:
        """Pass on an entry that its reader will check and decode; return False if it must be opened here."""
        try:
            metadata = metadata_of(frame.entry)
        except CorruptPayload as error:
            if not self.untouched:
                raise InvalidEntry(BATCH_DESERIALIZE_ERROR, str(error)) from error
            metadata = pb.MessageMetadata()
        batched, count = metadata.HasField("num_messages_in_batch"), metadata.num_messages_in_batch
        is_possible = 0 < count <= BATCH_COUNT_MAX
        if self.untouched:
            batched, count = (batched, count) if is_possible else (False, 1)
        elif metadata.encryption_keys or metadata.num_chunks_from_msg > 1 or metadata.HasField("marker_type"):
            return False
        elif not is_possible:
            raise InvalidEntry(BATCH_DESERIALIZE_ERROR, f"{count} messages announced in a batch")
        opened.permits = _charged(frame, count)
        opened.entry = ReceivedEntry(
            self._origin, frame.ledger_id, frame.entry_id, None, batched=batched,
            raw=frame.entry, count=count, redelivery_count=frame.redelivery_count, ack_set=frame.ack_set,
        )  # fmt: skip
        return True

    def _open(self, frame: MessageFrame, opened: OpenedFrame, now: float, now_ms: int) -> None:
        raw = frame.entry
        try:
            parsed = parse_entry(raw, verify=True)
        except CorruptPayload as error:
            opened.permits = permits_of(frame)
            raise InvalidEntry(kind_of_damage(raw), str(error)) from error
        metadata = parsed.metadata
        batched = metadata.HasField("num_messages_in_batch")
        count = metadata.num_messages_in_batch if batched else 1
        if not 0 < count <= BATCH_COUNT_MAX:
            raise InvalidEntry(BATCH_DESERIALIZE_ERROR, f"{count} messages announced in a batch")
        opened.permits = _charged(frame, count)
        key = (frame.ledger_id, frame.entry_id)
        if metadata.HasField("marker_type"):
            opened.acknowledge = (key,)
            return
        entry = ReceivedEntry(
            self._origin, frame.ledger_id, frame.entry_id, metadata, batched, count, frame.redelivery_count,
            frame.ack_set,
        )  # fmt: skip
        if self.whole:  # else an entry is kept in its open form only
            entry.raw = raw
        payload: Buffer = parsed.payload
        if metadata.encryption_keys:
            plain = self._decrypt(metadata, payload)
            if plain is None:
                entry.raw = raw  # kept: `Message.encryption_context` recognises by it that decryption failed
                entry.body = bytes(payload)
                entry.count = 1
                entry.batched = False
                opened.entry = entry
                return
            payload = plain
            entry.raw = None
        if metadata.num_chunks_from_msg > 1:
            verdict = self.chunks.add(metadata, payload, key, now, now_ms)
            opened.acknowledge, opened.dropped = verdict.acknowledge, verdict.dropped
            if verdict.payload is None:
                return
            payload = verdict.payload
            entry.chunk_ids = verdict.chunk_ids
            entry.raw = None
        if self.whole:
            if entry.raw is None:
                entry.raw = build_entry(plain_metadata(metadata).SerializeToString(), payload)
        else:
            opened.compacted_out = open_entry(entry, payload, self._bytes_max)
        opened.entry = entry

    def _decrypt(self, metadata: pb.MessageMetadata, payload: Buffer) -> bytes | None:
        """Return the plain payload; None to deliver it encrypted. Raises `CryptoError` or `InvalidEntry`."""
        try:
            if self._decryptor is None:
                raise CryptoError("the message is encrypted and the consumer has no crypto_key_reader")
            return self._decryptor(metadata, payload)
        except CryptoError as error:
            if self._delivers_ciphertext:
                return None
            if self._discards:
                raise InvalidEntry(DECRYPTION_ERROR, str(error)) from error
            raise


def open_entry(entry: ReceivedEntry, payload: Buffer, bytes_max: int) -> Sequence[int]:
    """Decompress and split; return the indexes of messages that compaction removed.

    Raises `InvalidEntry`.
    """
    entry.body = body = open_payload(entry.metadata, payload, bytes_max)
    if not entry.batched:
        return ()
    try:
        entry.starts, removed = split_batch(body, entry.count)
    except CorruptPayload as error:
        raise InvalidEntry(BATCH_DESERIALIZE_ERROR, str(error)) from error
    return removed


_U64 = (1 << 64) - 1


def open_whole(entry: ReceivedEntry, bytes_max: int) -> Sequence[int]:
    """Open an entry that was passed on whole; return the indexes removed by compaction.

    Raises `InvalidEntry`.
    """
    assert entry.raw is not None
    try:
        parsed = parse_entry(entry.raw, verify=True)
    except CorruptPayload as error:
        raise InvalidEntry(kind_of_damage(entry.raw), str(error)) from error
    entry.metadata = parsed.metadata
    return open_entry(entry, parsed.payload, bytes_max)


def _charged(frame: MessageFrame, count: int) -> int:
    """Return the permits of an entry: acknowledged positions of a batch cost none (framing.md section 7)."""
    if not frame.ack_set:
        return count
    return min(count, sum((word & _U64).bit_count() for word in frame.ack_set))


def plain_metadata(metadata: pb.MessageMetadata) -> pb.MessageMetadata:
    """Return the metadata of an entry after decryption and chunk assembly."""
    plain = pb.MessageMetadata()
    plain.CopyFrom(metadata)
    for field_name in (
        "encryption_keys", "encryption_algo", "encryption_param",
        "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id",
    ):  # fmt: skip
        plain.ClearField(field_name)
    return plain


def kind_of_damage(raw: Buffer) -> int:
    """Return the validation error of an entry that cannot be parsed."""
    try:
        is_intact = checksum_matches(raw) is not False
    except CorruptPayload:
        is_intact = False
    return BATCH_DESERIALIZE_ERROR if is_intact else CHECKSUM_MISMATCH


def permits_of(frame: MessageFrame) -> int:
    """Return the permits of an entry that is not opened; if its metadata cannot be read, 1."""
    try:
        count = metadata_of(frame.entry).num_messages_in_batch
    except CorruptPayload:
        count = 1
    return _charged(frame, count if 0 < count <= BATCH_COUNT_MAX else 1)
