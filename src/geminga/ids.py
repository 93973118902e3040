"""MessageId and TopicName: the two names that every layer speaks.

MessageId's text and byte forms are Pulsar's (``MessageIdData``); the order is ledger, entry,
partition, batch index, as in the Java client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache, total_ordering
from operator import index
from sys import intern
from typing import ClassVar
from urllib.parse import quote

from geminga.config import refuse
from geminga.errors import InvalidTopicName

_EARLIEST = -1
_LATEST = (1 << 63) - 1
_U64 = (1 << 64) - 1


def to_unsigned(value: int) -> int:
    """-1 travels as 2^64-1 in the wire's uint64 fields (framing.md section 14)."""
    return value & _U64


def to_signed(value: int) -> int:
    """The inverse of `to_unsigned`."""
    return value - (1 << 64) if value >> 63 else value


def _varint(value: int) -> bytes:
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_INT32 = 1 << 31
_INT64 = 1 << 63


def _whole(name: str, value: int, end: int) -> int:
    """The number, which has a place in a signed field that ends below ``end``."""
    if type(value) is not int:
        try:
            value = int(index(value))
        except TypeError:
            raise TypeError(f"{name} must be a whole number, not {type(value).__name__}") from None
    if not -end <= value < end:
        refuse(name, value, f"a whole number >= {-end} and < {end}")
    return value


class IdNumber(int):
    """A number of a `MessageId`. Calling it gives the plain number: the accessors of ``pulsar-client``'s
    message ids are methods, ours are attributes, and this way both spellings work."""

    __slots__ = ()

    def __call__(self) -> int:
        return int(self)


