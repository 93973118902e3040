"""OAuth 2 client credentials: an access token from an issuer, cached until it nearly expires.

Needs oauthlib (``pip install 'geminga[oauth2]'``), which builds the request and checks the answer; the HTTP
calls use the standard library. The broker handles the access token like any other token.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from geminga.config import refuse
from geminga.connection.authentication import Credentials, token_credentials
from geminga.errors import ErrorGettingAuthenticationData, InvalidConfiguration, OperationNotSupported

logger = logging.getLogger("geminga")

ANSWER_BYTES_MAX = 1 << 20
"""Limit on the bytes read of an issuer's answer."""
CALL_SECONDS_MAX = 10.0
EARLY_SECONDS = 10.0
"""Time before expiry at which a token is renewed; a token valid for less than 100 s after nine tenths of
it."""
_DATA_PREFIX = "data:application/json;base64,"
_JAVA_NAMES = {"issuerUrl": "issuer_url", "privateKey": "private_key"}
_FORMS = "a path, file:///path, or data:application/json;base64,..."


class CredentialsUnavailable(ErrorGettingAuthenticationData):
    """The issuer is unreachable or failing: another try may succeed."""

    retriable = True


class ClientCredentials:
    """Credentials provider (`geminga.connection.authentication`) for one client of an issuer.

    ``fetch(url, body)`` makes all requests: a GET without ``body``, else a POST of a form; it returns status
    and content and may raise `OSError`. ``clock`` returns seconds.
    """

    method = "token"
    blocking = True

    def __init__(
        self,
        issuer_url: str,
        client_id: str,
        client_secret: str,
        *,
        audience: str | None = None,
        scope: str | None = None,
        fetch: Callable[[str, str | None], tuple[int, bytes]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            from oauthlib.oauth2 import BackendApplicationClient
        except ImportError:
            raise OperationNotSupported(
                "OAuth 2 needs oauthlib: pip install 'geminga[oauth2]' (or use AuthenticationToken with a "
                "function that gets tokens)"
            ) from None
        self._issuer_url = _checked_url("issuer_url", issuer_url)
        self._client = BackendApplicationClient(client_id=client_id)
        self._form = {"client_secret": client_secret, "scope": scope}
        if audience:
            self._form["audience"] = audience
        self._fetch = fetch or _fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._token_url: str | None = None
        self._token = ""
        self._renew_at = float("-inf")

    @staticmethod
    def from_json(text: str) -> ClientCredentials:
        """Make one from the parameters of ``AuthenticationOauth2``; Java's ``issuerUrl`` and ``privateKey``
        are accepted too. Raises `InvalidConfiguration` without repeating possible secrets."""
        given = _object("auth_params_string", text)
        parameters = {**{ours: given[java] for java, ours in _JAVA_NAMES.items() if java in given}, **given}
        kind = parameters.get("type", "client_credentials")
        if kind != "client_credentials":
            refuse("type", kind, "client_credentials")
        key = parameters if "private_key" not in parameters else _key_file(parameters["private_key"])
        texts = {name: parameters.get(name) for name in ("issuer_url", "audience", "scope")}
        texts |= {name: key.get(name) for name in ("client_id", "client_secret")}
        for name, value in texts.items():
            required = name not in ("audience", "scope")
            if not isinstance(value, str) and (required or value is not None):
                raise InvalidConfiguration(f"auth_params_string: {name} must be a text")
        return ClientCredentials(
            str(texts["issuer_url"]),
            str(texts["client_id"]),
            str(texts["client_secret"]),
            audience=texts["audience"],
            scope=texts["scope"],
        )

    def credentials(self, challenge: bytes | None = None) -> Credentials:
        """Return the cached token; a new one near its expiry, or for a broker that found it expired
        (``challenge``). Raises `ErrorGettingAuthenticationData`, with ``retriable`` if another try may
        succeed."""
        with self._lock:
            if challenge is not None or self._clock() >= self._renew_at:
                self._renew()
            return token_credentials(self._token)

    def _renew(self) -> None:
        from oauthlib.oauth2 import OAuth2Error

        if self._token_url is None:
            self._token_url = self._discover()
        body = self._client.prepare_request_body(include_client_id=True, **self._form)
        content = self._ask(self._token_url, body)
        try:
            token = self._client.parse_request_body_response(content.decode())
        except (OAuth2Error, ValueError) as error:
            raise ErrorGettingAuthenticationData(
                f"{self._issuer_url} returned no token: {getattr(error, 'description', None) or error}"
            ) from None
        self._token = str(token["access_token"])
        lifetime = token.get("expires_in")
        life = float(lifetime) if isinstance(lifetime, (int, float)) else float("inf")
        self._renew_at = self._clock() + max(life - EARLY_SECONDS, life * 0.9 if life < 100 else 0.0)

    def _discover(self) -> str:
        """Return the token endpoint from the issuer's OpenID Connect discovery."""
        content = self._ask(f"{self._issuer_url.rstrip('/')}/.well-known/openid-configuration", None)
        try:
            return _checked_url("token_endpoint", json.loads(content)["token_endpoint"])
        except (ValueError, KeyError, TypeError) as error:
            raise ErrorGettingAuthenticationData(
                f"{self._issuer_url} names no token endpoint ({type(error).__name__}): is it an issuer?"
            ) from None

    def _ask(self, url: str, body: str | None) -> bytes:
        try:
            status, content = self._fetch(url, body)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise CredentialsUnavailable(f"no answer from {url}: {reason}") from None
        if status >= 500 or status == 429:
            raise CredentialsUnavailable(f"{url} answered with HTTP {status}")
        if status >= 400 and body is None:
            raise ErrorGettingAuthenticationData(f"{url} answered with HTTP {status}")
        return content  # a refusal of the token endpoint is JSON with the reason

    def __repr__(self) -> str:
        return f"ClientCredentials({self._issuer_url!r}, ***)"


def _fetch(url: str, body: str | None) -> tuple[int, bytes]:
    request = urllib.request.Request(
        url, data=None if body is None else body.encode(), headers={"Accept": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=CALL_SECONDS_MAX) as answer:
            return int(answer.status), answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(ANSWER_BYTES_MAX)


def _checked_url(name: str, url: Any) -> str:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        refuse(name, url, "an http(s) URL")
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        logger.warning("%s=%s: secrets are sent unencrypted; use https", name, url)
    return str(url)


def _object(name: str, text: str | bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidConfiguration(f"{name} is not a JSON object")
    return found


def _key_file(where: Any) -> Mapping[str, Any]:
    """Return the object with ``client_id`` and ``client_secret`` that ``private_key`` refers to."""
    if not isinstance(where, str) or not where:
        raise InvalidConfiguration(f"private_key must be {_FORMS}")
    if where.startswith("data:"):
        if not where.startswith(_DATA_PREFIX):
            raise InvalidConfiguration(f"private_key with data: must start with {_DATA_PREFIX}")
        try:
            return _object("private_key", base64.b64decode(where.removeprefix(_DATA_PREFIX), validate=True))
        except (binascii.Error, ValueError) as error:
            if isinstance(error, InvalidConfiguration):
                raise
            raise InvalidConfiguration(
                "private_key is not base64 after data:application/json;base64,"
            ) from None
    parts = urlsplit(where)
    if parts.scheme not in ("", "file"):
        refuse("private_key", f"{parts.scheme}:...", _FORMS)
    path = Path(unquote(parts.path) if parts.scheme else where)
    try:
        return _object(f"private_key={str(path)!r}", path.read_bytes())
    except OSError as error:
        raise InvalidConfiguration(f"private_key={str(path)!r} cannot be read: {error.strerror}") from None
