"""MessageId and TopicName: names used in every layer.

MessageId's text and byte forms are Pulsar's (``MessageIdData``); the order is ledger, entry, batch index, as
in ``pulsar-client``, then partition.
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
    """Return a number as the protocol's uint64 (framing.md section 14): -1 becomes 2^64-1."""
    return value & _U64


def to_signed(value: int) -> int:
    """Return the inverse of `to_unsigned`."""
    return value - (1 << 64) if value >> 63 else value


_INT32 = 1 << 31
_INT64 = 1 << 63


def _whole(name: str, value: int, end: int) -> int:
    """Return the number, checked to fit a signed field that ends below ``end``."""
    if type(value) is not int:
        try:
            value = int(index(value))
        except TypeError:
            raise TypeError(f"{name} must be a whole number, not {type(value).__name__}") from None
    if not -end <= value < end:
        refuse(name, value, f"a whole number >= {-end} and < {end}")
    return value


class IdNumber(int):
    """A number of a `MessageId`. Calling it returns the plain number: ``pulsar-client``'s accessors are
    methods, ours are attributes, and this supports both."""

    __slots__ = ()

    def __call__(self) -> int:
        return int(self)


@total_ordering
class MessageId:
    """Id and position of a message: ``(ledger_id, entry_id, partition, batch_index)``.

    ``partition`` is -1 for an unpartitioned topic; ``batch_index`` is -1 for an unbatched message.
    ``batch_size`` (0 if unknown), ``first_chunk``, ``topic`` and ``cluster`` (the number of the cluster that
    assigned the id, after moves of the client) are not compared. Constructor order is ``pulsar-client``'s,
    and as there the four numbers may also be called: ``message_id.ledger_id()`` equals
    ``message_id.ledger_id`` (see `IdNumber`).
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
        # A number outside the protocol's fields would break the frame that contains it, for all its messages.
        # Many ids are created, so a valid one is checked in one expression.
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
        """Partition number; -1 for an unpartitioned topic."""
        return IdNumber(self._partition)

    @partition.setter
    def partition(self, value: int) -> None:
        self._partition = _whole("partition", value, _INT32)

    @property
    def ledger_id(self) -> IdNumber:
        """Id of the entry's ledger."""
        return IdNumber(self._ledger_id)

    @ledger_id.setter
    def ledger_id(self, value: int) -> None:
        self._ledger_id = _whole("ledger_id", value, _INT64)

    @property
    def entry_id(self) -> IdNumber:
        """Id of the entry in its ledger."""
        return IdNumber(self._entry_id)

    @entry_id.setter
    def entry_id(self, value: int) -> None:
        self._entry_id = _whole("entry_id", value, _INT64)

    @property
    def batch_index(self) -> IdNumber:
        """Index in the batch; -1 for an unbatched message."""
        return IdNumber(self._batch_index)

    @batch_index.setter
    def batch_index(self, value: int) -> None:
        self._batch_index = _whole("batch_index", value, _INT32)

    def _key(self) -> tuple[int, int, int, int]:
        return (self._ledger_id, self._entry_id, self._batch_index, self._partition)

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

    __repr__ = __str__

    def __reduce__(self) -> tuple[object, tuple[bytes, str]]:
        return (MessageId.deserialize, (self.serialize(), self.topic))

    def serialize(self) -> bytes:
        """Return the bytes of ``MessageIdData``, as ``pulsar-client`` writes them (algorithms.md section
        7)."""
        from geminga.wire.proto import pulsar_wire_pb2 as pb

        data = pb.MessageIdData(ledgerId=to_unsigned(self._ledger_id), entryId=to_unsigned(self._entry_id))
        if self._partition >= 0:
            data.partition = self._partition
        if self._batch_index >= 0:
            data.batch_index = self._batch_index
        if self.batch_size > 0:
            data.batch_size = self.batch_size
        if self.first_chunk is not None:
            data.first_chunk_message_id.ParseFromString(self.first_chunk.serialize())
        return data.SerializeToString()

    def topic_name(self, topic: str | None = None) -> str:
        """Return the id's topic, empty if it is not known.

        With ``topic``, set it first: an id stored as bytes lacks it, and a consumer of several topics needs
        it.
        """
        if topic is not None:
            self.topic = topic
        return self.topic

    @classmethod
    def wrap(cls, msg_id: MessageId) -> MessageId:
        """Return ``msg_id``: ``pulsar-client`` has two classes of ids, which this converts."""
        if not isinstance(msg_id, cls):
            raise TypeError(f"msg_id must be a {cls.__name__}, not {type(msg_id).__name__}")
        return msg_id

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """Read the bytes of any Pulsar client's message id. Raises `ValueError` if the bytes are not a
        ``MessageIdData``."""
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
        """Make an id from a ``MessageIdData`` message; ``partition`` overrides its field."""
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
"""Number of parsed names to cache."""
_HELP = "allowed: [{persistent|non-persistent}://]tenant/namespace/topic, or just topic"


@dataclass(frozen=True, slots=True)
class TopicName:
    """A checked topic name: ``{domain}://{tenant}/{namespace}/{local}``.

    `parse` accepts the short forms ``local`` and ``tenant/namespace/local``. ``partition`` is the number of a
    ``-partition-<n>`` suffix, -1 without one (algorithms.md section 11).
    """

    domain: str
    """``persistent`` or ``non-persistent``."""
    tenant: str
    """Name of the tenant."""
    namespace: str
    """Name of the namespace, without the tenant."""
    local: str
    """Last part, including a partition suffix."""
    partition: int = field(default=-1, compare=False)
    """Number of the partition; -1 if the name is not that of a partition."""
    text: str = field(init=False, repr=False, compare=False)
    """The whole name; equal names share one string."""

    def __post_init__(self) -> None:
        text = f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"
        object.__setattr__(self, "text", text)

    @staticmethod
    @lru_cache(maxsize=NAMES_KEPT)
    def parse(text: str) -> TopicName:
        """Parse a topic name. Raises `InvalidTopicName` naming the text and the allowed forms."""
        if not isinstance(text, str) or not text.strip() or "\x00" in text:
            raise InvalidTopicName(f"topic name {text!r} is empty or not text; {_HELP}")
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
        # Many names share these strings.
        domain, tenant, namespace = intern(domain), intern(tenant), intern(namespace)
        return TopicName(domain, tenant, namespace, local, int(suffix.group(1)) if suffix else -1)

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
        """The partitioned topic of this partition; the name itself without a partition suffix."""
        if self.partition < 0:
            return self
        local = self.local[: self.local.rindex("-partition-")]
        return TopicName(self.domain, self.tenant, self.namespace, local)

    def partition_name(self, index: int) -> TopicName:
        """Return the name of partition ``index``."""
        return TopicName(self.domain, self.tenant, self.namespace, f"{self.local}-partition-{index}", index)

    @property
    def encoded_local(self) -> str:
        """The local name, percent-encoded for REST paths and storage names."""
        return quote(self.local, safe="")
