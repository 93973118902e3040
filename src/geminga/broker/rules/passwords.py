"""Basic authentication: users and the hashes of their passwords, as ``htpasswd`` writes them.

Apache Pulsar's ``AuthenticationProviderBasic`` accepts ``$apr1$`` (MD5) and DES crypt; ``htpasswd`` makes
both, bcrypt, SHA-1, SHA-256 and SHA-512, all of which are accepted here. A user's name is the role.

Hashing a password is slow, on purpose. So it is done on a thread (`BasicMethod.takes_long`), all guesses
together get a share of the processor's time (`GUESSING_SHARE`), and a password that was right before is
recognised without another hash. That makes guesses for such a user fast, too: each host has a limit of wrong
passwords per user (`WRONG_AT_ONCE`, `WRONG_PER_SECOND`), beyond which every password is refused, right ones
included.
"""

import hashlib
import hmac
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from geminga.broker.rules.authentication import Principal, Unauthenticated
from geminga.errors import InvalidConfiguration, UsageError

GUESSING_SHARE: Final = 0.1
"""Share of the processor's time for hashing passwords in the long run."""
_SAVED_MS_MAX: Final = 500.0
_SCHEMES: Final = ("apr_md5_crypt", "bcrypt", "sha256_crypt", "sha512_crypt", "ldap_sha1", "des_crypt")
_KINDS: Final = "$apr1$ (htpasswd -m), $2y$ (-B), $5$ (-2), $6$ (-5), {SHA} (-s), DES crypt (-d)"
_DES: Final = re.compile(r"[./0-9A-Za-z]{13}\Z")
_COST_MS: Final = {"apr_md5_crypt": 2.0, "ldap_sha1": 0.1, "des_crypt": 5.0}
_BCRYPT_MS_OF_1: Final = 0.06
_SHA_CRYPT_MS_OF_1: Final = 0.0015
_COST_MS_MAX: Final = 2_000.0
PASSWORD_BYTES_MAX: Final = 1024
"""Longest password: some hashes take time by length."""
WRONG_AT_ONCE: Final = 50
"""Wrong passwords of one host for one user in a burst ..."""
WRONG_PER_SECOND: Final = 5.0
"""... and in the long run."""
_GUESSERS_MAX: Final = 10_000
_TOO_MANY: Final = "too many passwords were tried: no more are looked at for a moment"
_WRONG: Final = "unknown user or invalid password"


def password_library() -> Any:
    """Return the password library; raises `UsageError` that names the extra to install."""
    try:
        import_module("bcrypt")
        return import_module("passlib.context").CryptContext(schemes=_SCHEMES)
    except ImportError:
        raise UsageError("passwords need an extra: pip install 'geminga[security]'") from None


def _cost_ms(scheme: str, hashed: str) -> float:
    """Return the approximate time of checking a hash."""
    if scheme == "bcrypt":
        return _BCRYPT_MS_OF_1 * float(1 << int(hashed.split("$")[2]))
    if scheme in ("sha256_crypt", "sha512_crypt"):
        rounds = re.match(r"\$[56]\$rounds=(\d+)\$", hashed)
        return _SHA_CRYPT_MS_OF_1 * (int(rounds[1]) if rounds else 5000)
    return _COST_MS[scheme]


