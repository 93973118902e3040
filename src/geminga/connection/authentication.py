"""Credentials of a client: method names and their data (framing.md section 3).

A `Credentials` is the content of one CONNECT or AUTH_RESPONSE. Providers create them; a provider may be
called again at any time, as a broker challenges a connection whose credentials expire.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from geminga.errors import ErrorGettingAuthenticationData, InvalidConfiguration, PulsarException


class WrongParameters(InvalidConfiguration, RuntimeError):
    """Authentication parameters are malformed; ``pulsar-client`` raises `RuntimeError`."""


REFRESH_CHALLENGE = b"PulsarAuthRefresh"
"""Challenge by which a broker requests fresh credentials of the same principal."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A method name and its data; ``http_headers`` are the equivalent for the REST API.

    Neither the data nor the headers show in reprs.
    """

    method: str
    data: bytes = field(repr=False)
    http_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def token_credentials(token: str) -> Credentials:
    """Return the credentials for a token."""
    return Credentials("token", token.encode(), (("Authorization", f"Bearer {token}"),))


class CredentialsProvider(Protocol):
    """Provider of credentials. ``credentials`` may block (a token supplier may read a file or call a server),
    so it is called off the event loop if ``blocking`` is true."""

    @property
    def method(self) -> str: ...

    @property
    def blocking(self) -> bool: ...

    def credentials(self, challenge: bytes | None = None) -> Credentials:
        """Return credentials for a CONNECT, or as the answer to a challenge. Raises
        `ErrorGettingAuthenticationData`."""


class NoAuthentication:
    """Provider for connections without credentials."""

    method = "none"
    blocking = False

    def credentials(self, challenge: bytes | None = None) -> Credentials:
        return Credentials(self.method, b"")


class TokenCredentials:
    """Provider for a JWT, or a function that returns the current one, as text or as bytes of a file."""

    method = "token"

    def __init__(self, token: str | Callable[[], str | bytes]) -> None:
        self._token = token
        self.blocking = callable(token)

    def credentials(self, challenge: bytes | None = None) -> Credentials:
        token: object = self._token
        if callable(self._token):
            try:
                token = self._token()
            except Exception as error:
                raise ErrorGettingAuthenticationData(
                    f"the token supplier failed: {type(error).__name__}: {error}"
                ) from error
        if isinstance(token, bytes):
            token = token.decode(errors="replace")
        if not isinstance(token, str) or not token:
            raise ErrorGettingAuthenticationData("the token supplier must return a text that is not empty")
        return token_credentials(token.strip())

    def __repr__(self) -> str:
        return "TokenCredentials(***)"


class BasicCredentials:
    """Provider for ``user:password``. ``method`` may be another name that the broker accepts for this
    data."""

    blocking = False

    def __init__(self, username: str, password: str, method: str = "basic") -> None:
        self.method = method
        self._data = f"{username}:{password}".encode()
        self._username = username

    @staticmethod
    def from_json(text: str) -> BasicCredentials:
        """Parse ``{"username": ..., "password": ..., "method": ...}``; Java's ``userId`` is accepted too.
        Raises `WrongParameters` without repeating the text, which holds a password."""
        try:
            parameters = json.loads(text)
            name = "userId" if "username" not in parameters else "username"
            username, password = parameters[name], parameters["password"]
            method = parameters.get("method", "basic")
        except (ValueError, TypeError, KeyError, AttributeError):
            raise WrongParameters(
                'auth_params_string is not {"username": ..., "password": ..., "method": optional}'
            ) from None
        if not all(isinstance(value, str) for value in (username, password, method)):
            raise WrongParameters("auth_params_string: username, password and method must be text")
        return BasicCredentials(username, password, method)

    def credentials(self, challenge: bytes | None = None) -> Credentials:
        encoded = b64encode(self._data).decode()
        return Credentials(self.method, self._data, (("Authorization", f"Basic {encoded}"),))

    def __repr__(self) -> str:
        return f"BasicCredentials({self._username!r}, ***, method={self.method!r})"


class TlsCredentials(NoAuthentication):
    """Provider for the client certificate of the TLS connection; no data is sent."""

    method = "tls"


def obtain(provider: CredentialsProvider, challenge: bytes | None = None) -> Credentials:
    """Return a provider's credentials; its exceptions become `ErrorGettingAuthenticationData`."""
    try:
        return provider.credentials(challenge)
    except PulsarException:
        raise
    except Exception as error:
        raise ErrorGettingAuthenticationData(
            f"authentication {provider.method!r} failed: {type(error).__name__}: {error}"
        ) from error
