"""Connections leave memory when they are gone, without the collector: it sets apart what stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
from asyncio import selector_events
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from waiting import eventually_async

from geminga.broker.commands.session import Session
from geminga.broker.serving.server import BrokerServer
from geminga.broker.serving.transport_leak_fix import untangle_transports
from geminga.broker.settings import BrokerSettings
from geminga.testing.certificates import Authority

KINDS: Any = (selector_events._SelectorSocketTransport, Session)  # type: ignore[attr-defined]
pytestmark = pytest.mark.timeout(180)


def there_are() -> int:
    return sum(isinstance(one, KINDS) for one in gc.get_objects())


async def until_few(count: int) -> None:
    await eventually_async(lambda: there_are() <= count)


def _connect(port: int, talk: bytes, context: ssl.SSLContext | None) -> list[socket.socket]:
    made = []
    for _ in range(10):
        one = socket.create_connection(("127.0.0.1", port), 60)
        if context is not None:
            one = context.wrap_socket(one)
        one.sendall(talk)
        if talk:
            one.recv(100)
        made.append(one)
    return made


async def _come_and_go(settings: dict[str, Any], context: ssl.SSLContext | None) -> None:
    untangle_transports()
    given = BrokerSettings(
        memory=True, port=0, web_port=0, host="127.0.0.1", handshake_seconds=0.05, **settings
    )
    server = BrokerServer(given)
    await server.start()
    gc.collect()
    gc.disable()
    try:
        talks = (server.admin_url, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), (server.service_url, b"")
        for url, talk in talks:
            assert url
            port, before = urlparse(url).port or 0, there_are()
            made = await asyncio.to_thread(_connect, port, talk, context)
            for one in made:
                one.close()
            await until_few(before)
    finally:
        gc.enable()
        await server.stop()


@pytest.mark.parametrize("is_tls", [False, True])
def test_closed_connections_leave_no_objects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_tls: bool
) -> None:
    caplog.set_level(logging.CRITICAL, "geminga.broker")  # what is captured refers to sessions
    context, settings = None, dict[str, Any]()
    if is_tls:
        certificate, key = Authority(tmp_path).sign("broker")
        settings = {"tls_certificate": certificate, "tls_key": key}
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.closing(asyncio.SelectorEventLoop()) as loop:
        loop.run_until_complete(_come_and_go(settings, context))
