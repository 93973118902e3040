"""The range set against a plain set of numbers."""

import time
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from geminga.broker.delivery.ranges import RangeSet, add_set, remove_set, take_lowest
from geminga.broker.entries.records import RecordReader
from geminga.errors import StoreDamaged

NUMBERS = st.integers(0, 5000)


def reencoded(ranges: RangeSet) -> RangeSet:
    out = bytearray()
    ranges.encode(out)
    reader = RecordReader(bytes(out), "test")
    found = RangeSet.decode(reader)
    assert not reader
    return found


class RangeSetMachine(RuleBasedStateMachine):
    """Every operation does what a set of numbers does."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = RangeSet()
        self.model: set[int] = set()

    @rule(start=NUMBERS, length=st.integers(1, 5000), width=st.integers(1, 2500))
    def histogram(self, start: int, length: int, width: int) -> None:
        stop = start + length
        wanted = [
            sum(at <= n < min(at + width, stop) for n in self.model) for at in range(start, stop, width)
        ]
        assert self.ranges.histogram(start, stop, width) == wanted

    @rule(value=NUMBERS)
    def add(self, value: int) -> None:
        assert self.ranges.add(value) == (value not in self.model)
        self.model.add(value)

    @rule(start=NUMBERS, length=st.integers(0, 3000))
    def add_range(self, start: int, length: int) -> None:
        new = set(range(start, start + length)) - self.model
        assert self.ranges.add_range(start, start + length) == len(new)
        self.model |= new

    @rule(values=st.lists(NUMBERS, max_size=50))
    def add_all(self, values: list[int]) -> None:
        self.ranges.add_all(values)
        self.model.update(values)

    @rule(start=NUMBERS, length=st.one_of(st.integers(0, 3000), st.just(1 << 40)))
    def remove_range(self, start: int, length: int) -> None:
        gone = {value for value in self.model if start <= value < start + length}
        assert self.ranges.remove_range(start, start + length) == len(gone)
        self.model -= gone

    @rule(value=NUMBERS)
    def remove(self, value: int) -> None:
        assert self.ranges.remove(value) == (value in self.model)
        self.model.discard(value)

    @rule(count=st.integers(0, 3000))
    def take_lowest(self, count: int) -> None:
        lowest = sorted(self.model)[:count]
        assert take_lowest(self.ranges, count) == lowest
        self.model.difference_update(lowest)

    @rule(start=NUMBERS, length=st.integers(0, 3000), values=st.lists(NUMBERS), adds=st.booleans())
    def combine(self, start: int, length: int, values: list[int], adds: bool) -> None:
        other, model = RangeSet(), {*range(start, start + length), *values}
        other.add_all(model)
        (add_set if adds else remove_set)(self.ranges, other)
        self.model = self.model | model if adds else self.model - model

    @rule()
    def keep(self) -> None:
        assert reencoded(self.ranges) == self.ranges
        self.ranges = reencoded(self.ranges)

    @rule(value=NUMBERS, stop=st.integers(0, 9000))
    def ask(self, value: int, stop: int) -> None:
        assert (value in self.ranges) == (value in self.model)
        assert self.ranges.next_missing(value) == next(n for n in range(value, 20_000) if n not in self.model)
        present = [n for n in self.model if value <= n < stop]
        assert self.ranges.next_present(value, stop) == min(present, default=stop)
        if value <= stop:
            found = self.ranges.bits(value, stop)
            assert {value + bit for bit in range(stop - value) if found >> bit & 1} == set(present)

    @invariant()
    def same(self) -> None:
        assert len(self.ranges) == len(self.model)
        assert self.ranges.end == max(self.model, default=-1) + 1
        assert self.ranges.range_count() == sum(1 for n in self.model if n - 1 not in self.model)
        found = list(self.ranges.ranges())
        assert {n for start, stop in found for n in range(start, stop)} == self.model
        assert all(left[1] < right[0] for left, right in pairwise(found)), "maximal and rising"
        assert list(self.ranges.ranges(2)) == found[:2]


RangeSetMachine.TestCase.settings = settings(stateful_step_count=20)
TestRangeSet = RangeSetMachine.TestCase


def test_a_million_holes_stay_small_and_fast():
    ranges = RangeSet()
    begin = time.thread_time()
    for value in range(0, 2_000_000, 2):
        ranges.add(value)
    assert time.thread_time() - begin < 10
    assert len(ranges) == 1_000_000
    out = bytearray()
    ranges.encode(out)
    assert len(out) < 300_000
    assert ranges.next_missing(0) == 1
    assert ranges.next_present(1, 10) == 2
    assert ranges.next_present(1_999_999, 3_000_000) == 3_000_000


def test_one_huge_range_is_written_in_a_few_bytes():
    ranges = RangeSet()
    ranges.add_range(0, 50_000_000)
    out = bytearray()
    ranges.encode(out)
    assert len(out) < 32
    assert reencoded(ranges) == ranges


def test_neighbouring_bitmaps_are_written_and_read_in_one_go():
    ranges = RangeSet()
    for value in range(0, 10 * 1024, 2):
        ranges.add(value)
    ranges.add_range(10 * 1024, 20 * 1024)
    ranges.add_range(20 * 1024 + 2, 30 * 1024)
    for value in range(40 * 1024, 43 * 1024, 3):
        ranges.add(value)
    out = bytearray()
    ranges.encode(out)
    assert len(out) < 13 * 128 + 60
    assert reencoded(ranges) == ranges
    with pytest.raises(StoreDamaged, match="announced but missing"):
        RangeSet.decode(RecordReader(bytes(out[:500]), "test"))


def test_a_range_outside_its_chunk_is_refused():
    with pytest.raises(StoreDamaged, match="leaves its chunk"):
        RangeSet.decode(RecordReader(bytes([1, 0, 2, 1, 0, 0x81, 0x10]), "test"))
    with pytest.raises(StoreDamaged, match="unknown kind"):
        RangeSet.decode(RecordReader(bytes([1, 0, 9]), "test"))
    with pytest.raises(StoreDamaged, match="a run of"):
        RangeSet.decode(RecordReader(bytes([1, 0, 0, 5]), "test"))
