"""Admin REST calls with nothing but the standard library: what the command line and the demo need."""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from geminga.connection.authentication import CredentialsProvider, NoAuthentication, obtain
from geminga.errors import ConnectError, InvalidUrl, ProtocolError, PulsarException, from_server
from geminga.ids import TopicName

_CODE_BY_STATUS = {401: 3, 403: 4, 404: 11, 503: 6}
"""The ``ServerError`` code whose exception class fits an HTTP status."""
_CODE_REFUSED = 22
"""NotAllowedError: of the other refusals (4xx)."""


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """What a caller shows of itself, and whom it trusts. ``tls``: None trusts as the system does."""

    credentials: CredentialsProvider = field(default_factory=NoAuthentication)
    tls: ssl.SSLContext | None = None


NOBODY = AdminAccess()
"""Shows nothing."""


def topic_path(topic: TopicName) -> str:
    """``persistent/tenant/namespace/topic``, encoded for a REST path."""
    return f"{topic.domain}/{quote(topic.tenant)}/{quote(topic.namespace)}/{topic.encoded_local}"


def admin(
    admin_url: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    timeout_seconds: float = 30.0,
    access: AdminAccess = NOBODY,
) -> Any:
    """One call below ``/admin/v2``; the decoded JSON of the answer, None when it is empty.

    Raises `ErrorGettingAuthenticationData` when there are no credentials to be had, `InvalidUrl`,
    `ConnectError` when nothing answers, `ProtocolError` when the answer is no JSON, else the error class
    that fits the status.
    """
    data = None if body is None else json.dumps(body).encode()
    opener = _opener(admin_url, access.tls)
    headers = dict(obtain(access.credentials).http_headers)
    try:
        request = urllib.request.Request(
            f"{admin_url.rstrip('/')}/admin/v2/{path}",
            data=data,
            method=method,
            headers={"Content-Type": "application/json", **headers},
        )
        with opener.open(request, timeout=timeout_seconds) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        raise _refused(error, f"{method} {path}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConnectError(
            f"no answer from {admin_url} ({getattr(error, 'reason', error) or type(error).__name__}): is the "
            "broker running, and is this its web address?"
        ) from None
    try:
        return json.loads(content) if content.strip() else None
    except ValueError:
        raise ProtocolError(
            f"{admin_url} answered {method} {path} with something that is no JSON: is it the web address of "
            "a Pulsar broker?"
        ) from None


def _opener(admin_url: str, tls: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """What opens the URL; raises `InvalidUrl`. This machine is reached without a proxy."""
    try:
        parts = urlsplit(admin_url)
        host = parts.hostname
        usable = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        usable, host = False, None
    if not usable or host is None:
        raise InvalidUrl(
            f"admin URL {admin_url!r} is not allowed; allowed: http://host:port, the broker's web address "
            "(usually port 8080)"
        )
    handlers: list[urllib.request.BaseHandler] = []
    if _is_loopback(host):
        handlers.append(urllib.request.ProxyHandler({}))
    if tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=tls))
    return urllib.request.build_opener(*handlers)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refused(error: urllib.error.HTTPError, what: str) -> PulsarException:
    content = error.read().decode(errors="replace")
    try:
        reason = json.loads(content)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = content[:200] or error.reason
    code = _CODE_BY_STATUS.get(error.code, _CODE_REFUSED if error.code < 500 else 0)
    return from_server(code, f"{reason} (HTTP {error.code} for {what})")
