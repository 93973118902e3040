"""Requests over HTTP to brokers and consoles under test."""

import json
import ssl
import urllib.error
import urllib.request
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Any

    @property
    def document(self) -> Any:
        """The JSON of the body; None without one."""
        return json.loads(self.body or b"null")


def ask(
    url: str, method: str = "GET", body: Any = None, *, context: ssl.SSLContext | None = None, **headers: str
) -> Answer:
    """Send a request, and return its answer of any status.

    A body that is not bytes is sent as JSON. In names of headers ``_`` stands for ``-``.
    """
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **named}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return Answer(answer.status, answer.read(), answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(), error.headers)
