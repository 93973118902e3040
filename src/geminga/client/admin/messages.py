"""Messages and ids in admin REST: entries with headers, and batches to split."""

import datetime as dt
import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from geminga.client.admin.exchange import AdminResponse
from geminga.client.admin.types import StoredMessage
from geminga.config import check_int, refuse
from geminga.errors import InvalidConfiguration, OperationNotSupported, ProtocolError
from geminga.ids import MessageId
from geminga.wire.batch import decode_batch

Moment = dt.datetime | dt.timedelta | int
"""A time: a datetime with a time zone, milliseconds since 1970, or a timedelta back from now."""


class PeekedEntry(NamedTuple):
    """An entry from peek, examine and similar calls; a batch is one entry."""

    message_id: MessageId
    headers: Mapping[str, str]
    body: bytes
    batched: bool
    messages: int


def entry_of(answer: AdminResponse, partition: int) -> PeekedEntry:
    """Return the entry of an answer. Raises `ProtocolError` if the answer does not identify it."""
    found = {
        name.removeprefix("x-pulsar-"): value
        for name, value in answer.headers.items()
        if name.startswith("x-pulsar-")
    }
    ledger, _, entry = found.get("message-id", "").partition(":")
    try:
        position = MessageId(partition, int(ledger), int(entry.split(":")[0]))
        count = int(found.get("num-batch-message", 1))
    except ValueError:
        raise ProtocolError("the broker's answer does not say which message it is") from None
    return PeekedEntry(position, found, answer.body, "num-batch-message" in found, count)


def messages_of(entry: PeekedEntry) -> list[StoredMessage]:
    """Return the messages of an entry. An encrypted batch is returned as one message, as it was sent."""
    position, headers, body, batched, count = entry
    encrypted = headers.get("is-encrypted", "false") == "true"
    common: dict[str, Any] = {
        "producer_name": headers.get("producer-name", ""),
        "publish_time": _time(headers.get("publish-time")) or dt.datetime.fromtimestamp(0, dt.UTC),
        "encrypted": encrypted,
        "compression": headers.get("compression", "NONE"),
    }
    if encrypted or not batched:
        return [
            StoredMessage(
                message_id=position,
                data=body,
                key=_key(headers.get("partition-key"), headers.get("partition-key-b64-encoded") == "true"),
                properties=_properties(headers.get("property")),
                sequence_id=int(headers.get("sequence-id", 0)),
                event_time=_time(headers.get("event-time")),
                **common,
            )
        ]
    return [
        StoredMessage(
            message_id=MessageId(
                position.partition, position.ledger_id, position.entry_id, index, batch_size=count
            ),
            data=message.payload,
            key=_key(message.partition_key, message.partition_key_b64),
            properties=dict(message.properties),
            sequence_id=message.sequence_id,
            event_time=_from_ms(message.event_time) if message.event_time else None,
            **common,
        )
        for index, message in enumerate(decode_batch(body, count))
        if not message.compacted_out
    ]


ENTRIES_LOOKED_AT_MAX = 10_000
"""Entries read at most to find where the requested number of messages ends, at brokers that count entries."""


class EntriesToSkip:
    """Counter of the entries that hold the next ``count`` messages: entries are added while `wants_more`.
    Raises `OperationNotSupported` if the messages end inside a batch, or span too many entries."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._at_end = False
        self.entries = 0
        self.messages = 0

    def wants_more(self) -> bool:
        if self._at_end or self.messages >= self._count:
            return False
        if self.entries >= ENTRIES_LOOKED_AT_MAX:
            raise OperationNotSupported(
                f"count={self._count}: this broker counts only entries, and at most {ENTRIES_LOOKED_AT_MAX} "
                "are read; skip with unit='entries', or reset to a time or a message"
            )
        return True

    def add(self, entry: PeekedEntry | None) -> None:
        """Add the next entry; None after the last."""
        if entry is None:
            self._at_end = True
            return
        after = self.messages + entry.messages
        if after > self._count:
            raise OperationNotSupported(
                f"count={self._count} ends inside a batch of {entry.messages} messages, which this broker "
                f"skips as a whole; possible are {self.messages} and {after}"
            )
        self.entries += 1
        self.messages = after


def _key(text: str | None, encoded: bool) -> str | None:
    if text is None or not encoded:
        return text
    try:
        return b64decode(text).decode("utf-8", "surrogateescape")
    except ValueError:
        return text


def _properties(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = json.loads(unquote(text))
    return {str(key): str(value) for key, value in found.items()}


def _time(text: str | None) -> dt.datetime | None:
    if not text:
        return None
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return _from_ms(int(text)) if text.isdigit() else None


def _from_ms(milliseconds: int) -> dt.datetime | None:
    try:
        return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    except (OverflowError, OSError, ValueError):
        return None


def id_json(message_id: MessageId, *, excluded: bool = False) -> dict[str, Any]:
    """Return a message id in the JSON form of admin REST. Raises `InvalidConfiguration` for another type."""
    if not isinstance(message_id, MessageId):
        refuse("message_id", message_id, "a MessageId, such as MessageId.earliest")
    return {
        "ledgerId": int(message_id.ledger_id),
        "entryId": int(message_id.entry_id),
        "partitionIndex": int(message_id.partition),
        "batchIndex": int(message_id.batch_index),
        "excluded": excluded,
    }


def id_of(found: Any) -> MessageId:
    """Parse a message id from JSON. Raises `ProtocolError`."""
    try:
        return MessageId(int(found.get("partitionIndex", -1)), int(found["ledgerId"]), int(found["entryId"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ProtocolError(f"{str(found)[:80]!r} is not a message id") from None


def milliseconds(field: str, when: Moment, now_ms: int) -> int:
    """Return a `Moment` in milliseconds since 1970. Raises `InvalidConfiguration`."""
    if isinstance(when, dt.timedelta):
        if when < dt.timedelta(0):
            refuse(field, when, "a timedelta back from now, not below 0")
        return max(0, now_ms - int(when.total_seconds() * 1000))
    if isinstance(when, dt.datetime):
        if when.tzinfo is None:
            raise InvalidConfiguration(
                f"{field}={when!r} has no time zone; allowed: a datetime with one, such as {field}."
                "astimezone() of local time"
            )
        return int(when.timestamp() * 1000)
    return check_int(field, when, 0)


def seconds(field: str, value: dt.timedelta | float) -> int:
    """Return a duration in whole seconds, at least 1. Raises `InvalidConfiguration`."""
    number = value.total_seconds() if isinstance(value, dt.timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 1:
        refuse(field, value, "a timedelta or seconds, 1 s and more")
    return int(number)
