"""A request that waits when the broker ends is answered with the reason."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from waiting import loop_turns

from geminga.broker.admin import http as http_module
from geminga.broker.admin import web as web_module
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.in_flight_requests import InFlightRequests
from geminga.broker.serving.server import BrokerServer
from geminga.broker.settings import BrokerSettings
from geminga.ledger.memory import MemoryKeys, MemoryStore

TIMEOUT = 60.0


async def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and document of one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} /admin/v2/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    writer.write(
        f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    )
    answer = await reader.read()
    writer.close()
    assert answer, "it was hung up on"
    head_bytes, _, rest = answer.partition(b"\r\n\r\n")
    return int(head_bytes.split()[1]), json.loads(rest) if rest else None


class DeafKeys(MemoryKeys):
    """Never reports on what is about a tenant: its disk does not answer."""

    def put(self, key: str, value: bytes, done: Any = None, *, same: bool = False) -> None:
        super().put(key, value, None if key == "tenant/waits" else done, same=same)


@pytest.mark.parametrize("way", ["store", "disk", "behind"])
def test_a_waiting_request_is_answered_when_the_broker_ends(monkeypatch, way):
    monkeypatch.setattr(web_module, "LAST_ANSWERS_SECONDS", 0.2)
    asyncio.run(asyncio.wait_for(_wait_and_end(monkeypatch, way), TIMEOUT))


def open_store(wakeup: Callable[[], None]) -> MemoryStore:
    store = MemoryStore(wakeup)
    store.keys = DeafKeys(store.reports)
    return store


async def _wait_and_end(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    settings = BrokerSettings(memory=True, port=0, web_port=0)
    server = BrokerServer(settings, store=open_store)
    await server.start()
    server.start_web()
    await server.web_ready.wait()
    port = server.settings.web_port
    assert port is not None
    begun = asyncio.Event()
    if way == "behind":
        monkeypatch.setattr(MemoryStore, "is_behind", property(lambda _: begun.set() or True))
    elif way == "disk":
        monkeypatch.setattr(MemoryStore, "bring", lambda *_: begun.set())
    else:
        make = server.broker.namespaces.tenants.create
        monkeypatch.setattr(
            server.broker.namespaces.tenants, "create", lambda *args: (make(*args), begun.set())
        )
    if way == "disk":
        asking = asyncio.create_task(ask(port, "GET", "persistent/public/default/t/stats"))
    else:
        tenant = {"adminRoles": [], "allowedClusters": ["standalone"]}
        asking = asyncio.create_task(ask(port, "PUT", "tenants/waits", tenant))
    await begun.wait()
    assert not asking.done()
    await server.stop()
    status, document = await asking
    assert status == 503
    assert "the broker ends and did not confirm this" in document["reason"]


async def test_no_request_waits_after_the_broker_has_ended():
    unanswered = InFlightRequests()
    loop = asyncio.get_running_loop()
    first, done = loop.create_future(), loop.create_future()
    waiting = asyncio.create_task(unanswered.wait(first))
    told = asyncio.create_task(unanswered.wait(done))
    await loop_turns()
    done.set_result(None)
    unanswered.end()
    unanswered.end()
    await told
    with pytest.raises(AdminRefusal, match="the broker ends") as refused:
        await waiting
    assert refused.value.status == 503
    with pytest.raises(AdminRefusal):
        await unanswered.wait(loop.create_future())


def test_a_disconnect_during_a_request_is_no_error(monkeypatch, caplog):
    asyncio.run(asyncio.wait_for(_hang_up(monkeypatch), TIMEOUT))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def _hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    read, reading, ended = http_module.web.Request.read, asyncio.Event(), asyncio.Event()

    async def watched(request: http_module.web.Request) -> bytes:
        reading.set()
        try:
            return await read(request)
        finally:
            asyncio.get_running_loop().call_soon(ended.set)

    monkeypatch.setattr(http_module.web.Request, "read", watched)
    server = BrokerServer(BrokerSettings(memory=True, port=0, web_port=0))
    await server.start()
    server.start_web()
    await server.web_ready.wait()
    _, writer = await asyncio.open_connection("127.0.0.1", server.settings.web_port)
    writer.write(
        b"PUT /admin/v2/tenants/acme HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    await reading.wait()
    writer.transport.abort()
    await ended.wait()
    await server.stop()
