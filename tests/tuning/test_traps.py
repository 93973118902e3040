"""Traps: each is found with its numbers, and the formula runs into none of them."""

from typing import Any

import pytest

from geminga.producer.settings import BatchingType, CompressionType, ProducerSettings
from geminga.tuning.formula import formula
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.stock import GEMINGA, JAVA, PULSAR_CLIENT
from geminga.tuning.traffic import TrafficProfile
from geminga.tuning.traps import Severity, Trap, key_batches_in_delay, traps

PROFILE = TrafficProfile(rate_messages_per_second=20_000, message_bytes=200, partitions=60)
GOOD = formula(PROFILE).settings


def found(profile: TrafficProfile, settings: PublishSettings) -> dict[Trap, str]:
    return {finding.trap: str(finding) for finding in traps(profile, settings)}


@pytest.mark.parametrize("rate", [1_000, 20_000, 500_000])
@pytest.mark.parametrize("message_bytes", [20, 200, 20_000])
@pytest.mark.parametrize("partitions", [1, 60, 1000])
def test_the_formulas_settings_have_no_severe_trap(rate, message_bytes, partitions):
    profile = TrafficProfile(
        rate_messages_per_second=rate, message_bytes=message_bytes, partitions=partitions
    )
    broken = [f for f in traps(profile, formula(profile).settings) if f.severity is Severity.BROKEN]
    assert broken == []


def test_the_formulas_settings_have_no_trap_at_the_published_rate():
    assert traps(PROFILE, GOOD) == ()


CASES: list[tuple[Trap, dict[str, Any], dict[str, Any], list[str]]] = [
    (
        Trap.BATCH_ABOVE_PERMITS,
        {},
        {"max_pending_messages": 500, "batching_max_messages": 1000},
        ["1000 messages", "permits for 500", "batching_max_messages to 250"],
    ),
    (
        Trap.NO_PERMITS_FOR_THE_NEXT,
        {},
        {"max_pending_messages": 1000, "batching_max_messages": 900},
        ["900 messages of 1000 permits", "800 come"],
    ),
    (
        Trap.MEMORY_BELOW_BATCH,
        {"keys": 10_000, "message_bytes": 20_000},
        {"memory_limit_bytes": 1 << 20},
        ["memory_limit_bytes=1048576", "60 open batches", "20000 bytes"],
    ),
    (
        Trap.CRUMBS,
        {"rate_messages_per_second": 500},
        {"batching_max_publish_delay_seconds": 0.001},
        ["500 messages a second and 1 ms give 0.5 messages", "20.0 ms would give 10"],
    ),
    (
        Trap.TOO_MANY_PARTITIONS,
        {"keys": 10_000, "rate_messages_per_second": 3000, "partitions": 600},
        {},
        ["3000 messages a second over 600 partitions: 0.2 messages a batch"],
    ),
    (
        Trap.TOO_MANY_PARTITIONS,
        {"partitions": 1200},
        {},
        ["40 ms on each of 1200 partitions", "48.0 s", "250 partitions"],
    ),
    (
        Trap.STAY_USES_UP_PERMITS,
        {"rate_messages_per_second": 100_000},
        {"batching_partition_switch_frequency": 10},
        ["400 ms", "5000 messages wait", "permits for 1600"],
    ),
    (
        Trap.KEY_BATCHES,
        {"keys": 100_000, "partitions": 4},
        {"batching_type": BatchingType.KeyBased},
        ["200 messages of a partition", "of 100000 keys", "1.0 messages an entry"],
    ),
    (
        Trap.COMPRESSED_SINGLES,
        {"rate_messages_per_second": 10},
        {"compression_type": CompressionType.LZ4},
        ["LZ4 sees 1.0 messages of 200 bytes"],
    ),
    (Trap.TIMEOUT_BELOW_DELAY, {}, {"send_timeout_seconds": 0.02}, ["send_timeout_seconds=0.02", "0.04 s"]),
    (
        Trap.BUDGET_BELOW_DELAY,
        {"latency_budget_seconds": 0.02},
        {},
        ["40 ms for its batch, the latency budget is 20 ms", "16 ms or less"],
    ),
    (
        Trap.PERMITS_CUT,
        {},
        {"max_pending_messages_across_partitions": 50_000},
        ["1600 is cut to 50000 / 60 = 833", "96000 or more"],
    ),
    (
        Trap.SHARED_MEMORY,
        {"producers": 4, "producers_per_client": 4},
        {},
        ["4 producers share 67108864 bytes, 16777216 each"],
    ),
    (
        Trap.UNBOUNDED,
        {},
        {"max_pending_messages": 0, "max_pending_messages_across_partitions": 0, "memory_limit_bytes": 0},
        ["10 s leaves 40 MB"],
    ),
    (Trap.NOT_BATCHED, {}, {"batching_enabled": False}, ["20000 messages a second are as many entries"]),
    (Trap.REFUSED_WHEN_FULL, {}, {"block_if_queue_full": False}, ["ProducerQueueIsFull"]),
]


@pytest.mark.parametrize(
    ("trap", "traffic", "settings", "words"), CASES, ids=lambda v: getattr(v, "name", "")
)
def test_each_trap_is_found_with_its_numbers(trap, traffic, settings, words):
    text = found(PROFILE.changed(**traffic), GOOD.changed(**settings)).get(trap)
    assert text is not None
    for word in words:
        assert word in text


def test_every_trap_has_a_test_case():
    assert {case[0] for case in CASES} == set(Trap)


def test_stock_settings_have_their_known_traps():
    assert Trap.NOT_BATCHED in found(PROFILE, PULSAR_CLIENT.settings)
    assert Trap.PERMITS_CUT in found(PROFILE, GEMINGA.settings)
    slow = PROFILE.changed(rate_messages_per_second=2000)
    assert Trap.CRUMBS in found(slow, JAVA.settings)
    assert Trap.UNBOUNDED not in found(PROFILE, JAVA.settings)  # bounded by memory


def test_the_most_severe_trap_comes_first():
    found_now = traps(PROFILE, GOOD.changed(block_if_queue_full=False, send_timeout_seconds=0.001))
    assert [f.severity for f in found_now] == [Severity.BROKEN, Severity.NOTE]


def test_distinct_keys_of_a_batch_are_estimated():
    assert key_batches_in_delay(PROFILE.changed(keys=1), 100) == 1.0
    even = PROFILE.changed(keys=1000, partitions=1)
    assert key_batches_in_delay(even, 1000) == pytest.approx(632.3, abs=0.1)
    assert key_batches_in_delay(even.changed(key_skew=1.0), 1000) < 400


def test_the_smaller_limit_per_partition_applies():
    settings = PublishSettings(
        producer=ProducerSettings(max_pending_messages=1000, max_pending_messages_across_partitions=0)
    )
    assert settings.permits_per_partition(60) == 1000
    assert GEMINGA.settings.permits_per_partition(60) == 833
    assert JAVA.settings.permits_per_partition(60) == 0
