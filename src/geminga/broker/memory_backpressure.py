"""The byte ledger: what all peers together make the broker hold in memory, and whom that holds up.

Three accounts, each with a limit in `geminga.broker.settings.BrokerSettings`:

*pending*   entries that were taken in and are not durable yet. A peer at its own limit is not read from,
            and nobody who publishes is at the common one; reading goes on at half of it. Nor is anybody
            read from who sends anything while the store cannot save as fast as it is changed.
*received*  frames that are not complete, and commands that wait for a turn. At the limit only those are
            read from that have little here, and the one that has waited longest, so that frames are
            completed one after the other. Who then does not go on sending is disconnected, and at twice
            the limit whoever adds to it (one read of a socket each had come in before it was held).
*unsent*    answers and messages that peers have not read. It is the shell's account, since only the
            sockets know; at the limit only those are `writable` that have little there.

What is small is not counted: `COUNTED_BYTES` a peer, for as many peers as `connections_max` allows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from geminga.broker.scheduler import Scheduler, Timer
from geminga.broker.settings import BrokerSettings

log = logging.getLogger("geminga.broker")

COUNTED_BYTES: Final = 4096
"""What a peer may have received and not completed without being counted."""
STALLED_SECONDS: Final = 5.0
"""At the limit of received bytes, who completes nothing in this time and sends little of it, goes."""
PROGRESS_BYTES: Final = 64 * 1024
"""What is not little."""
LOG_SECONDS: Final = 10.0
"""Dropped connections are logged this far apart; ``dropped`` counts them."""


class MemoryHolder(Protocol):
    """A peer, as far as the ledger knows one."""

    pending_bytes: int
    """Bytes of its entries that are not settled."""

    @property
    def is_read(self) -> bool:
        """Whether what the peer sends comes in."""

    def hold(self, why: int) -> None:
        """Do not read from the peer, for this reason too."""

    def release(self, why: int) -> None:
        """This reason is gone."""

    def close(self) -> None:
        """End the connection."""


HELD_BY_PENDING: Final = 1
HELD_BY_RECEIVED: Final = 2
HELD_BY_WORK: Final = 4
HELD_BY_RATE: Final = 8
"""Why a peer is not read from: its publishes, the common limit of received bytes, commands that wait, and a
rate that it publishes above."""


class _Received:
    """One peer's received bytes; ``grown`` is what came in since it was last looked at."""

    __slots__ = ("grown", "held", "size")

    def __init__(self) -> None:
        self.size = 0
        self.grown = 0
        self.held = False


class MemoryBackpressure:
    """See the module."""

    __slots__ = (
        "_logged_at",
        "_paused",
        "_received",
        "_scheduler",
        "_sweep",
        "dropped",
        "is_behind",
        "pending_bytes",
        "pending_bytes_max",
        "pending_bytes_per_peer_max",
        "received_bytes",
        "received_bytes_max",
    )  # fmt: skip

    def __init__(
        self, scheduler: Scheduler, settings: BrokerSettings, is_behind: Callable[[], bool] = lambda: False
    ) -> None:
        """``is_behind`` says whether whoever has the store changed is to wait."""
        self._scheduler = scheduler
        self.is_behind = is_behind
        self.pending_bytes_max = settings.pending_bytes_max
        self.pending_bytes_per_peer_max = settings.pending_bytes_per_peer_max
        self.received_bytes_max = settings.received_bytes_max
        self.pending_bytes = 0
        self.received_bytes = 0
        self._paused: dict[MemoryHolder, None] = {}
        self._received: dict[MemoryHolder, _Received] = {}
        self._sweep: Timer | None = None
        self._logged_at = float("-inf")
        self.dropped = 0

    # --- pending ---
    def pause(self, peer: MemoryHolder) -> None:
        """The peer is not read from until `resume` finds room."""
        self._paused[peer] = None
        peer.hold(HELD_BY_PENDING)

    def resume(self) -> None:
        """Go on reading from peers that have few enough bytes under way."""
        if not self._paused or self.pending_bytes > self.pending_bytes_max // 2 or self.is_behind():
            return
        for peer in list(self._paused):
            if peer.pending_bytes <= self.pending_bytes_per_peer_max // 2:
                del self._paused[peer]
                peer.release(HELD_BY_PENDING)

    # --- received ---
    def received(self, peer: MemoryHolder, size: int) -> None:
        """The peer has ``size`` bytes here that are not dealt with; called when that changed."""
        account = self._received.get(peer)
        if size <= COUNTED_BYTES:
            if account is not None:
                self._forget(peer, account)
            return
        if account is None:
            account = self._received[peer] = _Received()
        was_first = peer is next(iter(self._received))
        if size < account.size:
            # A frame was completed: whoever waits longer comes first now.
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

    def forget(self, peer: MemoryHolder) -> None:
        """The peer is gone."""
        self._paused.pop(peer, None)
        account = self._received.get(peer)
        if account is not None:
            self._forget(peer, account)

    def _forget(self, peer: MemoryHolder, account: _Received) -> None:
        first = peer is next(iter(self._received))
        del self._received[peer]
        self.received_bytes -= account.size
        if account.held:
            peer.release(HELD_BY_RECEIVED)
        if first or self.received_bytes <= self.received_bytes_max:
            self._admit()

    def _admit(self) -> None:
        """Read again from those that wait: from all while there is room, else from the first."""
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

    def _drop(self, peer: MemoryHolder, account: _Received) -> None:
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
        return f"ByteLedger({self.pending_bytes} pending, {self.received_bytes} received)"
