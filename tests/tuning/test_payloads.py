"""Messages to measure with: their sizes, their times, and that they are JSON."""

import json
import statistics

import pytest

from geminga.errors import InvalidConfiguration
from geminga.tuning.measuring.load import Pace
from geminga.tuning.measuring.payloads import (
    KINDS,
    STAMP_OFFSET,
    STAMP_SIZE,
    of_samples,
    stamp_ns,
    structured_json,
)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("size", [26, 27, 60, 200, 1000, 5000])
def test_messages_are_json_of_the_size_that_was_asked_for(kind, size):
    for message in structured_json(size, kind=kind, count=50).messages(50):
        assert len(message) == size
        assert json.loads(message)["ts"] > 0


def test_sizes_vary_by_the_given_variation():
    sizes = [len(m) for m in structured_json(500, variation=0.5, count=4000).messages(4000)]
    assert statistics.fmean(sizes) == pytest.approx(500, rel=0.05)
    assert statistics.pstdev(sizes) / 500 == pytest.approx(0.5, rel=0.15)


def test_readers_find_the_time_in_each_message():
    now = stamp_ns()
    for payloads in (structured_json(100, count=3), of_samples([b"hello"])):
        message = payloads.message(7, now)
        assert int(message[STAMP_OFFSET : STAMP_OFFSET + STAMP_SIZE]) == now
    assert stamp_ns() >= now


def test_an_unknown_kind_is_named():
    with pytest.raises(InvalidConfiguration, match=r"payload='log'.*did you mean 'logs'"):
        structured_json(100, kind="log")


def test_a_steady_pace_has_equal_intervals():
    pace = Pace(1000)
    assert [pace.due_by(t) for t in (0.0, 0.0005, 0.001, 2.5)] == [0, 1, 1, 2500]
    assert pace.due_at(2500) == pytest.approx(2.5)
