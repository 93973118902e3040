"""Alert rules: each uses metrics that brokers export."""

import json
import re

import pytest
from click.testing import CliRunner

from geminga.broker.admin.metric_table import METRICS
from geminga.cli.main import command

FUNCTIONS = {"rate", "increase", "time", "and", "or"}
(GROUP,) = json.loads(CliRunner().invoke(command, ["dashboard", "alerts"]).output)["groups"]


@pytest.mark.parametrize("rule", GROUP["rules"], ids=lambda rule: rule["alert"])
def test_an_alert_uses_metrics_of_brokers(rule):
    if rule["expr"].startswith("up{"):  # of Prometheus itself
        return
    names = set(re.findall(r"\b([a-z]\w+)\b(?!\s*\[?\d)", re.sub(r"\[[^\]]*\]|\{[^}]*\}", "", rule["expr"])))
    assert names - FUNCTIONS <= set(METRICS)
