"""Mirrors between brokers that ask who one is: tokens of an OAuth 2 issuer that expire while it runs."""

import base64
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from token_issuer import token_issuer
from waiting import eventually

import geminga
from geminga.broker.rules.tokens import make_token
from geminga.mirror import Cluster
from tests.mirror.helpers import failure, mirror, stored

pytest.importorskip("oauthlib")

KEYS = {"source": b"s" * 32, "target": b"t" * 32}


def token(key: bytes, role: str, expires_at: float | None = None) -> str:
    return make_token(role, key, "HS256", expires_at=None if expires_at is None else int(expires_at))


class Issuer(NamedTuple):
    """Gives each client a token of its name, for the broker that its audience names; two seconds long."""

    url: str
    given: Counter[str]


@pytest.fixture
def issuer():
    given = Counter[str]()

    def grant(form: dict[str, str]) -> dict[str, object]:
        audience = form["audience"]
        given[audience] += 1
        return {
            "access_token": token(KEYS[audience], form["client_id"], time.time() + 2), "expires_in": 2
        }  # fmt: skip

    with token_issuer(grant) as url:
        yield Issuer(url, given)


def broker(name: str) -> Any:
    return geminga.embedded(
        token_secret_key=f"data:;base64,{base64.b64encode(KEYS[name]).decode()}",
        super_user_roles=("root",), authentication_refresh_seconds=5, cluster=name,
    )  # fmt: skip


def as_root(made: Any, name: str) -> Cluster:
    return Cluster(
        service_url=made.service_url, admin_url=made.admin_url, auth_plugin="token",
        auth_params=f"token:{token(KEYS[name], 'root')}",
    )  # fmt: skip


def by_oauth2(made: Any, name: str, issuer: Issuer, folder: Path) -> Cluster:
    key = folder / f"{name}.json"
    key.write_text(
        json.dumps({"type": "client_credentials", "client_id": "the-mirror", "client_secret": "x"})
    )
    given = {"issuer_url": issuer.url, "private_key": f"file://{key}", "audience": name}
    return Cluster(
        service_url=made.service_url, admin_url=made.admin_url, auth_plugin="oauth2",
        auth_params=json.dumps(given),
    )  # fmt: skip


def test_tokens_that_expire_while_it_runs(issuer, tmp_path):
    with broker("source") as source, broker("target") as target:
        here, there = as_root(source, "source"), as_root(target, "target")
        with here.admin() as one, there.admin() as other:
            for admin in (one, other):
                admin.tenants.update("public", admin_roles=["the-mirror"])
        client = here.client()
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        producer.send(b"0")
        ends = [by_oauth2(source, "source", issuer, tmp_path), by_oauth2(target, "target", issuer, tmp_path)]
        with mirror(*ends) as running:
            assert running.wait_until_caught_up(60), running.status()
            sent = 1

            def renewed() -> bool:
                nonlocal sent
                producer.send(b"%d" % sent)
                consumer.acknowledge(consumer.receive(60_000))
                sent += 1
                return min(issuer.given[name] for name in KEYS) >= 4

            # Each side has had its token renewed on connections that were open, and by its web port.
            eventually(renewed, detail=issuer.given)
            eventually(lambda: running.status().messages >= sent)
            assert running.status().partitions[0].duplicates == 0
            assert not running.status().failed
        with there.client() as reader:
            assert stored(reader, "t") == stored(client, "t")
        client.close()


def test_missing_permissions_are_reported_and_nothing_is_copied(tmp_path):
    with broker("source") as source, broker("target") as target:
        here, there = as_root(source, "source"), as_root(target, "target")
        with here.client() as client:
            client.create_producer("t").send(b"x")
        nobody = Cluster(
            service_url=target.service_url, admin_url=target.admin_url, auth_plugin="token",
            auth_params=f"token:{token(KEYS['target'], 'nobody')}",
        )  # fmt: skip
        assert "'nobody' may not" in failure(here, nobody)
        with there.admin() as admin:
            assert admin.topics.list("public/default") == []
