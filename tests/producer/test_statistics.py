import pytest

from geminga.producer.routing import BlockedReason
from geminga.producer.statistics import LATENCY_BOUNDS_SECONDS, LatencyHistogram, PartitionCounters


def test_percentiles_are_bucket_bounds():
    histogram = LatencyHistogram()
    assert histogram.percentile(0.5) == 0.0
    histogram.add(0.00005, 98)
    histogram.add(0.0015, 1)
    histogram.add(10_000.0, 1)
    assert histogram.percentile(0.5) == LATENCY_BOUNDS_SECONDS[0]
    assert histogram.percentile(0.99) == pytest.approx(0.0016)
    assert histogram.percentile(1.0) == LATENCY_BOUNDS_SECONDS[-1]
    assert histogram.count == 100
    assert histogram.mean_seconds == pytest.approx((98 * 0.00005 + 0.0015 + 10_000) / 100)


def test_the_time_of_stepping_over_runs_from_the_first_step_to_the_next_choice():
    counters = PartitionCounters()
    counters.count_step(BlockedReason.AGE, 1.0)
    counters.count_step(BlockedReason.PERMITS, 2.0)
    counters.count_chosen(4.0)
    counters.count_chosen(5.0)
    counters.count_step(BlockedReason.AGE, 6.0)
    counters.count_chosen(6.5)
    assert counters.stepped_over_seconds == pytest.approx(3.5)
    assert counters.stepped_over == {
        BlockedReason.AGE: 2,
        BlockedReason.PERMITS: 1,
        BlockedReason.CONNECTION: 0,
    }


def test_a_partitions_snapshot(bench):
    b = bench(batching_max_messages=2).connect()
    for _ in range(3):
        b.add(b"abcd")
    b.written()
    b.now = 0.001
    b.receipt(0, 1)
    snapshot = b.partition.statistics()
    assert snapshot.state == "ready"
    assert (snapshot.sent_messages, snapshot.sent_batches, snapshot.sent_payload_bytes) == (2, 1, 8)
    assert snapshot.sent_bytes > 8
    assert (snapshot.acknowledged_messages, snapshot.pending_messages, snapshot.open_batch_messages) == (
        2,
        0,
        1,
    )
    assert snapshot.batch_fill == 2
    assert snapshot.latency_p99_seconds >= 0.001
