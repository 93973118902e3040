"""Searches in a partition by one query: the first entry at or after a position.

Pulsar reports the end of a topic to clients, but nothing about earlier entries; opening a reader, and so
asking for the first entry at a position, answers everything else. Entry ids are contiguous within a ledger,
ledger ids grow with gaps, so an entry exists exactly if it is the first one at or after its id.

A search is a generator without I/O: it yields several positions at once, is sent the entries found there
(None: no entry at or after the position), and returns its result. `run` advances the searches of many
partitions together, and sends each round of their queries at once.
"""

import itertools
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from geminga.ids import MessageId
from geminga.spark.offsets import EARLIEST, Offset, Partition, entries_between
from geminga.wire.metadata import RawEntry

T = TypeVar("T")

Answers = list["RawEntry | None"]
Search = Generator[list[MessageId], Answers, T]
Ask = Callable[[list[tuple[Partition, MessageId]]], Answers]

WALKERS = 16
"""Number of parallel searches for ledgers, after the first few steps did not find all."""
STEPS_MAX = 64
"""Maximum ledgers found by one such search; the ledgers after them, up to the next search, are not split."""
_FIRST_STEPS = 4
_DOUBLED_MAX = 8
"""Maximum probes of a ledger in one round, each at twice the distance of the one before."""


def run(searches: Mapping[Partition, Search[T]], ask: Ask) -> dict[Partition, T]:
    """Return the results of all searches; every round of queries is one call of ``ask``."""
    found: dict[Partition, T] = {}
    waiting: dict[Partition, list[MessageId]] = {}

    def go_on(partition: Partition, answers: Answers | None) -> None:
        try:
            # A new generator accepts only None.
            waiting[partition] = searches[partition].send(answers)  # type: ignore[arg-type]
        except StopIteration as stop:
            found[partition] = stop.value

    for partition in searches:
        go_on(partition, None)
    while waiting:
        asked, waiting = waiting, {}
        answers = iter(ask([(partition, place) for partition, places in asked.items() for place in places]))
        for partition, places in asked.items():
            go_on(partition, [next(answers) for _ in places])
    return found


def at(ledger: int, entry: int) -> MessageId:
    """Return the position of an entry, for a query."""
    return MessageId(-1, ledger, max(entry, 0))


def _one(place: MessageId) -> Search[RawEntry | None]:
    (answer,) = yield [place]
    return answer


def _exists(ledger: int, entry: int) -> Search[bool]:
    found = yield from _one(at(ledger, entry))
    return found is not None and (found.ledger_id, found.entry_id) == (ledger, entry)


def _last(known: int, holds: Callable[[int], Search[bool]]) -> Search[int]:
    """Return the last number from ``known`` on for which ``holds`` is true, if it is true up to that one."""
    step, grows = 1, True
    while step:
        if (yield from holds(known + step)):
            known += step
        else:
            grows = False
        step = step * 2 if grows else step // 2
    return known


def before_first(start: Offset) -> Search[Offset | None]:
    """Return ``start``; for `EARLIEST` the offset within a ledger right before the first entry."""
    if start.ledger >= 0:
        return start
    first = yield from _one(MessageId.earliest)
    return None if first is None else Offset.after_entry(first.ledger_id, first.entry_id - 1)


# --- time ----------------------------------------------------------------------------------------


def before_time(newest: Offset, time_ms: int) -> Search[Offset]:
    """Return the offset before the first entry published at or after ``time_ms``, by bisection.

    Publish times grow with the position, except for clock differences between producers.
    """
    from geminga.wire.metadata import peek_entry

    def is_early(entry: RawEntry | None) -> bool:
        return entry is not None and peek_entry(entry.entry).publish_time < time_ms

    if newest == EARLIEST:
        return EARLIEST
    first = yield from _one(MessageId.earliest)
    if first is None or not is_early(first):
        return EARLIEST
    low, high = first, newest.ledger + 1  # the ledgers from `high` on begin too late
    while low.ledger_id + 1 < high:
        middle = (low.ledger_id + 1 + high) // 2
        found = yield from _one(at(middle, 0))
        if found is not None and found.ledger_id < high and is_early(found):
            low = found
        else:
            high = middle
    ledger = low.ledger_id

    def is_early_at(entry: int) -> Search[bool]:
        if ledger == newest.ledger and entry > newest.entry:
            return False
        found = yield from _one(at(ledger, entry))
        return found is not None and found.ledger_id == ledger and is_early(found)

    return Offset.after_entry(ledger, (yield from _last(low.entry_id, is_early_at)))


# --- ledgers -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Walker:
    """Search that steps from ledger to ledger within ``place <= id < stop``."""

    place: int
    stop: int
    steps_left: int

    def found(self, ledger: int | None) -> bool:
        """Continue after ``ledger``; return False when it is beyond this search's part."""
        if ledger is None or ledger >= self.stop:
            self.place = self.stop
            return False
        self.place, self.steps_left = ledger + 1, self.steps_left - 1
        return True

    @property
    def done(self) -> bool:
        return self.place >= self.stop or not self.steps_left


