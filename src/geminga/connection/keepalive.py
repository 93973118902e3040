"""Keep-alive: a PING after silence, and the end of the connection after continued silence.

Each side has a timer (framing.md section 3): after ``interval`` seconds without data it sends a PING; an
interval without any byte after the PING ends the connection. A peer that sends continuously is never pinged.
"""

from __future__ import annotations

from enum import Enum

INTERVAL_SECONDS = 30.0


class KeepAliveAction(Enum):
    """Action that `KeepAlive.tick` requests."""

    NOTHING = "nothing"
    SEND_PING = "send ping"
    PEER_SILENT = "peer silent"


class KeepAlive:
    """Timer of one side. The owner sets ``last_received`` for every piece of data: the hot path writes one
    float."""

    __slots__ = ("interval_seconds", "last_received", "ping_sent_at")

    def __init__(self, interval_seconds: float, now: float) -> None:
        self.interval_seconds = interval_seconds
        self.last_received = now
        self.ping_sent_at: float | None = None

    def next_deadline(self) -> float:
        """Return the time at which `tick` must run if nothing arrives until then."""
        base = self.last_received
        if self.ping_sent_at is not None and self.ping_sent_at > base:
            base = self.ping_sent_at
        return base + self.interval_seconds

    def tick(self, now: float) -> KeepAliveAction:
        """Return the action that is due; to be called at or after `next_deadline`, earlier calls do
        nothing."""
        if now < self.next_deadline():
            return KeepAliveAction.NOTHING
        if self.ping_sent_at is not None and self.ping_sent_at > self.last_received:
            return KeepAliveAction.PEER_SILENT
        self.ping_sent_at = now
        return KeepAliveAction.SEND_PING
