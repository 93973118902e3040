"""What several sub-commands share: the options for addresses and JSON, and the admin REST call."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import click

from geminga.errors import ConnectError, PulsarException, from_server
from geminga.ids import TopicName

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "pulsar://127.0.0.1:6650"
DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"

url_option = click.option(
    "--url", "service_url", default=DEFAULT_URL, envvar="PULSAR_SERVICE_URL", show_default=True,
    help="The broker's service URL.",
)  # fmt: skip
admin_url_option = click.option(
    "--admin-url", default=DEFAULT_ADMIN_URL, envvar="PULSAR_ADMIN_URL", show_default=True,
    help="The broker's web address.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")

_NOT_FOUND = 404
_CODE_BY_STATUS = {401: 3, 403: 4, 404: 11, 405: 22, 409: 1, 412: 22}


def emit(value: Any, *, as_json: bool, text: str) -> None:
    """Print ``value`` as one line of JSON, or ``text`` for a person."""
    click.echo(json.dumps(value, separators=(",", ":"), default=str) if as_json else text)


def topic_path(topic: TopicName) -> str:
    """``persistent/tenant/namespace/topic``, encoded for a REST path."""
    return f"{topic.domain}/{quote(topic.tenant)}/{quote(topic.namespace)}/{topic.encoded_local}"


def admin(admin_url: str, method: str, path: str, body: Any = None, *, timeout_seconds: float = 30.0) -> Any:
    """One admin REST call; the decoded JSON of the answer, None when it is empty.

    Raises `ConnectError` when nothing answers, else the error class that fits the status.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{admin_url.rstrip('/')}/admin/v2/{path}",
        data=data,
        method=method,
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        raise _refused(error) from None
    except (OSError, ValueError) as error:
        raise ConnectError(
            f"no answer from {admin_url} ({getattr(error, 'reason', error)}): is the broker running? "
            "Name its web address with --admin-url"
        ) from None
    return json.loads(content) if content.strip() else None


def _refused(error: urllib.error.HTTPError) -> PulsarException:
    content = error.read().decode(errors="replace")
    try:
        reason = json.loads(content)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = content[:200] or error.reason
    return from_server(_CODE_BY_STATUS.get(error.code, 0), f"{reason} (HTTP {error.code})")
