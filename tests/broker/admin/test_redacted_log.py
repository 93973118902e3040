"""Unreadable input of the web port is never quoted: it may be a token."""

import contextlib
import logging
import socket
from collections.abc import Iterator

import pytest

from geminga.broker.admin import http
from geminga.broker.admin.redacted_log import unquoted
from geminga.broker.serving.embedded import embedded

CANARY = b"eyJhbGciOiJIUzI1NiJ9.canary.signature"
HEAD = b"GET /admin/v2/tenants HTTP/1.1\r\nHost: localhost\r\n"


@contextlib.contextmanager
def connected() -> Iterator[socket.socket]:
    """A connection to a broker's web port."""
    with embedded() as broker:
        port = int(broker.admin_url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 60) as peer:
            yield peer


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Authorization: Bearer " + CANARY + b"\x00\r\n\r\n",
        HEAD + b"Authorization: Bearer " + CANARY + b"\n\r\n",
        HEAD + b"Authorization: Basic " + CANARY * 300 + b"\r\n\r\n",
        b"GET /?token=" + CANARY + b" HTTP/9.9\r\n\r\n",
        b"GET http://[" + CANARY + b"/ HTTP/1.1\r\n\r\n",
        CANARY + b" / HTTP/1.1\r\n\r\n",
    ],
    ids=["zero", "newline", "too long", "version", "address", "method"],
)
def test_a_request_that_cannot_be_parsed_is_quoted_nowhere(request_bytes, caplog):
    caplog.set_level(logging.DEBUG)
    with connected() as peer:
        peer.sendall(request_bytes)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while more := peer.recv(4096):
                answer += more
    assert answer.startswith(b"HTTP/1.0 400 ")
    assert b"canary" not in answer
    assert "canary" not in caplog.text
    assert "127.0.0.1" in caplog.text


BODY = b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (BODY + b"Transfer-Encoding: chunked\r\n\r\n" + CANARY + b"\r\n\r\n", b"400"),
        (BODY + b"Content-Encoding: gzip\r\nContent-Length: 36\r\n\r\n" + CANARY, b"400"),
        (BODY + b"Content-Length: 100\r\n\r\n" + CANARY, b"408"),
    ],
    ids=["chunks", "gzip", "no end"],
)
def test_a_body_that_cannot_be_read_or_does_not_come_is_refused(request_bytes, status, caplog, monkeypatch):
    monkeypatch.setattr(http, "BODY_SECONDS", 0.2)
    with connected() as peer:
        peer.sendall(request_bytes)
        answer = peer.recv(4096)
    assert answer.split()[1] == status
    assert b"canary" not in answer
    assert "Traceback" not in caplog.text
    assert "canary" not in caplog.text


def test_other_errors_are_logged_in_full(caplog):
    told: list[object] = []
    log = unquoted(logging.getLogger("geminga.test"), lambda line, value: told.append((line, value)))
    try:
        raise KeyError("name")
    except KeyError:
        log.exception("Unhandled exception")
    assert "KeyError: 'name'" in caplog.text
    assert not told
