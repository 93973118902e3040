"""A received entry and the messages in it.

An entry is opened once, by `unbatching.open_entry`; a `Message` is only a reference to it (entry and index),
and decodes its parts on access. So receiving and acknowledging a message takes a few hundred nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from struct import Struct
from typing import Any, Generic, cast

from geminga._util.values import T_co
from geminga.consumer.encryption_context import EncryptionContext
from geminga.consumer.flow import Release
from geminga.ids import MessageId
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text

Buffer = bytes | bytearray | memoryview
EntryKey = tuple[int, int]
"""Ledger id and entry id."""

_read_size = Struct(">I").unpack_from


class EntryAcks:
    """Acknowledgement state of a batch's messages; shared by all deliveries of the entry."""

    __slots__ = ("flags", "remaining")

    def __init__(self, count: int) -> None:
        self.flags = bytearray(b"\x01") * count
        """1 for each message that is still unacknowledged."""
        self.remaining = count

    def settle(self, index: int) -> bool:
        """Mark one message acknowledged; return whether it was the last of the entry."""
        flags = self.flags
        if not 0 <= index < len(flags) or not flags[index]:
            return False
        flags[index] = 0
        self.remaining -= 1
        return self.remaining == 0

    def settle_through(self, index: int) -> bool:
        """Mark the messages up to and including ``index``; return whether none remains."""
        last = max(0, min(index + 1, len(self.flags)))
        self.remaining -= self.flags.count(1, 0, last)
        self.flags[:last] = bytes(last)
        return self.remaining == 0

    def reopen(self) -> None:
        """Mark all messages of the batch unacknowledged."""
        if self.remaining != len(self.flags):
            self.flags[:] = b"\x01" * len(self.flags)
            self.remaining = len(self.flags)

    def apply_ack_set(self, words: Sequence[int]) -> None:
        """Adopt the broker's ack set: a 0 bit is acknowledged (framing.md section 8)."""
        flags = self.flags
        for index in range(len(flags)):
            word = index >> 6
            unacked = words[word] >> (index & 63) & 1 if word < len(words) else 0
            if not unacked and flags[index]:
                flags[index] = 0
                self.remaining -= 1

    def ack_set(self) -> list[int]:
        """Return the wire's bit words, 1 for unacknowledged, as signed numbers without trailing zeros."""
        return ack_set_words(self.flags)


def ack_set_words(flags: bytes | bytearray) -> list[int]:
    """Return Java's ``BitSet.toLongArray`` of flags (0 or 1 per message)."""
    bits = int(flags.translate(_TO_DIGITS)[::-1] or b"0", 2)
    words = []
    while bits:
        word = bits & 0xFFFFFFFFFFFFFFFF
        words.append(word - (1 << 64) if word >> 63 else word)
        bits >>= 64
    return words


_TO_DIGITS = bytes([ord("0"), ord("1")]) + bytes(254)


