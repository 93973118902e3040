"""What topics and subscriptions need of a connection, and the bytes that connections have under way.

A topic knows its producers and consumers, and each of those knows its *peer*: where its frames go,
whether it lives, and what it is told when the broker ends something. Who the peer is beyond that
(commands, handshakes, ids) is the session's affair, which implements this port.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from geminga.ledger.api import Buffer

PENDING_BYTES_PER_PEER_MAX = 32 * 1024 * 1024
"""A peer with this much taken in and not yet durable is not read from; reading resumes at half."""
PENDING_BYTES_MAX = 256 * 1024 * 1024
"""The same for all peers together."""


class Output(Protocol):
    """Where a peer's frames go: one connection, implemented by the shell."""

    def write(self, data: Buffer) -> None:
        """Send, in order. Never blocks; the shell may collect what one call into the core wrote.

        Does nothing once the connection is closed.
        """

    def close(self) -> None:
        """Send what was written and end the connection."""

    def pause_reading(self) -> None:
        """Stop feeding `Session.receive`."""

    def resume_reading(self) -> None:
        """Go on feeding."""

    @property
    def writable(self) -> bool:
        """False while the peer does not read: `Session.writable_again` says when it does again."""


class Peer(Protocol):
    """One client at the other end of a connection. ``producer`` and ``consumer`` are compared, never used."""

    @property
    def output(self) -> Output:
        """Where frames go. Producers and consumers write their receipts and messages to it themselves."""

    @property
    def address(self) -> str:
        """``/host:port``, for logs and stats."""

    @property
    def client_version(self) -> str:
        """What the client calls itself."""

    def probe(self, decided: Callable[[], None]) -> None:
        """Find out whether the peer lives: ``decided`` runs when it spoke, or was dropped for silence."""

    def close(self) -> None:
        """End the connection; what was written still goes out."""

    # --- bytes under way ---
    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that were taken in and are not settled."""

    def publish_started(self, size: int) -> None:
        """An entry of so many bytes was handed to the store."""

    def publish_finished(self, size: int) -> None:
        """It has its receipt or its error."""

    def resume_reading(self) -> None:
        """There is room again."""

    # --- what a peer is told unasked ---
    def send_error(self, producer_id: int, sequence_id: int, code: int, reason: str) -> None:
        """An entry was refused."""

    def active_consumer_change(self, consumer_id: int, active: bool) -> None:
        """A Failover consumer is, or is no longer, the one that receives."""

    def end_of_topic(self, consumer_id: int) -> None:
        """Nothing will follow in a terminated topic."""

    def producer_closed(self, producer_id: int, producer: object) -> None:
        """The broker closes this producer: the client looks the topic up again."""

    def producer_lost(self, producer_id: int, producer: object) -> None:
        """The producer was replaced or fenced: its next SEND closes the connection, as in Pulsar."""

    def consumer_closed(self, consumer_id: int, consumer: object) -> None:
        """The broker closes this consumer: the client looks the topic up again."""


class ByteLedger:
    """The bytes that all peers together have under way, and the peers that are not read from."""

    __slots__ = ("_paused", "bytes_max", "bytes_per_peer_max", "pending_bytes")

    def __init__(self) -> None:
        self.pending_bytes = 0
        self.bytes_max = PENDING_BYTES_MAX
        self.bytes_per_peer_max = PENDING_BYTES_PER_PEER_MAX
        self._paused: dict[Peer, None] = {}

    def pause(self, peer: Peer) -> None:
        """The peer is not read from until `resume` finds room."""
        self._paused[peer] = None

    def resume(self) -> None:
        """Go on reading from peers that have few enough bytes under way."""
        if not self._paused or self.pending_bytes > self.bytes_max // 2:
            return
        for peer in list(self._paused):
            if peer.pending_bytes <= self.bytes_per_peer_max // 2:
                del self._paused[peer]
                peer.resume_reading()
