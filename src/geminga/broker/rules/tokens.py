"""JSON Web Tokens as made by ``pulsar tokens``, signed with a secret or a private key.

The key alone decides the accepted algorithms, never the token's header: a secret accepts HMAC, an RSA key
RSA, an elliptic curve its own ECDSA. So a token without a signature, or one signed with a public key as an
HMAC secret, is refused like any other forgery.
"""

import base64
import contextlib
import json
from collections.abc import Sequence
from typing import Any, Final

from geminga.broker.rules.authentication import Expired, Principal, Unauthenticated
from geminga.errors import InvalidConfiguration, UsageError

SECRET_ALGORITHMS: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""HMAC algorithms, and the minimum length of the secret in bytes for each."""
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVE_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_NO_CHECKS: Final = {
    "verify_signature": True, "verify_exp": False, "verify_nbf": False, "verify_iat": False,
    "verify_aud": False, "verify_iss": False, "verify_sub": False, "verify_jti": False,
}  # fmt: skip
"""The library checks the signature; times are checked here, by the broker's own clock."""
_TIME_MS_MAX: Final = 1 << 62
SigningKey = tuple[Any, Sequence[str]]
"""A key, and the algorithms of its tokens."""


def jwt_library() -> Any:
    """Return PyJWT; raises `UsageError` that names the extra to install."""
    try:
        import cryptography  # noqa: F401
        import jwt
    except ImportError:
        raise UsageError("tokens need an extra: pip install 'geminga[security]'") from None
    return jwt


def secret_algorithms(secret: bytes, what: str = "the secret key") -> tuple[str, ...]:
    """Return the HMAC algorithms that a secret is long enough for; refused if it is too short for all."""
    found = tuple(name for name, size in SECRET_ALGORITHMS.items() if len(secret) >= size)
    if not found:
        raise InvalidConfiguration(f"{what} has {len(secret)} bytes; a secret needs 32 at least")
    return found


def is_public_key(data: bytes) -> bool:
    """Return whether data are a public key of any kind, or PEM, which must not be used as a secret."""
    with contextlib.suppress(InvalidConfiguration):
        return bool(_read_public_key(data))
    return b"-----BEGIN" in data


def load_public_key(data: bytes) -> tuple[Any, tuple[str, ...]]:
    """Load a public key (DER or PEM, or a certificate in PEM) and return it with its algorithms."""
    key = _read_public_key(data)
    return key, key_algorithms(key)


def _read_public_key(data: bytes) -> Any:
    jwt_library()
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

    try:
        if b"BEGIN CERTIFICATE" in data:
            return x509.load_pem_x509_certificate(data).public_key()
        return (load_pem_public_key if b"-----BEGIN" in data else load_der_public_key)(data)
    except Exception as error:
        raise InvalidConfiguration(f"the public key cannot be read: {type(error).__name__}") from None


def load_private_key(data: bytes) -> tuple[Any, tuple[str, ...]]:
    """Load a private key (DER or PEM, without a pass phrase) and return it with its algorithms."""
    jwt_library()
    from cryptography.hazmat.primitives.serialization import load_der_private_key, load_pem_private_key

    try:
        key = (load_pem_private_key if b"-----BEGIN" in data else load_der_private_key)(data, None)
    except Exception as error:
        raise InvalidConfiguration(f"the private key cannot be read: {type(error).__name__}") from None
    return key, key_algorithms(key)


def key_algorithms(key: Any) -> tuple[str, ...]:
    """Return the algorithms of an asymmetric key."""
    if hasattr(key, "curve"):
        if key.curve.name not in CURVE_ALGORITHMS:
            known = ", ".join(CURVE_ALGORITHMS)
            raise InvalidConfiguration(f"the key's curve {key.curve.name} is not known; known: {known}")
        return (CURVE_ALGORITHMS[key.curve.name],)
    if type(key).__name__ in ("RSAPublicKey", "RSAPrivateKey") or hasattr(key, "key_size"):
        if key.key_size < 2048:
            raise InvalidConfiguration(f"the RSA key has {key.key_size} bits; 2048 are needed at least")
        return RSA_ALGORITHMS
    raise InvalidConfiguration("the key is neither an RSA key nor one of an elliptic curve")


