"""Prometheus text: format, escaping, sums."""

import re
import sys
import zlib
from typing import Any

import pytest
from doubles import calls_of
from waiting import eventually
from web_requests import ask

import geminga
from geminga.broker.admin import metrics
from geminga.broker.admin.metric_table import METRICS
from geminga.broker.delivery.selectors import ConsistentHashSelector
from geminga.broker.runtime.cooperative import at_once
from geminga.broker.topics import histograms
from geminga.ids import TopicName
from geminga.ledger.api import StoreStats
from tests.broker.conftest import entry_bytes

NAME = TopicName.parse("persistent://public/default/exact")
STATS: dict[str, Any] = {
    "msgRateIn": 1.5,
    "msgInCounter": 7,
    "storageSize": 100,
    "publishers": [{}],
    "subscriptions": {
        'we"ird\n': {"msgBacklog": 3, "consumers": [{}, {}], "blockedSubscriptionOnUnackedMsgs": False}
    },
}
SAMPLE = re.compile(r'[a-z_][a-z0-9_]*(\{([a-z_]+="(\\.|[^"\\])*",?)*\})? \S+$')


def add_topics(out: metrics.Exposition, harness: Any, stats: dict[str, Any], count: int = 0) -> None:
    """Add topics with these stats by name, of ``count`` in their namespace."""
    listed = metrics.TopicMetrics(out)
    for name, each in stats.items():
        at_once(listed.add(TopicName.parse(name), each))
    counts = {"public/default": count} if count else {}
    listed.finish(counts, harness.broker.topics.resting, lambda text: True)


def render(harness: Any) -> str:
    out = metrics.Exposition(common=(("cluster", "standalone"),))
    add_topics(out, harness, {"a": STATS, "b": STATS}, 5)
    metrics.add_store(out, StoreStats(1, 2, 3, 0.5, 4, 5), healthy=True)
    metrics.add_failures(out, {"timer": 2, "store": 0})
    metrics.add_process(out, started_at_ms=1000, connections=2, connections_created=5, connections_refused=1)
    metrics.add_security(out, {"binary": 1, "web": 2, "tls": 3}, 4.0)
    return out.text()


def test_every_line_is_well_formed_and_metrics_are_blocks(harness):
    seen: list[str] = []
    for line in render(harness).splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in seen, "a metric must be one block"
            seen.append(name)
            assert "\\" not in line
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {seen[-1]} {METRICS[seen[-1]].kind}"
        else:
            assert SAMPLE.match(line), line
            assert line.split("{")[0].split(" ")[0] == seen[-1]


def test_metrics_have_the_names_and_sums_of_pulsar(harness):
    text = render(harness)
    assert 'pulsar_topics_count{cluster="standalone",namespace="public/default"} 5\n' in text
    assert 'pulsar_broker_topics_count{cluster="standalone"} 5\n' in text
    assert 'pulsar_broker_rate_in{cluster="standalone"} 3.0\n' in text
    assert 'pulsar_broker_msg_backlog{cluster="standalone"} 6\n' in text
    assert 'topic="persistent://public/default/a"} 1.5\n' in text
    assert 'subscription="we\\"ird\\n"} 3\n' in text
    assert "geminga_store_healthy" in text
    assert 'geminga_callback_failures_total{cluster="standalone",kind="timer"} 2\n' in text


def test_numbers_are_written_as_prometheus_reads_them():
    assert metrics.number(True) == "1"
    assert metrics.number(3) == "3"
    assert metrics.number(float("nan")) == "NaN"
    assert metrics.number(float("inf")) == "+Inf"
    assert metrics.number(0.25) == "0.25"


def test_exact_backlogs_have_metrics(harness):
    peer = harness.consumer(str(NAME))
    peer.producer(str(NAME))
    peer.publish(3)
    peer.ack((0, 1))
    harness.advance(5)
    out = metrics.Exposition()
    add_topics(out, harness, {"exact": harness.actions.stats(NAME)})
    values = {line.split("{")[0]: line.split()[-1] for line in out.text().splitlines() if "{" in line}
    assert values["geminga_subscription_messages_in_backlog"] == "2"
    assert int(values["geminga_subscription_bytes_in_backlog"]) > 40
    assert values["geminga_subscription_oldest_backlog_message_age_seconds"] == "5"
    assert values["geminga_subscription_ack_holes"] == "1"
    assert values["pulsar_storage_backlog_age_seconds"] == "5"


