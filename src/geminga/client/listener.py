"""Message listeners: the application's callable, called on a thread of its own for each consumer.

Messages of one consumer are handed over one after the other, in the order in which they arrived. A
listener that raises does not stop the next message; its error is logged and the message stays
unacknowledged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from geminga.errors import AlreadyClosed, PulsarException

logger = logging.getLogger("geminga")

_JOIN_SECONDS = 1.0


class ListenerRunner:
    """Takes messages with ``take`` (which blocks) and gives them to ``listener(owner, message)``."""

    def __init__(
        self, owner: Any, take: Callable[[], Any], listener: Callable[[Any, Any], Any], name: str = "listener"
    ) -> None:
        self._owner = owner
        self._take = take
        self._listener = listener
        self._running = threading.Event()
        self._running.set()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"geminga-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> None:
        """No new call begins after the one that may be under way, and one message that is on its way."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def stop(self) -> None:
        """End after the current call; `take` must raise `AlreadyClosed` by itself."""
        self._stopped = True
        self._running.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopped:
            self._running.wait()
            try:
                message = self._take()
            except AlreadyClosed:
                return
            except PulsarException as error:
                logger.error("the listener ends: %s", error)
                return
            self._running.wait()
            if self._stopped:
                return
            try:
                self._listener(self._owner, message)
            except Exception:
                logger.exception("a message listener raised; the message stays unacknowledged")
