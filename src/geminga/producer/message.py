"""Step 2 of publishing: an outgoing message, and the checks of a caller's arguments.

The row path's plain messages (bytes and nothing else) never become an `OutgoingMessage`: only their payload
is kept. All others do.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import timedelta
from typing import Any, NamedTuple

from geminga.config import utf8
from geminga.errors import InvalidMessage
from geminga.ids import MessageId
from geminga.producer.settings import SEQUENCE_ID_MAX
from geminga.transactions import TransactionCore

TIMESTAMP_MAX_MS = (1 << 63) - 1
LOCAL_CLUSTER = ("__local__",)
"""``replicate_to`` of a message that must not be replicated (algorithms.md section 5)."""


@dataclass(slots=True, eq=False, repr=False)
class OutgoingMessage:
    """One message. Times are milliseconds since 1970 (UTC), 0 where absent; ``sequence_id`` -1: automatic."""

    payload: bytes
    _: KW_ONLY
    null_value: bool = False
    partition_key: str | None = None
    partition_key_b64: bool = False
    ordering_key: bytes | None = None
    properties: tuple[tuple[str, str], ...] = ()
    event_time: int = 0
    deliver_at_time: int = 0
    sequence_id: int = -1
    replicate_to: tuple[str, ...] = ()
    schema_version: bytes | None = None
    transaction: TransactionCore | None = None
    _kept: dict[object, Any] | None = field(default=None, init=False)

    def replace(self, **changes: Any) -> OutgoingMessage:
        """Return a copy with some fields changed; for interceptors."""
        values = {one.name: getattr(self, one.name) for one in fields(OutgoingMessage) if one.init}
        copy = OutgoingMessage(**(values | changes))
        copy._kept = self._kept
        return copy

    def keep(self, owner: object, value: Any) -> None:
        """Store a value of an interceptor (``owner``) until the acknowledgement; it is not sent."""
        if self._kept is None:
            self._kept = {}
        self._kept[owner] = value

    def kept(self, owner: object) -> Any:
        """Return the value that ``owner`` stored with `keep`; None without one."""
        return None if self._kept is None else self._kept.get(owner)

    def shares_metadata_with(self, first: OutgoingMessage | None) -> bool:
        """Return whether this message may join a batch that ``first`` opened: the outer metadata holds one
        schema version and one transaction for the whole batch."""
        if first is None:
            return self.schema_version is None and self.transaction is None
        return self.schema_version == first.schema_version and self.transaction is first.transaction

    @property
    def is_bound(self) -> bool:
        """Whether messages without metadata cannot share its batch."""
        return self.schema_version is not None or self.transaction is not None

    def __repr__(self) -> str:
        return f"OutgoingMessage({len(self.payload)} bytes, partition_key={self.partition_key!r})"


class SimpleMessage(OutgoingMessage):
    """A message of bytes with a key, properties or both, and nothing else. Created field by field, at half
    the cost of a full one; many of them are handled together."""

    __slots__ = ()

    null_value = False
    partition_key_b64 = False
    ordering_key = None
    event_time = 0
    deliver_at_time = 0
    sequence_id = -1
    replicate_to = ()
    schema_version = None
    transaction: TransactionCore | None = None


class RichMessage(OutgoingMessage):
    """A message that is handled together with others, as a `SimpleMessage` is: it has any fields but a
    sequence id, schema version and transaction of its own, and a delivery time only if the producer makes no
    batches.

    Functions that take "simple messages" take both kinds."""

    __slots__ = ()


class BoundMessage(SimpleMessage):
    """A `SimpleMessage` of a transaction."""

    __slots__ = ("transaction",)


_new_simple = SimpleMessage.__new__


def simple_message(
    payload: bytes, key: str | None, properties: tuple[tuple[str, str], ...] = ()
) -> SimpleMessage:
    """Return a message whose key and properties need no further check."""
    message = _new_simple(SimpleMessage)
    message.payload = payload
    message.partition_key = key
    message.properties = properties
    message._kept = None
    return message


def bound_to(
    transaction: TransactionCore | None, payload: bytes, message: SimpleMessage | None
) -> SimpleMessage | None:
    """Return a simple message as one of ``transaction``; as it is without one."""
    if transaction is None or type(message) is BoundMessage:
        return message
    bound = BoundMessage.__new__(BoundMessage)
    bound.payload = payload
    bound.partition_key = None if message is None else message.partition_key
    bound.properties = () if message is None else message.properties
    bound.transaction = transaction
    bound._kept = None
    return bound


def note_refusal(message: OutgoingMessage | None, error: Exception) -> None:
    """Note in the transaction of a message, if it has one, that the message is not sent."""
    if message is not None and message.transaction is not None:
        message.transaction.failed(error)


class KeyedContent(NamedTuple):
    """A schema's encoding of a value that contains its key; a payload of None is a null value.

    The key is sent as base64 text, marked as such, like the Java client's keys of bytes.
    """

    payload: bytes | None
    key: bytes

    def give_key(self, message: OutgoingMessage) -> None:
        """Set the message's key; raise `InvalidMessage` when it has another key."""
        if message.partition_key is not None:
            raise _refuse("partition_key", message.partition_key, "none: the value's key is the message's")
        message.partition_key = b64encode(self.key).decode()
        message.partition_key_b64 = True


