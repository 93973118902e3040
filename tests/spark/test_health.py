"""``format("pulsar_stats")``: queried topics, their rows, and the pace of samples."""

import ast
import pickle
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from waiting import eventually

import geminga
from geminga.broker.rules.tokens import make_token
from geminga.client.admin import admin
from geminga.errors import AuthenticationError, ConnectError, InvalidConfiguration
from geminga.spark import health
from geminga.spark.cluster.clients import open_admin
from geminga.spark.health import (
    COLUMNS,
    StatsOptions,
    StatsReader,
    SubscriptionStatsSource,
    sample,
    topics_of,
)
from geminga.spark.options import access_options
from geminga.spark.releases import arrow_schema
from tests.support.certificates import Authority


def options(broker: geminga.EmbeddedBroker, **more: str) -> StatsOptions:
    return StatsOptions.of({"path": "public/default", "admin.url": broker.admin_url, **more})


def test_patterns_match_partitions_without_their_number(broker):
    admin(broker.admin_url, "PUT", "persistent/public/default/parts/partitions", 2)
    with broker.client() as client:
        for name in ("parts", "plain", "other"):
            client.create_producer(name).close()
    name = "persistent://public/default/"
    assert topics_of(options(broker, pattern="parts|plain")) == [
        f"{name}parts-partition-0", f"{name}parts-partition-1", f"{name}plain",
    ]  # fmt: skip


def test_each_existing_subscription_has_a_row(broker):
    topic = "persistent://public/default/measured"
    with broker.client() as client:
        producer = client.create_producer(
            topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=60_000
        )
        earliest = geminga.InitialPosition.Earliest
        consumer = client.subscribe(topic, "a", geminga.ConsumerType.Shared, initial_position=earliest)
        client.subscribe(topic, "b", initial_position=earliest)
        for number in range(20):
            producer.send_async(b"%d" % number, lambda result, message_id: None)
        producer.flush()
        for number in range(20):
            message = consumer.receive(30_000)
            if 5 <= number < 10:
                consumer.acknowledge(message)
        names = [topic, "persistent://public/default/gone"]
        # Acknowledgements leave in groups, after a while.
        eventually(lambda: sample(options(broker), names).to_pylist()[0]["ack_holes"])
        rows = sample(options(broker), names).to_pylist()
    assert [(row["topic"], row["subscription"]) for row in rows] == [(topic, "a"), (topic, "b")]
    first, second = rows
    assert (first["backlog"], first["ack_holes"], first["consumers"]) == (3, 1, 1)
    assert (second["backlog"], second["ack_holes"], second["type"]) == (4, 0, "Exclusive")
    assert first["batch_fill"] == 5
    assert first["last_acknowledged_at"] is not None
    assert second["last_acknowledged_at"] is None


def test_a_topic_without_subscriptions_has_a_row(broker):
    with broker.client() as client:
        client.create_producer("alone").close()
    (row,) = sample(options(broker), ["persistent://public/default/alone"]).to_pylist()
    assert (row["subscription"], row["backlog"], row["batch_fill"]) == (None, None, None)


def test_topics_are_split_into_tasks(broker, monkeypatch):
    names = [f"persistent://public/default/t{number}" for number in range(1201)]
    monkeypatch.setattr(health, "topics_of", lambda options: names)
    reader = StatsReader(options(broker))
    parts = reader.partitions({"sample": 0}, {"sample": 1})
    assert [len(part.names) for part in parts] == [500, 500, 201]
    monkeypatch.setattr(health, "topics_of", lambda options: [])
    (empty,) = reader.partitions({"sample": 0}, {"sample": 1})
    assert list(reader.read(empty)) == []


def test_a_run_takes_its_samples_at_their_interval(broker):
    reader = SubscriptionStatsSource(
        {"path": "public/default", "admin.url": broker.admin_url, "samples": "3", "every": "10 seconds"}
    ).streamReader(SubscriptionStatsSource({}).schema())
    assert isinstance(reader, StatsReader)
    now = [0.0]
    vars(reader).update(clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    reader.prepareForTriggerAvailableNow()
    offset, moments = {"sample": 7}, []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        moments.append(now[0])
        now[0] += 4
        offset = end
    assert (offset, moments) == ({"sample": 10}, [0.0, 10.0, 20.0])


def test_the_columns_have_sparks_types():

    assert arrow_schema(SubscriptionStatsSource({}).schema()).equals(COLUMNS)
    assert pa.RecordBatch.from_pylist([], schema=COLUMNS).num_rows == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"admin.url": "http://h:1"}, "needs admin.url, and namespaces"),
        ({"path": "public", "admin.url": "http://h:1"}, "path="),
        ({"path": "a/b", "admin.url": "http://h:1", "pattern": "("}, "pattern="),
        ({"path": "a/b", "admin.url": "http://h:1", "samples": "0"}, "samples="),
        ({"path": "a/b", "admin.url": "http://h:1", "every": "soon"}, "every="),
        ({"path": "a/b", "admin.url": "http://h:1", "sample": "1"}, "did you mean 'samples'"),
    ],
)
def test_invalid_options_are_named(given, said):
    with pytest.raises(InvalidConfiguration, match=said):
        StatsOptions.of(given)


