"""Log of lost connections: one line when they cannot be opened again, one when all handles are back."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

logger = logging.getLogger("geminga")

MANY_FAILURES: Final = 10
"""Failed attempts of a single handle for the same reason, each time after which it is logged again."""


@dataclass(slots=True, eq=False, repr=False)
class _Outage:
    """An outage of one broker: when it began, and its handles."""

    began: float
    waiting: set[object] = field(default_factory=set)
    """Handles that have not been connected again."""
    count: int = 0
    """Handles that have lost the connection."""
    is_logged: bool = False


class OutageLog:
    """Log of a client's outages; the loss of a connection is one outage of all its handles.

    Its end has the level of its beginning, so that a log that shows one shows the other. A refusal of one
    handle by a broker that answers is logged by itself: at first, when its reason changes, and now and then.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """``now()`` is a monotonic time in seconds."""
        self._now = now
        self._by_peer: dict[str, _Outage] = {}
        self._peers: dict[object, str] = {}
        self._refusals: dict[object, tuple[str, int]] = {}

    def lost(self, handle: object, peer: str) -> None:
        """Note that a handle has lost its connection."""
        if handle not in self._peers:
            outage = self._by_peer.setdefault(peer, _Outage(self._now()))
            outage.waiting.add(handle)
            outage.count += 1
            self._peers[handle] = peer

    def failed(self, handle: object, topic: str, error: Exception, *, reached: bool) -> None:
        """Log an attempt to connect again, unless its reason is known; ``reached``: the broker answered."""
        outage = self._by_peer.get(self._peers.get(handle, ""))
        if reached or outage is None:
            self._end(handle)
            reason, count = self._refusals.get(handle, ("", 0))
            count = count + 1 if reason == str(error) else 0
            self._refusals[handle] = str(error), count
            if count % MANY_FAILURES == 0:
                logger.warning("reconnecting %s failed, and is retried: %s", topic, error)
        elif not outage.is_logged:
            outage.is_logged = True
            logger.warning("the connection to %s was lost, and is retried: %s", self._peers[handle], error)
        else:
            logger.debug("reconnecting %s failed: %s", topic, error)

    def ended(self, handle: object, topic: str, peer: str) -> None:
        """Note that a handle is connected again, and log it if it was the last one of an outage."""
        outage = self._end(handle)
        if outage is not None and not outage.waiting:
            seconds = self._now() - outage.began
            level = logging.WARNING if outage.is_logged else logging.INFO
            line = "reconnected to %s after %.1f s: %d producers and consumers"
            logger.log(level, line, peer, seconds, outage.count)
        elif self._refusals.pop(handle, None) is not None:
            logger.warning("reconnected %s to %s", topic, peer)
        else:
            logger.debug("reconnected %s to %s", topic, peer)

    def forget(self, handle: object) -> None:
        """Note that a handle is closed or has failed for good."""
        self._end(handle)
        self._refusals.pop(handle, None)

    def _end(self, handle: object) -> _Outage | None:
        peer = self._peers.pop(handle, None)
        outage = None if peer is None else self._by_peer[peer]
        if outage is not None and peer is not None:
            outage.waiting.discard(handle)
            if not outage.waiting:
                del self._by_peer[peer]
        return outage
