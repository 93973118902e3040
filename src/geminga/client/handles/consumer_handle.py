"""I/O around one `ConsumerCore`: its connection, its timer, its answers. Runs on the loop's thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from geminga import errors
from geminga.client.handles.context import ClientContext
from geminga.client.handles.driver import HandleDriver
from geminga.client.io.pool import BrokerConnection
from geminga.client.io.tasks import resolve
from geminga.consumer import commands
from geminga.consumer.commands import ConsumerIdentity
from geminga.consumer.core import ConsumerCore
from geminga.consumer.events import (
    AcksSettled,
    ActiveChanged,
    ConsumerEvent,
    DeadLettered,
    EndOfTopic,
    EntryRefused,
    KeysMixed,
)
from geminga.consumer.flow import Release
from geminga.consumer.queue import ReceiveQueue
from geminga.consumer.settings import ConsumerSettings
from geminga.consumer.settlement import AckedEntries
from geminga.consumer.state import ConsumerInput, ConsumerState, next_state
from geminga.ids import MessageId, TopicName
from geminga.wire.frames import MESSAGE, Frame, encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

logger = logging.getLogger("geminga")

CLOSE_TIMEOUT_SECONDS = 5.0
"""Time that closing waits for the broker's answer; the consumer is closed locally in any case."""
_CONSUMER_NOT_FOUND = "Consumer not found"

KEY_WARNINGS_MAX = 1000
_warned_about_keys: set[tuple[str, str]] = set()
"""Topics and subscriptions already warned about, a partitioned topic once."""


class HandleOwner(NamedTuple):
    """The consumer that handles belong to: its names, its queue, and its reactions to their events."""

    subscription: str
    consumer_name: str
    queue: ReceiveQueue
    on_dead_letters: Callable[[ConsumerHandle, DeadLettered], None]
    """Publishes dead messages."""
    on_failure: Callable[[ConsumerHandle, Exception], None]
    """Ends the consumer: reconnecting has failed for good."""
    on_active: Callable[[int, bool], None]
    """Notifies the program that a partition's consumer became active, or inactive."""
    before_messages: Callable[[], None]
    """Called after each (re)subscription, before the first message can arrive."""


