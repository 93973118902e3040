"""Traps: each is found with its numbers, and the formula runs into none of them."""

import pytest
from cases import cases

from geminga.producer.settings import ProducerSettings
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


CASES = cases("traps")


@pytest.mark.parametrize(("trap", "traffic", "settings", "words"), CASES)
def test_each_trap_is_found_with_its_numbers(trap, traffic, settings, words):
    changed = PublishSettings.from_dict({**GOOD.to_dict(), **settings})
    text = found(PROFILE.changed(**traffic), changed)[Trap[trap]]
    for word in words:
        assert word in text


def test_every_trap_has_a_test_case():
    assert {case[0] for case in CASES} == set(Trap.__members__)


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
