"""A call of admin REST: the request and its host, reading and meaning of an answer, and retries.

`geminga.client.admin.transport` drives an `Exchange`: it sends its bytes, reports answers and errors to it,
and pauses between tries. Reads are retried after lost connections and on "temporarily unavailable" answers; a
change is sent once, unless no host received a byte of it.
"""

import contextlib
import io
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any
from urllib.parse import quote, urlencode

from geminga import errors
from geminga.client.options.authentication import Authentication
from geminga.client.options.settings import TlsSettings, security_of
from geminga.config import check_int, check_seconds, check_type, refuse
from geminga.connection import http_lookup
from geminga.connection.addresses import Address, ServiceUrl
from geminga.connection.authentication import CredentialsProvider, NoAuthentication
from geminga.connection.http_lookup import ANSWER_BYTES_MAX, reason_of
from geminga.connection.redirects import REDIRECTS, followed
from geminga.ids import TopicName

REDIRECTS_MAX = 5
_REPEATS = (307, 308)
"""Redirects after which a change is sent again."""
IDLE_SECONDS_MAX = 5.0
"""Idle time after which a connection is not used again: servers close theirs after 30 s or more."""
BACKOFF_FIRST_SECONDS = 0.1
_AGAIN = (429, 502, 503, 504)
_FORM = "http://host:port or https://host:port, the broker's web address (usually port 8080 or 8443)"


