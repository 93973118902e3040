"""How the broker says no: a refused request, and a peer whose connection must end."""

from __future__ import annotations

from geminga.broker.peer import Peer
from geminga.errors import StoreBusy, StoreError
from geminga.wire.proto import pulsar_wire_pb2 as pb


class Refused(Exception):
    """A request that is answered with an error; the connection goes on.

    ``code`` is a ``ServerError``; the text goes to the peer.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"{pb.ServerError.Name(self.code)}: {self.reason}"


class HolderBusy(Refused):
    """Somebody has what is wanted. ``holder`` is its peer: a dead one may be found out and dropped."""

    def __init__(self, code: int, reason: str, holder: Peer) -> None:
        super().__init__(code, reason)
        self.holder = holder


class ProtocolViolation(Exception):
    """The peer did what the protocol forbids: its connection is closed, nobody else notices."""


def storage_refusal(error: StoreError) -> Refused:
    """What a peer is told when the store failed it; clients try again what only had to wait."""
    code = pb.ServiceNotReady if isinstance(error, StoreBusy) else pb.PersistenceError
    return Refused(code, str(error) or type(error).__name__)
