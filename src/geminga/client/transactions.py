"""Transactions: messages and acknowledgements that take effect together, or not at all.

`AsyncTransaction` for asyncio and `Transaction` for threads have the same `TransactionCore`, whose requests
are sent here to the coordinator. Coordinators are the partitions of one topic of the system, each served by a
broker like any topic; a transaction's id contains the number of its coordinator.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self

from geminga import errors
from geminga.client.handles.consumer_handle import ConsumerHandle
from geminga.client.handles.context import ClientContext
from geminga.client.io.delegation import waited
from geminga.client.io.runtime import LoopThread
from geminga.client.io.tasks import resolve
from geminga.config import check_seconds, check_type
from geminga.connection import commands
from geminga.consumer.settlement import AckedEntries
from geminga.transactions import COORDINATORS_TOPIC, Part, TransactionCore, TransactionId, TransactionState
from geminga.wire.proto import pulsar_wire_pb2 as pb

logger = logging.getLogger("geminga")

_ADVICE = (
    "set transactionCoordinatorEnabled=true in its broker.conf or standalone.conf, create the coordinators "
    "of a cluster with `bin/pulsar initialize-transaction-coordinator-metadata`, and restart it. Of "
    "Geminga's broker: its setting transactions is off"
)
_S = TransactionState


async def ask_coordinator(
    context: ClientContext, number: int, make_command: Callable[[int], pb.BaseCommand], what: str
) -> pb.BaseCommand:
    """Send a request to a transaction coordinator and return its answer; a lost connection and transient
    refusals are retried until the operation time-out."""

    async def attempt(topic: str, remaining: float) -> pb.BaseCommand:
        deadline = context.now() + remaining
        connection = context.coordinators.get(number)
        if connection is None or connection.closed:
            connection = await context.connection_once(topic, remaining)
            hello = partial(commands.connect_to_coordinator, number)
            await connection.request(hello, max(0.0, deadline - context.now()))
            context.coordinators[number] = connection
        try:
            return await connection.request(make_command, max(0.0, deadline - context.now()))
        except errors.TransactionCoordinatorNotFoundError:
            context.coordinators.pop(number, None)  # another broker has it now
            raise

    return await context.retrying(what, attempt, f"{COORDINATORS_TOPIC}-partition-{number}")


async def begin_transaction(context: ClientContext, timeout: float) -> tuple[TransactionId, float]:
    """Begin a transaction of at most ``timeout`` seconds; return its id, and its time limit on the context's
    clock. See `geminga.Client.new_transaction`."""
    check_seconds("timeout", timeout, 0.001)
    try:
        if not context.coordinator_count:
            with contextlib.suppress(errors.TopicNotFound):
                context.coordinator_count = await context.partitions(COORDINATORS_TOPIC, auto_creation=False)
        if not context.coordinator_count:
            raise errors.OperationNotSupported(f"the broker has no transactions: {_ADVICE}")
        number = context.random.randrange(context.coordinator_count)
        deadline = context.now() + timeout
        make = partial(commands.new_transaction, number, max(1, round(timeout * 1000)))
        answer = await ask_coordinator(context, number, make, "beginning a transaction")
    except errors.NotAllowedError as error:
        text = f"the broker refused the transaction: {error}. If it has no transactions: {_ADVICE}"
        raise errors.OperationNotSupported(text) from error
    made = answer.newTxnResponse
    return TransactionId(made.txnid_most_bits, made.txnid_least_bits), deadline


class AsyncTransaction:
    """Transaction of an asyncio program, made by `geminga.asyncio.Client.new_transaction`.

    At the end of an ``async with`` block it is committed, or aborted if the block raises an exception.
    """

    def __init__(self, client: Any, transaction_id: TransactionId, deadline: float) -> None:
        self.context: ClientContext = client.context
        self.core = TransactionCore(transaction_id, deadline, self.context.now, self._join)
        self.senders: dict[tuple[Callable[[], Awaitable[None]], Callable[[], None]], None] = {}
        """Functions of its producers: flush, and write messages of a new part. Any thread may add one."""
        self.drains: dict[Callable[[], None], None] = {}
        """Functions of its consumers that process queued acknowledgements. Any thread may add one."""
        self.acked: dict[ConsumerHandle, AckedEntries] = {}
        """Entries acknowledged in it, by their consumers."""
        left = max(0.0, deadline - self.context.now())
        self._alarm = self.context.loop.call_later(left, self._time_is_over)
        self._ending = asyncio.Lock()
        """Held by the call that ends it: another one waits, and is refused."""
        self._end_requests = 0

    @property
    def id(self) -> TransactionId:
        """Id of the transaction: the number of its coordinator, and a number there."""
        return self.core.id

    @property
    def state(self) -> TransactionState:
        """State as far as this client knows it."""
        return self.core.state

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if self.state not in (_S.OPEN, _S.TIME_OUT):
            return  # the block has ended it
        if kind is None:
            await self.commit()
            return
        try:
            await self.abort()
        except errors.PulsarException as error:
            logger.warning("no abort after an exception, but at the time limit: %s", error)

    async def commit(self) -> None:
        """Wait for the receipts of all sends and acknowledgements, and commit: messages become visible and
        acknowledgements take effect together.

        Raises `TransactionHasOperationFailed` if one of them failed: the transaction is aborted then.
        Raises `InvalidTxnStatusError` unless it is open; `TransactionNotFound` if its coordinator does not
        know it any more, for example after its time limit; `Timeout` without an answer: call it again. One
        call ends a transaction: another at the same time waits for it, and raises `InvalidTxnStatusError`.
        """
        core = self.core
        async with self._ending:
            await self._settle(_S.COMMITTING)
            if core.failure is None:
                await self._end()
                return
            with contextlib.suppress(errors.PulsarException):  # it is aborted at its time limit at the latest
                await self._end()
        raise errors.TransactionHasOperationFailed(
            f"{core.name} was aborted, since an operation in it failed: {core.failure}"
        ) from core.failure

    async def abort(self) -> None:
        """Wait for all sends and acknowledgements, and abort: its messages are never delivered, and those
        acknowledged in it are delivered again. Raises the errors of `commit`, but for those of its sends and
        acknowledgements."""
        async with self._ending:
            await self._settle(_S.ABORTING)
            await self._end()

    async def _settle(self, wanted: TransactionState) -> None:
        """Begin the end: send queued messages and acknowledgements, and wait until each operation has its
        outcome, at most until the time limit."""
        core, loop = self.core, self.context.loop
        try:
            core.begin_end(wanted)
        except errors.InvalidTxnStatusError:
            self._tell_consumers()
            raise
        if core.sealed:
            return  # the last attempt to end it had no answer
        try:
            async with asyncio.timeout_at(core.deadline):
                for drain in list(self.drains):
                    drain()
                flushes = [flush() for flush, _ in list(self.senders)]
                await asyncio.gather(*flushes, return_exceptions=True)  # each operation has its error itself
                while core.pending:
                    idle = loop.create_future()
                    core.on_idle = partial(resolve, idle)
                    await idle
        except TimeoutError:
            core.failed(errors.Timeout(f"{core.pending} receipts did not arrive within the time limit"))
        core.seal()

    async def _end(self) -> None:
        """Have the coordinator end the transaction."""
        core = self.core
        commit = core.state is _S.COMMITTING

        def make(request_id: int) -> pb.BaseCommand:
            self._end_requests += 1
            return commands.end_transaction(core.id, commit=commit, request_id=request_id)

        what = f"{'committing' if commit else 'aborting'} {core.name}"
        try:
            await ask_coordinator(self.context, core.id.most_bits, make, what)
            core.end()
        except errors.TransactionNotFound as error:
            # A coordinator forgets what has ended: perhaps by the request before, whose answer was lost.
            again = self._end_requests > 1
            core.end(known=again and not commit)
            if core.state is _S.ERROR:
                maybe = "; an earlier request, whose answer is lost, may have committed it" if again else ""
                raise errors.TransactionNotFound(
                    f"{what}: its coordinator does not know it{maybe}"
                ) from error
        except errors.InvalidTxnStatusError:
            core.end(known=False)
            raise
        finally:
            self._tell_consumers()

    def _time_is_over(self) -> None:
        """Have acknowledged messages delivered again although the program has not ended the transaction."""
        if self.state in (_S.OPEN, _S.TIME_OUT):
            self._tell_consumers()

    def _tell_consumers(self) -> None:
        state = self.state
        if state is _S.COMMITTING:
            return  # an attempt without an answer
        for handle, acked in self.acked.items() if state is not _S.COMMITTED else ():
            handle.transaction_aborted(acked)
        if state is not _S.ABORTING:
            self.acked.clear()
            self._alarm.cancel()

    def _join(self, part: Part) -> None:
        """Have the coordinator add a part."""

        async def ask() -> None:
            what = f"adding {part.topic} to {self.core.name}"
            make = partial(commands.add_to_transaction, self.id, part)
            error: Exception | None = None
            try:
                await ask_coordinator(self.context, self.id.most_bits, make, what)
            except Exception as refusal:
                error = refusal
            self.core.joined(part, error)
            for _, schedule in list(self.senders):
                schedule()

        task = self.context.task(ask())
        self.context.background.add(task)
        task.add_done_callback(self.context.background.discard)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.state.name}>"


class Transaction:
    """Transaction of a program with threads, made by `geminga.Client.new_transaction`; any thread may use it.

    At the end of a ``with`` block it is committed, or aborted if the block raises an exception.
    """

    def __init__(self, client: Any, transaction_id: TransactionId, deadline: float) -> None:
        self._runtime: LoopThread = client.runtime
        self.transaction = AsyncTransaction(client, transaction_id, deadline)

    @property
    def id(self) -> TransactionId:
        """Id of the transaction: the number of its coordinator, and a number there."""
        return self.transaction.id

    @property
    def state(self) -> TransactionState:
        """State as far as this client knows it."""
        return self.transaction.state

    commit = waited("transaction", AsyncTransaction.commit)
    abort = waited("transaction", AsyncTransaction.abort)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        try:
            self._runtime.call(self.transaction.__aexit__(kind, *exc_info))
        except errors.PulsarException:
            if kind is None:
                raise  # else the block's own exception continues

    def __repr__(self) -> str:
        return repr(self.transaction).replace("AsyncTransaction", "Transaction")


def transaction_of(txn: Any, context: ClientContext) -> AsyncTransaction:
    """Return the open transaction of an argument ``txn``. Raises `InvalidTxnStatusError` for one that is not
    open, `UsageError` for one of another client or event loop, `InvalidConfiguration` for anything else."""
    found: AsyncTransaction = txn.transaction if isinstance(txn, Transaction) else txn
    check_type("txn", found, AsyncTransaction)
    if found.context is not context:
        raise errors.UsageError(
            f"txn={txn!r} belongs to another client or event loop than the producer or consumer"
        )
    found.core.check_open()
    return found
