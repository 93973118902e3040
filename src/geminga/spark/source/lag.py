"""Lag of a query behind its topics: entries, which are counted, and messages and bytes, which are estimated
from sampled entries.

Entries of one ledger are counted by their ids. For closed ledgers the last entry is searched for, once each;
if more than `LEDGERS_MAX` are unread, the others are assumed to have the average length.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.spark.cluster.entry_samples import EntryCost
from geminga.spark.offsets import EARLIEST, Offset, Offsets, Partition, entries_between
from geminga.spark.source.admission import EntryCostEstimate
from geminga.spark.source.search import Search, before_first, last_entry, ledgers_after

LEDGERS_MAX = 32
"""Maximum closed ledgers of one partition whose size is determined for a lag."""
LAG = "lag"
"""The key in ``latestOffset`` of a query's progress."""


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Number of entries between two offsets of a partition."""

    entries: float
    is_exact: bool = True


@dataclass(slots=True)
class ClosedLedgers:
    """Cache of the sizes of closed ledgers in a query's partitions, in entries."""

    ledgers_max: int = LEDGERS_MAX
    """Maximum closed ledgers of one partition whose size is determined."""
    _ends: dict[Partition, dict[int, int]] = field(default_factory=dict)

    def span(self, partition: Partition, start: Offset, end: Offset) -> Search[OffsetSpan]:
        """Count the entries; `geminga.spark.source.search.run` runs many searches together."""
        begin = yield from before_first(start)
        if begin is None or begin >= end:
            return OffsetSpan(0)
        if begin.ledger == end.ledger:
            return OffsetSpan(entries_between(begin, end) or 0)
        known, most = self._ends.setdefault(partition, {}), self.ledgers_max
        for ledger in [ledger for ledger in known if ledger < begin.ledger]:
            del known[ledger]
        following = yield from ledgers_after(begin.ledger, end.ledger)
        closed = [begin.ledger, *(ledger for ledger in following if ledger < end.ledger)]
        for ledger in closed[:most]:
            if ledger not in known:
                first = begin.entry if ledger == begin.ledger else following[ledger] - 1
                known[ledger] = yield from last_entry(ledger, first)
        counts = [known[ledger] + 1 - following.get(ledger, 0) for ledger in closed[1:most]]
        here = max(0, known[begin.ledger] - begin.entry)
        others = max(0, len(closed) - most) * (sum(counts) / len(counts) if counts else 0)
        return OffsetSpan(here + sum(counts) + others + max(0, end.entry + 1), len(closed) <= most)


def by_topic(spans: Mapping[Partition, OffsetSpan], gauge: EntryCostEstimate) -> dict[str, dict[str, Any]]:
    """Return the lag of each topic as JSON: ``entries``, ``messages``, ``bytes`` (None: unknown)."""
    found: dict[str, dict[str, Any]] = {}
    for partition, span in sorted(spans.items()):
        one = found.setdefault(partition[0], {"entries": 0, "messages": 0, "bytes": 0})
        each = gauge.of(partition) if span.entries else EntryCost()
        one["entries"] += round(span.entries)
        if each is None:
            one["messages"] = one["bytes"] = None
        elif one["messages"] is not None:
            one["messages"] += round(span.entries * each.rows)
            one["bytes"] += round(span.entries * each.bytes)
        if not span.is_exact:
            one["isEstimate"] = True
    return found


def behind(begin: Offsets, latest: Offsets) -> dict[Partition, tuple[Offset, Offset]]:
    """Return the start and end of the partitions that have new messages."""
    return {
        partition: (begin.get(partition, EARLIEST), place)
        for partition, place in sorted(latest.items())
        if place > begin.get(partition, EARLIEST)
    }
