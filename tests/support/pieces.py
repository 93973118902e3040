"""Bytes that arrive at the core of a client's connection."""

from geminga.connection.core import ClientConnection, Event


def receive(connection: ClientConnection, data: bytes, now: float) -> list[Event]:
    """Write all of ``data`` to the memory of the connection; return the events."""
    events: list[Event] = []
    while data:
        space = connection.space()
        piece, data = data[: len(space)], data[len(space) :]
        space[: len(piece)] = piece
        events += connection.received(len(piece), now)
    return events
