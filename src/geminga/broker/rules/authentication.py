"""Who a peer is: credentials in, a principal with a role out.

A method (`token`, `tls`, `basic`) judges the bytes that a client shows for it in CONNECT, in the answer to a
challenge, or in the header ``Authorization``. What is refused is said in general words to the peer and more
exactly to the log; neither ever holds a part of the credentials.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from geminga.by_fields import ByFields
from geminga.errors import PulsarException

CREDENTIALS_BYTES_MAX: Final = 64 * 1024
"""More than that is not looked at."""
_SCHEMES: Final = {"bearer": "token", "basic": "basic"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Principal(ByFields):
    """Who somebody proved to be. ``expires_at_ms`` is wall time; None where the credentials never expire."""

    role: str
    method: str
    expires_at_ms: int | None = None


class Unauthenticated(PulsarException):
    """The credentials prove nothing; the text says why, without them."""


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Whom a verified certificate names (in the form of `ssl.SSLSocket.getpeercert`); None without one."""
    found = None
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName":
                found = str(value)
    return found


Judgement = Principal | Unauthenticated
Aside = Callable[[Callable[[], Judgement], Callable[[Judgement], None]], object]
"""``aside(work, report)``: ``work`` is done where it holds nobody up, ``report`` called with what it gave."""


class AuthenticationMethod(Protocol):
    """Judges one kind of credentials."""

    def authenticate(self, data: bytes, now_ms: int, peer: str = "") -> Principal:
        """Raises `Unauthenticated`. ``peer`` is the host that shows them."""

    def takes_long(self, data: bytes) -> bool:
        """Whether judging these takes the processor long, and may be done on another thread."""


def _at_once(work: Callable[[], Judgement], report: Callable[[Judgement], None]) -> None:
    report(work())


class Authenticator:
    """All methods that the broker takes, by the names that clients give them.

    ``aside`` is where judgements go that take long (`takes_long`); who serves connections sets it.
    """

    aside: Aside = staticmethod(_at_once)

    def __init__(
        self,
        methods: Mapping[str, AuthenticationMethod],
        *,
        anonymous_role: str | None = None,
        certificates: bool = False,
    ) -> None:
        """``anonymous_role`` is who shows nothing; ``certificates``: whether TLS proves a role."""
        self._methods = dict(methods)
        self._anonymous_role = anonymous_role
        self._certificates = certificates

    def __repr__(self) -> str:
        return f"Authentication({', '.join(sorted(self._methods))})"

    def authenticate(
        self, method: str, data: bytes, now_ms: int, certificate_name: str | None = None, peer: str = ""
    ) -> Principal:
        """Who shows ``data``; ``certificate_name`` is what a client certificate proved already.

        ``peer`` is the host that shows it. Raises `Unauthenticated`.
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
        """Whether `authenticate` takes the processor long with these, and belongs on another thread."""
        judge = self._methods.get(method)
        return judge is not None and len(data) <= CREDENTIALS_BYTES_MAX and judge.takes_long(data)

    def judged(
        self, method: str, data: bytes, now_ms: int, certificate_name: str | None, peer: str
    ) -> Judgement:
        """What `authenticate` says, as a value."""
        try:
            return self.authenticate(method, data, now_ms, certificate_name, peer)
        except Unauthenticated as refused:
            return refused

    def from_header(
        self, header: str | None, now_ms: int, certificate_name: str | None = None, peer: str = ""
    ) -> Principal:
        """`authenticate` for the HTTP header ``Authorization``; None where there is none."""
        return self.authenticate(*self.shown(header), now_ms, certificate_name, peer)

    def shown(self, header: str | None) -> tuple[str, bytes]:
        """(method, credentials) of the HTTP header ``Authorization``. Raises `Unauthenticated`."""
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
        """What the web port says to those without good credentials (``WWW-Authenticate``)."""
        return 'Basic realm="Geminga", charset="UTF-8"' if "basic" in self._methods else "Bearer"

    def _names(self) -> str:
        names = sorted(self._methods)
        return ", ".join([*names, "tls"] if self._certificates else names) or "none"
