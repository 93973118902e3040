"""The console's pages: static files with strict security headers, and what they need besides admin REST: the
advice for producers, and sending dead letters back.

The pages request all data from admin REST, with the user's token. The files hold no data and are served
without authentication. The content security policy allows scripts, styles and requests of this origin only,
forbids framing by other pages, and (with Trusted Types) forbids markup from text.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from geminga.broker.admin.auth import Key, RequiredPermission
from geminga.broker.admin.http import answer
from geminga.console.advice import advice
from geminga.console.redriving import redrive

STATIC: Final = Path(__file__).parent / "static"
CONTENT_TYPES: Final = {
    ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml",
}  # fmt: skip
POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:",
        "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'", "trusted-types 'none'",
    )
)  # fmt: skip
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
    ("GET", "/console/api/advice"): RequiredPermission.CREDENTIALS,
    ("POST", "/console/api/redrive"): RequiredPermission.CREDENTIALS,
}


def attach(
    application: web.Application, send_back: Callable[[web.Request], Awaitable[web.Response]] = redrive
) -> Mapping[Key, RequiredPermission]:
    """Add the pages to a web application; return the permission that each route requires. ``send_back``
    handles the requests to `redrive`, by default at the broker of this application."""
    router = application.router
    router.add_post("/console/api/redrive", send_back)
    router.add_get("/", _index)
    router.add_get("/console/api/advice", _advice)
    router.add_get("/console/{file}", _file)
    return PERMISSIONS


FILES: Final = frozenset(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
"""Static files by name; a request never reads another file from the disk."""


async def _index(_request: web.Request) -> web.StreamResponse:
    return _served("index.html")


async def _file(request: web.Request) -> web.StreamResponse:
    return _served(request.match_info["file"])


def _served(name: str) -> web.StreamResponse:
    kind = CONTENT_TYPES.get(Path(name).suffix)
    if kind is None or name not in FILES:
        raise web.HTTPNotFound
    return web.FileResponse(STATIC / name, headers={**HEADERS, "Content-Type": f"{kind}; charset=utf-8"})


async def _advice(request: web.Request) -> web.Response:
    """Return the advice for producers of a topic, from figures in the query."""
    found: Any = advice(request.query)
    return answer(found)
