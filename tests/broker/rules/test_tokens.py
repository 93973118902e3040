"""Tokens: what is taken, every kind of forgery that is not, and what is said about it."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from geminga.broker.rules.authentication import Unauthenticated
from geminga.broker.rules.tokens import TokenMethod, load_public_key, make_token, parts_of, secret_algorithms
from geminga.errors import InvalidConfiguration, UsageError

SECRET = bytes(range(32))
NOW_MS = 1_800_000_000_000
NOW = NOW_MS // 1000


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(header: dict[str, Any], claims: Any, key: bytes = SECRET, digest: Any = hashlib.sha256) -> bytes:
    """A token made by hand, not by the library that judges it."""
    body = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{body}.{encoded(hmac.new(key, body.encode(), digest).digest())}".encode()


@pytest.fixture
def method():
    return TokenMethod(SECRET, secret_algorithms(SECRET))


def test_a_hand_made_token_has_its_role(method):
    principal = method.authenticate(signed({"alg": "HS256"}, {"sub": "joe", "exp": NOW + 10}), NOW_MS)
    assert (principal.role, principal.method) == ("joe", "token")
    assert principal.expires_at_ms == NOW_MS + 10_000
    assert method.authenticate(signed({"alg": "HS256"}, {"sub": "joe"}), NOW_MS).expires_at_ms is None


def test_tokens_of_the_java_tools_are_accepted():
    # `pulsar tokens create -sk data:;base64,... -s joe` of Apache Pulsar 4.0.4: no "typ" in its header.
    token = make_token("joe", SECRET, "HS256")
    assert parts_of(token) == ('{"alg":"HS256"}', '{"sub":"joe"}')


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (b"", "not a token"),
        (b"a.b.c", "not a token"),
        (b"\xff\xfe", "not a token"),
        (signed({"alg": "none"}, {"sub": "joe"}).rsplit(b".", 1)[0] + b".", "algorithm"),
        (signed({"alg": "None"}, {"sub": "joe"}), "algorithm"),
        (signed({"alg": "RS256"}, {"sub": "joe"}), "algorithm"),
        (signed({"alg": "HS512"}, {"sub": "joe"}, digest=hashlib.sha512), "algorithm"),
        (signed({}, {"sub": "joe"}), "token"),
        (signed({"alg": "HS256"}, {"sub": "joe"}, b"x" * 32), "signature"),
        (signed({"alg": "HS256"}, ["joe"]), "not a token"),
        (signed({"alg": "HS256"}, {}), "no role"),
        (signed({"alg": "HS256"}, {"sub": ""}), "no role"),
        (signed({"alg": "HS256"}, {"sub": 7}), "no role"),
        (signed({"alg": "HS256"}, {"sub": "joe", "exp": NOW}), "expired"),
        (signed({"alg": "HS256"}, {"sub": "joe", "exp": "never"}), "no time"),
        (signed({"alg": "HS256"}, {"sub": "joe", "exp": 1e300}), "no time"),
        (signed({"alg": "HS256"}, {"sub": "joe", "exp": float("nan")}), "no time"),
        (signed({"alg": "HS256"}, {"sub": "joe", "nbf": NOW + 5}), "not in force"),
        (signed({"alg": "HS256", "crit": ["b64"], "b64": False}, {"sub": "joe"}), "token"),
    ],
)
def test_invalid_tokens_are_refused(method, token, why):
    with pytest.raises(Unauthenticated, match=why) as caught:
        method.authenticate(token, NOW_MS)
    assert token.decode("latin-1") == "" or token.decode("latin-1") not in str(caught.value)


def test_tokens_with_a_flipped_bit_are_refused(method):
    token = signed({"alg": "HS256"}, {"sub": "joe"})
    for place in range(len(token)):
        forged = bytearray(token)
        forged[place] ^= 1
        try:
            assert method.authenticate(bytes(forged), NOW_MS).role == "joe"
            # Only the unused bits of the last character may differ.
            assert place == len(token) - 1
        except Unauthenticated:
            pass


def test_a_public_key_is_refused_as_a_secret_key():
    """HS256 with the public key as secret: the classic confusion."""
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    private = rsa.generate_private_key(65_537, 2048)
    der, pem = (
        private.public_key().public_bytes(form, PublicFormat.SubjectPublicKeyInfo)
        for form in (Encoding.DER, Encoding.PEM)
    )
    for text in (der, pem):
        method = TokenMethod(*load_public_key(text))
        assert method.authenticate(make_token("joe", private, "RS256").encode(), NOW_MS).role == "joe"
        assert method.authenticate(make_token("joe", private, "PS512").encode(), NOW_MS).role == "joe"
        with pytest.raises(Unauthenticated, match="algorithm"):
            method.authenticate(signed({"alg": "HS256"}, {"sub": "joe"}, text), NOW_MS)


def test_weak_keys_are_refused():
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    with pytest.raises(InvalidConfiguration, match="31 bytes"):
        secret_algorithms(b"x" * 31)
    weak = rsa.generate_private_key(65_537, 1024).public_key()
    with pytest.raises(InvalidConfiguration, match="1024 bits"):
        load_public_key(weak.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        load_public_key(b"nonsense")


def test_audience_role_claim_and_clock_skew_are_checked():
    claims = {"role_claim": "role", "audience": "us", "audience_claim": "for"}
    method = TokenMethod(SECRET, ("HS256",), **claims, clock_skew_seconds=5)
    good = {"role": ["joe", "x"], "for": ["them", "us"], "exp": NOW - 4}
    assert method.authenticate(signed({"alg": "HS256"}, good), NOW_MS).role == "joe"
    for wrong in ({"for": "them"}, {"for": None}, {"exp": NOW - 5}, {"role": []}):
        with pytest.raises(Unauthenticated):
            method.authenticate(signed({"alg": "HS256"}, {**good, **wrong}), NOW_MS)


def test_showing_an_invalid_token_is_an_error():
    for text in ("", "a.b", "a.b.c.d", "e30.e30", "!!.e30.x"):
        with pytest.raises(UsageError, match="no token"):
            parts_of(text)
