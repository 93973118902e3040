"""Health checks on a port of their own: while the broker starts, serves, stops, hangs, or is flooded."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from servers import new_server
from waiting import loop_turns
from web_requests import ask

from geminga.broker.serving import health_port
from geminga.broker.serving.health_port import STARTING, STOPPING, HealthPort
from geminga.broker.serving.listening import bind
from geminga.broker.serving.standalone import _health_port, _main


@contextlib.contextmanager
def opened(loop: asyncio.AbstractEventLoop, **checks: Any) -> Iterator[tuple[HealthPort, str]]:
    listener = bind("127.0.0.1", 0, "health_port")
    port = listener.getsockname()[1]
    given = {"live": lambda: "", "ready": lambda: "", **checks}
    health = HealthPort(listener, loop, given["live"], given["ready"])
    try:
        yield health, f"http://127.0.0.1:{port}"
    finally:
        health.close()


def asked(url: str) -> tuple[int, str]:
    answer = ask(url)
    return answer.status, answer.body.decode().strip()


def test_a_starting_and_a_stopping_broker_is_alive_and_not_ready():
    loop = asyncio.new_event_loop()  # does not run: opening the store blocks it
    with opened(loop) as (health, url):
        assert asked(f"{url}/livez") == (200, "ok")
        assert asked(f"{url}/readyz") == (503, STARTING)
        health.phase = STOPPING
        assert asked(f"{url}/livez") == (200, "ok")
        assert asked(f"{url}/readyz") == (503, STOPPING)
        assert asked(f"{url}/metrics")[0] == 404
    loop.close()


def test_a_broker_whose_event_loop_hangs_is_not_alive(monkeypatch):
    monkeypatch.setattr(health_port, "REQUEST_SECONDS", 0.2)
    failures: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, context: failures.append(context))
    with opened(loop) as (health, url):
        health.phase = ""
        status, text = asked(f"{url}/livez?verbose=true")
        assert (status, "event loop does not respond" in text) == (503, True)
        loop.run_until_complete(loop_turns())
    loop.close()
    assert failures == [], "a check that was given up raises nothing later"


def test_the_oldest_connection_gives_way_to_a_new_one(monkeypatch):
    monkeypatch.setattr(health_port, "CONNECTIONS_MAX", 2)
    loop = asyncio.new_event_loop()
    with opened(loop) as (_, url), contextlib.ExitStack() as stack:
        address = "127.0.0.1", int(url.rpartition(":")[2])
        silent = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(2)]
        assert asked(f"{url}/livez") == (200, "ok")
        with contextlib.suppress(ConnectionError):
            assert silent[0].recv(1) == b""
    loop.close()


async def test_the_port_of_a_broker_reports_its_store_and_its_disk():
    loop = asyncio.get_running_loop()
    server = new_server(web_port=None)
    with _health_port(server, 0, loop) as health:
        url = f"http://127.0.0.1:{health.port}"

        async def found(path: str) -> tuple[int, str]:
            return await asyncio.to_thread(asked, url + path)

        assert (await found("/readyz"))[1] == STARTING
        running = asyncio.ensure_future(_main(server, lambda: None, health))
        while (await found("/readyz"))[1] == STARTING:
            pass
        assert await found("/readyz") == (200, "ok")
        server.broker.disk.refusal = "the disk is full: 3 bytes of /secret"
        assert (await found("/livez"))[0] == 200
        status, text = await found("/readyz")
        assert (status, "/secret" in text) == (503, False)
        server.store_stopped.set()
        await running
        assert (await found("/readyz"))[1] == STOPPING


def test_no_port_is_opened_unless_it_is_asked_for():
    server = new_server(web_port=None)
    with _health_port(server, None, asyncio.new_event_loop()) as health:
        assert health is None
