"""A request that waits when the broker ends is answered with the reason."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import web_requests
from servers import serving
from waiting import loop_turns

from geminga.broker.admin import http as http_module
from geminga.broker.admin import web as web_module
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.in_flight_requests import InFlightRequests
from geminga.ledger.memory import MemoryKeys, MemoryStore

TIMEOUT = 60.0


async def ask(port: int, method: str, path: str, body: Any) -> tuple[int, Any]:
    """Status and document of one request."""
    url = f"http://127.0.0.1:{port}/admin/v2/{path}"
    answer = await asyncio.to_thread(web_requests.ask, url, method, body)
    return answer.status, answer.document


class DeafKeys(MemoryKeys):
    """Never reports on what is about a tenant: its disk does not answer."""

    def put(self, key: str, value: bytes, done: Any = None, *, same: bool = False) -> None:
        super().put(key, value, None if key == "tenant/waits" else done, same=same)


def open_store(wakeup: Callable[[], None]) -> MemoryStore:
    store = MemoryStore(wakeup)
    store.keys = DeafKeys(store.reports)
    return store


@pytest.mark.parametrize("way", ["store", "disk", "behind"])
async def test_a_waiting_request_is_answered_when_the_broker_ends(monkeypatch, way):
    monkeypatch.setattr(web_module, "LAST_ANSWERS_SECONDS", 0.2)
    begun = asyncio.Event()
    async with asyncio.timeout(TIMEOUT), serving(store=open_store) as server:
        request = ("PUT", "tenants/waits", {"adminRoles": [], "allowedClusters": ["standalone"]})
        if way == "behind":
            monkeypatch.setattr(MemoryStore, "is_behind", property(lambda _: begun.set() or True))
        elif way == "disk":
            monkeypatch.setattr(MemoryStore, "bring", lambda *_: begun.set())
            request = ("GET", "persistent/public/default/t/stats", None)
        else:
            tenants = server.broker.namespaces.tenants
            make = tenants.create
            monkeypatch.setattr(tenants, "create", lambda *args: (make(*args), begun.set()))
        asking = asyncio.create_task(ask(server.settings.web_port, *request))
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


async def test_a_disconnect_during_a_request_is_no_error(monkeypatch, caplog):
    read, reading, ended = http_module.web.Request.read, asyncio.Event(), asyncio.Event()

    async def watched(request: http_module.web.Request) -> bytes:
        reading.set()
        try:
            return await read(request)
        finally:
            asyncio.get_running_loop().call_soon(ended.set)

    monkeypatch.setattr(http_module.web.Request, "read", watched)
    async with asyncio.timeout(TIMEOUT), serving() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.settings.web_port)
        writer.write(
            b"PUT /admin/v2/tenants/acme HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        await reading.wait()
        writer.transport.abort()
        await ended.wait()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