class ConsumerHandle:
    """One subscription on one topic or partition, kept connected by a `HandleDriver`."""

    def __init__(
        self,
        context: ClientContext,
        settings: ConsumerSettings,
        owner: HandleOwner,
        on_failed: Callable[[ConsumerHandle, Exception], None],
        *,
        topic: str,
        partition: int,
        queue_size: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        identity = ConsumerIdentity(
            topic, owner.subscription, context.new_consumer_id(), owner.consumer_name, partition
        )
        self.consumer = ConsumerCore(settings, identity, owner.queue, queue_size)
        self.driver = HandleDriver(context, self)
        if context.metrics is not None:
            context.metrics.add_consumer(self.consumer)
        self._context = context
        self._moves_before = context.moves
        self._owner = owner
        self._on_failed = on_failed
        self._connection: BrokerConnection | None = None
        self._flush_scheduled = False
        self._turn_now = 0.0
        self._turn_now_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._seek_answer: asyncio.Future[None] | None = None
        self._awaiting: dict[asyncio.Future[None], None] = {}
        """Futures of callers that wait until the consumer is subscribed."""
        self._turn: asyncio.Future[None] | None = None
        """Resolved when the next frames were handled, or the connection was lost."""
        self._statistics: tuple[float, pb.CommandConsumerStatsResponse, int | None] | None = None
        """The broker's last statistics of this consumer, with the time and the ack holes."""
        self.gives_all = False
        """Whether the broker delivers every entry. Those of aborted transactions are skipped; Apache Pulsar's
        also skips entries that hold no messages."""

    # --- Handle: called by the driver ------------------------------------------------------------

    async def attach(self, connection: BrokerConnection) -> None:
        """Subscribe on ``connection``, after a pending seek, which decides the position."""
        if self._seek_answer is not None:
            await self._seek_answer
        consumer = self.consumer
        self._note_cluster()
        if consumer.settings.must_exist:
            await self._check_exists(connection)
        connection.add_consumer(consumer.consumer_id, self)
        try:
            timeout = self._context.settings.operation_timeout_seconds
            answer = await connection.request(consumer.subscribe, timeout)
        except BaseException as error:
            consumer.refused()
            if not isinstance(error, errors.PulsarException) or isinstance(error, errors.Timeout):
                # The broker may still create the consumer: close it there.
                self._write_close(connection, consumer.consumer_id)
            raise
        # Messages acknowledged meanwhile are recognised when redelivered.
        self._owner.before_messages()
        self._connection = connection
        self._statistics = None
        consumer.new_request_id = connection.new_request_id
        is_geminga = connection.server_version.startswith("Geminga")
        self.gives_all = is_geminga and not answer.success.withholds_entries
        if is_geminga:
            consumer.flow.overshoot = 1  # Geminga's broker stops at the entry that uses the last permit
        consumer.subscribed(self._context.now())
        self.flush()
        self._tell_awaiting(None)

    async def _check_exists(self, connection: BrokerConnection) -> None:
        """Raise `SubscriptionNotFound` if the durable subscription does not exist."""
        consumer, context = self.consumer, self._context
        timeout = context.settings.operation_timeout_seconds
        consumer_id = context.new_consumer_id()
        asking = consumer.identity._replace(consumer_id=consumer_id)
        try:
            await connection.request(partial(commands.ask_for_durable, asking), timeout)
        except errors.NotAllowedError:
            return
        except BaseException as error:
            if not isinstance(error, errors.PulsarException) or isinstance(error, errors.Timeout):
                self._write_close(connection, consumer_id)
            raise
        await connection.request(partial(commands.close_consumer, consumer_id), timeout)
        raise errors.SubscriptionNotFound(f"{self.topic} has no durable subscription {consumer.subscription}")

    def _note_cluster(self) -> None:
        """Notify the core if this connection leads to another cluster than the last one."""
        cluster = self._context.moves - self._moves_before
        if cluster != self.consumer.origin.cluster:
            logger.warning(
                "%s of %s continues in another cluster: messages received before are not acknowledged there "
                "and may be redelivered", self.consumer.subscription, self.topic,
            )  # fmt: skip
            self.consumer.cluster_changed(cluster)

    def on_frame(self, frame: Frame) -> None:
        self.flush_soon()
        if frame.type == MESSAGE:
            self.consumer.receive(frame, self._turn_now, self._turn_now_ms)  # type: ignore[arg-type]
        else:
            self.consumer.command(frame.command)

    def on_detached(self, error: Exception | None) -> None:
        self._connection = None
        self.consumer.disconnected(self._context.now())
        self.flush()

    def is_terminal(self, error: Exception) -> bool:
        """Return whether the broker refuses for good. ConsumerBusy is temporary: after a lost connection the
        broker may take a while to notice that this client's old consumer is gone."""
        if isinstance(error, errors.ConsumerBusy):
            return False
        if isinstance(error, (errors.ServerReportedError, errors.UsageError)):
            return not error.retriable
        return False

    def on_failed(self, error: Exception) -> None:
        self._connection = None
        self.consumer.failed(error)
        self._settle_all(error)
        self.flush()
        self._tell_awaiting(error)
        self._on_failed(self, error)

    def _tell_awaiting(self, error: Exception | None) -> None:
        awaiting, self._awaiting = self._awaiting, {}
        for waiter in awaiting:
            resolve(waiter, error)

    # --- output ----------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Run `flush` at the end of this loop iteration, once. The clocks too are read once per iteration."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._turn_now, self._turn_now_ms = self._context.now(), self._context.now_ms()
            self._context.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the core's output, handle its events, and set the timer."""
        self._flush_scheduled = False
        turn, self._turn = self._turn, None
        if turn is not None:
            resolve(turn)
        consumer = self.consumer
        while consumer.events:
            for event in consumer.take_events():
                self._handle(event)
        if consumer.output:
            output = consumer.take_output()
            if self._connection is not None:
                self._connection.write_many(output)  # type: ignore[arg-type]
        deadline = consumer.next_deadline()
        if deadline < self._timer_at:
            self._arm(deadline)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._context.loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        state = self.consumer.state
        if state in (ConsumerState.CLOSED, ConsumerState.FAILED):
            return
        if state is not ConsumerState.READY:
            # Due work waits for the connection; the reconnect sends it.
            return
        self.consumer.tick(self._context.now())
        self.flush()

    def _handle(self, event: ConsumerEvent) -> None:
        if isinstance(event, AcksSettled):
            for token in event.tokens:
                resolve(token, event.error)
        elif isinstance(event, DeadLettered):
            self._owner.on_dead_letters(self, event)
        elif isinstance(event, EntryRefused):
            fate = "acknowledged as unreadable" if event.acknowledged else "left unacknowledged"
            logger.warning("entry %s:%s of %s is %s: %s", *event.key, self.topic, fate, event.error)
        elif isinstance(event, ActiveChanged):
            logger.info(
                "%s is %s consumer of %s on %s", self.consumer.identity.consumer_name,
                "now the active" if event.is_active else "not the active",
                self.consumer.subscription, self.topic,
            )  # fmt: skip
            self._owner.on_active(self.partition, event.is_active)
        elif isinstance(event, KeysMixed):
            self._warn_about_keys(event)
        elif isinstance(event, EndOfTopic):
            logger.info("%s is terminated and read to its end by %s", self.topic, self.consumer.subscription)

    def _warn_about_keys(self, event: KeysMixed) -> None:
        topic = str(TopicName.parse(self.topic).base)
        key = (topic, self.consumer.subscription)
        if key not in _warned_about_keys and len(_warned_about_keys) < KEY_WARNINGS_MAX:
            _warned_about_keys.add(key)
            logger.warning(
                "%s: producer %r batches messages of several keys, and the Key_Shared subscription %s gets a "
                "batch whole: messages of one key go to several consumers. Create the producer with "
                "batching_type=BatchingType.KeyBased, or without batching", topic, event.producer_name,
                self.consumer.subscription,
            )  # fmt: skip

    def _settle_all(self, error: Exception) -> None:
        for token in (*self.consumer.acks.forget(), *self.consumer.take_awaited()):
            resolve(token, error)

    def transaction_aborted(self, acked: AckedEntries) -> None:
        """Have the messages that an aborted transaction acknowledged here delivered again."""
        self.consumer.transaction_aborted(acked)
        self.flush()

    # --- called by AsyncConsumer ------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.consumer.state in (ConsumerState.READY, ConsumerState.SEEKING)

    def released(self, releases: Iterable[Release]) -> None:
        """Release the permits of messages that were taken."""
        for release in releases:
            self.consumer.released(release)
        self.flush_soon()

    def _require_connection(self, what: str) -> BrokerConnection:
        if self.consumer.error is not None:
            raise self.consumer.error
        if self.consumer.state in (ConsumerState.CLOSING, ConsumerState.CLOSED):
            raise errors.AlreadyClosed("the consumer is closed")
        if self._connection is None:
            raise errors.NotConnected(f"{what} needs a connection, and {self.topic} is reconnecting")
        return self._connection

    async def connected_within(self, timeout: float) -> None:
        """Wait until the consumer is subscribed. Raises `NotConnected`, `AlreadyClosed`, or the error that
        ended it."""
        if self.connected:
            return
        if self.consumer.error is not None:
            raise self.consumer.error
        if self.consumer.state in (ConsumerState.CLOSING, ConsumerState.CLOSED):
            raise errors.AlreadyClosed("the consumer is closed")
        waiter: asyncio.Future[None] = self._context.loop.create_future()
        self._awaiting[waiter] = None
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            if waiter.done() and not waiter.cancelled():
                return waiter.result()  # or the error that ended the consumer, which may be a time-out itself
            last = self.driver.last_error
            reason = "" if last is None else f"; the last attempt failed: {last}"
            raise errors.NotConnected(
                f"{self.topic} was not reconnected within {timeout:g} s{reason}"
            ) from last
        finally:
            self._awaiting.pop(waiter, None)

    async def seek(self, target: MessageId | int) -> None:
        """Move the subscription. Returns when the broker has moved it and the consumer is subscribed
        again."""
        timeout = self._context.settings.operation_timeout_seconds
        await self.connected_within(timeout)
        connection = self._require_connection("seek")
        next_state(self.consumer.state, ConsumerInput.SEEK)  # raises while another seek is in flight
        self.consumer.flush_acks()
        self.flush()
        answer = self._seek_answer = self._context.loop.create_future()
        self.driver.keep_connection()
        try:
            await connection.request(partial(self.consumer.begin_seek, target), timeout)
        except BaseException:
            self.driver.release_connection()
            self.consumer.seek_failed(self._context.now(), self._context.now_ms())
            raise
        else:
            self.consumer.seek_done()
        finally:
            self._seek_answer = None
            resolve(answer)  # done already if the driver was closed while it waited
            self.flush()
        await self.connected_within(timeout)

    async def last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """Return the topic's last message (entry -1 if empty) and the subscription's mark-delete position."""
        timeout = self._context.settings.operation_timeout_seconds
        deadline = self._context.now() + timeout
        while True:
            await self.connected_within(max(0.0, deadline - self._context.now()))
            connection = self._require_connection("asking for the last message id")
            make = partial(commands.get_last_message_id, self.consumer.consumer_id)
            try:
                answer = await connection.request(make, max(0.0, deadline - self._context.now()))
            except (errors.TransientError, errors.BrokerMetadataError) as error:
                # After a seek or an unload Apache Pulsar may not know the consumer until it has resubscribed.
                again = isinstance(error, errors.TransientError) or _CONSUMER_NOT_FOUND in str(error)
                if not again or self._context.now() >= deadline or self._context.closed:
                    raise
                await asyncio.sleep(0.05)
                continue
            body = answer.getLastMessageIdResponse
            last = MessageId.from_wire(body.last_message_id, partition=self.partition, topic=self.topic)
            marked = None
            if body.HasField("consumer_mark_delete_position"):
                marked = MessageId.from_wire(body.consumer_mark_delete_position, topic=self.topic)
            return last, marked

    async def next_turn(self, timeout: float) -> bool:
        """Wait until the next frames of this consumer were handled; return False on a time-out."""
        if self._turn is None or self._turn.done():
            self._turn = self._context.loop.create_future()
        done, _ = await asyncio.wait({self._turn}, timeout=timeout)
        return bool(done)

    async def broker_statistics(
        self, age_seconds_max: float
    ) -> tuple[pb.CommandConsumerStatsResponse, int | None]:
        """Return the broker's statistics of this consumer and the subscription's ack holes, if known. An
        answer younger than ``age_seconds_max`` is reused."""
        now = self._context.now()
        if self._statistics is None or now - self._statistics[0] >= age_seconds_max:
            timeout = self._context.settings.operation_timeout_seconds
            await self.connected_within(timeout)
            connection = self._require_connection("asking for statistics")
            make = partial(commands.consumer_stats, self.consumer.consumer_id)
            answer = await connection.request(make, max(0.0, now + timeout - self._context.now()))
            body = answer.consumerStatsResponse
            holes: int | None = body.gemingaAckHoles
            if not body.HasField("gemingaAckHoles"):
                holes = await self._ack_holes()
            self._statistics = self._context.now(), body, holes
        return self._statistics[1:]

    async def _ack_holes(self) -> int | None:
        """Fetch the ack holes over the REST API, if the client knows its address."""
        try:
            async with asyncio.timeout(self._context.settings.operation_timeout_seconds):
                return await self._context.service.ack_holes(self.topic, self.consumer.subscription)
        except (errors.PulsarException, TimeoutError) as error:
            logger.debug("the ack holes of %s are unknown: %s", self.topic, error)
            return None

    async def unsubscribe(self, force: bool = False) -> None:
        """Remove the subscription from the topic; the consumer is closed with it."""
        await self.connected_within(self._context.settings.operation_timeout_seconds)
        connection = self._require_connection("unsubscribe")
        self.consumer.begin_close()
        self.flush()
        make = partial(commands.unsubscribe, self.consumer.consumer_id, force=force)
        try:
            await connection.request(make, self._context.settings.operation_timeout_seconds)
        except errors.ServerReportedError:
            self.consumer.close_failed()
            raise
        except BaseException:
            await self._finish()
            raise
        await self._finish()

    async def close(self) -> None:
        """Send pending acknowledgements, close the consumer on the broker, and end; always succeeds. A second
        call does nothing."""
        if self.consumer.state is ConsumerState.CLOSED:
            return
        attached = self.consumer.begin_close()
        self.flush()
        connection = self._connection
        try:
            if attached and connection is not None and not connection.closed:
                make = partial(commands.close_consumer, self.consumer.consumer_id)
                await connection.request(make, CLOSE_TIMEOUT_SECONDS)
        except errors.PulsarException as error:
            logger.debug("closing the consumer of %s: %s", self.topic, error)
        finally:
            await self._finish()

    def abort(self) -> None:
        """Close at once, without notifying the broker."""
        if self.consumer.state is not ConsumerState.CLOSED:
            self.consumer.begin_close()
            self.driver.abort()
            self._ended()

    async def _finish(self) -> None:
        if self._context.loop.is_closed():
            return  # an interrupt has ended the loop with all waiters
        await self.driver.close()
        self._ended()

    def _ended(self) -> None:
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.consumer.closed()
        self._tell_awaiting(errors.AlreadyClosed("the consumer is closed"))
        self._settle_all(errors.AlreadyClosed("the consumer was closed before the broker's receipt"))

    def _write_close(self, connection: BrokerConnection, consumer_id: int) -> None:
        if not connection.closed:
            command: pb.BaseCommand = commands.close_consumer(consumer_id, connection.new_request_id())
            connection.write(encode_command(command))
