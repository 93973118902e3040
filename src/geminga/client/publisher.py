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
from contextlib import suppress
from typing import Any

from geminga.client.core import ClientCore
from geminga.client.pool import BrokerConnection
from geminga.client.producer_handle import ProducerHandle
from geminga.client.tokens import Waiter, deliver, finisher, set_done
from geminga.errors import (
    AlreadyClosed,
    ForkedProcessError,
    MemoryBufferIsFull,
    ProducerQueueIsFull,
    PulsarException,
)
from geminga.producer.batching import CLOSED
from geminga.producer.message import OutgoingMessage
from geminga.producer.operation import SendOperation
from geminga.producer.partition import PartitionProducer
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.settings import ProducerSettings
from geminga.producer.states import ENDED, State

logger = logging.getLogger("geminga.producer")

TIMER_SLACK_SECONDS = 0.0006
"""Event loops round timers to milliseconds: what is due within this time is done now."""


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
        """Threads and tasks that wait for permits or bytes, the longest waiting first."""
        self._rounds = 0
        """How often permits or bytes came back."""
        self._turns = 0
        """How many of `_waiters` have not been woken in this round."""
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

    def publish(
        self,
        payload: bytes,
        token: Any,
        message: OutgoingMessage | None,
        *,
        urgent: bool,
        partition: PartitionProducer | None = None,
    ) -> None:
        """Take one message, or raise why not; nothing is kept then. Never waits.

        ``partition`` is where it must go when that was decided before.
        """
        if self.forked:
            raise ForkedProcessError(
                "this producer was created before fork(); create one in the child process"
            )
        state = self.state
        if message is not None and state.router.custom:
            index = state.router.of_custom(message, state.partitions)
            partition = state.partitions[index]
        claimed, refusal = None, None
        with self.lock:
            if (
                message is not None
                and partition is None
                and not urgent
                and state.join(payload, token, message)
            ):
                return
            now = time.monotonic()
            if partition is None:
                partition = state.choose(message, now)
            try:
                state.add(payload, token, message, now, partition=partition, urgent=urgent)
                if self.threaded and state.agenda.attention:
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
        partition = self._held_choice(message)
        try:
            while True:
                before = self._returns()
                try:
                    self.publish(payload, token, message, urgent=urgent, partition=partition)
                    return
                except (ProducerQueueIsFull, MemoryBufferIsFull) as error:
                    waiter = Waiter()
                    if self._queue_waiter(waiter, error, len(payload), before):
                        try:
                            waiter.wait()
                        except BaseException:  # a signal's handler raised
                            self._leave_line(waiter)
                            raise
        finally:
            # Also when this one has failed, or a signal ended its wait: the next must not miss its turn.
            self._pass_on()

    async def publish_waiting(
        self, payload: bytes, token: Any, message: OutgoingMessage | None, *, urgent: bool
    ) -> None:
        """`publish`, waiting for permits or bytes without blocking the loop."""
        partition = self._held_choice(message)
        try:
            while True:
                before = self._returns()
                try:
                    self.publish(payload, token, message, urgent=urgent, partition=partition)
                    return
                except (ProducerQueueIsFull, MemoryBufferIsFull) as error:
                    future = self._loop.create_future()
                    if self._queue_waiter(future, error, len(payload), before):
                        await future
        finally:
            self._pass_on()

    def _held_choice(self, message: OutgoingMessage | None) -> PartitionProducer | None:
        """Where nothing is stepped over, a message that must wait does so for the partition whose turn it
        was. Otherwise None: each attempt chooses among the partitions that are free by then."""
        state = self.state
        if state.router.steps_over or state.router.custom or len(state.partitions) == 1:
            return None
        with self.lock:
            return state.choose(message, time.monotonic())

    def _queue_waiter(self, waiter: Any, error: Exception, size: int, before: int) -> bool:
        """Stand in line. False when something came back since the attempt: try again at once.

        ``before`` is what `_returns` said before the attempt.
        """
        if isinstance(error, MemoryBufferIsFull):
            # Bytes may come back from another producer of the client.
            self.memory.notify_once(self._bytes_returned)
        with self.lock:
            state = self.state
            state.close_batches()  # nothing else can come before receipts do
            room = any(p.backlog.own.free for p in state.partitions) and state.shared.free
            pending = any(p.pending.head is not None for p in state.partitions)
            if before != self._returns() or (not pending and room and self.memory.free >= size):
                return False
            self._waiters.append(waiter)
            attention = state.agenda.attention
        if attention:
            self.schedule()
        self._pass_on()  # whoever stands behind may wait for another partition
        return True

    def _leave_line(self, waiter: Waiter) -> None:
        """Wait no more: a turn must not go to somebody who has left."""
        with self.lock, suppress(ValueError):
            self._waiters.remove(waiter)

    def _returns(self) -> int:
        """Grows whenever permits or bytes come back."""
        return self._rounds + self.memory.returns

    def _bytes_returned(self) -> None:
        """On any thread, perhaps with another producer's lock held: must not block."""
        self._loop.call_soon_threadsafe(self._next_round)

    def _next_round(self) -> None:
        """Something came back, or the end has come: everybody in line has one turn, one after the other."""
        with self.lock:
            self._rounds += 1
            self._turns = len(self._waiters)
        self._pass_on()

    def _pass_on(self) -> None:
        """Wake the next whose turn it is; it passes on when it has got what it waited for, or has not."""
        if not self._turns:
            return
        with self.lock:
            while True:
                if not self._turns or not self._waiters:
                    self._turns = 0
                    return
                self._turns -= 1
                waiter = self._waiters.popleft()
                if isinstance(waiter, Waiter) or not waiter.done():
                    break
        if isinstance(waiter, Waiter):
            waiter.wake()
        elif threading.get_ident() == self._loop_thread:
            waiter.set_result(None)
        else:
            self._loop.call_soon_threadsafe(set_done, waiter)

    # --- the loop's side --------------------------------------------------------------------------

    def _run(self) -> None:
        """Everything the agenda asks for: time, frames out, receipts to their tokens, the timer."""
        state, agenda = self.state, self.state.agenda
        writes: list[tuple[BrokerConnection, list[Any]]] = []
        with self.lock:
            self._scheduled = False
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
            if settled:
                self._rounds += 1
                self._turns = len(self._waiters)
            agenda.attention = False  # whatever closed or settled above is taken care of here
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
            self._pass_on()
        if self._progress:
            self._check_progress()
        if more:
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
                    tail.watchers.append(finisher(future))
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
        self._next_round()  # they are refused now
        self.schedule()
        deadline = now + self.core.settings.operation_timeout_seconds
        while not self._drained() and time.monotonic() < deadline:
            future = self._loop.create_future()
            self._progress.append(future)
            await asyncio.wait([future], timeout=max(0.0, deadline - time.monotonic()))
        await asyncio.gather(*(handle.close() for handle in list(self.handles.values())))
        self._end()

    def _end(self) -> None:
        """Whatever has no receipt by now fails."""
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

    def abandon(self) -> None:
        """End at once: what is pending fails."""
        if not self.closed:
            self.closed = True
            now = time.monotonic()
            with self.lock:
                self.state.hot = CLOSED
                for partition in self.state.partitions:
                    partition.close(now)
            self._next_round()
        for handle in list(self.handles.values()):
            handle.driver.abandon()
        self._end()

    def _drained(self) -> bool:
        """Nothing is pending where a receipt could still come."""
        return all(not (p.connected and p.pending.head is not None) for p in self.state.partitions)

    def _check_progress(self) -> None:
        if self._drained():
            progress, self._progress = self._progress, []
            for future in progress:
                set_done(future)


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
