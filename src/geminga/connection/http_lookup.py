"""Lookups over the REST API, for service URLs with ``http`` or ``https``: paths, requests, and answers.

Each request is one GET (``/lookup/v2`` and ``/admin/v2``): the broker of a topic, its number of partitions,
the topics of a namespace, the statistics of a topic. Answers are converted to those of the binary protocol,
so that other modules need not distinguish the two.
"""

import json
from typing import Any
from urllib.parse import quote, urlencode

from geminga.connection.addresses import Address
from geminga.connection.commands import CLIENT_VERSION
from geminga.connection.lookup import BrokerLocation, believed_count, usable_address
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
from geminga.wire.proto import pulsar_wire_pb2 as pb

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Limit on the bytes read of an answer: Apache Pulsar sends the stats of all topics in one."""


class HttpAnswered(ConnectError):
    """The REST API answered with an error. ``pulsar-client`` calls every such answer a `ConnectError`; the
    subclasses also name its kind."""


class HttpRefused(HttpAnswered):
    """Retrying the request would fail again."""

    retriable = False


class HttpAuthenticationError(AuthenticationError, HttpRefused):
    """401: no credentials, or wrong ones."""


class HttpAuthorizationError(AuthorizationError, HttpRefused):
    """403: the role lacks the permission."""


class HttpTopicNotFound(TopicNotFound, HttpRefused):
    """404: no such topic, namespace or tenant."""


class HttpNotReady(ServiceUnitNotReady, HttpAnswered):
    """5xx: the server failed; another try may succeed."""


class HttpTooManyRequests(TooManyLookupRequestException, HttpAnswered):
    """429: too many requests; another try may succeed."""


def place_path(topic: str, listener_name: str | None) -> str:
    """Return the path of the lookup of ``topic``."""
    query = f"?{urlencode({'listenerName': listener_name})}" if listener_name else ""
    return f"/lookup/v2/topic/{_path_of(TopicName.parse(topic))}{query}"


def partitions_path(topic: TopicName, *, auto_creation: bool) -> str:
    """Return the path of the number of partitions of ``topic``."""
    return f"/admin/v2/{_path_of(topic)}/partitions?checkAllowAutoCreation={str(auto_creation).lower()}"


def stats_path(topic: TopicName) -> str:
    """Return the path of the statistics of ``topic``, unpartitioned or a partition."""
    return f"/admin/v2/{_path_of(topic)}/stats"


def topics_path(namespace: str, mode: int) -> str:
    """Return the path of the topics of ``tenant/namespace``. ``mode``:
    ``pb.CommandGetTopicsOfNamespace.PERSISTENT`` ..."""
    name = pb.CommandGetTopicsOfNamespace.Mode.Name(mode)
    return f"/admin/v2/namespaces/{quote(namespace)}/topics?mode={name}"


def _path_of(topic: TopicName) -> str:
    return f"{topic.domain}/{quote(topic.tenant)}/{quote(topic.namespace)}/{topic.encoded_local}"


def request(
    address: Address, path: str, headers: tuple[tuple[str, str], ...], method: str = "GET",
    body: bytes | None = None,
) -> bytes:  # fmt: skip
    """Return the bytes of a request. Raises `AuthenticationError` for credentials that no header can hold."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {address.host_port}",
        f"User-Agent: {CLIENT_VERSION}",
        "Accept: application/json, */*",
    ]
    if body is not None or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body or b'')}")
    for name, value in headers:
        if any(c in "\r\n\x00" or c > "\xff" for c in value):
            raise AuthenticationError(
                "the credentials hold a character that HTTP headers do not allow, such as a line break"
            )
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


def content_of(status: int, body: bytes, what: str) -> Any:
    """Return the decoded JSON of an answer. Raises the error for its status, or `ProtocolError` if it is not
    JSON."""
    if status == 200:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{what}: the REST API answered with something other than JSON") from error
    reason = f"{what}: HTTP {status}: {reason_of(body)}"
    kinds = {401: HttpAuthenticationError, 403: HttpAuthorizationError, 404: HttpTopicNotFound}
    if status == 429:
        raise HttpTooManyRequests(reason)
    if status >= 500:
        raise HttpNotReady(reason)
    raise kinds.get(status, HttpRefused)(reason)


def reason_of(body: bytes) -> str:
    """Return the reason that the answer of a refusal gives."""
    text = body.decode("utf-8", "replace")
    try:
        reason = str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError, RecursionError):
        if "<html" in text[:200].lower():  # a servlet container's page says no more than the status
            return "refused"
        return " ".join(text.split())[:200] or "no reason given"
    if "\nMessage: " in reason:  # drop the Java stack trace that follows
        reason = reason.partition("\nMessage: ")[2].partition("\n")[0]
    return reason.strip() or "no reason given"


def place_of(content: Any, topic: str, *, tls: bool) -> BrokerLocation:
    """Return the broker of a topic. Raises `LookupError` if the answer has no usable address."""
    if not isinstance(content, dict):
        raise ProtocolError(f"lookup of {topic!r}: the REST API answered with {type(content).__name__}")
    url = (content.get("brokerUrlTls") or content.get("brokerUrlSsl")) if tls else content.get("brokerUrl")
    return BrokerLocation(usable_address(url if isinstance(url, str) else "", topic, tls=tls))


def partitions_of(content: Any, topic: str) -> int:
    """Return the number of partitions of a topic; 0: it is not partitioned."""
    count = content.get("partitions") if isinstance(content, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ProtocolError(f"the REST API announces {count!r} partitions of {topic!r}")
    return believed_count(count)


def ack_holes_of(content: Any, subscription: str) -> int | None:
    """Return the ack holes from a topic's statistics: runs of acknowledged messages after an unacknowledged
    one. None if unknown."""
    for name in ("subscriptions", subscription, "nonContiguousDeletedMessagesRanges"):
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, int) and not isinstance(content, bool) else None


def topics_of(content: Any, namespace: str) -> pb.CommandGetTopicsOfNamespaceResponse:
    """Return the topics of a namespace in the form of the binary protocol."""
    try:
        if isinstance(content, list):
            return pb.CommandGetTopicsOfNamespaceResponse(topics=content)
    except (TypeError, ValueError):  # members that are no texts, or have lone surrogates
        pass
    raise ProtocolError(f"the REST API did not answer with a list of the topics of {namespace!r}")