class RoutedMessage:
    """The message as a custom router gets it, with ``pulsar-client``'s method names.

    A router gets the encoded message: `value` is the payload, with any schema. Fields that only a published
    message has (id, topic, publish time, ...) are empty.
    """

    __slots__ = ("_message",)

    def __init__(self, message: OutgoingMessage) -> None:
        self._message = message

    def data(self) -> bytes:
        return self._message.payload

    def value(self) -> bytes:
        return self._message.payload

    def properties(self) -> dict[str, str]:
        return dict(self._message.properties)

    def partition_key(self) -> str:
        return self._message.partition_key or ""

    def ordering_key(self) -> str:
        return (self._message.ordering_key or b"").decode("utf-8", "replace")

    def event_timestamp(self) -> int:
        return self._message.event_time

    def has_null_value(self) -> bool:
        return self._message.null_value

    def message_id(self) -> MessageId:
        return MessageId()

    def topic_name(self) -> str:
        return ""

    def producer_name(self) -> str:
        return ""

    def publish_timestamp(self) -> int:
        return 0

    def redelivery_count(self) -> int:
        return 0

    def schema_version(self) -> str:
        return ""

    def encryption_context(self) -> None:
        return None


def _refuse(field: str, value: object, allowed: str) -> InvalidMessage:
    return InvalidMessage(f"{field}={value!r} is not allowed; allowed: {allowed}")


