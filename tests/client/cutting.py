"""Proxy to a broker that ends each connection after a number of bytes, also within a frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from geminga.client.io.runtime import LoopThread

Budget = int | None
"""Bytes that a connection carries before it is cut; None for as many as come."""


class CuttingProxy:
    """Listens on ``url`` and carries bytes to the broker at ``port`` and back.

    ``budgets()`` gives each new connection the bytes that it carries up (to the broker) and down. What is
    within them arrives, the rest never does, and both sides see a reset. Look-ups that name the broker's port
    name the proxy's instead: both have five digits.
    """

    side: type[_Side]
    """Relay for the bytes of one direction of a connection."""

    def __init__(self, port: int, budgets: Callable[[], tuple[Budget, Budget]]) -> None:
        self.broker_port = port
        self.budgets = budgets
        self.cuts = 0
        self.links: set[_Link] = set()
        self._runtime = LoopThread("cutting-proxy")
        self._server: asyncio.Server = self._runtime.call(self._listen(), 10)
        self.port: int = self._server.sockets[0].getsockname()[1]
        assert len(str(self.port)) == len(str(port)) == 5
        self.url = f"pulsar://127.0.0.1:{self.port}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(lambda: _Link(self).client, "127.0.0.1", 0)

    def cut_all(self) -> None:
        """Reset every connection now."""
        self._runtime.post(self._cut_all)

    def _cut_all(self) -> None:
        for link in list(self.links):
            link.cut()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.post(self._server.close)
        self.cut_all()
        self._runtime.close()


class _Link:
    """A client's connection and the one to the broker that belongs to it."""

    def __init__(self, proxy: CuttingProxy) -> None:
        self.proxy = proxy
        up, down = proxy.budgets()
        self.client = proxy.side(self, up, b"", b"")
        self.broker = proxy.side(self, down, b":%d" % proxy.broker_port, b":%d" % proxy.port)
        self.client.other, self.broker.other = self.broker, self.client
        proxy.links.add(self)

    def cut(self) -> None:
        if self in self.proxy.links:
            self.proxy.links.discard(self)
            self.proxy.cuts += 1
            for side in (self.client, self.broker):
                if side.transport is not None:
                    side.end()

    async def connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self.broker, "127.0.0.1", self.proxy.broker_port
            )
        except OSError:
            self.cut()


class _Side(asyncio.Protocol):
    """``left``: bytes that may still come from here."""

    other: _Side

    def __init__(self, link: _Link, left: Budget, here: bytes, there: bytes) -> None:
        self.link = link
        self.left = left
        self.transport: Any = None
        self.here, self.there = here, there
        self.early: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self is self.link.client:
            self.task = asyncio.get_running_loop().create_task(self.link.connect())
        for data in self.early:
            transport.write(data)
        if self.link not in self.link.proxy.links:
            self.end()  # cut while the connection to the broker was made

    def end(self) -> None:
        """Close where bytes are to arrive first, so that the peer sees the end behind them; a transport that
        is not closed after a second, as uvloop's sometimes, is aborted."""
        self.transport.close()
        asyncio.get_running_loop().call_later(1.0, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self.here:
            data = data.replace(self.here, self.there)
        ends = self.left is not None and len(data) >= self.left
        if self.left is not None:
            data = data[: self.left]
            self.left -= len(data)
        if self.other.transport is None:
            self.other.early.append(data)
        else:
            self.other.transport.write(data)
        if ends:
            self.link.cut()

    def connection_lost(self, error: Exception | None) -> None:
        self.link.cut()


CuttingProxy.side = _Side
