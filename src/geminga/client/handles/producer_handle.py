"""Handle of one partition's producer, driven by a `HandleDriver`."""

import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

from geminga.client.handles.context import ClientContext
from geminga.client.handles.driver import HandleDriver
from geminga.client.io.pool import BrokerConnection
from geminga.errors import PulsarException, Timeout, UnsupportedVersionError
from geminga.producer.partition import PartitionProducer, SendErrorVerdict
from geminga.producer.settings import ProducerAccessMode, ProducerSettings
from geminga.producer.states import ProducerState
from geminga.wire.client_frames import ReceiptRun
from geminga.wire.frames import Frame, encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

logger = logging.getLogger("geminga.producer")

_SEND_RECEIPT = pb.BaseCommand.SEND_RECEIPT
_SEND_ERROR = pb.BaseCommand.SEND_ERROR
_FOREVER_SECONDS = 10.0 * 365 * 86_400


class Engine(Protocol):
    """Interface of the producer's engine to its handles."""

    context: ClientContext
    settings: ProducerSettings

    def schedule(self) -> None:
        """Process what is settled or ready to be written, soon."""

    def created(self, partition: PartitionProducer) -> None:
        """Write messages that waited for this partition, soon."""

    def receipted(self) -> None:
        """Complete what receipts have settled, soon or now."""

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine on the loop in the background."""


class ProducerHandle:
    """One partition's producer on its connection; every method runs on the loop's thread."""

    def __init__(self, publisher: Engine, partition: PartitionProducer) -> None:
        self.topic = partition.topic
        self.partition = partition
        self.connection: BrokerConnection | None = None
        self.driver = HandleDriver(publisher.context, self)
        self._publisher = publisher
        if publisher.context.metrics is not None:
            publisher.context.metrics.add_producer(partition)

    async def start(self) -> None:
        """Attach for the first time; raises the error of the creation."""
        exclusive = self._publisher.settings.access_mode is ProducerAccessMode.WaitForExclusive
        try:
            await self.driver.start(_FOREVER_SECONDS if exclusive else None)
        except Exception as error:
            self.on_failed(error)
            raise

    async def attach(self, connection: BrokerConnection) -> None:
        publisher, partition = self._publisher, self.partition
        connection.add_producer(partition.producer_id, self)
        timeout = publisher.context.settings.operation_timeout_seconds
        try:
            answer = await connection.request(partition.create_command, timeout, partition.must_wait)
            partition.check_granted(answer.producer_success, connection.server_version)
        except BaseException as error:
            if not connection.closed and (
                isinstance(error, (Timeout, UnsupportedVersionError))
                or not isinstance(error, PulsarException)
            ):
                # The broker may have created the producer: close it, so that it does not block the next
                # attempt.
                close = close_command(partition.producer_id, connection.new_request_id())
                connection.write(encode_command(close))
            if isinstance(error, Exception):
                partition.refused(error, time.monotonic())
                publisher.schedule()
            raise
        partition.created(answer.producer_success, connection.max_message_size, time.monotonic())
        self.connection = connection
        publisher.created(partition)

    def on_frame(self, frame: Frame) -> None:
        publisher, partition = self._publisher, self.partition
        kind = frame.type
        if type(frame) is ReceiptRun:
            partition.receipts(frame, time.monotonic())
            publisher.receipted()
        elif kind == _SEND_RECEIPT:
            receipt: Any = frame
            partition.receipt(
                receipt.sequence_id, receipt.highest_sequence_id, receipt.ledger_id, receipt.entry_id,
                time.monotonic(),
            )  # fmt: skip
            publisher.receipted()
        elif kind == _SEND_ERROR:
            body = frame.command.send_error
            verdict = partition.send_error(body.error, body.sequence_id, body.message, time.monotonic())
            logger.warning("%s: the broker refused a message: %s", self.topic, body.message)
            if verdict is SendErrorVerdict.DETACH:
                self.driver.reattach(PulsarException(body.message))
            elif verdict is SendErrorVerdict.ENDED:
                publisher.spawn(self.driver.close())
            publisher.schedule()

    def on_detached(self, error: Exception | None) -> None:
        self.connection = None
        self.partition.disconnected(error)
        self._publisher.schedule()

    def is_terminal(self, error: Exception) -> bool:
        return self.partition.is_terminal(error)

    def on_failed(self, error: Exception) -> None:
        self.connection = None
        self.partition.fail(error, time.monotonic())
        self._publisher.schedule()

    async def close(self) -> None:
        """Close the producer on the broker, stop driving, and fail pending messages."""
        publisher, connection = self._publisher, self.connection
        try:
            if connection is not None and not connection.closed:
                make = partial(close_command, self.partition.producer_id)
                await connection.request(make, publisher.context.settings.operation_timeout_seconds)
        except PulsarException as error:
            logger.info("closing the producer of %s: %s", self.topic, error)
        finally:
            if not publisher.context.loop.is_closed():  # an interrupt may have closed it under its tasks
                self.connection = None
                await self.driver.close()
                if self.partition.state is not ProducerState.CLOSED:
                    self.partition.closed(time.monotonic())
                publisher.schedule()


def close_command(producer_id: int, request_id: int) -> pb.BaseCommand:
    """Return CLOSE_PRODUCER."""
    body = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=body)
