"""Every kind of token gets its outcome once, in order."""

import asyncio
from functools import partial

import pytest

from geminga import errors
from geminga.client.publish.completions import run_completions
from geminga.errors import Result
from geminga.ids import MessageId
from geminga.producer.chunking import ChunkedMessage, ChunkPart
from geminga.producer.operation import SendOperation


class Partition:
    index = 4


def settled(tokens, *, error=None, place=(7, 8), is_batch=True, chunk=None):
    operation = SendOperation(
        None, tokens, len(tokens), sequence_id=0, highest_sequence_id=len(tokens) - 1, size=0, permits=0,
        opened_at=0.0, deadline=0.0, is_batch=is_batch, chunk=chunk,
    )  # fmt: skip
    operation.partition = Partition
    operation.error = error
    operation.ledger_id, operation.entry_id = place
    return operation


def test_a_duplicates_id_is_the_earliest():
    got = []
    run_completions([settled([lambda r, m: got.append(m)] * 2, place=(-1, -1))])
    assert got == [MessageId.earliest] * 2


def test_a_message_in_chunks_knows_its_first_one():
    whole = ChunkedMessage(2, 10)
    whole.first_ledger_id, whole.first_entry_id = 7, 5
    got = []
    run_completions([settled([], is_batch=False, chunk=ChunkPart(whole, 0))])
    run_completions([settled([lambda r, m: got.append(m)], is_batch=False, chunk=ChunkPart(whole, 1))])
    assert got[0].first_chunk == MessageId(4, 7, 5)


class OwnFuture(asyncio.Future):
    """A future class of another event loop."""


class Callable:
    def __init__(self, got):
        self.got = got

    def __call__(self, result, message_id):
        self.got.append((result, message_id))


@pytest.mark.parametrize("is_batch", [True, False])
async def test_futures_of_another_loop_are_futures_and_what_can_be_called_is_called(is_batch):
    got = []
    future, failed = OwnFuture(), OwnFuture()
    run_completions([settled([future, Callable(got), partial(Callable(got))], is_batch=is_batch)])
    run_completions([settled([failed], error=errors.Timeout("late"))])
    assert await future == MessageId(4, 7, 8, 0 if is_batch else -1)
    assert [result for result, _ in got] == [Result.Ok, Result.Ok]
    with pytest.raises(errors.Timeout):
        await failed
