"""Tokens of an OpenID Connect issuer, verified with the signing keys (JWKS) that it publishes.

The keys are cached. They are requested again after `KEPT_SECONDS`, and when a token names an unknown key:
an issuer may change its keys at any time. Requests are at least `RETRY_SECONDS` apart and are made on the
thread of slow verifications; while they fail, the known keys stay valid.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterator
from typing import Any, Final

import aiohttp

from geminga.broker.rules.authentication import Unauthenticated
from geminga.broker.rules.tokens import SigningKey, TokenMethod, key_algorithms
from geminga.broker.settings import is_secure_url

log = logging.getLogger("geminga.broker")

KEPT_SECONDS: Final = 3600.0
RETRY_SECONDS: Final = 60.0
SLACK_SECONDS: Final = 5.0
"""Time by which a request is due earlier before a verification than in it: it never blocks the event loop."""
CALL_SECONDS_MAX: Final = 10
ANSWER_BYTES_MAX: Final = 1 << 20
"""Largest answer of an issuer."""
Json = dict[str, Any]


class IssuerFailed(Exception):
    """Reason why an issuer cannot be used."""


class IssuerTokens(TokenMethod):
    """Verifies tokens by the key that their header names (``kid``), and that they are of the issuer."""

    def __init__(self, issuer: str, *, second: SigningKey | None = None, **options: Any) -> None:
        """``second`` is a key for tokens of other origin; ``options`` are those of `TokenMethod`."""
        super().__init__(*(second or (None, ())), **options)
        self._others = self._keys if second is not None else []
        self._issuer = issuer.rstrip("/")
        self._published: dict[str, SigningKey] = {}
        self._asked_at, self._kept_seconds = float("-inf"), KEPT_SECONDS
        self._is_asking = False

    def takes_long(self, data: bytes) -> bool:
        """Return whether the issuer's keys have to be requested first, or are being requested."""
        kid = self._kid(data)
        return self._is_due(kid, SLACK_SECONDS) or (self._is_asking and kid not in self._published)

    def claims(self, data: bytes, now_ms: int) -> Json:
        kid = self._kid(data)
        if self._is_due(kid):
            self._request()
        key = self._published.get(kid)
        if key is None and not self._others:
            raise Unauthenticated("the token's key is not one of the issuer's")
        if key is None:
            return self.verified(data, now_ms, self._others)
        claims = self.verified(data, now_ms, [key])
        if str(claims.get("iss")).rstrip("/") != self._issuer:
            raise Unauthenticated("the token is of another issuer")
        return claims

    def _kid(self, data: bytes) -> str:
        """Return the name of the token's key; empty without one."""
        try:
            return str(self._jwt.get_unverified_header(data.strip()).get("kid", ""))
        except Exception:  # parsers may raise anything for a hostile token
            return ""

    def _is_due(self, kid: str, slack: float = 0.0) -> bool:
        """Return whether the keys are too old, or this one is not known and may be new."""
        may_be_new = kid and kid not in self._published
        age = time.monotonic() - self._asked_at + slack
        return age > (RETRY_SECONDS if may_be_new else self._kept_seconds)

    def _request(self) -> None:
        self._is_asking, self._asked_at, self._kept_seconds = True, time.monotonic(), RETRY_SECONDS
        try:
            self._published = asyncio.run(self._read())
            self._kept_seconds = KEPT_SECONDS
        except Exception as error:  # no answer, or of another form
            log.warning("the signing keys of %s cannot be read: %r", self._issuer, error)
        self._is_asking = False

    async def _read(self) -> dict[str, SigningKey]:
        where = endpoint(await discovery(self._issuer), "jwks_uri")
        return dict(self._usable((await ask("GET", where))["keys"]))

    def _usable(self, listed: list[Json]) -> Iterator[tuple[str, SigningKey]]:
        """Yield the public keys for signatures, by their names; those of other kinds are left out."""
        for each in listed:
            with contextlib.suppress(Exception):  # an unknown kind or form
                if each["kty"] in ("RSA", "EC") and each.get("use") != "enc" and "d" not in each:
                    key = self._jwt.PyJWK(each).key
                    yield str(each.get("kid", "")), (key, list(key_algorithms(key)))


async def discovery(issuer: str) -> Json:
    """Return an issuer's discovery document. Raises `IssuerFailed`."""
    found = await ask("GET", f"{issuer}/.well-known/openid-configuration")
    if str(found.get("issuer")).rstrip("/") != issuer:
        raise IssuerFailed(f"{issuer} names another issuer")
    return found


def endpoint(found: Json, name: str) -> str:
    """Return an endpoint of a discovery document. Raises `IssuerFailed`."""
    where = found.get(name)
    if not isinstance(where, str) or not is_secure_url(where):
        raise IssuerFailed(f"{found['issuer']} names no {name} with https")
    return where


async def ask(method: str, url: str, **options: Any) -> Json:
    """Return the JSON object of an answer of any status; no redirect is followed. Raises `IssuerFailed`."""
    timeout = aiohttp.ClientTimeout(total=CALL_SECONDS_MAX)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, url, allow_redirects=False, **options) as answer,
        ):
            content = bytearray()
            async for piece in answer.content.iter_any():
                content += piece
                if len(content) > ANSWER_BYTES_MAX:
                    raise IssuerFailed(f"{url} answers with more than {ANSWER_BYTES_MAX} bytes")
        found = json.loads(content)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise IssuerFailed(f"{url} does not answer ({type(error).__name__})") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise IssuerFailed(f"{url} answers {answer.status}, without a JSON object")
    return found
