"""Authentication and authorization of requests to the web port.

Without good credentials every path answers 401, whether it exists or not; a forbidden request answers 403,
whether the resource exists or not.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.rules.authentication import Authenticator, Judgement, Unauthenticated, common_name
from geminga.broker.rules.authorization import CONSUME, PRODUCE, Authorization
from geminga.errors import InvalidTopicName
from geminga.ids import TopicName

Key = tuple[str, str]
"""Method and path, with the names of the variable parts in braces."""


class RequiredPermission(Enum):
    """Permission that a role needs for a route; the text completes "This needs …"."""

    NOTHING = "nothing, not even credentials"
    CREDENTIALS = "credentials of any role"
    SUPER_USER = "a super user"
    METRICS = "a super user, or a role of metrics_roles"
    ADMINISTRATOR = "an administrator of the tenant"
    LIST = "the permission to consume in the namespace"
    SUBSCRIPTIONS = "the permission to consume in the namespace, by this subscription"
    LOOK = "the permission to produce to the topic or to consume from it"
    PRODUCE = "the permission to produce to the topic"
    CONSUME = "the permission to consume from the topic, by this subscription"


def key_of(method: str, resource: web.AbstractResource | None) -> Key | None:
    """Return the key of a route in the table of permissions; None if the request matches no route."""
    return None if resource is None else ("GET" if method == "HEAD" else method, resource.canonical)


class AuthorizationMiddleware:
    """Authorization of web requests."""

    def __init__(
        self,
        authentication: Authenticator,
        authorization: Authorization | None,
        permissions: Mapping[Key, RequiredPermission],
    ) -> None:
        """Without ``authorization`` authenticated roles may do everything. Other routes are refused."""
        self._permissions = permissions
        self._authentication = authentication
        self._authorization = authorization

    @property
    def schemes(self) -> str:
        """Value of the header ``WWW-Authenticate``."""
        return self._authentication.schemes

    async def admit(self, request: web.Request, now_ms: int, note: Callable[[str], None]) -> None:
        """Raise `AdminRefusal`: 401 for an unauthenticated request, 403 for a forbidden one.

        ``note`` is called with the authenticated role.
        """
        key = key_of(request.method, request.match_info.route.resource)
        needs = self._permissions.get(key) if key is not None else None
        if needs is RequiredPermission.NOTHING:
            return
        role = await self._role(request, now_ms)
        note(role)
        if key is None or self._authorization is None:
            return  # no such path: the router answers 404
        if needs is None or not _permitted(self._authorization, role, needs, request):
            wanted = "a rule, and has none" if needs is None else needs.value
            raise AdminRefusal(
                403, f"Unauthorized: {role!r} may not {request.method} {request.path}; this needs {wanted}"
            )

    async def sight(self, request: web.Request, now_ms: int) -> tuple[str, Callable[[str], bool]] | None:
        """Return the role and a test for the topics it may see in lists; None if it may see all topics."""
        authorization = self._authorization
        if authorization is None:
            return None
        role = await self._role(request, now_ms)
        if authorization.is_super_user(role):
            return None
        return role, lambda topic: authorization.may_look(role, TopicName.parse(topic))

    async def _role(self, request: web.Request, now_ms: int) -> str:
        transport, authentication = request.transport, self._authentication
        name = None if transport is None else common_name(transport.get_extra_info("peercert"))
        try:
            method, data = authentication.shown(request.headers.get("Authorization") or _query_token(request))
            judge = partial(authentication.judged, method, data, now_ms, name, _host(transport))
            found = await self._aside(judge) if authentication.takes_long(method, data) else judge()
        except Unauthenticated as error:
            found = error
        if isinstance(found, Unauthenticated):
            raise AdminRefusal(401, f"Authentication required: {found}")
        principal = found
        original = request.headers.get("X-Original-Principal")
        if original and original != principal.role:
            raise AdminRefusal(403, "Unauthorized: not allowed to speak for another principal")
        return principal.role

    async def _aside(self, judge: Callable[[], Judgement]) -> Judgement:
        judged: asyncio.Future[Judgement] = asyncio.get_running_loop().create_future()

        def report(found: Judgement) -> None:
            if not judged.done():  # the request may have been freed
                judged.set_result(found)

        self._authentication.aside(judge, report)
        return await judged


def _query_token(request: web.Request) -> str | None:
    """Return the token that a WebSocket's address holds, as a header: browsers can't send headers there."""
    token = request.query.get("token") if request.path.startswith("/ws/") else None
    return None if token is None else f"Bearer {token}"


def _host(transport: asyncio.BaseTransport | None) -> str:
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) and peer else ""


def _permitted(
    authorization: Authorization, role: str, needs: RequiredPermission, request: web.Request
) -> bool:
    if needs is RequiredPermission.CREDENTIALS or authorization.is_super_user(role):
        return True
    if needs is RequiredPermission.SUPER_USER:
        return False
    if needs is RequiredPermission.METRICS:
        return authorization.may_read_metrics(role)
    names = request.match_info
    tenant, namespace = names["tenant"], names.get("namespace", "")
    if needs is RequiredPermission.ADMINISTRATOR:
        return authorization.administers(role, tenant)
    if needs is RequiredPermission.LIST:
        return authorization.may_in_namespace(role, CONSUME, tenant, namespace)
    subscription = names.get("subscription", "")
    if needs is RequiredPermission.SUBSCRIPTIONS:
        return authorization.may_use_subscriptions(role, tenant, namespace, subscription)
    try:
        topic = TopicName.parse(
            f"{names.get('domain', 'persistent')}://{tenant}/{namespace}/{names['topic']}"
        )
    except InvalidTopicName:
        return authorization.administers(role, tenant)
    if needs is RequiredPermission.LOOK:
        return authorization.may_look(role, topic)
    if needs is RequiredPermission.PRODUCE:
        return authorization.may(role, PRODUCE, topic)
    return authorization.may_subscribe(role, topic, subscription)
