"""The engine between a producer's shells and its partitions: one lock, one wake-up a batch, one timer.

Messages come in on any thread (`Publisher.publish`, and the hot path that the shells write out); frames,
receipts, time and callbacks belong to the client's event loop. The sans-IO state
(`geminga.producer.partitioned`) is only touched with the lock held, for a few microseconds at a time. A
full batch is serialised and compressed by the thread that filled it, outside the lock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from geminga.client.core import ClientCore
from geminga.client.driver import HandleDriver
from geminga.client.pool import BrokerConnection
from geminga.errors import (
    AlreadyClosed,
    ForkedProcessError,
    MemoryBufferIsFull,
    ProducerQueueIsFull,
    PulsarException,
    Timeout,
)
from geminga.ids import MessageId
from geminga.producer.batching import CLOSED
from geminga.producer.message import OutgoingMessage
from geminga.producer.operation import SendOperation
from geminga.producer.partition import PartitionProducer, Verdict
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.result import Result, result_of
from geminga.producer.settings import ProducerAccessMode, ProducerSettings
from geminga.producer.states import ENDED, State
from geminga.wire.frames import Frame
from geminga.wire.proto import pulsar_wire_pb2 as pb

logger = logging.getLogger("geminga.producer")

TIMER_SLACK_SECONDS = 0.0006
"""Event loops round timers to milliseconds: what is due within this time is done now."""

_SEND_RECEIPT = pb.BaseCommand.SEND_RECEIPT
_SEND_ERROR = pb.BaseCommand.SEND_ERROR
_FOREVER_SECONDS = 10.0 * 365 * 86_400


class Waiter:
    """A thread that waits: for the receipt of its message, or for permits. Cheaper than an Event."""

    __slots__ = ("_lock", "error", "message_id")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.error: Exception | None = None
        self.message_id: MessageId | None = None

    def wake(self) -> None:
        self._lock.release()

    def wait(self) -> None:
        self._lock.acquire()


class ProducerHandle:
    """One partition's side towards the driver; every method runs on the loop's thread."""

    def __init__(self, publisher: Publisher, partition: PartitionProducer) -> None:
        self.topic = partition.topic
        self.partition = partition
        self.connection: BrokerConnection | None = None
        self.driver = HandleDriver(publisher.core, self)
        self._publisher = publisher

    async def start(self) -> None:
        """Attach for the first time; raises what the creation fails with."""
        exclusive = self._publisher.settings.access_mode is ProducerAccessMode.WaitForExclusive
        try:
            await self.driver.start(_FOREVER_SECONDS if exclusive else None)
        except Exception as error:
            self.on_failed(error)
            raise

    async def attach(self, connection: BrokerConnection) -> None:
        publisher, partition = self._publisher, self.partition
        connection.add_producer(partition.producer_id, self)
        request_id = connection.new_request_id()
        with publisher.lock:
            command = partition.create_command(request_id)
        timeout = publisher.core.settings.operation_timeout_seconds
        try:
            answer = await connection.request(command, request_id, timeout)
        except Exception as error:
            if isinstance(error, Timeout) and not connection.closed:
                # The broker may create it after all: it must not stand in the way of the next attempt.
                connection.write(_close_frame(partition.producer_id, connection.new_request_id()))
            with publisher.lock:
                partition.refused(error, time.monotonic())
            publisher.schedule()
            raise
        with publisher.lock:
            partition.created(answer.producer_success, connection.max_message_size, time.monotonic())
        self.connection = connection
        publisher.schedule()

    def on_frame(self, frame: Frame) -> None:
        publisher, partition = self._publisher, self.partition
        kind = frame.type
        if kind == _SEND_RECEIPT:
            receipt = frame.receipt
            assert receipt is not None
            with publisher.lock:
                partition.receipt(
                    receipt.sequence_id,
                    receipt.highest_sequence_id,
                    receipt.ledger_id,
                    receipt.entry_id,
                    time.monotonic(),
                )
            publisher.schedule()
        elif kind == _SEND_ERROR:
            body = frame.command.send_error
            with publisher.lock:
                verdict = partition.send_error(body.error, body.sequence_id, body.message, time.monotonic())
            logger.warning("%s: the broker refused a message: %s", self.topic, body.message)
            if verdict is Verdict.DETACH:
                self.driver.reattach(PulsarException(body.message))
            elif verdict is Verdict.ENDED:
                publisher.spawn(self.driver.close())
            publisher.schedule()

    def on_detached(self, error: Exception | None) -> None:
        self.connection = None
        with self._publisher.lock:
            self.partition.disconnected(error)
        self._publisher.schedule()

    def is_terminal(self, error: Exception) -> bool:
        return self.partition.is_terminal(error)

    def on_failed(self, error: Exception) -> None:
        self.connection = None
        with self._publisher.lock:
            self.partition.fail(error, time.monotonic())
        self._publisher.schedule()

    async def close(self) -> None:
        """Tell the broker, stop driving, fail what is still pending."""
        publisher, connection = self._publisher, self.connection
        try:
            if connection is not None and not connection.closed:
                request_id = connection.new_request_id()
                command = _close_command(self.partition.producer_id, request_id)
                await connection.request(
                    command, request_id, publisher.core.settings.operation_timeout_seconds
                )
        except PulsarException as error:
            logger.info("closing the producer of %s: %s", self.topic, error)
        finally:
            self.connection = None
            await self.driver.close()
            with publisher.lock:
                if self.partition.state is not State.CLOSED:
                    self.partition.closed(time.monotonic())
            publisher.schedule()


def _close_command(producer_id: int, request_id: int) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = request_id
    return command


def _close_frame(producer_id: int, request_id: int) -> bytes:
    from geminga.wire.frames import encode_command

    return encode_command(_close_command(producer_id, request_id))


class Publisher:
    """See the module's text. Made and run on the client's loop; `publish` may come from any thread."""

    def __init__(self, core: ClientCore, topic: str, partitions: int, settings: ProducerSettings) -> None:
        self.core = core
        self.settings = settings
        self.lock = threading.Lock()
        self.memory = core.memory_budget
        self.state = PartitionedProducer(
            topic=topic,
            partitions=partitions,
            settings=settings,
            memory=self.memory,
            new_producer_id=core.new_producer_id,
            random=core.random.random,
            plain_path=settings.encode is None
            and not settings.interceptors
            and settings.message_router is None,
        )
        self.handles: dict[PartitionProducer, ProducerHandle] = {}
        self.closed = False
        self.forked = False
        """This is a child process: the loop's thread is not here."""
        self.threaded = False
        """Messages come from other threads than the loop's."""
        self._scheduled = False
        self._loop = core.loop
        self._loop_thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: deque[Any] = deque()
        self._draining: set[ProducerHandle] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._progress: list[asyncio.Future[None]] = []
        _live.add(self)

    # --- messages in ------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Let the loop look after the agenda soon; from any thread."""
        if self._scheduled:
            return
        self._scheduled = True
        if threading.get_ident() == self._loop_thread:
            self._loop.call_soon(self._run)
            return
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            self._scheduled = False
            raise AlreadyClosed("the client is closed") from None

    def on_loop_thread(self) -> bool:
        """Whether the caller is the loop itself, for example a callback."""
        return threading.get_ident() == self._loop_thread

    def publish(self, payload: bytes, token: Any, message: OutgoingMessage | None, *, urgent: bool) -> None:
        """Take one message, or raise why not; nothing is kept then. Never waits."""
        if self.forked:
            raise ForkedProcessError(
                "this producer was created before fork(); create one in the child process"
            )
        state = self.state
        partition = None
        if message is not None and state.router.custom:
            index = state.router.of_custom(message, state.partitions)
            partition = state.partitions[index]
        claimed, refusal = None, None
        with self.lock:
            now = time.monotonic()
            if partition is None:
                partition = state.choose(message, now)
            try:
                state.add(payload, token, message, now, partition=partition, urgent=urgent)
                if self.threaded:
                    claimed = self._claim(partition)
            except PulsarException as error:
                refusal = error
            attention = state.agenda.attention
        if claimed is not None:
            self._encode(partition, claimed)
            attention = True
        if attention:
            self.schedule()
        if refusal is not None:
            raise refusal

    @staticmethod
    def _claim(partition: PartitionProducer) -> SendOperation | None:
        """The batch that this message filled, to be encoded by this thread."""
        operation = partition.pending.tail
        if (
            operation is None
            or operation.claimed
            or operation.body is not None
            or operation.payloads is None
            or len(operation.payloads) < 2
            or not partition.created_once
        ):
            return None
        operation.claimed = True
        return operation

    def _encode(self, partition: PartitionProducer, operation: SendOperation) -> None:
        try:
            operation.encode_body()
        except PulsarException as error:
            # This thread may be the sender of another message: the loop tries again and, when it fails
            # there too, tells those whose messages they are.
            logger.debug("%s: a batch could not be encoded: %s", partition.topic, error)
        finally:
            with self.lock:
                operation.claimed = False
                partition.has_output()

    def publish_blocking(
        self, payload: bytes, token: Any, message: OutgoingMessage | None, *, urgent: bool
    ) -> None:
        """`publish`, waiting for permits or bytes. Not on the loop's thread."""
        listening = False
        while True:
            waiter = Waiter()
            try:
                self.publish(payload, token, message, urgent=urgent)
                break
            except (ProducerQueueIsFull, MemoryBufferIsFull) as error:
                listening = self._listen(error, listening)
                if self._queue_waiter(waiter, payload, message):
                    waiter.wait()
        if self._waiters:
            self._pass_on()

    async def publish_waiting(
        self, payload: bytes, token: Any, message: OutgoingMessage | None, *, urgent: bool
    ) -> None:
        """`publish`, waiting for permits or bytes without blocking the loop."""
        listening = False
        while True:
            try:
                self.publish(payload, token, message, urgent=urgent)
                break
            except (ProducerQueueIsFull, MemoryBufferIsFull) as error:
                listening = self._listen(error, listening)
                future = self._loop.create_future()
                if self._queue_waiter(future, payload, message):
                    try:
                        await future
                    except asyncio.CancelledError:
                        self._pass_on()
                        raise
        if self._waiters:
            self._pass_on()

    def _listen(self, error: Exception, listening: bool) -> bool:
        """Bytes may come back from another producer of the client: be told."""
        if isinstance(error, MemoryBufferIsFull):
            self.memory.notify_once(self._bytes_returned)
            return True
        return listening

    def _bytes_returned(self) -> None:
        """On any thread, perhaps with another producer's lock held: must not block."""
        self._loop.call_soon_threadsafe(self._pass_on)

    def _queue_waiter(self, waiter: Any, payload: bytes, message: OutgoingMessage | None) -> bool:
        """Stand in line. False when room has appeared since: try again at once."""
        with self.lock:
            state = self.state
            agenda = state.agenda
            state.close_batches()  # nothing else can come before receipts do
            room = any(p.backlog.own.free for p in state.partitions) and state.shared.free
            pending = any(p.pending.head is not None for p in state.partitions)
            if not pending and room and self.memory.free >= len(payload):
                return False
            self._waiters.append(waiter)
            attention = agenda.attention
        if attention:
            self.schedule()
        return True

    def _pass_on(self) -> None:
        """Wake the first in line; it wakes the next when it has got what it waited for."""
        while self._waiters:
            try:
                waiter = self._waiters.popleft()
            except IndexError:
                return
            if isinstance(waiter, Waiter):
                waiter.wake()
                return
            if not waiter.done():
                if threading.get_ident() == self._loop_thread:
                    waiter.set_result(None)
                else:
                    self._loop.call_soon_threadsafe(_set_done, waiter)
                return

    # --- the loop's side --------------------------------------------------------------------------

    def _run(self) -> None:
        """Everything the agenda asks for: time, frames out, receipts to their tokens, the timer."""
        state, agenda = self.state, self.state.agenda
        writes: list[tuple[BrokerConnection, list[Any]]] = []
        with self.lock:
            self._scheduled = False
            agenda.attention = False
            now = time.monotonic()
            state.tick(now + TIMER_SLACK_SECONDS)
            now_ms = self.core.now_ms()
            for partition in list(agenda.writable):
                handle = self.handles.get(partition)
                connection = None if handle is None else handle.connection
                if handle is None or connection is None or connection.closed:
                    del agenda.writable[partition]
                elif connection.writable:
                    writes.append((connection, partition.take_output(now, now_ms)))
                else:
                    del agenda.writable[partition]
                    self._await_drained(handle, connection)
            more = bool(agenda.writable)
            settled = agenda.take_settled()
            unstarted, state.unstarted = state.unstarted, []
            deadline = state.next_deadline()
            self._arm_timer(deadline, now)
        for connection, data in writes:
            if data:
                connection.write_many(data)
        for partition in unstarted:
            self.spawn(self._start_late(partition))
        if settled:
            deliver(settled)
            if self._waiters:
                self._pass_on()
        if self._progress:
            self._check_progress()
        if more or agenda.attention:
            self.schedule()

    def _arm_timer(self, deadline: float, now: float) -> None:
        agenda = self.state.agenda
        timer = self._timer
        if timer is not None:
            if agenda.timer_at <= deadline:
                return
            timer.cancel()
            self._timer = None
        agenda.timer_at = deadline
        if deadline != float("inf"):
            self._timer = self._loop.call_later(max(0.0, deadline - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        with self.lock:
            self.state.agenda.timer_at = float("inf")
        self._run()

    def _await_drained(self, handle: ProducerHandle, connection: BrokerConnection) -> None:
        """The socket is behind: go on when it has caught up."""
        if handle in self._draining:
            return
        self._draining.add(handle)

        async def wait() -> None:
            try:
                await connection.drain()
            except PulsarException:
                pass  # the connection ended: the next one is written to from the start
            finally:
                self._draining.discard(handle)
                with self.lock:
                    handle.partition.has_output()
                self.schedule()

        self.spawn(wait())

    def spawn(self, coroutine: Any) -> None:
        """Run a coroutine on the loop in the background."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- start, flush, close ----------------------------------------------------------------------

    async def start(self, partitions: list[PartitionProducer]) -> None:
        """Start these partitions together. When one cannot be created, its error is raised."""
        for partition in partitions:
            with self.lock:
                if partition.state is State.NOT_STARTED:
                    partition.start()
        handles = [self._handle(partition) for partition in partitions]
        if len(handles) == 1:
            await handles[0].start()
            return
        results = await asyncio.gather(*(handle.start() for handle in handles), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _start_late(self, partition: PartitionProducer) -> None:
        """A lazily started partition; what its creation fails with, its messages fail with."""
        if partition not in self.handles and not self.closed:
            try:
                await self._handle(partition).start()
            except Exception as error:
                logger.warning("the producer of %s could not be created: %s", partition.topic, error)

    def _handle(self, partition: PartitionProducer) -> ProducerHandle:
        handle = self.handles[partition] = ProducerHandle(self, partition)
        return handle

    @property
    def connected(self) -> bool:
        """Whether every started partition has its connection."""
        return bool(self.handles) and all(p.connected for p in self.handles) and not self.closed

    async def flush(self) -> None:
        """Send what waits and return when everything handed over before has its receipt.

        Raises the first error among the last operations of the partitions.
        """
        done: list[asyncio.Future[None]] = []
        with self.lock:
            self.state.close_batches()
            for partition in self.state.partitions:
                tail = partition.pending.tail
                if tail is not None:
                    future = self._loop.create_future()
                    done.append(future)
                    if tail.watchers is None:
                        tail.watchers = []
                    tail.watchers.append(_finisher(future))
        self.schedule()
        if done:
            results = await asyncio.gather(*done, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def close(self) -> None:
        """Take no more messages, give what is pending its chance while there is a connection, and end."""
        if self.closed:
            return
        self.closed = True
        now = time.monotonic()
        with self.lock:
            self.state.hot = CLOSED
            for partition in self.state.partitions:
                partition.close(now)
        self.schedule()
        deadline = now + self.core.settings.operation_timeout_seconds
        while not self._drained() and time.monotonic() < deadline:
            future = self._loop.create_future()
            self._progress.append(future)
            await asyncio.wait([future], timeout=max(0.0, deadline - time.monotonic()))
        await asyncio.gather(*(handle.close() for handle in list(self.handles.values())))
        with self.lock:
            for partition in self.state.partitions:
                if partition.state not in ENDED:
                    partition.closed(time.monotonic())
        self._run()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._tasks):
            task.cancel()

    def _drained(self) -> bool:
        """Nothing is pending where a receipt could still come."""
        return all(not (p.connected and p.pending.head is not None) for p in self.state.partitions)

    def _check_progress(self) -> None:
        if self._drained():
            progress, self._progress = self._progress, []
            for future in progress:
                _set_done(future)


def deliver(settled: list[SendOperation]) -> None:
    """Give every token of the settled operations its outcome, in order; on the loop's thread.

    A token is a callback ``(result, message_id)``, an asyncio future, a `Waiter`, or None. A callback that
    raises is logged and harms nothing else.
    """
    for operation in settled:
        if operation.error is None:
            _deliver_receipt(operation)
        else:
            _deliver_error(operation, operation.error)
        if operation.watchers is not None:
            for watcher in operation.watchers:
                watcher(operation)


_new_id = MessageId.__new__


def _deliver_receipt(operation: SendOperation) -> None:
    tokens = operation.tokens
    if not tokens:
        return
    ledger_id, entry_id = operation.ledger_id, operation.entry_id
    duplicate = ledger_id == -1 and entry_id == -1
    partition = -1 if duplicate else operation.partition.index
    batch_size = operation.count if operation.is_batch and not duplicate else 0
    first = _first_chunk(operation, partition)
    index = -1
    for token in tokens:
        if batch_size:
            index += 1
        if token is None:
            continue
        # Written out: a call of the constructor would be the largest part of a receipt's cost.
        message_id = _new_id(MessageId)
        message_id._partition = partition
        message_id._ledger_id = ledger_id
        message_id._entry_id = entry_id
        message_id._batch_index = index
        message_id.batch_size = batch_size
        message_id.first_chunk = first
        message_id.topic = ""
        if type(token) is asyncio.Future:
            if not token.done():
                token.set_result(message_id)
        elif type(token) is Waiter:
            token.message_id = message_id
            token.wake()
        else:
            try:
                token(Result.Ok, message_id)
            except Exception:
                logger.exception("a send callback raised")


def _first_chunk(operation: SendOperation, partition: int) -> MessageId | None:
    if operation.chunk is None:
        return None
    whole = operation.chunk.message
    return MessageId(partition, whole.first_ledger_id, whole.first_entry_id)


def _deliver_error(operation: SendOperation, error: Exception) -> None:
    result = result_of(error)
    for token in operation.tokens:
        fail_token(token, error, result)


def fail_token(token: Any, error: Exception, result: Result | None = None) -> None:
    """Give one token its error. A callback gets the result code and the earliest id."""
    if token is None:
        return
    if isinstance(token, asyncio.Future):
        if not token.done():
            token.set_exception(error)
    elif isinstance(token, Waiter):
        token.error = error
        token.wake()
    elif isinstance(token, FullToken):
        token.fail(error)
    else:
        try:
            token(result_of(error) if result is None else result, MessageId.earliest)
        except Exception:
            logger.exception("a send callback raised")


class FullToken:
    """A token that wants the exception itself: interceptors stand behind it."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[MessageId | None, Exception | None], None]) -> None:
        self._done = done

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self._done(message_id, None)

    def fail(self, error: Exception) -> None:
        try:
            self._done(None, error)
        except Exception:
            logger.exception("a send callback raised")


def _finisher(future: asyncio.Future[None]) -> Callable[[SendOperation], None]:
    def finish(operation: SendOperation) -> None:
        if future.done():
            return
        if operation.error is None:
            future.set_result(None)
        else:
            future.set_exception(operation.error)

    return finish


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_live: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Nobody in the child empties the batches: refuse at once instead of taking messages in."""
    for publisher in list(_live):
        publisher.forked = True
        # Another thread may have held the lock at the fork; it does not exist here to release it.
        publisher.lock._at_fork_reinit()  # type: ignore[attr-defined]
        publisher.state.hot = CLOSED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
