"""Messages of the public API: `Message`, and `MessageBatch` for batch payloads."""

from __future__ import annotations

from typing import Any

from geminga.consumer.message import ConsumerOrigin, Message, ReceivedEntry
from geminga.ids import MessageId
from geminga.wire.batch import split_batch
from geminga.wire.proto import pulsar_wire_pb2 as pb

__all__ = ["Message", "MessageBatch"]


class MessageBatch:
    """Parser of a batch payload (framing.md section 1.4) from another source, as in ``pulsar-client``::

    messages = MessageBatch().with_message_id(message_id).parse_from(payload, 10)
    """

    def __init__(self) -> None:
        self._message_id = MessageId()

    def with_message_id(self, msg_id: MessageId) -> MessageBatch:
        """Set the entry's id, which the messages get with their index. Returns this object."""
        if not isinstance(msg_id, MessageId):
            raise TypeError(f"msg_id must be a MessageId, not {type(msg_id).__name__}")
        self._message_id = msg_id
        return self

    def parse_from(self, data: bytes, size: int) -> list[Message[Any]]:
        """Return the ``size`` messages of an uncompressed batch payload. Raises `CorruptPayload`."""
        entry_id = self._message_id
        origin = ConsumerOrigin(entry_id.topic, entry_id.partition)
        starts, removed = split_batch(bytes(data), size)
        metadata = pb.MessageMetadata(num_messages_in_batch=size)
        entry = ReceivedEntry(
            origin, entry_id.ledger_id, entry_id.entry_id, metadata, batched=True, body=bytes(data),
            starts=starts, count=size,
        )  # fmt: skip
        gone = set(removed)
        return [Message(entry, index) for index in range(size) if index not in gone]
