"""Peers that are slow in their handshake, or silent: they are counted, and disconnected."""

import asyncio
import contextlib
import socket
import ssl
import threading

import pytest
from web_requests import ask

import geminga
from geminga.broker.admin import web
from geminga.broker.serving.embedded import embedded
from tests.support.waiting import eventually


def silent(url: str) -> socket.socket:
    """Return a connection that sends nothing."""
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 60)


def was_hung_up_on(peer: socket.socket) -> bool:
    """Within ten seconds."""
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True


def test_half_open_handshakes_count_against_the_limit(authority, tls):
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(embedded(**tls, connections_max=5))
        peers = [stack.enter_context(silent(broker.service_url)) for _ in range(5)]
        assert was_hung_up_on(stack.enter_context(silent(broker.service_url)))
        peers[0].setblocking(False)
        with pytest.raises(BlockingIOError):  # those before it are waited for
            peers[0].recv(1)
        for peer in peers:
            peer.close()
        trust = {"tls_trust_certs_file_path": str(authority.certificate)}
        with geminga.Client(broker.service_url, **trust) as client:
            client.create_producer("t").send(b"there is room again")


def test_a_failed_handshake_is_logged_and_counted(tls, caplog):
    with embedded(**tls, web_port=None) as broker:
        with silent(broker.service_url) as peer:
            peer.sendall(b"\0\0\0\5not TLS but a frame of the protocol")
            assert was_hung_up_on(peer)
        with silent(broker.service_url):
            pass  # probes of ports are counted only
    lines = [record.getMessage() for record in caplog.records if "handshake" in record.getMessage()]
    assert len(lines) == 1
    assert "/127.0.0.1:" in lines[0]


def test_half_open_handshakes_of_the_web_port_count_against_its_limit(authority, tls, monkeypatch):
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 5)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(embedded(**tls))
        context = ssl.create_default_context(cafile=str(authority.certificate))
        status = f"{broker.admin_url}/status.html"
        assert ask(status, context=context).status == 200
        peers = [stack.enter_context(silent(broker.admin_url)) for _ in range(5)]
        assert was_hung_up_on(stack.enter_context(silent(broker.admin_url)))
        for peer in peers:
            peer.close()

        def answers() -> bool:  # the broker learns of their end a moment later
            return ask(status, context=context).status == 200

        assert eventually(answers, but=OSError)


def test_stopping_a_broker_closes_unfinished_handshakes(tls):
    with contextlib.ExitStack() as stack:
        with embedded(**tls) as broker:
            peers = [stack.enter_context(silent(url)) for url in (broker.service_url, broker.admin_url) * 3]
        assert all(map(was_hung_up_on, peers))


def test_a_handshake_that_takes_too_long_is_closed(tls):
    with embedded(**tls, handshake_seconds=0.2) as broker, silent(broker.service_url) as peer:
        peer.sendall(b"\x16\x03\x01\x02\x00")  # the beginning of a ClientHello
        assert was_hung_up_on(peer)


@pytest.mark.parametrize("said", [b"", b"GET /status.html HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_web_connection_without_a_request_is_closed(said):
    with embedded(handshake_seconds=0.2) as broker, silent(broker.admin_url) as peer:
        peer.sendall(said)
        assert was_hung_up_on(peer)


def test_a_web_connection_may_send_further_requests(monkeypatch):
    look, answered, looked = vars(web.WebServer)["_look"], threading.Event(), threading.Event()

    def look_once_answered(self: web.WebServer, made: web.WebConnection) -> None:
        if answered.is_set():
            look(self, made)
            looked.set()
        else:
            asyncio.get_running_loop().call_later(0.01, look_once_answered, self, made)

    monkeypatch.setattr(web.WebServer, "_look", look_once_answered)
    with embedded(handshake_seconds=0.1) as broker, silent(broker.admin_url) as peer:
        for _ in range(2):
            peer.sendall(b"GET /status.html HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert peer.recv(4096).startswith(b"HTTP/1.1 200 ")
            answered.set()
            assert looked.wait(60)


def test_a_connection_admitted_to_the_handshake_is_not_refused_after_it(authority, tls):
    """The connection limit counts connections that are still in their handshake, also later ones."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(embedded(**tls, connections_max=2))
        stack.enter_context(silent(broker.service_url))
        trust = {"tls_trust_certs_file_path": str(authority.certificate)}
        with geminga.Client(broker.service_url, **trust, operation_timeout_seconds=10) as client:
            client.create_producer("t").send(b"the last place")
            assert was_hung_up_on(stack.enter_context(silent(broker.service_url)))