def ledgers_after(ledger: int, last: int) -> Search[dict[int, int]]:
    """Return the ledgers after ``ledger`` up to ``last`` that hold entries, with the first entry id of each.

    All of them up to a number, then at most `STEPS_MAX` in each of `WALKERS` even parts.
    """
    found: dict[int, int] = {}
    walkers = [_Walker(ledger + 1, last + 1, _FIRST_STEPS)]
    for is_first in (True, False):
        while asked := [walker for walker in walkers if not walker.done]:
            answers = yield [at(walker.place, 0) for walker in asked]
            for walker, entry in zip(asked, answers, strict=True):
                if walker.found(None if entry is None else entry.ledger_id) and entry is not None:
                    found[entry.ledger_id] = entry.entry_id
        begin = walkers[0].place
        if not is_first or begin > last:
            break
        width = -(-(last + 1 - begin) // WALKERS)
        walkers = [
            _Walker(place, min(place + width, last + 1), STEPS_MAX) for place in range(begin, last + 1, width)
        ]
    return dict(sorted(found.items()))


def last_entry(ledger: int, known: int) -> Search[int]:
    """Return the last entry of a closed ledger that has the entry ``known`` (or -1: perhaps none)."""
    return (yield from _last(known, lambda entry: _exists(ledger, entry)))


# --- pieces --------------------------------------------------------------------------------------


Piece = tuple[Offset, Offset]
"""Part of a partition: after the first offset, up to and including the second."""


def pieces(start: Offset, end: Offset, size: int | None) -> Search[list[Piece]]:
    """Split ``start`` to ``end`` at the ends of ledgers, and ledgers into pieces of at most ``size`` entries.
    ``size`` None: no split."""
    begin = yield from before_first(start)
    if begin is None or begin >= end:
        return []
    if size is None:
        return [(begin, end)]
    found: list[Piece] = []
    following = yield from ledgers_after(begin.ledger, end.ledger)
    for ledger, first in following.items():
        boundary = Offset.after_entry(ledger, first - 1)
        if begin < boundary < end:
            found += yield from _closed(begin, boundary, size)
            begin = boundary
    found += _cut(begin, end, size)
    return found


def _closed(start: Offset, boundary: Offset, size: int) -> Search[list[Piece]]:
    """Return the pieces of the rest of a ledger before ``boundary``, where the next one begins."""
    count = yield from _cuts(start, size)
    cuts = (Offset.after_entry(start.ledger, start.entry + number * size) for number in range(1, count + 1))
    return list(itertools.pairwise([start, *cuts, boundary]))


def _cuts(start: Offset, size: int) -> Search[int]:
    """Return the number of cuts of ``size`` entries each in a closed ledger after ``start``. A piece begins
    after an entry, so the entry after a cut must exist too. Entries exist up to some cut."""
    low, high = 0, None  # the entry after cut `low` exists, the one after cut `high` does not
    asked = [1]
    while asked:
        answers = yield [at(start.ledger, start.entry + number * size + 1) for number in asked]
        for number, entry in zip(asked, answers, strict=True):
            if entry is None or entry.ledger_id != start.ledger:
                high = number
                break
            low = number
        if high is None:
            asked = [low << doubled for doubled in range(1, min(4 * len(asked), _DOUBLED_MAX) + 1)]
        else:
            asked = list(range(low + 1, high, -(-(high - low) // WALKERS)))
    return low


def _cut(start: Offset, end: Offset, size: int) -> list[Piece]:
    """Return even pieces of at most ``size`` entries; one piece if the number of entries is unknown."""
    entries = entries_between(start, end)
    if entries is None or entries <= size:
        return [(start, end)]
    size = -(-entries // -(-entries // size))
    places = [Offset.after_entry(start.ledger, entry) for entry in range(start.entry + size, end.entry, size)]
    return list(itertools.pairwise([start, *places, end]))


# --- ahead ---------------------------------------------------------------------------------------


def stepped_ahead(start: Offset, end: Offset, entries: int) -> Search[Offset]:
    """Return the offset ``entries`` after ``start``, at most the end of its ledger or ``end``."""
    begin = yield from before_first(start)
    while begin is not None and begin.ledger < end.ledger:
        wanted = Offset.after_entry(begin.ledger, begin.entry + entries)
        there, next_one = yield [at(wanted.ledger, wanted.entry), at(begin.ledger, begin.entry + 1)]
        if there is None:
            return end
        if there.ledger_id == wanted.ledger:
            return wanted
        boundary = min(Offset.after_entry(there.ledger_id, there.entry_id - 1), end)
        if next_one is not None and next_one.ledger_id == begin.ledger:
            return boundary
        begin = boundary  # the old ledger has no entries left: continue in the next one
    return end if begin is None else min(Offset.after_entry(begin.ledger, begin.entry + entries), end)


# --- back ----------------------------------------------------------------------------------------


def stepped_back(ledger: int, entry: int, entries: int) -> Search[MessageId]:
    """Return the position about ``entries`` before an entry; `MessageId.earliest` when there are fewer."""
    while entries > entry:
        previous = yield from _ledger_before(ledger)
        if previous is None:
            return MessageId.earliest
        entries -= entry
        ledger = previous.ledger_id
        entry = (yield from last_entry(ledger, previous.entry_id)) + 1
    return at(ledger, entry - entries)


def _ledger_before(ledger: int) -> Search[RawEntry | None]:
    """Return the first entry of the last ledger before ``ledger`` with entries; None without one."""
    distance = 1
    found: RawEntry | None = None
    while found is None:
        if distance > ledger:
            distance = ledger
        candidate = yield from _one(at(ledger - distance, 0)) if distance else _one(MessageId.earliest)
        if candidate is not None and candidate.ledger_id < ledger:
            found = candidate
        elif distance == ledger:
            return None
        distance *= 2
    high = ledger
    while found.ledger_id + 1 < high:
        middle = (found.ledger_id + 1 + high) // 2
        candidate = yield from _one(at(middle, 0))
        if candidate is not None and candidate.ledger_id < ledger:
            found = candidate
        else:
            high = middle
    return found
