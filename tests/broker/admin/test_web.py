"""The web port under peers that take connections and do not read."""

import asyncio
import contextlib
import select
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp.web import Server
from web_requests import ask

from geminga import CompressionType
from geminga.broker.admin import messages, redacted_log, web
from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from tests.support.waiting import eventually, start_thread

REQUEST = b"GET /admin/v2/tenants HTTP/1.1\r\nHost: localhost\r\n\r\n"
SECRET = "data:;base64,AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
LIMIT = 4


@pytest.fixture
def broker(monkeypatch):
    monkeypatch.setattr(web, "CONNECTIONS_MAX", LIMIT)
    with embedded(token_secret_key=SECRET) as found:
        yield found


def connected(broker: EmbeddedBroker, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", urlsplit(broker.admin_url).port), 60, (host, 0))


@pytest.fixture
def leave_unread(monkeypatch):
    """A function that pipelines requests of a peer until the broker waits for their answers to be read."""
    kind, paused = redacted_log.WebConnection, []
    made, pause = kind.connection_made, kind.pause_writing

    def made_small(connection: redacted_log.WebConnection, transport: Any) -> None:
        """Let the system hold few answers."""
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(connection, transport)

    monkeypatch.setattr(kind, "connection_made", made_small)
    monkeypatch.setattr(kind, "pause_writing", lambda each: (paused.append(each), pause(each)))

    def leave(peer: socket.socket) -> None:
        def send() -> None:
            with contextlib.suppress(OSError):
                peer.sendall(REQUEST * 100_000)

        before = len(paused)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        start_thread(send)
        eventually(lambda: len(paused) > before)

    return leave


def was_disconnected(peer: socket.socket) -> bool:
    """Wait for the end of the connection without reading, which would keep it."""
    ended = select.poll()
    ended.register(peer, select.POLLRDHUP)
    return bool(ended.poll(60_000))


def test_endless_requests_of_one_host_leave_room_for_others(monkeypatch):
    monkeypatch.setattr(web, "CONNECTIONS_MAX", LIMIT)
    monkeypatch.setattr(web, "HOST_CONNECTIONS_MAX", LIMIT - 1)
    head = b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    head += b"Expect: 100-continue\r\n\r\n"
    with embedded() as broker, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(broker, "127.0.0.2")) for _ in range(LIMIT - 1)]
        for peer in peers:
            peer.sendall(head)
            assert peer.recv(4096).startswith(b"HTTP/1.1 100 ")
        for _ in range(2):
            assert was_disconnected(stack.enter_context(connected(broker, "127.0.0.2")))
            check_answers(broker)
        peers[0].settimeout(0)
        with pytest.raises(BlockingIOError):
            peers[0].recv(1)


def check_answers(broker: EmbeddedBroker) -> None:
    assert ask(f"{broker.admin_url}/status.html").status == 200


@pytest.mark.parametrize("peers_are", ["silent", "answered", "not reading"])
def test_idle_and_unread_connections_give_way_to_others(broker, leave_unread, peers_are):
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(broker)) for _ in range(LIMIT)]
        for peer in peers:
            if peers_are == "not reading":
                leave_unread(peer)
            elif peers_are == "answered":
                peer.sendall(REQUEST)
                assert peer.recv(4096).startswith(b"HTTP/1.1 401 ")
        for _ in range(3):
            check_answers(broker)
        assert was_disconnected(peers[0])


def test_a_peer_that_leaves_answers_unread_is_disconnected(broker, monkeypatch, leave_unread):
    monkeypatch.setattr(redacted_log, "UNREAD_SECONDS", 0.3)
    with connected(broker) as peer:
        leave_unread(peer)
        assert was_disconnected(peer)


@pytest.mark.parametrize("is_slow", [False, True])
def test_large_entries_that_peers_leave_unread_are_limited_together(monkeypatch, is_slow):
    """A hundred kilobytes that decompress to 127 MiB took 3 GB when 12 peers looked at them."""
    monkeypatch.setattr(messages, "_UNCOMPRESSED_BYTES_MAX", 20 << 20)
    monkeypatch.setattr(messages, "SEND_SECONDS_MAX", 5.0 if is_slow else 600.0)
    path = "/admin/v2/persistent/public/default/t/subscription/s/position/1"
    with embedded() as broker, broker.client() as client, connected(broker) as peer:
        client.subscribe("t", "s").close()
        client.create_producer("t", compression_type=CompressionType.ZLib).send(bytes(16 << 20))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert peer.recv(12) == b"HTTP/1.1 200"
        assert ask(broker.admin_url + path).status == 503
        if not is_slow:
            peer.close()
        eventually(lambda: ask(broker.admin_url + path)[:2] == (200, bytes(16 << 20)), 25)


async def test_a_peer_that_reads_slowly_is_disconnected_only_when_it_stops(monkeypatch):
    monkeypatch.setattr(redacted_log, "UNREAD_SECONDS", 0.001)
    unread = [5000, 4000, 3000, 3000]

    class Transport:
        def get_write_buffer_size(self) -> int:
            return unread[0] if len(unread) == 1 else unread.pop(0)

        def get_extra_info(self, name: str) -> tuple[str, int]:
            return "127.0.0.1", 1

        def abort(self) -> None:
            aborted.set()

    aborted, loop = asyncio.Event(), asyncio.get_running_loop()
    peer = redacted_log.WebConnection(Server(lambda request: None), lambda line, value: None, loop=loop)
    peer.transport = Transport()
    peer.pause_writing()
    await asyncio.wait_for(aborted.wait(), 60)
    assert unread == [3000]
