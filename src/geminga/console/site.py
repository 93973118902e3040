"""The console's pages: static files with strict security headers, and what they need besides admin REST: the
advice for producers, publishing a message, and sending dead letters back.

The pages request all data from admin REST, with the user's token. The files hold no data and are served
without authentication. The content security policy allows scripts, styles and requests of this origin only,
forbids framing by other pages, and (with Trusted Types) forbids markup from text. Programs that filter
messages run in a worker with a policy of its own.
"""

import html
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from geminga.broker.admin.auth import Key, RequiredPermission
from geminga.broker.admin.http import SERVER, answer
from geminga.broker.admin.masking import Masks
from geminga.broker.settings import BrokerSettings
from geminga.console.advice import advice
from geminga.console.publishing import publish
from geminga.console.redriving import Arguments, Json, redrive
from geminga.console.sign_in import SignIn

STATIC: Final = Path(__file__).parent / "static"
CONTENT_TYPES: Final = {
    ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml",
}  # fmt: skip
POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:",
        "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'", "trusted-types filter",
    )
)  # fmt: skip
FILTER_POLICY: Final = "default-src 'none'; script-src 'unsafe-eval'"
"""Policy of the worker that runs the programs by which people filter messages: no network, no other scripts.
A worker cannot reach the page, where the token is."""
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}
PERMISSIONS: Final[Mapping[Key, RequiredPermission]] = {
    ("GET", "/"): RequiredPermission.NOTHING,
    ("GET", "/console/{file}"): RequiredPermission.NOTHING,
    ("GET", "/console/login"): RequiredPermission.NOTHING,
    ("GET", "/console/callback"): RequiredPermission.NOTHING,
    ("GET", "/console/api/clusters"): RequiredPermission.NOTHING,
    ("GET", "/console/api/advice"): RequiredPermission.CREDENTIALS,
    ("POST", "/console/api/publish"): RequiredPermission.CREDENTIALS,
    ("POST", "/console/api/redrive"): RequiredPermission.CREDENTIALS,
}


def attach(
    application: web.Application,
    arguments: Arguments | None = None,
    clusters: Sequence[Json] = (),
    masks: Masks | None = None,
    settings: BrokerSettings | None = None,
) -> Mapping[Key, RequiredPermission]:
    """Add the pages to a web application; return the permission that each route requires.

    ``arguments``: those of the clients that publish and send dead letters back, by default for the broker of
    this application; ``masks`` and ``settings`` likewise. ``clusters``: ``name`` and ``path`` of each
    cluster to choose from.
    """
    sign_in = SignIn(settings or application[SERVER].settings, _page)

    async def choice(_request: web.Request) -> web.Response:
        return answer(list(clusters))

    router = application.router
    router.add_post("/console/api/publish", partial(publish, arguments=arguments))
    router.add_post("/console/api/redrive", partial(redrive, arguments=arguments, masks=masks))
    router.add_get("/console/api/clusters", choice)
    router.add_get("/", sign_in.index)
    router.add_get("/console/login", sign_in.login)
    router.add_get("/console/callback", sign_in.callback)
    router.add_get("/console/api/advice", _advice)
    router.add_get("/console/{file}", _file)
    return PERMISSIONS


FILES: Final = frozenset(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
"""Static files by name; a request never reads another file from the disk."""


def _page(data: Mapping[str, str]) -> web.StreamResponse:
    """Return the page, with ``data-`` attributes of its root element."""
    if not data:
        return _served("index.html")
    given = "".join(f' data-{name}="{html.escape(value)}"' for name, value in data.items())
    text = (STATIC / "index.html").read_text().replace("<html", f"<html{given}", 1)
    headers = {**HEADERS, "Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
    return web.Response(body=text.encode(errors="replace"), headers=headers)


async def _file(request: web.Request) -> web.StreamResponse:
    return _served(request.match_info["file"])


def _served(name: str) -> web.StreamResponse:
    kind = CONTENT_TYPES.get(Path(name).suffix)
    if kind is None or name not in FILES:
        raise web.HTTPNotFound
    headers = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8"}
    if name == "filter.js":
        headers["Content-Security-Policy"] = FILTER_POLICY
    return web.FileResponse(STATIC / name, headers=headers)


async def _advice(request: web.Request) -> web.Response:
    """Return the advice for producers of a topic, from figures in the query."""
    found: Any = advice(request.query)
    return answer(found)
