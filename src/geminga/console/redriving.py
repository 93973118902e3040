"""Dead letters that are sent back from the console: what ``geminga subscriptions redrive`` does."""

import base64
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import SERVER, answer, object_body
from geminga.broker.admin.masking import Masks
from geminga.errors import PulsarException, TopicNotFound

COUNT_MAX: Final = 10_000
"""Dead letters of one request."""
Json = dict[str, Any]
Arguments = Callable[[], tuple[Json, Json]]
"""Arguments of the client and of the admin of a cluster."""


async def redrive(
    request: web.Request, arguments: Arguments | None = None, masks: Masks | None = None
) -> web.Response:
    """Send the dead letters of a subscription back, or with ``preview`` return what would be sent.

    The body names ``topic`` and ``subscription``, and may have ``key`` and ``contains``. ``arguments``
    returns the arguments of the client and of the admin, by default for the web port that received the
    request. Both use the request's credentials. ``masks``: by default those of that port's broker. Raises
    `AdminRefusal`: 403 for a condition on what is masked, which the number of messages would reveal.
    """
    from geminga.asyncio import Admin, Client, Redrive, RedriveFilter

    body = await object_body(request)
    topic, subscription = text_of(body, "topic"), text_of(body, "subscription")
    contains = (text_of(body, "contains", None) or "").encode(errors="replace")
    only = RedriveFilter(key=text_of(body, "key", None), contains=contains, count_max=COUNT_MAX)
    of_client, of_admin = arguments_for(request, arguments, "geminga subscriptions redrive")
    try:
        async with Client(**of_client) as client, Admin(**of_admin) as admin:
            found = Redrive(client, admin, topic, subscription, only=only)
            rules = Masks(request.app[SERVER].settings.masked_fields) if masks is None else masks
            names = rules.of(found.dead_letters)
            if names and (contains or (only.key is not None and "key" in names)):
                raise AdminRefusal(403, f"{found.dead_letters} has masked fields: they cannot be searched")
            result = await (found.preview() if body.get("preview") else found.run())
    except AdminRefusal:
        raise
    except TopicNotFound as error:
        raise AdminRefusal(404, str(error)) from None
    except (PulsarException, OSError) as error:
        raise AdminRefusal(409, str(error)) from None
    return answer({"sent": dict(result.sent), "left": result.left, "encrypted": result.encrypted})


def arguments_for(request: web.Request, arguments: Arguments | None, command: str) -> tuple[Json, Json]:
    """Return the arguments of client and admin, with the credentials of the request. ``arguments``: as of
    `redrive`; ``command``: what a client known by its certificate can use instead. Raises `AdminRefusal`."""
    shown = _authentication(request.headers.get("Authorization", ""))
    if arguments is None:
        of_client, of_admin = _own(request, shown is not None, command)
    else:
        of_client, of_admin = arguments()
    if shown is None:
        return of_client, of_admin
    return _with(shown, of_client), _with(shown, of_admin)


def _own(request: web.Request, has_login: bool, command: str) -> tuple[Json, Json]:
    """Return the arguments for the broker that received the request. With TLS it is known by its own
    certificate, which need not name this address, nor be signed by an authority that this machine knows.

    Raises `AdminRefusal` for a client known by its certificate, whose key this process does not have.
    """
    host, port = request.get_extra_info("sockname")[:2]
    url = f"{request.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    both: Json = {}
    settings = request.app[SERVER].settings
    if request.get_extra_info("peercert") and (settings.tls_require_client_certificate or not has_login):
        raise AdminRefusal(
            501, f"the console does not have the key of your client certificate: use {command}"
        )
    if request.scheme == "https" and settings.tls_certificate is not None:
        both = {"tls_trust_certs_file_path": str(settings.tls_certificate), "tls_validate_hostname": False}
    return {"service_url": url, **both}, {"admin_url": url, **both}


def _authentication(header: str) -> Any:
    """Return the token, or user name and password, of a header ``Authorization`` as a client's argument; None
    for another header. Raises `AdminRefusal`."""
    import geminga

    scheme, _, text = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return geminga.AuthenticationToken(text.strip())
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(text).decode().partition(":")
    except ValueError:
        raise AdminRefusal(401, "the basic credentials are not base64 of a text") from None
    return geminga.AuthenticationBasic(user, password)


def _with(authentication: Any, arguments: Json) -> Json:
    """Return the arguments with ``authentication``, and with their client certificate if they have one."""
    if before := arguments.get("authentication"):
        authentication.certificate_path = before.certificate_path
        authentication.private_key_path = before.private_key_path
    return arguments | {"authentication": authentication}


def text_of(body: Json, name: str, *default: None) -> Any:
    """Return a text of the body, or the default for None. Raises `AdminRefusal`."""
    value = body.get(name)
    if not (isinstance(value, str) or (default and value is None)):
        raise AdminRefusal(412, f"{name}={value!r} is not allowed; allowed: a text")
    return value
