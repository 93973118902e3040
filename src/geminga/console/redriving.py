"""Dead letters that are sent back from the console: what ``geminga subscriptions redrive`` does."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import object_body
from geminga.client.cluster import Cluster
from geminga.errors import PulsarException, TopicNotFound

COUNT_MAX: Final = 10_000
"""Dead letters of one request."""


async def redrive(request: web.Request, cluster: Cluster | None) -> dict[str, Any]:
    """Send the dead letters of a subscription back, or with ``preview`` return what would be sent.

    The body names ``topic`` and ``subscription``, and may have ``key`` and ``contains``. The client uses the
    request's token, at ``cluster`` or, for None, at the web port that received the request. Raises
    `AdminRefusal`.
    """
    import geminga.asyncio
    from geminga.client.redrive import Redrive, RedriveFilter

    body = await object_body(request)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if cluster is None:
        host, port = request.get_extra_info("sockname")[:2]
        host = f"[{host}]" if ":" in host else host
        cluster = Cluster(admin_url=f"{request.scheme}://{host}:{port}")
    if scheme == "Bearer":
        cluster = dataclasses.replace(cluster, auth_plugin="token", auth_params=f"token:{token}")
    only = RedriveFilter(
        key=body.get("key"), contains=str(body.get("contains", "")).encode(), count_max=COUNT_MAX
    )
    try:
        async with (
            geminga.asyncio.Client(**cluster.client_arguments()) as client,
            geminga.asyncio.Admin(**cluster.admin_arguments()) as admin,
        ):
            found = Redrive(client, admin, str(body["topic"]), str(body["subscription"]), only=only)
            result = await (found.preview() if body.get("preview") else found.run())
    except KeyError as error:
        raise AdminRefusal(412, f"the body names no {error}") from None
    except TopicNotFound as error:
        raise AdminRefusal(404, str(error)) from None
    except PulsarException as error:
        raise AdminRefusal(409, str(error)) from None
    return {"sent": dict(result.sent), "left": result.left, "encrypted": result.encrypted}
