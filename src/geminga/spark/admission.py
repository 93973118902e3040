"""How far a micro-batch goes: its limits, shared fairly by the partitions that have a backlog.

What an entry costs in rows and bytes shows only in the entry. So the first entries of each share are
looked at (`EntrySample`), and what is taken of them is counted exactly; it is handed to the
tasks with their ranges, so that nothing is fetched twice. A share that is larger goes on by the average
cost of the entries seen, which costs nothing. An entry is never cut, and a micro-batch takes one at least.

No I/O here: `admit` is given two functions, one that looks at entries and one that steps ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from geminga.spark.offsets import Offset, Partition, entries_between

if TYPE_CHECKING:
    from geminga.wire.metadata import RawEntry

PEEK_BYTES_MAX = 256 * 1024
"""Stored bytes of one partition that are looked at in advance; they travel with a task."""
PEEK_BYTES_TOTAL_MAX = 4 * 1024 * 1024
"""The same, over all partitions of a micro-batch."""
WAVES_MAX = 8
"""Rounds in which what some partitions left is given to the others."""
FIRST_LOOKS = 64
"""Partitions that are looked at before anything is known about their entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What one micro-batch may take over all partitions; None is no limit."""

    entries: int | None = None
    rows: int | None = None
    bytes: int | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.entries, self.rows, self.bytes))

    @property
    def needs_entries(self) -> bool:
        """Whether entries have to be looked at to keep the limits."""
        return self.rows is not None or self.bytes is not None

    def share(self, parts: int) -> BatchLimits:
        """An even share for one of ``parts``."""
        entries, rows, size = (
            None if limit is None else limit // parts for limit in (self.entries, self.rows, self.bytes)
        )
        return BatchLimits(entries=entries, rows=rows, bytes=size)

    def less(self, used: EntryCost) -> BatchLimits:
        """What is left; 0 where nothing is."""
        return BatchLimits(
            entries=None if self.entries is None else max(0, self.entries - int(used.entries)),
            rows=None if self.rows is None else max(0, self.rows - int(used.rows)),
            bytes=None if self.bytes is None else max(0, self.bytes - int(used.bytes)),
        )

    def hold(self, each: EntryCost) -> int | None:
        """How many entries that cost ``each`` fit; None: as many as there are."""
        pairs = ((self.entries, each.entries), (self.rows, each.rows), (self.bytes, each.bytes))
        counts = [int(limit / cost) for limit, cost in pairs if limit is not None and cost > 0]
        return min(counts, default=None)


@dataclass(frozen=True, slots=True)
class EntryCost:
    """Of entries, or of one on the average."""

    entries: float = 0
    rows: float = 0
    bytes: float = 0

    def __add__(self, other: EntryCost) -> EntryCost:
        return EntryCost(self.entries + other.entries, self.rows + other.rows, self.bytes + other.bytes)

    def __mul__(self, count: float) -> EntryCost:
        return EntryCost(self.entries * count, self.rows * count, self.bytes * count)

    @property
    def each(self) -> EntryCost:
        return self * (1 / self.entries) if self.entries else self

    def at_least(self, other: EntryCost) -> EntryCost:
        return EntryCost(
            max(self.entries, other.entries), max(self.rows, other.rows), max(self.bytes, other.bytes)
        )


ONE_ENTRY = EntryCost(1)


class EntryCostEstimate:
    """What an entry costs on the average, by partition; what is new counts most."""

    _WEIGHT = 0.5

    def __init__(self) -> None:
        self.partitions: dict[Partition, EntryCost] = {}
        self.all: EntryCost | None = None

    def saw(self, partition: Partition, cost: EntryCost) -> None:
        if cost.entries:
            each = cost.each
            self.partitions[partition] = self._moved(self.partitions.get(partition), each)
            self.all = self._moved(self.all, each)

    def _moved(self, known: EntryCost | None, seen: EntryCost) -> EntryCost:
        return seen if known is None else known * (1 - self._WEIGHT) + seen * self._WEIGHT

    def of(self, partition: Partition) -> EntryCost | None:
        return self.partitions.get(partition, self.all)


@dataclass(slots=True)
class MeasuredEntry:
    """An entry that was looked at."""

    entry: RawEntry
    place: Offset
    cost: EntryCost


@dataclass(slots=True)
class PartitionBudget:
    """What a micro-batch takes of one partition, so far."""

    partition: Partition
    start: Offset
    end: Offset
    at: Offset = field(init=False)
    used: EntryCost = EntryCost()
    seen: list[MeasuredEntry] = field(default_factory=list)
    taken: int = 0
    """Of `seen`."""
    looked: bool = False
    ends_seen: bool = False
    """Nothing lies between the last entry seen and the end."""

    def __post_init__(self) -> None:
        self.at = self.start

    @property
    def done(self) -> bool:
        return self.at >= self.end

    def take_seen(self, share: BatchLimits, *, force: bool = False) -> EntryCost:
        """Take of the entries seen what fits into the share; ``force``: one at least. Returns their cost."""
        before, spent = self.taken, EntryCost()
        while self.taken < len(self.seen):
            entry = self.seen[self.taken]
            fits = share.less(spent).hold(entry.cost)
            if fits is not None and fits < 1 and not (force and self.taken == before):
                break
            spent += entry.cost
            self.at = entry.place
            self.taken += 1
        self.used += spent
        if self.ends_seen and self.taken == len(self.seen):
            self.at = self.end
        return spent

    @property
    def head(self) -> list[RawEntry]:
        """The entries taken that were seen: they begin the partition's range."""
        return [seen.entry for seen in self.seen[: self.taken]]


