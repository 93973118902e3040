"""Finding topics over the REST interface, for service URLs with ``http`` or ``https``: bytes in and out.

Five questions, each one GET (admin REST, ``/lookup/v2`` and ``/admin/v2``): where a topic lives, how many
partitions it has, which topics a namespace has, what the broker says of it. The answers are made what the
binary protocol would have given, so that nobody behind this module knows the difference.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote, urlencode

from geminga.connection.addresses import Address
from geminga.connection.commands import CLIENT_VERSION
from geminga.connection.lookup import BrokerLocation, usable_address
from geminga.connection.partitions import believed_count
from geminga.connection.redirects import REDIRECTS
from geminga.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    ProtocolError,
    ServiceUnitNotReady,
    TooManyLookupRequestException,
    TopicNotFound,
)
from geminga.ids import TopicName
from geminga.wire.frames import INSTANCE_HEADER
from geminga.wire.proto import pulsar_wire_pb2 as pb

ANSWER_BYTES_MAX = 128 * 1024 * 1024
"""The longest answer that is read: the names of a million topics have room."""


class HttpAnswered(ConnectError):
    """The REST interface was reached and answered with an error. ``pulsar-client`` calls every such answer a
    `ConnectError`; the classes below say what it was as well."""


class HttpRefused(HttpAnswered):
    """The same question gets the same answer."""

    retriable = False


class HttpAuthenticationError(AuthenticationError, HttpRefused):
    """401."""


class HttpAuthorizationError(AuthorizationError, HttpRefused):
    """403."""


class HttpTopicNotFound(TopicNotFound, HttpRefused):
    """404: no such topic, namespace or tenant."""


class HttpNotReady(ServiceUnitNotReady, HttpAnswered):
    """A server's fault (5xx): another try may help."""


class HttpTooManyRequests(TooManyLookupRequestException, HttpAnswered):
    """429: another try may help."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A status with what came with it."""

    status: int
    location: str | None
    body: bytes
    instance_id: str | None = None
    """The broker's, if it is Geminga's."""

    @property
    def redirected(self) -> bool:
        return self.status in REDIRECTS and self.location is not None


def place_path(topic: str, listener_name: str | None) -> str:
    """Where does ``topic`` live?"""
    query = f"?{urlencode({'listenerName': listener_name})}" if listener_name else ""
    return f"/lookup/v2/topic/{_path_of(TopicName.parse(topic))}{query}"


def partitions_path(topic: TopicName, *, auto_creation: bool) -> str:
    """How many partitions has ``topic``?"""
    return f"/admin/v2/{_path_of(topic)}/partitions?checkAllowAutoCreation={str(auto_creation).lower()}"


def stats_path(topic: TopicName) -> str:
    """What does the broker say of ``topic``, a plain one or a partition?"""
    return f"/admin/v2/{_path_of(topic)}/stats"


def topics_path(namespace: str, mode: int) -> str:
    """Which topics has ``tenant/namespace``? ``mode``: ``pb.CommandGetTopicsOfNamespace.PERSISTENT`` ..."""
    name = pb.CommandGetTopicsOfNamespace.Mode.Name(mode)
    return f"/admin/v2/namespaces/{quote(namespace)}/topics?mode={name}"


def _path_of(topic: TopicName) -> str:
    return f"{topic.domain}/{quote(topic.tenant)}/{quote(topic.namespace)}/{topic.encoded_local}"


def request(address: Address, path: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """The bytes of a GET; the server ends the connection with its answer."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {address.host_port}",
        f"User-Agent: {CLIENT_VERSION}",
        "Accept: application/json",
        "Connection: close",
        *(f"{name}: {_header(value)}" for name, value in headers),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _header(value: str) -> str:
    if any(c in value for c in "\r\n\x00"):
        raise AuthenticationError("the credentials hold a line break, which no HTTP header can")
    return value


class _Bytes:
    """What `HTTPResponse` takes for a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def read_answer(address: Address, data: bytes) -> HttpAnswer:
    """Everything that the server sent until it ended the connection. Raises `ConnectError` when that is
    less than it announced, or no HTTP."""
    response = HTTPResponse(_Bytes(data))  # type: ignore[arg-type]
    try:
        response.begin()
        body = response.read()
    except (HTTPException, ValueError, OSError) as error:
        raise ConnectError(
            f"{address.host_port} gave no whole HTTP answer ({type(error).__name__}): is it the REST "
            "interface of a Pulsar broker (usually port 8080)?"
        ) from error
    return HttpAnswer(
        response.status, response.getheader("Location"), body, response.getheader(INSTANCE_HEADER)
    )


def content_of(answer: HttpAnswer, what: str) -> Any:
    """The decoded JSON of an answer. Raises the error that fits the status, `ProtocolError` for no JSON."""
    if answer.status == 200:
        try:
            return json.loads(answer.body)
        except ValueError as error:
            raise ProtocolError(
                f"{what}: the REST interface answered with something that is no JSON"
            ) from error
    reason = f"{what}: HTTP {answer.status}: {_reason(answer.body)}"
    kinds = {401: HttpAuthenticationError, 403: HttpAuthorizationError, 404: HttpTopicNotFound}
    if answer.status == 429:
        raise HttpTooManyRequests(reason)
    if answer.status >= 500:
        raise HttpNotReady(reason)
    raise kinds.get(answer.status, HttpRefused)(reason)


def _reason(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return text.strip()[:200] or "no reason given"


def place_of(content: Any, topic: str, *, tls: bool) -> BrokerLocation:
    """Where a topic lives. Raises `LookupError` when the answer has no usable address."""
    if not isinstance(content, dict):
        raise ProtocolError(f"lookup of {topic!r}: the REST interface answered with {type(content).__name__}")
    url = (content.get("brokerUrlTls") or content.get("brokerUrlSsl")) if tls else content.get("brokerUrl")
    return BrokerLocation(usable_address(url if isinstance(url, str) else "", topic, tls=tls))


def partitions_of(content: Any, topic: str) -> int:
    """How many partitions a topic has; 0: it is not partitioned."""
    count = content.get("partitions") if isinstance(content, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ProtocolError(f"the REST interface announces {count!r} partitions of {topic!r}")
    return believed_count(count)


def ack_holes_of(content: Any, subscription: str) -> int | None:
    """From the statistics of a topic: runs of acknowledged messages behind one that is not. None when they do
    not say."""
    for name in ("subscriptions", subscription, "nonContiguousDeletedMessagesRanges"):
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, int) and not isinstance(content, bool) else None


def topics_of(content: Any, namespace: str) -> pb.CommandGetTopicsOfNamespaceResponse:
    """The topics of a namespace, as the binary protocol would have listed them."""
    if not isinstance(content, list) or not all(isinstance(name, str) for name in content):
        raise ProtocolError(f"the REST interface answered with no list of the topics of {namespace!r}")
    return pb.CommandGetTopicsOfNamespaceResponse(topics=content)
