"""Calls of admin REST: answers of every kind, and servers that misbehave."""

import asyncio
import contextlib
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from waiting import eventually_async, join_threads, start_thread

import geminga
import geminga.asyncio
from geminga import errors
from tests.support.certificates import Authority

HANG_UP = b""


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Scripted:
    """A server that gives its answers in turn, one a request; `HANG_UP` ends the connection instead.

    ``requests`` are the heads that came, ``connections`` how many there were.
    """

    def __init__(self, *answers: bytes | Callable[[socket.socket], None]) -> None:
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[str] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connected)
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with contextlib.suppress(OSError), connected:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    piece = connected.recv(65536)
                    if not piece:
                        return
                    data += piece
                head, _, data = data.partition(b"\r\n\r\n")
                data = b""
                self.requests.append(head.decode())
                said = self._answers.pop(0) if self._answers else HANG_UP
                if callable(said):
                    said(connected)
                    return
                if said == HANG_UP:
                    return
                connected.sendall(said)

    def close(self) -> None:
        # shutdown() wakes the thread in accept(), close() alone would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connected in self._open:
            connected.close()


@pytest.fixture
def scripted():
    made: list[Scripted] = []

    def make(*answers: bytes | Callable[[socket.socket], None]) -> Scripted:
        made.append(Scripted(*answers))
        return made[-1]

    yield make
    for one in made:
        one.close()


Call = Callable[..., Any]


@pytest.fixture(params=["threads", "asyncio"])
def call(request):
    """Return ``call(url, method, path, ..., **settings)`` of either API; several paths share one client."""

    def with_threads(url: str, method: str, *paths: str, **settings: Any) -> Any:
        with geminga.Admin(url, **settings) as admin:
            found = [admin.call(method, path) for path in paths]
        return found if len(paths) > 1 else found[0]

    def on_a_loop(url: str, method: str, *paths: str, **settings: Any) -> Any:
        async def run() -> Any:
            async with geminga.asyncio.Admin(url, **settings) as admin:
                found = [await admin.call(method, path) for path in paths]
            return found if len(paths) > 1 else found[0]

        return asyncio.run(run())

    return with_threads if request.param == "threads" else on_a_loop


def test_a_call_returns_decoded_json_or_none(scripted, call, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # brokers are reached without a proxy
    server = scripted(answer(200, b'["a"]'), answer(204), answer(200, b" "))
    assert call(server.url, "GET", "clusters", "clusters", "clusters") == [["a"], None, None]
    assert server.connections == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, errors.AdminBadRequest), (401, errors.AdminAuthenticationError),
        (403, errors.AdminAuthorizationError), (404, errors.AdminTopicNotFound),
        (405, errors.AdminNotAllowed), (406, errors.AdminNotAllowed), (409, errors.AdminConflict),
        (412, errors.AdminPreconditionFailed), (418, errors.AdminNotAllowed), (422, errors.AdminBadRequest),
        (500, errors.AdminServerError), (503, errors.AdminUnavailable),
    ],
)  # fmt: skip
def test_a_refusal_has_the_class_of_its_status_and_names_the_request(scripted, status, expected):
    server = scripted(answer(status, b'{"reason": "so it is"}'))
    with pytest.raises(errors.AdminError) as caught, geminga.Admin(server.url, retries=0) as admin:
        admin.call("GET", "persistent/a/b/c")
    assert type(caught.value) is expected
    assert caught.value.status == status
    assert str(caught.value).startswith(f"so it is (HTTP {status} for GET persistent/a/b/c)")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.status, str(again)) == (expected, status, str(caught.value))


def test_a_missing_resource_raises_the_error_of_its_kind(scripted):
    server = scripted(answer(404, b"<html><h1>404</h1></html>"), answer(404, b"Subscription s not found"))
    with geminga.Admin(server.url) as admin:
        with pytest.raises(errors.AdminNotFound) as caught:
            admin.tenants.get("x")
        assert type(caught.value) is errors.AdminNotFound
        assert str(caught.value) == "refused (HTTP 404 for GET tenants/x)"
        with pytest.raises(geminga.SubscriptionNotFound):
            admin.subscriptions.clear("t", "s")


