"""The real producer in virtual time: what goes in comes out, the seed decides, faults do what they say."""

from __future__ import annotations

import time
from typing import Any

import pytest

from geminga.errors import InvalidConfiguration
from geminga.producer.settings import BatchingType, CompressionType, ProducerSettings
from geminga.tuning.modelled_broker import BrokerModel, Fault, FaultKind
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.simulation import SimulatedRun, simulate
from geminga.tuning.traffic import Bursts, TrafficProfile

PROFILE = TrafficProfile(rate_messages_per_second=20_000, message_bytes=200, partitions=60)
BROKER = BrokerModel(keeping_seconds=(0.001, 0.002), timer_lag_seconds=0.0)


def settings(*, memory: int = 0, **fields: Any) -> PublishSettings:
    fields.setdefault("block_if_queue_full", True)
    return PublishSettings(
        producer=ProducerSettings(**{"batching_enabled": True, **fields}), memory_limit_bytes=memory
    )


FORMULA = {
    "max_pending_messages": 1000,
    "max_pending_messages_across_partitions": 60_000,
    "batching_max_messages": 500,
    "batching_max_allowed_size_in_bytes": 1 << 20,
    "batching_partition_switch_frequency": 1,
}


def play(profile: TrafficProfile = PROFILE, **fields: Any) -> SimulatedRun:
    run = {k: fields.pop(k) for k in ("seconds", "seed", "faults", "even", "tick_seconds") if k in fields}
    run.setdefault("seconds", 3.0)
    return simulate(profile, settings(**fields), BROKER, **run)


def test_batches_fill_as_the_settings_say() -> None:
    run = play(batching_max_publish_delay_seconds=0.02, **FORMULA)
    # The loop sleeps whole milliseconds from the receipt that woke it: half of one more on the mean.
    assert run.batch_fill == pytest.approx(410, rel=0.02)
    assert run.messages == pytest.approx(40_000, rel=0.02)
    assert run.latency_p50 == pytest.approx(0.010 + 0.0017, rel=0.05)
    assert run.latency_p99 == pytest.approx(0.020 + 0.0017, rel=0.06)
    assert run.latency_max < 0.025
    assert run.payload_bytes == round(run.entries * run.batch_fill) * 200
    assert (run.refused, run.failed, run.waited_seconds) == (0, 0, 0)


def test_a_batch_limit_closes_batches_before_their_delay() -> None:
    run = play(batching_max_publish_delay_seconds=0.1, **FORMULA)
    assert run.batch_fill == pytest.approx(500, rel=0.01)
    assert run.latency_p99 == pytest.approx(0.025 + 0.0017, rel=0.07)


def test_compression_shrinks_what_travels() -> None:
    plain = play(batching_max_publish_delay_seconds=0.02, **FORMULA)
    packed = play(batching_max_publish_delay_seconds=0.02, compression_type=CompressionType.LZ4, **FORMULA)
    crumbs = play(
        batching_max_publish_delay_seconds=0.001, compression_type=CompressionType.LZ4,
        **{**FORMULA, "batching_max_messages": 5},
    )  # fmt: skip
    assert packed.wire_bytes < 0.5 * plain.wire_bytes
    assert packed.wire_bytes < 0.8 * crumbs.wire_bytes, "small batches compress worse"
    assert packed.messages == plain.messages


@pytest.mark.parametrize(
    "fields",
    [
        FORMULA,
        {"batching_enabled": False},
        {"batching_type": BatchingType.KeyBased},
        {"latency_budget_seconds": 0.02},
        {"max_pending_messages": 50},
        {"memory": 30_000},
    ],
)
def test_the_seed_decides_everything(fields: dict[str, Any]) -> None:
    profile = PROFILE.changed(
        rate_messages_per_second=2000, keys=50, key_skew=1.0, partitions=4, producers=2,
        message_bytes_variation=0.5, bursts=Bursts(factor=3, burst_seconds=0.1, period_seconds=0.5),
    )  # fmt: skip
    assert play(profile, seed=7, **fields) == play(profile, seed=7, **fields)
    assert play(profile, seed=7, **fields) != play(profile, seed=8, **fields)


def test_other_settings_do_not_change_the_traffic() -> None:
    one, two = play(seconds=2.0, **FORMULA), play(seconds=2.0)
    assert one.messages == two.messages


def test_every_message_has_one_end() -> None:
    for fields in ({"block_if_queue_full": True}, {"block_if_queue_full": False}):
        run = simulate(
            PROFILE, settings(max_pending_messages=20, **fields),
            BrokerModel(keeping_seconds=(0.2,)), seconds=2.0, warmup_seconds=0.0, even=True,
        )  # fmt: skip
        assert run.messages + run.refused + run.failed == 40_000
        assert (run.refused > 0) is not fields["block_if_queue_full"]
        assert (run.waited_seconds > 0) is fields["block_if_queue_full"]
        assert run.permits_used_max <= 60 * 20
        assert run.pending_messages_max <= 60 * 20


