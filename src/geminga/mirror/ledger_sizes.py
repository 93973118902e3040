"""Sizes of the source's ledgers, to count entries that are skipped at a ledger's end.

Within a ledger, skipped entries are known from positions. At its end they are not, and ledgers without
backlog are soon deleted: so sizes are recorded while the ledgers exist.
"""

from geminga.admin import InternalStats
from geminga.mirror.positions import NOWHERE, Position, parse_position


class LedgerSizes:
    """Ledger sizes of a topic, from the ledger being read on. ``newest``: the last known entry."""

    def __init__(self) -> None:
        self.newest = NOWHERE
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def learn(self, stats: InternalStats, since: int) -> None:
        """Record ledger sizes. ``since``: earlier ledgers are dropped."""
        last = parse_position(stats.last_confirmed_entry)
        counts = {one: count for one, count in self._counts.items() if one >= since}
        for ledger in stats.ledgers:
            if ledger.ledger_id >= since:
                # Apache Pulsar does not report the number of entries of the open ledger.
                count = last.entry + 1 if ledger.ledger_id == last.ledger else ledger.entries
                counts[ledger.ledger_id] = max(count, counts.get(ledger.ledger_id, 0))
        self._counts, self.newest = counts, max(self.newest, last)

    def reaches(self, place: Position) -> bool:
        """Return whether the final sizes of all ledgers before ``place`` are known."""
        return self.newest.ledger >= place.ledger

    def between(self, read: Position, place: Position) -> int:
        """Return the number of entries after ``read`` and before ``place``. Of a ledger created and deleted
        between two queries, only the entries before ``place`` count."""
        if place.ledger == read.ledger:
            return max(0, place.entry - read.entry - 1)
        if place <= read:
            return 0
        count = max(0, self._counts.get(read.ledger, 0) - read.entry - 1)
        count += sum(each for ledger, each in self._counts.items() if read.ledger < ledger < place.ledger)
        return count + max(0, place.entry)
