"""Times at which a topic's delayed entries are due: the nearest in memory, the others in the store.

The index is shared by all subscriptions, because the time of an entry never changes. New entries are kept in
memory. `RUN_ENTRIES` of them become a *run*: their times and offsets in the order of the times, under one key
of the store, and a summary with the set of their offsets under another. In memory a run is a few numbers, and
the next `SLICE_ENTRIES` entries once the first of them is due. A topic that is loaded reads the summaries.

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
from itertools import count
from typing import Protocol

from geminga.broker.columns import IntegerColumn
from geminga.broker.delivery.ranges import RangeSet, add_set
from geminga.broker.managed_ledger import ManagedLedger
from geminga.broker.records import RecordReader, put_varint
from geminga.broker.scheduler import Scheduler, Timer
from geminga.errors import StoreBusy, StoreDamaged, StoreError
from geminga.ledger.api import StoredValue, StoreKeys

log = logging.getLogger("geminga.broker")

RUN_ENTRIES = 4_096
"""Entries of a run in the store: as many are read again after a kill, at most."""
SLICE_ENTRIES = 256
"""Entries of a run that are in memory together: in the order of their times, as soon as one is due."""
TAIL_ENTRIES = 256
"""Newest entries, which are sorted one by one; more are put in order together, in 16 bytes each."""
UNLOADED_ENTRIES_MIN = 1_024
"""Entries that are stored as a run when the topic leaves memory; fewer are found again."""
DUE_AT_ONCE_MAX = 2_000
"""Entries that become due in one run of the timer, each counted for every subscription that waits; the next
ones wait for the next run, after other work."""
READ_COST = 100
"""Entries that reading a run counts as, in one run of the timer."""
READ_RETRY_SECONDS = 1.0
"""Wait before a run is read again that could not be read because the disk does not answer."""
LOOK_SECONDS = 10.0
"""Longest interval of checks of the wall clock: it may be set, or the machine may have been suspended."""


class TimesListener(Protocol):
    """Delayed entries of a subscription (`delayed.DelayedEntries`)."""

    def became_due(self, offsets: Sequence[int]) -> None:
        """Take entries whose time has come, perhaps not of this subscription."""

    def examine(self, start: int, stop: int) -> None:
        """Take the entries of a range as due: their times were lost."""


class _Run:
    """Entries in the order of their times. ``number`` is that of its keys; -1 for a run in memory alone.

    ``left`` entries were not taken. Those of ``times`` and ``offsets``, from ``taken`` on, are the first of
    them; with more behind, the next one is due at ``following_ms``.
    """

    __slots__ = ("following_ms", "last", "left", "next_ms", "number", "offsets", "start", "taken", "times")

    def __init__(self, number: int, start: int, last: int, left: int, next_ms: int) -> None:
        self.number = number
        self.start = start
        self.last = last
        self.left = left
        self.next_ms = self.following_ms = next_ms
        self.show((), (), next_ms)

    def show(self, times: Sequence[int], offsets: Sequence[int], following_ms: int) -> None:
        """Set the first entries that are left."""
        self.times, self.offsets = array("Q", times), array("Q", offsets)
        self.taken = 0
        self.following_ms = following_ms

    def take(self, now_ms: int, entries_max: int) -> list[int]:
        """Take entries that are due and in memory; return their offsets."""
        stop = min(bisect_right(self.times, now_ms, self.taken), self.taken + entries_max)
        found = self.offsets[self.taken : stop].tolist()
        self.taken = stop
        self.left -= len(found)
        if stop < len(self.times):
            self.next_ms = self.times[stop]
        else:
            self.next_ms = self.following_ms
            self.show((), (), self.following_ms)
        return found


class DeliveryTimes:
    """Index of a topic. ``offsets`` are the delayed entries, of all subscriptions, that are not due yet."""

    __slots__ = (
        "_heap", "_keys", "_ledger", "_listeners", "_next_number", "_not_before", "_order", "_owner", "_runs",
        "_scheduler", "_store_from", "_tail", "_timer", "offsets",
    )  # fmt: skip

    def __init__(self, scheduler: Scheduler, keys: StoreKeys, owner: str, ledger: ManagedLedger) -> None:
        """The topic, ``owner``, runs `load` before the index is used."""
        self._scheduler = scheduler
        self._keys = keys
        self._owner = owner
        self._ledger = ledger
        self.offsets = RangeSet()
        self._tail: list[tuple[int, int]] = []
        """Heap of the newest entries: time and offset."""
        self._runs: dict[_Run, None] = {}
        self._heap: list[tuple[int, int, int, _Run]] = []
        """The runs by the time of their next entries, and by their first offsets: entries of one time are due
        in the order of the topic. The third number only tells runs apart."""
        self._order = count()
        self._next_number = 0
        self._store_from = 0
        """After the store has failed, the entries in memory from which it is tried again."""
        self._listeners: dict[TimesListener, None] = {}
        self._timer: Timer | None = None
        self._not_before = 0.0
        """Time of the next try after a run could not be read."""

    # --- runs in the store ---
    def load(self) -> Iterator[None]:
        """Read the summaries of the runs, one a step."""
        now_ms, prefix = self._scheduler.now_ms, summary_prefix(self._owner)
        for key, value in self._keys.scan(prefix):
            number = int(key[len(prefix) :])
            self._next_number = max(self._next_number, number + 1)
            found = self._read_summary(number, value)
            # Entries whose time has come need no index: they are read from the log as all others.
            if found is None or found[1] <= now_ms or found[0].last < self._ledger.start:
                self._delete_keys(number)
            else:
                run, _, offsets = found
                add_set(self.offsets, offsets)
                self._runs[run] = None
                self._push(run)
            yield

    def _read_summary(self, number: int, value: StoredValue) -> tuple[_Run, int, RangeSet] | None:
        """Return a run, its last time and its offsets; None if damaged, or of entries that are gone."""
        what = f"delivery times of {self._owner}, run {number}"
        if value.lost is not None:
            log.error("%s: lost to damage; its entries are read again", what)
            return None
        reader = RecordReader(value.base, what)
        try:
            entries, first_ms, last_ms = reader.varint(), reader.varint(), reader.varint()
            ledger_id, entry_id = reader.varint(), reader.varint()
            offsets = RangeSet.decode(reader)
        except StoreDamaged as error:
            log.error("%s; its entries are read again", error)
            return None
        start, last = next(offsets.ranges(1), (0, 0))[0], offsets.end - 1
        # Other entries may be at these offsets if the topic was deleted by a broker without this index.
        if last < 0 or len(offsets) > entries or self._ledger.offset(ledger_id, entry_id) != last:
            return None
        return _Run(number, start, last, entries, first_ms), last_ms, offsets

    def _store(self) -> None:
        """Move the runs in memory to one in the store."""
        runs, start = self._runs_in_memory(), self._ledger.start
        pairs = sorted(
            pair
            for run in runs
            for pair in zip(run.times[run.taken :], run.offsets[run.taken :], strict=True)
            if pair[1] >= start
        )
        if pairs:
            try:
                stored = self._put(self._next_number, pairs)
            except StoreError as error:
                log.warning("delivery times of %s were not stored: %s", self._owner, error)
                self._store_from = 2 * len(pairs)
                return
            self._store_from = 0
            self._next_number += 1
            self._runs[stored] = None
            self._push(stored)
        for run in runs:
            self._drop(run)
        self._heap = [each for each in self._heap if each[-1].left]
        heapq.heapify(self._heap)

    def _put(self, number: int, pairs: list[tuple[int, int]]) -> _Run:
        times, offsets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        there, record, summary = RangeSet(), bytearray(), bytearray()
        there.add_all(offsets)
        IntegerColumn(times).encode(record)
        IntegerColumn(offsets).encode(record)
        last = there.end - 1
        for each in (len(pairs), times[0], times[-1], *self._ledger.position(last)):
            put_varint(summary, each)
        there.encode(summary)
        # In this order a kill in between leaves times without a summary, which the next run replaces.
        self._keys.put(times_key(self._owner, number), bytes(record))
        self._keys.put(f"{summary_prefix(self._owner)}{number}", bytes(summary))
        return _Run(number, min(offsets), last, len(pairs), times[0])

    def _read(self, run: _Run) -> bool:
        """Read the next entries of a run; False if they are damaged. Raises `StoreBusy`."""
        key = times_key(self._owner, run.number)
        try:
            value = self._keys.get(key)
            if value is None or value.lost is not None:
                raise StoreDamaged(f"{key}: lost to damage")
            reader = RecordReader(value.base, key)
            times, offsets = IntegerColumn.decode(reader), IntegerColumn.decode(reader)
            start = len(times) - run.left
            if len(times) != len(offsets) or start < 0 or times[start] != run.next_ms:
                raise reader.damaged("other times than in the summary")
        except StoreBusy:
            raise
        except StoreError as error:
            log.error("%s; the entries of this run are read again", error)
            return False
        stop = min(start + SLICE_ENTRIES, len(times))
        following_ms = times[stop] if stop < len(times) else 0
        run.show(times.part(start, stop), offsets.part(start, stop), following_ms)
        return True

    def _drop(self, run: _Run) -> None:
        run.left = 0
        del self._runs[run]
        if run.number >= 0:
            self._delete_keys(run.number)

    def _delete_keys(self, number: int) -> None:
        # In this order a kill in between leaves a summary, whose run is found to be damaged.
        # A store that has stopped still has the run at the next start: its entries are known to be due.
        with contextlib.suppress(StoreError):
            self._keys.delete(times_key(self._owner, number))
            self._keys.delete(f"{summary_prefix(self._owner)}{number}")

    # --- entries ---
    def add(self, offset: int, at_ms: int) -> None:
        """Add an entry that is not due, unless it is there."""
        if not self.offsets.add(offset):
            return
        heapq.heappush(self._tail, (at_ms, offset))
        if len(self._tail) >= TAIL_ENTRIES:
            self._order_tail()
            if sum(run.left for run in self._runs_in_memory()) >= max(RUN_ENTRIES, self._store_from):
                self._store()
        self._arm()

    def _runs_in_memory(self) -> list[_Run]:
        """Return the runs that are not stored, which are the newest."""
        found = []
        for run in reversed(self._runs):
            if run.number >= 0:
                break
            found.append(run)
        return found

    def _order_tail(self) -> None:
        pairs, self._tail = sorted(self._tail), []
        if not pairs:
            return
        times, offsets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        run = _Run(-1, min(offsets), max(offsets), len(pairs), times[0])
        run.show(times, offsets, 0)
        self._runs[run] = None
        self._push(run)

    @property
    def next_ms(self) -> int:
        """Time of the next entry, in milliseconds since 1970; 0 without any. It may be that of an entry that
        was acknowledged before its time."""
        run = self._next_run()
        times = [run.next_ms] if run is not None else []
        return min([*times, self._tail[0][0]] if self._tail else times, default=0)

    def _push(self, run: _Run) -> None:
        heapq.heappush(self._heap, (run.next_ms, run.start, next(self._order), run))

    def _next_run(self) -> _Run | None:
        """Return the run with the next entry."""
        heap = self._heap
        while heap:
            if heap[0][-1].left:
                return heap[0][-1]
            heapq.heappop(heap)
        return None

    def trimmed(self) -> None:
        """Drop the runs whose entries were all deleted."""
        start = self._ledger.start
        if self._runs or self.offsets:
            self.offsets.remove_range(0, start)
            for run in [run for run in self._runs if run.last < start]:
                self._drop(run)

    # --- those who wait ---
    def attach(self, listener: TimesListener) -> None:
        self._listeners[listener] = None
        self._arm()

    def detach(self, listener: TimesListener) -> None:
        self._listeners.pop(listener, None)

    def _arm(self) -> None:
        timer, scheduler, next_ms = self._timer, self._scheduler, self.next_ms
        if not next_ms:
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
        lost: list[_Run] = []
        try:
            due = self._take_due(self._scheduler.now_ms, lost)
        finally:
            self._arm()
        for offset in due:
            self.offsets.remove(offset)
        for run in lost:
            self.offsets.remove_range(run.start, run.last + 1)
        for listener in list(self._listeners):
            for run in lost:
                listener.examine(run.start, run.last + 1)
            if due:
                listener.became_due(due)

    def _take_due(self, now_ms: int, lost: list[_Run]) -> list[int]:
        """Return the offsets of entries that are due; runs that are damaged are added to ``lost``."""
        due: list[int] = []
        budget, tail = max(1, DUE_AT_ONCE_MAX // max(1, len(self._listeners))), self._tail
        while budget > 0:
            run = self._next_run()
            if tail and (run is None or tail[0] < (run.next_ms, run.start)):
                if tail[0][0] > now_ms:
                    break
                due.append(heapq.heappop(tail)[1])
                budget -= 1
                continue
            if run is None or run.next_ms > now_ms:
                break
            if not run.times:
                budget -= READ_COST
                try:
                    is_whole = self._read(run)
                except StoreBusy as error:
                    log.error("delivery times of %s cannot be read now: %s", self._owner, error)
                    self._not_before = self._scheduler.now + READ_RETRY_SECONDS
                    break
                if not is_whole:
                    self._drop(run)
                    lost.append(run)
                    continue
            found = run.take(now_ms, max(1, budget))
            due += found
            budget -= len(found)
            heapq.heappop(self._heap)
            if run.left:
                self._push(run)
            else:
                self._drop(run)
        return due

    # --- life ---
    def leave_memory(self, *, is_deleted: bool = False) -> None:
        """Store the entries in memory if they are many, or delete the runs of a topic that is deleted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._listeners.clear()
        if is_deleted:
            for key in list(self._keys.names(f"delays/{self._owner}\x00")):
                self._keys.delete(key)
        elif len(self._tail) + sum(run.left for run in self._runs_in_memory()) >= UNLOADED_ENTRIES_MIN:
            self._order_tail()
            self._store()


def summary_prefix(owner: str) -> str:
    """Return the prefix of the keys of a topic's summaries, before the numbers of the runs."""
    return f"delays/{owner}\x00s"


def times_key(owner: str, number: int) -> str:
    return f"delays/{owner}\x00t{number}"
