"""Keep-alive: a PING when the connection was silent, the end when it stays silent.

Each side has its own timer (framing.md section 3): after ``interval`` seconds it sends a PING; any
byte from the peer counts as life; an interval without any after the PING ends the connection. A
peer that talks all the time is never pinged: its frames already prove it alive.
"""

from __future__ import annotations

from enum import Enum

INTERVAL_SECONDS = 30.0


class KeepAliveAction(Enum):
    """What `KeepAlive.tick` asks for."""

    NOTHING = "nothing"
    SEND_PING = "send ping"
    PEER_SILENT = "peer silent"


class KeepAlive:
    """``last_received`` is set by the owner for every piece of data: the hot path writes one float."""

    __slots__ = ("interval_seconds", "last_received", "ping_sent_at")

    def __init__(self, interval_seconds: float, now: float) -> None:
        self.interval_seconds = interval_seconds
        self.last_received = now
        self.ping_sent_at: float | None = None

    def next_deadline(self) -> float:
        """When `tick` has something to do if nothing arrives until then."""
        base = self.last_received
        if self.ping_sent_at is not None and self.ping_sent_at > base:
            base = self.ping_sent_at
        return base + self.interval_seconds

    def tick(self, now: float) -> KeepAliveAction:
        """To be called at or after `next_deadline`; calls before it do nothing."""
        if now < self.next_deadline():
            return KeepAliveAction.NOTHING
        if self.ping_sent_at is not None and self.ping_sent_at > self.last_received:
            return KeepAliveAction.PEER_SILENT
        self.ping_sent_at = now
        return KeepAliveAction.SEND_PING
