"""Completions: callers that wait for a message's outcome, and how they are notified.

A token is a callback ``(result, message_id)``, an asyncio future, an int (one message of a
`geminga.client.publish.many` call), or None. Callbacks that need the error itself are a `CompletionCallback`
or a `ReceiptWaiter`. Receipts settle whole operations: all tokens of an operation are completed in one loop,
on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any

from geminga.client.io.callbacks import callback_raised
from geminga.client.io.waiter import Waiter
from geminga.client.publish.many import many_of, stored_together
from geminga.errors import Result, result_of
from geminga.ids import MessageId
from geminga.producer.chunking import ChunkPart
from geminga.producer.operation import SendOperation

logger = logging.getLogger("geminga.producer")


class ReceiptWaiter(Waiter):
    """Wait of a thread for the receipt of its message: an id, or an error."""

    __slots__ = ("error", "message_id")

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.message_id: MessageId | None = None

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self.message_id = message_id
        self.wake()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.wake()


def run_completions(settled: list[SendOperation]) -> None:
    """Give every token of the settled operations its outcome, in order; on the loop's thread.

    An exception that a callback raises is logged and affects nothing else.
    """
    for operation in settled:
        if operation.error is not None:
            _deliver_error(operation, operation.error)
        else:
            _deliver_receipt(operation)
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
    first = None if operation.chunk is None else _first_chunk(operation.chunk, partition)
    # The messages of a batch have consecutive indexes, those of a run consecutive entries.
    index = -1
    next_index, next_entry = batch_size > 0, operation.is_run and not duplicate
    ok = Result.Ok
    if type(tokens[0]) is int and (batch_size or next_entry or len(tokens) == 1) and first is None:
        entry_ids = range(entry_id, entry_id + len(tokens)) if next_entry else (entry_id,)
        done = stored_together(tokens, partition, ledger_id, entry_ids, batch_size)
        tokens = tokens[done:]
        index += next_index * done
        entry_id += next_entry * done
    entry_id -= next_entry
    for token in tokens:
        index += next_index
        entry_id += next_entry
        if token is None:
            continue
        kind = type(token)
        # Written out: a call of the constructor would dominate a receipt's cost.
        message_id = _new_id(MessageId)
        message_id._partition = partition
        message_id._ledger_id = ledger_id
        message_id._entry_id = entry_id
        message_id._batch_index = index
        message_id.batch_size = batch_size
        message_id.first_chunk = first
        message_id.topic = ""
        message_id.cluster = 0
        if kind is FunctionType or (kind is not int and not isinstance(token, asyncio.Future)):
            try:
                token(ok, message_id)
            except BaseException as error:
                callback_raised(error)
        else:
            receipt_token(token, message_id)


def receipt_token(token: Any, message_id: MessageId) -> None:
    """Complete one token, which is not None, with its message id."""
    try:
        if type(token) is int:
            many_of(token).stored(token, 1, lambda: (message_id,))
        elif isinstance(token, asyncio.Future):
            if not token.done():
                token.set_result(message_id)
        else:
            token(Result.Ok, message_id)
    except BaseException as error:
        callback_raised(error)


def only_wakes_thread(operation: SendOperation) -> bool:
    """Return whether the operation is one message for which a thread waits: completing it runs none of the
    application's code."""
    tokens = operation.tokens
    return len(tokens) == 1 and type(tokens[0]) is ReceiptWaiter and operation.watchers is None


def _first_chunk(chunk: ChunkPart, partition: int) -> MessageId:
    whole = chunk.message
    return MessageId(partition, whole.first_ledger_id, whole.first_entry_id)


def _deliver_error(operation: SendOperation, error: Exception) -> None:
    result = result_of(error)
    for token in operation.open_tokens:
        fail_completion(token, error, result)


def fail_completion(token: Any, error: Exception, result: Result | None = None) -> None:
    """Complete one token with its error. A callback gets the result code and the earliest id."""
    if token is None:
        return
    try:
        if type(token) is int:
            many_of(token).failed(token, error)
        elif isinstance(token, asyncio.Future):
            if not token.done():
                token.set_exception(error)
        elif isinstance(token, (CompletionCallback, ReceiptWaiter)):
            token.fail(error)
        else:
            token(result_of(error) if result is None else result, MessageId.earliest)
    except BaseException as raised:
        callback_raised(raised)


class CompletionCallback:
    """Token that receives the exception itself, on behalf of interceptors."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[MessageId | None, Exception | None], None]) -> None:
        self._done = done

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self._done(message_id, None)

    def fail(self, error: Exception) -> None:
        self._done(None, error)
