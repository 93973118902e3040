"""Batches that another thread takes in advance."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from geminga.spark.prefetch import taken_ahead

PATIENCE_SECONDS = 60


def batch(number: int, size: int = 8) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([number] * (size // 8), pa.int64())})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [each.column(0)[0].as_py() for each in batches]


@pytest.mark.parametrize("bytes_max", [1, 100, 1 << 30])
@pytest.mark.parametrize("count", [0, 1, 500])
def test_batches_keep_their_order(count: int, bytes_max: int) -> None:
    assert numbers(taken_ahead(map(batch, range(count)), bytes_max)) == list(range(count))


def test_errors_are_raised_after_earlier_batches() -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from map(batch, range(3))
        raise KeyError("what Spark raises")

    taken = taken_ahead(failing())
    assert [next(taken).column(0)[0].as_py() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="what Spark raises"):
        next(taken)


def test_prefetched_bytes_are_bounded() -> None:
    taken = 0
    is_taken = threading.Semaphore(0)

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for number in range(100):
            taken += 1
            is_taken.release()
            yield batch(number, 80)

    found = taken_ahead(source(), 200)
    for number in range(100):
        assert next(found).column(0)[0].as_py() == number
        # Three wait, of which the third is one more than there is room for, and one is here.
        assert taken <= number + 1 + 3
    assert is_taken.acquire(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("used", [0, 1, 5])
def test_closing_ends_the_prefetching_thread(used: int) -> None:
    taken = taken_ahead(map(batch, range(1_000_000)), 100)
    for _ in range(used):
        next(taken)
    taken.close()  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread.name == "geminga ahead":
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