JETTY_PAGE = (
    b"<html><tr><th>MESSAGE:</th><td>Not Found</td></tr><tr><th>SERVLET:</th><td>jersey</td></tr></html>"
)
JETTY_JSON = b'{ "servlet":"jersey", "message":"Method Not Allowed", "url":"/admin/v2/x", "status":"405" }'


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, JETTY_PAGE, errors.AdminNotFound),
        (404, JETTY_JSON, errors.AdminNotFound),
        (405, JETTY_JSON, errors.AdminNotAllowed),
        (405, b"", errors.AdminNotAllowed),
    ],
)
def test_a_call_that_the_broker_does_not_have_is_named_as_such(scripted, status, body, expected):
    """The answers are those of Apache Pulsar 2.10.1."""
    server = scripted(answer(status, body))
    with geminga.Admin(server.url, retries=0) as admin, pytest.raises(errors.AdminError) as caught:
        admin.call("GET", "persistent/a/b/c/later")
    assert type(caught.value) is expected
    assert f"no such call (HTTP {status} for GET persistent/a/b/c/later)" in str(caught.value)


def test_peeking_asks_for_subscriptions_by_a_call_that_old_brokers_have(scripted):
    """Apache Pulsar 2.10 has no call for a subscription's properties."""
    server = scripted(answer(200, b'{"partitions": 0}'), answer(200, b'["another"]'))
    with geminga.Admin(server.url, retries=0) as admin, pytest.raises(geminga.SubscriptionNotFound):
        admin.subscriptions.peek("t", "s")
    assert "/public/default/t/subscriptions" in str(server.requests[-1])


def test_a_read_is_repeated_and_a_change_is_not(scripted, call):
    server = scripted(HANG_UP, answer(503), answer(200, b"1"))
    assert call(server.url, "GET", "clusters") == 1
    assert len(server.requests) == 3
    for said in (HANG_UP, answer(503)):
        server = scripted(said, answer(200, b"1"))
        with pytest.raises((errors.ConnectError, errors.AdminUnavailable)):
            call(server.url, "PUT", "tenants/x")
        assert len(server.requests) == 1


def test_a_change_never_goes_over_a_connection_that_was_kept(scripted, call):
    server = scripted(answer(204), answer(204))
    call(server.url, "PUT", "tenants/x", "tenants/y")
    assert server.connections == 2


def test_a_kept_connection_that_was_ended_costs_nothing(scripted):
    server = scripted(answer(200, b"1"), HANG_UP, answer(200, b"2"))
    with geminga.Admin(server.url, retries=0) as admin:
        assert (admin.call("GET", "a"), admin.call("GET", "a")) == (1, 2)


def test_a_redirect_is_followed_with_method_and_credentials(scripted, call):
    other = scripted(answer(204))
    server = scripted(answer(307, b"", f"Location: {other.url}/admin/v2/persistent/x?force=true"))
    call(server.url, "DELETE", "persistent/x", authentication=geminga.AuthenticationToken("secret"))
    (request,) = other.requests
    assert request.startswith("DELETE /admin/v2/persistent/x?force=true HTTP/1.1")
    assert "Authorization: Bearer secret" in request


def test_credentials_do_not_go_to_a_login_page(scripted, call):
    login = scripted()
    there = f"http://localhost:{login.port}/oauth2/authorize"  # another host's name
    server = scripted(answer(302, b"", f"Location: {there}"))
    with pytest.raises(
        errors.LookupError, match="credentials are not sent there; if it belongs to the cluster"
    ):
        call(server.url, "GET", "clusters", authentication=geminga.AuthenticationToken("secret"))
    assert login.connections == 0


def test_redirects_to_ftp_or_in_a_loop_are_refused(scripted, call):
    server = scripted(answer(307, b"", "Location: ftp://127.0.0.1/"))
    with pytest.raises(errors.LookupError, match="refused"):
        call(server.url, "GET", "clusters")
    server = scripted(*[answer(307, b"", "Location: /again")] * 10)
    with pytest.raises(errors.LookupError, match="too often"):
        call(server.url, "GET", "clusters")
    assert len(server.requests) == 6


def test_a_host_that_is_down_is_followed_by_the_next(scripted, call):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        down = closed.getsockname()[1]
    server = scripted(answer(204))
    call(f"http://127.0.0.1:{down},127.0.0.1:{server.port}", "PUT", "tenants/x")
    assert len(server.requests) == 1
    with pytest.raises(errors.ConnectError, match="is the broker running, and is this its web address"):
        call(f"http://127.0.0.1:{down}", "PUT", "tenants/x")


