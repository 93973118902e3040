"""Verification of the demo's output without Spark: the lake by Arrow, the rollup by a reader."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pyarrow import fs

import geminga
from geminga.demo.flights import Checksum
from geminga.demo.pipeline import Lake
from geminga.spark.offset_log import last_batch
from geminga.spark.pipelines import lake as tables

READ_SECONDS_MAX = 30
Window = dict[str, Any]
"""A day, origin and carrier with its counts, as a row of the table ``delays``; the day as text."""


def tidy(table: str) -> tables.TableSize:
    """Merge a table's files, delete replaced ones, and return the remaining number and bytes."""
    tables.compact(table)
    tables.clean(table, keep_seconds=0)
    return tables.size(table)


def of_rows(lake: Lake) -> Checksum:
    """Return the checksum of the values behind the table ``flights``."""
    import pyarrow.compute as pc

    column = tables.table_dataset(lake.table("flights")).to_table(columns=["crc32"]).column(0)
    return Checksum(len(column), pc.sum(column).as_py() or 0)


def windows(lake: Lake) -> list[Window]:
    """Return the rows of the table ``delays``."""
    rows = tables.table_dataset(lake.table("delays")).to_table().to_pylist()
    return [{**row, "day": row["day"].isoformat()} for row in rows]


def messages(client: geminga.Client, topic: str) -> list[Window]:
    """Return the values of all messages of a topic."""
    found = []
    with client.create_reader(topic, geminga.MessageId.earliest) as reader:
        while reader.has_message_available():
            found.append(json.loads(reader.read_next(READ_SECONDS_MAX * 1000).value()))
    return found


def of_windows(windows: Iterable[Window]) -> Checksum:
    """Return the checksum of the values counted in the windows."""
    return sum((Checksum(w["flights"], w["crc32_sum"]) for w in windows), Checksum(0, 0))


def as_multiset(windows: Iterable[Window]) -> Counter[tuple[tuple[str, Any], ...]]:
    """Return windows in a comparable form, regardless of order. Spark's JSON omits nulls."""
    return Counter(
        tuple(sorted((name, value) for name, value in window.items() if value is not None))
        for window in windows
    )


def account(
    published: Checksum, rows: Checksum, windows: Sequence[Window], messages: Sequence[Window]
) -> dict[str, Any]:
    """Compare the table of rows, the table of windows and the rollup's messages with the published events.

    ``published``, ``rows``, ``windows`` and ``messages`` each have ``count`` and ``crc32_sum`` of the values
    behind them; ``rollup``: messages and windows are the same multiset; ``is_equal``: all agree.
    """
    found = {"rows": rows, "windows": of_windows(windows), "messages": of_windows(messages)}
    is_equal = as_multiset(windows) == as_multiset(messages)
    return {
        **{
            name: {"count": one.count, "crc32_sum": one.total}
            for name, one in {"published": published, **found}.items()
        },
        "rollup": {"windows": len(windows), "messages": len(messages), "is_equal": is_equal},
        "is_equal": is_equal and all(one == published for one in found.values()),
    }


def micro_batches(checkpoint: str) -> tuple[int, int]:
    """Return the last planned and the last committed micro-batch of a checkpoint; -1 before the first."""
    planned, committed = (
        last_batch(fs.LocalFileSystem(), f"{checkpoint}/{log}") for log in ("offsets", "commits")
    )
    return planned, committed
