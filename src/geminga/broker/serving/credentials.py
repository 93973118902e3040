"""Keys and password files named by the settings, read into an `Authenticator`."""

import base64
import binascii
import hashlib
import os
import secrets
import urllib.parse
from pathlib import Path

from geminga.broker.rules.authentication import AuthenticationMethod, Authenticator
from geminga.broker.rules.passwords import BasicMethod, parse_users
from geminga.broker.rules.tokens import (
    SigningKey,
    TokenMethod,
    is_public_key,
    load_public_key,
    secret_algorithms,
)
from geminga.broker.settings import BrokerSettings
from geminga.config import names_file
from geminga.errors import InvalidConfiguration

_KEYS = ("token_secret_key", "token_public_key", "token_second_key", "basic_auth")


def read_key(text: str, what: str) -> bytes:
    """Read a key in one of Pulsar's forms: a path, ``file:PATH``, ``data:…;base64,…``, or base64.

    Raises `InvalidConfiguration` that names ``what`` and never shows a key.
    """
    text = text.strip()
    if text.startswith("data:"):
        header, _, data = text[5:].partition(",")
        if header.endswith("base64"):
            return _decoded(data, what)
        return urllib.parse.unquote_to_bytes(data)
    if text.startswith("env:"):
        raise InvalidConfiguration(f"{what}: env: is not a form of keys; give a file, data: or base64")
    is_url = text.startswith("file:")
    if not is_url and not names_file(text):
        return _decoded(text, what)
    try:
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(text).path) if is_url else text).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        shown = text if is_url or os.path.lexists(text) else "the file that it names"
        raise InvalidConfiguration(
            f"{what}: {shown} cannot be read: {reason}; a value in base64 is given as data:;base64,..."
        ) from None


def read_secret(text: str, what: str) -> bytes:
    """Read a secret as `read_key` does. Raises `InvalidConfiguration` for a public key, too."""
    return check_secret(read_key(text, what), what)


def check_secret(secret: bytes, what: str) -> bytes:
    """Return a secret. Raises `InvalidConfiguration` for a public key."""
    if is_public_key(secret):
        raise InvalidConfiguration(
            f"{what} is a public key or PEM: with such a secret others could sign tokens"
        )
    return secret


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidConfiguration(
            f"{what} is neither a file that there is nor base64; "
            "give a path, file:///PATH, data:;base64,... or base64"
        ) from None


def make_authentication(settings: BrokerSettings) -> Authenticator | None:
    """Return the authenticator of the settings; None without one. Raises `InvalidConfiguration`."""
    if not settings.authenticates:
        return None
    given = {each: getattr(settings, each) for each in _KEYS}
    issuer = given.pop("token_public_key") if settings.token_keys_are_published else None
    found = {each: read_key(text, each) for each, text in given.items() if text is not None}
    methods: dict[str, AuthenticationMethod] = {}
    if "token_secret_key" in found:
        key = check_secret(found["token_secret_key"], "token_secret_key")
        first: SigningKey | None = key, secret_algorithms(key, "token_secret_key")
    else:
        first = load_public_key(found["token_public_key"]) if "token_public_key" in found else None
    use = {
        "role_claim": settings.token_role_claim,
        "audience": settings.token_audience,
        "audience_claim": settings.token_audience_claim,
        "clock_skew_seconds": settings.token_clock_skew_seconds,
    }
    if first is not None or issuer is not None:
        second: SigningKey | None = None
        other = found.get("token_second_key")
        if other is not None:
            is_public = is_public_key(other)
            second = (
                load_public_key(other) if is_public else (other, secret_algorithms(other, "token_second_key"))
            )
        if first is not None:
            methods["token"] = TokenMethod(*first, **use, second=second)  # type: ignore[arg-type]
        else:
            from geminga.broker.serving.issuer_keys import IssuerTokens  # imports the HTTP client

            methods["token"] = IssuerTokens(str(issuer), second=second, **use)
    if "basic_auth" in found:
        users = parse_users(found["basic_auth"].decode("utf-8", "replace"))
        methods["basic"] = BasicMethod(users, secrets.token_bytes(32))
    certificates = settings.tls_trust_certificates is not None
    rest = settings.anonymous_role, certificates
    return Authenticator(
        methods,
        anonymous_role=settings.anonymous_role,
        certificates=certificates,
        fingerprint=hashlib.sha256(repr((found, issuer, use, rest)).encode()).digest(),
    )
