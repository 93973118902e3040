"""What a client shows of itself: method names and the bytes that go with them (framing.md section 3).

A `Credentials` is what one CONNECT or AUTH_RESPONSE carries. Providers make them; a provider may be
asked again at any time because a broker challenges a connection whose credentials expire.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from geminga.errors import ErrorGettingAuthenticationData, InvalidConfiguration, PulsarException


class WrongParameters(InvalidConfiguration, RuntimeError):
    """A text of authentication parameters that cannot be read; ``pulsar-client`` raises `RuntimeError`."""


REFRESH_CHALLENGE = b"PulsarAuthRefresh"
"""The challenge by which a broker asks for fresh credentials of the same principal."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A method name and its data; ``http_headers`` show the same to the REST interface.

    Neither the data nor the headers show in reprs.
    """

    method: str
    data: bytes = field(repr=False)
    http_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def token_credentials(token: str) -> Credentials:
    """What shows a token, wherever it comes from."""
    return Credentials("token", token.encode(), (("Authorization", f"Bearer {token}"),))


class CredentialsProvider(Protocol):
    """Makes credentials. ``credentials`` may block (a token supplier may read a file or ask a server),
    so shells call it off their event loop when ``blocking`` is true."""

    @property
    def method(self) -> str: ...

    @property
    def blocking(self) -> bool: ...

    def credentials(self, challenge: bytes | None = None) -> Credentials:
        """For a CONNECT, or as the answer to a challenge. Raises `ErrorGettingAuthenticationData`."""


class NoAuthentication:
    """No credentials at all."""

    method = "none"
    blocking = False

    def credentials(self, challenge: bytes | None = None) -> Credentials:
        return Credentials("none", b"")


class TokenCredentials:
    """A JWT, or a function that gives the current one."""

    method = "token"

    def __init__(self, token: str | Callable[[], str]) -> None:
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
        if not isinstance(token, str) or not token:
            raise ErrorGettingAuthenticationData("the token supplier must return a text that is not empty")
        return token_credentials(token.strip())

    def __repr__(self) -> str:
        return "TokenCredentials(***)"


class BasicCredentials:
    """``user:password``. ``method`` may be another name that the broker knows for the same bytes."""

    blocking = False

    def __init__(self, username: str, password: str, method: str = "basic") -> None:
        self.method = method
        self._data = f"{username}:{password}".encode()
        self._username = username

    @staticmethod
    def from_json(text: str) -> BasicCredentials:
        """From ``{"username": ..., "password": ..., "method": ...}``; Java's ``userId`` is taken, too.

        Raises `WrongParameters` without echoing the text, which holds a password.
        """
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


class TlsCredentials:
    """The client certificate of the TLS connection is the credential; nothing else is sent."""

    method = "tls"
    blocking = False

    def credentials(self, challenge: bytes | None = None) -> Credentials:
        return Credentials("tls", b"")


def obtain(provider: CredentialsProvider, challenge: bytes | None = None) -> Credentials:
    """Ask a provider; whatever it raises becomes `ErrorGettingAuthenticationData`."""
    try:
        return provider.credentials(challenge)
    except PulsarException:
        raise
    except Exception as error:
        raise ErrorGettingAuthenticationData(
            f"authentication {provider.method!r} could not give credentials: {type(error).__name__}: {error}"
        ) from error
