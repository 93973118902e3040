"""Fix of a leak: asyncio's transports are freed with their connections.

A transport references its own methods, so it is in a cycle, and waits for the collector after its connection
has ended. Objects that the collector of a large broker has frozen (see
`geminga.broker.serving.garbage_collector`) are not traversed again: each connection that lasted a while would
leak half a kilobyte.
"""

from __future__ import annotations

from asyncio import selector_events
from typing import Any, Final

_LOST: Final = "_call_connection_lost"


def untangle_transports() -> None:
    """Break the cycles of closed transports from now on, in this process.

    No effect if asyncio's transports are built differently.
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
