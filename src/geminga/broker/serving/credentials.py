"""Keys and password files named by the settings, read into an `Authenticator`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
import urllib.parse
from pathlib import Path

from geminga.broker.rules.authentication import AuthenticationMethod, Authenticator
from geminga.broker.rules.passwords import BasicMethod, parse_users
from geminga.broker.rules.tokens import TokenMethod, load_public_key, secret_algorithms
from geminga.broker.settings import BrokerSettings
from geminga.config import names_file
from geminga.errors import InvalidConfiguration


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
            f"{what}: {shown} cannot be read: {reason}; a key in base64 is given as data:;base64,..."
        ) from None


def read_secret(text: str, what: str) -> bytes:
    """Read a secret as `read_key` does. Raises `InvalidConfiguration` for a public key, too."""
    secret = read_key(text, what)
    try:
        load_public_key(secret)
    except InvalidConfiguration:
        return secret
    raise InvalidConfiguration(f"{what} is a public key: with it as the secret everybody could sign tokens")


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
    methods: dict[str, AuthenticationMethod] = {}
    key: object
    if settings.token_secret_key is not None:
        key = read_secret(settings.token_secret_key, "token_secret_key")
        algorithms = secret_algorithms(key)
    elif settings.token_public_key is not None:
        key, algorithms = load_public_key(read_key(settings.token_public_key, "token_public_key"))
    if settings.token_secret_key is not None or settings.token_public_key is not None:
        second = settings.token_second_key
        methods["token"] = TokenMethod(
            key,
            algorithms,
            role_claim=settings.token_role_claim,
            audience=settings.token_audience,
            audience_claim=settings.token_audience_claim,
            clock_skew_seconds=settings.token_clock_skew_seconds,
            second=None if second is None else _any_key(read_key(second, "token_second_key")),
        )
    if settings.basic_auth is not None:
        text = read_key(settings.basic_auth, "basic_auth").decode("utf-8", "replace")
        methods["basic"] = BasicMethod(parse_users(text), secrets.token_bytes(32))
    return Authenticator(
        methods,
        anonymous_role=settings.anonymous_role,
        certificates=settings.tls_trust_certificates is not None,
        fingerprint=_fingerprint(settings),
    )


def _any_key(data: bytes) -> tuple[object, tuple[str, ...]]:
    """Return a public key or a secret with its algorithms."""
    try:
        return load_public_key(data)
    except InvalidConfiguration:
        return data, secret_algorithms(data)


def _fingerprint(settings: BrokerSettings) -> bytes:
    """Return a hash of the keys and users, and of how they are used."""
    given = [getattr(settings, name) for name in ("token_secret_key", "token_public_key", "token_second_key")]
    found = [None if text is None else read_key(text, "a key") for text in (*given, settings.basic_auth)]
    use = (
        settings.token_role_claim, settings.token_audience, settings.token_audience_claim,
        settings.token_clock_skew_seconds, settings.anonymous_role, settings.tls_trust_certificates is None,
    )  # fmt: skip
    return hashlib.sha256(repr((found, use)).encode()).digest()
