"""Sign-in with a company account: OpenID Connect, authorization code with PKCE.

The process that serves the console exchanges the code. The page receives the identity token in its HTML,
once, and keeps it in memory as it keeps a token that was typed; the broker verifies the token with each
request.

The code verifier is a random secret in a cookie that only the callback receives; state and nonce are hashes
of it. So the process keeps no state, and a code is accepted only in the browser that began the sign-in. The
cookie is named after the state: several tabs may sign in at once.
"""

import base64
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

from aiohttp import web
from yarl import URL

from geminga.broker.serving.issuer_keys import IssuerFailed, Json, ask, discovery, endpoint
from geminga.broker.settings import BrokerSettings

COOKIE: Final = "geminga-sign-in-"
"""Name of the cookie, before the state."""
SECONDS_MAX: Final = 600
"""Longest time from the login to the callback."""
NOT_SILENT: Final = (
    "login_required",
    "interaction_required",
    "consent_required",
    "account_selection_required",
)
"""Errors of an issuer that would have to ask the person something, but was asked not to."""
DISCOVERY_SECONDS: Final = 3600
"""Time for which the issuer's endpoints are cached."""
_TOKEN: Final = re.compile(r"[-\w]+\.[-\w]+\.[-\w]+", re.ASCII)
Page = Callable[[Mapping[str, str]], web.StreamResponse]


class QuestionNeeded(Exception):
    """An issuer's answer to a silent sign-in: it would have to ask the person something."""


class SignIn:
    """Sign-in at the issuer of the settings; without an issuer its routes answer 404."""

    def __init__(self, settings: BrokerSettings, page: Page) -> None:
        """``page(data)`` returns the console's page with ``data-`` attributes."""
        self._page = page
        self._issuer = (settings.sign_in_issuer or "").rstrip("/")
        self._client_id = settings.sign_in_client_id or ""
        self._scopes = settings.sign_in_scopes
        self._secret_file = settings.sign_in_client_secret
        self._endpoints: Json = {}
        self._known_until = 0.0

    async def index(self, _request: web.Request) -> web.StreamResponse:
        """Return the page, which offers the sign-in if there is an issuer."""
        return self._page({"token": ""} if self._issuer else {})

    async def login(self, request: web.Request) -> web.StreamResponse:
        """Redirect to the issuer; with ``?silent`` it asks the person nothing, or answers with an error."""
        if not self._issuer:
            raise web.HTTPNotFound
        verifier = secrets.token_urlsafe(32)
        query = {
            "response_type": "code", "client_id": self._client_id, "scope": self._scopes,
            "redirect_uri": _callback_url(request), "state": _digest("state", verifier),
            "nonce": _digest("nonce", verifier), "code_challenge": _digest("", verifier),
            "code_challenge_method": "S256",
        }  # fmt: skip
        if "silent" in request.query:
            query["prompt"] = "none"
        try:
            where = URL(await self._endpoint("authorization_endpoint")).update_query(query)
            url = URL(_callback_url(request))
        except (IssuerFailed, ValueError) as error:  # a malformed address
            return self._failed(error)
        found = web.Response(status=302, headers={"Location": str(where), "Cache-Control": "no-store"})
        found.set_cookie(
            COOKIE + query["state"], verifier, max_age=SECONDS_MAX, path=url.path,
            secure=url.scheme == "https", httponly=True, samesite="Lax",
        )  # fmt: skip
        return found

    async def callback(self, request: web.Request) -> web.StreamResponse:
        """Exchange the issuer's code, and return the page with the identity token, or with a reason."""
        if not self._issuer:
            raise web.HTTPNotFound
        try:
            found = self._page({"token": await self._token(request)})
        except QuestionNeeded:
            found = self._page({"token": ""})
        except IssuerFailed as error:
            found = self._failed(error)
        name = COOKIE + request.query.get("state", "")
        if name in request.cookies:
            found.del_cookie(name, path=request.path)
        return found

    def _failed(self, error: Exception) -> web.StreamResponse:
        return self._page({"token": "", "problem": f"The sign-in failed: {error}"})

    async def _token(self, request: web.Request) -> str:
        """Return the identity token for the code of a callback. Raises `IssuerFailed`, `QuestionNeeded`."""
        query, state = request.query, request.query.get("state", "")
        verifier = request.cookies.get(COOKIE + state, "")
        if not verifier or state != _digest("state", verifier):
            raise IssuerFailed("it was not begun in this browser, or too long ago")
        if "code" not in query:
            raise QuestionNeeded if query.get("error") in NOT_SILENT else IssuerFailed(_reason(query))
        form = {
            "grant_type": "authorization_code", "code": query["code"], "code_verifier": verifier,
            "redirect_uri": _callback_url(request), "client_id": self._client_id,
        }  # fmt: skip
        where, headers = await self._endpoint("token_endpoint"), {}
        basic, secret = "client_secret_basic", self._secret()
        if secret and basic in self._endpoints.get("token_endpoint_auth_methods_supported", [basic]):
            pair = f"{quote_plus(self._client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif secret:
            form["client_secret"] = secret
        found = await ask("POST", where, data=form, headers=headers)
        token = found.get("id_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise IssuerFailed(_reason(found))
        self._check(token, _digest("nonce", verifier))
        return token

    def _secret(self) -> str:
        """Return the client secret; an empty text without one. Raises `IssuerFailed`."""
        try:
            return "" if self._secret_file is None else Path(self._secret_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise IssuerFailed(f"sign_in_client_secret cannot be read ({type(error).__name__})") from None

    def _check(self, token: str, nonce: str) -> None:
        """Check what the broker does not: that the token is of this issuer, application and sign-in."""
        try:
            claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
            audience = claims["aud"]
            wanted = claims["iss"].rstrip("/") == self._issuer and claims["nonce"] == nonce
            wanted &= self._client_id in (audience if isinstance(audience, list) else [audience])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            wanted = False
        if not wanted:
            raise IssuerFailed("the issuer's token is for another issuer, application or sign-in")

    async def _endpoint(self, name: str) -> str:
        """Return an endpoint from the issuer's discovery document. Raises `IssuerFailed`."""
        if time.monotonic() >= self._known_until:
            found = await discovery(self._issuer)
            self._endpoints, self._known_until = found, time.monotonic() + DISCOVERY_SECONDS
        return endpoint(self._endpoints, name)


def _callback_url(request: web.Request) -> str:
    """Return the address of the callback beside the requested path, as the browser reaches it. The issuer
    allows registered addresses only."""
    is_secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
    path = request.path.rpartition("/")[0] + "/callback"
    return f"{'https' if is_secure else 'http'}://{request.headers.get('Host', '')}{path}"


def _digest(purpose: str, secret: str) -> str:
    digest = hashlib.sha256((purpose + secret).encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _reason(answer: Mapping[str, Any]) -> str:
    """Return an issuer's error, shortened."""
    words = [str(answer[name])[:200] for name in ("error", "error_description") if answer.get(name)]
    return ": ".join(words) or "the issuer returned no identity token"
