"""Size of a stream's micro-batches within its limits, and its lag."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from geminga.spark.cluster.entry_samples import EntryCost, EntrySample
from geminga.spark.offsets import EARLIEST, Offset, Offsets, Partition
from geminga.spark.source.admission import BatchLimits, EntryCostEstimate, PartitionBudget, admit
from geminga.spark.source.lag import ClosedLedgers, OffsetSpan, behind, by_topic
from geminga.spark.source.queries import PartitionQueries
from geminga.spark.source.search import stepped_ahead

LOOK_AGAIN_SECONDS = 60.0
"""Maximum age of the known entry sizes; reading entries for a limit renews them."""
LOOKS_MAX = 8
"""Maximum partitions sampled then, one entry each."""


class MicroBatches:
    """Ends of one query's micro-batches, and the estimate of entry costs that they are derived from."""

    def __init__(
        self,
        queries: PartitionQueries,
        *,
        is_batch: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queries = queries
        self.gauge = EntryCostEstimate()
        self.ledgers = ClosedLedgers()
        self.is_batch = is_batch
        self._clock = clock
        self._looked = float("-inf")
        self._turn: Partition | None = None

    def is_compacted(self, start: Offset) -> bool:
        """Return whether the messages after ``start`` are read compacted, in one micro-batch and task. A
        stream reads later messages uncompacted."""
        return self.queries.options.read_compacted and (self.is_batch or start == EARLIEST)

    def limited(self, start: Offsets, latest: Offsets, limits: BatchLimits) -> Offsets:
        """Return the end of a micro-batch: fair shares of the limits over the partitions with a backlog."""
        if limits.needs_entries:
            self._looked = self._clock()
        end = {p: max(start.get(p, EARLIEST), latest[p]) for p in latest}
        waiting = behind(start, end)
        turn = self._in_turn([p for p, (begin, _) in waiting.items() if not self.is_compacted(begin)])
        if not limits or not turn:
            return end
        intakes = [PartitionBudget(p, *waiting[p]) for p in turn]
        admit(intakes, limits, self.gauge, self.queries.sampled, self._step)
        served = [intake.partition for intake in intakes if intake.at > intake.start]
        if served and len(served) < len(intakes):
            self._turn = served[-1]
        return {**end, **{intake.partition: intake.at for intake in intakes}}

    def _in_turn(self, behind: list[Partition]) -> list[Partition]:
        """Return the partitions in turn: those that got no share the last time come first."""
        turn = self._turn
        if turn is None:
            return behind
        return [p for p in behind if p > turn] + [p for p in behind if p <= turn]

    def _step(self, steps: Mapping[Partition, tuple[Offset, Offset, int]]) -> Offsets:
        return self.queries.run({p: stepped_ahead(start, end, n) for p, (start, end, n) in steps.items()})

    def spans(self, start: Offsets, latest: Offsets) -> dict[Partition, OffsetSpan]:
        """Return the number of entries between the offsets, by partition."""
        waiting = behind(start, latest)
        found = self.queries.run({p: self.ledgers.span(p, *places) for p, places in waiting.items()})
        return {**dict.fromkeys(latest, OffsetSpan(0)), **found}

    def _gauged(self, start: Offsets, latest: Offsets) -> EntryCostEstimate:
        """Return the entry cost estimate, after sampling some entries if it is too old."""
        waiting = behind(start, latest)
        now = self._clock()
        if waiting and (self.gauge.all is None or now - self._looked > LOOK_AGAIN_SECONDS):
            self._looked = now
            self.sample_costs(waiting, self.gauge)
        return self.gauge

    def sample_costs(
        self, ranges: Mapping[Partition, tuple[Offset, Offset]], gauge: EntryCostEstimate
    ) -> EntryCostEstimate:
        """Add the first entry of each range, at most `LOOKS_MAX`, to an estimate, and return the estimate."""
        few = list(ranges.items())[:LOOKS_MAX]
        samples = [EntrySample(partition, begin, end, rows=1, bytes=1) for partition, (begin, end) in few]
        for sample, (seen, _) in zip(samples, self.queries.sampled(samples) if samples else (), strict=True):
            gauge.saw(sample.partition, sum((each.cost for each in seen), EntryCost()))
        return gauge

    def rows_between(self, start: Offsets, latest: Offsets) -> float:
        """Return the approximate number of messages between the offsets."""
        gauge = self._gauged(start, latest)
        costs = ((span, gauge.of(partition)) for partition, span in self.spans(start, latest).items())
        return sum(span.entries * each.rows for span, each in costs if each is not None)

    def lag(self, end: Offsets, latest: Offsets) -> dict[str, dict[str, Any]]:
        """Return the lag of ``end``, by topic; see `geminga.spark.source.lag.by_topic`."""
        return by_topic(self.spans(end, latest), self._gauged(end, latest))
