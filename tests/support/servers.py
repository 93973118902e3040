"""Brokers with sockets in the event loop of a test."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from geminga.broker.serving.server import BrokerServer
from geminga.broker.settings import BrokerSettings


def new_server(store: Callable[[Callable[[], None]], Any] | None = None, **settings: Any) -> BrokerServer:
    """A broker that is not started, in memory and on free ports."""
    return BrokerServer(BrokerSettings(**{"memory": True, "port": 0, "web_port": 0, **settings}), store=store)


@asynccontextmanager
async def serving(server: BrokerServer | None = None, **settings: Any) -> AsyncIterator[BrokerServer]:
    """Run a broker, and its web server if there is one."""
    server = server or new_server(**settings)
    await server.start()
    try:
        if server.settings.web_port is not None:
            server.start_web()
            await server.web_ready.wait()
        yield server
    finally:
        await server.stop()