@dataclass(frozen=True, slots=True)
class EntrySample:
    """A look at the entries after ``start``: the first one, then more as long as the budgets are kept."""

    partition: Partition
    start: Offset
    end: Offset
    rows: int | None
    bytes: int

    def wants_more(self, cost: EntryCost) -> bool:
        """Whether to look further when the entries so far cost this."""
        return cost.bytes < self.bytes and (self.rows is None or cost.rows < self.rows)


Look = Callable[[Sequence[EntrySample]], "list[tuple[list[MeasuredEntry], bool]]"]
"""The entries of each peek, and whether they are all there are up to its end."""
Step = Callable[[Mapping[Partition, tuple[Offset, Offset, int]]], "dict[Partition, Offset]"]
"""For each partition ``(start, end, entries)``: the place so many entries ahead, the end at the most."""


def admit(
    intakes: Sequence[PartitionBudget], limits: BatchLimits, gauge: EntryCostEstimate, look: Look, step: Step
) -> None:
    """Move every intake as far as the limits allow; the first ones come first where they are short."""
    for _ in range(WAVES_MAX):
        left = limits.less(total(intakes))
        waiting = [intake for intake in intakes if not intake.done]
        chosen, parts = _chosen(waiting, left, limits, gauge)
        if not chosen:
            return
        share = left.share(parts)
        is_news = limits.needs_entries and _look_at(chosen, share, gauge, look)
        spent = {intake.partition: intake.take_seen(share) for intake in chosen}
        went = _step_ahead(chosen, spent, share, limits, gauge, step)
        if went or is_news or any(cost.entries for cost in spent.values()):
            continue
        if not total(intakes).entries and not chosen[0].take_seen(share, force=True).entries:
            _go(chosen, {chosen[0].partition: 1}, {chosen[0].partition: ONE_ENTRY}, step)
        return


def total(intakes: Iterable[PartitionBudget]) -> EntryCost:
    return sum((intake.used for intake in intakes), EntryCost())


def _chosen(
    waiting: list[PartitionBudget], left: BatchLimits, limits: BatchLimits, gauge: EntryCostEstimate
) -> tuple[list[PartitionBudget], int]:
    """Those that get something of what is left, no more than can get an entry each, and for how many it
    is shared."""
    if not limits.needs_entries:
        count = left.hold(ONE_ENTRY) or 0
    elif gauge.all is None:
        return waiting[:FIRST_LOOKS], len(waiting)
    else:
        costs = (gauge.of(intake.partition) or gauge.all for intake in waiting)
        count = max((left.hold(cost) or 0 for cost in costs), default=0)
    if left == limits:
        count = max(count, 1)
    return waiting[:count], min(count, len(waiting))


def _look_at(chosen: list[PartitionBudget], share: BatchLimits, gauge: EntryCostEstimate, look: Look) -> bool:
    unseen = [intake for intake in chosen if not intake.looked]
    if not unseen:
        return False
    size = max(1, min(PEEK_BYTES_MAX, PEEK_BYTES_TOTAL_MAX // len(unseen), share.bytes or PEEK_BYTES_MAX))
    peeks = [EntrySample(intake.partition, intake.start, intake.end, share.rows, size) for intake in unseen]
    for intake, (seen, is_all) in zip(unseen, look(peeks), strict=True):
        intake.looked, intake.seen, intake.ends_seen = True, seen, is_all
        gauge.saw(intake.partition, sum((each.cost for each in seen), EntryCost()))
        if is_all and not seen:
            intake.at = intake.end
    return True


def _step_ahead(
    chosen: list[PartitionBudget],
    spent: dict[Partition, EntryCost],
    share: BatchLimits,
    limits: BatchLimits,
    gauge: EntryCostEstimate,
    step: Step,
) -> bool:
    """Go on behind the entries that were looked at, by what one of them costs; True when anybody did."""
    counts: dict[Partition, int] = {}
    costs: dict[Partition, EntryCost] = {}
    for intake in chosen:
        if intake.done or intake.taken < len(intake.seen):
            continue
        each = gauge.of(intake.partition) if limits.needs_entries else ONE_ENTRY
        if each is None:
            continue
        # Rather too little than too much, where the entries at hand and those before differ.
        each = each.at_least(sum((seen.cost for seen in intake.seen), EntryCost()).each)
        count = share.less(spent[intake.partition]).hold(each)
        if count:
            counts[intake.partition], costs[intake.partition] = count, each
    return _go(chosen, counts, costs, step)


def _go(
    chosen: Sequence[PartitionBudget],
    counts: Mapping[Partition, int],
    costs: Mapping[Partition, EntryCost],
    step: Step,
) -> bool:
    steps = {
        intake.partition: (intake.at, intake.end, counts[intake.partition])
        for intake in chosen
        if intake.partition in counts
    }
    places = step(steps) if steps else {}
    for intake in chosen:
        place = places.get(intake.partition)
        if place is not None:
            went = entries_between(intake.at, place)
            intake.used += costs[intake.partition] * (counts[intake.partition] if went is None else went)
            intake.at = place
    return bool(places)
