"""Authentication from Spark: users with passwords and OAuth 2 clients, with a broker that requires it."""

import base64
import json
import time

import pytest
from token_issuer import token_issuer

from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.embedded import embedded

pytest.importorskip("passlib")
pytest.importorskip("bcrypt")
pytest.importorskip("oauthlib")

pytestmark = pytest.mark.spark

SECRET = bytes(range(32))
CANARY = "canary-9e21"
TOLD_SECONDS, TOKEN_SECONDS = 3, 120
"""Refresh interval and lifetime of a token; the second is long enough for a slow machine."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    users = tmp_path_factory.mktemp("users") / "htpasswd"
    # Passwords "secret", by openssl passwd -apr1, and "other", by the C library's crypt.
    users.write_text("admin:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\njoe:ablevSdGaUmRA\n")
    with embedded(
        basic_auth=str(users), token_secret_key=f"data:;base64,{base64.b64encode(SECRET).decode()}",
        super_user_roles=("admin",), deduplication=True,
    ) as running:  # fmt: skip
        yield running


@pytest.fixture(scope="module")
def issuer():
    """URL of an issuer whose tokens are the broker's."""

    def grant(form: dict[str, str]) -> dict[str, object] | None:
        if form["client_secret"] != CANARY:
            return None
        token = make_token("admin", SECRET, "HS256", expires_at=int(time.time()) + TOKEN_SECONDS)
        return {"access_token": token, "expires_in": TOLD_SECONDS}

    with token_issuer(grant) as url:
        yield url


def parameters(issuer: str, secret: str = CANARY) -> str:
    return json.dumps({"issuer_url": issuer, "client_id": "me", "client_secret": secret})


def key_file() -> str:
    text = json.dumps({"client_id": "me", "client_secret": CANARY})
    return f"data:application/json;base64,{base64.b64encode(text.encode()).decode()}"


def ways(issuer: str) -> dict[str, dict[str, str]]:
    java = "org.apache.pulsar.client.impl.auth"
    user = {"username": "admin", "password": "secret"}
    return {
        "basic": {"auth.plugin": "basic", "auth.params": json.dumps(user)},
        "java-basic": {
            "pulsar.client.authPluginClassName": f"{java}.AuthenticationBasic",
            "pulsar.client.authParams": json.dumps({"userId": "admin", "password": "secret"}),
        },
        "oauth2": {"auth.plugin": "oauth2", "auth.params": parameters(issuer)},
        "java-oauth2": {
            "auth.plugin": f"{java}.oauth2.AuthenticationOAuth2",
            "auth.params": json.dumps({"issuerUrl": issuer, "privateKey": key_file()}),
        },
    }  # fmt: skip


@pytest.mark.rotating(1)
@pytest.mark.parametrize("way", ["basic", "java-basic", "oauth2", "java-oauth2"])
def test_an_authenticated_client_reads_and_writes(spark, broker, issuer, tmp_path, way):
    """A batch into a topic, a stream from there into another exactly once, and that one read back."""
    first, second = (f"persistent://public/default/{way}-{number}" for number in (1, 2))
    shown = ways(issuer)[way]
    options = {"service.url": broker.service_url, **shown}
    frame = spark.sql("SELECT cast(id AS STRING) AS value FROM range(500)")
    frame.write.format("pulsar").options(**options, topic=first).mode("append").save()
    found = spark.readStream.format("pulsar").options(**options, startingOffsets="earliest").load(first)
    writer = found.select("value").writeStream.format("pulsar").options(**options, exactlyOnce="true")
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(second)
    )
    assert query.awaitTermination(120)
    rows = spark.read.format("pulsar").options(**options).load(second).collect()
    assert sorted(int(row.value) for row in rows) == list(range(500))
    kept = [each for each in (tmp_path / "checkpoint").rglob("*") if each.is_file()]
    assert kept
    texts = [each.read_text(errors="replace") for each in kept]
    secrets = [CANARY, key_file(), *(value for value in shown.values() if "password" in value)]
    assert not [text for text in texts for secret in secrets if secret in text]


@pytest.mark.rotating(1)
@pytest.mark.parametrize("wrong", ["basic", "oauth2", "nobody"])
def test_other_clients_are_rejected(spark, broker, issuer, wrong):
    shown = {
        "basic": {"auth.plugin": "basic", "auth.params": json.dumps({"username": "joe", "password": CANARY})},
        "oauth2": {"auth.plugin": "oauth2", "auth.params": parameters(issuer, f"{CANARY}-wrong")},
        "nobody": {},
    }[wrong]
    options = {"service.url": broker.service_url, **shown}
    topic = "persistent://public/default/closed"
    with pytest.raises(Exception, match=r"AuthenticationError|returned no token") as caught:
        spark.read.format("pulsar").options(**options).load(topic).collect()
    frame = spark.sql("SELECT 'x' AS value")
    with pytest.raises(Exception, match=r"AuthenticationError|returned no token") as also:
        frame.write.format("pulsar").options(**options, topic=topic).mode("append").save()
    assert CANARY not in f"{caught.value} {also.value}"
