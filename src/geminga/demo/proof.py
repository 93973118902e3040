"""Verification of the demo's output without Spark: the lake by Arrow, the rollup by a reader."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import geminga
from geminga.demo.flights import Checksum
from geminga.spark.pipelines import lake

READ_SECONDS_MAX = 30


def rows(table: str) -> pa.Table:
    """Merge the lake's files, delete those of failed micro-batches, and return the columns to compare."""
    lake.compact(table)
    lake.clean(table, keep_seconds=0)
    return lake.table_dataset(table).to_table(columns=["crc32", "event_time", "origin", "carrier"])


def messages(client: geminga.Client, topic: str) -> list[dict[str, Any]]:
    """Return the values of all messages of a topic."""
    found = []
    with client.create_reader(topic, geminga.MessageId.earliest) as reader:
        while reader.has_message_available():
            found.append(json.loads(reader.read_next(READ_SECONDS_MAX * 1000).value()))
    return found


def windows(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return day, origin, carrier, number of flights and sum of CRC-32 of the windows that rows belong to."""
    days = rows.append_column("day", rows.column("event_time").cast(pa.date32()).cast(pa.string()))
    found = days.group_by(["day", "origin", "carrier"]).aggregate([("crc32", "count"), ("crc32", "sum")])
    names = ("day", "origin", "carrier", "crc32_count", "crc32_sum")
    return Counter(zip(*(found.column(name).to_pylist() for name in names), strict=True))


def account(published: Checksum, rows: pa.Table, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compare the lake's rows and the rollup's messages with the published events.

    ``published``, ``rows`` and ``messages`` each have ``count`` and ``crc32_sum`` of the values behind them;
    ``windows``: number of messages; ``is_equal``: all agree, and each window is one message.
    """
    names = ("day", "origin", "carrier", "flights", "crc32_sum")
    told = Counter(tuple(message[name] for name in names) for message in messages)
    of_rows = Checksum(rows.num_rows, sum(rows.column("crc32").to_pylist()))
    of_messages = Checksum(
        sum(message["flights"] for message in messages), sum(message["crc32_sum"] for message in messages)
    )
    found = {"published": published, "rows": of_rows, "messages": of_messages}
    return {
        **{name: {"count": one.count, "crc32_sum": one.total} for name, one in found.items()},
        "windows": len(messages),
        "is_equal": published == of_rows == of_messages and told == windows(rows),
    }
