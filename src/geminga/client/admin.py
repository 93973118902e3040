"""Admin REST calls with nothing but the standard library: what the command line and the demo need."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from geminga.errors import ConnectError, PulsarException, from_server
from geminga.ids import TopicName

_CODE_BY_STATUS = {401: 3, 403: 4, 404: 11, 405: 22, 409: 1, 412: 22}
"""The ``ServerError`` code whose exception class fits an HTTP status."""


def topic_path(topic: TopicName) -> str:
    """``persistent/tenant/namespace/topic``, encoded for a REST path."""
    return f"{topic.domain}/{quote(topic.tenant)}/{quote(topic.namespace)}/{topic.encoded_local}"


def admin(admin_url: str, method: str, path: str, body: Any = None, *, timeout_seconds: float = 30.0) -> Any:
    """One call below ``/admin/v2``; the decoded JSON of the answer, None when it is empty.

    Raises `ConnectError` when nothing answers, else the error class that fits the status.
    """
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(
            f"{admin_url.rstrip('/')}/admin/v2/{path}",
            data=data,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        raise _refused(error) from None
    except (OSError, ValueError) as error:
        raise ConnectError(
            f"no answer from {admin_url} ({getattr(error, 'reason', error)}): is the broker running, "
            "and is this its web address?"
        ) from None
    return json.loads(content) if content.strip() else None


def _refused(error: urllib.error.HTTPError) -> PulsarException:
    content = error.read().decode(errors="replace")
    try:
        reason = json.loads(content)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = content[:200] or error.reason
    return from_server(_CODE_BY_STATUS.get(error.code, 0), f"{reason} (HTTP {error.code})")
