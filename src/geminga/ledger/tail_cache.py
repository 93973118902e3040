"""How much of the ledgers' newest entries stays in memory: the oldest of all ledgers go first."""

from __future__ import annotations

from collections import deque

from geminga.ledger.state import StoreState

_RECORD_OVERHEAD_BYTES = 200
"""What an entry takes in memory besides its bytes."""


class TailCache:
    """The account of what `geminga.ledger.state` holds of ledgers' ends, by the groups that it came in."""

    def __init__(self, state: StoreState, bytes_max: int) -> None:
        self._state = state
        self._bytes_max = bytes_max
        self._groups: deque[tuple[dict[int, int], int, int]] = deque()
        """(entries by ledger, bytes, how many groups were settled) of each group that is in memory."""
        self._bytes = 0

    def holds(self, counts: dict[int, int], entries: int, size_bytes: int) -> None:
        """A group was settled: so many entries, of ledgers, are in memory; the oldest may have to go."""
        size_held = size_bytes + entries * _RECORD_OVERHEAD_BYTES
        self._groups.append((counts, size_held, self._state.settled_groups))
        self._bytes += size_held
        if self._bytes > self._bytes_max:
            self._trim()

    def _trim(self) -> None:
        ledgers = self._state.ledgers
        while self._groups and self._bytes > self._bytes_max:
            counts, size_bytes, settled = self._groups.popleft()
            self._bytes -= size_bytes
            for ledger_id, count in counts.items():
                ledger = ledgers.get(ledger_id)
                if ledger is not None and ledger.since < settled:  # it may have left, and come back since
                    del ledger.recent[:count]
                    ledger.recent_first += count
