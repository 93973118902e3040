"""Functions from Arrow table to Arrow table: no row becomes a Python object.

A table is acknowledged when all that its call gave has its receipts, and negatively acknowledged as a whole
if any of it fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from geminga.errors import InvalidMessage, PulsarException, Timeout
from geminga.functions.loading import Call, schema
from geminga.functions.running_context import RunningContext, Shared
from geminga.functions.sending import producer_arguments

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("geminga.functions")

IN_FLIGHT_MAX = 4
"""Tables whose results have no receipt yet."""
_WAIT_MS = 500


async def relay_tables(
    shared: Shared, client: Any, consumer: Any, call: Call, thread: ThreadPoolExecutor,
    stopping: asyncio.Event,
) -> None:  # fmt: skip
    """Until ``stopping``, then until what is under way has its receipts (``drain_seconds`` at most)."""
    settings, metrics = shared.settings, shared.metrics
    loop = asyncio.get_running_loop()
    arguments = producer_arguments(settings)
    arguments["batching_max_messages"] = 10_000
    producer: Any = None
    if settings.output is not None:
        producer = await client.create_producer(
            settings.output, schema=schema("output_schema", settings.output_schema), **arguments
        )
    sending: set[asyncio.Task[None]] = set()
    while not stopping.is_set():
        try:
            table = await consumer.receive_table(settings.max_rows, _WAIT_MS)
        except Timeout:
            continue
        metrics.received += table.num_rows
        metrics.last_invocation_ms = time.time_ns() // 1_000_000
        started = time.perf_counter()
        try:
            context = RunningContext(shared, None) if call.takes_context else None
            given = (table, context) if context else (table,)
            if call.is_async:
                result = await call.function(*given)
            else:
                result = await loop.run_in_executor(thread, call.function, *given)
            result = _checked(result)
            if context is not None and (context.publishes or context.changes):
                raise InvalidMessage("publish and state are not there with tables: return what is to be sent")
        except Exception as error:
            metrics.user_exceptions += 1
            if metrics.user_exceptions & (metrics.user_exceptions - 1) == 0:
                logger.exception(
                    "the function failed with a table of %d rows", table.num_rows, exc_info=error
                )
            refuse_rows(consumer, table)
            continue
        finally:
            metrics.process_seconds += time.perf_counter() - started
        if result is None or producer is None or not result.num_rows:
            metrics.processed += table.num_rows
            await consumer.acknowledge_table(table)
            continue
        # Handed over before the next is: results keep the order of the input. Their receipts may wait.
        submitted = loop.run_in_executor(None, producer.columnar.submit_table, result)
        task = asyncio.create_task(_settle(shared, consumer, submitted, table, result))
        await asyncio.wait((submitted,))
        sending.add(task)
        task.add_done_callback(sending.discard)
        while len(sending) >= IN_FLIGHT_MAX:
            await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
    if sending:
        await asyncio.wait(sending, timeout=settings.drain_seconds)


async def _settle(
    shared: Shared, consumer: Any, submitted: asyncio.Future[Any], table: pa.Table, result: pa.Table
) -> None:
    metrics = shared.metrics
    try:
        sent = await asyncio.wrap_future(await submitted)
    except (PulsarException, TypeError, ValueError) as error:
        metrics.system_exceptions += 1
        logger.warning("a table of %d rows could not be published: %s", result.num_rows, error)
        if not consumer.closed:
            refuse_rows(consumer, table)
        return
    metrics.published += sent.rows
    metrics.processed += table.num_rows
    if not consumer.closed:
        await consumer.acknowledge_table(table)


def _checked(result: Any) -> pa.Table | None:
    import pyarrow as pa

    if result is None or isinstance(result, pa.Table):
        return result
    if isinstance(result, pa.RecordBatch):
        return pa.Table.from_batches([result])
    raise TypeError(
        f"with arrow=True a function returns a pyarrow.Table or None, not {type(result).__name__}"
    )


def refuse_rows(consumer: Any, table: pa.Table) -> None:
    """Negatively acknowledge the entries of a table: they come again, or go to the dead letter topic."""
    import itertools

    from geminga.ids import MessageId, TopicName

    topics = table.column("topic").to_pylist()
    ledgers = table.column("ledger_id").to_pylist()
    entries = table.column("entry_id").to_pylist()
    for (topic, ledger, entry), _ in itertools.groupby(zip(topics, ledgers, entries, strict=True)):
        partition = TopicName.parse(topic).partition
        partition = -1 if partition is None else partition
        consumer.refuse(MessageId(partition, ledger, entry, topic=topic))