@dataclass(slots=True, eq=False, repr=False)
class ReceivedEntry:
    """One entry as the broker delivered it.

    ``raw`` is the entry from its ``0x0e01`` magic on; ``body`` the decrypted and decompressed payload. An
    entry that is queued whole has no ``body`` and no ``metadata`` until it is opened. For a batch
    (``batched``, and ``count`` messages) ``starts`` holds the offset of every message's size prefix in
    ``body`` and the end of the body; for a single message it is None. ``releases`` are permits that are
    returned when the messages with these indexes are taken.
    """

    origin: ConsumerOrigin
    ledger_id: int
    entry_id: int
    metadata: Any
    batched: bool = False
    count: int = 1
    redelivery_count: int = 0
    ack_set: Sequence[int] = ()
    _: KW_ONLY
    raw: Buffer | None = None
    body: Buffer | None = None
    starts: list[int] | None = None
    acks: EntryAcks | None = None
    chunk_ids: list[tuple[int, int]] | None = None
    releases: dict[int, Release] | None = field(default=None, init=False)

    def key(self, index: int) -> tuple[int, int]:
        """Return ledger and entry id."""
        return self.ledger_id, self.entry_id

    def own_metadata(self, index: int) -> Any:
        """Return the metadata of the message at ``index``: its part of a batch, or the entry's."""
        starts, body = self.starts, self.body
        if starts is None or body is None:
            return self.metadata
        start = starts[index]
        return pb.SingleMessageMetadata.FromString(
            bytes(body[start + 4 : start + 4 + _read_size(body, start)[0]])
        )

    def size_bytes(self, index: int) -> int:
        """Return the size of the payload of the message at ``index``."""
        starts, body = self.starts, self.body
        assert body is not None
        if starts is None:
            return len(body)
        return starts[index + 1] - starts[index] - 4 - int(_read_size(body, starts[index])[0])

    @property
    def total_bytes(self) -> int:
        """Bytes that the entry holds in memory."""
        return len(self.body or self.raw or b"")

    def held_bytes(self, indexes: Sequence[int]) -> int:
        """Return the share of these messages in the entry's memory."""
        return self.total_bytes * len(indexes) // max(1, self.count)

    def has_release(self, index: int) -> bool:
        """Return whether the message at ``index`` carries permits."""
        return bool(self.releases) and index in (self.releases or ())

    def take_releases(self, indexes: Iterable[int]) -> list[Release]:
        """Remove and return the permits of these messages."""
        releases = self.releases
        if not releases:
            return []
        return [releases.pop(index) for index in indexes if index in releases]

    def message_id(self, index: int) -> MessageId:
        """Return the id of the message at ``index`` (-1 for a single message)."""
        first_chunk = None
        if self.chunk_ids is not None:
            first_chunk = MessageId(self.origin.partition, *self.chunk_ids[0])
        return MessageId(
            self.origin.partition, self.ledger_id, self.entry_id, index,
            batch_size=self.count if index >= 0 else 0, first_chunk=first_chunk, topic=self.origin.topic,
            cluster=self.origin.cluster,
        )  # fmt: skip


Row = tuple[int, tuple[int, int], Any, bytes]
"""A message of an `UnbatchedRun`: its index, ledger and entry id, metadata (encoded, or parsed already), and
payload."""


class UnbatchedRun:
    """Unbatched messages that arrived together. Each is a `Row`, used like the index of a message in a batch;
    a message that is kept keeps its own row only.

    ``releases``: see `ReceivedEntry`, by the index in the run.
    """

    __slots__ = ("origin", "redelivery_count", "releases", "total_bytes")

    acks = chunk_ids = metadata = raw = starts = None
    batched = False

    def __init__(self, origin: ConsumerOrigin, redelivery_count: int, total_bytes: int) -> None:
        self.origin = origin
        self.redelivery_count = redelivery_count
        self.total_bytes = total_bytes
        """Size of all its payloads."""
        self.releases: dict[int, Release] | None = None

    def key(self, row: Row) -> tuple[int, int]:
        """Return ledger and entry id of a message."""
        return row[1]

    def own_metadata(self, row: Row) -> Any:
        """Return the metadata of a message."""
        metadata = row[2]
        return pb.MessageMetadata.FromString(metadata) if type(metadata) is bytes else metadata

    def size_bytes(self, row: Row) -> int:
        """Return the size of a payload."""
        return len(row[3])

    def held_bytes(self, rows: Sequence[Row]) -> int:
        """Return the size of the payloads."""
        return sum([len(row[3]) for row in rows])

    def has_release(self, row: Row) -> bool:
        """Return whether a message carries permits."""
        return bool(self.releases) and row[0] in (self.releases or ())

    def take_releases(self, rows: Iterable[Row]) -> list[Release]:
        """Remove and return the permits of these messages."""
        releases = self.releases
        if not releases:
            return []
        return [releases.pop(row[0]) for row in rows if row[0] in releases]

    def message_id(self, row: Row) -> MessageId:
        """Return the id of a message."""
        origin = self.origin
        return MessageId(origin.partition, *row[1], -1, topic=origin.topic, cluster=origin.cluster)

    def entry_of(self, row: Row) -> ReceivedEntry:
        """Return a message as an entry of its own."""
        return ReceivedEntry(
            self.origin, *row[1], self.own_metadata(row), body=row[3],
            redelivery_count=self.redelivery_count,
        )  # fmt: skip


