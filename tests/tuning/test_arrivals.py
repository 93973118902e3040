"""Messages of a traffic profile: their times, sizes and keys."""

from __future__ import annotations

import numpy as np
import pytest

from geminga.tuning.arrivals import MessagePool, arrival_times, key_numbers
from geminga.tuning.traffic import Bursts, TrafficProfile, zipf_shares


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("even", [True, False])
def test_the_rate_is_kept_and_times_ascend(even: bool) -> None:
    times = arrival_times(10_000, 20.0, None, generator(), even=even)
    assert len(times) == pytest.approx(200_000, rel=0.01)
    assert np.all(np.diff(times) >= 0)
    assert 0 <= times[0] < times[-1] < 20.0


def test_random_messages_have_gaps_like_chance() -> None:
    gaps = np.diff(arrival_times(10_000, 20.0, None, generator()))
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.02)


def test_bursts_keep_the_mean_and_their_shares() -> None:
    bursts = Bursts(factor=5.0, burst_seconds=0.1, period_seconds=1.0)
    times = arrival_times(10_000, 20.0, bursts, generator())
    assert len(times) == pytest.approx(200_000, rel=0.01)
    assert np.mean(times % 1.0 < 0.1) == pytest.approx(0.5, abs=0.01)


def test_nothing_comes_outside_a_burst_that_holds_everything() -> None:
    bursts = Bursts(factor=20.0, burst_seconds=0.05, period_seconds=1.0)
    times = arrival_times(1000, 10.0, bursts, generator())
    assert np.all(times % 1.0 <= 0.05 + 1e-9)


def test_keys_have_their_shares() -> None:
    profile = TrafficProfile(rate_messages_per_second=1, message_bytes=100, keys=100, key_skew=1.0)
    counts = np.bincount(key_numbers(profile, 200_000, generator()), minlength=100)
    assert counts / 200_000 == pytest.approx(np.array(zipf_shares(100, 1.0)), abs=0.005)


@pytest.mark.parametrize(("size", "variation"), [(10, 0.0), (200, 0.0), (200, 1.0), (5000, 0.5)])
def test_payloads_have_the_profiles_sizes(size: int, variation: float) -> None:
    profile = TrafficProfile(
        rate_messages_per_second=1, message_bytes=size, message_bytes_variation=variation
    )
    pool = MessagePool.of(profile, generator())
    assert [len(payload) for payload in pool.payloads] == pool.sizes.tolist()
    assert pool.sizes.mean() == pytest.approx(size, rel=0.1)
    assert (pool.sizes.std() > 0) == bool(variation)
    assert len(set(pool.payloads)) > 0.9 * len(pool.payloads) or size < 26
    assert pool.keys is None


def test_samples_are_sent_as_they_are() -> None:
    profile = TrafficProfile(rate_messages_per_second=1, message_bytes=10, keys=3)
    pool = MessagePool.of(profile, generator(), [b"one", b"four"])
    assert set(pool.payloads) == {b"one", b"four"}
    assert pool.keys is not None
    assert set(pool.keys) == {"key-0", "key-1", "key-2"}


def test_the_same_seed_gives_the_same_messages() -> None:
    profile = TrafficProfile(rate_messages_per_second=1, message_bytes=200, keys=30, key_skew=0.5)
    one, two = (MessagePool.of(profile, generator()) for _ in range(2))
    assert one.payloads == two.payloads
    assert one.keys == two.keys
