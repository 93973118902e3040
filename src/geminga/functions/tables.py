"""Functions from Arrow table to Arrow table, without Python objects per row.

A table is acknowledged when all its results have receipts. A table whose call fails is halved, and each half
is tried separately, until the failing rows are found: these are negatively acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from random import random
from typing import TYPE_CHECKING, Any

from geminga.client.receive.columnar_consumer import refuse_rows
from geminga.connection.backoff import Backoff
from geminga.errors import InvalidMessage, MessageTooBig, PulsarException, Timeout
from geminga.functions.calling import uncancelled
from geminga.functions.context import Context, InstanceContext
from geminga.functions.loading import Call, schema
from geminga.functions.result_producers import (
    failure_of,
    open_producer,
    payload_bytes_max,
    producer_arguments,
)
from geminga.functions.sending import RETRY_SECONDS_MAX, PendingResults, has_ended, is_passing
from geminga.functions.thread import CallingThread

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("geminga.functions")

IN_FLIGHT_MAX = 4
"""Maximum tables whose results have no receipt yet."""
FAILURES_MAX = 64
"""Maximum failed calls for parts of a table (17 find one row of 100,000); other rows are redelivered."""
_WAIT_MS = 500


class TableRelay:
    """Relay of one instance: reads tables from its consumer, calls the function, sends the results."""

    def __init__(
        self, settling: PendingResults, call: Call, thread: CallingThread, stopping: asyncio.Event
    ) -> None:
        self._settling = settling
        self._shared: InstanceContext = settling.shared
        self._consumer = settling.consumer
        self._call = call
        self._thread = thread
        self._stopping = stopping
        self._producer: Any = None
        self._sending: set[asyncio.Task[None]] = set()
        self._again: deque[pa.Table] = deque()
        """Tables whose queued results were invalid."""
        self._held: deque[pa.Table] = deque()
        """Tables whose results could not be sent because the output is unavailable."""
        self._delays = Backoff(random, maximum_seconds=RETRY_SECONDS_MAX)

    async def open(self) -> None:
        """Open the producer if there is an output. Raises the broker's error."""
        settings = self._shared.settings
        if self._producer is not None and failure_of(self._producer) is not None:
            self._producer.abort()
            self._producer = None
        if self._producer is None and settings.output is not None:
            self._producer = await open_producer(
                self._shared.client,
                settings.output,
                schema=schema("output_schema", settings.output_schema),
                **{**producer_arguments(settings), "batching_max_messages": 10_000},
            )

    async def _patiently_open(self) -> None:
        await self._settling.patiently(str(self._shared.settings.output), self.open)

    async def run(self) -> None:
        """Run until stopped, then wait for the receipts of results in flight."""
        settings, metrics = self._shared.settings, self._shared.metrics
        while not self._stopping.is_set():
            if self._held:
                await self._settling.pause(self._delays.next())
                await self._patiently_open()
                for table in [self._held.popleft() for _ in range(len(self._held))]:
                    await self._relay(table)
                continue
            if self._again:
                await self._relay(self._again.popleft(), fails=True)
                continue
            try:
                table = await self._consumer.receive_table(settings.max_rows, _WAIT_MS)
            except Timeout:
                continue
            metrics.received += table.num_rows
            metrics.last_invocation_ms = time.time_ns() // 1_000_000
            await self._patiently_open()
            await self._relay(table)
        if self._sending:
            await asyncio.wait(self._sending)

    async def _relay(self, table: pa.Table, fails: bool = False) -> None:
        """Process a table. ``fails``: the call for the whole table is known to fail."""
        failures = 0
        parts = deque(_halves(table) if fails else (table,))
        while parts:
            part = parts.popleft()
            error = await self._relay_part(part)
            if error is None:
                continue
            failures += 1
            self._count_failure(part, error)
            if part.num_rows > 1 and failures < FAILURES_MAX and not self._stopping.is_set():
                parts.extendleft(reversed(_halves(part)))
            else:
                refuse_rows(self._consumer, part)

    async def _relay_part(self, table: pa.Table) -> BaseException | None:
        """Process rows; return the error, or None if their results are in flight."""
        metrics = self._shared.metrics
        started = time.perf_counter()
        result, error = await self._result_of(table)
        metrics.process_seconds += time.perf_counter() - started
        if error is not None:
            return error
        if result is None or self._producer is None or not result.num_rows:
            await self._done(table)
            return None
        # Queue these results before the next table's, to keep the order. Do not wait for receipts.
        loop = asyncio.get_running_loop()
        try:
            self._check_sizes(result)
            receipts = await loop.run_in_executor(None, self._producer.columnar.submit_table, result)
        except PulsarException as failure:
            if isinstance(failure, (InvalidMessage, MessageTooBig)):
                return failure
            self._unsent(table, failure)
            return None
        except Exception as failure:  # pyarrow's error for unusable columns
            return failure
        task = asyncio.create_task(self._settle(asyncio.wrap_future(receipts), table))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        while len(self._sending) >= IN_FLIGHT_MAX:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        return None

    def _check_sizes(self, result: pa.Table) -> None:
        """Raise `MessageTooBig` if a row is too big, before any row is sent."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._shared.settings.compression != "NONE" or "value" not in result.column_names:
            return
        limit = payload_bytes_max(self._producer)
        if result.nbytes <= limit:
            return
        try:
            longest = pc.max(pc.binary_length(result.column("value"))).as_py()
        except pa.ArrowNotImplementedError:  # dictionaries and null columns: checked when sent
            return
        if longest is not None and longest > limit:
            raise MessageTooBig(f"a result of {longest} bytes; the broker takes {limit}")

    async def _result_of(self, table: pa.Table) -> tuple[pa.Table | None, BaseException | None]:
        """Return the call's result or its exception, as in `geminga.functions.calling.CallOutcome`."""
        call = self._call
        context = Context(self._shared, None) if call.takes_context else None
        given = (table, context) if context else (table,)

        def called() -> tuple[Any, BaseException | None]:
            try:
                return _checked(call.function(*given), context), None
            except BaseException as error:
                return None, error

        async def awaited() -> tuple[Any, BaseException | None]:
            result = error = None
            try:
                result = _checked(await call.function(*given), context)
            except BaseException as raised:
                error = raised
            await uncancelled()
            return result, error

        if not call.is_async:
            return await self._thread.run(called)
        task = asyncio.create_task(awaited())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:  # the function ends
            task.cancel()
            raise

    async def _settle(self, receipts: asyncio.Future[Any], table: pa.Table) -> None:
        try:
            sent = await receipts
        except (InvalidMessage, MessageTooBig) as error:
            self._count_failure(table, error)
            if table.num_rows > 1:
                self._again.append(table)
            else:
                refuse_rows(self._consumer, table)
        except Exception as error:
            self._unsent(table, error)
        else:
            self._delays.reset()
            self._shared.metrics.published += sent.rows
            await self._done(table)

    async def _done(self, table: pa.Table) -> None:
        self._shared.metrics.processed += table.num_rows
        if not self._consumer.closed:
            await self._consumer.acknowledge_table(table)

    def _unsent(self, table: pa.Table, error: Exception) -> None:
        self._shared.metrics.system_exceptions += 1
        logger.warning("results of %d rows could not be published: %s", table.num_rows, error)
        if is_passing(error) or has_ended(error):
            self._held.append(table)
        elif not self._consumer.closed:
            refuse_rows(self._consumer, table)

    def _count_failure(self, table: pa.Table, error: BaseException) -> None:
        metrics = self._shared.metrics
        metrics.user_exceptions += 1
        if metrics.user_exceptions & (metrics.user_exceptions - 1) == 0:
            logger.error("the function failed with a table of %d rows", table.num_rows, exc_info=error)


def _halves(table: pa.Table) -> tuple[pa.Table, ...]:
    middle = table.num_rows // 2
    return (table.slice(0, middle), table.slice(middle)) if middle else (table,)


def _checked(result: Any, context: Context | None) -> pa.Table | None:
    import pyarrow as pa

    if context is not None and (context.publishes or context.changes):
        raise InvalidMessage("publish and state are not there with tables: return what is to be sent")
    if result is None or isinstance(result, pa.Table):
        return result
    if isinstance(result, pa.RecordBatch):
        return pa.Table.from_batches([result])
    raise TypeError(
        f"with arrow=True a function returns a pyarrow.Table or None, not {type(result).__name__}"
    )
