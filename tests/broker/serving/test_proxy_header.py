"""Headers of the PROXY protocol in front of the binary protocol, with and without TLS."""

import contextlib
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from web_requests import ask

import geminga
from tests.support.certificates import Authority

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def header(host: str, port: int, command: int = 0x21) -> bytes:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = socket.inet_pton(kind, host)
    fields = address * 2 + struct.pack("!HH", port, 6650) + b"\x04\0\x01x"  # and a field that is ignored
    family = 0x21 if ":" in host else 0x11
    return SIGNATURE + struct.pack("!BBH", command, family, len(fields)) + fields


@contextlib.contextmanager
def proxy(url: str, first: bytes) -> Iterator[int]:
    """Forward connections to the broker, each behind ``first``, sent in two parts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def forward(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    parts = urlsplit(url)
                    broker = socket.create_connection((parts.hostname, parts.port or 0))
                    broker.sendall(first[:5])
                    broker.sendall(first[5:])
                    for pair in ((client, broker), (broker, client)):
                        threading.Thread(target=forward, args=pair, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("host", "peer"), [("10.1.2.3", "/10.1.2.3:51000"), ("fd00::7", "/[fd00::7]:51000")])
def test_the_client_behind_a_proxy_is_the_peer(host, peer):
    with (
        geminga.embedded(proxy_protocol=True, host="127.0.0.1") as broker,
        proxy(broker.service_url, header(host, 51000)) as port,
    ):
        assert connected(broker, port) == peer


def test_a_health_check_of_the_proxy_has_its_own_address():
    with (
        geminga.embedded(proxy_protocol=True) as broker,
        proxy(broker.service_url, header("10.1.2.3", 51000, command=0x20)) as port,
    ):
        assert connected(broker, port).startswith("/127.0.0.1:")


def test_tls_begins_behind_the_header(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("localhost", "server")
    with (
        geminga.embedded(proxy_protocol=True, tls_certificate=certificate, tls_key=key) as broker,
        proxy(broker.service_url_tls, header("10.1.2.3", 51000)) as port,
    ):
        context = ssl.create_default_context(cafile=str(authority.certificate))
        assert connected(broker, port, context) == "/10.1.2.3:51000"


def connected(broker: Any, port: int, context: ssl.SSLContext | None = None) -> str:
    """Connect to the proxy's port, send a broken frame, and return the address in the broker's log line."""
    found: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    lines = Lines()
    logging.getLogger("geminga.broker").addHandler(lines)
    try:
        with socket.create_connection(("localhost", port), 60) as plain:
            peer = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
            with peer:
                peer.settimeout(60)
                peer.sendall(b"\0\0\0\0\0\0\0\0")
                with contextlib.suppress(OSError):
                    while peer.recv(1024):
                        pass
    finally:
        logging.getLogger("geminga.broker").removeHandler(lines)
    (line,) = [line for line in found if "connection closed" in line]
    return line.partition("(")[2].partition(",")[0]


@pytest.mark.parametrize("first", [b"\0\0\0\x09\0\0\0\5\x08\x02\x12\1x" + bytes(20), b"PROXY TCP4 1.2.3.4 "])
def test_a_connection_without_the_header_is_refused_by_name(first, caplog):
    with geminga.embedded(proxy_protocol=True) as broker, caplog.at_level("WARNING", "geminga.broker"):
        closed(broker, first)
    assert "no PROXY protocol header of version 2 came in" in caplog.text


@pytest.mark.parametrize("first", [header("10.1.2.3", 51000), b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"])
def test_a_header_that_is_not_expected_is_refused_by_name(first, caplog):
    with geminga.embedded() as broker, caplog.at_level("WARNING", "geminga.broker"):
        closed(broker, first)
    assert "a header of the PROXY protocol came in: set proxy_protocol" in caplog.text


def closed(broker: Any, first: bytes) -> None:
    parts = urlsplit(broker.service_url)
    with socket.create_connection((parts.hostname, parts.port), 60) as peer:
        peer.sendall(first)
        with contextlib.suppress(ConnectionError):
            assert peer.recv(100) == b""


def test_a_header_that_is_cut_is_no_failed_handshake(caplog):
    with geminga.embedded(proxy_protocol=True) as broker, caplog.at_level("WARNING", "geminga.broker"):
        parts = urlsplit(broker.service_url)
        with socket.create_connection((parts.hostname, parts.port), 60) as peer:
            peer.sendall(header("10.1.2.3", 51000)[:20])
            peer.shutdown(socket.SHUT_WR)
            assert peer.recv(100) == b""
        metrics = ask(f"{broker.admin_url}/metrics").body
    assert b'geminga_tls_handshakes_failed_total{cluster="standalone"} 0' in metrics
    assert caplog.text == ""


def test_a_header_that_does_not_come_is_named(caplog):
    settings = {"proxy_protocol": True, "handshake_seconds": 0.2}
    with geminga.embedded(**settings) as broker, caplog.at_level("WARNING", "geminga.broker"):
        closed(broker, header("10.1.2.3", 51000)[:20])
    assert "no PROXY protocol header came in within 0.2 s" in caplog.text
    assert "TLS" not in caplog.text
