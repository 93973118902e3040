"""Broker inside a program: `embedded` starts it on its own thread and returns its addresses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from geminga._util.event_loops import new_event_loop
from geminga._util.exits import at_exit
from geminga.broker.serving.server import BrokerServer, end_event_loop
from geminga.broker.settings import BrokerSettings
from geminga.errors import AlreadyClosed, Timeout

if TYPE_CHECKING:
    from geminga.broker.admin.http import Site
    from geminga.client.api.sync import Client

START_SECONDS_MAX = 600.0
"""Time limit of a start: opening a large store after a crash reads its log."""
END_SECONDS_MAX = 60.0
"""Time limit of a stop, even if the disk hangs."""


class EmbeddedBroker:
    """Running broker. Created by `embedded`; a context manager; `close` is safe to repeat.

    It listens on ``service_url`` and ``admin_url``, and answers as soon as the constructor returns; the web
    server is loaded by its first request.
    """

    def __init__(self, settings: BrokerSettings, *, site: Site | None = None) -> None:
        """``site`` adds pages to the web port, as `geminga.console.site.attach` does."""
        self._loop = new_event_loop()
        self._clients: weakref.WeakSet[Any] = weakref.WeakSet()
        self._server = BrokerServer(settings, site=site)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._run, name="geminga-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(START_SECONDS_MAX):  # pragma: no cover - a disk that hangs
            raise Timeout(f"the broker did not start within {START_SECONDS_MAX:.0f} s")
        if self._error is not None:
            self._thread.join()
            raise self._error
        _live.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._server.start())
        except BaseException as error:
            self._error = error
            self._started.set()
        else:
            self._started.set()
            self._loop.run_until_complete(self._server.stopped.wait())
        finally:
            end_event_loop(self._loop)

    @property
    def settings(self) -> BrokerSettings:
        """Settings with the ports in use."""
        return self._server.settings

    @property
    def service_url(self) -> str:
        """``pulsar://host:port`` for clients."""
        return self._server.settings.service_url

    @property
    def admin_url(self) -> str:
        """``http://host:port`` of admin REST and ``/metrics``; empty without a web server."""
        return self._server.settings.admin_url or ""

    @property
    def service_url_tls(self) -> str:
        """``pulsar+ssl://host:port``; empty where no port speaks TLS."""
        return self._server.settings.own_addresses().pulsar_tls or ""

    @property
    def admin_url_tls(self) -> str:
        """``https://host:port``; empty where no web port speaks TLS."""
        return self._server.settings.own_addresses().https or ""

    def client(self, **settings: Any) -> Client:
        """Return a new `geminga.Client` of this broker with these settings. Closed with the broker."""
        if self._closed:
            raise AlreadyClosed("the embedded broker is closed")
        from geminga.client.api.sync import Client

        client = Client(self.service_url, **settings)
        self._clients.add(client)
        return client

    def close(self) -> None:
        """Close the clients made by `client`, then stop the broker; persisted messages are kept."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if os.getpid() != self._process_id:
            return  # a forked child has neither the thread nor a right to the store
        for client in list(self._clients):
            with contextlib.suppress(Exception):
                client.close()
        self._stop()

    def _end(self, seconds_max: float) -> None:
        """Stop like `close` at the interpreter's end, within ``seconds_max``."""
        if os.getpid() != self._process_id or not self._thread.is_alive():
            return
        self._closed = True
        self._stop(seconds_max)

    def _stop(self, seconds_max: float | None = None) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds_max)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running"
        return f"<EmbeddedBroker {self.service_url} {state}>"


_live: weakref.WeakSet[EmbeddedBroker] = weakref.WeakSet()


def _at_exit() -> None:
    """Stop brokers cleanly at exit, so that messages just sent are stored: otherwise the brokers' threads
    would end in the middle of a write. An interrupt ends the wait at once."""
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        for broker in list(_live):
            broker._end(END_SECONDS_MAX)


at_exit("brokers", _at_exit)


def embedded(data_dir: str | Path | None = None, **settings: Any) -> EmbeddedBroker:
    """Start a broker in this process and wait until it answers.

    ``data_dir`` is the folder of all data (created if missing); None keeps the data in memory. ``settings``
    are those of `BrokerSettings`; ports are free ones unless given, ``web_port=None`` starts no web server.
    Raises the errors of `BrokerServer.start`: `PortInUse`, `StoreLocked`, `NotAStore`, `StoreDamaged`,
    `InvalidConfiguration`.
    """
    return EmbeddedBroker(
        BrokerSettings(data_dir=data_dir, memory=data_dir is None, **{"port": 0, "web_port": 0, **settings})
    )
