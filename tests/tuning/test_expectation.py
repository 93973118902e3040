"""Expectations: fills by hand, latencies within the budget."""

import pytest

from geminga.producer.settings import BatchingType, CompressionType
from geminga.tuning.expectation import DELIVERY_P99_SECONDS, Expectation, expected
from geminga.tuning.formula import formula
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.sample import Sample, standard_sample
from geminga.tuning.stock import JAVA, PULSAR_CLIENT
from geminga.tuning.traffic import TrafficProfile

PROFILE = TrafficProfile(rate_messages_per_second=20_000, message_bytes=200, partitions=60)


def expect(profile: TrafficProfile, settings: PublishSettings, *, moves_on: bool = True) -> Expectation:
    return expected("", profile, settings, sample=standard_sample(200), moves_on_when_full=moves_on)


def test_the_formula_fills_its_batches_and_keeps_the_budget():
    found = expect(PROFILE, formula(PROFILE).settings)
    assert found.batch_fill == pytest.approx(800)
    assert found.entries_per_second == pytest.approx(25)
    assert found.end_to_end_p99_seconds is not None
    assert 0.04 < found.end_to_end_p99_seconds < 0.06


def test_stock_settings_make_small_batches():
    java = expect(PROFILE, JAVA.settings)
    assert 20 < java.batch_fill < 30  # a millisecond of 20,000 messages a second
    unbatched = expect(PROFILE, PULSAR_CLIENT.settings)
    assert unbatched.batch_fill == 1
    assert unbatched.entries_per_second == 20_000
    assert unbatched.end_to_end_p99_seconds == DELIVERY_P99_SECONDS


def test_the_formula_saves_most_entries_and_bytes():
    stock = expect(PROFILE, JAVA.compressed(CompressionType.LZ4))
    tuned = expect(PROFILE, formula(PROFILE, compression=CompressionType.ZSTD).settings)
    assert tuned.entries_per_second < 0.05 * stock.entries_per_second
    assert tuned.stored_bytes_per_second < 0.5 * stock.stored_bytes_per_second


def test_changing_the_partition_by_the_clock_cuts_off_a_batch():
    settings = formula(PROFILE).settings.changed(batching_max_messages=500)
    assert expect(PROFILE, settings).batch_fill == 500
    assert expect(PROFILE, settings, moves_on=False).batch_fill == pytest.approx(400)


def test_keys_share_the_delay_among_partitions():
    keyed = PROFILE.changed(keys=100_000)
    found = expect(keyed, formula(keyed).settings)
    assert found.batch_fill == pytest.approx(1 + 20_000 / 60 * 0.0403, rel=0.01)
    skewed = PROFILE.changed(keys=1000, key_skew=1.5)
    assert expect(skewed, formula(skewed).settings).batch_fill > found.batch_fill
    per_key = formula(keyed).settings.changed(batching_type=BatchingType.KeyBased)
    assert expect(keyed, per_key).batch_fill == pytest.approx(1, rel=0.05)


def test_the_lower_limit_bounds_the_memory():
    settings = formula(PROFILE).settings
    assert expect(PROFILE, settings).memory_bytes_max == 1600 * 60 * 200
    assert expect(PROFILE, settings.changed(memory_limit_bytes=1 << 20)).memory_bytes_max == 1 << 20
    assert expect(PROFILE, JAVA.settings).memory_bytes_max == 64 << 20


def test_larger_batches_of_a_sample_compress_better():
    sample = standard_sample(200)
    for codec in (CompressionType.LZ4, CompressionType.ZSTD):
        ratios = [sample.ratio(fill, codec) for fill in (1, 20, 500)]
        assert ratios == sorted(ratios)
        assert ratios[0] < 1.4
        assert ratios[-1] > 3
    assert sample.entry_bytes(100, CompressionType.NONE) == pytest.approx(100 * 209, rel=0.02)
    between = sample.entry_bytes(30, CompressionType.ZSTD)
    assert (
        sample.entry_bytes(20, CompressionType.ZSTD) < between < sample.entry_bytes(50, CompressionType.ZSTD)
    )


def test_batches_larger_than_the_sample_have_its_ratio():
    few = Sample([b'{"a":1}', b'{"a":2}', b'{"a":3}'], "three")
    assert few.entry_bytes(1000, CompressionType.LZ4) == pytest.approx(
        500 * few.entry_bytes(2, CompressionType.LZ4)
    )
