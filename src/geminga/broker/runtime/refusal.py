"""Errors for peers: refused requests, and violations that close the connection."""

from geminga.broker.runtime.peer import Peer
from geminga.errors import StoreBusy, StoreError
from geminga.wire.proto import pulsar_wire_pb2 as pb


class Refused(Exception):
    """Request that is answered with an error; the connection continues.

    ``code`` is a ``ServerError``; the text is sent to the peer.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"{pb.ServerError.Name(self.code)}: {self.reason}"


class HolderBusy(Refused):
    """Another peer holds the resource. ``holder`` is that peer: a dead one may be probed and dropped."""

    def __init__(self, code: int, reason: str, holder: Peer) -> None:
        super().__init__(code, reason)
        self.holder = holder


class ProtocolViolation(Exception):
    """The peer violated the protocol: only its connection is closed."""


def check_stored(error: StoreError | None) -> None:
    """Raise `Refused` for an error that the store reported to a callback, if it did."""
    if error is not None:
        raise storage_refusal(error)


def storage_refusal(error: StoreError) -> Refused:
    """Return the error for a peer after a store error; clients retry if the store was only busy."""
    code = pb.ServiceNotReady if isinstance(error, StoreBusy) else pb.PersistenceError
    return Refused(code, str(error) or type(error).__name__)
