import os
from types import SimpleNamespace

import pytest

from geminga.client.admin import admin
from geminga.errors import Timeout, TopicNotFound
from geminga.ids import MessageId
from geminga.spark.cluster import clients as clusters
from geminga.spark.cluster.clients import Cluster, client_for, connect, matching_topics
from geminga.spark.offsets import Offset
from geminga.spark.options import ConnectionOptions


@pytest.fixture
def connection(pulsar_broker):
    options = ConnectionOptions(service_url=pulsar_broker.service_url)
    yield options
    client = clusters._clients.pop((os.getpid(), options), None)
    if client is not None:
        client.close()


def test_clients_are_cached_by_their_options(connection, monkeypatch):
    client = client_for(connection)
    assert client_for(ConnectionOptions(service_url=connection.service_url)) is client
    monkeypatch.setattr(clusters, "os", SimpleNamespace(**{**vars(os), "getpid": lambda: -1}))
    other = client_for(connection)
    assert other is not client, "a forked child must not use its parent's client"
    other.close()


def test_the_cache_is_bounded(monkeypatch):
    closed = []

    class Fake:
        def __init__(self, options: ConnectionOptions) -> None:
            self.options = options

        def close(self) -> None:
            closed.append(self.options.service_url)

    monkeypatch.setattr(clusters, "open_client", Fake)
    monkeypatch.setattr(clusters, "_clients", {})
    for number in range(clusters.CLIENTS_MAX + 2):
        client_for(ConnectionOptions(service_url=f"pulsar://h{number}"))
        client_for(ConnectionOptions(service_url="pulsar://h1"))
    assert closed == ["pulsar://h0", "pulsar://h2"]


def test_partitions_and_entries_of_a_topic_are_found(connection, pulsar_broker, pulsar_topic):
    cluster = connect(connection)
    (missing,) = cluster.partitions([pulsar_topic])
    assert isinstance(missing, TopicNotFound)
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 2)
    assert cluster.partitions([pulsar_topic, f"{pulsar_topic}-partition-1"]) == [
        [(pulsar_topic, 0), (pulsar_topic, 1)],
        [(pulsar_topic, 1)],
    ]
    assert isinstance(cluster, Cluster)
    assert cluster.topics_matching(pulsar_topic) == [pulsar_topic]
    with cluster.client.create_producer(f"{pulsar_topic}-partition-1") as producer:
        producer.send(b"x")
    source = cluster.open((pulsar_topic, 1), MessageId.earliest, Offset(9, 9), queue_size=10, name="n")
    assert [entry.partition for entry in source.read(10, 5.0)] == [1]
    assert source.read(10, 0.0) == []
    assert source.last_message_id().entry_id == 0
    path = f"{pulsar_topic.replace('://', '/')}-partition-1/subscriptions"
    assert [name[:2] for name in admin(pulsar_broker.admin_url, "GET", path)] == ["n-"]
    source.close()
    assert admin(pulsar_broker.admin_url, "GET", path) == []


def test_patterns_match_whole_local_names_and_no_system_topics():
    prefix = "persistent://public/default/"
    topics = [
        f"{prefix}{name}" for name in ("a", "ab", "b", "a-partition-0", "a-partition-1", "__change_events")
    ]
    assert matching_topics(f"{prefix}a", topics) == [f"{prefix}a"]
    assert matching_topics(f"{prefix}a.*", topics) == [f"{prefix}a", f"{prefix}ab"]
    assert matching_topics(f"{prefix}.*", topics) == [f"{prefix}a", f"{prefix}ab", f"{prefix}b"]


def test_objects_loaded_by_a_worker_are_frozen_once(monkeypatch):
    """By Python's collector, which Spark calls after every piece of work. Once: garbage comes later too."""
    frozen: list[int] = []
    monkeypatch.setattr(clusters, "gc", SimpleNamespace(freeze=lambda: frozen.append(len(frozen))))
    monkeypatch.setattr(clusters, "_clients", {})
    monkeypatch.delenv("SPARK_PYTHON_RUNTIME", raising=False)
    opened = [client_for(ConnectionOptions(service_url="pulsar://a-program-of-its-own"))]
    assert not frozen
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    monkeypatch.setattr(clusters, "_kept_loaded_in", os.getpid() + 1)
    opened += [client_for(ConnectionOptions(service_url=f"pulsar://h{number}")) for number in (1, 2, 1)]
    assert frozen == [0]
    for client in opened:
        client.shutdown()


def test_a_query_that_starts_waits_for_a_third_of_the_time_out():
    options = ConnectionOptions(service_url="pulsar://127.0.0.1:1", operation_timeout_ms=600)
    with pytest.raises(Timeout, match=r"no broker came up within 0\.2 s") as caught:
        connect(options).reach("t")
    assert "operationTimeoutMs" in caught.value.__notes__[0]
