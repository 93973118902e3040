"""Tokens of an OpenID Connect issuer, verified with the keys that it publishes."""

import json
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from geminga.broker.rules.authentication import Unauthenticated
from geminga.broker.serving import issuer_keys
from geminga.broker.serving.credentials import make_authentication
from geminga.broker.serving.issuer_keys import KEPT_SECONDS, RETRY_SECONDS, IssuerTokens
from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration

ISSUER = "https://login.example.com"
SECRET = "s" * 32
RSA, OTHER = (rsa.generate_private_key(65537, 2048) for _ in range(2))
CURVE = ec.generate_private_key(ec.SECP256R1())
UNKNOWN = "is not one of the issuer's"


def published(kid: str, key: Any, **fields: str) -> dict[str, Any]:
    algorithm = jwt.algorithms.ECAlgorithm if key is CURVE else jwt.algorithms.RSAAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig", **fields}


def token(kid: str | None, key: Any = RSA, algorithm: str = "RS256", **claims: Any) -> bytes:
    given = {"iss": ISSUER, "sub": "ada", "aud": "console", **claims}
    return jwt.encode(given, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid}).encode()


class Issuer:
    """An issuer and the clock; counts requests for its keys. ``seen`` is called during a request."""

    def __init__(self) -> None:
        self.keys: Any = [published("r", RSA), published("c", CURVE)]
        self.discovery: Any = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}
        self.requests, self.now = 0, 1000.0
        self.seen = lambda: None

    async def ask(self, method: str, url: str) -> Any:
        if url != f"{ISSUER}/keys":
            self.requests += 1
            return self.discovery
        self.seen()
        return {"keys": self.keys}


@pytest.fixture
def issuer(monkeypatch):
    made = Issuer()
    monkeypatch.setattr(issuer_keys, "ask", made.ask)
    monkeypatch.setattr(issuer_keys, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def method(issuer):
    return IssuerTokens(ISSUER + "/", audience="console")


def role(method: IssuerTokens, data: bytes) -> str:
    return str(method.authenticate(data, 0).role)


def refused(method: IssuerTokens, data: bytes, why: str = UNKNOWN) -> None:
    with pytest.raises(Unauthenticated, match=why):
        role(method, data)


def test_a_new_key_is_found_with_one_request_a_minute(issuer, method):
    assert method.takes_long(token("r"))
    assert role(method, token("r")) == role(method, token("c", CURVE, "ES256")) == "ada"
    fresh = token("next", OTHER)
    issuer.keys = [published("next", OTHER)]
    assert not method.takes_long(fresh)
    refused(method, fresh)
    issuer.now += RETRY_SECONDS + 1
    assert not method.takes_long(token(None)), "a token without a name of its key has no new key"
    assert method.takes_long(fresh)
    # Connections that come during the request wait for it.
    issuer.seen = lambda: seen.append((method.takes_long(fresh), method.takes_long(token("r"))))
    seen: list[Any] = []
    assert role(method, fresh) == "ada"
    assert seen == [(True, False)]
    for number in range(20):
        refused(method, token(f"unknown-{number}", OTHER))
    refused(method, token("r"))  # not published any more
    assert issuer.requests == 2


def test_keys_are_kept_while_the_issuer_fails_and_requested_again_each_minute(issuer, method):
    role(method, token("r"))
    issuer.keys = None
    for seconds in (KEPT_SECONDS + 1, RETRY_SECONDS + 1):
        issuer.now += seconds
        assert method.takes_long(token("r"))
        assert role(method, token("r")) == "ada"
        assert not method.takes_long(token("r"))
    assert issuer.requests == 3


def test_a_token_without_a_signature_or_signed_with_a_public_key_is_refused(issuer, method):
    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = token("r", SECRET, "HS256").rpartition(b".")[0]
    hmac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    for forged in (
        token("r", None, "none"),
        signed + b"." + jwt.utils.base64url_encode(hmac.sign(signed, pem)),
    ):
        refused(method, forged, "algorithm is not one of the key's")
    refused(method, token("r", OTHER), "signature does not match")


@pytest.mark.parametrize("claims", [{"iss": "https://other"}, {"iss": ""}, {"aud": "other"}])
def test_a_token_of_another_issuer_or_audience_is_refused(method, claims):
    refused(method, token("r", **claims), r"another issuer|somebody else")


def test_keys_that_cannot_verify_signatures_are_left_out(issuer, method):
    issuer.keys = [
        {"kty": "OKP"}, {}, None, published("e", RSA, use="enc"), published("w", CURVE, crv="P-0"),
        {**published("x", RSA), "n": ""}, published("n", RSA, alg="none"),
        {"kty": "oct", "kid": "o", "k": jwt.utils.base64url_encode(SECRET.encode()).decode()}, *issuer.keys,
    ]  # fmt: skip
    assert role(method, token("c", CURVE, "ES256")) == "ada"
    refused(method, token("e"))
    refused(method, token("o", SECRET, "HS256"))


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://other"},
        *({"jwks_uri": url} for url in (None, "http://a.example/", "file:///etc/x")),
    ],
)
def test_a_discovery_document_of_another_form_gives_no_keys(issuer, method, changes, caplog):
    issuer.discovery |= changes
    issuer.seen = lambda: pytest.fail("requested")
    refused(method, token("r"))
    assert f"the signing keys of {ISSUER} cannot be read: IssuerFailed('https://" in caplog.text


def test_a_second_key_verifies_the_tokens_of_programs(issuer):
    settings = {"memory": True, "token_public_key": ISSUER, "token_second_key": f"data:,{SECRET}"}
    with pytest.raises(InvalidConfiguration, match="needs token_audience"):
        BrokerSettings(**settings)
    found = make_authentication(BrokerSettings(**settings, token_audience="console"))
    assert found is not None
    for data in (token("r"), token(None, SECRET, "HS256")):
        assert found.authenticate("token", data, 0).role == "ada"