ALONE = range(-1, 0)
"""The indexes of an entry that is a single message."""


def key_of(message: Message[Any]) -> tuple[int, int]:
    """Return the ledger and entry id of a message."""
    return message._entry.key(message._index)  # type: ignore[no-any-return]


def place_of(message: Message[Any]) -> tuple[Any, Any]:
    """Return the entry or run that a message is in, and its index or row there."""
    return message._entry, message._index


entry_of = attrgetter("_entry")
"""Function that returns the entry or run that a message is in."""


def places_of(messages: Iterable[Message[Any]]) -> list[Any]:
    """Return the index or row of each message in its entry or run."""
    return [message._index for message in messages]


def origins_of(messages: Iterable[Message[Any]]) -> set[ConsumerOrigin]:
    """Return what `origin_of` returns for these messages."""
    return {message._entry.origin for message in messages}


def origin_of(message: Message[Any]) -> ConsumerOrigin:
    """Return the common data of the entries of the consumer that received a message."""
    return message._entry.origin  # type: ignore[no-any-return]


def carries_permits(message: Message[Any]) -> bool:
    """Return whether taking the message returns permits."""
    return message._entry.has_release(message._index)  # type: ignore[no-any-return]


def indexes_of(entry: ReceivedEntry) -> Sequence[int]:
    """Return the indexes of the unacknowledged messages of an opened entry."""
    if entry.starts is None:
        return ALONE
    acks = entry.acks
    if acks is None or acks.remaining == entry.count:
        return range(entry.count)
    return [index for index, unacked in enumerate(acks.flags) if unacked]


def indexes_left(entry: ReceivedEntry) -> Sequence[int]:
    """Return the indexes of the unacknowledged messages that are in the entry's ack set."""
    indexes = indexes_of(entry)
    return indexes if entry.starts is None else in_ack_set(indexes, entry.ack_set)


def in_ack_set(indexes: Sequence[int], words: Sequence[int]) -> Sequence[int]:
    """Return the indexes that an ack set contains; all of them if it is empty."""
    if not words:
        return indexes
    return [index for index in indexes if index >> 6 < len(words) and words[index >> 6] >> (index & 63) & 1]


