"""How much of the ledgers' newest entries stays in memory: the oldest of all ledgers go first."""

from __future__ import annotations

from array import array

from geminga.ledger.state import StoreState

_RECORD_OVERHEAD_BYTES = 200
"""What an entry takes in memory besides its bytes."""


class TailCache:
    """The account of what `geminga.ledger.state` holds of ledgers' ends, by the groups that it came in.

    It is kept in a few arrays: what it says of topics that have left memory long ago is little then, and does
    not lie among what they have left.
    """

    def __init__(self, state: StoreState, bytes_max: int) -> None:
        self._state = state
        self._bytes_max = bytes_max
        self._bytes = 0
        self._groups = array("Q")
        """Of each group in memory, the oldest first: its ledgers, bytes, and how many were settled then."""
        self._first_group = 0
        self._ledgers = array("Q")
        """The groups' ledgers, and how many entries each of them has."""
        self._entries = array("Q")
        self._first_ledger = 0

    def holds(self, counts: dict[int, int], entries: int, size_bytes: int) -> None:
        """A group was settled: so many entries, of ledgers, are in memory; the oldest may have to go."""
        size_held = size_bytes + entries * _RECORD_OVERHEAD_BYTES
        self._groups.extend((len(counts), size_held, self._state.settled_groups))
        self._ledgers.extend(counts)
        self._entries.extend(counts.values())
        self._bytes += size_held
        if self._bytes > self._bytes_max:
            self._trim()

    def _trim(self) -> None:
        ledgers = self._state.ledgers
        while self._bytes > self._bytes_max and self._first_group < len(self._groups):
            count, size_bytes, settled = self._groups[self._first_group : self._first_group + 3]
            self._bytes -= size_bytes
            for at in range(self._first_ledger, self._first_ledger + count):
                ledger = ledgers.get(self._ledgers[at])
                if ledger is not None and ledger.since < settled:  # it may have left, and come back since
                    entries = self._entries[at]
                    del ledger.recent[:entries]
                    ledger.recent_first += entries
            self._first_group += 3
            self._first_ledger += count
        if self._first_group > len(self._groups) // 2:
            del self._groups[: self._first_group]
            del self._ledgers[: self._first_ledger], self._entries[: self._first_ledger]
            self._first_group = self._first_ledger = 0
