"""Settings for a topic of a fleet, and the sums of many; Spark's part is in tests/spark/test_fleet.py."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from geminga.errors import InvalidConfiguration
from geminga.producer.settings import CompressionType
from geminga.tuning import cost
from geminga.tuning.fleet import FleetPlan, advise_topic, check_columns, report, savings, schema


def plan(**fields: Any) -> FleetPlan:
    return FleetPlan(**{"cost": cost.standard(), **fields})


def topic(**fields: Any) -> dict[str, Any]:
    return {
        "topic": "persistent://public/default/t", "rate_messages_per_second": 5000.0, "message_bytes": 200.0,
        "partitions": 8, **fields,
    }  # fmt: skip


def result(*rows: dict[str, Any], **fields: Any) -> pa.Table:
    return pa.Table.from_pylist([advise_topic(row, plan(**fields)) for row in rows], schema=schema())


def test_a_topic_with_small_batches_gets_settings_that_fill_them() -> None:
    found = advise_topic(topic(entries_per_second=1000.0, stored_bytes_per_second=1.2e6), plan())
    assert found["problem"] == ""
    assert found["batch_fill_before"] == pytest.approx(5.0)
    assert found["entries_per_second_after"] < 100
    assert found["batch_fill_after"] * found["entries_per_second_after"] == pytest.approx(5000, rel=0.01)
    # The wait for a batch and the 99th percentile of receipts, added: an upper bound.
    assert found["latency_p99"] <= 0.055
    assert found["network_bytes_per_second_after"] < found["network_bytes_per_second_before"]


def test_stock_settings_replace_missing_statistics() -> None:
    java = advise_topic(topic(), plan())
    unbatched = advise_topic(topic(), plan(stock="pulsar-client"))
    assert unbatched["entries_per_second_before"] == pytest.approx(5000)
    assert java["entries_per_second_before"] < 2000


def test_a_codec_is_kept_unless_another_is_asked_for() -> None:
    row = topic(entries_per_second=1000.0, stored_bytes_per_second=1e6, compression="LZ4")
    kept = advise_topic(row, plan())
    zstd = advise_topic(row, plan(compression=CompressionType.ZSTD))
    assert (kept["compression"], zstd["compression"]) == ("LZ4", "ZSTD")
    assert zstd["stored_bytes_per_second_after"] < kept["stored_bytes_per_second_after"] < 1e6


def test_an_unknown_codec_is_kept() -> None:
    """Settings with NONE would switch off what a topic may well have."""
    unknown = advise_topic(topic(entries_per_second=1000.0, stored_bytes_per_second=1e6), plan())
    assert unknown["compression"] is None
    assert "compression_type" not in json.loads(unknown["settings_json"])
    told = advise_topic(topic(compression="NONE"), plan())
    assert json.loads(told["settings_json"])["compression_type"] == "NONE"
    assert "| as it is |" in report(result(topic()), savings(result(topic()), plan()))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"rate_messages_per_second": None}, "rate_messages_per_second is missing"),
        ({"rate_messages_per_second": -1.0}, "rate_messages_per_second"),
        ({"partitions": 0}, "partitions"),
        ({"message_bytes": float("nan")}, "message_bytes"),
    ],
)
def test_a_topic_with_invalid_statistics_gets_a_problem(fields: dict[str, Any], word: str) -> None:
    assert word in advise_topic(topic(**fields), plan())["problem"]


def test_an_invalid_codec_is_a_problem_of_its_topic_alone() -> None:
    assert "compression='LZ5'" in advise_topic(topic(compression="LZ5"), plan())["problem"]
    assert advise_topic(topic(compression="zlib"), plan())["compression"] == "ZLib"


def test_savings_are_sums_over_the_topics_with_advice() -> None:
    table = result(
        topic(entries_per_second=1000.0, stored_bytes_per_second=1.2e6),
        topic(topic="other", entries_per_second=500.0, stored_bytes_per_second=1.1e6),
        topic(topic="bad", partitions=0),
    )
    found = savings(table, plan())
    assert (found.topics, found.problems) == (2, 1)
    assert found.before.entries_per_second == pytest.approx(1500)
    assert found.after.broker_cpu < found.before.broker_cpu
    text = report(table, found)
    assert "2 topics, 1 more without advice" in text
    assert "- bad: partitions=0" in text


def test_statistics_without_a_column_or_a_topic_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="no column 'message_bytes'"):
        check_columns(pa.table({"topic": ["t"], "rate_messages_per_second": [1.0]}))
    empty = pa.table({name: pa.array([], pa.string()) for name in ("topic", "message_bytes")})
    with pytest.raises(InvalidConfiguration):
        check_columns(empty)


def test_invalid_plans_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="brokers"):
        plan(brokers=0)
    with pytest.raises(InvalidConfiguration, match="stock"):
        plan(stock="nobody's")
