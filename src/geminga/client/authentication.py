"""The authentication arguments of a client, under ``pulsar-client``'s names.

Each holds a credentials provider (`geminga.connection.authentication`) in ``provider``. A provider of
your own: subclass `Authentication`, call ``super().__init__`` with any object that has ``method``,
``blocking`` and ``credentials(challenge)``. Secrets never show in reprs.
"""

from __future__ import annotations

from collections.abc import Callable

from geminga.config import check_type
from geminga.connection.authentication import (
    BasicCredentials,
    CredentialsProvider,
    TlsCredentials,
    TokenCredentials,
)
from geminga.errors import OperationNotSupported, UsageError


class Authentication:
    """Base of the authentication arguments."""

    certificate_path: str | None = None
    private_key_path: str | None = None

    def __init__(
        self,
        dynamicLibPath: str | CredentialsProvider,
        authParamsString: str | None = None,
    ) -> None:
        if isinstance(dynamicLibPath, str):
            raise OperationNotSupported(
                "authentication plug-ins in shared libraries cannot be loaded; use AuthenticationToken, "
                "AuthenticationBasic or AuthenticationTLS, or pass a credentials provider"
            )
        self.provider: CredentialsProvider = dynamicLibPath

    @property
    def auth(self) -> CredentialsProvider:
        """What gives the credentials."""
        return self.provider

    def __repr__(self) -> str:
        return f"{type(self).__name__}(***)"


class AuthenticationTLS(Authentication):
    """A client certificate, which the TLS connection proves."""

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        check_type("certificate_path", certificate_path, str)
        check_type("private_key_path", private_key_path, str)
        super().__init__(TlsCredentials())
        self.certificate_path = certificate_path
        self.private_key_path = private_key_path


class AuthenticationToken(Authentication):
    """A JSON Web Token, or a function that returns the current one.

    The function is asked for every connection and whenever a broker finds the token expired.
    """

    def __init__(self, token: str | Callable[[], str]) -> None:
        if not (isinstance(token, str) or callable(token)):
            # The value is not shown: whatever it is, it was meant to be a secret.
            raise _WrongToken(
                f"token must be a text or a function that returns one, not {type(token).__name__}"
            )
        super().__init__(TokenCredentials(token))


class _WrongToken(UsageError, ValueError):
    """An argument that cannot be a token."""


class AuthenticationBasic(Authentication):
    """User name and password, or both in ``auth_params_string`` as JSON."""

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        if auth_params_string is not None:
            check_type("auth_params_string", auth_params_string, str)
            super().__init__(BasicCredentials.from_json(auth_params_string))
            return
        check_type("username", username, str)
        if not isinstance(password, str):
            raise _WrongToken(f"password must be a text, not {type(password).__name__}")
        check_type("method", method, str)
        super().__init__(BasicCredentials(str(username), password, method))


class AuthenticationAthenz(Authentication):
    """Athenz is not supported: get a token from it and use `AuthenticationToken` with a function."""

    def __init__(self, auth_params_string: str) -> None:
        raise OperationNotSupported(
            "AuthenticationAthenz is not supported; use AuthenticationToken with a function that gets tokens"
        )


class AuthenticationOauth2(Authentication):
    """OAuth 2 is not supported: use `AuthenticationToken` with a function that gets access tokens."""

    def __init__(self, auth_params_string: str) -> None:
        raise OperationNotSupported(
            "AuthenticationOauth2 is not supported; use AuthenticationToken with a function that gets tokens"
        )
