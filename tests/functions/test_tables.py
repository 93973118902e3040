"""Functions of tables: what fails in one is found, and the rest of it is done."""

import asyncio
from typing import Any

import pytest
from waiting import eventually, loop_turns

from geminga.functions import FunctionRunner

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")


class Panic(BaseException):
    """Exception of extensions written in Rust."""


def _bad(table: Any) -> bool:
    return bool(pc.any(pc.equal(table["value"].cast(pa.binary()), pa.scalar(b"777"))).as_py())


def _with(table: Any, name: str, column: Any) -> Any:
    return table.set_column(table.column_names.index(name), name, column)


def _raises(table: Any) -> Any:
    if _bad(table):
        raise ValueError("no")
    return table


def _panics(table: Any) -> Any:
    if _bad(table):
        raise Panic
    return table


async def _cancels_itself(table: Any) -> Any:
    if _bad(table):
        asyncio.current_task().cancel()
        await loop_turns()
    return table


async def _exits(table: Any) -> Any:
    if _bad(table):
        raise SystemExit(2)
    return table


def _no_table(table: Any) -> Any:
    return 5 if _bad(table) else table


def _no_value(table: Any) -> Any:
    return table.drop_columns(["value"]) if _bad(table) else table


def _numbers(table: Any) -> Any:
    return _with(table, "value", pa.array(range(table.num_rows))) if _bad(table) else table


def _strange_keys(table: Any) -> Any:
    return _with(table, "key", pa.array([{"a": 1}] * table.num_rows)) if _bad(table) else table


def _too_big(table: Any) -> Any:
    if not _bad(table):
        return table
    values = [bytes(6_000_000) if value == b"777" else value for value in table["value"].to_pylist()]
    return _with(table, "value", pa.array(values, pa.large_binary()))


@pytest.mark.parametrize(
    "function",
    [_raises, _panics, _cancels_itself, _exits, _no_table, _no_value, _numbers, _strange_keys, _too_big],
)
def test_a_failing_row_does_not_fail_other_rows(place, function):
    # Rows that are not done when the failed one is redelivered would be processed twice (at least once).
    settings = place.dead_lettering(function, arrow=True, retry_delay_ms=1000)
    place.send(*range(1000))  # some to a batch
    with FunctionRunner(settings) as runner:
        assert place.values(1, "-dead") == ["777"]
        assert sorted(place.values(999), key=int) == [str(n) for n in range(1000) if n != 777]
    assert runner.metrics.processed == 999
    assert place.backlog(settings.subscription_name) == 0


def test_if_every_call_fails_calls_are_limited_and_all_rows_are_redelivered(place):
    works = False

    def waits(table: Any) -> Any:
        if not works:
            raise ConnectionError("the other side is gone")
        return table

    place.send(*range(500))
    with FunctionRunner(place.settings(waits, arrow=True, retry_delay_ms=2000)) as runner:
        eventually(lambda: runner.metrics.user_exceptions > 0)
        received = runner.metrics.received
        eventually(lambda: runner.metrics.user_exceptions >= min(64, 2 * received - 1))
        works = True
        assert sorted(place.values(500), key=int) == [str(n) for n in range(500)]
