"""Connections of a project's flows to a cluster with authentication."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

import geminga
from geminga.cli.main import command
from geminga.client.cluster import Cluster
from geminga.errors import InvalidConfiguration, UsageError
from geminga.spark.pipelines import lake
from geminga.spark.pipelines.connection import VARIABLE, check_asks, connection, handed_over
from geminga.spark.pipelines.project import TEMPLATES, create
from geminga.spark.pipelines.running import run
from tests.support.certificates import Authority

SECRET = "data:;base64," + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWNyZXQ="
ELSEWHERE = Cluster(
    service_url="pulsar+ssl://a:6651", admin_url="https://a:8443", auth_plugin="token", auth_params="token:x"
)


def test_without_options_a_project_uses_its_own_address(monkeypatch):
    for value in (None, ""):
        monkeypatch.delenv(VARIABLE, raising=False)
        if value is not None:
            monkeypatch.setenv(VARIABLE, value)
        assert connection("pulsar://b:6650") == {"service.url": "pulsar://b:6650"}
        assert connection(admin_url="http://b:8080") == {"admin.url": "http://b:8080"}
    with pytest.raises(InvalidConfiguration, match="service_url or an admin_url"):
        connection()


def test_connection_returns_the_options_of_the_run(monkeypatch):
    access = {"auth.plugin": "token", "auth.params": "token:x"}
    monkeypatch.setenv(VARIABLE, handed_over(ELSEWHERE, is_addressed=True))
    assert connection("pulsar://b:6650") == {"service.url": "pulsar+ssl://a:6651", **access}
    assert connection(admin_url="http://b:8080") == {"admin.url": "https://a:8443", **access}
    monkeypatch.setenv(VARIABLE, handed_over(ELSEWHERE, is_addressed=False))
    assert connection("pulsar://b:6650") == {"service.url": "pulsar://b:6650", **access}


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_flows_of_every_template_call_connection(template, tmp_path):
    create(tmp_path / "p", template)
    check_asks(tmp_path / "p")
    for path in (tmp_path / "p/transformations").rglob("*.py"):
        text = path.read_text()
        assert '"service.url"' not in text
        assert '"admin.url"' not in text


def test_a_project_without_a_call_of_connection_is_refused(tmp_path):
    create(tmp_path / "p", "ingest")
    flows = tmp_path / "p/transformations/ingest.py"
    flows.write_text(flows.read_text().replace("pipelines.connection", "pipelines.something"))
    with pytest.raises(UsageError, match=r"no flow of .* calls connection\(\)"):
        run(tmp_path / "p", cluster=handed_over(ELSEWHERE, is_addressed=False))


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(580)
def test_a_lake_is_loaded_from_a_broker_with_tokens_and_tls(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("broker")
    token = _token()
    with geminga.embedded(
        tls_certificate=certificate, tls_key=key, token_secret_key=SECRET, super_user_roles=("boss",)
    ) as broker:
        cluster = Cluster(
            service_url=broker.service_url, admin_url=broker.admin_url, auth_plugin="token",
            auth_params=f"token:{token}", tls_trust_certs_file_path=str(authority.certificate),
        )  # fmt: skip
        with cluster.client() as client, client.create_producer("events") as producer:
            producer.send_many([json.dumps({"id": n, "name": f"n{n}"}).encode() for n in range(10)])
        create(tmp_path / "p", "ingest", {"service_url": broker.service_url})
        outcome: Any = run(tmp_path / "p", cluster=handed_over(cluster, is_addressed=False))
    assert outcome.exit_code == 0, "\n".join([outcome.error, *outcome.output[-60:]])
    assert token not in "\n".join(outcome.output)
    rows = lake.table_dataset(str(tmp_path / "p/lake/events")).to_table()
    assert sorted(rows["id"].to_pylist()) == list(range(10))


def _token() -> str:
    made = CliRunner().invoke(command, ["token", "create", "--secret-key", SECRET, "--subject", "boss"])
    return made.stdout.strip()
