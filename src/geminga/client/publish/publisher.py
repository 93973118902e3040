"""Engine of a producer, between its public API and its partitions.

Messages are submitted on any thread (`geminga.client.publish.submit_queue`). Everything else, the sans-IO
state (`geminga.producer.partitioned`), frames, receipts, time and callbacks, runs on the client's event loop:
one wake-up serves all queued messages, and nothing takes a lock. Batches to be compressed or encrypted are
serialised on executor threads, while the loop continues.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from geminga.client.handles.context import ClientContext
from geminga.client.handles.producer_handle import ProducerHandle
from geminga.client.io import forks
from geminga.client.io.pool import BrokerConnection
from geminga.client.io.tasks import resolve
from geminga.client.io.waiter import Waiter
from geminga.client.publish.completions import fail_completion, only_wakes_thread, run_completions
from geminga.client.publish.permit_wait_queue import Target
from geminga.client.publish.send_credits import SendCredits
from geminga.client.publish.submit_queue import (
    QueuedOperation,
    QueuedSend,
    QueuedWork,
    SubmitQueue,
    WaitingSend,
)
from geminga.client.publish.submitting import SubmitWorker
from geminga.errors import AlreadyClosed, ForkedProcessError, PulsarException
from geminga.producer.message import OutgoingMessage, build_simple_message
from geminga.producer.operation import SendOperation
from geminga.producer.partition import PartitionProducer
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.settings import CompressionType, ProducerSettings
from geminga.producer.states import ENDED, ProducerState
from geminga.producer.statistics import ProducerStatistics

logger = logging.getLogger("geminga.producer")

TIMER_SLACK_SECONDS = 0.0006
"""Event loops round timers to milliseconds: work that is due within this time is done now."""

ENCODING_BYTES_MIN = 4096
"""Payload bytes from which compressing or encrypting pays for another thread."""

ENCODING_AHEAD_MAX = 8
"""Batches of one partition that are serialised before the first of them is written."""

CONNECTED_CHECK_SECONDS = 0.1
"""Interval at which a close that waits for permits checks the connection."""


class Publisher:
    """Engine of a producer. Created and run on the client's loop; `publish` may be called on any thread."""

    def __init__(
        self, context: ClientContext, topic: str, partitions: int, settings: ProducerSettings
    ) -> None:
        self.context = context
        self.settings = settings
        self.memory = context.memory_budget
        self.state = PartitionedProducer(
            topic=topic,
            partitions=partitions,
            settings=settings,
            memory=self.memory,
            new_producer_id=context.new_producer_id,
            random=context.random.random,
        )
        self.handles: dict[PartitionProducer, ProducerHandle] = {}
        self.submit_queue = SubmitQueue(self._wake_loop)
        self.at_end: list[Callable[[], None]] = []
        """Functions called when all pending messages have their outcome."""
        self.closed = False
        self.forked = False
        """Whether this is a child process, which lacks the loop's thread."""
        self._loop_ended = False
        """Whether the loop has ended, so that submitted messages would never be processed."""
        self._scheduled = False
        self._loop = context.loop
        self._loop_thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._credits = SendCredits(self.state, settings)
        self._recounts = settings.batching_enabled or self.memory.limited or partitions > 0
        """Whether the credits depend on more than the permits of one partition."""
        self._recount_at = 0
        """Value of `SubmitQueue.room` at which the credits are counted again: half of the last count."""
        self._worker = SubmitWorker(self.state, self.submit_queue)
        self._wait_queue = self._worker.wait_queue
        self._listens_for_bytes = False
        self._encodes = (
            settings.compression_type is not CompressionType.NONE or settings.encryptor is not None
        )
        self._draining: set[ProducerHandle] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turns: list[asyncio.Future[None]] = []
        """Futures resolved at the end of the next `_run`."""
        context.publishers[self] = context.handovers[self] = None
        forks.inherited.add(self)

    # --- submitting: any thread -------------------------------------------------------------------

    def _wake_loop(self) -> None:
        """Schedule `_run` on the loop; from any thread."""
        if threading.get_ident() == self._loop_thread:
            self._loop.call_soon(self._run)
            return
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            raise AlreadyClosed("the client is closed") from None

    def schedule(self) -> None:
        """Schedule `_run`; on the loop's thread."""
        # A flag for the loop's own calls: a thread that is about to schedule may be interrupted just before.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def created(self, partition: PartitionProducer) -> None:
        """Write messages that waited for this partition, if any did. On the loop's thread."""
        waiting = partition.pending.head or self.submit_queue.pairs or self._wait_queue.queues
        if waiting or len(self.state.partitions) > 1:
            self.schedule()
        else:
            self._update_credits()

    def receipted(self) -> None:
        """Complete settled messages: now, if that only wakes a thread; otherwise with the rest, as callbacks
        are application code. On the loop's thread."""
        settled = self.state.ready_set.settled
        if (
            len(settled) == 1
            and not self._scheduled
            and not self._turns
            and not self._wait_queue.queues
            and self.submit_queue.room > 0
            and not self.state.ready_set.writable
            and only_wakes_thread(settled[0])
        ):
            run_completions(self.state.ready_set.take_settled())
        else:
            self.schedule()

    def on_loop_thread(self) -> bool:
        """Return whether the caller runs on the loop's thread, for example a callback; never in a child
        process."""
        return threading.get_ident() == self._loop_thread and not self.forked

    def publish(
        self, payload: bytes, token: Any, message: OutgoingMessage | None, *, urgent: bool, waits: bool
    ) -> None:
        """Accept one message, or raise the refusal and keep nothing.

        ``waits``: a thread waits for permits or bytes; the loop's own never does.
        """
        self._check_open()
        partition = self._router_choice(message)
        if self._submit(payload, token, message, partition, urgent):
            return
        if self.on_loop_thread():
            self._worker.take_in()
            self._worker.take_now(QueuedSend(payload, token, message, partition, urgent))
            self.schedule()
            return
        waiter = Waiter()
        queued = WaitingSend(payload, token, message, partition, urgent=urgent, waits=waits, wake=waiter.wake)
        self.submit_queue.put_and_wake(queued)
        with queued.waiting():
            waiter.wait()

    @property
    def takes_rich_in_bulk(self) -> bool:
        """Whether messages with more than a payload may be submitted together: there is one partition, whose
        permits suit all of them, and no router of the application."""
        return len(self.state.partitions) == 1 and not self.state.router.custom

    def offer_simple(self, payload: bytes, token: Any, key: Any, properties: Any) -> bool:
        """Submit bytes with a key, properties or both, none of them checked yet; return False if `publish`
        must handle the message. Raises `InvalidMessage`."""
        submit_queue, partitions = self.submit_queue, self.state.partitions
        if len(submit_queue.pairs) >= submit_queue.room or len(payload) > submit_queue.size_max:
            return False
        message = build_simple_message(payload, properties, key)
        if len(partitions) > 1:
            return self._put(message, token, urgent=False)
        submit_queue.put(message, token, 1 if partitions[0].batch is None else submit_queue.wake_rich_at)
        return True

    async def publish_waiting(
        self, payload: bytes, token: Any, message: OutgoingMessage | None, *, urgent: bool
    ) -> None:
        """Accept one message as `publish` does; wait for permits or bytes without blocking the loop."""
        self._check_open()
        partition = self._router_choice(message)
        if not self._submit(payload, token, message, partition, urgent):
            future: asyncio.Future[None] = self._loop.create_future()
            queued = WaitingSend(
                payload, token, message, partition, urgent=urgent, waits=True, wake=partial(resolve, future)
            )
            self.submit_queue.put_and_wake(queued)
            with queued.waiting():
                await future

    def work(self, run: Callable[[], None], ended: Callable[[], None]) -> None:
        """Run a function on the loop, in order with the messages, or ``ended`` if the loop ended before; from
        any thread."""
        self._check_open()
        self.submit_queue.put_and_wake(QueuedWork(run, ended))

    def holds(self, token: Any) -> bool:
        """Return whether the message with this token was accepted and has no outcome yet; on the loop's
        thread."""
        self._worker.take_in()
        self.schedule()
        return self._worker.holds(token) or self.state.holds(token)

    def submit(self, operation: QueuedOperation) -> None:
        """Submit an encoded operation, in order with the messages; from any thread."""
        self._check_open()
        self.submit_queue.put_and_wake(operation)

    def close_batches_soon(self) -> None:
        """Close open batches soon, as a caller waits for the receipts; from any thread."""
        self.submit_queue.put_and_wake(QueuedWork(_nothing, _nothing), urgent=True)

    def _after_fork(self) -> None:
        """Refuse messages in a child process, where no thread empties the queue."""
        self.forked = True
        self.submit_queue.room = 0

    def check_process(self) -> None:
        """Raise `ForkedProcessError` in a child process."""
        if self.forked:
            raise ForkedProcessError(
                "this producer was created before fork(); create one in the child process"
            )

    def _check_open(self) -> None:
        self.check_process()
        if self._loop_ended:
            raise AlreadyClosed("the client is closed")

    def _router_choice(self, message: OutgoingMessage | None) -> PartitionProducer | None:
        """Return the choice of the application's router, which runs on the application's thread."""
        state = self.state
        if message is None or not state.router.custom:
            return None
        return state.partitions[state.router.of_custom(message, state.partitions)]

    def _submit(
        self,
        payload: bytes,
        token: Any,
        message: OutgoingMessage | None,
        partition: PartitionProducer | None,
        urgent: bool,
    ) -> bool:
        """Submit a message for which there is a permit; return False if the loop must decide."""
        submit_queue = self.submit_queue
        if message is None:
            return (submit_queue.offer_urgent if urgent else submit_queue.offer)(payload, token)
        if not submit_queue.has_room(len(payload)):
            return False
        return self._put(message, token, urgent=urgent, partition=partition)

    def _put(
        self,
        message: OutgoingMessage,
        token: Any,
        *,
        urgent: bool,
        partition: PartitionProducer | None = None,
    ) -> bool:
        """Submit a message that has room in the queue, unless its partition has no permit."""
        submit_queue, state = self.submit_queue, self.state
        item: OutgoingMessage | QueuedSend = message
        if partition is not None:
            item, token = QueuedSend(message.payload, token, message, partition, urgent), None
        partitions = state.partitions
        if len(partitions) == 1:
            partition = partitions[0]
        else:
            if partition is None and message.partition_key is not None:
                partition = partitions[state.router.of_key(message.partition_key, len(partitions))]
            if partition is None:
                partition = state.joined
            elif submit_queue.depth() >= partition.limits.own.free or not partition.accepting:
                return False
        if urgent:
            submit_queue.put_and_wake(item, token, urgent=True)
        else:
            # If a batch is open, its timer sends messages that do not fill it.
            is_open = partition is not None and partition.batch is not None
            submit_queue.put(item, token, submit_queue.wake_rich_at if is_open else 1)
        return True

    # --- on the loop ------------------------------------------------------------------------------

    def _run(self, *, expire: bool = False) -> None:
        """Process everything that is queued or due: submitted messages, time, frames to write, completions of
        receipts, the timer. With ``expire``, send time-outs are applied, too."""
        submit_queue, state = self.submit_queue, self.state
        ready_set = state.ready_set
        scheduled, self._scheduled = self._scheduled, False
        urgent = submit_queue.begin()
        self._worker.take_in()
        if urgent and self.settings.batching_enabled:
            state.close_batches()
        now = time.monotonic()
        state.tick(now + TIMER_SLACK_SECONDS, expire=expire)
        if self._wait_queue.queues:
            self._serve_wait_queue()
            state.tick(now, expire=expire)  # closes batches with accepted messages whose senders wait
        if self._encodes:
            self._encode_ahead()
        writes = self._take_output(now)
        ready_set.attention = False  # everything that closed or settled above is handled below
        deadline = ready_set.next_deadline()
        if deadline < ready_set.timer_at:
            self._arm_timer(deadline, now)
        if scheduled or self._recounts or submit_queue.room <= self._recount_at:
            self._update_credits()
        for connection, data in writes:
            if data:
                (connection.write_many if len(writes) > 1 else connection.write_now)(data)
        while state.unstarted:
            self.spawn(self._start_late(state.unstarted.pop(0)))
        if ready_set.settled:
            run_completions(ready_set.take_settled())
        if self._worker.failures:
            self._worker.run_failures()
        if self._turns:
            turns, self._turns = self._turns, []
            for turn in turns:
                resolve(turn)
        if ready_set.writable or ready_set.attention:
            self.schedule()

    def _take_output(self, now: float) -> list[tuple[BrokerConnection, list[Any]]]:
        """Return the data to write, by connection."""
        ready_set = self.state.ready_set
        writes: list[tuple[BrokerConnection, list[Any]]] = []
        if ready_set.writable:
            now_ms = self.context.now_ms()
            for partition in list(ready_set.writable):
                handle = self.handles.get(partition)
                connection = None if handle is None else handle.connection
                if handle is None or connection is None or connection.closed:
                    del ready_set.writable[partition]
                elif connection.writable:
                    writes.append((connection, partition.take_output(now, now_ms)))
                else:
                    del ready_set.writable[partition]
                    self._await_drained(handle, connection)
        return writes

    def _serve_wait_queue(self) -> None:
        queue = self._wait_queue
        queue.serve()
        if not queue.queues:
            return
        self.state.close_batches()  # no further message can be accepted before receipts arrive
        if queue.wants_bytes and not self._listens_for_bytes:
            self._listens_for_bytes = True
            self.memory.notify_once(self._bytes_returned)

    def _bytes_returned(self) -> None:
        """Continue after bytes were released, possibly by another producer of the client."""
        self._listens_for_bytes = False
        self.schedule()

    # --- send credits -----------------------------------------------------------------------------

    def _update_credits(self) -> None:
        """Publish the number of messages that may be submitted without asking the loop."""
        queue = self._wait_queue
        if self.closed or self.forked or queue.wants_bytes:
            numbers = (0, 0, 1, 1)  # messages must wait behind one that waits for bytes
        else:
            producers, standing = len(self.context.publishers), queue.standing
            numbers = self._credits.numbers(producers, standing, self._worker.largest)
        if self.submit_queue.open(*numbers):
            self.schedule()
        self._recount_at = self.submit_queue.room >> 1

    # --- time -------------------------------------------------------------------------------------

    def _arm_timer(self, deadline: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.state.ready_set.timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.state.ready_set.timer_at = float("inf")
        # The loop runs timers after it has read from the sockets: a receipt that arrived while it was busy,
        # for example in a callback of the application, comes before the send time-out.
        self._run(expire=True)

    def _encode_ahead(self) -> None:
        """Have batches to be compressed or encrypted serialised on executor threads."""
        for partition in self.state.ready_set.writable:
            if not partition.created_once:
                continue  # its sequence ids may still move
            for operation in partition.pending.first_unsent(ENCODING_AHEAD_MAX):
                if (
                    operation.body is None
                    and operation.payloads is not None
                    and not operation.claimed
                    and operation.size >= ENCODING_BYTES_MIN
                ):
                    self._encode(partition, operation)

    def _encode(self, partition: PartitionProducer, operation: SendOperation) -> None:
        def encoded(future: asyncio.Future[None]) -> None:
            operation.claimed = False
            if not future.cancelled() and (error := future.exception()) is not None:
                # The loop tries again and, if it fails there too, fails the messages.
                logger.debug("%s: a batch could not be encoded: %s", partition.topic, error)
            partition.has_output()
            self.schedule()

        try:
            future = self._loop.run_in_executor(None, operation.encode_body)
        except RuntimeError:
            return  # the interpreter is ending: it is encoded when it is written
        operation.claimed = True
        future.add_done_callback(encoded)

    def _await_drained(self, handle: ProducerHandle, connection: BrokerConnection) -> None:
        """Continue with a partition when its socket accepts data again."""
        if handle in self._draining:
            return
        self._draining.add(handle)

        async def wait() -> None:
            try:
                await connection.drain()
            except PulsarException:
                pass  # the connection ended: the next one is written to from the start
            finally:
                if not self._loop.is_closed():
                    self._draining.discard(handle)
                    handle.partition.has_output()
                    self.schedule()

        self.spawn(wait())

    def spawn(self, coroutine: Any) -> None:
        """Run a coroutine on the loop in the background."""
        task = self.context.task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- start, flush, close ----------------------------------------------------------------------

    async def start(self, partitions: list[PartitionProducer]) -> None:
        """Start these partitions together. Raises the error of one that cannot be created."""
        for partition in partitions:
            if partition.state is ProducerState.NOT_STARTED:
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
        """Start a partition lazily; if its creation fails, its messages fail with that error."""
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

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot of all counts; on the loop's thread."""
        if not self.closed:
            self._worker.take_in()
            self.schedule()
        return self.state.statistics()

    def grow(self, count: int) -> list[PartitionProducer]:
        """Grow to ``count`` partitions and return the new ones."""
        fresh = self.state.grow(count)
        self.schedule()
        return fresh

    async def flush(self) -> None:
        """Send queued messages and return when all messages submitted before have their receipts. Raises the
        first error among the last operations of the partitions."""
        self._worker.take_in()
        self.schedule()
        while self._wait_queue.accepted():
            # Wait for progress rather than for the next iteration: the broker may be away.
            await self._next_turn(None)
        self.state.close_batches()
        done: list[asyncio.Future[None]] = []
        for partition in self.state.partitions:
            tail = partition.pending.tail
            if tail is not None:
                future = self._loop.create_future()
                done.append(future)
                if tail.watchers is None:
                    tail.watchers = []
                tail.watchers.append(partial(_finish, future))
        self.schedule()
        if done:
            results = await asyncio.gather(*done, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def close(self) -> bool:
        """Accept no more messages, wait for pending receipts while there is a connection, and close; return
        False if another call does so."""
        if self.closed:
            return False
        deadline = time.monotonic() + self.context.settings.operation_timeout_seconds
        await self._await_accepted(deadline)
        if self.closed:
            return False  # meanwhile
        self._refuse_more()
        self.schedule()
        while not self._drained() and time.monotonic() < deadline:
            await self._next_turn(max(0.0, deadline - time.monotonic()))
        await asyncio.gather(*(handle.close() for handle in list(self.handles.values())))
        self._end()
        return True

    async def _await_accepted(self, deadline: float) -> None:
        """Wait until messages whose send call has returned have their permits, while their partitions have a
        connection: they are pending like any other."""
        self._worker.take_in()
        self.schedule()
        while (
            not self.closed
            and (seconds := deadline - time.monotonic()) > 0
            and any(map(self._may_move, self._wait_queue.accepted()))
        ):
            await self._next_turn(min(seconds, CONNECTED_CHECK_SECONDS))

    async def _next_turn(self, timeout: float | None) -> None:
        """Wait until `_run` has processed something, at most ``timeout`` seconds."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._turns.append(turn)
        await asyncio.wait([turn], timeout=timeout)

    def _may_move(self, target: Target) -> bool:
        """Return whether permits may be released there."""
        return any(p.connected for p in self.state.partitions if target is None or target is p)

    def abort(self) -> None:
        """Close at once: pending messages fail."""
        if not self.closed:
            self._refuse_more()
        for handle in list(self.handles.values()):
            handle.driver.abort()
        self._end()

    def _refuse_more(self) -> None:
        """Accept no more messages: those submitted before are the last."""
        self._worker.take_in()
        self.closed = True
        now = time.monotonic()
        for partition in self.state.partitions:
            partition.close(now)
        self._update_credits()
        self._serve_wait_queue()  # waiting senders are refused now

    def _end(self) -> None:
        """Fail all messages without a receipt."""
        for partition in self.state.partitions:
            if partition.state not in ENDED:
                partition.closed(time.monotonic())
        for hook in self.at_end:
            hook()
        self._run()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._tasks):
            task.cancel()
        self.context.publishers.pop(self, None)

    def fail_leftovers(self) -> None:
        """Fail the messages that were submitted while the loop ended."""
        self._loop_ended = True
        error = AlreadyClosed("the client is closed")
        for item, token in zip(*self.submit_queue.take(), strict=True):
            if isinstance(item, (WaitingSend, QueuedOperation)):
                item.settle(error)
            elif isinstance(item, QueuedWork):
                item.ended()
            else:
                fail_completion(item.token if isinstance(item, QueuedSend) else token, error)

    def _drained(self) -> bool:
        """Return whether no message is pending whose receipt could still arrive."""
        return all(not (p.connected and p.pending.head is not None) for p in self.state.partitions)


def _finish(future: asyncio.Future[None], operation: SendOperation) -> None:
    resolve(future, operation.error)


def _nothing() -> None:
    """Do nothing: the loop only has to run."""
