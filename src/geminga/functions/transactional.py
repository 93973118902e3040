"""Transactional processing: results, changes of the state and acknowledgements of their input messages in one
transaction, which several inputs share.

A transaction begins when the calls are done, and is short:

* All results are sent. Without a receipt for each it is aborted, before anything is acknowledged, and the
  results are sent in another one: after a delay if a topic is unavailable, else one transaction for each
  input, so that an invalid result fails its own input only.
* A lost connection is such a failure too: results that were sent again may be in the topic twice.
* So is the time limit; then each half of the inputs has its own transaction.
* The inputs are acknowledged, and the transaction is committed. A refused acknowledgement (a conflict:
  another instance has it) is a failure like that of a result; after any other one the broker aborts the
  transaction and redelivers its inputs.

A killed function leaves at most one open transaction, which the broker aborts at its time limit.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from geminga import TransactionState
from geminga.asyncio import Client
from geminga.errors import MessageTooBig, PulsarException, Timeout, TransactionHasOperationFailed
from geminga.functions.calling import CallOutcome
from geminga.functions.result_producers import (
    METADATA_BYTES,
    close_batches_soon,
    payload_bytes_max,
    resent_operations,
)
from geminga.functions.sending import AtLeastOnce, PendingResults

logger = logging.getLogger("geminga.functions")


_Failure = tuple[CallOutcome, Exception, str]
"""Arguments of `geminga.functions.sending.Failed`."""


class _Receipts:
    """Results of one transaction on their way; ``failures``: outcomes whose results were not all stored."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.failures: list[_Failure] = []
        self.all = asyncio.Event()

    def stored(self, outcome: CallOutcome) -> None:
        self.left -= 1
        if not self.left:
            self.all.set()

    def failed(self, outcome: CallOutcome, error: Exception, topic: str) -> None:
        self.failures.append((outcome, error, topic))
        self.stored(outcome)


