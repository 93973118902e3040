"""Alert rules: each uses metrics that brokers export."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from geminga.broker.admin.metric_table import METRICS
from geminga.cli.main import command
from geminga.console.alerts import ALERTS, Alert, text

FUNCTIONS = {"rate", "increase", "time", "and", "or"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_uses_metrics_of_brokers(alert: Alert) -> None:
    if alert.expression.startswith("up{"):  # of Prometheus itself
        return
    names = set(re.findall(r"\b([a-z]\w+)\b(?!\s*\[?\d)", re.sub(r"\[[^\]]*\]", "", alert.expression)))
    assert names - FUNCTIONS <= set(METRICS)


def test_the_command_prints_the_rules() -> None:
    printed = CliRunner().invoke(command, ["dashboard", "alerts"]).output
    assert printed == text()
    assert [rule["alert"] for rule in json.loads(printed)["groups"][0]["rules"]] == [
        alert.name for alert in ALERTS
    ]
