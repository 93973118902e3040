"""Messages as the application sees them: `Message`, and `MessageBatch` for batch payloads at hand."""

from __future__ import annotations

from typing import Any

from geminga.consumer.message import ConsumerOrigin, Message, ReceivedEntry, messages_of
from geminga.consumer.unbatching import split_batch
from geminga.ids import MessageId
from geminga.wire.proto import pulsar_wire_pb2 as pb

__all__ = ["Message", "MessageBatch"]


class MessageBatch:
    """Reads a batch payload (framing.md section 1.4) that came from elsewhere, as in ``pulsar-client``::

    messages = MessageBatch().with_message_id(message_id).parse_from(payload, 10)
    """

    def __init__(self) -> None:
        self._message_id = MessageId()

    def with_message_id(self, msg_id: MessageId) -> MessageBatch:
        """The entry's id; the messages get it with their index. Returns this object."""
        if not isinstance(msg_id, MessageId):
            raise TypeError(f"msg_id must be a MessageId, not {type(msg_id).__name__}")
        self._message_id = msg_id
        return self

    def parse_from(self, data: bytes, size: int) -> list[Message[Any]]:
        """The ``size`` messages of an uncompressed batch payload. Raises `CorruptPayload`."""
        place = self._message_id
        origin = ConsumerOrigin(place.topic, place.partition)
        starts, removed = split_batch(bytes(data), size)
        metadata = pb.MessageMetadata(num_messages_in_batch=size)
        entry = ReceivedEntry(
            origin, place.ledger_id, place.entry_id, metadata, batched=True, body=bytes(data),
            starts=starts, count=size,
        )  # fmt: skip
        gone = set(removed)
        return [message for message in messages_of(entry) if message._index not in gone]
