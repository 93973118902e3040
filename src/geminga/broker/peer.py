"""What topics and subscriptions need of a connection.

A topic knows its producers and consumers, and each of those knows its *peer*: where its frames go,
whether it lives, and what it is told when the broker ends something. Who the peer is beyond that
(commands, handshakes, ids) is the session's affair, which implements this port.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from geminga.ledger.api import Buffer


class PeerOutput(Protocol):
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


class RateHold(Protocol):
    """A limit that a peer waits for."""

    def wait(self, now: float) -> float:
        """In how many seconds it may go on; 0 for now."""


class Peer(Protocol):
    """One client at the other end of a connection. ``producer`` and ``consumer`` are compared, never used."""

    @property
    def output(self) -> PeerOutput:
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

    def hold(self, why: int) -> None:
        """Do not read from the peer, for this reason too (`byte_ledger`)."""

    def slow_down(self, limit: RateHold) -> None:
        """Do not read from the peer until the limit lets it go on."""

    def release(self, why: int) -> None:
        """This reason is gone."""

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
