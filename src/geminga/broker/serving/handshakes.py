"""Ports that speak TLS: a peer counts from when it is accepted, not only when its handshake is done.

Event loops tell a protocol of its connection behind the handshake. Until then a peer would be in nobody's
books: whoever connects and says nothing could take all descriptors of the process, those of the store's
files too, without showing any credentials.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from geminga.broker.serving.listening import ACCEPTED_AT_ONCE

log = logging.getLogger("geminga.broker")

AGAIN_SECONDS: Final = 1.0
"""So long nobody is accepted when the system has no room for one more."""


class TlsPort:
    """A port that speaks TLS; ``len`` is how many are in the midst of their handshake."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.Protocol],
        admits: Callable[[Any], bool],
        context: ssl.SSLContext,
        seconds: float,
    ) -> None:
        """``make()`` gives the protocol behind the handshake, which may take so many ``seconds``.

        ``admits(address)``: whether there is room for one more. ``listener`` listens, and is closed here.
        """
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make = make
        self._admits = admits
        self._context = context
        self._seconds = seconds
        self._shaking: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._listen()

    def __len__(self) -> int:
        return len(self._shaking)

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection is accepted for %g s: %s", AGAIN_SECONDS, error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._again = self._loop.call_later(AGAIN_SECONDS, self._listen)
                return
            if not self._admits(address):
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._shake(accepted))
            self._shaking.add(task)
            task.add_done_callback(partial(self._ended, accepted))

    async def _shake(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=self._context, ssl_handshake_timeout=self._seconds
            )
        except OSError as error:  # all errors of TLS are some, and that of the time
            log.debug("a TLS handshake failed: %s", error)
            accepted.close()

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._shaking.discard(task)
        if task.cancelled():  # perhaps before it began
            accepted.close()

    def close(self) -> None:
        """Nobody is accepted any more, and who is not through is hung up on."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for task in list(self._shaking):
            task.cancel()
