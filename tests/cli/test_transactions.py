"""``geminga transactions`` on our broker."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

import geminga

sys.path.insert(0, str(Path(__file__).parents[1] / "suites"))
suite: Any = importlib.import_module("operating")


@pytest.fixture
def run(pulsar_broker, tmp_path):
    return suite.runner(suite.environment_of(pulsar_broker, tmp_path))


def test_open_transactions_are_listed_described_and_aborted(pulsar_broker, run):
    with pulsar_broker.client() as client:
        producer = client.create_producer("t")
        consumer = client.subscribe("t", "s", initial_position=geminga.InitialPosition.Earliest)
        producer.send(b"in")
        txn = client.new_transaction(timeout=90)
        producer.send(b"never", txn=txn)
        consumer.acknowledge_cumulative(consumer.receive(60_000), txn=txn)
        eventually(lambda: not txn.transaction.core.pending)
        name = "{}:{}".format(*txn.id)
        [row] = run("transactions", "list", "--json").rows
        assert {key: row[key] for key in ("id", "status", "topics", "subscriptions")} == {
            "id": name, "status": "OPEN", "topics": 1, "subscriptions": 1,
        }  # fmt: skip
        assert not run("transactions", "list", "--json", "--longer-than", "1h").rows
        told = run("transactions", "describe", name).stdout
        assert f"transaction {name} is OPEN" in told
        assert "publishes to persistent://public/default/t, first message 0:1" in told
        assert "in subscription s" in told
        [found] = run("transactions", "describe", name, "--json").rows
        acked = {"persistent://public/default/t": {"s": {"cumulativeAckPosition": "0:0"}}}
        assert found["ackedPartitions"] == acked
        assert f"aborted {name}" in run("transactions", "abort", name, "--yes").stdout
        listed = run("transactions", "list")
        assert (listed.stdout, listed.stderr) == ("", "no transaction is open\n")
        assert "is open for 5m or longer" in run("transactions", "list", "--longer-than", "5m").stderr
        assert not run("transactions", "list", "--json").stderr
        run("transactions", "abort", "0:999", "--yes", fails="not found")
        run("transactions", "describe", "x", fails="give coordinator and number")
        metrics = geminga.Admin(pulsar_broker.admin_url).brokers.metrics()
        assert 'pulsar_txn_aborted_total{cluster="standalone",coordinator_id="0"} 1' in metrics
        assert geminga.Admin(pulsar_broker.admin_url).topics.stats("t").raw["abortedTxnCount"] == 1