class RequestNotSent(errors.ConnectError):
    """No connection was established: nothing was sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminSettings:
    """Settings of `geminga.Admin`."""

    admin_url: str
    credentials: CredentialsProvider = field(default_factory=NoAuthentication)
    operation_timeout_seconds: float = 30.0
    connection_timeout_seconds: float = 10.0
    retries: int = 2
    tls: TlsSettings = field(default_factory=TlsSettings)
    redirects_max: int | None = REDIRECTS_MAX
    """Redirects of a call that are followed; None: none, they are answers like others."""

    def __post_init__(self) -> None:
        parse_admin_url(self.admin_url)
        check_seconds("operation_timeout_seconds", self.operation_timeout_seconds, 0.001)
        check_seconds("connection_timeout_seconds", self.connection_timeout_seconds, 0.001)
        check_int("retries", self.retries, 0, 100)


def parse_admin_url(text: str) -> tuple[Address, ...]:
    """Return the hosts of an admin URL, in the order written. Raises `InvalidUrl`."""
    try:
        url = ServiceUrl.parse(text)
    except errors.InvalidUrl as error:
        shown = "" if "@" in text else f" {text!r}"  # it may hold a password
        raise errors.InvalidUrl(f"admin URL{shown} is not allowed ({error}); allowed: {_FORM}") from None
    if not url.http:
        raise errors.InvalidUrl(f"admin URL {text!r} is not allowed; allowed: {_FORM}")
    return url.addresses


@dataclass(frozen=True, slots=True)
class Request:
    """One call: ``path`` is the path on the host with its query, percent-encoded."""

    method: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"

    @property
    def safe(self) -> bool:
        """Whether the call changes nothing and may be sent again."""
        return self.method in ("GET", "HEAD")

    def __str__(self) -> str:
        return f"{self.method} {self.path.removeprefix('/admin/v2/')}"


def make_request(
    method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None
) -> Request:
    """Make a request. ``path`` is below ``/admin/v2``, or absolute with a leading slash; None in ``query`` is
    omitted, and booleans become ``true`` and ``false``."""
    check_type("path", path, str)
    if any(c in path for c in "\r\n \x00"):
        refuse("path", path, "a percent-encoded path")
    whole = path if path.startswith("/") else f"/admin/v2/{path}"
    chosen = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in (query or {}).items()
        if value is not None
    }
    if chosen:
        whole += ("&" if "?" in whole else "?") + urlencode(chosen)
    data = None if body is None else json.dumps(body).encode()
    return Request(method.upper(), whole, data)


@dataclass(frozen=True, slots=True)
class AdminResponse:
    """Status, headers (names in lower case) and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    reusable: bool = False
    """Whether the connection may carry the next call."""

    def json(self, what: object) -> Any:
        """Return the decoded body, None if it is empty. Raises `ProtocolError`."""
        if not self.body.strip():
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise errors.ProtocolError(
                f"the answer to {what} is not JSON: is this the web address of a Pulsar broker?"
            ) from None

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Exchange:
    """One call from its first byte to its answer. Times are seconds of a monotonic clock."""

    def __init__(
        self, settings: AdminSettings, addresses: tuple[Address, ...], request: Request, now: float
    ) -> None:
        self._settings = settings
        self._hosts = list(addresses)
        self.request = request
        self.address = addresses[0]
        self.prefix = ""
        """Beginning of all paths at the first host."""
        self._path = request.path
        self._deadline = now + settings.operation_timeout_seconds
        self._tries = 0
        self._redirects = 0
        self._backoff = BACKOFF_FIRST_SECONDS
        self._unreached: list[str] = []
        self.challenged = False
        """Whether to fetch new credentials, as the broker refused the last ones."""
        self.line: socket.socket | None = None
        """Connection that is in use."""

    def seconds_left(self, now: float) -> float:
        """Return the seconds left. Raises `Timeout` after the time limit."""
        left = self._deadline - now
        if left <= 0:
            raise self.timed_out()
        return left

    def abort(self) -> None:
        """End the call soon, on any thread."""
        self._deadline = float("-inf")
        line = self.line
        if line is not None:
            with contextlib.suppress(OSError):  # it has ended
                # That of an SSLSocket ends TLS first: a send on another thread would be in plain text.
                socket.socket.shutdown(line, socket.SHUT_RDWR)

    def timed_out(self) -> errors.Timeout:
        """Return the error for a call that exceeds its time limit."""
        return errors.Timeout(
            f"{self.address.host_port} did not answer {self.request} within "
            f"{self._settings.operation_timeout_seconds:g} s"
            + ("" if self.request.safe else "; whether the change was made is not known")
        )

    def message(self, headers: tuple[tuple[str, str], ...]) -> bytes:
        """Return the bytes to send."""
        asked = self.request
        path = self.prefix + self._path
        if asked.body is not None:
            headers = (("Content-Type", asked.content_type), *headers)
        return http_lookup.request(self.address, path, headers, asked.method, asked.body)

    def failed(self, error: errors.PulsarException, now: float) -> float:
        """Note that no complete answer arrived. Return the seconds to pause before the next try; raise the
        error after the last.

        An unreachable host is followed by the next at once.
        """
        self.seconds_left(now)
        if isinstance(error, RequestNotSent):
            self._unreached.append(str(error))
            if len(self._hosts) > 1 and len(self._unreached) < len(self._hosts):
                self._hosts.append(self._hosts.pop(0))
                self.address = self._hosts[0]
                return 0.0
            self._unreached.clear()
        final = errors.ConnectError(str(error)) if isinstance(error, RequestNotSent) else error
        if not (self.request.safe or isinstance(error, RequestNotSent)) or not isinstance(
            error, errors.ConnectError
        ):
            raise final
        return self._again(final, now)

    def answered(self, answer: AdminResponse, now: float) -> float | None:
        """Return None if the request succeeded, else the seconds until it is to be sent again (0: at once).
        Raises the error that the answer reports."""
        if self.redirected(answer):
            return 0.0
        if 200 <= answer.status < 300:
            return None
        if answer.status == 401 and self._settings.credentials.blocking and not self.challenged:
            self.challenged = True
            return 0.0
        error = refusal(answer, self.request)
        if self.request.safe and answer.status in _AGAIN:
            return self._again(error, now)
        raise error

    def _again(self, error: errors.PulsarException, now: float) -> float:
        self._tries += 1
        pause, self._backoff = self._backoff, self._backoff * 2
        if self._tries > self._settings.retries or now + pause >= self._deadline:
            raise error
        return pause

    def redirected(self, answer: AdminResponse) -> bool:
        """Follow the redirect of an answer; return False if it has none. Raises `LookupError` for one that is
        not followed."""
        location, limit = answer.headers.get("location"), self._settings.redirects_max
        if answer.status not in REDIRECTS or not location or limit is None:
            return False
        if not (self.request.safe or answer.status in _REPEATS):
            what = f"{self.address.host_port} answers {self.request.method} with {answer.status}"
            raise errors.LookupError(f"{what} to {location!r}")
        self._redirects += 1
        if self._redirects > limit:
            raise errors.LookupError(f"{self.request} was redirected too often, last to {location!r}")
        self.address, self._path = followed(answer.status, location, self.address, self._path)
        self._hosts, self.prefix = [self.address], ""
        return True


