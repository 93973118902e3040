"""Routes of the web port: each handler declares method, path and needed permission in one line.

    @route("GET", PATH + "/stats", needs=LOOK)
    async def stats(self, request: web.Request) -> web.Response: ...

    @route("DELETE", "/admin/v2/clusters/{cluster}", needs=SUPER_USER)
    async def delete(self, cluster: str) -> None: ...

The docstring is the handler's line in the reference. `geminga.broker.admin.http.answering` says
which arguments it takes and what it may return. Permissions are Apache Pulsar's, with two stricter ones:
requests that act on all subscriptions at once (clearing the backlog of all, expiring on all) need an
administrator, and ``/metrics``, which has the topic names of every tenant, needs a super user or a role of
``metrics_roles``.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from aiohttp import web

from geminga.broker.admin.auth import Key, RequiredPermission

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
F = TypeVar("F", bound=Callable[..., Awaitable[object]])

(
    NOTHING, CREDENTIALS, SUPER_USER, METRICS, ADMINISTRATOR, LIST, SUBSCRIPTIONS, LOOK, PRODUCE, CONSUME,
) = RequiredPermission  # fmt: skip
_PATTERN: Final = re.compile(r"\{(\w+):[^}]*\}")


class Route(NamedTuple):
    """Route of the web port."""

    method: str
    path: str
    """Path with variable parts in braces, as aiohttp has it."""
    needs: RequiredPermission
    handler: Callable[..., Awaitable[Any]]

    @property
    def key(self) -> Key:
        """Method and path, with only the names of the variable parts in braces."""
        return self.method, _PATTERN.sub(r"{\1}", self.path)


def route(method: str, path: str, *, needs: RequiredPermission) -> Callable[[F], F]:
    """Return a decorator that declares a route of a handler. A handler may have several."""

    def declare(handler: F) -> F:
        vars(handler).setdefault("routes", []).insert(0, (method, path, needs))
        return handler

    return declare


def declared(resource: object) -> Iterator[Route]:
    """Yield the routes of a resource's handlers, in the order of the class."""
    for owner in reversed(type(resource).__mro__):
        for name, member in vars(owner).items():
            for method, path, needs in getattr(member, "routes", ()):
                yield Route(method, path, needs, getattr(resource, name))


def add_routes(router: web.UrlDispatcher, routes: Iterable[Route]) -> None:
    """Register routes. Fixed parts of a path come before variable ones in the same position."""
    for each in sorted(routes, key=_order):
        if each.method == "GET":
            router.add_get(each.path, each.handler)  # with HEAD
        else:
            router.add_route(each.method, each.path, each.handler)


def _order(each: Route) -> tuple[list[int], str]:
    parts = each.path.split("/")
    return [0 if "{" not in part else 1 if ":" in part else 2 for part in parts], each.path
