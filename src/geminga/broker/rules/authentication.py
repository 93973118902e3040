"""Authentication: verifies credentials and returns a principal with a role.

A method (`token`, `tls`, `basic`) verifies the bytes that a client sends for it in CONNECT, in the answer to
a challenge, or in the header ``Authorization``. The peer receives a general reason of a refusal, the log the
exact one; neither contains any part of the credentials.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from geminga.errors import PulsarException

CREDENTIALS_BYTES_MAX: Final = 64 * 1024
"""Larger credentials are refused unread."""
_SCHEMES: Final = {"bearer": "token", "basic": "basic"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Authenticated identity. ``expires_at_ms`` is wall time; None if the credentials never expire."""

    role: str
    method: str
    expires_at_ms: int | None = None


class Unauthenticated(PulsarException):
    """The credentials are invalid; the text has the reason, without the credentials."""


class Expired(Unauthenticated):
    """The credentials were valid and have expired, which their holder may know."""


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the common name of a certificate (as from `ssl.SSLSocket.getpeercert`); None without one."""
    found = None
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName":
                found = str(value)
    return found


Judgement = Principal | Unauthenticated
Aside = Callable[[Callable[[], Judgement], Callable[[Judgement], None]], object]
"""``aside(work, report)``: runs ``work`` without blocking the loop, then ``report`` with its result."""


class AuthenticationMethod(Protocol):
    """Verifies one kind of credentials."""

    def authenticate(self, data: bytes, now_ms: int, peer: str = "") -> Principal:
        """Return the principal. Raises `Unauthenticated`. ``peer`` is the client's host."""

    def takes_long(self, data: bytes) -> bool:
        """Return whether verifying these uses much CPU time, and may run on another thread."""


def _at_once(work: Callable[[], Judgement], report: Callable[[Judgement], None]) -> None:
    report(work())


class Authenticator:
    """All methods that the broker accepts, by their names on the wire.

    ``aside`` runs slow verifications (`takes_long`); the server of connections sets it.
    """

    aside: Aside = staticmethod(_at_once)

    def __init__(
        self,
        methods: Mapping[str, AuthenticationMethod],
        *,
        anonymous_role: str | None = None,
        certificates: bool = False,
        fingerprint: bytes = b"",
    ) -> None:
        """``anonymous_role`` is the role without credentials; ``certificates``: whether TLS proves a role.

        ``fingerprint`` differs for other keys and users.
        """
        self.fingerprint = fingerprint
        self._methods = dict(methods)
        self._anonymous_role = anonymous_role
        self._certificates = certificates

    def __repr__(self) -> str:
        return f"Authentication({', '.join(sorted(self._methods))})"

    def replace(self, other: Authenticator) -> bool:
        """Use the methods of ``other`` from now on; return whether its keys or users are different ones."""
        is_new = other.fingerprint != self.fingerprint
        if is_new:
            vars(self).update({name: value for name, value in vars(other).items() if name != "aside"})
        return is_new

    def authenticate(
        self, method: str, data: bytes, now_ms: int, certificate_name: str | None = None, peer: str = ""
    ) -> Principal:
        """Return the principal of ``data``; ``certificate_name`` is a verified certificate's common name.

        ``peer`` is the client's host. Raises `Unauthenticated`.
        """
        judge = self._methods.get(method)
        if judge is not None:
            if len(data) > CREDENTIALS_BYTES_MAX:
                raise Unauthenticated(f"the {method} is larger than {CREDENTIALS_BYTES_MAX} bytes")
            return judge.authenticate(data, now_ms, peer)
        if method not in ("", "none", "tls"):
            raise Unauthenticated(f"the method {method[:40]!r} is not in use; in use: {self._names()}")
        if self._certificates and certificate_name:
            return Principal(role=certificate_name, method="tls")
        if method != "tls" and self._anonymous_role:
            return Principal(role=self._anonymous_role, method="none")
        raise Unauthenticated(f"no credentials were shown; in use: {self._names()}")

    def takes_long(self, method: str, data: bytes) -> bool:
        """Return whether `authenticate` uses much CPU time for these, and belongs on another thread."""
        judge = self._methods.get(method)
        return judge is not None and len(data) <= CREDENTIALS_BYTES_MAX and judge.takes_long(data)

    def judged(
        self, method: str, data: bytes, now_ms: int, certificate_name: str | None, peer: str
    ) -> Judgement:
        """Return the result of `authenticate`, its exception included, as a value."""
        try:
            return self.authenticate(method, data, now_ms, certificate_name, peer)
        except Unauthenticated as refused:
            return refused

    def shown(self, header: str | None) -> tuple[str, bytes]:
        """Return (method, credentials) of the HTTP header ``Authorization``. Raises `Unauthenticated`."""
        if header is None:
            return "none", b""
        scheme, _, text = header.strip().partition(" ")
        method = _SCHEMES.get(scheme.lower())
        if method is None:
            raise Unauthenticated("the header Authorization is neither Bearer nor Basic")
        data = text.strip().encode("utf-8", "surrogateescape")
        if method == "basic":
            try:
                data = base64.b64decode(data, validate=True)
            except (binascii.Error, ValueError):
                raise Unauthenticated("the basic credentials are not base64") from None
        return method, data

    @property
    def schemes(self) -> str:
        """Value of ``WWW-Authenticate``, sent by the web port with answer 401."""
        return 'Basic realm="Geminga", charset="UTF-8"' if "basic" in self._methods else "Bearer"

    def _names(self) -> str:
        names = sorted(self._methods)
        return ", ".join([*names, "tls"] if self._certificates else names) or "none"
