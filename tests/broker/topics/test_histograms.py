"""Histograms of stored entries and of acknowledgements, in virtual time."""

from typing import Any

import pytest

from geminga.broker.topics.histograms import TopicHistograms
from geminga.ids import TopicName


def metrics_of(harness: Any, topic: str = "t") -> dict[str, float]:
    writes = harness.broker.topics.in_memory(TopicName.parse(topic)).histograms
    return dict(writes.last_minute(harness.now))


def non_zero(found: dict[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in found.items() if value and prefix in name}


def test_entries_are_counted_by_size_and_by_time_until_they_are_durable(harness):
    peer = harness.producer("t")
    harness.auto_poll = False
    began = harness.now
    peer.send(0)
    harness.now += 0.015
    harness.poll()
    peer.send(1)
    peer.send(2)
    harness.now += 2.0
    harness.poll()
    assert metrics_of(harness) == {}, "the minute is not over"
    harness.now = began + 60.0
    found = metrics_of(harness)
    assert non_zero(found, "pulsar_storage_write_latency_") == {
        "le_20": 1, "overflow": 2, "count": 3, "sum": pytest.approx(4_015_000)
    }  # fmt: skip
    assert non_zero(found, "pulsar_entry_size_") == {
        "le_128": 3, "count": 3, "sum": found["pulsar_entry_size_sum"]
    }  # fmt: skip
    assert found["pulsar_storage_write_rate"] == 3 / 60


def test_a_minute_is_reported_until_the_next_one_is_over(harness):
    peer = harness.producer("t")
    peer.send(0)
    for seconds, count in ((60, 1), (59, 1), (1, None)):
        harness.advance(seconds)
        assert metrics_of(harness).get("pulsar_entry_size_count") == count
    peer.publish(3, first=1)
    harness.advance(300)
    assert metrics_of(harness) == {}


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_an_acknowledgement_is_sampled_each_second(harness, kind):
    began = harness.now
    consumer, peer = harness.consumer("t", kind=kind), harness.producer("t")
    peer.publish(4)
    harness.advance(0.05)
    consumer.ack((0, 0))
    consumer.ack((0, 1))  # in the same second
    harness.advance(2.0)
    consumer.ack((0, 3))  # a hole: the oldest open message is still open
    harness.advance(5.0)
    consumer.ack((0, 2))
    harness.now = began + 60.0
    found = non_zero(metrics_of(harness), "geminga_ack_latency_")
    assert found == {"le_100_ms": 1, "le_10_s": 1, "count": 2, "sum": pytest.approx(7.1, abs=0.01)}


def test_skipped_messages_are_no_acknowledgements(harness):
    began = harness.now
    harness.consumer("t")
    harness.producer("t").publish(4)
    subscription = harness.broker.topics.in_memory(TopicName.parse("t")).subscriptions["s"]
    harness.advance(3.0)
    subscription.skip_to(4)
    harness.now = began + 60.0
    assert not non_zero(metrics_of(harness), "geminga_ack_latency_")


def test_runs_of_entries_are_counted_as_single_ones():
    writes = TopicHistograms(0.0)
    writes.received_run(1.0, [100, 100], 200)
    writes.received_run(2.0, [100, 600, 2_000_000], 2_000_700)
    writes.received(3.0, 512)
    writes.stored(0.0005, 6)
    writes.received_run(61.0, [100], 100)
    found = dict(writes.last_minute(62.0))
    assert non_zero(found, "pulsar_entry_size_") == {
        "le_128": 3, "le_512": 1, "le_1_kb": 1, "le_overflow": 1, "count": 6, "sum": 2_001_412
    }  # fmt: skip
    assert non_zero(found, "pulsar_storage_write_latency_") == {
        "le_0_5": 6, "count": 6, "sum": pytest.approx(3000)
    }  # fmt: skip
