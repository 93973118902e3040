"""Tasks of a micro-batch or of a batch query: the ranges of partitions between two offsets."""

import sys
from collections.abc import Callable, Mapping

from geminga.ids import MessageId
from geminga.offload.manifest import OffloadedLedger
from geminga.spark.offsets import EARLIEST, WHOLE_ENTRY, Offset, Offsets, Partition, entries_between
from geminga.spark.source.admission import EntryCostEstimate
from geminga.spark.source.cursor import QueryCursor
from geminga.spark.source.lag import ClosedLedgers, behind
from geminga.spark.source.micro_batches import MicroBatches
from geminga.spark.source.offloaded import Manifests
from geminga.spark.source.queries import PartitionQueries
from geminga.spark.source.ranges import ENTRIES_MIN, Range
from geminga.spark.source.search import Piece, pieces

ENTRIES_PER_SPLIT = 10_000
"""Default of ``maxEntriesPerSplit`` in queries that are split."""
BYTES_PER_SPLIT = 64 * 1024 * 1024
"""Default of ``maxBytesPerSplit`` in queries that are split."""


class TaskPlanner:
    """Cuts what one query reads into tasks."""

    def __init__(
        self,
        queries: PartitionQueries,
        micro_batches: MicroBatches,
        cursor: Callable[[], QueryCursor | None],
        *,
        is_batch: bool,
    ) -> None:
        """``cursor`` returns the query's own subscription, if it has one."""
        options = queries.options
        self.queries = queries
        self.options = options
        self.micro_batches = micro_batches
        self.cursor = cursor
        self.is_batch = is_batch
        given = (options.max_entries_per_split, options.max_bytes_per_split)
        self.splits = is_batch or given != (None, None)
        """Whether a partition may become several tasks; in a stream, by option only."""
        self.entries_per_split = options.max_entries_per_split or ENTRIES_PER_SPLIT
        self.bytes_per_split = options.max_bytes_per_split or BYTES_PER_SPLIT
        self._manifests: Manifests | None = None
        self._confirmed: set[Partition] = set()
        """Partitions whose offloaded ledgers are verified to be the broker's."""

    def ranges(self, start: Offsets, end: Offsets, first: Offsets | None = None) -> list[Range]:
        """Return the tasks that read everything between the offsets. ``first``: for partitions read from
        `EARLIEST` on, the offset before their first message, which must still exist."""
        first = first or {}
        if not self.is_batch:
            # A stream's end before its start is in a recreated topic: all of it is read.
            start = {p: place for p, place in start.items() if place <= end.get(p, place)}
        unread = behind(start, end)
        compacted = [p for p, (begin, _) in unread.items() if self.micro_batches.is_compacted(begin)]
        wanted = {
            p: (first.get(p, begin) if begin == EARLIEST else begin, place)
            for p, (begin, place) in unread.items()
            if p not in compacted
        }
        begins = self.queries.begins({p: begin for p, (begin, _) in wanted.items()})
        wanted = {p: (begins[p], place) for p, (_, place) in wanted.items()}
        sizes = self._sizes(wanted)
        cut = self.queries.run({p: pieces(*places, sizes[p]) for p, places in wanted.items()})
        count = sum(len(found) for found in cut.values())
        if 0 < count < self.options.min_partitions:
            cut = self._smaller(wanted, cut, sizes)
        nexts = self._nexts_kept(cut)
        offloaded = self.offloaded(cut)
        whole = [
            Range(p, *unread[p], beginning=EARLIEST, compacted=True, goes_on=self.is_batch) for p in compacted
        ]
        return whole + [
            Range(
                p,
                begin,
                place,
                beginning=found[0][0] if unread[p][0] == EARLIEST else None,
                offloaded=offloaded.get(p, {}).get(number, ()),
                next_kept=nexts.get(p) if number == 0 else None,
            )
            for p, found in cut.items()
            for number, (begin, place) in enumerate(found)
        ]

    def _sizes(self, wanted: Mapping[Partition, tuple[Offset, Offset]]) -> dict[Partition, int | None]:
        """Return the maximum entries per task for each partition; None: no limit. The size of an entry is
        known only after reading it: the first entry of a few large ranges is read.

        Nothing else counts, so a range that is planned again, also after a restart, has the same tasks: the
        producers' names of dead letters contain their starts.
        """
        if not self.splits:
            return dict.fromkeys(wanted)
        large = {p: places for p, places in wanted.items() if _is_large(*places)}
        gauge = self.micro_batches.sample_costs(large, EntryCostEstimate())
        most = self.entries_per_split
        sizes: dict[Partition, int | None] = dict.fromkeys(wanted, most)
        for partition in large:
            each = gauge.of(partition)
            if each is not None:
                fitting = int(self.bytes_per_split / max(1, each.bytes))
                sizes[partition] = min(most, max(ENTRIES_MIN, fitting))
        return sizes

    def _smaller(
        self,
        wanted: Mapping[Partition, tuple[Offset, Offset]],
        cut: dict[Partition, list[Piece]],
        sizes: Mapping[Partition, int | None],
    ) -> dict[Partition, list[Piece]]:
        """Return enough tasks for ``minPartitions``, if possible; none larger than ``sizes``."""
        ledgers = ClosedLedgers(ledgers_max=sys.maxsize)
        spans = self.queries.run({p: ledgers.span(p, *places) for p, places in wanted.items()})
        entries = round(sum(span.entries for span in spans.values()))
        size = max(1, -(-entries // self.options.min_partitions))
        most = {p: min(sizes[p] or self.entries_per_split, size) for p in cut}
        return self.queries.run({p: pieces(*wanted[p], most[p]) for p in cut})

    def _nexts_kept(self, cut: Mapping[Partition, list[Piece]]) -> dict[Partition, tuple[int, int]]:
        """Return `Range.next_kept` by partition. Only the subscription shows that a trimmed ledger was read
        to its end. It is queried after the next entry: if its cursor is moved meanwhile, for example by a
        time to live, the messages between are a loss."""
        cursor = self.cursor()
        if cursor is None:
            return {}
        starts = {p: found[0][0] for p, found in cut.items() if found and _goes_on(*found[0])}
        asked = [(p, start.next_place) for p, start in starts.items() if p in cursor.kept]
        if not asked:
            return {}
        nexts = {
            partition: (entry.ledger_id, entry.entry_id)
            for (partition, place), entry in zip(asked, self.queries.first_entries(asked), strict=True)
            if entry is not None and entry.ledger_id > place.ledger_id
        }
        places = {partition: starts[partition] for partition in nexts}
        if not places:
            return {}
        keeps = self.queries.retry_policy.call(
            f"looking at the subscription {cursor.name}", lambda: cursor.keeps(places)
        )
        return {partition: place for partition, place in nexts.items() if partition in keeps}

    def offloaded(
        self, cut: Mapping[Partition, list[Piece]]
    ) -> dict[Partition, dict[int, tuple[OffloadedLedger, ...]]]:
        """Return the ledgers to read as files, by partition and index of its piece. Once a query, each
        partition's offloaded ledgers are verified to be the broker's."""
        location = self.options.offload_location
        if location is None:
            return {}
        if self._manifests is None:
            self._manifests = Manifests(location)
        manifests = self._manifests

        def of_piece(partition: Partition, piece: Piece) -> tuple[OffloadedLedger, ...]:
            return self.queries.retry_policy.call(
                "reading what is offloaded", lambda: manifests.within(partition, *piece)
            )

        found: dict[Partition, dict[int, tuple[OffloadedLedger, ...]]] = {}
        for partition, parts in cut.items():
            for number, piece in enumerate(parts):
                within = of_piece(partition, piece)
                if within:
                    found.setdefault(partition, {})[number] = within
        newest = [(p, parts[max(parts)][-1]) for p, parts in found.items() if p not in self._confirmed]
        if newest:
            places = [(p, MessageId(-1, each.ledger, each.entries - 1)) for p, each in newest]
            asked = [
                (*each, entry) for each, entry in zip(newest, self.queries.first_entries(places), strict=True)
            ]
            for (partition, _), is_right in zip(newest, manifests.confirmed(asked), strict=True):
                if is_right:
                    self._confirmed.add(partition)
                else:
                    del found[partition]
        return found


def _is_large(begin: Offset, end: Offset) -> bool:
    """Return whether a range may be split: it has some entries, or ledgers of unknown size."""
    entries = entries_between(begin, end)
    return entries is None or entries >= 2 * ENTRIES_MIN


def _goes_on(start: Offset, end: Offset) -> bool:
    """Return whether a piece may begin after the last entry of a ledger."""
    return start.entry >= 0 and start.batch_index == WHOLE_ENTRY and end.ledger > start.ledger
