"""Admin calls: what is said when the other side is not what it should be."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator

import pytest

from geminga.client.admin import admin
from geminga.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    InvalidUrl,
    NotAllowedError,
    ProtocolError,
    PulsarException,
    ServiceUnitNotReady,
    TopicNotFound,
    UnknownError,
)


@contextlib.contextmanager
def web_server(status: int, body: bytes) -> Iterator[str]:
    """The URL of a server that gives every request the same answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_json_or_nothing_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # this machine is reached without a proxy
    with web_server(200, b'["a"]') as url:
        assert admin(url, "GET", "clusters") == ["a"]
    with web_server(200, b"") as url:
        assert admin(url, "GET", "clusters") is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, AuthenticationError),
        (403, AuthorizationError),
        (404, TopicNotFound),
        (406, NotAllowedError),
        (409, NotAllowedError),
        (412, NotAllowedError),
        (422, NotAllowedError),
        (500, UnknownError),
        (503, ServiceUnitNotReady),
    ],
)
def test_a_refusal_has_the_class_of_its_status_and_names_the_request(
    status: int, expected: type[PulsarException]
) -> None:
    with web_server(status, b'{"reason": "so it is"}') as url, pytest.raises(PulsarException) as caught:
        admin(url, "GET", "persistent/a/b/c")
    assert type(caught.value) is expected
    assert str(caught.value) == f"so it is (HTTP {status} for GET persistent/a/b/c)"


def test_a_web_server_that_is_no_broker() -> None:
    with web_server(200, b"<html>") as url, pytest.raises(ProtocolError, match=r"no JSON: is it the web add"):
        admin(url, "GET", "clusters")


def test_something_that_is_no_web_server() -> None:
    import geminga

    with geminga.embedded() as broker:
        url = broker.service_url.replace("pulsar://", "http://")
        with pytest.raises(ConnectError, match=r"is this its web address\?"):
            admin(url, "GET", "clusters", timeout_seconds=5)


@pytest.mark.parametrize(
    "url", ["", "foo", "localhost:8080", "pulsar://localhost:6650", "http://", "http://a:port", "http://[::1"]
)
def test_a_url_of_another_form(url: str) -> None:
    with pytest.raises(InvalidUrl, match="http://host:port"):
        admin(url, "GET", "clusters")


def test_a_host_with_forbidden_characters() -> None:
    with pytest.raises(ConnectError, match="no answer from"):
        admin("http://a b:8080", "GET", "clusters", timeout_seconds=1)
