"""Basic authentication: users and the hashes of their passwords, as ``htpasswd`` writes them.

Apache Pulsar's ``AuthenticationProviderBasic`` takes ``$apr1$`` (MD5) and DES crypt; ``htpasswd`` makes both,
bcrypt, SHA-1, SHA-256 and SHA-512, all of which are taken here. A user's name is the role.

Hashing a password takes the processor a while, which is its purpose; so that guessing cannot hold the broker
up, all guesses together get a share of its time (`GUESSING_SHARE`), and who has shown the right password
before is recognised without another hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from geminga.broker.rules.authentication import Principal, Unauthenticated
from geminga.errors import InvalidConfiguration, UsageError

GUESSING_SHARE: Final = 0.1
"""The part of the processor's time that hashing passwords may take in the long run."""
_SAVED_MS_MAX: Final = 500.0
_SCHEMES: Final = ("apr_md5_crypt", "bcrypt", "sha256_crypt", "sha512_crypt", "ldap_sha1", "des_crypt")
_KINDS: Final = "$apr1$ (htpasswd -m), $2y$ (-B), $5$ (-2), $6$ (-5), {SHA} (-s), DES crypt (-d)"
_DES: Final = re.compile(r"[./0-9A-Za-z]{13}\Z")
_COST_MS: Final = {"apr_md5_crypt": 2.0, "ldap_sha1": 0.1, "des_crypt": 5.0}
_BCRYPT_MS_OF_1: Final = 0.06
_SHA_CRYPT_MS_OF_1: Final = 0.0015
_COST_MS_MAX: Final = 2_000.0
PASSWORD_BYTES_MAX: Final = 1024
"""Longer ones are not looked at: some hashes take time by length."""


def password_library() -> Any:
    """What knows the hashes; raises `UsageError` that names the extra where it is not installed."""
    try:
        import_module("bcrypt")
        return import_module("passlib.context").CryptContext(schemes=_SCHEMES)
    except ImportError:
        raise UsageError("passwords need an extra: pip install 'geminga[security]'") from None


def _cost_ms(scheme: str, hashed: str) -> float:
    """About how long checking one takes."""
    if scheme == "bcrypt":
        return _BCRYPT_MS_OF_1 * float(1 << int(hashed.split("$")[2]))
    if scheme in ("sha256_crypt", "sha512_crypt"):
        rounds = re.match(r"\$[56]\$rounds=(\d+)\$", hashed)
        return _SHA_CRYPT_MS_OF_1 * (int(rounds[1]) if rounds else 5000)
    return _COST_MS[scheme]


def parse_users(text: str, what: str = "basic_auth") -> Mapping[str, str]:
    """Hashes by user, from lines ``user:hash``; ``#`` begins a comment.

    Raises `InvalidConfiguration` that names the line and never shows a hash.
    """
    library = password_library()
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, _, hashed = line.partition(":")
        if not user.strip() or not hashed or ":" in hashed:
            raise InvalidConfiguration(f"{what}: line {number} is not user:hash")
        if user in users:
            raise InvalidConfiguration(f"{what}: line {number} names {user!r} once more")
        scheme = library.identify(hashed)
        if scheme is None or (scheme == "des_crypt" and not _DES.match(hashed)):
            raise InvalidConfiguration(f"{what}: the hash in line {number} is none of {_KINDS}")
        try:
            library.handler(scheme).from_string(hashed)
            cost = _cost_ms(scheme, hashed)
        except (ValueError, TypeError, IndexError):
            raise InvalidConfiguration(f"{what}: the hash in line {number} is damaged") from None
        if cost > _COST_MS_MAX:
            raise InvalidConfiguration(
                f"{what}: the hash in line {number} takes {cost / 1000:.0f} s to check; "
                "make one with fewer rounds"
            )
        users[user] = hashed
    if not users:
        raise InvalidConfiguration(f"{what} names no user")
    return users


class BasicMethod:
    """Judges ``user:password`` by the hashes of users."""

    def __init__(self, users: Mapping[str, str], key: bytes) -> None:
        """``key`` is random: right passwords are remembered by it, none is kept."""
        self._library = password_library()
        self._users = dict(users)
        self._decoy = next(iter(self._users.values()))
        self._key = key
        self._right: dict[str, bytes] = {}
        self._saved_ms = _SAVED_MS_MAX
        self._saved_at_ms = 0

    def __repr__(self) -> str:
        return f"BasicMethod({len(self._users)} users)"

    def authenticate(self, data: bytes, now_ms: int) -> Principal:
        """The user as role. Raises `Unauthenticated`, in the same words for all that is wrong."""
        user_bytes, colon, password = data.partition(b":")
        try:
            user = user_bytes.decode()
        except UnicodeDecodeError:
            user = ""
        if not colon or len(password) > PASSWORD_BYTES_MAX or b"\0" in password:
            raise Unauthenticated("unknown user or invalid password")
        known_user = user in self._users
        # For a user that there is not it takes as long: time does not tell who there is.
        hashed = self._users[user] if known_user else self._decoy
        cost_ms = _cost_ms(self._library.identify(hashed), hashed)
        mark = hashlib.blake2b(password, key=self._key).digest()
        known = self._right.get(user)
        if known is None or not hmac.compare_digest(known, mark):
            self._spend(cost_ms, now_ms)
            if not self._is_right(password, hashed) or not known_user:
                raise Unauthenticated("unknown user or invalid password")
            self._right[user] = mark
            self._saved_ms += cost_ms  # who is right has guessed nothing
        return Principal(role=user, method="basic")

    def _is_right(self, password: bytes, hashed: str) -> bool:
        try:
            return bool(self._library.verify(password, hashed))
        except (ValueError, TypeError):
            return False  # longer than the hash knows

    def _spend(self, cost_ms: float, now_ms: int) -> None:
        """Hashing takes its time out of what guesses may take."""
        passed_ms = max(0, now_ms - self._saved_at_ms) if self._saved_at_ms else 0
        self._saved_at_ms = now_ms
        self._saved_ms = min(_SAVED_MS_MAX, self._saved_ms + passed_ms * GUESSING_SHARE)
        if self._saved_ms < min(cost_ms, _SAVED_MS_MAX):
            raise Unauthenticated("too many passwords were tried: no more are looked at for a moment")
        self._saved_ms -= cost_ms
