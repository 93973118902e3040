"""Cursors against a simple set model, in memory and over restarts."""

import errno
import time
from collections.abc import Iterable
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from geminga.broker.delivery import cursor as cursor_module
from geminga.broker.delivery.cursor import Cursor, CursorFull, bits_from_words, words_from_bits
from geminga.broker.delivery.cursor_writer import CursorWriter
from geminga.broker.delivery.ranges import RangeSet
from geminga.errors import StoreDamaged, StoreError, StoreStopped
from geminga.ledger.api import StoredValue
from geminga.ledger.memory import MemoryStore
from geminga.ledger.store import FileStore
from tests.support.faulty_filesystem import FaultyFileSystem, Plan, SimulatedDisk

OFFSETS = st.integers(0, 400)
END = 401


class PlainCounts:
    """Entries of 1 to 70 messages; what they hold is said by a formula."""

    def of(self, offset: int) -> tuple[int, int]:
        return offset % 70 + 1, offset % 11 * 100 + 50

    def between(self, start: int, stop: int) -> tuple[int, int]:
        return self.added_up(range(start, stop))

    def held(self, offsets: RangeSet, start: int, stop: int) -> tuple[int, int]:
        return self.added_up(offset for offset in range(start, stop) if offset in offsets)

    def added_up(self, offsets: Iterable[int]) -> tuple[int, int]:
        held = [self.of(offset) for offset in offsets]
        return sum(each[0] for each in held), sum(each[1] for each in held)


class BatchesOf(PlainCounts):
    """Every entry is a batch of ``messages`` messages of a byte each."""

    def __init__(self, messages: int = 70) -> None:
        self.messages = messages

    def of(self, offset: int) -> tuple[int, int]:
        return self.messages, self.messages

    def between(self, start: int, stop: int) -> tuple[int, int]:
        return self.messages * (stop - start), self.messages * (stop - start)

    def held(self, offsets: RangeSet, start: int, stop: int) -> tuple[int, int]:
        return self.between(0, sum(offsets.bits(at, at + 1) for at in range(start, stop)))


def new_cursor(mark: int = 0, counts: PlainCounts | None = None, **options: Any) -> Cursor:
    return Cursor(mark, counts=counts or BatchesOf(), durable=True, **options)


def load(value: StoredValue, counts: PlainCounts | None = None) -> Cursor:
    return Cursor.load(value, "c", counts or BatchesOf())


def words(bits: int) -> list[int]:
    return words_from_bits(bits) or [0]


