import random

import pytest

from geminga.connection.backoff import Backoff
from geminga.errors import InvalidConfiguration


def test_delays_double_from_100_ms_to_60_s():
    backoff = Backoff(lambda: 0.0)
    delays = [backoff.next() for _ in range(12)]
    assert delays[:10] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2])
    assert delays[10:] == [60.0, 60.0]


def test_random_reduction_is_at_most_a_tenth():
    backoff = Backoff(random.Random(7).random)
    for attempt in range(500):
        full = min(0.1 * 2**attempt, 60.0)
        assert full * 0.9 <= backoff.next() <= full


def test_a_very_long_outage_stays_bounded():
    backoff = Backoff(lambda: 0.0)
    assert max(backoff.next() for _ in range(10_000)) == 60.0


def test_reset_starts_again():
    backoff = Backoff(lambda: 0.0)
    backoff.next()
    backoff.next()
    backoff.reset()
    assert backoff.next() == pytest.approx(0.1)


@pytest.mark.parametrize(
    "arguments",
    [{"initial_seconds": 0}, {"maximum_seconds": 0.01}, {"reduction_max": 1.0}, {"reduction_max": -0.1}],
)
def test_refuses_values_out_of_range(arguments):
    with pytest.raises(InvalidConfiguration, match=next(iter(arguments))):
        Backoff(lambda: 0.0, **arguments)
