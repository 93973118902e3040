"""Clusters, tenants, namespaces and policies over a store."""

from collections.abc import Callable, Iterator

import pytest

from geminga.broker.admin.errors import STATUS_OF_RULE
from geminga.broker.rules import namespaces as module
from geminga.broker.rules.namespaces import TOPIC_POLICIES, NamespaceRegistry
from geminga.broker.rules.policies import RuleViolation
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.prefetch import existence_of, schemas_of, topic_of
from geminga.errors import StoreDamaged
from geminga.ids import TopicName
from geminga.ledger.api import StoredValue
from geminga.ledger.memory import MemoryKeys, MemoryReports, MemoryStore

SETTINGS = BrokerSettings(memory=True)


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def namespaces(store):
    return NamespaceRegistry(store, SETTINGS)


def refused(status: int, call: Callable[[], object]) -> str:
    with pytest.raises(RuleViolation) as caught:
        call()
    assert STATUS_OF_RULE[caught.value.wrong] == status
    return caught.value.reason


def test_defaults_exist(namespaces):
    assert namespaces.tenants.names() == ["public", "pulsar"]
    assert namespaces.tenants.namespaces("public") == ["public/default"]
    assert namespaces.tenants.namespaces("pulsar") == ["pulsar/system"]
    assert namespaces.exists("public", "default")
    assert namespaces.clusters.names() == ["standalone"]
    assert namespaces.tenants.get("public") == {"adminRoles": [], "allowedClusters": ["standalone"]}


def test_everything_is_read_back_from_the_store(store, namespaces):
    namespaces.clusters.create("elsewhere", {"serviceUrl": "http://other:8080"})
    namespaces.tenants.create("acme", {"allowedClusters": ["standalone"], "adminRoles": ["boss"]})
    namespaces.create_namespace("acme", "shop", {"from_the_future": 1})
    namespaces.set_policy("acme", "shop", "message_ttl_in_seconds", 7)
    topic = TopicName.parse("acme/shop/orders")
    namespaces.set_topic_policy(topic, "message_ttl_in_seconds", 3)
    again = NamespaceRegistry(store, SETTINGS)
    assert again.clusters.names() == ["elsewhere", "standalone"]
    assert again.tenants.get("acme") == namespaces.tenants.get("acme")
    assert again.document("acme", "shop") == namespaces.document("acme", "shop")
    assert again.document("acme", "shop")["from_the_future"] == 1
    assert again.policies("acme", "shop").message_ttl_seconds == 7
    assert again.topic_policies(topic).message_ttl_seconds == 3
    assert again.topic_policies(TopicName.parse("acme/shop/orders-partition-4")).message_ttl_seconds == 3
    assert again.topic_policies(TopicName.parse("acme/shop/other")).message_ttl_seconds == 7


def test_done_is_called_when_the_change_is_durable(store, namespaces):
    store.poll()
    seen: list[object] = []
    namespaces.tenants.create("acme", {"allowedClusters": ["standalone"]}, seen.append)
    assert seen == []
    store.poll()
    assert seen == [None]


def test_clusters_used_by_namespaces_cannot_be_removed_from_a_tenant(namespaces):
    namespaces.clusters.create("elsewhere", {})
    refused(409, lambda: namespaces.tenants.update("public", {"allowedClusters": ["elsewhere"]}))