def test_an_expired_token_is_renewed_once(scripted, call):
    tokens = iter(["old", "new", "newer"])
    server = scripted(answer(401), answer(200, b"1"))
    token = geminga.AuthenticationToken(lambda: next(tokens))
    assert call(server.url, "GET", "clusters", authentication=token) == 1
    assert ["Bearer old" in server.requests[0], "Bearer new" in server.requests[1]] == [True, True]
    server = scripted(answer(401), answer(401))
    with pytest.raises(errors.AdminAuthenticationError, match="give credentials"):
        call(server.url, "GET", "clusters", authentication=geminga.AuthenticationToken(lambda: "x"))


def test_credentials_with_a_line_break_are_refused(scripted, call):
    server = scripted()
    with pytest.raises(errors.AuthenticationError, match="line break"):
        call(server.url, "GET", "a", authentication=geminga.AuthenticationToken("x\r\nHost: evil"))
    assert not server.requests


@pytest.mark.parametrize(
    "said",
    [b"SSH-2.0-OpenSSH_9\r\n", b"\x00\x00\x00\x05hello", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n",
     b"HTTP/1.1 200 Ok\r\nContent-Length: -5\r\n\r\n", b"HTTP/1.1 200 Ok\r\nContent-Length: x\r\n\r\n",
     b"HTTP/1.1 200 Ok\r\nContent-Length: 99999999999\r\n\r\n",
     b"HTTP/1.1 200 Ok\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
     b"HTTP/1.1 200 Ok\r\nX: " + b"x" * 70_000],
)  # fmt: skip
def test_an_answer_not_in_http_is_refused(scripted, call, said):
    server = scripted(said)
    with pytest.raises(errors.ConnectError, match=r"in HTTP: is this|announces an answer|before its answer"):
        call(server.url, "GET", "clusters", retries=0, operation_timeout_seconds=20)


def test_a_truncated_answer_raises_connect_error(scripted, call):
    server = scripted(lambda connected: connected.sendall(answer(200, b'["a", "b"]')[:-3]))
    with pytest.raises(errors.ConnectError, match="before its answer"):
        call(server.url, "GET", "clusters", retries=0)


def test_a_slow_answer_does_not_prolong_the_timeout(scripted, call):
    def dribble(connected: socket.socket) -> None:
        for byte in answer(200, b"x" * 10_000):
            connected.sendall(bytes([byte]))
            time.sleep(0.01)

    server = scripted(dribble)
    with pytest.raises(errors.Timeout, match=r"did not answer GET clusters within 0\.3 s$"):
        call(server.url, "GET", "clusters", operation_timeout_seconds=0.3)
    server = scripted(lambda connected: time.sleep(2))
    with pytest.raises(errors.Timeout, match="whether the change was made is not known"):
        call(server.url, "PUT", "tenants/x", operation_timeout_seconds=0.2)


def test_a_web_server_that_is_no_broker(scripted, call):
    server = scripted(answer(200, b"<html>"))
    with pytest.raises(errors.ProtocolError, match=r"not JSON: is this the web address"):
        call(server.url, "GET", "clusters")


def test_the_port_of_the_binary_protocol(call):
    with geminga.embedded() as broker:
        url = broker.service_url.replace("pulsar://", "http://")
        with pytest.raises(errors.ConnectError, match="is this its web address"):
            call(url, "GET", "clusters", operation_timeout_seconds=20)


@pytest.mark.parametrize(
    "url", ["", "foo", "localhost:8080", "pulsar://localhost:6650", "http://", "http://a:port", "http://[::1"]
)
def test_a_service_url_that_is_not_http_is_refused(url):
    with pytest.raises(errors.InvalidUrl, match="http://host:port"):
        geminga.Admin(url)


