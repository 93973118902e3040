"""The authentication arguments of a client, under ``pulsar-client``'s names.

Each holds a credentials provider (`geminga.connection.authentication`) in ``provider``. For another provider,
subclass `Authentication` and call ``super().__init__`` with any object that has ``method``, ``blocking`` and
``credentials(challenge)``. Secrets never show in reprs.
"""

import os
from collections.abc import Callable
from pathlib import Path

from geminga.config import check_type, names_file, refuse, suggestion
from geminga.connection.authentication import (
    BasicCredentials,
    Credentials,
    CredentialsProvider,
    TlsCredentials,
    TokenCredentials,
    WrongParameters,
)
from geminga.errors import AuthenticationError, ConnectError, OperationNotSupported, UsageError


class PluginNotLoaded(AuthenticationError, ConnectError, OperationNotSupported):
    """The authentication plug-in is unknown: the client does not connect without credentials instead.

    pulsar-client raises one of the first two base classes, depending on the broker's requirements.
    """


class Authentication:
    """Base of the authentication arguments.

    ``dynamicLibPath`` names a plug-in and ``authParamsString`` its parameters, as in ``pulsar-client``:
    ``tls``, ``token``, ``basic`` or ``oauth2``, or the equivalent Java class. Shared libraries cannot be
    loaded: with one, connecting fails. ``dynamicLibPath`` may also be a credentials provider.
    """

    certificate_path: str | None = None
    private_key_path: str | None = None

    def __init__(
        self, dynamicLibPath: str | CredentialsProvider, authParamsString: str | None = None
    ) -> None:
        if not isinstance(dynamicLibPath, str):
            if not hasattr(dynamicLibPath, "credentials"):
                refuse("dynamicLibPath", dynamicLibPath, "a text or a credentials provider")
            self.provider: CredentialsProvider = dynamicLibPath
            return
        check_type("authParamsString", authParamsString, str)
        kind = _KIND_OF.get(dynamicLibPath)
        if kind is None:
            self.provider = _Unloadable(dynamicLibPath)
            return
        named = kind(str(authParamsString))
        self.provider = named.provider
        self.certificate_path, self.private_key_path = named.certificate_path, named.private_key_path

    @property
    def auth(self) -> CredentialsProvider:
        """The provider of the credentials."""
        return self.provider

    def __repr__(self) -> str:
        return f"{type(self).__name__}(***)"


class AuthenticationTLS(Authentication):
    """A client certificate, presented in the TLS handshake."""

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        check_type("certificate_path", certificate_path, str)
        check_type("private_key_path", private_key_path, str)
        super().__init__(TlsCredentials())
        self.certificate_path = certificate_path
        self.private_key_path = private_key_path


class AuthenticationToken(Authentication):
    """A JSON Web Token, or a function that returns the current one, as text or as the bytes of its file.

    The function is called for every connection and whenever a broker reports the token as expired.
    """

    def __init__(self, token: str | Callable[[], str | bytes]) -> None:
        if not (isinstance(token, str) or callable(token)):
            # The value is not shown: it may be a secret of the wrong type.
            raise _WrongToken(
                f"token must be a text or a function that returns one, not {type(token).__name__}"
            )
        super().__init__(TokenCredentials(token))


class _WrongToken(UsageError, ValueError):
    """The argument is not a valid token."""


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
            "AuthenticationAthenz is not supported: there is no Athenz library for Python; use "
            "AuthenticationToken with a function that gets tokens, or a custom credentials provider"
        )


class AuthenticationOauth2(Authentication):
    """OAuth 2 client credentials. Needs oauthlib: ``pip install 'geminga[oauth2]'``.

    ``auth_params_string`` is JSON: ``issuer_url``, ``private_key`` (a path, ``file:///path``, or
    ``data:application/json;base64,...`` of JSON with ``client_id`` and ``client_secret``; these two may also
    be given beside ``issuer_url``), and optionally ``audience`` and ``scope``. Raises `InvalidConfiguration`.
    """

    def __init__(self, auth_params_string: str) -> None:
        from geminga.client.options.oauth2 import ClientCredentials

        check_type("auth_params_string", auth_params_string, str)
        super().__init__(ClientCredentials.from_json(auth_params_string))


class _Unloadable:
    """Substitute for a shared library, which raises on use."""

    method = "none"
    blocking = False

    def __init__(self, name: str) -> None:
        self._name = name

    def credentials(self, challenge: bytes | None = None) -> Credentials:
        raise PluginNotLoaded(
            f"authentication plug-in {self._name!r} cannot be loaded; known are tls, token, basic, oauth2, "
            "and objects with method, blocking and credentials()"
        )


def _named_tls(parameters: str) -> Authentication:
    """Parse ``tlsCertFile:/path,tlsKeyFile:/path``."""
    pairs = dict(part.strip().partition(":")[::2] for part in parameters.split(","))
    if not pairs.get("tlsCertFile") or not pairs.get("tlsKeyFile"):
        raise WrongParameters("authParamsString is not tlsCertFile:/path,tlsKeyFile:/path")
    return AuthenticationTLS(pairs["tlsCertFile"], pairs["tlsKeyFile"])


def _named_token(parameters: str) -> Authentication:
    """Parse ``token:...``, ``file:///path``, ``env:NAME``, or the token itself. Files and variables are read
    for every connection. Raises `WrongParameters` for a path without ``file://``."""
    kind, separator, rest = parameters.partition(":")
    if separator and kind == "file":
        path = Path(rest.removeprefix("//"))
        return AuthenticationToken(lambda: path.read_text().strip())
    if separator and kind == "env":
        return AuthenticationToken(lambda: os.environ[rest])
    if separator and kind == "token":
        return AuthenticationToken(rest)
    if names_file(parameters):
        raise WrongParameters(
            "authParamsString is a path where a token is expected: give file:///PATH, or token:... for a "
            "token with a slash"
        )
    return AuthenticationToken(parameters)


def _named_basic(parameters: str) -> Authentication:
    return AuthenticationBasic(auth_params_string=parameters)


_KINDS: dict[str, tuple[str, Callable[[str], Authentication]]] = {
    "tls": ("AuthenticationTls", _named_tls),
    "token": ("AuthenticationToken", _named_token),
    "basic": ("AuthenticationBasic", _named_basic),
    "oauth2": ("oauth2.AuthenticationOAuth2", AuthenticationOauth2),
    "athenz": ("AuthenticationAthenz", AuthenticationAthenz),
}
"""Authentication plug-ins by their short names, with the names of the Java classes."""

_KIND_OF = {
    name: make
    for short, (java, make) in _KINDS.items()
    for name in (short, f"org.apache.pulsar.client.impl.auth.{java}")
}


def check_kind(field: str, name: str) -> None:
    """Raise `InvalidConfiguration` for an unknown plug-in, which would otherwise fail only when
    connecting."""
    if name not in _KIND_OF:
        allowed = f"{', '.join(_KINDS)}, or the name of Java's class of one of these"
        refuse(field, name, allowed + suggestion(name, _KINDS))
