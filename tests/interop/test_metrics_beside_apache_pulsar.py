"""`/metrics` of both brokers after one load: names, labels and counts."""

import datetime as dt
import re
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest
from waiting import eventually

import geminga
from geminga import ConsumerType, MessageId
from geminga.broker.admin.metric_table import METRICS, WRITES, MetricScope

pytestmark = pytest.mark.interop

OTHERS = {
    "pulsar_storage_backlog_size": "there an estimate from the average size of entries",
    "pulsar_storage_backlog_quota_limit": "the default quota is another one",
    "pulsar_storage_backlog_age_seconds": "there only with a quota by age",
    "pulsar_average_msg_size": "rounded there",
    **dict.fromkeys(WRITES, "of other minutes"),
}
"""Metrics with other values, and why."""
Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def samples(admin_url: str, topic: str) -> Samples:
    """Samples of one topic by name and labels; a reader's subscription is called ``reader``."""
    with urllib.request.urlopen(f"{admin_url}/metrics/", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found: Samples = {}
    for line in lines:
        if f'topic="{topic}"' in line:
            name, _, rest = line.partition("{")
            given = re.findall(r'(\w+)="([^"]*)"', rest)
            labels = frozenset((key, re.sub("^reader-.*", "reader", value)) for key, value in given)
            assert labels not in found.setdefault(name, {}), f"a series twice: {line}"
            found[name][labels] = float(line.rpartition(" ")[2])
    return found


def load(service_url: str, admin_url: str, topic: str) -> Samples:
    """Singles, batches and delayed messages for three subscriptions: drained, in part, and a reader's."""
    with geminga.Client(service_url) as client:
        drained, waiting = (
            client.subscribe(topic, name, consumer_type=ConsumerType.Shared)
            for name in ("drained", "waiting")
        )
        single = client.create_producer(topic, "single")
        batched = client.create_producer(topic, "batched", batching_enabled=True, batching_max_messages=10)
        for _ in range(100):
            single.send(b"x" * 100)
        batched.send_many([b"y" * 100] * 100)
        for _ in range(5):
            single.send(b"later", deliver_after=dt.timedelta(hours=1))
        for _ in range(200):
            drained.acknowledge(drained.receive(30_000))
        for number in range(50):
            message = waiting.receive(30_000)
            if number < 20:
                waiting.acknowledge(message)
        reader = client.create_reader(topic, MessageId.earliest)
        for _ in range(30):
            reader.read_next(30_000)
        return when_settled(admin_url, topic)


def when_settled(admin_url: str, topic: str) -> Samples:
    """The samples once the acknowledgements have arrived, and some more seconds have passed: Apache Pulsar
    counts every two seconds here."""

    def backlogs() -> list[float]:
        return sorted(samples(admin_url, topic).get("pulsar_subscription_back_log", {}).values())

    eventually(lambda: backlogs() == [5.0, 85.0, 95.0], detail=backlogs)
    time.sleep(2.5)
    return samples(admin_url, topic)


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Differences of all metrics that both have, of topics and subscriptions."""
    found = []
    for name in sorted(ours.keys() & theirs.keys() - OTHERS.keys()):
        if ours[name].keys() != theirs[name].keys():
            found.append(f"{name}: labels {ours[name].keys() ^ theirs[name].keys()}")
            continue
        for labels, value in ours[name].items():
            other = theirs[name][labels]
            is_rate = "rate" in name or "throughput" in name  # of other moments
            if "timestamp" in name:
                value, other = value > 0, other > 0
            if not is_rate and value != other:
                found.append(f"{name}{dict(labels)}: {value} here, {other} there")
    return found


def test_metrics_of_both_brokers_have_the_same_values(apache_pulsar, topic, tmp_path):
    name = topic("metrics")
    theirs = load(apache_pulsar.service_url, apache_pulsar.admin_url, name)
    with geminga.embedded(tmp_path / "data") as broker:
        ours = load(broker.service_url, broker.admin_url, name)
    assert compare(ours, theirs) == []
    both = ours.keys() & theirs.keys()
    of_topics = (
        each for each in METRICS.values() if each.of in (MetricScope.TOPIC, MetricScope.SUBSCRIPTION)
    )
    named = {each.name for each in of_topics if each.name.startswith("pulsar_")}
    assert theirs.keys() >= WRITES
    assert {name for name in named - both - WRITES if "compaction" not in name} == set()