def test_a_scrape_has_every_metric_of_the_table_and_its_labels(tmp_path, monkeypatch):
    """A broker with a topic, a subscription, a compaction and cheap storage."""
    monkeypatch.setattr(histograms, "WINDOW_SECONDS", 2.0)
    with (
        geminga.embedded(tmp_path / "data", offload_location=str(tmp_path / "cheap")) as broker,
        broker.client() as client,
        geminga.Admin(broker.admin_url) as admin,
    ):
        consumer = client.subscribe("exact", "s", is_read_compacted=True)
        producer = client.create_producer("exact")
        for value in (b"old", b"new"):
            producer.send(value, partition_key="k")
        consumer.acknowledge(consumer.receive())
        admin.topics.compact("exact")
        eventually(lambda: admin.topics.compaction_status("exact").status == "SUCCESS")
        eventually(lambda: "pulsar_storage_write_rate" in scraped(broker.admin_url)[0])
        text, _ = scraped(broker.admin_url)
    labels: dict[str, set[frozenset[str]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("{")
            found = re.findall(r'(\w+)="', rest.rpartition("}")[0])
            labels.setdefault(name, set()).add(frozenset(found))
    assert set(METRICS) - set(labels) == {"geminga_tls_certificate_expiry_timestamp_seconds"}  # no TLS
    for name, metric in METRICS.items():
        if name not in labels:
            continue
        # One set of labels for each metric: a sum over all samples counts nothing twice.
        assert labels[name] == {frozenset({"cluster", *metric.of.labels, *metric.labels})}, name


def test_a_restarted_broker_shows_backlogs_before_their_topics_are_used(tmp_path):
    with geminga.embedded(tmp_path / "data") as broker, broker.client() as client:
        client.subscribe("exact", "dead").close()
        producer = client.create_producer("exact")
        for _ in range(100):
            producer.send(b"waits")
    with geminga.embedded(tmp_path / "data") as broker:
        lines = scraped(broker.admin_url)[0].splitlines()
    of_topic = f'cluster="standalone",namespace="public/default",topic="{NAME}"'
    assert f'pulsar_subscription_back_log{{{of_topic},subscription="dead"}} 100' in lines
    assert f"pulsar_msg_backlog{{{of_topic}}} 100" in lines
    assert 'pulsar_broker_msg_backlog{cluster="standalone"} 100' in lines
    assert 'geminga_namespace_msg_backlog{cluster="standalone",namespace="public/default"} 100' in lines
    assert 'geminga_topics_loaded{cluster="standalone"} 0' in lines


@pytest.mark.parametrize(
    ("kind", "cumulative"), [("Shared", False), ("Exclusive", False), ("Exclusive", True)]
)
def test_acknowledgement_rates_of_batches_count_messages(harness, kind, cumulative):
    """Ten batches of four messages are acknowledged by one command, in ten seconds."""
    peer = harness.consumer(str(NAME), kind=kind)
    peer.producer(str(NAME))
    for sequence_id in range(10):
        batch = entry_bytes(b"\x02\x18\x01x" * 4, sequence_id=sequence_id, num_messages_in_batch=4)
        peer.send(sequence_id, batch, messages=4)
    ids = peer.ids()
    peer.ack(*(ids[-1:] if cumulative else ids), cumulative=cumulative)
    harness.advance(10)
    assert harness.actions.stats(NAME)["subscriptions"]["s"]["messageAckRate"] == pytest.approx(4.0, rel=0.1)


def test_only_stats_with_consumers_compute_the_hash_ranges_of_key_shared_consumers(tmp_path, monkeypatch):
    computed = calls_of(monkeypatch, ConsistentHashSelector, "ranges")
    with geminga.embedded(tmp_path / "data") as broker, broker.client() as client:
        client.subscribe("exact", "s", geminga.ConsumerType.KeyShared)
        stats = "admin/v2/persistent/public/default/exact/stats"
        overview = "admin/v2/geminga"
        pages = (
            "metrics", f"{overview}/subscriptions", f"{overview}/overview", f"{stats}?excludeConsumers=true",
        )  # fmt: skip
        for page, expected in (*((page, 0) for page in pages), (stats, 1)):
            assert ask(f"{broker.admin_url}/{page}").status == 200
            assert len(computed) == expected, page


def scraped(url: str, **headers: str) -> tuple[str, dict[str, str]]:
    _, body, found = ask(url + "/metrics", **headers)
    return (zlib.decompress(body, 31) if "Content-Encoding" in found else body).decode(), dict(found)


def test_topics_can_be_left_out_and_namespaces_have_their_sums():
    with geminga.embedded(topic_metrics=False) as broker, broker.client() as client:
        for name in ("one", "two"):
            client.subscribe(name, "s").close()
            client.create_producer(name).send(b"x")
        text, _ = scraped(broker.admin_url)
    assert not re.search("topic=|subscription=", text)
    labels = '{cluster="standalone",namespace="public/default"}'
    for name in ("pulsar_msg_backlog", "pulsar_in_messages_total", "pulsar_producers_count"):
        (total,) = re.findall(f"^{re.escape(name + labels)} (.*)$", text, re.M)
        assert float(total) == 2, name
    assert "pulsar_average_msg_size" not in text, "an average has no sum"


def test_sums_of_many_topics_are_one_short_step(harness, lines_run):
    out = metrics.Exposition()
    topics = metrics.TopicMetrics(out)
    for number in range(100):
        at_once(topics.add(TopicName.parse(f"t{number}"), STATS))
    resting = harness.broker.topics.resting
    lines = lines_run(lambda: topics.finish({"public/default": 100}, resting, lambda text: True))
    assert lines < 7 * 100
    assert re.findall(r"^geminga_namespace_msg_backlog.* (.*)$", out.text(), re.M) == ["300"]


def test_a_reader_that_asks_for_no_messages_is_no_backlog(harness):
    driver = {"isDurable": False, "lastConsumedFlowTimestamp": 0, "msgBacklog": 5, "consumers": [{}]}
    reader = {**driver, "lastConsumedFlowTimestamp": 1, "msgBacklog": 7}
    durable = {**driver, "isDurable": True, "msgBacklog": 11}
    out = metrics.Exposition()
    subscriptions = {"driver": driver, "reader": reader, "durable": durable}
    add_topics(out, harness, {"exact": {"subscriptions": subscriptions}})
    backlogs = re.findall(r'^pulsar_subscription_back_log\{.*="(.*)"\} (.*)$', out.text(), re.M)
    assert backlogs == [("reader", "7"), ("durable", "11")]
    assert re.findall(r"^pulsar_(?:broker_)?msg_backlog.* (.*)$", out.text(), re.M) == ["18", "18"]
    assert re.findall(r"^pulsar_(?:broker_)?consumers_count.* (.*)$", out.text(), re.M) == ["3", "3"]


def test_a_scrape_is_compressed_for_a_client_that_accepts_it():
    with geminga.embedded() as broker:
        plain, headers = scraped(broker.admin_url)
        zipped, zipped_headers = scraped(broker.admin_url, **{"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in headers
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert zipped_headers["Content-Encoding"] == "gzip"
    assert zipped.split("\n")[:3] == plain.split("\n")[:3]


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_the_process_has_its_descriptors_and_memory():
    with geminga.embedded() as broker:
        text, _ = scraped(broker.admin_url)
    found = dict(re.findall(r"^(process_\w+)\{.*\} (.*)$", text, re.M))
    assert 0 < int(found["process_open_fds"]) <= int(found["process_max_fds"])
    assert int(found["process_virtual_memory_bytes"]) > int(found["process_resident_memory_bytes"]) > 0
