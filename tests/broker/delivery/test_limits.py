"""Token buckets: exact in the long run, smooth in the short, overdrawn by what is large."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.broker.delivery.limits import BURST_SECONDS, RateLimit, in_force, with_rate
from geminga.policies import DispatchRate


def limit(**rate: int) -> RateLimit:
    made = RateLimit()
    made.set(DispatchRate(**rate), 0.0)
    return made


@given(st.integers(1, 100_000), st.lists(st.integers(1, 5_000), min_size=1, max_size=200))
def test_the_rate_is_exact_for_messages_of_any_size(rate, sizes):
    bucket, now = limit(messages=rate), 0.0
    for size in sizes:
        now += bucket.wait(now)
        assert bucket.wait(now) == 0 or bucket.wait(now) < 1e-6
        bucket.take(size, 0, now + 1e-9)
    # All but the last were paid for.
    assert now >= (sum(sizes[:-1]) - max(1, rate * BURST_SECONDS)) / rate - 1e-3
    assert now <= (sum(sizes) + 0.25 * len(sizes) * max(1, rate * BURST_SECONDS)) / rate + 1e-3


def test_an_idle_time_saves_few_permits():
    bucket = limit(messages=1000)
    assert bucket.wait(3600.0) == 0
    assert bucket.left(10_000, 10_000) == (100, 10_000)


def test_limits_of_messages_and_bytes_both_apply():
    bucket = limit(messages=1000, bytes=1000)
    bucket.take(1, 2000, 0.0)
    assert bucket.wait(0.0) == pytest.approx(1.925)
    assert limit(messages=10, period_seconds=5).left(9, 9) == (1, 9)


def test_a_changed_rate_clears_the_debt():
    bucket = limit(messages=1)
    bucket.take(1_000_000, 0, 0.0)
    bucket.set(DispatchRate(messages=1), 0.0)
    assert bucket.wait(0.0) > 900_000
    bucket.set(DispatchRate(messages=2), 0.0)
    assert bucket.wait(0.0) == 0
    bucket.set(DispatchRate(), 0.0)
    bucket.take(1_000_000, 1_000_000, 0.0)
    assert not bucket.is_set
    assert bucket.wait(0.0) == 0


def test_a_limit_is_created_when_needed():
    assert with_rate(None, DispatchRate(), 0.0) is None
    made = with_rate(None, DispatchRate(bytes=5), 0.0)
    assert in_force(None, made, RateLimit()) == (made,)
    assert with_rate(made, DispatchRate(), 0.0) is made
    assert in_force(made) == ()
