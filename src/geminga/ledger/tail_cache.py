"""Limit on the newest entries of ledgers in memory: the oldest of all ledgers are evicted first."""

from __future__ import annotations

from array import array

from geminga.ledger.ledger_table import LedgerTable

_RECORD_OVERHEAD_BYTES = 200
"""Memory of an entry besides its bytes."""


class TailCache:
    """Account of the recent entries that `LedgerTable` holds, by the groups that added them.

    The account is in a few arrays: small for topics that left memory long ago, and not scattered among the
    memory that they have freed.
    """

    def __init__(self, table: LedgerTable, bytes_max: int) -> None:
        self._table = table
        self._bytes_max = bytes_max
        self._bytes = 0
        self._groups = array("Q")
        """For each group in memory, oldest first: number of ledgers, bytes, and groups settled by then."""
        self._ledgers = array("Q")
        """Ledgers of the groups, and their number of entries in each."""
        self._entries = array("Q")
        self._first_group = self._first_ledger = 0

    def holds(self, counts: dict[int, int], entries: int, size_bytes: int) -> None:
        """Add a settled group with its entries per ledger; evicts the oldest entries if necessary."""
        size_held = size_bytes + entries * _RECORD_OVERHEAD_BYTES
        self._groups.extend((len(counts), size_held, self._table.settled_groups))
        self._ledgers.extend(counts)
        self._entries.extend(counts.values())
        self._bytes += size_held
        if self._bytes > self._bytes_max:
            self._trim()

    def _trim(self) -> None:
        ledgers = self._table.loaded
        while self._bytes > self._bytes_max and self._first_group < len(self._groups):
            count, size_bytes, settled = self._groups[self._first_group : self._first_group + 3]
            self._bytes -= size_bytes
            for at in range(self._first_ledger, self._first_ledger + count):
                ledger = ledgers.get(self._ledgers[at])
                if ledger is not None and ledger.since < settled:  # else it was unloaded and loaded since
                    entries = self._entries[at]
                    del ledger.recent[:entries]
                    ledger.recent_first += entries
            self._first_group += 3
            self._first_ledger += count
        if self._first_group > len(self._groups) // 2:
            del self._groups[: self._first_group]
            del self._ledgers[: self._first_ledger], self._entries[: self._first_ledger]
            self._first_group = self._first_ledger = 0
