"""Histograms of stored entries, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from geminga.broker.topics.write_histogram import WriteHistogram
from geminga.ids import TopicName


def metrics_of(harness: Any, topic: str = "t") -> dict[str, float]:
    writes = harness.broker.topics.in_memory(TopicName.parse(topic)).writes
    return dict(writes.per_minute(harness.now))


def non_zero(found: dict[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in found.items() if value and prefix in name}


def test_entries_are_counted_by_size_and_by_time_until_they_are_durable(harness: Any) -> None:
    peer = harness.peer()
    peer.producer("t")
    harness.auto_poll = False
    began = harness.now
    peer.send(0)
    harness.now += 0.015
    harness.poll()
    peer.send(1)
    peer.send(2)
    harness.now += 2.0
    harness.poll()
    harness.now = began + 30.0
    found = metrics_of(harness)
    assert non_zero(found, "pulsar_storage_write_latency_") == {
        "le_20": pytest.approx(2),
        "overflow": pytest.approx(4),
        "count": pytest.approx(6),
        "sum": pytest.approx(2 * 4_015_000),
    }
    assert non_zero(found, "pulsar_entry_size_") == {
        "le_128": pytest.approx(6), "count": pytest.approx(6), "sum": found["pulsar_entry_size_sum"]
    }  # fmt: skip
    assert found["pulsar_storage_write_rate"] == pytest.approx(0.1)


def test_a_topic_without_new_entries_has_no_histograms(harness: Any) -> None:
    peer = harness.peer()
    peer.producer("t")
    peer.send(0)
    harness.advance(20)
    assert metrics_of(harness)
    harness.advance(20)
    assert metrics_of(harness) == {}


def test_runs_of_entries_are_counted_as_single_ones() -> None:
    writes = WriteHistogram(0.0)
    writes.received_run([100, 100], 200)
    writes.received_run([100, 600, 2_000_000], 2_000_700)
    writes.received(512)
    writes.stored(0.0005, 6)
    found = dict(writes.per_minute(60.0))
    assert non_zero(found, "pulsar_entry_size_") == {
        "le_128": 3, "le_512": 1, "le_1_kb": 1, "le_overflow": 1, "count": 6, "sum": pytest.approx(2_001_412)
    }  # fmt: skip
    assert non_zero(found, "pulsar_storage_write_latency_") == {
        "le_0_5": 6,
        "count": 6,
        "sum": pytest.approx(3000),
    }
