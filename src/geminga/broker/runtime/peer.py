"""Interface of a connection for topics and subscriptions.

Producers and consumers of a topic know their *peer*: the output of its frames, whether it lives, and the
notices that the broker sends it. Commands, handshakes and ids belong to the session, which implements this
interface.
"""

from collections.abc import Callable
from typing import Protocol

from geminga.ledger.api import Buffer


class PeerOutput(Protocol):
    """Output of a peer's frames: one connection, implemented by the server."""

    def write(self, data: Buffer) -> None:
        """Send, in order. Never blocks; the server may collect the writes of one call into the core.

        No effect once the connection is closed.
        """

    def close(self) -> None:
        """Close the connection after the written bytes are sent."""

    def pause_reading(self) -> None:
        """Stop calling `Session.receive`."""

    def resume_reading(self) -> None:
        """Resume calling `Session.receive`."""

    @property
    def writable(self) -> bool:
        """False while the peer does not read; `Session.writable_again` is called when it does again."""


class RateHold(Protocol):
    """Rate limit that a peer waits for."""

    def wait(self, now: float) -> float:
        """Return the seconds until the peer may continue; 0: now."""


class Peer(Protocol):
    """Client at the other end of a connection. ``producer`` and ``consumer`` are compared, never used."""

    @property
    def output(self) -> PeerOutput:
        """Output of frames. Producers and consumers write their receipts and messages to it directly."""

    @property
    def address(self) -> str:
        """``/host:port``, for logs and stats."""

    @property
    def client_version(self) -> str:
        """Name and version that the client sent."""

    def probe(self, decided: Callable[[], None]) -> None:
        """Find out whether the peer lives: ``decided`` is called after it spoke or was dropped."""

    def close(self) -> None:
        """End the connection; written bytes are still sent."""

    # --- pending bytes ---
    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that were stored and are not confirmed."""

    def publish_started(self, size: int) -> None:
        """Count an entry that was passed to the store."""

    def publish_finished(self, size: int) -> None:
        """Count an entry whose receipt or error was sent."""

    @property
    def is_read(self) -> bool:
        """Whether the peer's bytes are read."""

    def hold(self, why: int) -> None:
        """Stop reading from the peer for a reason (`memory_backpressure`)."""

    def slow_down(self, limit: RateHold) -> None:
        """Do not read from the peer until the limit allows it."""

    def release(self, why: int) -> None:
        """Remove a reason of `hold`."""

    # --- unsolicited commands ---
    def send_error(self, producer_id: int, sequence_id: int, code: int, reason: str) -> None:
        """Send the error of a refused entry."""

    def active_consumer_change(self, consumer_id: int, active: bool) -> None:
        """Notify a Failover consumer whether it is the active one."""

    def end_of_topic(self, consumer_id: int) -> None:
        """Notify a consumer that a terminated topic has no more messages."""

    def producer_closed(self, producer_id: int, producer: object) -> None:
        """Notify the client that the broker closes this producer, so that it looks the topic up again."""

    def producer_lost(self, producer_id: int, producer: object) -> None:
        """Drop a replaced or fenced producer: its next SEND closes the connection, as in Pulsar."""

    def drop_consumer(self, consumer_id: int, consumer: object) -> bool:
        """Ignore further commands for a consumer; return whether its id was assigned to it."""

    def consumer_closed(self, consumer_id: int) -> None:
        """Notify the client that the broker has dropped a consumer, so that it looks the topic up again."""
