"""Delayed delivery: entries that are not due yet, by their offsets.

Ten million entries take about 90 MB: their offsets are in a `RangeSet`, their times in spans of 65 seconds,
as one number for each entry. A span with many entries is split, and one is put in order when it is the next.
"""

import heapq
from array import array
from collections.abc import Callable
from typing import Final

from geminga.broker.delivery.ranges import RangeSet
from geminga.broker.scheduler import Scheduler, Timer

DELAYED_MAX = 10_000_000
"""Limit of a subscription's delayed entries; above it no new entries are read until some are due."""
LOOK_SECONDS = 10.0
"""Longest interval of checks of the wall clock: it may be set, or the machine may have been suspended."""

DUE_AT_ONCE_MAX = 2_000
"""Entries that become due in one run of the timer; the next ones wait for the next run, after other work."""
SPAN_ENTRIES_MAX = 20_000
"""Entries of a span longer than a millisecond; above it, it is split."""
_SPAN_BITS: Final = 16
"""A span is 2^16 ms long, after a split 2^8 ms, then 1 ms."""
_SPLIT_BITS: Final = 8
_OFFSET_BITS: Final = 47
_OFFSET: Final = (1 << _OFFSET_BITS) - 1

SpanKey = tuple[int, int]
"""Start of a span in milliseconds since 1970, and the binary logarithm of its length."""


def _nobody_waits(_offsets: list[int]) -> None:
    """Called for the entries of closed `DelayedEntries`."""


class _Span:
    """Entries of a span of time: milliseconds behind its start, and offset, in one number each."""

    __slots__ = ("is_sorted", "taken", "values")

    def __init__(self) -> None:
        self.values = array("Q")
        self.taken = 0
        self.is_sorted = True

    def first(self) -> int | None:
        """Return the first number that was not taken, None if all were."""
        if not self.is_sorted:
            self.values, self.taken = array("Q", sorted(self.values[self.taken :])), 0
            self.is_sorted = True
        return self.values[self.taken] if self.taken < len(self.values) else None


class DelayedEntries:
    """Offsets in the order of their times; ``due(offsets)`` receives those that are due by the wall clock."""

    __slots__ = (
        "_about", "_due", "_kept", "_next_ms", "_offsets", "_scheduler", "_spans", "_split", "_starts",
        "_timer",
    )  # fmt: skip

    def __init__(self, scheduler: Scheduler, due: Callable[[list[int]], None], about: object) -> None:
        self._scheduler = scheduler
        self._due = due
        self._about = about
        self._offsets = RangeSet()
        self._timer: Timer | None = None
        self._forget_times()

    def _forget_times(self) -> None:
        self._spans: dict[SpanKey, _Span] = {}
        self._starts: list[SpanKey] = []
        self._split: set[SpanKey] = set()
        self._next_ms = 0
        self._kept = 0
        """Numbers in the spans: those of the entries, and of entries that were dropped."""

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= DELAYED_MAX

    @property
    def next_ms(self) -> int:
        """Time at which the first of them is due, in milliseconds since 1970; 0 without any. After
        `skip_below` it may be that of an entry that was dropped."""
        return self._next_ms

    def add(self, offset: int, deliver_at_ms: int) -> None:
        """Add an entry; one that is there already keeps its time."""
        if self._offsets.add(offset):
            self._put(offset, deliver_at_ms)
            self._next_ms = min(self._next_ms or deliver_at_ms, deliver_at_ms)
            self._arm()

    def _put(self, offset: int, at_ms: int) -> None:
        bits = _SPAN_BITS
        while (key := (at_ms >> bits << bits, bits)) in self._split:
            bits -= _SPLIT_BITS
        span = self._spans.get(key)
        if span is None:
            span = self._spans[key] = _Span()
            heapq.heappush(self._starts, key)
        value = (at_ms - key[0]) << _OFFSET_BITS | offset
        self._kept += 1
        if bits and span.values and value < span.values[-1]:
            span.is_sorted = False
        span.values.append(value)
        if bits and len(span.values) - span.taken > SPAN_ENTRIES_MAX:
            del self._spans[key]
            self._split.add(key)
            self._kept -= len(span.values) - span.taken
            for each in span.values[span.taken :]:
                self._put(each & _OFFSET, key[0] + (each >> _OFFSET_BITS))

    def skip_below(self, offset: int) -> None:
        """Drop the entries below ``offset``."""
        self._offsets.remove_range(0, offset)
        if self._kept > 2 * len(self._offsets) + SPAN_ENTRIES_MAX or not self._offsets:
            spans = self._spans
            self._forget_times()
            for (start, _), span in spans.items():
                for value in span.values[span.taken :]:
                    if value & _OFFSET in self._offsets:
                        at_ms = start + (value >> _OFFSET_BITS)
                        self._put(value & _OFFSET, at_ms)
                        self._next_ms = min(self._next_ms or at_ms, at_ms)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = _nobody_waits  # drop the reference back to the owner

    def _arm(self) -> None:
        timer, scheduler = self._timer, self._scheduler
        when = scheduler.now + min(max(0.0, (self._next_ms - scheduler.now_ms) / 1000), LOOK_SECONDS)
        if timer is not None and timer.callback is not None:
            if timer.when <= when:
                return
            timer.cancel()
        self._timer = scheduler.at(when, self._run, self._about)

    def _run(self) -> None:
        self._timer = None
        now_ms = self._scheduler.now_ms
        due: list[int] = []
        for _ in range(DUE_AT_ONCE_MAX):
            span = self._first_span()
            if span is None or self._next_ms > now_ms:
                break
            offset = span.values[span.taken] & _OFFSET
            span.taken += 1
            self._kept -= 1
            if self._offsets.remove_range(offset, offset + 1):
                due.append(offset)
        if self._first_span() is not None:
            self._arm()
        if due:
            self._due(due)

    def _first_span(self) -> _Span | None:
        """Return the span of the next entry and note its time; None without entries."""
        while self._starts:
            key = self._starts[0]
            span = self._spans.get(key)
            value = None if span is None else span.first()
            if value is not None:
                self._next_ms = key[0] + (value >> _OFFSET_BITS)
                return span
            heapq.heappop(self._starts)
            self._spans.pop(key, None)
        self._forget_times()
        return None