class CursorMachine(RuleBasedStateMachine):
    """The cursor, its durable form, and a dictionary of what is open say the same at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.counts = PlainCounts()
        self.cursor = new_cursor(0, self.counts)
        self.writer = CursorWriter(self.cursor, self.store, "cursor/t")
        self.writer.write_snapshot(None)
        self.done: set[int] = set()
        self.parts: dict[int, int] = {}

    @rule(offset=OFFSETS)
    def acknowledge(self, offset: int) -> None:
        assert self.cursor.acknowledge(offset) == (offset not in self.done)
        self.done.add(offset)
        self.parts.pop(offset, None)

    @rule(start=OFFSETS, count=st.integers(0, 60))
    def acknowledge_many(self, start: int, count: int) -> None:
        for offset in range(start, min(END, start + count)):
            self.acknowledge(offset)

    @rule(start=OFFSETS, count=st.integers(0, 60))
    def acknowledge_run(self, start: int, count: int) -> None:
        offsets = range(start, min(END, start + count))
        found = self.cursor.acknowledge_run(offsets.start, offsets.stop)
        assert list(found) == [offset for offset in offsets if offset not in self.done]
        self.done.update(offsets)
        self.parts = {at: bits for at, bits in self.parts.items() if at not in offsets}

    @rule(offset=OFFSETS, still_open=st.integers(0, (1 << 70) - 1))
    def acknowledge_part(self, offset: int, still_open: int) -> None:
        found = self.cursor.acknowledge_part(offset, words(still_open), self.counts.of(offset)[0])
        if offset in self.done:
            assert found is None
            return
        full = (1 << self.counts.of(offset)[0]) - 1
        left = self.parts.get(offset, full) & still_open
        assert found == left.bit_count()
        if left and left != full:
            self.parts[offset] = left
        elif not left:
            self.parts.pop(offset, None)
            self.done.add(offset)

    @rule(offset=OFFSETS)
    def acknowledge_below(self, offset: int) -> None:
        self.cursor.acknowledge_below(offset)
        self.done |= set(range(offset))
        self.parts = {at: bits for at, bits in self.parts.items() if at >= offset}

    @rule(offset=OFFSETS, still_open=st.integers(1, (1 << 70) - 1))
    def seek(self, offset: int, still_open: int) -> None:
        self.cursor.reset(offset)
        self.cursor.acknowledge_part(offset, words(still_open), self.counts.of(offset)[0])
        self.writer.write_snapshot(None)
        self.done = set(range(offset))
        full = (1 << self.counts.of(offset)[0]) - 1
        self.parts = {offset: still_open & full} if 0 != still_open & full != full else {}
        if not still_open & full:
            self.done.add(offset)

    @rule()
    def flush(self) -> None:
        self.writer.flush()
        assert not self.cursor.changed

    @rule()
    def restart(self) -> None:
        self.writer.flush()
        value = self.store.keys.get("cursor/t")
        assert value is not None
        self.cursor = load(value, self.counts)
        self.writer = CursorWriter(self.cursor, self.store, "cursor/t")

    @rule(count=st.integers(0, 500))
    def find_behind(self, count: int) -> None:
        opened = [offset for offset in range(END) if offset not in self.done]
        found = self.cursor.behind_open(count, END)
        if count < len(opened):
            assert sum(offset < found for offset in opened) == count
        else:
            assert found == END or not count

    @rule(end=st.integers(0, END))
    def find_last(self, end: int) -> None:
        opened = [offset for offset in range(end) if offset not in self.done]
        assert self.cursor.last_open(end) == (opened[-1] if opened else -1)

    @rule()
    def doubt(self) -> None:
        """Recompute the tally, as after a start with a cursor without one."""
        self.cursor._tally = None

    @rule()
    def check_tally(self) -> None:
        opened = [offset for offset in range(END) if offset not in self.done]
        messages, size = self.counts.added_up(opened)
        for offset, bits in self.parts.items():
            messages -= self.counts.of(offset)[0] - bits.bit_count()
        assert self.cursor.open_tally(END) == (messages, size)

    @invariant()
    def same(self) -> None:
        cursor, opened = self.cursor, [n for n in range(END + 1) if n not in self.done]
        assert cursor.mark == opened[0]
        assert [n for n in range(END) if not cursor.is_acknowledged(n)] == opened[:-1]
        assert cursor.batches == self.parts
        assert cursor.backlog(END) == END - len(self.done)
        assert cursor.batches_bytes == sum(map(cursor_module._held_bytes, cursor.batches.values()))


CursorMachine.TestCase.settings = settings(stateful_step_count=25)
TestCursor = CursorMachine.TestCase


def written() -> tuple[MemoryStore, Cursor, CursorWriter]:
    """A new cursor and its writer."""
    store, cursor = MemoryStore(), new_cursor()
    return store, cursor, CursorWriter(cursor, store, "k")


def loaded(store: MemoryStore) -> Cursor:
    value = store.keys.get("k")
    assert value is not None
    return load(value)


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_a_cursor_loads_equally_from_deltas_in_any_order(random, deltas):
    cursor = new_cursor(random.randrange(50))
    base = cursor.take_snapshot()
    kept = []
    for _ in range(deltas):
        for _ in range(random.choice((1, 5, 30))):
            if random.random() < 0.2:
                cursor.acknowledge_part(random.randrange(4000), words(random.getrandbits(70)), 70)
            else:
                cursor.acknowledge(random.randrange(4000))
        if random.random() < 0.1:
            cursor.acknowledge_below(cursor.mark + random.randrange(300))
        kept.append(cursor.take_delta())
    kept += random.sample(kept, min(3, len(kept)))
    random.shuffle(kept)
    found = load(StoredValue(base, kept))
    assert (found.mark, found.holes, found.batches) == (cursor.mark, cursor.holes, cursor.batches)
    again = load(StoredValue(found.take_snapshot(), kept))
    assert (again.mark, again.holes, again.batches) == (cursor.mark, cursor.holes, cursor.batches)


def test_contiguous_acknowledgements_become_one_short_delta():
    cursor = new_cursor()
    for offset in range(1000):
        cursor.acknowledge(offset)
    assert len(cursor.take_delta()) < 8
    assert not cursor.changed


def test_loading_does_not_multiply_ranges_by_batches():
    # 20,000 of each took 10.9 s when every range was compared with every batch.
    cursor = new_cursor()
    base = cursor.take_snapshot()
    deltas = []
    for number in range(20_000):
        cursor.acknowledge_part(2 * number + 10, words((1 << 70) - 6), 70)
        cursor.acknowledge(2 * number + 11)
        if number % 5 == 4:
            deltas.append(cursor.take_delta())
    begin = time.thread_time()
    found = load(StoredValue(base, deltas))
    assert time.thread_time() - begin < 1.5
    assert (found.holes, found.batches) == (cursor.holes, cursor.batches)


def test_a_cursor_with_ten_million_holes_and_all_deltas_loads_fast():
    end = 20_000_000
    cursor = new_cursor()
    everything = ((1 << 2048) - 1) // 3  # every other entry
    cursor.holes._chunks.update(dict.fromkeys(range(1, end >> 10), everything & ((1 << 1024) - 1)))
    cursor.holes._count = 512 * ((end >> 10) - 1)
    snapshot = cursor.take_snapshot()
    assert len(snapshot) <= 2 * len(cursor.holes)
    random = Random(7)
    deltas = []
    while not cursor.wants_snapshot:
        for _ in range(16):
            cursor.acknowledge(random.randrange(end))
        deltas.append(cursor.take_delta())
    begin = time.thread_time()
    found = load(StoredValue(snapshot, deltas))
    found.clamp(0, end)
    assert time.thread_time() - begin < 0.5  # 0.04 s on an idle core; 3.2 s before
    assert (found.mark, found.holes) == (cursor.mark, cursor.holes)


def test_cumulative_acknowledgements_do_not_visit_every_batch():
    cursor = new_cursor()
    for offset in range(100_000, 140_000):
        cursor.acknowledge_part(offset, [1], 70)
    begin = time.thread_time()
    for offset in range(1, 20_000):
        cursor.acknowledge_below(offset)
    assert time.thread_time() - begin < 1.5  # 40 s when each looked at all 40,000 batches
    cursor.acknowledge_below(120_000)
    assert (len(cursor.batches), min(cursor.batches)) == (20_000, 120_000)


def test_an_entry_of_a_single_message_stores_no_ack_set():
    cursor = new_cursor(0, BatchesOf(1))
    assert cursor.acknowledge_part(3, [-1], 1) == 1
    assert not cursor.batches
    assert not cursor.changed
    assert cursor.acknowledge_part(3, [-2], 1) == 0
    assert cursor.is_acknowledged(3)


def test_partly_acknowledged_batches_have_a_limit(monkeypatch):
    monkeypatch.setattr(cursor_module, "PARTIAL_BATCHES_BYTES_MAX", 1000)
    cursor = new_cursor()
    for offset in range(5):
        cursor.acknowledge_part(offset, words((1 << 70) - 2), 70)
    with pytest.raises(CursorFull, match="too many partly acknowledged batches"):
        cursor.acknowledge_part(5, [1], 70)
    assert 5 not in cursor.batches
    assert cursor.acknowledge_part(4, words((1 << 70) - 4), 70) == 68
    cursor.acknowledge(0)
    assert cursor.acknowledge_part(5, [1], 70) == 1


def test_a_tally_of_another_state_is_ignored():
    cursor = new_cursor()
    base = cursor.take_snapshot()
    cursor.acknowledge(3)
    first = cursor.take_delta()
    cursor.acknowledge(5)
    second = cursor.take_delta()
    assert load(StoredValue(base, [first, second])).open_tally(10) == (8 * 70, 8 * 70)
    # A delta is lost: the tally of the one behind it says too much.
    lost = load(StoredValue(base, [second]))
    assert lost.open_tally(10) == (9 * 70, 9 * 70)


@pytest.mark.parametrize("limit", ["SNAPSHOT_AFTER_DELTAS", "SNAPSHOT_AFTER_RANGES"])
def test_a_snapshot_replaces_deltas_that_outgrew_it(monkeypatch, limit):
    monkeypatch.setattr(cursor_module, limit, 10)
    store, cursor, writer = written()
    writer.write_snapshot(None)
    for offset in range(0, 100, 2):
        cursor.acknowledge(offset)
        writer.flush()
        value = store.keys.get("k")
        assert len(value.deltas) <= 10
    assert loaded(store).holes == cursor.holes


def test_answers_wait_for_earlier_acknowledgements():
    store, cursor, writer = written()
    said: list[str] = []

    def say(text: str) -> object:
        return lambda error: said.append(text)

    writer.write_snapshot(say("created"))
    writer.when_durable(say("after creation"))
    cursor.acknowledge(0)
    writer.when_durable(say("acknowledged"))
    writer.flush()
    writer.when_durable(say("nothing new"))
    assert not said
    store.poll()
    assert said == ["created", "after creation", "acknowledged", "nothing new"]
    writer.when_durable(say("nothing to wait for"))
    assert said[-1] == "nothing to wait for"


def test_a_cursor_loaded_while_its_last_write_is_pending_answers_after_that_write():
    store, cursor, before = written()
    before.write_snapshot(None)
    store.poll()
    cursor.acknowledge(2)
    before.flush()
    after = loaded(store)
    assert after.is_acknowledged(2)
    answers: list[StoreError | None] = []
    CursorWriter(after, store, "k").when_durable(answers.append)
    assert not answers, "the acknowledgement is not stored yet"
    store.poll()
    assert answers == [None]
    assert loaded(store).is_acknowledged(2)


def test_a_store_that_stopped_fails_the_answer():
    store, cursor, writer = written()
    cursor.acknowledge(1)
    errors: list[StoreError | None] = []
    writer.when_durable(errors.append)
    store.close()
    writer.flush()
    assert [type(error) for error in errors] == [StoreStopped]
    writer.write_snapshot(errors.append)
    assert [type(error) for error in errors] == [StoreStopped] * 2


@pytest.mark.parametrize("when", ["writing", "before"])
def test_a_repeated_acknowledgement_fails_as_the_first_one_whose_write_failed(when):
    filesystem = FaultyFileSystem(SimulatedDisk())
    store = FileStore.open("/data", filesystem=filesystem, threads=False)
    cursor = new_cursor()
    writer = CursorWriter(cursor, store, "k")
    writer.write_snapshot(None)
    store.poll()
    filesystem.plan = Plan(errors=dict.fromkeys(range(1, 10_000), errno.EIO))
    if when == "before":
        store.keys.put("another", b"")
        store.poll()
    for _ in range(2):
        errors: list[StoreError | None] = []
        cursor.acknowledge(1)
        writer.when_durable(errors.append)
        writer.flush()
        store.poll()
        assert isinstance(errors[0], StoreError)


def test_a_deleted_cursor_writes_nothing_any_more():
    store, cursor, writer = written()
    writer.write_snapshot(None)
    cursor.acknowledge(1)
    answered: list[object] = []
    writer.when_durable(answered.append)
    writer.delete(None)
    assert answered == [None]
    writer.flush()
    writer.write_snapshot(None)
    assert store.keys.get("k") is None


def test_a_reader_cursor_writes_nothing():
    store = MemoryStore()
    cursor = Cursor(0, counts=BatchesOf(), durable=False)
    writer = CursorWriter(cursor, store, "k")
    cursor.acknowledge(0)
    assert not cursor.changed
    answered: list[object] = []
    writer.when_durable(answered.append)
    writer.write_snapshot(answered.append)
    writer.flush()
    writer.delete(answered.append)
    assert answered == [None, None, None]
    assert store.keys.get("k") is None


@pytest.mark.parametrize(
    ("mark", "holes", "start", "end", "expected"),
    [
        (5, [8], 0, 10, (5, [8])),
        (5, [8], 7, 10, (7, [8])),
        (5, [8], 8, 10, (9, [])),
        (5, [8, 12], 0, 10, (5, [8])),
        (50, [60], 0, 10, (10, [])),
    ],
)
def test_a_loaded_cursor_is_limited_to_existing_entries(mark, holes, start, end, expected):
    cursor = new_cursor(mark)
    for hole in holes:
        cursor.acknowledge(hole)
    cursor.batches[end + 1] = 1
    cursor.clamp(start, end)
    assert (cursor.mark, [at for at, _ in cursor.holes.ranges()]) == expected
    assert not cursor.batches


def test_damaged_cursors_are_named():
    good = new_cursor(7).take_snapshot()
    bases = (b"", b"\x09" + good[1:], good[:-1], good.replace(b"{}", b"{["))
    for base, deltas in (*((base, []) for base in bases), (good, [b"\x63"]), (good, [b"\x01\x05"])):
        with pytest.raises(StoreDamaged, match="cursor of s"):
            Cursor.load(StoredValue(base, deltas), "cursor of s", BatchesOf())


def test_bit_sets_equal_those_of_java():
    # Recorded: 5 messages with #1 acknowledged, then #3; 70 messages acknowledged up to #65.
    assert bits_from_words([29], 5) == 0b11101
    assert words_from_bits(0b10101) == [21]
    assert words_from_bits(((1 << 70) - 1) & ~((1 << 66) - 1)) == [0, 60]
    assert bits_from_words([0, 60], 70).bit_count() == 4
    assert words_from_bits(1 << 63) == [-(1 << 63)]
    assert bits_from_words([-(1 << 63)], 64) == 1 << 63


class FarCounts(BatchesOf):
    """Entry counts that cannot be read now and then: storage is unreachable, or the disk fails."""

    is_away = False

    def _ask(self) -> None:
        if self.is_away:
            raise StoreError("the place is away")

    def of(self, offset: int) -> tuple[int, int]:
        self._ask()
        return super().of(offset)

    def between(self, start: int, stop: int) -> tuple[int, int]:
        self._ask()
        return super().between(start, stop)

    def held(self, offsets: RangeSet, start: int, stop: int) -> tuple[int, int]:
        self._ask()
        return super().held(offsets, start, stop)


def test_acknowledgements_hold_even_if_entries_cannot_be_counted():
    for seed in range(50):
        random, counts, store = Random(seed), FarCounts(), MemoryStore()
        cursor, plain = (Cursor(0, counts=each, durable=True) for each in (counts, BatchesOf()))
        writer = CursorWriter(cursor, store, "k")
        writer.write_snapshot(None)
        for _ in range(80):
            counts.is_away = random.random() < 0.5
            offset, kind, bits = random.randrange(120), random.random(), random.getrandbits(70)
            for each in (cursor, plain):
                if kind < 0.1:
                    each.acknowledge_below(offset // 3)
                elif kind < 0.4:
                    each.acknowledge_part(offset, words_from_bits(bits), 70)
                else:
                    each.acknowledge(offset)
            writer.flush()
        counts.is_away = False
        for found in (cursor, loaded(store)):
            assert (found.mark, found.holes, found.batches) == (plain.mark, plain.holes, plain.batches)
            assert found.open_tally(END) == plain.open_tally(END)


def test_the_mark_is_stored_even_if_entries_cannot_be_counted():
    for is_behind, is_away in product((False, True), repeat=2):
        counts, store = FarCounts(), MemoryStore()
        cursor = new_cursor(7, counts)
        cursor.is_behind = is_behind
        counts.is_away = is_away
        cursor.acknowledge(12)
        CursorWriter(cursor, store, "k").write_snapshot(None)
        counts.is_away = False
        found = loaded(store)
        assert found.is_behind == is_behind
        assert found.open_tally(END) == cursor.open_tally(END)
