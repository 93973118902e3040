"""Size of a micro-batch: its limits, shared fairly by the partitions that have a backlog.

The rows and bytes of an entry are known only after reading it. So the first entries of each share are read
(`EntrySample`) and counted exactly. The rest of a larger share is estimated by the average cost of those
entries. An entry is never split, and a micro-batch takes at least one.

No I/O here: `admit` takes two functions: one reads entries, one advances offsets by a number of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from geminga.spark.cluster.entry_samples import EntryCost, EntrySample, MeasuredEntry
from geminga.spark.offsets import Offset, Partition, entries_between

PEEK_BYTES_MAX = 256 * 1024
"""Maximum stored bytes read in advance from one partition."""
PEEK_BYTES_TOTAL_MAX = 4 * 1024 * 1024
"""Maximum stored bytes read in advance from all partitions of a micro-batch."""
WAVES_MAX = 8
"""Maximum rounds in which unused shares of some partitions are given to the others."""
FIRST_LOOKS = 64
"""Partitions sampled before the cost of any entry is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of one micro-batch over all partitions; None is no limit."""

    entries: int | None = None
    rows: int | None = None
    bytes: int | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.entries, self.rows, self.bytes))

    @property
    def needs_entries(self) -> bool:
        """Whether entries must be read to keep the limits."""
        return self.rows is not None or self.bytes is not None

    def share(self, parts: int) -> BatchLimits:
        """Return an even share for one of ``parts``."""
        entries, rows, size = (
            None if limit is None else limit // parts for limit in (self.entries, self.rows, self.bytes)
        )
        return BatchLimits(entries=entries, rows=rows, bytes=size)

    def less(self, used: EntryCost) -> BatchLimits:
        """Return the limits reduced by ``used``, 0 at the least."""
        return BatchLimits(
            entries=None if self.entries is None else max(0, self.entries - int(used.entries)),
            rows=None if self.rows is None else max(0, self.rows - int(used.rows)),
            bytes=None if self.bytes is None else max(0, self.bytes - int(used.bytes)),
        )

    def hold(self, each: EntryCost) -> int | None:
        """Return how many entries of the cost ``each`` fit; None if there is no limit."""
        pairs = ((self.entries, each.entries), (self.rows, each.rows), (self.bytes, each.bytes))
        counts = [int(limit / cost) for limit, cost in pairs if limit is not None and cost > 0]
        return min(counts, default=None)


ONE_ENTRY = EntryCost(1)


class EntryCostEstimate:
    """Average cost of an entry, by partition; recent entries weigh most."""

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
class PartitionBudget:
    """Part of a micro-batch that one partition contributes so far."""

    partition: Partition
    start: Offset
    end: Offset
    at: Offset = field(init=False)
    used: EntryCost = field(default_factory=EntryCost)
    seen: list[MeasuredEntry] = field(default_factory=list)
    taken: int = 0
    """Number of entries of `seen` that the micro-batch takes."""
    looked: bool = False
    ends_seen: bool = False
    """No entry lies between the last entry of `seen` and the end."""

    def __post_init__(self) -> None:
        self.at = self.start

    @property
    def done(self) -> bool:
        return self.at >= self.end

    def take_seen(self, share: BatchLimits, *, force: bool = False, most: int | None = None) -> EntryCost:
        """Take the entries of `seen` within the share, at most ``most``; with ``force`` at least one. Return
        their cost."""
        before, spent = self.taken, EntryCost()
        while self.taken < len(self.seen) and (most is None or self.taken < before + most):
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


Read = Callable[[Sequence[EntrySample]], "list[tuple[list[MeasuredEntry], bool]]"]
"""Returns the entries of each sample, and whether they are all the entries up to its end."""
Step = Callable[[Mapping[Partition, tuple[Offset, Offset, int]]], "dict[Partition, Offset]"]
"""Takes ``(start, end, entries)`` by partition; returns the offset ``entries`` ahead, at most ``end``."""


def admit(
    intakes: Sequence[PartitionBudget], limits: BatchLimits, gauge: EntryCostEstimate, read: Read, step: Step
) -> None:
    """Extend every budget as far as the limits allow; under tight limits the first budgets come first."""
    chosen: list[PartitionBudget] = []
    for _ in range(WAVES_MAX):
        left = limits.less(total(intakes))
        waiting = [intake for intake in intakes if not intake.done]
        chosen, parts = _chosen(waiting, left, limits, gauge)
        if not chosen:
            break
        share = left.share(parts)
        is_news = limits.needs_entries and _sample(chosen, share, gauge, read)
        spent = {intake.partition: intake.take_seen(share) for intake in chosen}
        went = _step_ahead(chosen, spent, share, limits, gauge, step)
        if not (went or is_news or any(cost.entries for cost in spent.values())):
            break
    for _ in range(WAVES_MAX if limits.needs_entries else 0):
        if not _fill(intakes, limits.less(total(intakes)), gauge, step):
            break
    if chosen and not total(intakes).entries and not chosen[0].take_seen(limits, force=True).entries:
        _go(chosen, {chosen[0].partition: 1}, {chosen[0].partition: ONE_ENTRY}, step)


def _fill(
    intakes: Sequence[PartitionBudget], left: BatchLimits, gauge: EntryCostEstimate, step: Step
) -> bool:
    """Add an entry to each budget if it fits the remaining limits, also beyond an even share; return whether
    any was added."""
    before = left
    costs: dict[Partition, EntryCost] = {}
    waiting = [intake for intake in intakes if not intake.done]
    for intake in waiting:
        if intake.taken < len(intake.seen):
            left = left.less(intake.take_seen(left, most=1))
        elif intake.looked and (each := _average(intake, gauge)) is not None and left.hold(each):
            costs[intake.partition] = each
            left = left.less(each)
    _go(waiting, dict.fromkeys(costs, 1), costs, step)
    return left != before


def _average(intake: PartitionBudget, gauge: EntryCostEstimate) -> EntryCost | None:
    """Return the estimated cost of a later entry: the higher one of sampled and earlier entries."""
    each = gauge.of(intake.partition)
    seen = sum((seen.cost for seen in intake.seen), EntryCost())
    return None if each is None else each.at_least(seen.each)


def total(intakes: Iterable[PartitionBudget]) -> EntryCost:
    return sum((intake.used for intake in intakes), EntryCost())


def _chosen(
    waiting: list[PartitionBudget], left: BatchLimits, limits: BatchLimits, gauge: EntryCostEstimate
) -> tuple[list[PartitionBudget], int]:
    """Return the budgets that get a share of ``left``, at least one entry each, and their number."""
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


def _sample(chosen: list[PartitionBudget], share: BatchLimits, gauge: EntryCostEstimate, read: Read) -> bool:
    unseen = [intake for intake in chosen if not intake.looked]
    if not unseen:
        return False
    size = max(1, min(PEEK_BYTES_MAX, PEEK_BYTES_TOTAL_MAX // len(unseen), share.bytes or PEEK_BYTES_MAX))
    samples = [EntrySample(intake.partition, intake.start, intake.end, share.rows, size) for intake in unseen]
    for intake, (seen, is_all) in zip(unseen, read(samples), strict=True):
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
    """Add entries after the sampled ones, at their average cost; return whether any budget was extended."""
    counts: dict[Partition, int] = {}
    costs: dict[Partition, EntryCost] = {}
    for intake in chosen:
        if intake.done or intake.taken < len(intake.seen):
            continue
        each = _average(intake, gauge) if limits.needs_entries else ONE_ENTRY
        if each is None:
            continue
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
