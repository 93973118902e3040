"""Transports of asyncio leave memory with their connections.

A transport keeps methods of itself, so it is in a cycle, and waits for the collector when its connection is
gone. What the collector of a large broker has set apart (see `geminga.broker.serving.garbage_collector`) it does not
look at again: whoever connected, stayed a while and went would leave half a kilobyte behind for good.
"""

from __future__ import annotations

from asyncio import selector_events
from typing import Any, Final

_LOST: Final = "_call_connection_lost"


def untangle_transports() -> None:
    """From now on, in this process: nothing refers to a transport that has told its protocol the end.

    Does nothing where asyncio's transports are made in another way.
    """
    kind: Any = getattr(selector_events, "_SelectorTransport", None)
    lost = getattr(kind, _LOST, None)
    if lost is None or getattr(lost, "untangles", False):
        return

    def lost_and_gone(transport: Any, error: Exception | None) -> None:
        try:
            lost(transport, error)
        finally:
            for name, value in list(vars(transport).items()):
                if getattr(value, "__self__", None) is transport:
                    setattr(transport, name, None)

    lost_and_gone.untangles = True  # type: ignore[attr-defined]
    setattr(kind, _LOST, lost_and_gone)


__all__ = ["untangle_transports"]
