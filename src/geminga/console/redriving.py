"""Dead letters that are sent back from the console: what ``geminga subscriptions redrive`` does."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
import tempfile
from typing import IO, Any, Final

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import answer, object_body
from geminga.client.cluster import Cluster
from geminga.errors import PulsarException, TopicNotFound

COUNT_MAX: Final = 10_000
"""Dead letters of one request."""


async def redrive(request: web.Request, cluster: Cluster | None = None) -> web.Response:
    """Send the dead letters of a subscription back, or with ``preview`` return what would be sent.

    The body names ``topic`` and ``subscription``, and may have ``key`` and ``contains``. The client uses the
    request's token, at ``cluster`` or, for None, at the web port that received the request. Raises
    `AdminRefusal`.
    """
    import geminga.asyncio
    from geminga.client.redrive import Redrive, RedriveFilter

    body = await object_body(request)
    topic, subscription = _text(body, "topic"), _text(body, "subscription")
    only = RedriveFilter(
        key=_text(body, "key", None), contains=(_text(body, "contains", None) or "").encode(errors="replace"),
        count_max=COUNT_MAX,
    )  # fmt: skip
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        try:
            if cluster is None:
                cluster = await _own_cluster(request, file)
            if scheme == "Bearer":
                cluster = dataclasses.replace(cluster, auth_plugin="token", auth_params=f"token:{token}")
            async with (
                geminga.asyncio.Client(**cluster.client_arguments()) as client,
                geminga.asyncio.Admin(**cluster.admin_arguments()) as admin,
            ):
                found = Redrive(client, admin, topic, subscription, only=only)
                result = await (found.preview() if body.get("preview") else found.run())
        except TopicNotFound as error:
            raise AdminRefusal(404, str(error)) from None
        except (PulsarException, OSError) as error:
            raise AdminRefusal(409, str(error)) from None
    return answer({"sent": dict(result.sent), "left": result.left, "encrypted": result.encrypted})


async def _own_cluster(request: web.Request, file: IO[str]) -> Cluster:
    """Return the broker that received the request. With TLS it is known by its own certificate, written to
    ``file``: it need not name this address, nor be signed by an authority that this machine knows."""
    host, port = request.get_extra_info("sockname")[:2]
    cluster = Cluster(admin_url=f"{request.scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    if request.scheme != "https":
        return cluster
    file.write(await asyncio.to_thread(ssl.get_server_certificate, (host, port), timeout=10))
    file.flush()
    return dataclasses.replace(cluster, tls_trust_certs_file_path=file.name, tls_validate_hostname=False)


def _text(body: dict[str, Any], name: str, *default: None) -> Any:
    """Return a text of the body, or the default for None. Raises `AdminRefusal`."""
    value = body.get(name)
    if not (isinstance(value, str) or (default and value is None)):
        raise AdminRefusal(412, f"{name}={value!r} is not allowed; allowed: a text")
    return value