_KINDS: dict[int, type[errors.AdminError]] = {
    400: errors.AdminBadRequest,
    401: errors.AdminAuthenticationError,
    403: errors.AdminAuthorizationError,
    404: errors.AdminNotFound,
    405: errors.AdminNotAllowed,
    406: errors.AdminNotAllowed,
    409: errors.AdminConflict,
    412: errors.AdminPreconditionFailed,
    422: errors.AdminBadRequest,
    **dict.fromkeys(_AGAIN, errors.AdminUnavailable),
}
_HELP = {
    401: "give credentials: Admin(url, authentication=geminga.AuthenticationToken(...)), or --token",
    403: "the role lacks the permission: a super user or the tenant's administrator can grant it",
}


def refusal(answer: AdminResponse, request: Request) -> errors.AdminError:
    """Return the error for an answer without success."""
    if _is_unknown_call(answer):
        unknown: type[errors.AdminError] = (
            errors.AdminNotFound if answer.status == 404 else errors.AdminNotAllowed
        )
        text = (
            f"the broker has no such call (HTTP {answer.status} for {request}): its version is older than "
            "the call, or it is another product; GET /admin/v2/brokers/version returns the version"
        )
        return unknown(text, status=answer.status)
    reason = reason_of(answer.body)
    kind = _KINDS.get(
        answer.status, errors.AdminServerError if answer.status >= 500 else errors.AdminNotAllowed
    )
    if kind is errors.AdminNotFound:
        kind = _not_found(request.path, reason)
    text = f"{reason} (HTTP {answer.status} for {request})"
    if answer.status in _HELP:
        text += f"; {_HELP[answer.status]}"
    return kind(text, status=answer.status)


def _is_unknown_call(answer: AdminResponse) -> bool:
    """Return whether the servlet container itself refused a path or method: Pulsar's refusals have a
    reason."""
    if answer.status not in (404, 405):
        return False
    text = answer.text()
    if answer.status == 405 and not text:
        return True
    return "<th>SERVLET:</th>" in text or ('"servlet":' in text and '"reason"' not in text)


def _not_found(path: str, reason: str) -> type[errors.AdminNotFound]:
    below = path.removeprefix("/admin/v2/")
    if below.startswith(("persistent/", "non-persistent/")):
        if "/subscription/" in below and "ubscription" in reason:
            return errors.AdminSubscriptionNotFound
        return errors.AdminTopicNotFound
    return errors.AdminNotFound


# --- HTTP/1.1 answers -----------------------------------------------------------------------------


class _TimedSocket(io.RawIOBase):
    """Socket as `HTTPResponse` reads it, within the call's time limit."""

    def __init__(self, line: socket.socket, exchange: Exchange) -> None:
        self._line = line
        self._exchange = exchange
        self._begun = False

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._line.settimeout(self._exchange.seconds_left(time.monotonic()))
        count = self._line.recv_into(buffer)
        if count and not self._begun and not b"HTTP/1.".startswith(bytes(buffer[: min(count, 7)])):
            raise no_http(self._exchange.address.host_port)  # such peers may wait for more
        self._begun = True
        return count