@total_ordering
class MessageId:
    """The place of a message: ``(ledger_id, entry_id, partition, batch_index)``.

    ``partition`` is -1 for a topic without partitions; ``batch_index`` is -1 for a message that is
    alone in its entry. ``batch_size`` (0 when unknown), ``first_chunk``, ``topic`` and ``cluster`` (which of
    the clusters that a client went through gave the id) do not take part in comparison. Constructor order is
    ``pulsar-client``'s, and as there the four numbers may also be called: ``message_id.ledger_id()`` and
    ``message_id.ledger_id`` give the same (see `IdNumber`).
    """

    __slots__ = (
        "_batch_index",
        "_entry_id",
        "_ledger_id",
        "_partition",
        "batch_size",
        "cluster",
        "first_chunk",
        "topic",
    )

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(
        self,
        partition: int = -1,
        ledger_id: int = -1,
        entry_id: int = -1,
        batch_index: int = -1,
        *,
        batch_size: int = 0,
        first_chunk: MessageId | None = None,
        topic: str = "",
        cluster: int = 0,
    ) -> None:
        # What has no place in the wire's fields would break the frame that it gets into, for everybody. An id
        # is made for many a message: what is as it should be is seen in one look.
        if not (
            type(partition)
            is type(ledger_id)
            is type(entry_id)
            is type(batch_index)
            is type(batch_size)
            is int
            and -0x8000_0000 <= partition < 0x8000_0000
            and -0x8000_0000_0000_0000 <= ledger_id < 0x8000_0000_0000_0000
            and -0x8000_0000_0000_0000 <= entry_id < 0x8000_0000_0000_0000
            and -0x8000_0000 <= batch_index < 0x8000_0000
            and -0x8000_0000 <= batch_size < 0x8000_0000
        ):
            partition = _whole("partition", partition, _INT32)
            ledger_id = _whole("ledger_id", ledger_id, _INT64)
            entry_id = _whole("entry_id", entry_id, _INT64)
            batch_index = _whole("batch_index", batch_index, _INT32)
            batch_size = batch_size if batch_size == 0 else _whole("batch_size", batch_size, _INT32)
        self._partition = partition
        self._ledger_id = ledger_id
        self._entry_id = entry_id
        self._batch_index = batch_index
        self.batch_size = batch_size
        self.first_chunk = first_chunk
        self.topic = topic
        self.cluster = cluster

    @property
    def partition(self) -> IdNumber:
        """-1 for a topic without partitions."""
        return IdNumber(self._partition)

    @partition.setter
    def partition(self, value: int) -> None:
        self._partition = _whole("partition", value, _INT32)

    @property
    def ledger_id(self) -> IdNumber:
        """The ledger of the entry."""
        return IdNumber(self._ledger_id)

    @ledger_id.setter
    def ledger_id(self, value: int) -> None:
        self._ledger_id = _whole("ledger_id", value, _INT64)

    @property
    def entry_id(self) -> IdNumber:
        """The entry's place in its ledger."""
        return IdNumber(self._entry_id)

    @entry_id.setter
    def entry_id(self, value: int) -> None:
        self._entry_id = _whole("entry_id", value, _INT64)

    @property
    def batch_index(self) -> IdNumber:
        """-1 for a message that is alone in its entry."""
        return IdNumber(self._batch_index)

    @batch_index.setter
    def batch_index(self, value: int) -> None:
        self._batch_index = _whole("batch_index", value, _INT32)

    def _key(self) -> tuple[int, int, int, int]:
        return (self._ledger_id, self._entry_id, self._partition, self._batch_index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageId) and self._key() == other._key()

    def __lt__(self, other: MessageId) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return f"({self._ledger_id},{self._entry_id},{self._partition},{self._batch_index})"

    def __repr__(self) -> str:
        return (
            f"MessageId(partition={self._partition}, ledger_id={self._ledger_id}, "
            f"entry_id={self._entry_id}, batch_index={self._batch_index})"
        )

    def __reduce__(self) -> tuple[object, tuple[bytes, str]]:
        return (MessageId.deserialize, (self.serialize(), self.topic))

    def serialize(self) -> bytes:
        """The bytes of ``MessageIdData``, as ``pulsar-client`` writes them (algorithms.md section 7)."""
        out = b"\x08" + _varint(self._ledger_id) + b"\x10" + _varint(self._entry_id)
        if self._partition >= 0:
            out += b"\x18" + _varint(self._partition)
        if self._batch_index >= 0:
            out += b"\x20" + _varint(self._batch_index)
        if self.batch_size > 0:
            out += b"\x30" + _varint(self.batch_size)
        if self.first_chunk is not None:
            inner = self.first_chunk.serialize()
            out += b"\x3a" + _varint(len(inner)) + inner
        return out

    def topic_name(self, topic: str | None = None) -> str:
        """The topic that the id belongs to, empty when it is not known.

        With ``topic``, which becomes it: an id that was kept as bytes does not say where it came from, and a
        consumer of several topics has to know.
        """
        if topic is not None:
            self.topic = topic
        return self.topic

    @classmethod
    def wrap(cls, msg_id: MessageId) -> MessageId:
        """The same id: ``pulsar-client`` has two classes of ids and this leads from one to the other."""
        if not isinstance(msg_id, cls):
            raise TypeError(f"msg_id must be a {cls.__name__}, not {type(msg_id).__name__}")
        return msg_id

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """Read the bytes of any Pulsar client's message id.

        Raises `ValueError` when the bytes are no ``MessageIdData``.
        """
        from google.protobuf.message import DecodeError

        from geminga.wire.proto import pulsar_wire_pb2 as pb

        data = pb.MessageIdData()
        reason: DecodeError | None = None
        try:
            data.ParseFromString(bytes(message_id_bytes))
        except DecodeError as error:
            reason = error
        if reason is not None or not data.IsInitialized():
            shown = bytes(message_id_bytes)[:40].hex()
            raise ValueError(f"not the bytes of a message id: {shown}") from reason
        return MessageId.from_wire(data, topic=topic or "")

    @staticmethod
    def from_wire(data: object, *, partition: int | None = None, topic: str = "") -> MessageId:
        """From a ``MessageIdData`` message; ``partition`` overrides what it says when given."""
        d: object = data
        first = d.first_chunk_message_id if d.HasField("first_chunk_message_id") else None  # type: ignore[attr-defined]
        return MessageId(
            d.partition if partition is None else partition,  # type: ignore[attr-defined]
            to_signed(d.ledgerId),  # type: ignore[attr-defined]
            to_signed(d.entryId),  # type: ignore[attr-defined]
            d.batch_index,  # type: ignore[attr-defined]
            batch_size=d.batch_size,  # type: ignore[attr-defined]
            first_chunk=None if first is None else MessageId.from_wire(first),
            topic=topic,
        )