class Transactional(AtLeastOnce):
    """Collects outcomes, and stores their results and acknowledgements in transactions."""

    def __init__(self, settling: PendingResults, client: Client, output_schema: Any) -> None:
        super().__init__(settling, client, output_schema)
        self._collected: list[CallOutcome] = []
        self._size_max = 5 * 1024 * 1024 - METADATA_BYTES
        self._alarm: asyncio.TimerHandle | None = None
        settling.on_last = self._store_soon

    def check_size(self, size: int) -> None:
        """Raise `MessageTooBig` if the results are too big. May run on any thread."""
        if size > self._size_max:
            raise MessageTooBig(f"a result of {size} bytes; the broker takes {self._size_max}")

    async def emit(self, outcomes: Sequence[CallOutcome]) -> None:
        for outcome in outcomes:
            if outcome.error is None:
                self._collected.append(outcome)
            else:
                self._settling.again(outcome.message)
        most = min(self._settings.transaction_messages, self._settling.most)
        if len(self._collected) >= most or not self._settling.consumer.queue:
            await self._store_collected()
        elif self._collected and self._alarm is None:
            # Store the results even if the next call takes long.
            delay = self._settings.transaction_delay_ms / 1000
            self._alarm = asyncio.get_running_loop().call_later(delay, self._store_soon)

    def _store_soon(self) -> None:
        async def store() -> None:
            try:
                await self._store_collected()
            except Exception as error:
                self._settling.end(error)

        self._keep(asyncio.ensure_future(store()))

    async def _store_collected(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        most = self._settings.transaction_messages
        async with self._turn:
            while self._collected:
                some, self._collected = self._collected[:most], self._collected[most:]
                await self._store(some)

    async def _store(self, outcomes: list[CallOutcome]) -> None:
        """Store results and acknowledgements in one transaction. Raises permanent errors of the output."""
        settling, seconds = self._settling, self._settings.transaction_timeout_ms / 1000
        lasting: list[_Failure] = []
        while settling.fatal is None:
            txn = await settling.patiently("a transaction", lambda: self._client.new_transaction(seconds))
            try:
                failures = await self.send_all(outcomes, txn, seconds)
            except Exception:
                await _abort(txn)
                raise
            failures = failures or await self._commit(outcomes, txn)
            if not failures:
                return
            await _abort(txn)
            if lasting := [each for each in failures if not self._may_pass(*each[1:])]:
                break
            _, error, topic = failures[0]
            settling.shared.metrics.system_exceptions += 1
            logger.warning("%s: a transaction is repeated: %s: %s", topic, type(error).__name__, error)
            await settling.pause(self._delays.next())
            if txn.state is TransactionState.TIME_OUT and len(outcomes) > 1:
                # Perhaps they are too many for the time limit.
                middle = len(outcomes) // 2
                await self._store(outcomes[:middle])
                await self._store(outcomes[middle:])
                return
        if len(outcomes) > 1:
            for outcome in outcomes:
                await self._store([outcome])
        elif lasting:
            self._forget_state(outcomes, lasting[0][1])
            settling.unsent(outcomes[0].message, lasting[0][1])

    async def send_all(self, outcomes: list[CallOutcome], txn: Any, seconds: float) -> list[_Failure]:
        """Send all results in a transaction and wait for their receipts; return the failures."""
        receipts, state = _Receipts(len(outcomes)), self._settling.shared.state
        used = [] if state is None else [state.producer]
        before = {each: resent_operations(each) for each in (*used, *self._producers.values())}
        self._txn, self._stored, self._not_stored = txn, receipts.stored, receipts.failed
        topic = str(self._settings.output)
        try:
            async with asyncio.timeout(seconds):
                await self._emit(outcomes)
                used += self._producers.values()
                await asyncio.sleep(0)  # let started sends queue their messages
                for producer in used:
                    close_batches_soon(producer)
                await receipts.all.wait()
        except TimeoutError:
            return [(outcomes[0], Timeout(f"no receipts within {seconds:g} s"), topic)]
        if any(resent_operations(each) > before.get(each, 0) for each in used):
            return [(outcomes[0], Timeout("a lost connection may have stored results twice"), topic)]
        if txn.state is not TransactionState.OPEN:
            return [(outcomes[0], Timeout("the transaction's time limit has passed"), topic)]
        return receipts.failures

    async def _commit(self, outcomes: list[CallOutcome], txn: Any) -> list[_Failure]:
        """Acknowledge the inputs and commit; return a failure if the broker refused an acknowledgement."""
        settling, consumer = self._settling, self._settling.consumer
        try:
            consumer.acknowledge_in(txn, [outcome.message for outcome in outcomes])
            await settling.patiently("a commit", txn.commit)
        except TransactionHasOperationFailed as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            return [(outcomes[0], cause, "acknowledgements")]
        except PulsarException as error:
            await _abort(txn)
            settling.shared.metrics.system_exceptions += 1
            logger.warning("%d messages are redelivered: %s: %s", len(outcomes), type(error).__name__, error)
            self._forget_state(outcomes, error)
            settling.redelivered(len(outcomes))
        else:
            for outcome in outcomes:
                settling.done(outcome.message)
        return []

    def _forget_state(self, outcomes: list[CallOutcome], error: Exception) -> None:
        """End the function if its memory has changes of the state that an abort has undone in the topic."""
        if any(outcome.changes for outcome in outcomes):
            self._settling.end(error)

    async def _opened(self, topic: str, compression: Any) -> Any:
        producer = await super()._opened(topic, compression)
        if topic == self._settings.output:
            self._size_max = payload_bytes_max(producer)
        return producer

    async def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        await super().close()


async def _abort(txn: Any) -> None:
    """Abort a transaction unless it has ended; without an answer it is aborted at its time limit."""
    if txn.state is TransactionState.OPEN:
        with contextlib.suppress(PulsarException):
            await txn.abort()
