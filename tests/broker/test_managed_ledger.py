"""Many ledgers that look like one list."""

from typing import Any

import pytest

from geminga.broker.entries.entry_counts import CountsCache
from geminga.broker.entries.managed_ledger import LedgerLimits, ManagedLedger, ReadAheadCache
from geminga.errors import LedgerNotFound
from geminga.ledger.memory import MemoryStore

LIMITS = LedgerLimits(entries_max=3, bytes_max=1 << 20, seconds_max=100)


def append(ledger: ManagedLedger, entry: bytes, *, now_ms: int = 0) -> None:
    """As a topic does: what the store has reported may be read."""

    def done(error: Exception | None) -> None:
        assert error is None
        ledger.confirmed = offset + 1

    offset = ledger.append(entry, 1, now_ms=now_ms, limits=LIMITS, done=done)


class Fixture:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.open()

    def open(self) -> ManagedLedger:
        self.ledger = ManagedLedger(self.store, "t", ReadAheadCache(1 << 20), CountsCache())
        return self.ledger

    def append(self, *entries: bytes, now_ms: int = 1000) -> None:
        for entry in entries:
            append(self.ledger, entry, now_ms=now_ms)
        self.store.poll()

    def all(self) -> list[bytes]:
        offset, found = self.ledger.start, []
        while offset < self.ledger.confirmed:
            part = self.ledger.read(offset, self.ledger.confirmed, entries_max=100, bytes_max=1 << 20)
            assert part
            found += part
            offset += len(part)
        return found


@pytest.fixture
def fixture():
    return Fixture()


ENTRIES = [b"%d" % n for n in range(8)]


def test_ledgers_roll_over_and_are_read_as_one(fixture):
    fixture.append(*ENTRIES)
    assert fixture.all() == ENTRIES
    assert [segment.entries for segment in fixture.ledger.segments] == [3, 3, 2]
    assert fixture.ledger.position(0) == (0, 0)
    assert fixture.ledger.position(7) == (2, 1)
    assert fixture.ledger.position_before(3) == (0, 2)
    assert fixture.ledger.position_before(0) == (0, -1)


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "offset", "offset_from"),
    [
        (0, 0, 0, 0),
        (1, 2, 5, 5),
        (1, 3, None, 6),
        (2, 9, None, 8),
        (1, -1, None, 3),
        (77, 0, None, 8),
        (-1, -1, None, 0),
        ((1 << 63) - 1, (1 << 63) - 1, None, 8),
    ],
)
def test_positions_are_converted_to_offsets(fixture, ledger_id, entry_id, offset, offset_from):
    fixture.append(*ENTRIES)
    assert fixture.ledger.offset(ledger_id, entry_id) == offset
    assert fixture.ledger.offset_from(ledger_id, entry_id) == offset_from


def test_offsets_and_ids_continue_after_a_restart(fixture):
    fixture.append(*ENTRIES[:4])
    before = fixture.ledger.position(3)
    ledger = fixture.open()
    assert (ledger.start, ledger.end, ledger.position(3)) == (0, 4, before)
    fixture.append(*ENTRIES[4:])
    assert fixture.all() == ENTRIES
    assert fixture.ledger.position(4)[0] > before[0]


def test_an_empty_ledger_is_forgotten_on_load(fixture):
    fixture.append(b"a")
    fixture.store.create_ledger("t")
    fixture.open()
    assert [info.entries for info in fixture.store.ledgers("t")] == [1]


def test_trimming_stops_at_the_first_ledger_that_stays_and_keeps_offsets(fixture):
    fixture.append(*ENTRIES)
    assert fixture.ledger.unneeded(8, lambda segment, written_ms: segment.base != 0) == 0
    assert fixture.ledger.unneeded(5, lambda segment, written_ms: True) == 1
    fixture.ledger.forget(1)
    assert fixture.ledger.start == 3
    assert fixture.ledger.offset(0, 0) is None
    assert fixture.ledger.offset_from(0, 1) == 3
    fixture.open()
    assert (fixture.ledger.start, fixture.ledger.end) == (3, 8)
    assert fixture.all() == ENTRIES[3:]


@pytest.mark.parametrize("reopened", [False, True])
def test_the_last_ledger_is_trimmed_and_a_new_one_begins(fixture, reopened):
    fixture.append(*ENTRIES[:5])
    if reopened:
        fixture.open()
    assert fixture.ledger.unneeded(5, lambda segment, written_ms: True) == 2
    fixture.ledger.forget(2)
    assert fixture.store.ledgers("t") == []
    assert [key for key, _ in fixture.store.keys.scan("")] == ["ledgers/t"]
    fixture.append(*ENTRIES[5:])
    assert fixture.ledger.position(5)[1] == 0
    assert fixture.all() == ENTRIES[5:]
    ledger = fixture.open()
    assert (ledger.start, ledger.end) == (5, 8)
    assert ledger.counts.between(5, 8)[0] == 3


