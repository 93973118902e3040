"""Publishing of ready-made entries to a topic, each with a given sequence id: for mirrors.

Unlike the client's producer it never resends: when the connection or the broker ends it, the caller opens
another one, after it has determined what was stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from geminga.client.handles.context import ClientContext
from geminga.client.handles.producer_handle import close_command
from geminga.client.io.pool import BrokerConnection
from geminga.connection.addresses import Address
from geminga.errors import AlreadyClosed, ConnectError, MessageTooBig, PulsarException, from_server
from geminga.wire.checksum import Buffer
from geminga.wire.client_frames import ReceiptRun
from geminga.wire.frame_encoding import encode_send
from geminga.wire.frames import Frame, ReceiptFrame, encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

_PADDING_BYTES = 10 * 1024
"""Brokers accept frames that exceed their largest message by this."""

OnReceipt = Callable[[int, int, int], None]
"""Called with the sequence id, ledger and entry; both are -1 for an entry that deduplication has dropped. An
error that it raises ends the publisher."""


class EntryPublisher:
    """Publisher of entries, created by `open`. All methods run on the client's loop.

    ``last_sequence_id``: highest one that deduplication has stored for this producer name; -1 without one.
    ``ended`` resolves to the error that ends the publisher.
    """

    def __init__(self, context: ClientContext, topic: str, name: str, on_receipt: OnReceipt) -> None:
        self.topic = topic
        self.name = name
        self.last_sequence_id = -1
        self.ended: asyncio.Future[None] = context.loop.create_future()
        self._context = context
        self._on_receipt = on_receipt
        self._id = context.new_producer_id()
        self._connection: BrokerConnection | None = None

    @classmethod
    async def open(
        cls,
        context: ClientContext,
        topic: str,
        name: str,
        on_receipt: OnReceipt,
        *,
        schema: pb.Schema | None = None,
        encrypted: bool = False,
    ) -> EntryPublisher:
        """Open a publisher. ``schema``: schema of the topic, if the topic requires one. ``encrypted``:
        declare encryption, if the topic requires it. Raises the broker's error: `ProducerBusy` while another
        producer of this name is connected."""
        found = cls(context, topic, name, on_receipt)
        connection = await context.connection_to(topic, awaits_service=False)
        connection.add_producer(found._id, found)
        connection.watch(found, found._detached)
        try:
            answer = await connection.request(
                lambda request_id: found._create_command(request_id, schema, encrypted),
                context.settings.operation_timeout_seconds,
            )
        except BaseException as error:
            connection.forget(found)
            if not connection.closed and not isinstance(error, PulsarException):
                connection.write(encode_command(close_command(found._id, connection.new_request_id())))
            raise
        found._connection = connection
        found.last_sequence_id = answer.producer_success.last_sequence_id
        return found

    def _create_command(self, request_id: int, schema: pb.Schema | None, encrypted: bool) -> pb.BaseCommand:
        body = pb.CommandProducer(
            topic=self.topic,
            producer_id=self._id,
            request_id=request_id,
            producer_name=self.name,
            user_provided_producer_name=True,
            encrypted=encrypted,
            schema=schema,
        )
        return pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=body)

    def send(self, sequence_id: int, messages: int, *pieces: Buffer) -> None:
        """Send an entry of ``messages`` messages, given in pieces; sequence ids must increase. Raises
        `MessageTooBig`, and the error that ended the publisher."""
        connection = self._connection
        if self.ended.done() or connection is None:
            self.ended.result()
            raise AlreadyClosed("the publisher is closed")
        size = sum(map(len, pieces))
        if size > connection.max_message_size + _PADDING_BYTES:
            raise MessageTooBig(
                f"{self.topic}: an entry has {size} bytes and {connection.peer} takes "
                f"{connection.max_message_size}: raise maxMessageSize there"
            )
        connection.write_many([encode_send(self._id, sequence_id, messages, None, size), *pieces])

    @property
    def writable(self) -> bool:
        return self._connection is None or self._connection.writable

    async def drain(self) -> None:
        """Wait until the write buffer of the connection has space."""
        if self._connection is not None:
            await self._connection.drain()

    # --- called by the connection ------------------------------------------------------------------

    def on_frame(self, frame: Frame) -> None:
        if type(frame) is ReceiptRun:
            for one in frame.frames():
                self._receipt(one)
        elif isinstance(frame, ReceiptFrame):
            self._receipt(frame)
        elif frame.type == pb.BaseCommand.SEND_ERROR:
            body = frame.command.send_error
            self.end(from_server(body.error, body.message))

    def _receipt(self, frame: ReceiptFrame) -> None:
        if self.ended.done():
            return
        try:
            self._on_receipt(frame.sequence_id, frame.ledger_id, frame.entry_id)
        except PulsarException as error:
            self.end(error)

    def _detached(self, error: Exception | None, _assigned: Address | None) -> None:
        self._connection = None
        self.end(error or ConnectError(f"the broker closed the producer of {self.topic}"))

    def end(self, error: Exception) -> None:
        """Stop sending; later receipts are ignored."""
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # later calls still get the error

    async def close(self) -> None:
        """Close the producer at the broker and wait for the response: then its name is free."""
        connection, self._connection = self._connection, None
        self.end(AlreadyClosed("the publisher is closed"))
        if connection is None or connection.closed:
            return
        try:
            with contextlib.suppress(PulsarException):
                await connection.request(
                    partial(close_command, self._id), self._context.settings.operation_timeout_seconds
                )
        finally:
            connection.forget(self)
