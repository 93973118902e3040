"""Settings for a topic of a fleet, and the sums of many, from Parquet and from a broker's admin REST."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from waiting import repeating

import geminga
from geminga.cli.main import command
from geminga.errors import ConnectError, InvalidConfiguration
from geminga.producer.settings import CompressionType
from geminga.tuning import fleet_statistics
from geminga.tuning.fleet import FleetPlan, advise_fleet, advise_topic, check_columns, report, savings, schema


def plan(**fields: Any) -> FleetPlan:
    return FleetPlan(**fields)


def topic(**fields: Any) -> dict[str, Any]:
    return {
        "topic": "persistent://public/default/t", "rate_messages_per_second": 5000.0, "message_bytes": 200.0,
        "partitions": 8, **fields,
    }  # fmt: skip


def result(*rows: dict[str, Any], **fields: Any) -> pa.Table:
    return pa.Table.from_pylist([advise_topic(row, plan(**fields)) for row in rows], schema=schema())


def test_a_topic_with_small_batches_gets_settings_that_fill_them():
    found = advise_topic(topic(entries_per_second=1000.0, stored_bytes_per_second=1.2e6), plan())
    assert found["problem"] == ""
    assert found["batch_fill_before"] == pytest.approx(5.0)
    assert found["entries_per_second_after"] < 100
    assert found["batch_fill_after"] * found["entries_per_second_after"] == pytest.approx(5000, rel=0.01)
    # The wait for a batch and the 99th percentile of receipts, added: an upper bound.
    assert found["latency_p99"] <= 0.055
    assert found["stored_bytes_per_second_after"] < found["stored_bytes_per_second_before"]


def test_stock_settings_replace_missing_statistics():
    java = advise_topic(topic(), plan())
    unbatched = advise_topic(topic(), plan(stock="pulsar-client"))
    assert unbatched["entries_per_second_before"] == pytest.approx(5000)
    assert java["entries_per_second_before"] < 2000


def test_a_codec_is_kept_unless_another_is_asked_for():
    row = topic(entries_per_second=1000.0, stored_bytes_per_second=1e6, compression="LZ4")
    kept = advise_topic(row, plan())
    zstd = advise_topic(row, plan(compression=CompressionType.ZSTD))
    assert (kept["compression"], zstd["compression"]) == ("LZ4", "ZSTD")
    assert zstd["stored_bytes_per_second_after"] < kept["stored_bytes_per_second_after"] < 1e6


def test_an_unknown_codec_is_kept():
    """Settings with NONE would switch off what a topic may well have."""
    unknown = advise_topic(topic(entries_per_second=1000.0, stored_bytes_per_second=1e6), plan())
    assert unknown["compression"] is None
    assert "compression_type" not in json.loads(unknown["settings_json"])
    told = advise_topic(topic(compression="NONE"), plan())
    assert json.loads(told["settings_json"])["compression_type"] == "NONE"
    assert "| as it is |" in report(result(topic()), savings(result(topic())))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"rate_messages_per_second": None}, "rate_messages_per_second is missing"),
        ({"rate_messages_per_second": -1.0}, "rate_messages_per_second"),
        ({"partitions": 0}, "partitions"),
        ({"message_bytes": float("nan")}, "message_bytes"),
    ],
)
def test_a_topic_with_invalid_statistics_gets_a_problem(fields, word):
    assert word in advise_topic(topic(**fields), plan())["problem"]


def test_an_invalid_codec_is_a_problem_of_its_topic_alone():
    assert "compression='LZ5'" in advise_topic(topic(compression="LZ5"), plan())["problem"]
    assert advise_topic(topic(compression="zlib"), plan())["compression"] == "ZLib"


def test_savings_are_sums_over_the_topics_with_advice():
    table = result(
        topic(entries_per_second=1000.0, stored_bytes_per_second=1.2e6),
        topic(topic="other", entries_per_second=500.0, stored_bytes_per_second=1.1e6),
        topic(topic="bad", partitions=0),
    )
    found = savings(table)
    assert (found["topics"], found["problems"]) == (2, 1)
    assert found["before"]["entries_per_second"] == pytest.approx(1500)
    assert found["after"]["entries_per_second"] < 0.2 * found["before"]["entries_per_second"]
    text = report(table, found)
    assert "2 topics, 1 more without advice" in text
    assert "- bad: partitions=0" in text


def test_statistics_without_a_column_or_a_topic_are_refused():
    with pytest.raises(InvalidConfiguration, match="no column 'message_bytes'"):
        check_columns(pa.table({"topic": ["t"], "rate_messages_per_second": [1.0]}))
    empty = pa.table({name: pa.array([], pa.string()) for name in ("topic", "message_bytes")})
    with pytest.raises(InvalidConfiguration):
        check_columns(empty)


def test_invalid_plans_are_refused():
    with pytest.raises(InvalidConfiguration, match="stock"):
        plan(stock="nobody's")


def fleet(count: int) -> pa.Table:
    return pa.table(
        {
            "topic": [f"persistent://public/default/t{number}" for number in range(count)],
            "rate_messages_per_second": [50.0 * (number + 1) for number in range(count)],
            "message_bytes": [100.0 + 50 * (number % 4) for number in range(count)],
            "partitions": [1 + number % 5 for number in range(count)],
            "entries_per_second": [None if number % 3 else 40.0 * (number + 1) for number in range(count)],
            "owner": ["somebody"] * count,
        }
    )


def test_advice_of_many_topics_equals_that_of_single_ones():
    topics = fleet(30)
    found = advise_fleet(topics, plan()).to_pylist()
    assert [row["topic"] for row in found] == topics.column("topic").to_pylist()
    for row, given in zip(found[::9], topics.to_pylist()[::9], strict=True):
        alone: dict[str, Any] = advise_topic(given, plan())
        assert {name: row[name] for name in alone} == alone


def test_the_command_reads_parquet(tmp_path):
    file, output = tmp_path / "topics.parquet", tmp_path / "out"
    pq.write_table(fleet(12), file)
    arguments = ["tune", "fleet", "--topics", str(file), "--output", str(output), "--compression", "ZSTD"]
    result = CliRunner().invoke(command, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    sums = json.loads(result.stdout)
    assert sums["topics"] == 12
    assert sums["after"]["entries_per_second"] < 0.7 * sums["before"]["entries_per_second"]
    settings = pq.read_table(output / "settings.parquet")
    assert set(settings.column("compression").to_pylist()) == {"ZSTD"}
    assert "12 topics" in (output / "fleet.md").read_text()


def test_statistics_come_from_admin_rest(pulsar_broker, pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(pulsar_topic, batching_enabled=True, batching_max_messages=10)
    with repeating(lambda _: producer.send_async(bytes(100), None), 0.005):
        table = fleet_statistics.gather(pulsar_broker.admin_url, watch_seconds=0.6)
    rows = {row["topic"]: row for row in table.to_pylist()}
    row = rows[pulsar_topic]
    assert row["rate_messages_per_second"] > 0
    assert row["entries_per_second"] <= row["rate_messages_per_second"] * 1.001
    assert row["message_bytes"] > 90
    assert row["producers"] == 1


def test_idle_topics_are_reported(pulsar_broker, pulsar_client, pulsar_topic):
    pulsar_client.create_producer(pulsar_topic).close()
    assert pulsar_topic in [
        str(name)
        for name, _ in fleet_statistics.topics_of(geminga.Admin(pulsar_broker.admin_url), "public/default")
    ]
    with pytest.raises(InvalidConfiguration, match="nothing was published"):
        fleet_statistics.gather(pulsar_broker.admin_url, ["public/default"], watch_seconds=0.1)


def test_a_broker_that_stops_between_two_queries_is_named(monkeypatch):
    with geminga.embedded() as broker, geminga.Client(broker.service_url) as client:
        for number in range(20):
            client.create_producer(f"fleet-{number}").close()

        monkeypatch.setattr(fleet_statistics.time, "sleep", lambda seconds: broker.close())
        with pytest.raises(ConnectError, match="is the broker running"):
            fleet_statistics.gather(broker.admin_url, watch_seconds=0.1)