def parse_users(text: str) -> Mapping[str, str]:
    """Parse hashes by user from lines ``user:hash``; ``#`` begins a comment.

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
            raise InvalidConfiguration(f"basic_auth: line {number} is not user:hash")
        if user in users:
            raise InvalidConfiguration(f"basic_auth: line {number} names {user!r} once more")
        scheme = library.identify(hashed)
        if scheme is None or (scheme == "des_crypt" and not _DES.match(hashed)):
            raise InvalidConfiguration(f"basic_auth: the hash in line {number} is none of {_KINDS}")
        try:
            library.handler(scheme).from_string(hashed)
            cost = _cost_ms(scheme, hashed)
        except (ValueError, TypeError, IndexError):
            raise InvalidConfiguration(f"basic_auth: the hash in line {number} is damaged") from None
        if cost > _COST_MS_MAX:
            raise InvalidConfiguration(
                f"basic_auth: the hash in line {number} takes {cost / 1000:.0f} s to check; "
                "make one with fewer rounds"
            )
        users[user] = hashed
    if not users:
        raise InvalidConfiguration("basic_auth names no user")
    return users


class _FailedLogins:
    """Recent numbers of wrong passwords by host and user."""

    def __init__(self) -> None:
        self._shown: OrderedDict[tuple[str, bytes], tuple[float, int]] = OrderedDict()

    def are_too_many(self, who: tuple[str, bytes], now_ms: int) -> bool:
        return self._count(who, now_ms) > WRONG_AT_ONCE - 1

    def add(self, who: tuple[str, bytes], now_ms: int) -> None:
        self._shown[who] = self._count(who, now_ms) + 1.0, now_ms
        self._shown.move_to_end(who)
        if len(self._shown) > _GUESSERS_MAX:
            self._shown.popitem(last=False)

    def forgive(self, who: tuple[str, bytes]) -> None:
        count, at_ms = self._shown.get(who, (0.0, 0))
        self._shown[who] = max(0.0, count - 1.0), at_ms

    def _count(self, who: tuple[str, bytes], now_ms: int) -> float:
        count, at_ms = self._shown.get(who, (0.0, now_ms))
        return max(0.0, count - max(0, now_ms - at_ms) * WRONG_PER_SECOND / 1000)


def _network(peer: str) -> str:
    """Return the network of a peer that counts as one host: the address, or for IPv6 its first half."""
    try:
        address = ipaddress.ip_address(peer.strip("/[]").partition("%")[0])
    except ValueError:
        return peer[:100]
    return str(address) if address.version == 4 else str(ipaddress.ip_network((int(address), 64), False))


class BasicMethod:
    """Verifies ``user:password`` by the hashes of users.

    Slow verifications (`takes_long`) may run on another thread than the others, one at a time.
    """

    def __init__(self, users: Mapping[str, str], key: bytes) -> None:
        """``key`` is random: right passwords are recognised by their keyed hashes, never stored."""
        self._library = password_library()
        self._users = dict(users)
        self._hashes = tuple(self._users.values())
        self._key = key
        self._right: dict[str, bytes] = {}
        self._guesses = _FailedLogins()
        self._saved_ms = _SAVED_MS_MAX
        self._saved_at_ms = 0

    def __repr__(self) -> str:
        return f"BasicMethod({len(self._users)} users)"

    def takes_long(self, data: bytes) -> bool:
        """Return whether the password has to be hashed: right ones of before are recognised."""
        shown = _parsed(data)
        return shown is not None and not self._is_known(shown[0], self._mark(shown[1]))

    def authenticate(self, data: bytes, now_ms: int, peer: str = "") -> Principal:
        """Return the user as role. Raises `Unauthenticated`, with the same text for every reason."""
        shown = _parsed(data)
        if shown is None:
            raise Unauthenticated(_WRONG)
        user, password = shown
        who, mark = (_network(peer), self._mark(user.encode())[:16]), self._mark(password)
        if self._guesses.are_too_many(who, now_ms):
            raise Unauthenticated(_TOO_MANY)
        if self._is_known(user, mark):
            return Principal(role=user, method="basic")
        # From here on one call at a time (`takes_long`); the code above only reads.
        counted = user in self._right
        if counted:
            self._guesses.add(who, now_ms)  # for every result: timing shows that it was not recognised
        hashed = self._hash_of(user)
        cost_ms = _cost_ms(self._library.identify(hashed), hashed)
        self._spend(cost_ms, now_ms)
        if not self._is_right(password, hashed) or user not in self._users:
            if not counted:
                self._guesses.add(who, now_ms)
            raise Unauthenticated(_WRONG)
        if counted:
            self._guesses.forgive(who)  # of old hashes several passwords are right
        self._right[user] = mark
        self._saved_ms += cost_ms  # a right password is no guess
        return Principal(role=user, method="basic")

    def _mark(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._key).digest()

    def _is_known(self, user: str, mark: bytes) -> bool:
        known = self._right.get(user)
        return known is not None and hmac.compare_digest(known, mark)

    def _hash_of(self, user: str) -> str:
        """Return a user's hash; for unknown users a fixed other one, so that timing does not reveal users."""
        hashed = self._users.get(user)
        if hashed is None:
            number = int.from_bytes(self._mark(b"user:" + user.encode())[:8])
            hashed = self._hashes[number % len(self._hashes)]
        return hashed

    def _is_right(self, password: bytes, hashed: str) -> bool:
        try:
            return bool(self._library.verify(password, hashed))
        except (ValueError, TypeError):
            return False  # longer than the hash knows

    def _spend(self, cost_ms: float, now_ms: int) -> None:
        """Subtract the time of hashing from the budget of guesses."""
        passed_ms = max(0, now_ms - self._saved_at_ms) if self._saved_at_ms else 0
        self._saved_at_ms = now_ms
        self._saved_ms = min(_SAVED_MS_MAX, self._saved_ms + passed_ms * GUESSING_SHARE)
        if self._saved_ms < min(cost_ms, _SAVED_MS_MAX):
            raise Unauthenticated(_TOO_MANY)
        self._saved_ms -= cost_ms


def _parsed(data: bytes) -> tuple[str, bytes] | None:
    """Return (user, password); None if the data is invalid."""
    user, colon, password = data.partition(b":")
    if not colon or len(password) > PASSWORD_BYTES_MAX or b"\0" in password:
        return None
    try:
        return user.decode(), password
    except UnicodeDecodeError:
        return "", password  # an unknown user