def _check_whole(field: str, value: Any, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise _refuse(field, value, f"a whole number >= 0 and <= {maximum}")
    return value


def _check_text(field: str, text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _refuse(field, text, "a text that UTF-8 can encode: no lone surrogates") from None
    return text


def _check_properties(properties: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(properties, Mapping):
        raise _refuse("properties", properties, "a dict of texts")
    try:
        if "".join(properties).isascii() and "".join(properties.values()).isascii():
            return tuple(properties.items())
    except TypeError:
        pass  # the error below names it
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str):
            decoded = {utf8(key): utf8(value) for key, value in properties.items()}
            if decoded == properties:
                raise _refuse(f"properties[{key!r}]", value, "a text, or its UTF-8 bytes, for each text")
            return _check_properties(decoded)
        _check_text("a key of properties", key)
        _check_text(f"properties[{key!r}]", value)
    return tuple(properties.items())


def _check_ordering_key(ordering_key: Any) -> bytes | None:
    if isinstance(ordering_key, str):
        return _check_text("ordering_key", ordering_key).encode() or None
    if isinstance(ordering_key, bytes):
        return ordering_key or None
    raise _refuse("ordering_key", ordering_key, "a text or bytes")


def _check_clusters(clusters: Any) -> tuple[str, ...]:
    if isinstance(clusters, str) or not isinstance(clusters, Sequence):
        raise _refuse("replication_clusters", clusters, "a list of cluster names")
    for cluster in clusters:
        if not isinstance(cluster, str) or not cluster:
            raise _refuse("replication_clusters", clusters, "a list of cluster names")
        _check_text("replication_clusters", cluster)
    return tuple(clusters)


def _delivery_time(deliver_at: Any, deliver_after: Any, now_ms: int) -> int:
    at = 0 if deliver_at is None else _check_whole("deliver_at", deliver_at, TIMESTAMP_MAX_MS)
    if deliver_after is None:
        return at
    if not isinstance(deliver_after, timedelta):
        raise _refuse("deliver_after", deliver_after, "a timedelta")
    return max(0, now_ms + deliver_after // timedelta(milliseconds=1))


def payload_of(content: Any) -> bytes:
    """Return the bytes of ``content``; raise `TypeError` if it is not bytes."""
    if type(content) is bytes:
        return content
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    raise TypeError(f"content must be bytes or None, not {type(content).__name__}; encode the value first")


def _check_key(partition_key: Any) -> str | None:
    """Return the partition key; None for an empty one."""
    if type(partition_key) is str and partition_key.isascii():
        return partition_key or None
    if not isinstance(partition_key, str):
        raise _refuse("partition_key", partition_key, "a text")
    return _check_text("partition_key", partition_key) or None


def build_simple_message(content: Any, properties: Any, partition_key: Any) -> SimpleMessage:
    """Do `build_message` for a message that has only these arguments."""
    message = _new_simple(SimpleMessage)
    message.payload = content if type(content) is bytes else payload_of(content)
    message.partition_key = None if partition_key is None else _check_key(partition_key)
    message.properties = () if properties is None else _check_properties(properties)
    message._kept = None
    return message


def build_message(
    content: Any,
    properties: Any = None,
    partition_key: Any = None,
    ordering_key: Any = None,
    sequence_id: Any = None,
    replication_clusters: Any = None,
    disable_replication: bool = False,
    event_timestamp: Any = None,
    deliver_at: Any = None,
    deliver_after: Any = None,
    *,
    now_ms: int = 0,
    kind: type[OutgoingMessage] = OutgoingMessage,
) -> OutgoingMessage:
    """Return a checked message of a ``kind`` from the arguments of ``send``.

    ``content`` None is a null value (a tombstone on compacted topics). Empty keys and empty cluster lists
    mean none, as in ``pulsar-client``. ``now_ms`` is the wall clock time to which ``deliver_after`` is added;
    a past time delivers at once. ``deliver_at`` has no effect beside ``deliver_after``. Raises
    `InvalidMessage` naming field, value and range; `TypeError` for content that is not bytes.
    """
    key = None if partition_key is None else _check_key(partition_key)
    if not isinstance(disable_replication, bool):
        raise _refuse("disable_replication", disable_replication, "True or False")
    clusters = () if replication_clusters is None else _check_clusters(replication_clusters)
    # Field by field: a call with keywords would cost more than all these checks.
    message = kind.__new__(kind)
    message.payload = b"" if content is None else payload_of(content)
    message.null_value = content is None
    message.partition_key = key
    message.partition_key_b64 = False
    message.ordering_key = None if ordering_key is None else _check_ordering_key(ordering_key)
    message.properties = () if properties is None else _check_properties(properties)
    message.event_time = (
        0 if event_timestamp is None else _check_whole("event_timestamp", event_timestamp, TIMESTAMP_MAX_MS)
    )
    message.deliver_at_time = (
        0
        if deliver_at is None and deliver_after is None
        else _delivery_time(deliver_at, deliver_after, now_ms)
    )
    message.sequence_id = (
        -1 if sequence_id is None else _check_whole("sequence_id", sequence_id, SEQUENCE_ID_MAX)
    )
    message.replicate_to = LOCAL_CLUSTER if disable_replication else clusters
    message.schema_version = None
    message.transaction = None
    message._kept = None
    return message