MessageId.earliest = MessageId(-1, _EARLIEST, _EARLIEST, -1)
MessageId.latest = MessageId(-1, _LATEST, _LATEST, -1)


_PART = re.compile(r"[-=:.\w]*\Z", re.ASCII)
_PARTITION_SUFFIX = re.compile(r"-partition-(0|[1-9][0-9]*)\Z")
NAMES_KEPT = 4096
"""Names that were parsed last: the same ones are asked for again and again."""
_HELP = "allowed: [{persistent|non-persistent}://]tenant/namespace/topic, or just topic"


@dataclass(frozen=True, slots=True)
class TopicName:
    """A checked topic name: ``{domain}://{tenant}/{namespace}/{local}``.

    `parse` accepts the short forms ``local`` and ``tenant/namespace/local``. ``partition`` is the
    number of a ``-partition-<n>`` suffix, -1 without one (algorithms.md section 11).
    """

    domain: str
    """``persistent`` or ``non-persistent``."""
    tenant: str
    """Whose it is."""
    namespace: str
    """The part of the tenant's."""
    local: str
    """The last part, a partition's suffix included."""
    partition: int = field(default=-1, compare=False)
    """The number of a partition; -1: it is none."""
    text: str = field(init=False, repr=False, compare=False)
    """The whole name; one text for all who keep it."""

    def __post_init__(self) -> None:
        text = f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"
        object.__setattr__(self, "text", text)

    @staticmethod
    def parse(text: str) -> TopicName:
        """Raises `InvalidTopicName` naming the text and what is allowed."""
        if not isinstance(text, str) or not text.strip() or "\x00" in text:
            raise InvalidTopicName(f"topic name {text!r} is empty or not text; {_HELP}")
        return _parsed(text)

    def __str__(self) -> str:
        return self.text

    @property
    def persistent(self) -> bool:
        """True for ``persistent://``."""
        return self.domain == "persistent"

    @property
    def namespace_name(self) -> str:
        """``tenant/namespace``"""
        return f"{self.tenant}/{self.namespace}"

    @property
    def base(self) -> TopicName:
        """The partitioned topic that this is a partition of; itself without a partition suffix."""
        if self.partition < 0:
            return self
        local = self.local[: self.local.rindex("-partition-")]
        return TopicName(self.domain, self.tenant, self.namespace, local)

    def partition_name(self, index: int) -> TopicName:
        """The topic of partition ``index``."""
        return TopicName(self.domain, self.tenant, self.namespace, f"{self.local}-partition-{index}", index)

    @property
    def encoded_local(self) -> str:
        """The local name, percent-encoded for REST paths and storage names."""
        return quote(self.local, safe="")


def forget_names() -> None:
    """Forget what was parsed: the topics have gone."""
    _parsed.cache_clear()


@lru_cache(maxsize=NAMES_KEPT)
def _parsed(text: str) -> TopicName:
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = "persistent", text
        if "/" not in rest:
            rest = f"public/default/{rest}"
    if domain not in ("persistent", "non-persistent"):
        raise InvalidTopicName(f"topic name {text!r} has the domain {domain!r}; {_HELP}")
    parts = rest.split("/")
    if len(parts) != 3:
        raise InvalidTopicName(f"topic name {text!r} has {len(parts)} parts; {_HELP}")
    tenant, namespace, local = parts
    for what, part in (("tenant", tenant), ("namespace", namespace)):
        if not part or not _PART.match(part) or part in (".", ".."):
            raise InvalidTopicName(
                f"topic name {text!r}: {what} {part!r} may only hold letters, digits and -=:._"
            )
    if not local.strip():
        raise InvalidTopicName(f"topic name {text!r} has a blank local name; {_HELP}")
    suffix = _PARTITION_SUFFIX.search(local)
    # Very many names share these.
    domain, tenant, namespace = intern(domain), intern(tenant), intern(namespace)
    return TopicName(domain, tenant, namespace, local, int(suffix.group(1)) if suffix else -1)