def read_answer(line: socket.socket, exchange: Exchange) -> AdminResponse:
    """Read the answer to a call. Raises `ConnectError` for bytes that are not HTTP or too many, `Timeout` at
    the call's time limit, and errors of the socket."""
    host = exchange.address.host_port
    response = HTTPResponse(_TimedSocket(line, exchange), method=exchange.request.method)  # type: ignore[arg-type]
    try:
        response.begin()
        length = response.getheader("Content-Length")
        if length is not None and not (
            length.isdecimal() and len(length) < 20 and int(length) <= ANSWER_BYTES_MAX
        ):
            raise errors.ConnectError(
                f"{host} announces an answer of {length[:20]} bytes; allowed: {ANSWER_BYTES_MAX}"
            )
        body = response.read(ANSWER_BYTES_MAX + 1 if response.length is None else None)
    except errors.PulsarException:
        raise
    except (ConnectionError, IncompleteRead):
        raise lost(exchange.address) from None
    except (HTTPException, ValueError):  # a negative length of a chunk is a ValueError
        raise no_http(host) from None
    if len(body) > ANSWER_BYTES_MAX:
        raise errors.ConnectError(f"the answer of {host} has more than {ANSWER_BYTES_MAX} bytes")
    headers = {name.lower(): value for name, value in response.getheaders()}
    return AdminResponse(response.status, headers, body, not response.will_close)


def lost(address: Address) -> errors.ConnectError:
    """Return the error for a connection that ended before its answer."""
    certificate = ", or require a certificate of the client" if address.tls else ""
    return errors.ConnectError(
        f"{address.host_port} ended the connection before its answer: is this its web address, and does it "
        f"speak HTTP or HTTPS{certificate}?"
    )


def no_http(host_port: str) -> errors.ConnectError:
    return errors.ConnectError(
        f"no answer from {host_port} in HTTP: is this the web address of a Pulsar broker (usually port 8080, "
        "with TLS 8443)?"
    )


# --- paths ----------------------------------------------------------------------------------------


def part(field_name: str, value: object) -> str:
    """Return one segment of a path: a name, percent-encoded."""
    if not isinstance(value, str) or not value or value in (".", ".."):
        refuse(field_name, value, "a name")
    return quote(value, safe="")


def namespace_path(namespace: object) -> str:
    """Return ``tenant/namespace``, percent-encoded."""
    parts = namespace.split("/") if isinstance(namespace, str) else []
    if len(parts) != 2 or not all(parts):
        refuse("namespace", namespace, "tenant/namespace")
    return "/".join(part("namespace", one) for one in parts)


def topic_name(topic: str | TopicName) -> TopicName:
    return topic if isinstance(topic, TopicName) else TopicName.parse(topic)


def topic_path(topic: str | TopicName) -> str:
    """Return ``persistent/tenant/namespace/topic``, encoded for a REST path."""
    name = topic_name(topic)
    return f"{name.domain}/{quote(name.tenant)}/{quote(name.namespace)}/{name.encoded_local}"


def settings_of(given: Mapping[str, Any]) -> AdminSettings:
    """Make settings from the arguments of `geminga.Admin`. Raises `InvalidUrl` and `InvalidConfiguration`."""
    authentication: Authentication | None = check_type(
        "authentication", given["authentication"], Authentication, optional=True
    )
    return AdminSettings(
        admin_url=given["admin_url"],
        operation_timeout_seconds=given["operation_timeout_seconds"],
        connection_timeout_seconds=check_int("connection_timeout_ms", given["connection_timeout_ms"], 1)
        / 1000,
        retries=given["retries"],
        **security_of(given, authentication, given["tls_trust_certs_file_path"]),
    )
