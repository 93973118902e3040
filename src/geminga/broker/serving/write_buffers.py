"""Bytes that peers have not read yet, one of the accounts of `geminga.broker.memory_backpressure`."""

from __future__ import annotations

import asyncio
from typing import Protocol

UNSENT_FREE_BYTES = 64 * 1024
"""Unread bytes that each peer may have even if all together are at ``unsent_bytes_max``."""
_LOOK_SECONDS = 0.1


class BufferedPeer(Protocol):
    """Interface of a connection for the account."""

    unsent_bytes: int
    """Bytes recorded for it."""

    def count_unsent(self) -> int:
        """Return how many bytes the peer has not read, and record it."""

    def go_on(self) -> None:
        """Resume writing to the peer."""


class WriteBuffers:
    """Account of what peers have not read (`geminga.broker.memory_backpressure`).

    Transports do not report sent bytes, so the recorded size is that after the last write, an upper bound; it
    is refreshed when the limit is reached.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._loop = loop
        self._holders: dict[BufferedPeer, None] = {}
        self._starved: dict[BufferedPeer, None] = {}
        self._looking = False

    @property
    def is_full(self) -> bool:
        return self.bytes >= self.bytes_max

    def sent(self, connection: BufferedPeer, size: int) -> None:
        """Record that ``size`` bytes are in the connection's buffer now."""
        self.bytes += size - connection.unsent_bytes
        connection.unsent_bytes = size
        if size:
            self._holders[connection] = None
        else:
            self._holders.pop(connection, None)
            self._starved.pop(connection, None)
        if self.bytes >= self.bytes_max and not self._looking:
            self._looking = True
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def starve(self, connection: BufferedPeer) -> None:
        """Call `BufferedPeer.go_on` of the connection when there is space."""
        self._starved[connection] = None

    def _look(self) -> None:
        self._looking = False
        for connection in list(self._holders):
            connection.count_unsent()
        if self.is_full:
            return
        starved, self._starved = self._starved, {}
        for connection in starved:
            connection.go_on()