class TokenMethod:
    """Verifies tokens with one key, or with a second one while keys are exchanged."""

    def __init__(
        self,
        key: Any,
        algorithms: Sequence[str],
        *,
        role_claim: str = "sub",
        audience: str | None = None,
        audience_claim: str = "aud",
        clock_skew_seconds: float = 0.0,
        second: SigningKey | None = None,
    ) -> None:
        """``second`` is another key whose tokens are accepted, with its algorithms."""
        self._jwt = jwt_library()
        self._keys: list[SigningKey] = [(key, list(algorithms))]
        if second is not None:
            self._keys.append((second[0], list(second[1])))
        self._role_claim = role_claim
        self._audience = audience
        self._audience_claim = audience_claim
        self._skew_ms = round(1000 * clock_skew_seconds)

    def __repr__(self) -> str:
        return f"TokenMethod({'; '.join(', '.join(algorithms) for _, algorithms in self._keys)})"

    def takes_long(self, data: bytes) -> bool:
        """Return False: verifying a signature is fast."""
        return False

    def authenticate(self, data: bytes, now_ms: int, peer: str = "") -> Principal:
        """Return the role of the token's claim, valid until the token expires."""
        claims = self.claims(data, now_ms)
        role = claims.get(self._role_claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not isinstance(role, str) or not role.strip():
            raise Unauthenticated(f"the token has no role in its claim {self._role_claim!r}")
        expires = _time_ms(claims, "exp")
        return Principal(
            role=role, method="token", expires_at_ms=None if expires is None else expires + self._skew_ms
        )

    def claims(self, data: bytes, now_ms: int) -> dict[str, Any]:
        """Return a token's claims after checking signature, times and audience. Raises `Unauthenticated`."""
        return self.verified(data, now_ms, self._keys)

    def verified(self, data: bytes, now_ms: int, keys: Sequence[SigningKey]) -> dict[str, Any]:
        """Return a token's claims as `claims` does, for the given keys."""
        why = "there is no key for the token"
        for key, algorithms in keys:
            try:
                claims: dict[str, Any] = self._jwt.decode(
                    data.strip(), key, algorithms=algorithms, options=_NO_CHECKS
                )
                break
            except self._jwt.InvalidSignatureError:
                why = "the token's signature does not match the key"
            except self._jwt.InvalidAlgorithmError:
                why = f"the token's algorithm is not one of the key's: {', '.join(algorithms)}"
            except Exception:  # parsers may raise anything for a hostile token, and quote it
                why = "this is not a token: three parts with dots between, each base64, are needed"
        else:
            raise Unauthenticated(why)
        expires, begins = _time_ms(claims, "exp"), _time_ms(claims, "nbf")
        if expires is not None and expires + self._skew_ms <= now_ms:
            raise Expired("the token has expired")
        if begins is not None and begins - self._skew_ms > now_ms:
            raise Unauthenticated("the token is not in force yet")
        if self._audience is not None:
            meant = claims.get(self._audience_claim)
            if meant != self._audience and not (isinstance(meant, list) and self._audience in meant):
                raise Unauthenticated("the token is meant for somebody else")
        return claims


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    """Return a time of the claims; an invalid one makes the token invalid."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _TIME_MS_MAX / 1000:
        raise Unauthenticated(f"the token's {name!r} is no time")
    return int(value * 1000)


def make_token(
    subject: str,
    key: Any,
    algorithm: str,
    *,
    expires_at: int | None = None,
    headers: dict[str, Any] | None = None,
) -> str:
    """Return a token like that of ``pulsar tokens create``; ``expires_at`` in seconds since 1970."""
    claims: dict[str, Any] = {"sub": subject}
    if expires_at is not None:
        claims["exp"] = expires_at
    jwt = jwt_library()
    # Pulsar's tokens carry no "typ".
    made: str = jwt.encode(claims, key, algorithm=algorithm, headers={**(headers or {}), "typ": None})
    return made


def parts_of(token: str) -> tuple[str, str]:
    """Return header and claims as JSON texts, not verified. Raises `UsageError` for an invalid token."""
    try:
        parts = token.strip().split(".")
        if len(parts) != 3:
            raise ValueError
        texts = [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode() for part in parts[:2]]
        for text in texts:
            json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("this is no token: three parts with dots between, each base64, are needed") from None
    return texts[0], texts[1]