def test_namespaces_are_created_and_deleted(namespaces):
    refused(404, lambda: namespaces.create_namespace("nobody", "shop"))
    refused(412, lambda: namespaces.create_namespace("public", "a b"))
    refused(409, lambda: namespaces.create_namespace("public", "default"))
    assert "public/none" in refused(404, lambda: namespaces.policies("public", "none"))
    assert "Tenant" in refused(404, lambda: namespaces.policies("nobody", "none"))
    namespaces.create_namespace("public", "shop", {"bundles": {"numBundles": 2}, "replication_clusters": []})
    document = namespaces.document("public", "shop")
    assert document["bundles"] == {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    assert document["replication_clusters"] == ["standalone"]
    assert document["schema_compatibility_strategy"] == "UNDEFINED"
    refused(403, lambda: namespaces.set_policy("public", "shop", "replication_clusters", ["mars"]))
    refused(412, lambda: namespaces.create_namespace("public", "odd", {"bundles": {"numBundles": "x"}}))


def test_documents_are_copies(namespaces):
    namespaces.document("public", "default")["properties"]["a"] = "b"
    namespaces.tenants.get("public")["adminRoles"].append("intruder")
    assert namespaces.document("public", "default")["properties"] == {}
    assert namespaces.tenants.get("public")["adminRoles"] == []


def test_policies_are_set_and_removed(namespaces):
    seen: list[tuple[str, TopicName | None, int | None]] = []
    namespaces.watchers.append(
        lambda namespace, topic, was: seen.append((namespace, topic, was and was.max_producers_per_topic))
    )
    before = namespaces.policies("public", "default")
    namespaces.set_policy("public", "default", "max_producers_per_topic", 3)
    assert namespaces.policies("public", "default").max_producers_per_topic == 3
    namespaces.set_policy("public", "default", "max_producers_per_topic", None)
    assert namespaces.policies("public", "default") == before
    assert seen == [("public/default", None, 0), ("public/default", None, 3)]
    refused(400, lambda: namespaces.set_policy("public", "default", "max_producer_per_topic", 3))


def test_topic_policies_apply_to_all_partitions(namespaces):
    topic = TopicName.parse("orders-partition-2")
    namespaces.set_topic_policy(topic, "deduplicationEnabled", True)
    assert namespaces.get_topic_policy(TopicName.parse("orders"), "deduplicationEnabled") is True
    assert namespaces.topic_policies(topic).deduplication
    namespaces.set_policy("public", "default", "max_producers_per_topic", 9)
    assert namespaces.topic_policies(topic).max_producers_per_topic == 9
    namespaces.set_topic_policy(topic, "deduplicationEnabled", None)
    assert not namespaces.topic_policies(topic).deduplication
    namespaces.set_topic_policy(topic, "max_message_size", 1000)
    namespaces.forget_topic(topic)
    assert namespaces.get_topic_policy(topic, "max_message_size") is None
    assert namespaces.topic_policies(topic).max_message_size == SETTINGS.max_message_size


def test_retention_must_exceed_the_backlog_quota(namespaces):
    quota = {"destination_storage": {"limitSize": 200 << 20}}
    namespaces.set_policy("public", "default", "backlog_quota_map", quota)
    small = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}
    assert "retention 100 MB, 60 min; backlog quota 209715200 bytes" in refused(
        412, lambda: namespaces.set_policy("public", "default", "retention_policies", small)
    )
    namespaces.set_policy(
        "public", "default", "retention_policies", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 300}
    )
    quota = {"message_age": {"limitTime": 3600}}
    assert "retention 300 MB, 60 min; backlog quota 3600 s" in refused(
        412, lambda: namespaces.set_policy("public", "default", "backlog_quota_map", quota)
    )


def test_a_damaged_document_is_named():
    store = MemoryStore()
    store.keys.put("tenant/public", b"\x00not json")
    with pytest.raises(StoreDamaged, match="tenant/public"):
        NamespaceRegistry(store, SETTINGS)


class Watched(MemoryKeys):
    """Keys of a store that knows what was looked through, and what was asked for."""

    def __init__(self, reports: MemoryReports) -> None:
        super().__init__(reports)
        self.scanned: list[str] = []
        self.asked: list[str] = []

    def scan(self, prefix: str, *, after: str = "") -> Iterator[tuple[str, StoredValue]]:
        self.scanned.append(prefix)
        return super().scan(prefix, after=after)

    def get(self, key: str) -> StoredValue | None:
        self.asked.append(key)
        return super().get(key)


def test_topic_policies_are_read_on_request(monkeypatch):
    monkeypatch.setattr(module, "RESOLVED_TOPICS_MAX", 2)
    store = MemoryStore()
    store.keys = watched = Watched(store.reports)
    first = NamespaceRegistry(store, SETTINGS)
    topics = [TopicName.parse(f"public/default/t{number}") for number in range(5)]
    for number, topic in enumerate(topics):
        first.set_topic_policy(topic, "message_ttl_in_seconds", number + 1)
    watched.scanned.clear()
    namespaces = NamespaceRegistry(store, SETTINGS)
    assert not [each for each in watched.scanned if TOPIC_POLICIES.startswith(each)]
    for _ in range(2):
        found = [namespaces.topic_policies(topic).message_ttl_seconds for topic in topics]
        assert found == [1, 2, 3, 4, 5]
    watched.asked.clear()
    assert namespaces.topic_policies(topics[4]).message_ttl_seconds == 5
    assert watched.asked == []
    assert namespaces.topic_policies(topics[2]).message_ttl_seconds == 3
    assert watched.asked, "only two are kept"
    namespaces.set_topic_policy(topics[4], "message_ttl_in_seconds", 9)
    assert namespaces.topic_policies(topics[4]).message_ttl_seconds == 9
    namespaces.set_policy("public", "default", "max_producers_per_topic", 7)
    assert namespaces.topic_policies(topics[0]).max_producers_per_topic == 7
    kept = namespaces.get_topic_policy(topics[0], "message_ttl_in_seconds")
    namespaces.forget_topic(topics[0])
    assert (kept, namespaces.get_topic_policy(topics[0], "message_ttl_in_seconds")) == (1, None)
    assert namespaces.topic_policies(topics[0]) == namespaces.policies("public", "default")


def test_topic_policies_are_read_ahead():
    topic = TopicName.parse("public/default/t-partition-3")
    key = f"{TOPIC_POLICIES}persistent://public/default/t"
    for wanted in (existence_of(topic), topic_of(topic), schemas_of(topic)):
        assert (key, key) in wanted.keys
