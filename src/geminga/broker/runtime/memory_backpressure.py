"""Memory backpressure: limits of the bytes that all peers together make the broker hold.

Three accounts, each with a limit in `geminga.broker.settings.BrokerSettings`, and one with a fixed limit:

*pending*   Entries that are not durable yet. A peer at its own limit is not read from, and no publisher is
            at the common one; reading resumes at half of the limit. Peers that send anything are also not
            read from while the store cannot save as fast as it is changed.
*received*  Incomplete frames, and commands that wait for a turn. At the limit only peers with few such bytes
            are read from, and the one that has waited longest, so that frames are completed one after the
            other. That peer is disconnected if it stops sending, and at twice the limit any peer that adds
            to it (one read of a socket each may precede the limit).
*unsent*    Answers and messages that peers have not read. The server counts them
            (`serving.server.WriteBuffers`); at the limit only peers with few of them are `writable`.
*named*     Names and metadata of producers and consumers, of those with more than `NAMED_BYTES_SMALL`. At
            the limit only handles with less are created.

Small amounts are not counted: `COUNTED_BYTES` a peer, for as many peers as `connections_max` allows.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from geminga.broker.runtime.peer import Peer
from geminga.broker.runtime.scheduler import Scheduler, Timer
from geminga.broker.settings import BrokerSettings

log = logging.getLogger("geminga.broker")

COUNTED_BYTES: Final = 4096
"""Incomplete bytes of a peer that are not counted."""
NAMED_BYTES_SMALL: Final = 1024
NAMED_BYTES_MAX: Final = 64 * 1024 * 1024
STALLED_SECONDS: Final = 5.0
"""Time after which a peer that sends little is disconnected at the limit of received bytes."""
PROGRESS_BYTES: Final = 64 * 1024
"""Bytes that count as progress."""
LOG_SECONDS: Final = 10.0
"""Interval of log lines about dropped connections; ``dropped`` counts them."""


HELD_BY_PENDING: Final = 1
HELD_BY_RECEIVED: Final = 2
HELD_BY_WORK: Final = 4
HELD_BY_RATE: Final = 8
"""Reasons why a peer is not read from: its pending entries, the common limit of received bytes, commands that
wait, and a rate limit."""


@dataclass(slots=True, eq=False, repr=False)
class _Received:
    """Received bytes of one peer; ``grown`` is the number of bytes since the last check."""

    size: int = 0
    grown: int = 0
    held: bool = False


class MemoryBackpressure:
    """Accounts of pending and received bytes of all peers."""

    def __init__(
        self, scheduler: Scheduler, settings: BrokerSettings, is_behind: Callable[[], bool] = lambda: False
    ) -> None:
        """``is_behind`` returns whether the store cannot save as fast as it is changed."""
        self._scheduler = scheduler
        self.is_behind = is_behind
        self.pending_bytes_max = settings.pending_bytes_max
        self.pending_bytes_per_peer_max = settings.pending_bytes_per_peer_max
        self.received_bytes_max = settings.received_bytes_max
        self.pending_bytes = 0
        self.received_bytes = 0
        self.named_bytes = 0
        self._paused: dict[Peer, None] = {}
        self._received: dict[Peer, _Received] = {}
        self._sweep: Timer | None = None
        self._logged_at = float("-inf")
        self.dropped = 0

    # --- pending ---
    def pause(self, peer: Peer) -> None:
        """Do not read from the peer until `resume` releases it."""
        self._paused[peer] = None
        peer.hold(HELD_BY_PENDING)

    def resume(self) -> None:
        """Resume reading from peers with few enough pending bytes."""
        if not self._paused or self.pending_bytes > self.pending_bytes_max // 2 or self.is_behind():
            return
        for peer in list(self._paused):
            if peer.pending_bytes <= self.pending_bytes_per_peer_max // 2:
                del self._paused[peer]
                peer.release(HELD_BY_PENDING)

    # --- received ---
    def received(self, peer: Peer, size: int) -> None:
        """Record the peer's unprocessed bytes after they changed."""
        account = self._received.get(peer)
        if size <= COUNTED_BYTES:
            if account is not None:
                self._forget(peer, account)
            return
        if account is None:
            account = self._received[peer] = _Received()
        was_first = peer is next(iter(self._received))
        if size < account.size:
            # A frame was completed: the peer that waits for longest is first now.
            del self._received[peer]
            self._received[peer] = account
            account.grown = PROGRESS_BYTES
        else:
            account.grown += size - account.size
        self.received_bytes += size - account.size
        account.size = size
        if self.received_bytes > 2 * self.received_bytes_max and not was_first:
            self._drop(peer, account)
            return
        if self.received_bytes > self.received_bytes_max:
            if not account.held and peer is not next(iter(self._received)):
                account.held = True
                peer.hold(HELD_BY_RECEIVED)
            if self._sweep is None:
                self._sweep = self._scheduler.after(STALLED_SECONDS, self._drop_stalled, self)
        if was_first and peer is not next(iter(self._received)):
            self._admit()

    def forget(self, peer: Peer) -> None:
        """Remove a peer whose connection has ended."""
        self._paused.pop(peer, None)
        account = self._received.get(peer)
        if account is not None:
            self._forget(peer, account)

    def _forget(self, peer: Peer, account: _Received) -> None:
        first = peer is next(iter(self._received))
        del self._received[peer]
        self.received_bytes -= account.size
        if account.held:
            peer.release(HELD_BY_RECEIVED)
        if first or self.received_bytes <= self.received_bytes_max:
            self._admit()

    def _admit(self) -> None:
        """Release waiting peers: all while there is space, else the first."""
        for number, (peer, account) in enumerate(list(self._received.items())):
            if number and self.received_bytes > self.received_bytes_max:
                return
            if account.held:
                account.held = False
                peer.release(HELD_BY_RECEIVED)

    def _drop_stalled(self) -> None:
        self._sweep = None
        if self.received_bytes <= self.received_bytes_max:
            return
        stalled = []
        for peer, account in self._received.items():
            if peer.is_read and account.grown < PROGRESS_BYTES:
                stalled.append((peer, account))
            account.grown = 0
        for peer, account in stalled:
            if self.received_bytes > self.received_bytes_max:
                self._drop(peer, account)
        self._sweep = self._scheduler.after(STALLED_SECONDS, self._drop_stalled, self)

    def _drop(self, peer: Peer, account: _Received) -> None:
        self.dropped += 1
        if self._scheduler.now - self._logged_at >= LOG_SECONDS:
            self._logged_at = self._scheduler.now
            log.warning(
                "%r: connection closed: received %d bytes of a frame but not the rest, while all peers "
                "together have %d (received_bytes_max; %d connections so far)",
                peer, account.size, self.received_bytes, self.dropped,
            )  # fmt: skip
        peer.close()

    def __repr__(self) -> str:
        return f"MemoryBackpressure({self.pending_bytes} pending, {self.received_bytes} received)"
