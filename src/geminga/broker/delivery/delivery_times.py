"""Times at which a topic's delayed entries are due: the newest in memory, the others in the store.

The index is shared by all subscriptions, because the time of an entry never changes. New entries are kept in
memory. `RUN_ENTRIES` of them become a *run*: their times and offsets in the order of the times, under one key
of the store, and a summary with the set of their offsets under another. In memory a run is a few numbers, and
its next `SLICE_ENTRIES` entries once the first of them is due. A topic that is loaded reads the summaries.

The entries decide, not the index: dispatchers check the time of each entry before they send it, and find and
add entries that the index does not have. So nothing has to be stored together with an entry, and damaged runs
are dropped. docs/decisions/delayed-messages.md has the measurements.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Final, Protocol

from geminga.broker.delivery.ranges import RangeSet, add_set
from geminga.broker.entries.columns import IntegerColumn
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.entries.records import RecordReader, put_varint
from geminga.broker.runtime.scheduler import Scheduler, Timer
from geminga.errors import StoreBusy, StoreDamaged, StoreError
from geminga.ledger.api import EntryStore, PrefetchRequest, StoredValue

log = logging.getLogger("geminga.broker")

RUN_ENTRIES = 2_048
"""Entries of a run in the store: as many are read again after a restart, at most."""
SLICE_ENTRIES = 128
"""Entries of a run that are in memory together: in the order of their times, as soon as one is due."""
DUE_AT_ONCE_MAX = 2_000
"""Entries that become due in one run of the timer, each counted for every subscription that waits; the next
ones wait for the next run, after other work."""
READ_COST = 100
"""Entries that reading a run counts as, in one run of the timer."""
BRING_MAX = 100
"""Runs that are read from the disk together, on another thread."""
READ_RETRY_SECONDS = 1.0
"""Wait before a run is read again that could not be read because the disk does not answer."""
LOOK_SECONDS = 10.0
"""Longest interval of checks of the wall clock: it may be set, or the machine may have been suspended."""
_OFFSET_BITS: Final = 47
_OFFSET: Final = (1 << _OFFSET_BITS) - 1


class TimesListener(Protocol):
    """Delayed entries of a subscription (`delayed.DelayedEntries`)."""

    def became_due(self, offsets: Sequence[int]) -> None:
        """Take entries whose time has come, or was lost; perhaps not of this subscription."""

    def skip_below(self, offset: int) -> None:
        """Drop the entries below ``offset``, which were deleted."""


class _Run:
    """Entries in the store, in the order of their times. The last ``left`` of them are still to be taken.

    The next of them, as far as they are in memory, are ``times`` and ``offsets`` from ``taken`` on; ``times``
    has the time of the entry behind them, too. If they are not in memory, ``is_at_hand`` says whether they
    can be read without waiting for the disk.
    """

    __slots__ = ("is_at_hand", "last", "left", "next_ms", "number", "offsets", "start", "taken", "times")

    def __init__(self, number: int, start: int, last: int, left: int, next_ms: int) -> None:
        self.number = number
        self.start = start
        self.last = last
        self.left = left
        self.next_ms = next_ms
        self.show((), ())

    def __lt__(self, other: _Run) -> bool:
        """Return whether the next entry comes first: entries of one time do in the order of the topic."""
        return (self.next_ms, self.start) < (other.next_ms, other.start)

    def show(self, times: Sequence[int], offsets: Sequence[int]) -> None:
        """Set the entries that are in memory."""
        self.times, self.offsets = times, offsets
        self.taken, self.is_at_hand = 0, False

    def take(self, now_ms: int, entries_max: int) -> list[int]:
        """Take entries that are due and in memory; return their offsets."""
        stop = min(bisect_right(self.times, now_ms, self.taken), self.taken + entries_max, len(self.offsets))
        found = list(self.offsets[self.taken : stop])
        self.taken = stop
        self.left -= len(found)
        if self.left:
            self.next_ms = self.times[stop]
        if stop == len(self.offsets):
            self.show((), ())
        return found


class DeliveryTimes:
    """Index of a topic. ``offsets`` are the delayed entries, of all subscriptions, that are not due yet."""

    __slots__ = (
        "_bring", "_is_reading", "_keys", "_ledger", "_listeners", "_newest", "_next_number", "_not_before",
        "_owner", "_runs", "_scheduler", "_store_from", "_timer", "offsets",
    )  # fmt: skip

    def __init__(self, scheduler: Scheduler, store: EntryStore, owner: str, ledger: ManagedLedger) -> None:
        """The topic, ``owner``, runs `load` before the index is used."""
        self._scheduler = scheduler
        self._keys, self._bring = store.keys, store.bring
        self._owner = owner
        self._ledger = ledger
        self.offsets = RangeSet()
        self._newest: list[int] = []
        """Heap of the entries that are in memory alone: time and offset in one number."""
        self._store_from = 0
        """After the store has failed, the entries in memory from which it is tried again."""
        self._runs: list[_Run] = []
        """Heap of the runs in the store."""
        self._next_number = 0
        self._listeners: dict[TimesListener, None] = {}
        self._timer: Timer | None = None
        self._is_reading = False
        """Whether runs are being read from the disk; the timer is set when they are at hand."""
        self._not_before = 0.0
        """Time of the next try after a run could not be read."""

    # --- runs in the store ---
    def load(self) -> Iterator[None]:
        """Read the summaries of the runs, one a step."""
        prefix = summary_prefix(self._owner)
        for key, value in self._keys.scan(prefix):
            number = int(key[len(prefix) :])
            self._next_number = max(self._next_number, number + 1)
            run = None
            try:
                run = self._read_summary(number, value)
            except StoreDamaged as error:
                log.error("%s; its entries are read again", error)
            if run is None:
                self._delete_keys(number)
            else:
                heapq.heappush(self._runs, run)
            yield

    def _read_summary(self, number: int, value: StoredValue) -> _Run | None:
        """Return a run whose entries are added to ``offsets``; None if all are due or gone."""
        reader = RecordReader(value.base, f"delivery times of {self._owner}, run {number}")
        if value.lost is not None:
            raise reader.damaged("a write was lost")
        entries, first_ms, last_ms = reader.varint(), reader.varint(), reader.varint()
        ledger_id, entry_id = reader.varint(), reader.varint()
        offsets = RangeSet.decode(reader)
        start, last = next(offsets.ranges(1), (0, 0))[0], offsets.end - 1
        # Entries whose time has come need no index: they are read from the log as all others. Other entries
        # are at these offsets if a broker without this index deleted the topic, and it was created again.
        if last_ms <= self._scheduler.now_ms or self._ledger.offset(ledger_id, entry_id) != last:
            return None
        if not 0 < len(offsets) <= entries:
            raise reader.damaged(f"{len(offsets)} offsets of {entries} entries")
        add_set(self.offsets, offsets)
        return _Run(number, start, last, entries, first_ms)

    def _store(self) -> None:
        """Move the entries in memory to a run in the store."""
        start, newest = self._ledger.start, sorted(self._newest)
        kept = [each for each in newest if each & _OFFSET >= start]
        if kept:
            try:
                run = self._put([each >> _OFFSET_BITS for each in kept], [each & _OFFSET for each in kept])
            except StoreError as error:
                log.warning("delivery times of %s were not stored: %s", self._owner, error)
                self._store_from = 2 * len(kept)
                return
            heapq.heappush(self._runs, run)
        self._newest, self._store_from = [], 0

    def _put(self, times: list[int], offsets: list[int]) -> _Run:
        there, record, summary, number = RangeSet(), bytearray(), bytearray(), self._next_number
        there.add_all(offsets)
        last = there.end - 1
        put_varint(record, last)
        IntegerColumn(times).encode(record)
        IntegerColumn(offsets).encode(record)
        for each in (len(times), times[0], times[-1], *self._ledger.position(last)):
            put_varint(summary, each)
        there.encode(summary)
        # In this order a kill in between leaves times without a summary, which the next run replaces.
        self._keys.put(times_key(self._owner, number), bytes(record))
        self._keys.put(f"{summary_prefix(self._owner)}{number}", bytes(summary))
        self._next_number += 1
        return _Run(number, min(offsets), last, len(times), times[0])

    def _read(self, run: _Run, now_ms: int) -> None:
        """Read the next entries of a run, all that are due among them. Raises `StoreError`."""
        key = times_key(self._owner, run.number)
        value = self._keys.get(key)
        if value is None or value.lost is not None:
            raise StoreDamaged(f"{key}: lost to damage")
        reader = RecordReader(value.base, key)
        last, times, offsets = reader.varint(), IntegerColumn.decode(reader), IntegerColumn.decode(reader)
        start = len(times) - run.left
        is_this = last == run.last and len(times) == len(offsets)
        if not is_this or start < 0 or times[start] != run.next_ms:
            raise reader.damaged("other times than in the summary")
        stop = min(max(bisect_right(times, now_ms, start), start + SLICE_ENTRIES), len(times))
        behind = min(stop + 1, len(times))
        run.show(array("Q", times.part(start, behind)), array("Q", offsets.part(start, stop)))

    def _delete_keys(self, number: int) -> None:
        # In this order a kill in between leaves a summary, whose run is found to be damaged.
        # A store that has stopped still has the run at the next start: its entries are known to be due.
        with contextlib.suppress(StoreError):
            self._keys.delete(times_key(self._owner, number))
            self._keys.delete(f"{summary_prefix(self._owner)}{number}")

    # --- entries ---
    def add(self, offset: int, at_ms: int) -> None:
        """Add an entry that is not due, unless it is there."""
        if self.offsets.add(offset):
            newest, entry = self._newest, at_ms << _OFFSET_BITS | offset
            heapq.heappush(newest, entry)
            if newest[0] == entry:
                self._arm()
            if len(newest) >= max(RUN_ENTRIES, self._store_from):
                self._store()

    @property
    def next_ms(self) -> int:
        """Time of the next entry, in milliseconds since 1970; 0 without any. It may be that of an entry that
        was acknowledged before its time."""
        times = [run.next_ms for run in self._runs[:1]] + [each >> _OFFSET_BITS for each in self._newest[:1]]
        return min(times, default=0)

    def trimmed(self) -> None:
        """Drop the entries that were deleted."""
        start = self._ledger.start
        self.offsets.remove_range(0, start)
        for listener in self._listeners:
            listener.skip_below(start)
        gone = [run for run in self._runs if run.last < start]
        if gone:
            self._runs = [run for run in self._runs if run.last >= start]
            heapq.heapify(self._runs)
            for run in gone:
                self._delete_keys(run.number)

    # --- those who wait ---
    def attach(self, listener: TimesListener) -> None:
        self._listeners[listener] = None
        self._arm()

    def detach(self, listener: TimesListener) -> None:
        self._listeners.pop(listener, None)

    def _arm(self) -> None:
        timer, scheduler, next_ms = self._timer, self._scheduler, self.next_ms
        if not next_ms or self._is_reading:
            return
        when = scheduler.now + min(max(0.0, (next_ms - scheduler.now_ms) / 1000), LOOK_SECONDS)
        when = max(when, self._not_before)
        if timer is not None and timer.callback is not None:
            if timer.when <= when:
                return
            timer.cancel()
        self._timer = scheduler.at(when, self._run_timer, self._owner)

    def _run_timer(self) -> None:
        self._timer = None
        try:
            due = self._take_due(self._scheduler.now_ms)
        finally:
            self._arm()
        for offset in due:
            self.offsets.remove(offset)
        if due:
            for listener in list(self._listeners):
                listener.became_due(due)

    def _take_due(self, now_ms: int) -> list[int]:
        """Return the offsets of entries that are due, and of those whose times were lost: dispatchers read
        them, and add them again."""
        due: list[int] = []
        newest, runs = self._newest, self._runs
        budget = max(1, DUE_AT_ONCE_MAX // max(1, len(self._listeners)))
        while budget > 0:
            run = runs[0] if runs else None
            if newest and (run is None or newest[0] < run.next_ms << _OFFSET_BITS | run.start):
                if newest[0] >> _OFFSET_BITS > now_ms:
                    break
                due.append(heapq.heappop(newest) & _OFFSET)
                budget -= 1
                continue
            if run is None or run.next_ms > now_ms:
                break
            if not run.offsets:
                if not run.is_at_hand:
                    self._bring_due(now_ms)
                if not run.is_at_hand:
                    break
                budget -= READ_COST
                try:
                    self._read(run, now_ms)
                except StoreBusy as error:
                    run.is_at_hand = False
                    self._read_later(error)
                    break
                except StoreError as error:
                    log.error("%s; the entries of this run are read again", error)
                    due += self._known_between(run.start, run.last + 1)
                    run.left = 0
            found = run.take(now_ms, max(1, budget))
            due += found
            budget -= len(found)
            if run.left:
                heapq.heapreplace(runs, run)
            else:
                heapq.heappop(runs)
                self._delete_keys(run.number)
        return due

    def _bring_due(self, now_ms: int) -> None:
        """Read runs that are due from the disk; if that takes time, the timer is set when it is over."""
        runs = self._runs
        due: list[_Run] = []
        while len(due) < BRING_MAX and runs and runs[0].next_ms <= now_ms:
            due.append(heapq.heappop(runs))
        for run in due:
            heapq.heappush(runs, run)
        unread = [run for run in due if not run.offsets]
        keys = [times_key(self._owner, run.number) for run in unread]
        done = self._scheduler.guarded("store", self._owner, partial(self._were_read, unread))
        self._is_reading = True
        if self._bring(PrefetchRequest(tuple((key, key) for key in keys)), done):
            self._brought(unread, None)

    def _were_read(self, runs: Sequence[_Run], error: StoreError | None) -> None:
        self._brought(runs, error)
        self._arm()

    def _brought(self, runs: Sequence[_Run], error: StoreError | None) -> None:
        self._is_reading = False
        if isinstance(error, StoreBusy):
            self._read_later(error)
            return
        for run in runs:
            run.is_at_hand = True  # any other error is found again when the run is read

    def _read_later(self, error: StoreBusy) -> None:
        log.error("delivery times of %s cannot be read now: %s", self._owner, error)
        self._not_before = self._scheduler.now + READ_RETRY_SECONDS

    def _known_between(self, start: int, stop: int) -> Iterator[int]:
        """Yield the known entries of a range."""
        for low, high in takewhile(lambda each: each[0] < stop, self.offsets.ranges(begin=start)):
            yield from range(low, min(high, stop))

    # --- life ---
    def leave_memory(self) -> None:
        self._newest, self._runs = [], []  # nothing is due any more when runs arrive from the disk
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def delete(self) -> None:
        """Delete the runs of a topic that is deleted."""
        for key in list(self._keys.names(f"delays/{self._owner}\x00")):
            self._keys.delete(key)


def summary_prefix(owner: str) -> str:
    """Return the prefix of the keys of a topic's summaries, before the numbers of the runs."""
    return f"delays/{owner}\x00s"


def times_key(owner: str, number: int) -> str:
    return f"delays/{owner}\x00t{number}"
