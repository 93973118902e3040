"""The Grafana dashboard: each query asks for what a broker really tells, so that no panel is empty."""

import json
import re
import urllib.request
from collections import defaultdict

import pytest
from click.testing import CliRunner

import geminga
from geminga.broker.topics import histograms
from geminga.cli.main import command

WORDS = {"sum", "min", "max", "topk", "rate", "increase", "by", "or", "vector", "label_values"}
WIDTH = 24
"""Width of Grafana's grid in columns."""
DASHBOARD = json.loads(CliRunner().invoke(command, ["dashboard", "grafana"]).output)
VARIABLES = [
    (each["name"], each["definition"]) for each in DASHBOARD["templating"]["list"] if each["type"] == "query"
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Each metric that a broker with some traffic tells, with the labels that all its samples have."""
    text = ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histograms, "WINDOW_SECONDS", 1.0)  # latencies are those of the last whole minute
        with (
            geminga.embedded(tmp_path_factory.mktemp("store")) as broker,
            broker.client() as client,
            client.subscribe("t", "s", geminga.ConsumerType.Shared) as consumer,
            client.create_producer("t") as producer,
        ):
            while "geminga_ack_latency_sum" not in text:
                producer.send(b"a")
                consumer.acknowledge(consumer.receive(60_000))
                with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
                    text = answer.read().decode()
    labels: dict[str, list[set[str]]] = defaultdict(list)
    for name, inner in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.M):
        labels[name].append(set(re.findall(r'(\w+)="', inner)))
    return {name: set.intersection(*found) for name, found in labels.items()}


def asked(expression: str) -> list[tuple[str, set[str]]]:
    """The metrics of a query, each with the labels that it is chosen by."""
    found = []
    plain = re.sub(r"\[[^\]]*\]", "", expression)
    plain = re.sub(r"\bby \(\w+(, \w+)*\)", "", plain)
    for name, inner in re.findall(r"\b([a-z_]\w*)(?:\{([^}]*)\})?", re.sub(r'"[^"]*"', '""', plain)):
        if name not in WORDS:
            found.append((name, set(re.findall(r"(\w+)=~?", inner))))
    return found


@pytest.mark.parametrize(("title", "target"), QUERIES, ids=[f"{title} {t['refId']}" for title, t in QUERIES])
def test_the_broker_exports_the_metrics_of_each_panel(told, title, target):
    expression, legend = target["expr"], target["legendFormat"]
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    grouped = {name for names in re.findall(r"by \(([^)]*)\)", expression) for name in names.split(", ")}
    metrics = asked(expression)
    assert metrics
    assert expression.count("(") == expression.count(")")
    for name, chosen in metrics:
        if name not in told and expression.endswith("or vector(0)"):
            continue  # none has failed
        assert name in told, f"{title}: no broker tells {name}"
        assert chosen | shown | grouped <= told[name], f"{title}: {name} has the labels {told[name]}"
        assert "cluster" in chosen
    assert shown <= grouped or not grouped


def test_the_dashboard_shows_network_cpu_disk_and_latency():
    shown = {name for _, target in QUERIES for name, _ in asked(target["expr"])}
    assert shown >= {
        "pulsar_broker_throughput_in", "pulsar_broker_throughput_out", "process_cpu_seconds_total",
        "geminga_disk_written_bytes_per_second", "geminga_store_sync_seconds_total",
        "pulsar_storage_write_latency_sum", "geminga_ack_latency_sum",
    }  # fmt: skip


def test_metrics_and_labels_are_found_in_queries(told):
    assert asked('topk(20, a_total{x="1",y=~"$z"}) / (b > 0) or sum by (q) (rate(c_total{}[5m]))') == [
        ("a_total", {"x", "y"}),
        ("b", set()),
        ("c_total", set()),
    ]
    assert "pulsar_no_such_thing" not in told


@pytest.mark.parametrize(("name", "query"), VARIABLES)
def test_variables_list_existing_values(told, name, query):
    inside = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
    ((metric, chosen),) = asked(inside[1])
    assert chosen | {inside[2]} <= told[metric]
    assert inside[2] == name


def test_the_dashboard_has_grafanas_form():
    found = DASHBOARD
    assert found["uid"]
    assert found["schemaVersion"] >= 36
    assert "id" not in found, "Grafana gives it; a file that names one takes another's place"
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    names = {variable["name"] for variable in found["templating"]["list"]}
    assert len(names) == len(found["templating"]["list"])
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert used <= names | {"__rate_interval"}


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
