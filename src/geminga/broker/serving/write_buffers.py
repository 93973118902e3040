"""What peers have left unread, as far as the shell knows it: one of the accounts of the byte ledger."""

from __future__ import annotations

import asyncio
from typing import Protocol

UNSENT_FREE_BYTES = 64 * 1024
"""What a peer may leave unread although all together are at ``unsent_bytes_max``."""
_LOOK_SECONDS = 0.1


class BufferedPeer(Protocol):
    """A connection, as far as the account knows one."""

    unsent_bytes: int
    """What is booked for it."""

    def count_unsent(self) -> int:
        """Looks how much the peer has left unread, and books it."""

    def go_on(self) -> None:
        """The peer may be written to again."""


class WriteBuffers:
    """The account of what peers have not read (`geminga.broker.memory_backpressure`).

    Transports do not tell when they have sent something, so what is booked is the size after the last
    write or more than that; it is looked up again when the limit is reached.
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
        """``size`` bytes are in the connection's buffer now."""
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
        """The connection is told to `BufferedPeer.go_on` when there is room."""
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
