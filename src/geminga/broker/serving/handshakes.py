"""Ports with TLS or headers of a proxy: connections count from their acceptance, before the handshake's end.

Event loops create a protocol only after the handshake. Until then a connection would not be counted: silent
clients could use up all file descriptors of the process, those of the store's files included, without
credentials.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from geminga.broker.serving.listening import ACCEPTED_AT_ONCE
from geminga.broker.serving.proxy_header import read_header

log = logging.getLogger("geminga.broker")

AGAIN_SECONDS: Final = 1.0
"""Pause of accepting connections when the system has no free descriptors."""


class TlsPort:
    """Port whose connections begin with a handshake; ``len`` is the number of those in progress."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[Any], asyncio.Protocol],
        admits: Callable[[Any], bool],
        context: ssl.SSLContext | None,
        seconds: float,
        failed: Callable[[Any, OSError], None],
        proxied: bool = False,
    ) -> None:
        """``make(address)`` returns the protocol after the handshake, which may take ``seconds``.

        ``context`` None: without TLS. ``proxied``: a header of the PROXY protocol comes first; its address is
        passed to ``make``, or else None.
        ``admits(address)`` returns whether one more connection is allowed, ``failed(address, error)`` is
        called after an unsuccessful handshake. ``listener`` listens, and is closed here.
        """
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make = make
        self._admits = admits
        self._context = context
        self._seconds = seconds
        self._proxied = proxied
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
            task = self._loop.create_task(self._shake(accepted, address))
            self._shaking.add(task)
            task.add_done_callback(partial(self._ended, accepted))

    async def _shake(self, accepted: socket.socket, address: Any) -> None:
        client = None
        try:
            if self._proxied:
                client = await read_header(self._loop, accepted, self._seconds)
            await self._loop.connect_accepted_socket(
                partial(self._make, client),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=None if self._context is None else self._seconds,
            )
        except OSError as error:  # all errors of TLS and of headers are some
            accepted.close()
            self._failed(address, error)

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._shaking.discard(task)
        if task.cancelled():  # perhaps before it began
            accepted.close()

    def close(self) -> None:
        """Stop accepting, and cancel unfinished handshakes."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for task in list(self._shaking):
            task.cancel()
