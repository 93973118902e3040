"""Client credentials, with an issuer that the test plays."""

import base64
import json
from typing import Any
from urllib.parse import parse_qs

import pytest
from cases import cases
from token_issuer import token_issuer

import geminga
from geminga import errors

oauth2 = pytest.importorskip("geminga.client.options.oauth2")
pytest.importorskip("oauthlib")

CANARY = "canary-5f1c"
ISSUER = "https://issuer.example"
KEY = json.dumps({"client_id": "me", "client_secret": CANARY})


class Issuer:
    """Answers `fetch`: discovery, and one token after another."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, list[str]] | None]] = []
        self.lifetime: int | None = 100
        self.answer: Any = None
        self.now = 0.0
        self.tokens = 0

    def fetch(self, url: str, body: str | None) -> tuple[int, bytes]:
        self.asked.append((url, None if body is None else parse_qs(body)))
        if self.answer is not None:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer
        if body is None:
            return 200, json.dumps({"token_endpoint": f"{ISSUER}/token"}).encode()
        self.tokens += 1
        token = {"access_token": f"t{self.tokens}", "token_type": "Bearer"}
        if self.lifetime is not None:
            token["expires_in"] = self.lifetime
        return 200, json.dumps(token).encode()

    def client(self, **options: Any) -> Any:
        return oauth2.ClientCredentials(
            ISSUER, "me", CANARY, fetch=self.fetch, clock=lambda: self.now, **options
        )


def test_a_token_request_has_the_fields_of_the_client_credentials_grant():
    issuer = Issuer()
    given = issuer.client(audience="urn:pulsar", scope="produce consume").credentials()
    assert (given.method, given.data) == ("token", b"t1")
    assert given.http_headers == (("Authorization", "Bearer t1"),)
    assert [url for url, _ in issuer.asked] == [
        f"{ISSUER}/.well-known/openid-configuration",
        f"{ISSUER}/token",
    ]
    assert issuer.asked[1][1] == {
        "grant_type": ["client_credentials"],
        "client_id": ["me"],
        "client_secret": [CANARY],
        "audience": ["urn:pulsar"],
        "scope": ["produce consume"],
    }


@pytest.mark.parametrize(("lifetime", "kept"), [(3600, 3590), (100, 90), (10, 9), (None, 10**9)])
def test_a_token_is_kept_until_it_nearly_expires(lifetime, kept):
    issuer = Issuer()
    issuer.lifetime = lifetime
    client = issuer.client()
    assert client.credentials().data == b"t1"
    issuer.now = kept - 0.5
    assert client.credentials().data == b"t1"
    if lifetime is not None:
        issuer.now = kept + 0.5
        assert client.credentials().data == b"t2"
        assert len(issuer.asked) == 3  # the endpoint is fetched once


def test_a_challenge_of_the_broker_fetches_a_new_token():
    client = Issuer().client()
    assert client.credentials().data == b"t1"
    assert client.credentials(b"PulsarAuthRefresh").data == b"t2"


@pytest.mark.parametrize(
    ("answer", "retriable", "said"),
    [
        (OSError("no route"), True, "no route"),
        ((503, b"busy"), True, "HTTP 503"),
        ((429, b""), True, "HTTP 429"),
        ((404, b""), False, "HTTP 404"),
        ((200, b"<html>"), False, "names no token endpoint"),
        ((200, b"{}"), False, "names no token endpoint"),
    ],
)
def test_issuers_that_do_not_answer_as_they_should(answer, retriable, said):
    issuer = Issuer()
    issuer.answer = answer
    with pytest.raises(errors.AuthenticationError, match=said) as caught:
        issuer.client().credentials()
    assert caught.value.retriable is retriable
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        (401, b'{"error": "access_denied", "error_description": "wrong secret"}'),
        (200, b"{}"),
        (400, b"<html>"),
    ],
)
def test_a_refused_token(answer):
    issuer = Issuer()
    client = issuer.client()
    client.credentials()
    issuer.answer = answer
    with pytest.raises(errors.AuthenticationError, match="returned no token") as caught:
        client.credentials(b"refresh")
    assert not caught.value.retriable
    assert CANARY not in f"{caught.value}{client!r}"


@pytest.mark.parametrize("parameters", cases("oauth2_parameters_refused"))
def test_wrong_parameters(parameters):
    if isinstance(parameters, dict):
        parameters = json.dumps({"issuer_url": ISSUER, **parameters})
    with pytest.raises(ValueError) as caught:
        geminga.AuthenticationOauth2(parameters)
    assert "issuer.example" not in str(caught.value)


def test_the_private_key_may_be_a_path_a_file_url_data_or_json(tmp_path, monkeypatch):
    issuer = Issuer()
    monkeypatch.setattr(oauth2, "_fetch", issuer.fetch)

    def form_of(provider: Any) -> dict[str, list[str]]:
        """Return the form of a token request."""
        provider.credentials()
        (url, _), (_, form) = issuer.asked[-2:]
        assert url.startswith(ISSUER)
        assert form is not None
        return form

    path = tmp_path / "a key.json"
    path.write_text(KEY)
    encoded = base64.b64encode(KEY.encode()).decode()
    for place in (
        {"private_key": str(path)},
        {"private_key": path.as_uri()},
        {"private_key": f"file:{path}"},
        {"private_key": f"data:application/json;base64,{encoded}"},
        json.loads(KEY),
    ):
        made = geminga.AuthenticationOauth2(json.dumps({"issuer_url": ISSUER, **place}))
        assert form_of(made.provider)["client_secret"] == [CANARY]
        assert CANARY not in repr(made)
    java = json.dumps({"issuerUrl": ISSUER, "privateKey": path.as_uri(), "audience": "urn:pulsar"})
    of_java = geminga.Authentication(
        "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2", java
    ).provider
    form = form_of(of_java)
    assert (form["audience"], form["client_secret"]) == (["urn:pulsar"], [CANARY])
    named = geminga.Authentication("oauth2", json.dumps({"issuer_url": ISSUER, **json.loads(KEY)}))
    assert named.provider.method == "token"


@pytest.fixture
def served():
    """A real issuer on a port of this machine."""
    asked: list[str] = []

    def grant(form: dict[str, str]) -> dict[str, object] | None:
        asked.append(form["client_secret"])
        return {"access_token": "abc", "expires_in": 60} if form["client_secret"] == CANARY else None

    with token_issuer(grant) as url:
        yield url, asked


def test_a_client_connects_with_a_token_of_the_issuer(served, pulsar_broker):
    url, asked = served
    authentication = geminga.AuthenticationOauth2(json.dumps({"issuer_url": url, **json.loads(KEY)}))
    with geminga.Client(pulsar_broker.service_url, authentication=authentication) as client:
        client.create_producer("t").send(b"x")
    assert asked == [CANARY]


def test_a_wrong_secret_is_raised_at_once(served, pulsar_broker):
    url, asked = served
    wrong = {"issuer_url": url, "client_id": "me", "client_secret": "wrong"}
    authentication = geminga.AuthenticationOauth2(json.dumps(wrong))
    with (
        geminga.Client(pulsar_broker.service_url, authentication=authentication) as client,
        pytest.raises(geminga.AuthenticationError, match="access_denied"),
    ):
        client.create_producer("t")
    assert asked == ["wrong"]
