"""Index of delivery times against a plain model, with lost writes: entries are due once, never early."""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.broker.delivery import delivery_times
from geminga.broker.delivery.delayed import DelayedEntries
from geminga.broker.delivery.delivery_times import DeliveryTimes
from geminga.broker.delivery.ranges import RangeSet, take_lowest
from geminga.errors import StoreBusy, StoreStopped
from geminga.ledger.api import PrefetchRequest
from geminga.ledger.memory import MemoryStore
from geminga.wire.varint import varint

CHOICES = {
    "RUN_ENTRIES": (4, 20, 2_048), "SLICE_ENTRIES": (1, 3, 128), "DUE_AT_ONCE_MAX": (1, 7, 2_000),
    "READ_COST": (1, 100),
}  # fmt: skip


class Clock:
    """Scheduler of one timer, with the wall clock beside its own."""

    def __init__(self) -> None:
        self.now, self.now_ms = 0.0, 1_700_000_000_000
        self.timer: Any = None
        self.on_disk: list[tuple[Callable[[Any], None], Any]] = []
        """Callbacks of reads from the disk, and their results."""

    def guarded(self, kind: str, about: object, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        return callback

    def at(self, when: float, callback: Callable[[], None], about: object) -> Any:
        self.timer = SimpleNamespace(when=when, callback=callback, cancel=lambda: None)
        return self.timer

    def advance(self, milliseconds: int) -> None:
        end = self.now + milliseconds / 1000
        while self.on_disk or (self.timer is not None and self.timer.when <= end + 1e-6):
            if self.on_disk:
                done, result = self.on_disk.pop()
                done(result)
                continue
            timer, self.timer = self.timer, None
            passed = max(0.0, timer.when - self.now)
            self.now += passed
            self.now_ms += round(passed * 1000)
            timer.callback()
        self.now_ms += round((end - self.now) * 1000)
        self.now = end


class Entries:
    """Ledger and cursor: times of all entries, and the delivered ones, which are acknowledged at once."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.start = self.mark = 0
        self.holes = RangeSet()

    def position(self, offset: int) -> tuple[int, int]:
        return 7, offset

    def offset(self, ledger_id: int, entry_id: int) -> int | None:
        return entry_id if ledger_id == 7 and self.start <= entry_id < len(self.times) else None

    def next_open(self, offset: int) -> int:
        return self.holes.next_missing(max(offset, self.mark))

    def acknowledge(self, offset: int) -> None:
        assert self.holes.add(offset), "delivered twice"


class Keys:
    """Store of keys whose writes are lost from one of them on."""

    def __init__(self, kept: int = 1 << 60) -> None:
        self.keys = self
        self._keys = MemoryStore().keys
        self.get, self.names, self.scan = self._keys.get, self._keys.names, self._keys.scan
        self.kept = kept
        self.writes: list[tuple[str, bytes | None]] = []

    def bring(self, wanted: PrefetchRequest, done: Callable[[Any], None]) -> bool:
        return True

    def put(self, key: str, value: bytes | None) -> None:
        self.writes.append((key, value))
        if value is None:
            self._keys.delete(key)
        else:
            self._keys.put(key, value)

    def delete(self, key: str) -> None:
        self.put(key, None)

    def after_power_loss(self) -> "Keys":
        found = Keys()
        for key, value in self.writes[: self.kept]:
            found.put(key, value)
        return found


class Reader:
    """Dispatcher: reads entries in order, and delivers those that are due."""

    def __init__(self, clock: Clock, keys: Keys, entries: Entries) -> None:
        clock.timer = None
        self.clock, self.entries, self.reads = clock, entries, 0
        self.index = DeliveryTimes(clock, keys, "t", entries)
        for _ in self.index.load():
            pass
        self.delayed = DelayedEntries(self.index, entries, self.take, are_delayed=True)
        self.read_offset = 0

    def take(self) -> None:
        for offset in take_lowest(self.delayed.due, 1_000_000):
            self.deliver(offset)

    def deliver(self, offset: int) -> None:
        self.reads += 1
        if offset < self.entries.start or offset in self.entries.holes:
            return
        if self.entries.times[offset] > self.clock.now_ms:
            self.delayed.add(offset, self.entries.times[offset])
        else:
            self.entries.acknowledge(offset)

    def read(self) -> None:
        while True:
            at = self.delayed.unknown_from(self.entries.next_open(self.read_offset), self.entries)
            if at >= len(self.entries.times):
                self.read_offset = len(self.entries.times)
                return
            self.deliver(at)
            self.read_offset = at + 1


def check(reader: Reader) -> None:
    """Check that what is due was delivered, and that all others wait."""
    entries, now_ms = reader.entries, reader.clock.now_ms
    opened = [at for at in range(entries.start, len(entries.times)) if at not in entries.holes]
    assert all(entries.times[at] > now_ms for at in opened)
    assert sorted(at for low, high in reader.delayed.waiting.ranges() for at in range(low, high)) == opened
    assert not reader.delayed.due


def act(choice: random.Random, reader: Reader) -> None:
    clock, entries = reader.clock, reader.entries
    action = choice.random()
    if action < 0.6:
        for _ in range(choice.choice((1, 10))):
            delay = choice.choice((0, 1, 50, 300, 70_000, 3_600_000)) * choice.randrange(1, 4)
            entries.times.append(clock.now_ms + delay)
        reader.read()
    elif action < 0.7 and entries.times:
        at = choice.randrange(len(entries.times))
        if at not in entries.holes:
            entries.acknowledge(at)
            reader.delayed.discard([at])
    elif action < 0.75 and entries.times:
        below = choice.randrange(entries.start, len(entries.times))
        entries.holes.add_range(entries.start, below)
        entries.start = below
        reader.delayed.skip_below(below)
        reader.index.trimmed()
    elif action < 0.8:
        clock.now_ms += choice.choice((-100_000, 100_000))
        clock.advance(12_000)
    else:
        clock.advance(choice.choice((1, 40, 5_000, 100_000)))


@pytest.fixture
def draw_limits(monkeypatch):
    def draw(choice: random.Random) -> None:
        for name, values in CHOICES.items():
            monkeypatch.setattr(delivery_times, name, choice.choice(values))

    return draw


def finish(reader: Reader) -> None:
    reader.clock.advance(40_000_000)
    assert len(reader.entries.holes) == len(reader.entries.times)
    assert (len(reader.index.offsets), reader.index.next_ms) == (0, 0)


@pytest.mark.rotating(16)
@pytest.mark.parametrize("seed", range(60))
def test_entries_are_due_once_and_never_early_over_restarts_and_damage(draw_limits, monkeypatch, seed):
    choice = random.Random(seed)
    draw_limits(choice)
    entries, keys, clock = Entries(), Keys(), Clock()
    if seed % 2:
        errors = None, StoreStopped("the disk is gone")
        monkeypatch.setattr(
            Keys, "bring", lambda keys, wanted, done: clock.on_disk.append((done, choice.choice(errors)))
        )
    reader = Reader(clock, keys, entries)
    for _ in range(200):
        happens = choice.random()
        if happens < 0.03:
            reader.index.leave_memory()
            reader = Reader(reader.clock, keys, entries)
            reader.clock.advance(0)
            reader.read()
        elif happens < 0.05:
            keys.kept = choice.randrange(len(keys.writes) + 1)
            keys = keys.after_power_loss()
            reader = Reader(reader.clock, keys, entries)
            reader.clock.advance(0)
            reader.read()
        elif happens < 0.08 and (names := list(keys.names("delays/"))):
            key = choice.choice(names)
            value = choice.choice([None, b"", b"\x05", keys.get(choice.choice(names)).base])
            keys.put(key, value)
        else:
            act(choice, reader)
        check(reader)
    finish(reader)
    if len(keys.writes) < 2:
        assert not list(keys.names("delays/"))


def test_a_power_loss_after_any_write_loses_and_repeats_nothing(draw_limits):
    kept, writes = 0, 1
    while kept <= writes:
        choice = random.Random(5)
        draw_limits(choice)
        for name, value in (("RUN", 8), ("SLICE", 3)):
            setattr(delivery_times, f"{name}_ENTRIES", value)
        entries, keys = Entries(), Keys(kept)
        reader = Reader(Clock(), keys, entries)
        for _ in range(120):
            act(choice, reader)
        writes = len(keys.writes)
        reader = Reader(reader.clock, keys.after_power_loss(), entries)
        reader.clock.advance(0)
        reader.read()
        check(reader)
        for _ in range(20):
            act(choice, reader)
            check(reader)
        finish(reader)
        kept += 1
    assert writes > 50


def delays(choice: random.Random, count: int, now_ms: int) -> Iterator[tuple[int, int]]:
    for offset in range(count):
        yield offset, now_ms + choice.randrange(1, 36_000_000)


def test_delayed_entries_take_few_bytes_each():
    clock, entries, keys = Clock(), Entries(), Keys()
    entries.times = [0] * 50_000
    index = DeliveryTimes(clock, keys, "t", entries)
    delayed = DelayedEntries(index, entries, lambda: None, are_delayed=True)
    keys.put = lambda key, value: None
    for number in range(1 << 14):  # the tables fill as they are used
        varint(number << 14 | number)
    tracemalloc.start()
    try:
        for offset, at_ms in delays(random.Random(1), 50_000, clock.now_ms):
            delayed.add(offset, at_ms)
        assert tracemalloc.get_traced_memory()[0] < 4 * 50_000
    finally:
        tracemalloc.stop()


def test_times_that_were_lost_cost_only_the_entries_of_their_run(monkeypatch):
    monkeypatch.setattr(delivery_times, "RUN_ENTRIES", 2_000)
    entries, keys, clock = Entries(), Keys(), Clock()
    entries.times = [clock.now_ms + 60_000 * (1 + offset // 4_000) for offset in range(40_000)]
    index = DeliveryTimes(clock, keys, "t", entries)
    delayed = DelayedEntries(index, entries, lambda: None, are_delayed=True)
    for offset in range(0, 40_000, 2):
        delayed.add(offset, entries.times[offset])
    keys.delete(delivery_times.times_key("t", 0))
    seen, ranges = [], RangeSet.ranges
    monkeypatch.setattr(RangeSet, "ranges", lambda *a, **k: (seen.append(0) or it for it in ranges(*a, **k)))
    clock.advance(60_000)
    assert (len(delayed.due), delayed.due.end, len(seen)) == (2_000, 3_999, 2_001)


def test_times_that_cannot_be_read_now_are_kept_and_read_later(monkeypatch):
    monkeypatch.setattr(delivery_times, "RUN_ENTRIES", 8)
    entries, keys, clock = Entries(), Keys(), Clock()
    entries.times = [clock.now_ms + 1_000 * number for number in range(1, 17)]
    reader = Reader(clock, keys, entries)
    reader.read()
    stored, get, tries = list(keys.names("delays/")), keys.get, []

    def is_busy(key: str) -> None:
        tries.append(key)
        raise StoreBusy("the disk does not answer")

    keys.get = is_busy
    clock.advance(5_000)
    assert (len(entries.holes), len(tries), list(keys.names("delays/"))) == (0, 5, stored)
    keys.get = get
    clock.advance(1_000)
    assert len(entries.holes) == 6
    finish(reader)
    assert reader.reads == 32


def test_runs_are_read_from_the_disk_on_another_thread_and_some_at_once(monkeypatch):
    monkeypatch.setattr(delivery_times, "BRING_MAX", 20)
    monkeypatch.setattr(delivery_times, "RUN_ENTRIES", 8)
    entries, keys, clock = Entries(), Keys(), Clock()
    entries.times = [clock.now_ms + 1_000 for _ in range(8 * 50)]
    asked: list[list[str]] = []

    def bring(wanted: PrefetchRequest, done: Callable[[Any], None]) -> bool:
        asked.append([first for first, _ in wanted.keys])
        waiting.append(done)
        return False

    waiting: list[Callable[[Any], None]] = []
    keys.bring = bring
    reader = Reader(clock, keys, entries)
    reader.read()
    clock.advance(20_000)
    assert (len(entries.holes), len(asked), clock.timer) == (0, 1, None)  # the thread has not answered
    reader.index.add(0, clock.now_ms)
    while waiting:
        waiting.pop()(None)
        clock.advance(1)
    assert len(entries.holes) == 8 * 50
    assert list(map(len, asked)) == [20, 20, 10]
    assert [key for keys in asked for key in keys] == [delivery_times.times_key("t", at) for at in range(50)]


def test_a_topic_that_has_left_memory_does_nothing_when_runs_arrive_from_the_disk(monkeypatch):
    monkeypatch.setattr(delivery_times, "RUN_ENTRIES", 8)
    entries, keys, clock, waiting = Entries(), Keys(), Clock(), []
    entries.times = [clock.now_ms + 1_000] * 8
    keys.bring = lambda wanted, done: waiting.append(done)
    reader = Reader(clock, keys, entries)
    reader.read()
    clock.advance(1_000)
    stored = list(keys.names("delays/"))
    reader.index.leave_memory()
    waiting.pop()(None)
    clock.advance(60_000)
    assert (clock.timer, reader.delayed.due.end, list(keys.names("delays/"))) == (None, 0, stored)


def test_a_store_that_has_stopped_is_tried_seldom():
    entries, keys, tries = Entries(), Keys(), []
    clock = Clock()
    index = DeliveryTimes(clock, keys, "t", entries)
    put = keys.put

    def refuse(key: str, value: bytes) -> None:
        tries.append(key)
        raise StoreStopped("the disk is gone")

    keys.put = refuse
    count = 20 * delivery_times.RUN_ENTRIES
    entries.times = [clock.now_ms + 60_000] * 2 * count
    for offset in range(count):
        index.add(offset, entries.times[offset])
    assert len(tries) == 5
    keys.put = put
    for offset in range(count, 2 * count):
        index.add(offset, entries.times[offset])
    reader = Reader(clock, keys, entries)
    reader.read()
    assert (len(reader.delayed.waiting), reader.reads) == (2 * count, 0)


def test_entries_that_are_due_at_one_moment_are_read_once_and_take_few_bytes():
    clock, entries, keys = Clock(), Entries(), Keys()
    count = 20 * delivery_times.RUN_ENTRIES
    index = DeliveryTimes(clock, keys, "t", entries)
    delayed = DelayedEntries(index, entries, lambda: None, are_delayed=True)
    for offset in range(count):
        delayed.add(offset, clock.now_ms + 60_000)
    read, steps, get = [], [], keys.get
    keys.get = lambda key: read.append(key) or get(key)
    clock.now_ms += 60_000
    tracemalloc.start()
    try:
        while delayed.waiting:
            before, timer = len(delayed.due), clock.timer
            clock.timer = None
            timer.callback()
            steps.append(len(delayed.due) - before)
        assert tracemalloc.get_traced_memory()[1] < 8 * count
    finally:
        tracemalloc.stop()
    assert (len(read), max(steps)) == (20, delivery_times.DUE_AT_ONCE_MAX)
    assert take_lowest(delayed.due, count) == list(range(count))


def test_a_restart_reads_one_summary_for_each_run():
    clock, entries, keys = Clock(), Entries(), Keys()
    count = 10 * delivery_times.RUN_ENTRIES
    entries.times = [at_ms for _, at_ms in delays(random.Random(1), count, clock.now_ms)]
    reader = Reader(clock, keys, entries)
    reader.read()
    got: list[str] = []
    get = keys.get
    keys.get = lambda key: got.append(key) or get(key)
    reader = Reader(clock, keys, entries)
    reader.read()
    assert (len(reader.delayed.waiting), reader.reads, got) == (count, 0, [])
