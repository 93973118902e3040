"""How many entries the source's ledgers have: so that what is skipped at a ledger's end is counted, too.

Positions alone tell what was left out in the midst of a ledger. Where a ledger ends they do not tell, and a
ledger that nobody needs any more is soon deleted: so sizes are noted while they are there to be seen.
"""

from __future__ import annotations

from geminga.admin import InternalStats
from geminga.mirror.positions import NOWHERE, Position, parse_position


class LedgerSizes:
    """Of one topic, from the ledger on that is being read. ``newest``: the last entry that was seen."""

    def __init__(self) -> None:
        self.newest = NOWHERE
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def learn(self, stats: InternalStats, since: int) -> None:
        """``since``: ledgers before that one are of no interest any more."""
        last = parse_position(stats.last_confirmed_entry)
        counts = {one: count for one, count in self._counts.items() if one >= since}
        for ledger in stats.ledgers:
            if ledger.ledger_id >= since:
                # Apache Pulsar does not say of the ledger that is open how many entries it has.
                count = last.entry + 1 if ledger.ledger_id == last.ledger else ledger.entries
                counts[ledger.ledger_id] = max(count, counts.get(ledger.ledger_id, 0))
        self._counts, self.newest = counts, max(self.newest, last)

    def reaches(self, place: Position) -> bool:
        """Whether all ledgers before ``place`` were seen at an end that does not change any more."""
        return self.newest.ledger >= place.ledger

    def between(self, read: Position, place: Position) -> int:
        """Entries behind ``read`` and before ``place``. Of a ledger that was never seen, because it came and
        went between two looks, only those before ``place`` count."""
        if place.ledger == read.ledger:
            return max(0, place.entry - read.entry - 1)
        if place <= read:
            return 0
        count = max(0, self._counts.get(read.ledger, 0) - read.entry - 1)
        count += sum(each for ledger, each in self._counts.items() if read.ledger < ledger < place.ledger)
        return count + max(0, place.entry)
