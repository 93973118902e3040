"""Rates over a window."""

from geminga.broker.runtime.rates import WINDOW_SECONDS, Rates


def test_rates_are_growth_a_second_since_the_window_began():
    rates = Rates(0.0, 2)
    assert rates.read(0.5, 100, 1000) == (0.0, 0.0)
    assert rates.read(2.0, 100, 1000) == (50.0, 500.0)
    assert rates.read(WINDOW_SECONDS, 100, 1000) == (10.0, 100.0)
    assert rates.read(WINDOW_SECONDS + 0.1, 100, 1000) == (10.0, 100.0)
    assert rates.read(WINDOW_SECONDS + 2, 120, 1000) == (10.0, 0.0)
