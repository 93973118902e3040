"""Mirrors between brokers that ask who one is: tokens of an OAuth 2 issuer that expire while it runs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

import pytest
from waiting import eventually

import geminga
from geminga.mirror import Cluster
from tests.mirror.helpers import mirror, stored

pytest.importorskip("oauthlib")
pytestmark = pytest.mark.timeout(180)

KEYS = {"source": b"s" * 32, "target": b"t" * 32}


def token(key: bytes, role: str, expires_at: float | None = None) -> str:
    """As an issuer signs it (HS256)."""
    parts = [{"alg": "HS256"}, {"sub": role} | ({} if expires_at is None else {"exp": int(expires_at)})]
    text = ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts)
    proof = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(proof).decode().rstrip('=')}"


class Issuer:
    """Gives each client a token of its name, for the broker that its audience names; two seconds long."""

    def __init__(self) -> None:
        self.given = dict.fromkeys(KEYS, 0)
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def _answer(self, found: dict[str, Any]) -> None:
                body = json.dumps(found).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self._answer({"token_endpoint": f"{issuer.url}/token"})

            def do_POST(self) -> None:
                asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                audience = asked["audience"][0]
                issuer.given[audience] += 1
                made = token(KEYS[audience], asked["client_id"][0], time.time() + 2)
                self._answer({"access_token": made, "token_type": "Bearer", "expires_in": 2})

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as found:
        yield found


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


def test_tokens_that_expire_while_it_runs(issuer: Issuer, tmp_path: Path) -> None:
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
                consumer.acknowledge(consumer.receive(20_000))
                sent += 1
                return min(issuer.given.values()) >= 4

            # Each side has had its token renewed on connections that were open, and by its web port.
            eventually(renewed, detail=issuer.given)
            eventually(lambda: running.status().messages >= sent)
            assert running.status().partitions[0].duplicates == 0
            assert not running.status().failed
        with there.client() as reader:
            assert stored(reader, "t") == stored(client, "t")
        client.close()


def test_missing_permissions_are_reported_and_nothing_is_copied(tmp_path: Path) -> None:
    with broker("source") as source, broker("target") as target:
        here, there = as_root(source, "source"), as_root(target, "target")
        with here.client() as client:
            client.create_producer("t").send(b"x")
        nobody = Cluster(
            service_url=target.service_url, admin_url=target.admin_url, auth_plugin="token",
            auth_params=f"token:{token(KEYS['target'], 'nobody')}",
        )  # fmt: skip
        status = mirror(here, nobody, once=True).run(signals=False)
        assert "'nobody' may not" in status.failed[0]
        with there.admin() as admin:
            assert admin.topics.list("public/default") == []
