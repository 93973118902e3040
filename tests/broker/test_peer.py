"""The ledger of bytes under way: when a peer must wait, and who goes on first."""

from __future__ import annotations

from geminga.broker.peer import PENDING_BYTES_MAX, PENDING_BYTES_PER_PEER_MAX, ByteLedger


class Waiting:
    """As much of a peer as the ledger needs."""

    def __init__(self, pending_bytes: int) -> None:
        self.pending_bytes = pending_bytes
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def test_peers_go_on_when_they_and_all_together_have_room() -> None:
    ledger = ByteLedger()
    small, large = Waiting(1), Waiting(PENDING_BYTES_PER_PEER_MAX)
    for peer in (small, large):
        ledger.pause(peer)  # type: ignore[arg-type]
    ledger.pending_bytes = PENDING_BYTES_MAX
    ledger.resume()
    assert (small.reading, large.reading) == (False, False), "all together have too much"
    ledger.pending_bytes = PENDING_BYTES_MAX // 2
    ledger.resume()
    assert (small.reading, large.reading) == (True, False), "one has too much itself"
    small.reading, large.pending_bytes = False, PENDING_BYTES_PER_PEER_MAX // 2
    ledger.resume()
    assert (small.reading, large.reading) == (False, True), "who goes on is not told again"