class ConsumerOrigin:
    """Common data of one consumer's entries; the object also identifies their consumer.

    ``cluster`` counts the clusters that the client has used: an id is valid in its own cluster only.
    ``keeps``: the topic is persistent. A non-persistent topic gives all messages the same id and redelivers
    none.
    """

    __slots__ = ("cluster", "keeps", "partition", "schema", "topic")

    def __init__(self, topic: str, partition: int, schema: Any = None, cluster: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        self.schema = schema
        self.cluster = cluster
        self.keeps = not topic.startswith("non-persistent://")


class Message(Generic[T_co]):
    """A received message. Method names are ``pulsar-client``'s; values are decoded on access. Programs may
    set attributes of their own."""

    __slots__ = ("__dict__", "_entry", "_index", "_metadata")

    _metadata: Any

    def __init__(self, entry: ReceivedEntry | UnbatchedRun, index: Any) -> None:
        self._entry: Any = entry
        self._index = index

    def data(self) -> bytes:
        """Return the payload."""
        index = self._index
        if type(index) is tuple:
            return cast(bytes, index[3])
        entry: ReceivedEntry = self._entry
        body = entry.body
        assert body is not None
        starts = entry.starts
        if starts is None:
            return bytes(body)
        start = starts[index]
        return bytes(body[start + 4 + _read_size(body, start)[0] : starts[index + 1]])

    def size_bytes(self) -> int:
        """Return the size of the payload in bytes."""
        return cast(int, self._entry.size_bytes(self._index))

    def value(self) -> T_co:
        """Return the payload decoded by the consumer's schema; the bytes themselves without a schema.

        A tombstone (`has_null_value`) is None with most schemas, despite the type annotation.
        """
        schema = self._entry.origin.schema
        if schema is None:
            return cast(T_co, self.data())
        decode_message = getattr(schema, "decode_message", None)
        value: T_co = schema.decode(self.data()) if decode_message is None else decode_message(self)
        return value

    def _own_metadata(self) -> Any:
        """Return the message's own metadata: its part of a batch, or the entry's for a single message."""
        index = self._index
        if type(index) is tuple and type(index[2]) is not bytes:
            return index[2]  # parsed with its run
        metadata = getattr(self, "_metadata", None)
        if metadata is None:
            metadata = self._metadata = self._entry.own_metadata(index)
        return metadata

    def _entry_metadata(self) -> Any:
        """Return the metadata of the entry, which in a batch all messages share."""
        metadata = self._entry.metadata
        return self._own_metadata() if metadata is None else metadata

    def properties(self) -> dict[str, str]:
        """Return the application's properties; the last value of a repeated key."""
        pairs = self._own_metadata().properties
        found = {pair.key: pair.value for pair in pairs}
        try:
            "".join((*found, *found.values()))
        except TypeError:  # not UTF-8
            found = {text(pair.key): text(pair.value) for pair in pairs}
        return found

    def partition_key(self) -> str:
        """Return the key, empty without one. A key of bytes (Java) is its base64 text."""
        return text(self._own_metadata().partition_key)

    def has_partition_key(self) -> bool:
        """Return whether there is a key, which may be empty."""
        return bool(self._own_metadata().HasField("partition_key"))

    def partition_key_is_base64(self) -> bool:
        """Return whether `partition_key` is the base64 text of a key of bytes."""
        return bool(self._own_metadata().partition_key_b64_encoded)

    def ordering_key(self) -> str:
        """Return the ordering key as text (invalid UTF-8 is kept as surrogates), empty without one."""
        return bytes(self._own_metadata().ordering_key).decode("utf-8", "surrogateescape")

    def publish_timestamp(self) -> int:
        """Return when the producer published the message, in milliseconds since 1970."""
        return int(self._entry_metadata().publish_time)

    def event_timestamp(self) -> int:
        """Return the application's event time in milliseconds since 1970; 0 without one."""
        return int(self._own_metadata().event_time)

    def message_id(self) -> MessageId:
        """Return the id, for acknowledging the message, or for starting a reader or a seek there."""
        return cast(MessageId, self._entry.message_id(self._index))

    def topic_name(self) -> str:
        """Return the complete topic name, with the partition's suffix."""
        return cast(str, self._entry.origin.topic)

    def redelivery_count(self) -> int:
        """Return how many times the broker has delivered the message before."""
        return int(self._entry.redelivery_count)

    def schema_version(self) -> str:
        """Return the version of the schema that the message was written with, empty without one."""
        return bytes(self._entry_metadata().schema_version).decode("latin-1")

    def int_schema_version(self) -> int:
        """Return `schema_version` as a number; -1 without one."""
        version = bytes(self._entry_metadata().schema_version)
        return int.from_bytes(version, "big") if version else -1

    def producer_name(self) -> str:
        """Return the name of the message's producer."""
        return text(self._entry_metadata().producer_name)

    def sequence_id(self) -> int:
        """Return the producer's sequence id of this message."""
        own, of_entry = self._own_metadata(), self._entry_metadata()
        if own is of_entry or own.HasField("sequence_id"):
            return int(own.sequence_id)
        return int(of_entry.sequence_id) + int(max(self._index, 0))

    def replicated_from(self) -> str:
        """Return the cluster that the message was replicated from, empty if it was not replicated."""
        return text(self._entry_metadata().replicated_from)

    def has_null_value(self) -> bool:
        """Return whether the message is a tombstone: its value is null, not empty."""
        return bool(self._own_metadata().null_value)

    def encryption_context(self) -> EncryptionContext | None:
        """Return the encryption details of an encrypted message, None for any other.

        See ``ConsumerCryptoFailureAction.CONSUME``.
        """
        metadata = self._entry_metadata()
        if not metadata.encryption_keys:
            return None
        # The raw entry is dropped once its payload is decrypted.
        return EncryptionContext(metadata, decryption_failed=self._entry.raw is not None)

    def __repr__(self) -> str:
        return f"Message(id={self.message_id()}, topic={self.topic_name()!r})"