def test_tls_with_certificates(tmp_path, call):
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    certificate, key = authority.sign("broker")
    mine, my_key = authority.sign("boss")
    with geminga.embedded(
        tls_certificate=certificate, tls_key=key, tls_trust_certificates=authority.certificate,
        super_user_roles=("boss",), tls_require_client_certificate=True,
    ) as broker:  # fmt: skip
        trust = {"tls_trust_certs_file_path": str(authority.certificate)}
        shown = geminga.AuthenticationTLS(str(mine), str(my_key))
        assert "public" in call(broker.admin_url, "GET", "tenants", authentication=shown, **trust)
        with pytest.raises(errors.ConnectError):
            call(broker.admin_url, "GET", "tenants", **trust)
        with pytest.raises(errors.ConnectError, match="is not trusted"):
            call(
                broker.admin_url, "GET", "tenants", authentication=shown,
                tls_trust_certs_file_path=str(stranger.certificate),
            )  # fmt: skip


def test_a_child_process_has_connections_of_its_own(scripted):
    server = scripted(answer(200, b"1"), answer(200, b"2"), answer(200, b"3"))
    with geminga.Admin(server.url) as admin:
        assert admin.call("GET", "a") == 1
        child = os.fork()
        if child == 0:
            os._exit(0 if admin.call("GET", "a") == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert admin.call("GET", "a") == 3
    assert server.connections == 2


def test_many_threads_share_an_admin(scripted):
    server = scripted(*[answer(200, b"1")] * 400)
    found: list[Any] = []
    with geminga.Admin(server.url) as admin:

        def ask() -> None:
            found.extend(admin.call("GET", "a") for _ in range(20))

        join_threads(*[start_thread(ask) for _ in range(20)])
    assert found == [1] * 400


@pytest.mark.parametrize(
    "said",
    [
        answer(200, b'"abcde"'),
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer(200, b'"abcde"'),
        b"HTTP/1.1 200 Ok\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'4\r\n"abc\r\n3;x=y\r\nde"\r\n0\r\nT: x\r\n\r\n',
    ],
)
def test_an_answer_is_the_same_however_it_is_cut(scripted, call, said):
    def dribble(connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in said:
            connected.sendall(bytes([byte]))

    server = scripted(said, dribble)
    assert call(server.url, "GET", "clusters", "clusters") == ["abcde", "abcde"]
    assert server.connections == 1


def test_an_answer_up_to_the_end_of_the_connection(scripted, call):
    server = scripted(lambda connected: connected.sendall(b'HTTP/1.0 200 Ok\r\n\r\n"abc"'), answer(200, b"1"))
    assert call(server.url, "GET", "clusters", "clusters") == ["abc", 1]
    assert server.connections == 2


def check_threads_end() -> None:
    """Check that no thread of an asyncio admin client stays."""
    for thread in threading.enumerate():
        if thread.name.startswith("geminga-admin"):
            join_threads(thread)


async def test_a_cancelled_call_ends_its_thread(scripted):
    asked = threading.Event()

    def hang(connected: socket.socket) -> None:
        asked.set()
        connected.recv(1)

    server = scripted(hang)

    async with geminga.asyncio.Admin(server.url) as admin:
        waiting = asyncio.create_task(admin.call("GET", "clusters"))
        assert await asyncio.to_thread(asked.wait, 60)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    check_threads_end()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a queue of connections with a limit")
async def test_a_cancelled_call_stops_connecting():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as opened:
        where, port = full.getsockname()
        for _ in range(4):
            line = opened.enter_context(socket.socket())
            line.setblocking(False)
            line.connect_ex((where, port))
        async with geminga.asyncio.Admin(f"http://{where}:{port}", connection_timeout_ms=600_000) as admin:
            waiting = asyncio.create_task(admin.call("GET", "clusters"))
            await eventually_async(
                lambda: any(each.name.startswith("geminga-admin") for each in threading.enumerate())
            )
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        check_threads_end()


def test_a_length_of_thousands_of_digits_is_refused(scripted, call):
    said = b"HTTP/1.1 200 Ok\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"
    server = scripted(*[said] * 6)
    with pytest.raises(errors.ConnectError, match="announces an answer of 9999"):
        call(server.url, "GET", "clusters")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (b"HTTP/1.1 200 Ok\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc", errors.ConnectError),
        (answer(200, b"[" * 200_000), errors.ProtocolError),
        (answer(404, b"[" * 200_000), errors.AdminError),
        (b"HTTP/1.1 101 Switching\r\n\r\n", errors.AdminError),
    ],
)
def test_a_hostile_answer_raises_an_error_of_the_library(scripted, call, said, kind):
    server = scripted(*[said] * 6)
    with pytest.raises(kind):
        call(server.url, "GET", "clusters")
