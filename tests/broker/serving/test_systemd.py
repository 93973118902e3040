"""States that the broker reports to systemd."""

import asyncio
import os
import socket

from servers import new_server

from geminga.broker.serving.standalone import _main
from geminga.broker.serving.systemd import notify


async def test_start_and_stop_are_reported_to_systemd(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)

        def received() -> str:
            return manager.recv(1000).decode()

        server = new_server(web_port=None)
        running = asyncio.ensure_future(_main(server, lambda: None))
        assert [await asyncio.to_thread(received) for _ in range(2)] == ["READY=1", "WATCHDOG=1"]
        server.store_stopped.set()
        await running
        assert received() == "STOPPING=1"


def test_without_a_service_manager_nothing_is_sent(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/no/such/socket")
    notify("READY=1")
