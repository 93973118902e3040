"""The broker's side of one producer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from geminga.broker.commands import answers
from geminga.broker.rates import Rates
from geminga.wire.frames import encode_send_receipt
from geminga.wire.proto import pulsar_wire_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.commands.session import Session
    from geminga.broker.topics.nonpersistent import NonPersistentTopic
    from geminga.broker.topics.persistent import Topic


class Producer:
    """``pending`` counts entries that were taken in and are not reported yet."""

    __slots__ = (
        "access_mode",
        "bytes_in",
        "chunked",
        "connected_since_ms",
        "encrypted",
        "epoch",
        "messages_in",
        "metadata",
        "name",
        "on_drained",
        "pending",
        "producer_id",
        "rates",
        "removed",
        "schema_version",
        "session",
        "topic",
        "topic_epoch",
        "user_provided_name",
        "write",
    )

    def __init__(
        self,
        session: Session,
        topic: Topic | NonPersistentTopic,
        *,
        producer_id: int,
        name: str,
        epoch: int,
        user_provided_name: bool,
        access_mode: int,
        topic_epoch: int | None,
        encrypted: bool,
        metadata: Mapping[str, str],
        now_ms: int,
    ) -> None:
        self.session = session
        self.write = session.output.write
        self.topic = topic
        self.producer_id = producer_id
        self.name = name
        self.epoch = epoch
        self.user_provided_name = user_provided_name
        self.access_mode = access_mode
        self.topic_epoch = topic_epoch
        self.encrypted = encrypted
        self.metadata = metadata
        self.connected_since_ms = now_ms
        self.schema_version = b""
        self.pending = 0
        self.removed = False
        self.on_drained: Callable[[], None] | None = None
        self.messages_in = 0
        self.bytes_in = 0
        self.chunked = False
        self.rates = Rates(session.broker.now, 2)

    def __repr__(self) -> str:
        return f"Producer({self.name!r}, id {self.producer_id}, {self.session.peer})"

    @property
    def access_mode_name(self) -> str:
        return pb.ProducerAccessMode.Name(self.access_mode)

    def taken(self, messages: int, size: int, *, chunk: bool) -> None:
        """An entry was handed to the store."""
        if chunk:
            self.chunked = True
        self.pending += 1
        self.messages_in += messages
        self.bytes_in += size
        self.session.publish_started(size)

    def receipt(self, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """Write a SEND_RECEIPT; -1:-1 says that the entry was a duplicate."""
        self.write(
            encode_send_receipt(
                self.producer_id, sequence_id, highest_sequence_id or None, ledger_id, entry_id
            )
        )

    def error(self, sequence_id: int, code: int, reason: str) -> None:
        self.write(answers.send_error(self.producer_id, sequence_id, code, reason))

    def settled(self, size: int) -> None:
        """An entry that was `taken` has its receipt or its error."""
        self.pending -= 1
        self.session.publish_finished(size)
        if not self.pending and self.on_drained is not None:
            drained, self.on_drained = self.on_drained, None
            drained()