def test_an_unreachable_broker_is_an_error():
    with pytest.raises(ConnectError):
        sample(
            StatsOptions.of({"path": "public/default", "admin.url": "http://127.0.0.1:9"}),
            ["persistent://public/default/t"],
        )


KEY = bytes(range(32))
SECRET = "data:;base64,AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


def test_statistics_are_read_with_authentication_and_tls(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("broker")
    shown, shown_key = authority.sign("admin")
    settings = {
        "tls_certificate": certificate, "tls_key": key, "tls_trust_certificates": authority.certificate,
        "token_secret_key": SECRET, "super_user_roles": ("admin",),
    }  # fmt: skip
    token = make_token("admin", KEY, "HS256")
    (tmp_path / "token").write_text(token)
    trust = {"tls.trustCertsFilePath": str(authority.certificate)}
    topic = "persistent://public/default/t"
    with geminga.embedded(**settings) as broker:
        with open_admin(access_options({**trust, "auth.token": token}), broker.admin_url) as shown_to:
            shown_to.topics.create(topic)
        for shown_so in (
            {"auth.token": token},
            {"auth.token": f"file://{tmp_path}/token"},
            {"auth.plugin": "tls", "auth.params": f"tlsCertFile:{shown},tlsKeyFile:{shown_key}"},
        ):
            found = pickle.loads(pickle.dumps(options(broker, **trust, **shown_so)))
            assert topics_of(found) == [topic]
            assert sample(found, [topic]).num_rows == 1
        with pytest.raises(AuthenticationError):
            topics_of(options(broker, **trust))
        with pytest.raises(ConnectError, match="is not trusted"):
            topics_of(options(broker, **{"auth.token": token}))
        assert token not in repr(options(broker, **trust, **{"auth.token": token}))
    with pytest.raises(InvalidConfiguration, match="exclude each other"):
        options(broker, **{"auth.token": token, "auth.params": token})


class _State:
    """A value of Spark's state, which keeps whole numbers and gives floats back as null."""

    value: tuple[Any, ...] | None = None

    def get(self) -> tuple[Any, ...] | None:
        return self.value

    def update(self, value: tuple[Any, ...]) -> None:
        self.value = tuple(None if isinstance(one, float) else one for one in value)


def test_the_health_template_follows_a_subscription_beside_a_topic_without_one():
    """The null of that topic makes the columns of the sample floats."""
    template = resources.files("geminga.spark.pipelines") / "templates/health/transformations/health.py.txt"
    (judge,) = [each for each in ast.parse(template.read_text()).body if isinstance(each, ast.ClassDef)]
    output = StructType().add("backlog", "long").add("backlog_growth", "double").add("status", "string")
    names: dict[str, Any] = {
        "StatefulProcessor": object, "StatefulProcessorHandle": object, "Iterator": Iterator, "pd": pd,
        "STUCK_AFTER": pd.Timedelta(seconds=60), "OUTPUT": output,
    }  # fmt: skip
    exec(compile(ast.Module([judge], []), str(template), "exec"), names)
    processor = names["Judge"]()
    processor.state = _State()
    now = pd.Timestamp("2024-02-29")
    for number, (backlog, growth, status) in enumerate(
        [(5, None, "ok"), (25, 2.0, "growing"), (25, 0, "stuck")]
    ):
        sample = {
            "sampled_at": now + pd.Timedelta(seconds=(0, 10, 70)[number]), "mark_delete_position": "5:1",
            "ack_holes": 1.0, "backlog": float(backlog),
        }  # fmt: skip
        (found,) = processor.handleInputRows(("topic", "s"), iter([pd.DataFrame([sample])]), None)
        assert found.to_dict("records") == [{"backlog": backlog, "backlog_growth": growth, "status": status}]