def test_pending_entries_are_not_trimmed(fixture):
    fixture.append(*ENTRIES[:2])
    fixture.ledger.confirmed = 1
    assert fixture.ledger.unneeded(2, lambda segment, written_ms: True) == 0


def test_the_time_of_a_ledgers_last_entry_is_known(fixture):
    fixture.append(*ENTRIES[:3], now_ms=1000)
    fixture.append(ENTRIES[3], now_ms=5000)
    fixture.append(ENTRIES[4], now_ms=6000)
    assert [fixture.ledger.written_ms(index) for index in (0, 1)] == [1000, 6000]
    # After a restart it is known at least that it was before the next ledger began, and within a day.
    ledger = fixture.open()
    assert [ledger.written_ms(index) for index in (0, 1)] == [5000, 5000 + 86_400_000]


@pytest.mark.parametrize("reopened", [False, True])
def test_trimming_all_ledgers_keeps_the_offsets(fixture, reopened):
    fixture.append(*ENTRIES)
    if reopened:
        fixture.open()
    fixture.ledger.close_current(2000)
    fixture.ledger.forget(sum(1 for segment in fixture.ledger.segments if segment.entries))
    assert fixture.all() == []
    assert (fixture.ledger.start, fixture.ledger.end) == (8, 8)
    fixture.open()
    assert (fixture.ledger.start, fixture.ledger.end) == (8, 8)
    fixture.append(b"new")
    assert fixture.ledger.position(8)[1] == 0
    assert fixture.open().end == 9
    assert fixture.all() == [b"new"]


def test_a_ledger_is_closed_after_its_maximum_time(fixture):
    fixture.append(b"a", now_ms=0)
    fixture.append(b"b", now_ms=100_000)
    assert len(fixture.ledger.segments) == 2


def test_sizes_are_counted_from_any_offset(fixture):
    fixture.append(*[b"x" * 10] * 8)
    ledger = fixture.ledger
    assert ledger.size_bytes == 80
    assert [ledger.size_from(offset) for offset in (0, 1, 3, 7, 8)] == [80, 70, 50, 10, 0]


def test_a_read_ends_at_its_limits(fixture):
    fixture.append(*[b"x" * 10] * 3)
    read = fixture.ledger.read
    assert len(read(0, 3, entries_max=2, bytes_max=1000)) == 2
    assert len(read(0, 3, entries_max=9, bytes_max=15)) == 1
    assert len(read(0, 1, entries_max=9, bytes_max=1000)) == 1
    assert read(3, 9, entries_max=9, bytes_max=1000) == []


def test_entries_read_ahead_are_bounded_for_all_topics_together():
    cache, topics = ReadAheadCache(5000), [dict[int, bytes]() for _ in range(3)]
    for number in range(60):
        cache.add(topics[number % 3], 10 * number, [b"x" * 100] * 3)
    assert 3 < sum(map(len, topics)) <= 5000 // 100
    assert [sorted(each)[-1] for each in topics] == [572, 582, 592], "the last reads stay"
    cache.add(topics[0], 0, [b"x" * 6000])
    assert [len(each) for each in topics] == [1, 0, 0], "a larger read is kept until the next one"


def test_entries_lost_at_the_end_of_a_ledger_are_skipped(fixture):
    fixture.append(*ENTRIES)
    store: Any = fixture.store
    store._ledgers[1].entries.pop()
    ledger = fixture.open()
    assert ledger.read(5, 6, entries_max=1, bytes_max=100) == []
    assert ledger.skip_gap(5) == 6
    assert ledger.skip_gap(4) == 4
    assert ledger.skip_gap(8) == 8


def test_a_ledger_that_is_trimmed_while_it_is_read_is_no_failure(fixture, monkeypatch):
    """A waiting reader continues behind trimmed entries at once, instead of retrying."""
    fixture.append(*ENTRIES)
    waiting: list[Any] = []
    monkeypatch.setattr(fixture.store, "fetch", lambda *_, done, **__: waiting.append(done))
    told: list[Any] = []
    limits = {"bytes_max": 1000, "ahead_stop": 8, "ahead_bytes_max": 1000}
    for offset in (0, 3):
        assert fixture.ledger.fetch(offset, 8, **limits, done=told.append) is None
    fixture.ledger.forget(1)
    waiting[0]([], LedgerNotFound("trimmed"))
    assert told == [None]
    assert fixture.ledger.skip_gap(0) == 3
    waiting[1]([], LedgerNotFound("lost"))
    assert isinstance(told[1], LedgerNotFound), "the other one should be there"
