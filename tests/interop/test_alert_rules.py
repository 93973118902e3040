"""Alert rules, evaluated by Prometheus' own ``promtool``: each fires when it should, and only then; and a
scrape by Prometheus itself."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

import geminga
from geminga.broker.rules.tokens import make_token
from geminga.cli.main import command
from geminga.testing.apache_pulsar import free_ports
from tests.support.certificates import Authority
from tests.support.waiting import eventually

pytestmark = pytest.mark.interop

RULES = CliRunner().invoke(command, ["dashboard", "alerts"]).output

SUBSCRIPTION = '{cluster="c",topic="t",subscription="s"}'
CASES = {
    "GemingaDown": [('up{job="broker"}', "0x60", "1x60")],
    "GemingaStoreStopped": [("geminga_store_healthy", "0x60", "1x60")],
    "GemingaPublishingRefused": [("geminga_publishing_refused", "1x60", "0x60")],
    "GemingaDiskFills": [("geminga_disk_seconds_to_low_water", "3600x60", "864000x60")],
    "GemingaDamage": [('geminga_store_damaged_things{lost="entries"}', "1x60", "0x60")],
    "GemingaSyncsSlow": [
        ("geminga_store_sync_seconds_total", "0+12x60", "0+0.6x60"),
        ("geminga_store_syncs_total", "0+60x60", "0+60x60"),
    ],
    "GemingaProducersHeld": [(f"geminga_subscription_trouble{SUBSCRIPTION}", "6x60", "2x60")],
    "GemingaSubscriptionStopped": [(f"geminga_subscription_trouble{SUBSCRIPTION}", "5x60", "3x60")],
    "GemingaOldestMessage": [
        (f"geminga_subscription_oldest_backlog_message_age_seconds{SUBSCRIPTION}", "4000+60x60", "-1x60")
    ],
    "GemingaNoConsumer": [
        (f"pulsar_subscription_back_log{SUBSCRIPTION}", "5x120", "5x120"),
        (f"pulsar_subscription_consumers_count{SUBSCRIPTION}", "0x120", "1x120"),
    ],
    "GemingaAckHoles": [(f"geminga_subscription_ack_holes{SUBSCRIPTION}", "20000x60", "100x60")],
    "GemingaQuotaNear": [
        ('pulsar_storage_backlog_size{topic="t"}', "90x60", "90x60"),
        ('pulsar_storage_backlog_quota_limit{topic="t"}', "100x60", "-1x60"),
    ],
    "GemingaTtlExpires": [(f"pulsar_subscription_total_msg_expired{SUBSCRIPTION}", "0+5x60", "5x60")],
    "GemingaCertificateExpires": [
        ("geminga_tls_certificate_expiry_timestamp_seconds", "864000x120", "8640000x120")
    ],
    "GemingaConnectionsRefused": [("geminga_connections_refused_total", "0+1x60", "7x60")],
    "GemingaInternalFailures": [('geminga_callback_failures_total{kind="store"}', "0+1x60", "0x60")],
}
"""For each alert its series: values with which it fires, and values with which it is silent; one a minute."""


def test_every_alert_has_series_for_both_outcomes():
    assert list(CASES) == [each["alert"] for each in json.loads(RULES)["groups"][0]["rules"]]


def test_prometheus_fires_each_alert_when_it_should_and_no_other_time(tmp_path, promtool):
    (tmp_path / "alerts.json").write_text(RULES)
    found = []
    for name, series in CASES.items():
        for fires in (True, False):
            found.append(
                {
                    "interval": "1m",
                    "input_series": [
                        {"series": each, "values": firing if fires else silent}
                        for each, firing, silent in series
                    ],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                            "eval_time": "70m" if "120" in str(series) else "30m",
                            "exp_samples": [{"labels": "{}", "value": int(fires)}],
                        }
                    ],
                }
            )
    tests = tmp_path / "tests.json"
    tests.write_text(json.dumps({"rule_files": ["alerts.json"], "evaluation_interval": "1m", "tests": found}))
    done = subprocess.run(
        [promtool, "test", "rules", str(tests)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_scrapes_a_broker_and_evaluates_the_rules_with_the_configuration_of_the_page(
    tmp_path, promtool
):
    page = (Path(__file__).parents[2] / "docs/how-to/run-in-production.md").read_text()
    [configuration] = re.findall(r"cat > prometheus\.yml <<'END'\n(.*?)^END", page, re.M | re.S)
    (tmp_path / "alerts.json").write_text(RULES)
    (tmp_path / "prometheus.token").write_text(make_token("prometheus", b"s" * 32, "HS256"))
    certificate, key = Authority(tmp_path, "ca").sign("broker")
    (port,) = free_ports(1)

    def result(query: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{query}", timeout=60) as answer:
            return dict(json.load(answer)["data"])

    with geminga.embedded(
        token_secret_key=f"data:,{'s' * 32}", metrics_roles=["prometheus"], tls_certificate=certificate,
        tls_key=key, host="localhost",
    ) as broker:  # fmt: skip
        address = urlsplit(str(broker.admin_url)).netloc
        often = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        (tmp_path / "prometheus.yml").write_text(often + configuration.replace("localhost:18443", address))
        arguments = ["--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
        with subprocess.Popen([Path(promtool).with_name("prometheus"), *arguments], cwd=tmp_path) as running:
            try:
                up = "query?query=up%7Bjob%3D%22broker%22%7D"
                found = eventually(lambda: result(up)["result"], but=OSError)
                eventually(lambda: result(up)["result"][0]["value"][1] == "1", detail=found)
                [sample] = result("query?query=geminga_store_healthy")["result"]
                assert sample["value"][1] == "1"
                [group] = eventually(
                    lambda: [each for each in result("rules")["groups"] if each["lastEvaluation"] > "0002"]
                )
                assert [rule["name"] for rule in group["rules"] if rule.get("lastError")] == []
            finally:
                running.terminate()


@pytest.fixture
def promtool():
    """Path of Prometheus' rule checker, with Prometheus beside it; without them, in continuous integration
    too, the test is skipped."""
    fetched = Path(__file__).parents[2] / ".cache/prometheus/usr/bin/promtool"
    found = str(fetched) if fetched.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: tools/fetch_promtool.py gets one on Debian")
    return found