def test_memory_stays_within_its_limit() -> None:
    run = simulate(PROFILE, settings(memory=100_000), BrokerModel(keeping_seconds=(0.05,)), seconds=2.0)
    assert 50_000 < run.memory_used_max <= 100_000
    assert run.waited_seconds > 0


@pytest.mark.parametrize("kind", [FaultKind.STUCK, FaultKind.LOST])
def test_one_bad_partition_of_eight_is_stepped_over(kind: FaultKind) -> None:
    profile = PROFILE.changed(partitions=8)
    fault = Fault(partition=3, kind=kind, start_seconds=1.0, end_seconds=4.0)
    ours = play(profile, seconds=4.0, faults=[fault])
    stock = play(profile, seconds=4.0, faults=[fault], step_over_blocked_partitions=False)
    healthy = play(profile, seconds=4.0)
    assert healthy.stepped_over == 0
    assert ours.stepped_over > 0
    assert ours.waited_seconds < 0.05
    assert stock.waited_seconds > 1.0
    assert ours.messages == stock.messages == healthy.messages, "in the end everything arrives"
    assert ours.latency_p90 < 1.5 * healthy.latency_p90
    assert stock.latency_p50 > 10 * healthy.latency_p50


def test_a_slow_partition_slows_its_own_messages() -> None:
    profile = PROFILE.changed(partitions=8)
    run = play(
        profile, faults=[Fault(partition=0, kind=FaultKind.SLOW, extra_seconds=0.3)], seconds=4.0, **FORMULA
    )
    assert 0.3 < run.latency_p99 < 0.4
    assert run.latency_p50 < 0.02


def test_an_overloaded_broker_makes_latency_grow() -> None:
    slow = BrokerModel(entry_seconds=0.002, threads=1, keeping_seconds=(0.0,))
    crumbs = simulate(PROFILE, settings(batching_max_messages=10), slow, seconds=3.0)
    filled = simulate(
        PROFILE, settings(**FORMULA, batching_max_publish_delay_seconds=0.02), slow, seconds=3.0
    )
    assert crumbs.latency_p50 > 0.5
    assert filled.latency_p99 < 0.03


def test_producers_share_the_rate_and_the_broker() -> None:
    one = play(batching_max_publish_delay_seconds=0.02, **FORMULA)
    four = play(PROFILE.changed(producers=4), batching_max_publish_delay_seconds=0.02, **FORMULA)
    assert four.messages == pytest.approx(one.messages, rel=0.02)
    assert four.batch_fill == pytest.approx(one.batch_fill / 4, rel=0.05)


def test_ticks_and_even_steps_are_a_benchmarks_sender() -> None:
    run = play(batching_max_publish_delay_seconds=0.02, even=True, tick_seconds=0.001, **FORMULA)
    smooth = play(batching_max_publish_delay_seconds=0.02, even=True, **FORMULA)
    assert run.messages == smooth.messages == 40_000
    assert run.batch_fill == pytest.approx(400, rel=0.06)
    # Half a tick is what a message waits for its sender on the mean, and its batch is open for the longer.
    assert 0.0004 < run.latency_mean - smooth.latency_mean < 0.001


def test_receipts_are_told_one_after_the_other() -> None:
    fields = settings(batching_max_publish_delay_seconds=0.02, **FORMULA)
    at_once = simulate(PROFILE, fields, BROKER, seconds=2.0)
    told = simulate(PROFILE, fields, BROKER.changed(telling_seconds=1e-5), seconds=2.0)
    assert told.latency_mean - at_once.latency_mean == pytest.approx(1e-5 * 400 / 2, rel=0.05)


@pytest.mark.parametrize(
    ("profile", "fields", "word"),
    [
        (PROFILE, {"seconds": 0.0}, "seconds"),
        (PROFILE, {"seconds": 1.0, "seed": -1}, "seed"),
        (PROFILE.changed(producers=1000), {"seconds": 2.0}, "producers"),
        (PROFILE.changed(rate_messages_per_second=1e8), {"seconds": 2.0}, "messages of the run"),
        (PROFILE, {"seconds": 2.0, "faults": [Fault(partition=60, kind=FaultKind.LOST)]}, "fault.partition"),
    ],
)
def test_runs_that_make_no_sense_are_refused(
    profile: TrafficProfile, fields: dict[str, Any], word: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=word):
        simulate(profile, settings(), warmup_seconds=0.0, **fields)


def test_virtual_time_is_faster_than_time() -> None:
    """A floor far below what is measured (docs/tuning.md), so that a loaded machine does not fail it."""
    play(seconds=2.0)
    before = time.thread_time()
    play(
        seconds=10.0, compression_type=CompressionType.LZ4, batching_max_publish_delay_seconds=0.02, **FORMULA
    )
    assert 10.0 / (time.thread_time() - before) > 10
