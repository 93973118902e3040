"""Batches that another thread takes in advance."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from geminga.spark.sink.frames import taken_ahead

PATIENCE_SECONDS = 60


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([number], pa.int64())})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [each.column(0)[0].as_py() for each in batches]


@pytest.mark.parametrize("count", [0, 1, 500])
def test_batches_keep_their_order(count):
    assert numbers(taken_ahead(map(batch, range(count)))) == list(range(count))


def test_errors_are_raised_after_earlier_batches():
    def failing() -> Iterator[pa.RecordBatch]:
        yield from map(batch, range(3))
        raise KeyError("what Spark raises")

    taken = taken_ahead(failing())
    assert [next(taken).column(0)[0].as_py() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="what Spark raises"):
        next(taken)


def test_the_next_batch_alone_is_computed_while_the_caller_works():
    computed = threading.Semaphore(0)
    count = 0

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for number in range(100):
            count += 1
            computed.release()
            yield batch(number)

    taken = taken_ahead(source())
    for number in range(10):
        next(taken)
        while count < number + 2:
            assert computed.acquire(timeout=PATIENCE_SECONDS)
        assert count == number + 2


@pytest.mark.parametrize("used", [0, 1, 5])
def test_closing_ends_the_prefetching_thread(used):
    taken = taken_ahead(map(batch, range(1_000_000)))
    for _ in range(used):
        next(taken)
    taken.close()
    for thread in threading.enumerate():
        if thread.name.startswith("geminga ahead"):
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
