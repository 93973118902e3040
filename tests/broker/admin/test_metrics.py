"""Prometheus text: format, escaping, sums."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import geminga
from geminga.broker.admin import metrics
from geminga.broker.admin.metric_table import METRICS
from geminga.broker.delivery.selectors import ConsistentHashSelector
from geminga.ids import TopicName
from geminga.ledger.api import StoreStats

NAME = TopicName.parse("persistent://public/default/exact")
STATS: dict[str, Any] = {
    "msgRateIn": 1.5,
    "msgInCounter": 7,
    "storageSize": 100,
    "publishers": [{}],
    "subscriptions": {
        'we"ird\n': {"msgBacklog": 3, "consumers": [{}, {}], "blockedSubscriptionOnUnackedMsgs": False}
    },
}
SAMPLE = re.compile(r'[a-z_][a-z0-9_]*(\{([a-z_]+="(\\.|[^"\\])*",?)*\})? \S+$')


def render() -> str:
    out = metrics.Exposition(common=(("cluster", "standalone"),))
    topics = [(TopicName.parse("a"), STATS), (TopicName.parse("b"), STATS)]
    metrics.add_namespaces(out, {"public/default": 5})
    listed = metrics.TopicMetrics(out)
    for topic, stats in topics:
        listed.add(topic, stats)
    listed.finish(5)
    metrics.add_store(out, StoreStats(1, 2, 3, 0.5, 4, 5), healthy=True)
    metrics.add_failures(out, {"timer": 2, "store": 0})
    metrics.add_process(out, started_at_ms=1000, connections=2, connections_refused=1)
    return out.text()


def test_every_line_is_well_formed_and_metrics_are_blocks() -> None:
    seen: list[str] = []
    for line in render().splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in seen, "a metric must be one block"
            seen.append(name)
            assert "\\" not in line
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {seen[-1]} {METRICS[seen[-1]].kind}"
        else:
            assert SAMPLE.match(line), line
            assert line.split("{")[0].split(" ")[0] == seen[-1]


def test_pulsars_names_and_sums() -> None:
    text = render()
    assert 'pulsar_topics_count{cluster="standalone",namespace="public/default"} 5\n' in text
    assert 'pulsar_broker_topics_count{cluster="standalone"} 5\n' in text
    assert 'pulsar_broker_rate_in{cluster="standalone"} 3.0\n' in text
    assert 'pulsar_broker_msg_backlog{cluster="standalone"} 6\n' in text
    assert 'topic="persistent://public/default/a"} 1.5\n' in text
    assert 'subscription="we\\"ird\\n"} 3\n' in text
    assert "geminga_store_healthy" in text
    assert 'geminga_callback_failures_total{cluster="standalone",kind="timer"} 2\n' in text


def test_numbers() -> None:
    assert metrics.number(True) == "1"
    assert metrics.number(3) == "3"
    assert metrics.number(float("nan")) == "NaN"
    assert metrics.number(float("inf")) == "+Inf"
    assert metrics.number(0.25) == "0.25"


def test_resident_memory_is_known_on_linux() -> None:
    assert metrics.resident_bytes() > 1_000_000


def test_exact_backlogs_have_metrics(harness: Any) -> None:
    peer = harness.peer()
    peer.subscribe(str(NAME))
    peer.producer(str(NAME))
    for sequence_id in range(3):
        peer.send(sequence_id)
    peer.ack((0, 1))
    harness.advance(5)
    name = NAME
    out = metrics.Exposition()
    listed = metrics.TopicMetrics(out)
    listed.add(name, harness.actions.stats(name))
    listed.finish(1)
    values = {line.split("{")[0]: line.split()[-1] for line in out.text().splitlines() if "{" in line}
    assert values["geminga_subscription_messages_in_backlog"] == "2"
    assert int(values["geminga_subscription_bytes_in_backlog"]) > 40
    assert values["geminga_subscription_oldest_backlog_message_age_seconds"] == "5"
    assert values["geminga_subscription_ack_holes"] == "1"
    assert values["pulsar_storage_backlog_age_seconds"] == "5"


def test_a_scrape_has_every_metric_of_the_table_and_its_labels(tmp_path: Path) -> None:
    """A broker with a topic, a subscription, a compaction and cheap storage."""
    with (
        geminga.embedded(tmp_path / "data", offload_location=str(tmp_path / "cheap")) as broker,
        broker.client() as client,
        geminga.Admin(broker.admin_url) as admin,
    ):
        consumer = client.subscribe("exact", "s", is_read_compacted=True)
        producer = client.create_producer("exact")
        for value in (b"old", b"new"):
            producer.send(value, partition_key="k")
        consumer.acknowledge(consumer.receive())
        admin.topics.compact("exact")
        until = time.monotonic() + 60
        while admin.topics.compaction_status("exact").status != "SUCCESS" and time.monotonic() < until:
            time.sleep(0.02)
        with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    labels: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels.setdefault(name, set()).update(re.findall(r'(\w+)="', rest.rpartition("}")[0]))
    assert set(labels) == set(METRICS)
    for name, metric in METRICS.items():
        assert labels[name] == {"cluster", *metric.of.labels, *metric.labels}, name


def test_only_stats_with_consumers_compute_the_hash_ranges_of_key_shared_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    ranges_of = ConsistentHashSelector.ranges

    def counted(selector: ConsistentHashSelector[Any]) -> Any:
        computed.append(selector)
        return ranges_of(selector)

    monkeypatch.setattr(ConsistentHashSelector, "ranges", counted)
    with geminga.embedded(tmp_path / "data") as broker, broker.client() as client:
        client.subscribe("exact", "s", geminga.ConsumerType.KeyShared)
        stats = "admin/v2/persistent/public/default/exact/stats"
        overview = "admin/v2/geminga"
        pages = (
            "metrics",
            f"{overview}/subscriptions",
            f"{overview}/overview",
            f"{stats}?excludeConsumers=true",
        )
        for page, expected in (*((page, 0) for page in pages), (stats, 1)):
            with urllib.request.urlopen(f"{broker.admin_url}/{page}", timeout=30) as answer:
                assert answer.status == 200
            assert len(computed) == expected, page
