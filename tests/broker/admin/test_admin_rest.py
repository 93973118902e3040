"""The admin REST interface over HTTP: paths, bodies, status codes and reasons as Pulsar's tools expect."""

import asyncio
import contextlib
import json
import time
import urllib.parse
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from doubles import raising
from insides import server_of
from waiting import eventually
from web_requests import Answer, ask

import geminga
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.namespaces import bundle_of
from geminga.broker.admin.topic_actions import SubscriptionActions, TopicActions
from geminga.broker.runtime.refusal import Refused
from geminga.broker.serving.embedded import embedded
from geminga.ids import TopicName
from geminga.ledger.memory import MemoryStore
from tests.support.insides import inside
from tests.support.recorded import VECTORS

EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
LATEST = {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1, "partitionIndex": -1, "batchIndex": -1}


class Rest:
    """HTTP calls that check the status; ``fails`` returns the reason."""

    def __init__(self, base: str) -> None:
        self.base = base

    def raw(self, method: str, path: str, body: Any = None) -> Answer:
        return ask(self.base + path, method, body)

    def call(self, method: str, path: str, body: Any = None, *, status: int | None = None) -> Any:
        found, raw, _ = self.raw(method, f"/admin/v2/{path}", body)
        wanted = status or (200 if method == "GET" else 204)
        assert found == wanted, f"{method} {path}: {found} {raw!r}"
        return json.loads(raw) if raw else None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def fails(self, status: int, method: str, path: str, body: Any = None) -> str:
        answer = self.call(method, path, body, status=status)
        assert set(answer) == {"reason"}
        assert answer["reason"]
        return str(answer["reason"])


@pytest.fixture(scope="module")
def rest(broker):
    return Rest(broker.admin_url)


@pytest.fixture
def name():
    return f"t-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def namespace(rest):
    made = f"public/n-{uuid.uuid4().hex[:10]}"
    rest.call("PUT", f"namespaces/{made}", {})
    return made


# --- tenants, clusters, namespaces ---
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
def test_numbers_that_no_json_answer_could_contain_are_refused(rest, namespace, number):
    body = f'{{"retentionTimeInMinutes": 1, "retentionSizeInMB": 1, "more": {number}}}'.encode()
    status, answer, _ = rest.raw("POST", f"/admin/v2/namespaces/{namespace}/retention", body)
    assert (status, f"{number} is not a finite number" in answer.decode()) == (400, True)
    assert rest.get(f"namespaces/{namespace}/retention") is None


def test_a_tenant_is_checked_and_deleted_with_its_namespaces_by_force(rest, name):
    info = {"adminRoles": ["boss", "boss"], "allowedClusters": ["standalone"]}
    for wrong, given in ((name, {"allowedClusters": ["mars"]}), (name, {}), ("a%20b", info)):
        rest.fails(412, "PUT", f"tenants/{wrong}", given)
    rest.fails(404, "POST", f"tenants/{name}", info)
    rest.call("PUT", f"tenants/{name}", info)
    rest.fails(409, "PUT", f"tenants/{name}", info)
    assert rest.get(f"tenants/{name}")["adminRoles"] == ["boss"]
    rest.call("PUT", f"persistent/{name}/ns/t", {}, status=404)
    rest.call("PUT", f"namespaces/{name}/ns")
    rest.fails(409, "DELETE", f"tenants/{name}")
    rest.call("PUT", f"persistent/{name}/ns/t", {})
    rest.call("DELETE", f"tenants/{name}?force=true")
    rest.fails(404, "GET", f"tenants/{name}")
    rest.fails(404, "GET", f"namespaces/{name}/ns")


def test_clusters_are_created_shown_and_deleted(rest, broker, name):
    assert "standalone" in rest.get("clusters")
    assert rest.get("clusters/standalone")["brokerServiceUrl"] == broker.service_url
    rest.fails(404, "GET", "clusters/mars")
    rest.call("PUT", "clusters/mars", {"serviceUrl": "http://mars:8080"}, status=200)
    assert rest.get("clusters/mars")["serviceUrl"] == "http://mars:8080"
    rest.call("POST", "clusters/mars/peers", ["standalone"])
    assert rest.get("clusters/mars/peers") == ["standalone"]
    rest.fails(412, "POST", "clusters/mars/peers", ["mars"])
    rest.fails(409, "PUT", "clusters/mars", {})
    rest.call("PUT", f"tenants/{name}", {"allowedClusters": ["mars", "standalone"]})
    rest.call("PUT", f"namespaces/{name}/far", {"replication_clusters": ["mars"]})
    for used in ("standalone", "mars"):
        rest.fails(412, "DELETE", f"clusters/{used}")
    rest.call("DELETE", f"tenants/{name}?force=true")
    rest.call("DELETE", "clusters/mars")
    assert rest.get("clusters/standalone/failureDomains") == {}


def test_a_new_namespace_is_shown_with_the_fields_of_pulsar(rest, name):
    official = {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": [], "allowed_clusters": [], "bundles": {"numBundles": 4},
        "backlog_quota_map": {}, "is_allow_auto_update_schema": True, "migrated": False,
    }  # fmt: skip
    rest.call("PUT", f"namespaces/public/{name}", official)
    assert f"public/{name}" in rest.get("namespaces/public")
    found = rest.get(f"namespaces/public/{name}")
    assert found["replication_clusters"] == ["standalone"]
    assert found["bundles"]["boundaries"][1] == "0x40000000"
    rest.fails(409, "PUT", f"namespaces/public/{name}", official)
    rest.call("PUT", f"persistent/public/{name}/t", {})
    assert "t" in rest.fails(409, "DELETE", f"namespaces/public/{name}")
    rest.call("DELETE", f"persistent/public/{name}/t")
    rest.call("DELETE", f"namespaces/public/{name}")
    rest.fails(404, "DELETE", f"namespaces/public/{name}")
    rest.fails(404, "GET", "namespaces/nobody")


def test_reconnecting_clients_recreate_no_topics_of_a_deleted_namespace(rest, broker, namespace, monkeypatch):
    """Disconnected clients reconnect at once; their topics used to be recreated and left behind."""
    for number in range(5):
        rest.call("PUT", f"persistent/{namespace}/t{number}", {})
    delete, came_back = TopicActions.delete, []

    def delete_and_come_back(self: TopicActions, name: TopicName, force: bool, done: Any) -> None:
        delete(self, name, force, done)
        with contextlib.suppress(Refused):
            came_back.append(self.topics.find_or_create(name))

    monkeypatch.setattr(TopicActions, "delete", delete_and_come_back)
    rest.call("DELETE", f"namespaces/{namespace}?force=true")
    assert came_back == []
    store = server_of(broker).broker.store
    assert inside(broker, lambda: list(store.keys.names(f"topic/persistent://{namespace}/"))) == []


def test_a_failed_forced_deletion_is_answered_with_a_reason_and_may_be_repeated(rest, namespace, monkeypatch):
    rest.call("PUT", f"persistent/{namespace}/t", {})
    with monkeypatch.context() as broken:
        broken.setattr(TopicActions, "delete", raising(AdminRefusal(503, "the disk is gone")))
        assert rest.fails(503, "DELETE", f"namespaces/{namespace}?force=true") == "the disk is gone"
    rest.call("PUT", f"persistent/{namespace}/t2", {})
    rest.call("DELETE", f"namespaces/{namespace}?force=true")


BODIES: dict[str, Any] = json.loads((VECTORS / "policies.json").read_text())
POLICIES, TOPIC_POLICIES = BODIES["namespace"], BODIES["topic"]


@pytest.mark.parametrize(("segment", "method", "value"), POLICIES, ids=[p[0] for p in POLICIES])
def test_namespace_policies_are_set_shown_and_removed(rest, namespace, segment, method, value):
    path = f"namespaces/{namespace}/{segment}"
    unset = rest.get(path)
    rest.call(method, path, value)
    assert rest.get(path) == value
    rest.call("DELETE", path)
    assert rest.get(path) == unset
    assert rest.fails(412, method, path, {"odd": ["value"]}) if segment not in _ANY_OBJECT else True


_ANY_OBJECT = {
    "retention", "persistence", "autoTopicCreation", "autoSubscriptionCreation", "delayedDelivery",
    "dispatchRate", "subscriptionDispatchRate", "replicatorDispatchRate", "publishRate", "subscribeRate",
    "inactiveTopicPolicies", "entryFilters",
}  # fmt: skip


def test_replication_properties_and_permissions_are_set_and_shown(rest, namespace):
    assert rest.get(f"namespaces/{namespace}/replication") == ["standalone"]
    rest.call("POST", f"namespaces/{namespace}/replication", ["standalone"], status=200)
    rest.fails(403, "POST", f"namespaces/{namespace}/replication", ["mars"])
    rest.call("PUT", f"namespaces/{namespace}/property/a/b")
    rest.call("PUT", f"namespaces/{namespace}/properties", {"c": "d"})
    assert rest.get(f"namespaces/{namespace}/properties") == {"a": "b", "c": "d"}
    assert rest.raw("GET", f"/admin/v2/namespaces/{namespace}/property/a")[1] == b"b"
    rest.call("DELETE", f"namespaces/{namespace}/properties")
    assert rest.get(f"namespaces/{namespace}/properties") == {}
    rest.fails(412, "POST", f"namespaces/{namespace}/permissions/role1", ["destroy"])
    rest.fails(412, "POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=odd", {"limitSize": 1})
    rest.call("POST", f"namespaces/{namespace}/permissions/subscription/s", ["r1"])
    assert rest.get(f"namespaces/{namespace}/permissions/subscription") == {"s": ["r1"]}
    assert rest.raw("GET", f"/admin/v2/namespaces/{namespace}/antiAffinity")[0] == 204


def test_settings_that_one_broker_cannot_follow_are_refused(rest, namespace):
    rest.fails(405, "POST", f"namespaces/{namespace}/antiAffinity", "apart")
    rest.fails(404, "PUT", "resourcegroups/slow", {"publishRateInMsgs": 100})
    rest.fails(404, "POST", f"namespaces/{namespace}/resourcegroup/slow")
    rest.fails(404, "POST", "clusters/standalone/failureDomains/one", {"brokers": ["a:1"]})
    rest.fails(404, "POST", "clusters/standalone/migrate?migrated=true", {"serviceUrl": "http://new:8080"})
    assert rest.get("resourcegroups") == []
    for name in ("antiAffinityGroup", "resource_group_name"):
        rest.fails(412, "PUT", f"namespaces/{namespace}-new", {name: "slow"})
    rest.call("PUT", f"namespaces/{namespace}-new", {"resource_group_name": None})


def test_offload_policies_and_offload_threshold_change_the_same_values(rest, namespace):
    path = f"namespaces/{namespace}"
    rest.call("POST", f"{path}/offloadPolicies", {"managedLedgerOffloadThresholdInBytes": 1000})
    assert rest.get(f"{path}/offloadThreshold") == 1000
    rest.call("PUT", f"{path}/offloadThreshold", 2000, status=200)
    assert rest.get(f"{path}/offloadPolicies")["managedLedgerOffloadThresholdInBytes"] == 2000
    rest.call("PUT", f"{path}/offloadDeletionLagMs", 5, status=200)
    assert rest.get(f"{path}/offloadPolicies")["managedLedgerOffloadDeletionLagInMillis"] == 5
    rest.call("DELETE", f"{path}/offloadDeletionLagMs")
    assert "managedLedgerOffloadDeletionLagInMillis" not in rest.get(f"{path}/offloadPolicies")
    rest.call("DELETE", f"{path}/removeOffloadPolicies")
    assert rest.get(f"{path}/offloadThreshold") == 2000


def test_policies_that_the_broker_cannot_follow_are_refused(rest, namespace):
    reason = rest.fails(400, "POST", f"namespaces/{namespace}/entryFilters", {"entryFilterNames": "jms"})
    assert "'jms' not found" in reason
    rest.call("POST", f"namespaces/{namespace}/entryFilters", {"entryFilterNames": ""})
    rest.fails(403, "POST", f"namespaces/{namespace}/allowedClusters", ["nowhere"])
    # An empty body removes, as pulsar-admin does it.
    rest.call("POST", f"namespaces/{namespace}/deduplicationSnapshotInterval", 60)
    rest.call("POST", f"namespaces/{namespace}/deduplicationSnapshotInterval")
    assert rest.get(f"namespaces/{namespace}/deduplicationSnapshotInterval") is None
    rest.fails(412, "POST", "brokers/configuration/anything/1")
    rest.fails(412, "DELETE", "brokers/configuration/anything")
    rest.fails(412, "POST", "brokers/configuration/dispatchThrottlingRateInMsg/many")
    rest.call("POST", "brokers/configuration/dispatchThrottlingRateInMsg/1000000", status=204)
    assert rest.get("brokers/configuration/values") == {"dispatchThrottlingRateInMsg": "1000000"}
    assert rest.get("brokers/configuration/runtime")["dispatchThrottlingRateInMsg"] == "1000000"
    rest.call("DELETE", "brokers/configuration/dispatchThrottlingRateInMsg", status=204)
    assert rest.get("brokers/configuration/values") == {}
    assert rest.get("brokers/configuration/runtime")["dispatchThrottlingRateInMsg"] == "-1"


def test_a_bundle_is_split_on_request(rest, namespace):
    assert rest.get(f"namespaces/{namespace}/bundles")["numBundles"] == 4
    rest.call("PUT", f"namespaces/{namespace}/0x00000000_0x40000000/split")
    found = rest.get(f"namespaces/{namespace}/bundles")
    assert found["numBundles"] == 5
    assert "0x20000000" in found["boundaries"]
    rest.fails(412, "PUT", f"namespaces/{namespace}/0x00000000_0x40000000/split")
    rest.call("PUT", f"namespaces/{namespace}/0x40000000_0x80000000/unload")
    rest.call("PUT", f"namespaces/{namespace}/unload")
    rest.call("PUT", f"persistent/{namespace}/t", {})
    status, bundle, _ = rest.raw("GET", f"/lookup/v2/topic/persistent/{namespace}/t/bundle")
    assert status == 200
    positions = rest.get(f"namespaces/{namespace}/{bundle.decode()}/topicHashPositions")
    (place,) = positions["topicHashPositions"].items()
    low, high = (int(end, 16) for end in bundle.decode().split("_"))
    assert place[0] == f"persistent://{namespace}/t"
    assert low <= place[1] < high
    assert rest.get(f"persistent/{namespace}/{bundle.decode()}") == [f"persistent://{namespace}/t"]
    rest.fails(412, "GET", f"persistent/{namespace}/0x00000000_0x12345678")


# --- topics ---
def test_an_empty_topic_answers_every_call(rest, namespace):
    rest.fails(412, "PUT", f"persistent/{namespace}/a%20topic%2Fwith", {})
    rest.fails(404, "PUT", "persistent/public/nowhere/t", {})
    path = f"persistent/{namespace}/t"
    rest.call("PUT", path, {"owner": "me"})
    assert rest.get(f"{path}/properties") == {"owner": "me"}
    assert rest.get(f"{path}/partitions") == {"partitions": 0, "deleted": False}
    assert rest.get(f"{path}/lastMessageId")["entryId"] == -1
    rest.call("PUT", f"{path}/unload")
    rest.call("DELETE", f"{path}/truncate")
    rest.call("POST", f"{path}/trim", status=200)
    rest.call("DELETE", path)
    rest.fails(404, "DELETE", path)


def test_partitioned_topics_are_enlarged_and_shown(rest, namespace):
    path = f"persistent/{namespace}/p"
    rest.fails(404, "GET", f"{path}/partitions")
    assert rest.get(f"{path}/partitions?checkAllowAutoCreation=true")["partitions"] == 0
    rest.call("PUT", f"{path}/partitions?createLocalTopicOnly=false", 2)
    rest.fails(409, "PUT", f"{path}/partitions", 2)
    rest.fails(409, "PUT", path, {})
    rest.fails(412, "PUT", f"{path}-partition-1/partitions", 2)
    rest.call("POST", f"{path}/partitions", 3)
    rest.fails(406, "POST", f"{path}/partitions", 10**6)
    rest.call("PUT", f"persistent/{namespace}/plain", {})
    rest.fails(409, "POST", f"persistent/{namespace}/plain/partitions", 3)
    rest.call("DELETE", f"persistent/{namespace}/plain")
    rest.fails(422, "POST", f"{path}/partitions", 2)
    assert "at most 1024" in rest.fails(412, "PUT", f"persistent/{namespace}/{'x' * 1024}", {})
    rest.fails(412, "PUT", f"persistent/{namespace}/q/partitions", 0)
    rest.fails(406, "PUT", f"persistent/{namespace}/q/partitions", 10_000_000)
    rest.fails(412, "PUT", f"persistent/{namespace}/q/partitions", "many")
    rest.call("POST", f"{path}/createMissedPartitions")
    stats = rest.get(f"{path}/partitioned-stats?perPartition=true")
    assert (stats["metadata"]["partitions"], len(stats["partitions"])) == (3, 3)
    assert rest.get(f"{path}/partitioned-stats?perPartition=false")["partitions"] == {}
    assert len(rest.get(f"{path}/partitioned-internalStats")["partitions"]) == 3
    rest.fails(404, "GET", f"{path}/stats")
    assert set(rest.call("POST", f"{path}/terminate/partitions", status=200)) == {"0", "1", "2"}
    rest.call("DELETE", f"{path}/partitions")
    assert rest.get(f"persistent/{namespace}") == []
    rest.fails(404, "DELETE", f"{path}/partitions")


def test_non_persistent_topics_are_created_and_shown(rest, namespace):
    path = f"non-persistent/{namespace}/p"
    rest.call("PUT", f"{path}/partitions", 2)
    assert rest.get(f"non-persistent/{namespace}/partitioned") == [f"non-persistent://{namespace}/p"]
    assert rest.get(f"persistent/{namespace}/partitioned") == []
    rest.fails(405, "POST", f"{path}/terminate")
    rest.fails(400, "PUT", f"{path}/subscription/s", LATEST)
    rest.call("DELETE", f"{path}/partitions")
    rest.call("PUT", path, {})
    inside = rest.get(f"{path}/internalStats")
    assert (inside["entriesAddedCounter"], inside["numberOfEntries"], inside["cursors"]) == (0, 0, {})


def test_changes_of_subscriptions_are_checked(rest, namespace):
    path = f"persistent/{namespace}/t"
    rest.call("PUT", f"{path}/subscription/s?replicated=false", LATEST)
    assert rest.get(f"{path}/subscriptions") == ["s"], "the topic is created with it"
    rest.call("PUT", f"{path}/subscription/%F0%9F%90%99%20%2F", EARLIEST)
    assert "🐙 /" in rest.get(f"{path}/subscriptions")
    for operation in ("skip/1", "skip_all", "expireMessages/10", f"resetcursor/{int(time.time() * 1000)}"):
        rest.call("POST", f"{path}/subscription/s/{operation}")
        rest.fails(404, "POST", f"{path}/subscription/none/{operation}")
    rest.call("POST", f"{path}/subscription/s/resetcursor", EARLIEST)
    rest.call("POST", f"{path}/all_subscription/expireMessages/10")
    rest.fails(412, "POST", f"{path}/subscription/s/skip/x")
    rest.fails(400, "POST", f"{path}/subscription/s/resetcursor", {"ledgerId": 1})
    rest.fails(404, "GET", f"{path}/subscription/s/position/1")
    assert rest.call("POST", f"{path}/subscription/s/analyzeBacklog", status=200)["messages"] == 0
    rest.call("DELETE", f"{path}/subscription/s")
    rest.fails(404, "DELETE", f"{path}/subscription/s")


@pytest.mark.parametrize("action", ["expire", "skip_all"])
def test_a_change_of_all_subscriptions_passes_over_deleted_ones(rest, broker, namespace, monkeypatch, action):
    topic = f"persistent/{namespace}/t"
    rest.call("PUT", f"{topic}/subscription/first", EARLIEST)
    with geminga.Client(broker.service_url) as client:
        client.create_producer(f"{namespace}/t").send(b"x")
    for number in range(30):
        rest.call("PUT", f"{topic}/subscription/s{number}", EARLIEST)
    change = getattr(SubscriptionActions, action)

    def delete_then_change(self: Any, name: TopicName, subscription: str, *rest: Any, **also: Any) -> None:
        if subscription == "s1":
            self.delete(name, subscription, lambda error: None, force=True)
        change(self, name, subscription, *rest, **also)

    monkeypatch.setattr(SubscriptionActions, action, delete_then_change)
    if action == "skip_all":
        rest.call("POST", f"namespaces/{namespace}/clearBacklog", status=204)
    else:
        rest.call("POST", f"{topic}/all_subscription/expireMessages/0", status=204)
    found = rest.call("GET", f"{topic}/stats")["subscriptions"]
    assert len(found) == 30
    assert {each["msgBacklog"] for each in found.values()} == {0}


def test_the_age_of_a_backlog_grows_while_the_broker_is_idle(rest, broker, namespace, monkeypatch):
    path = f"persistent/{namespace}/age"
    rest.call("PUT", f"{path}/subscription/s", EARLIEST)
    with geminga.Client(broker.service_url) as client:
        client.create_producer(f"persistent://{namespace}/age").send(b"x")
    later = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    (found,) = rest.get(f"{path}/subscription/s/explain")
    assert 3590 <= found["facts"]["oldestBacklogMessageAgeSeconds"] <= 3600
    assert found["facts"]["messagesInBacklog"] == 1
    assert rest.get(f"{path}/stats")["oldestBacklogMessageAgeSeconds"] >= 3590


@pytest.mark.parametrize(("segment", "method", "value"), TOPIC_POLICIES, ids=[p[0] for p in TOPIC_POLICIES])
def test_topic_policies_are_set_shown_and_removed(rest, namespace, segment, method, value):
    rest.fails(404, "GET", f"persistent/{namespace}/t/{segment}")
    rest.call("PUT", f"persistent/{namespace}/t", {})
    path = f"persistent/{namespace}/t/{segment}"
    unset = rest.get(f"{path}?applied=false")
    assert not unset
    rest.call(method, path, value)
    assert rest.get(path) == value
    rest.call("DELETE", path)
    assert rest.get(path) == unset


def test_statistics_leave_out_the_lists_of_clients_on_request(rest, broker, namespace):
    topic = f"persistent://{namespace}/p"
    rest.call("PUT", f"persistent/{namespace}/p/partitions", 2)
    with broker.client() as client:
        client.subscribe(topic, "s")
        client.create_producer(topic)
        path = f"persistent/{namespace}/p/partitioned-stats"
        found = rest.get(path)
        assert found["publishers"]
        assert found["subscriptions"]["s"]["consumers"]
        found = rest.get(f"{path}?excludePublishers=true&excludeConsumers=true")
        for each in (found, *found["partitions"].values()):
            assert each["publishers"] == []
            assert each["subscriptions"]["s"]["consumers"] == []
        found = rest.get(f"persistent/{namespace}/p-partition-0/stats?excludePublishers=true")
        assert found["publishers"] == []
        assert found["subscriptions"]["s"]["consumers"]


def test_applied_values_are_shown_for_every_policy(rest, namespace):
    path = f"persistent/{namespace}/t"
    rest.call("PUT", path, {})
    rates = ("dispatchRate", "subscriptionDispatchRate", "replicatorDispatchRate", "subscribeRate")
    others = ("inactiveTopicPolicies", "delayedDelivery", "autoSubscriptionCreation", "compactionThreshold")
    for segment in (*rates, *others, "maxProducers", "maxConsumers", "entryFilters"):
        assert rest.get(f"{path}/{segment}") is None
        assert rest.get(f"{path}/{segment}?applied=true") is not None
    assert set(rest.get(f"{path}/backlogQuotaMap?applied=true")) == {"destination_storage", "message_age"}
    rest.call("POST", f"namespaces/{namespace}/dispatchRate", {"dispatchThrottlingRateInMsg": 7})
    assert rest.get(f"{path}/dispatchRate?applied=true")["dispatchThrottlingRateInMsg"] == 7
    rest.call("POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=message_age", {"limitTime": 60})
    found = rest.get(f"{path}/backlogQuotaMap?applied=true")
    assert (found["message_age"]["limitTime"], found["destination_storage"]["limitTime"]) == (60, -1)
    assert rest.get(f"{path}/retention?applied=true")["retentionTimeInMinutes"] == 7 * 24 * 60
    rest.call("POST", f"namespaces/{namespace}/messageTTL", 50)
    assert (rest.get(f"{path}/messageTTL"), rest.get(f"{path}/messageTTL?applied=true")) == (None, 50)
    rest.call("POST", f"{path}/messageTTL?messageTTL=10")
    assert rest.get(f"{path}/messageTTL?applied=true") == 10
    rest.fails(412, "POST", f"{path}/messageTTL?messageTTL=soon")


def test_policies_of_all_clusters_are_separate_from_local_ones(rest, broker, namespace):
    path = f"persistent/{namespace}/t"
    rest.call("PUT", path, {})
    rest.call("POST", f"{path}/maxProducers?isGlobal=true", 7)
    assert rest.get(f"{path}/maxProducers") is None
    assert rest.get(f"{path}/maxProducers?isGlobal=true") == 7
    assert rest.get(f"{path}/maxProducers?applied=true") == 7
    core = server_of(broker).broker
    name = TopicName.parse(f"persistent://{namespace}/t")

    def producers_max() -> int:
        return inside(broker, lambda: core.namespaces.topic_policies(name).max_producers_per_topic)

    assert producers_max() == 7
    rest.call("POST", f"{path}/maxProducers", 3)
    assert rest.get(f"{path}/maxProducers?applied=true") == 3
    assert producers_max() == 3
    rest.call("DELETE", f"{path}/maxProducers")
    assert producers_max() == 7
    rest.fails(412, "POST", f"{path}/maxProducers?isGlobal=true", -1)
    rest.call("DELETE", f"{path}/maxProducers?isGlobal=true")
    assert producers_max() == 0
    assert inside(broker, lambda: core.store.keys.get(f"topic-policies/{name}")) is None
    rest.call("POST", f"{path}/messageTTL?isGlobal=true&messageTTL=9")
    assert rest.get(f"{path}/messageTTL?isGlobal=true") == 9
    assert rest.get(f"{path}/messageTTL") is None


# --- the broker about itself ---
def test_health_version_and_leader_of_the_broker_are_shown(rest, broker):
    assert rest.raw("GET", "/admin/v2/brokers/health")[:2] == (200, b"ok")
    assert rest.raw("GET", "/admin/v2/brokers/version")[0] == 200
    assert rest.get("brokers/leaderBroker")["serviceUrl"] == broker.admin_url
    assert rest.get("brokers/standalone") == [broker.settings.broker_id]
    assert rest.get("brokers") == [broker.settings.broker_id]
    runtime = rest.get("brokers/configuration/runtime")
    assert runtime["clusterName"] == "standalone"
    assert runtime["brokerServicePort"] == str(broker.settings.port)
    assert all(isinstance(value, str) for value in runtime.values())
    assert "metadataStoreUrl" in rest.get("brokers/internal-configuration")
    owned = rest.get(f"brokers/standalone/{broker.settings.broker_id}/ownedNamespaces")
    assert "public/default/0x00000000_0x40000000" in owned
    assert "dispatchThrottlingRateInMsg" in rest.get("brokers/configuration")
    assert rest.get("brokers/configuration/values") == {}
    rest.call("GET", "brokers/backlog-quota-check", status=204)
    rest.get("broker-stats/metrics")
    rest.call("GET", "broker-stats/load-report", status=204)


def test_topic_statistics_are_grouped_by_bundle(rest, broker, namespace):
    domains_known = ("persistent", "non-persistent")
    names = [TopicName.parse(f"{domain}://{namespace}/t{n}") for n in range(9) for domain in domains_known]
    with broker.client() as client:
        for name in names:
            client.create_producer(str(name)).close()
        client.subscribe(str(names[0]), "s").close()
    found = rest.get("broker-stats/topics")[namespace]
    boundaries = rest.get(f"namespaces/{namespace}/bundles")["boundaries"]
    expected: dict[str, dict[str, set[str]]] = {}
    for name in names:
        domains = expected.setdefault(bundle_of(boundaries, name), {})
        domains.setdefault(name.domain, set()).add(str(name))
    assert len(expected) > 1
    assert {b: {d: set(each) for d, each in of.items()} for b, of in found.items()} == expected
    assert rest.get("broker-stats/destinations")[namespace].keys() == found.keys()
    kept = found[bundle_of(boundaries, names[0])]["persistent"][str(names[0])]
    assert kept["subscriptions"]["s"]["numberOfEntriesSinceFirstNotAckedMessage"] == 1
    assert kept["subscriptions"]["s"]["totalNonContiguousDeletedMessagesRange"] == 0
    assert kept["pendingAddEntriesCount"] == 0
    rows = [row for domains in found.values() for topics in domains.values() for row in topics.values()]
    counts = [(row["msgInCount"], row["producerCount"], row["filteredEntriesCount"]) for row in rows]
    assert set(counts) == {(0, 0, 0)}


def test_lookups_return_the_brokers_addresses(rest, broker, namespace):
    status, raw, _ = rest.raw("GET", f"/lookup/v2/topic/persistent/{namespace}/t")
    assert status == 200
    assert json.loads(raw) == {
        "brokerUrl": broker.service_url, "httpUrl": broker.admin_url,
        "nativeUrl": broker.service_url, "brokerUrlSsl": "",
    }  # fmt: skip
    assert rest.raw("GET", "/lookup/v2/topic/persistent/public/nowhere/t")[0] == 404


def test_lookup_names_the_host_that_the_client_connected_to():
    with embedded(host="0.0.0.0") as broker:
        rest = Rest(f"http://127.0.0.1:{broker.settings.web_port}")
        found = json.loads(rest.raw("GET", "/lookup/v2/topic/persistent/public/default/t")[1])
        assert found["brokerUrl"] == f"pulsar://127.0.0.1:{broker.settings.port}"


def test_a_client_with_lookups_over_http_has_transactions(rest, broker, namespace):
    coordinators = "persistent/pulsar/system/transaction_coordinator_assign"
    assert rest.get(f"{coordinators}/partitions")["partitions"] == 1
    assert rest.get(f"{coordinators}-partition-0/partitions")["partitions"] == 0
    topic = f"persistent://{namespace}/t"
    with geminga.Client(broker.admin_url) as client, client.new_transaction() as txn:
        client.create_producer(topic).send(b"x", txn=txn)
        records = server_of(broker).broker.coordinator.records
        inside(broker, lambda: records.by_id[txn.id].announce("named", "s"))
        path = "/admin/v3/transactions/transactionMetadata/{}/{}".format(*txn.id)
        found = json.loads(rest.raw("GET", path)[1])
        assert set(found["producedPartitions"]) == {topic}
        assert found["ackedPartitions"] == {"named": {"s": {}}}


# --- bad input ---
@pytest.mark.parametrize(
    ("method", "path", "data", "status"),
    [
        ("GET", "/admin/v2/nonsense", None, 404),
        ("PATCH", "/admin/v2/tenants", None, 405),
        ("PUT", "/admin/v2/tenants/x", b"{not json", 400),
        ("PUT", "/admin/v2/tenants/x", b"[1]", 400),
        ("PUT", "/admin/v2/tenants/x", b"[" * 100_000, 400),
        ("POST", "/admin/v2/namespaces/public/default/retention", b"", 412),
        ("GET", "/admin/v2/persistent/a%20b/c/d/stats", None, 412),
        ("GET", "/admin/v2/persistent/..%2f..%2f/c/d/stats", None, 412),
        ("GET", "/admin/v2/persistent/public/default/%00/stats", None, 412),
        ("DELETE", "/admin/v2/tenants/public?force=maybe", None, 400),
        ("GET", "/admin/v2/persistent/public/default/none/stats", None, 404),
        ("GET", "/admin/v2/odd-domain/public/default/t/stats", None, 404),
    ],
)
def test_bad_input_is_answered_with_a_reason(rest, method, path, data, status):
    found, raw, _ = rest.raw(method, path, data)
    assert (found, list(json.loads(raw))) == (status, ["reason"])


def test_names_with_special_characters_are_shown_unchanged(rest, namespace):
    local = "flug daten:ü=1"
    path = f"persistent/{namespace}/{urllib.parse.quote(local, safe='')}"
    rest.call("PUT", path, {})
    assert rest.get(f"persistent/{namespace}") == [f"persistent://{namespace}/{local}"]
    rest.get(f"{path}/stats")
    rest.call("DELETE", path)


def test_damage_is_listed_and_acknowledged(tmp_path):
    with embedded(data_dir=tmp_path) as broker:
        Rest(broker.admin_url).call("POST", "namespaces/public/default/messageTTL", 77)
    for path in (*tmp_path.glob("log-*"), *tmp_path.glob("catalog*")):
        if path.name.startswith("catalog"):
            path.unlink()  # a clean end has everything in there
        else:
            content = path.read_bytes()
            path.write_bytes(content.replace(b'"message_ttl_in_seconds":77', b'"message_ttl_in_seconds":99'))
    with embedded(data_dir=tmp_path) as broker:
        rest = Rest(broker.admin_url)
        (thing,) = rest.get("geminga/damage")
        assert (thing["key"], thing["lost"]) == ("namespace/public/default", "value")
        metrics = rest.raw("GET", "/metrics")[1].decode()
        assert 'geminga_store_damaged_things{cluster="standalone",lost="value"} 1\n' in metrics
        assert "nothing" in rest.fails(404, "DELETE", "geminga/damage/nothing")
        rest.call("DELETE", f"geminga/damage/{thing['name']}")
        assert rest.get("geminga/damage") == []


# --- changes at the same time ---
def test_changes_that_wait_for_the_store_are_all_made(broker, rest, monkeypatch):
    """A revocation is not undone by a grant that was asked for at the same time, nor any other change."""
    rest.call("PUT", "namespaces/public/together", {})
    rest.call("POST", "namespaces/public/together/permissions/gone", ["produce"])
    rest.call("PUT", "persistent/public/together/t")
    waiting: set[Any] = set()
    is_behind = True

    def behind(_: MemoryStore) -> bool:
        waiting.add(asyncio.current_task())
        return is_behind

    monkeypatch.setattr(MemoryStore, "is_behind", property(behind))
    changes: list[tuple[str, str, Any]] = [
        ("POST", "namespaces/public/together/permissions/first", ["produce"]),
        ("DELETE", "namespaces/public/together/permissions/gone", None),
        ("POST", "persistent/public/together/t/permissions/second", ["consume"]),
        ("POST", "namespaces/public/together/permissions/subscription/s", ["third"]),
        ("PUT", "namespaces/public/together/property/a/1", None),
        ("PUT", "namespaces/public/together/property/b/2", None),
    ]
    with ThreadPoolExecutor(len(changes)) as pool:
        answers = [pool.submit(rest.raw, m, f"/admin/v2/{p}", json.dumps(b).encode()) for m, p, b in changes]
        eventually(lambda: len(waiting - {None}) >= len(changes))
        is_behind = False
        assert [answer.result()[0] for answer in answers] == [204] * len(changes)
    monkeypatch.undo()
    assert rest.get("namespaces/public/together/permissions") == {"first": ["produce"]}
    assert rest.get("persistent/public/together/t/permissions")["second"] == ["consume"]
    assert rest.get("namespaces/public/together/permissions/subscription") == {"s": ["third"]}
    assert rest.get("namespaces/public/together/properties") == {"a": "1", "b": "2"}


# --- limits of the properties that clients may store ---
def test_properties_to_be_stored_are_limited(rest, namespace, name):
    """It is parsed, written and held as a whole, and by those who may do little else."""
    topic = f"persistent/{namespace}/{name}"
    rest.call("PUT", topic, {})
    rest.call("PUT", f"{topic}/subscription/s", EARLIEST)
    many = {f"k{number}": "v" * 100 for number in range(500)}
    for path in (f"namespaces/{namespace}/properties", f"{topic}/properties"):
        rest.call("PUT", path, many)
        more = {f"l{number}": "v" * 100 for number in range(500)}
        assert "at most 65536" in rest.fails(412, "PUT", path, more)
        assert rest.get(path) == many
    path = f"{topic}/subscription/s/properties"
    assert "at most 65536" in rest.fails(412, "PUT", path, {"k": "v" * 70_000})
    assert rest.get(path) == {}
    assert "at most 65536" in rest.fails(412, "PUT", f"{topic}2", {"k": "v" * 70_000})


def test_the_size_of_all_policies_of_a_namespace_is_limited(rest, namespace):
    roles = [f"role-{number}-{'x' * 80}" for number in range(6_000)]
    path = f"namespaces/{namespace}/permissions/subscription"
    rest.call("POST", f"{path}/one", roles)
    assert "at most 1048576" in rest.fails(412, "POST", f"{path}/two", roles)
    assert list(rest.get(path)) == ["one"]


def test_request_bodies_and_reasons_are_limited(rest, namespace):
    path = f"namespaces/{namespace}/publishRate"
    assert "at most 1048576" in rest.fails(413, "POST", path, ["x" * 1_100_000])
    assert "5242880" in rest.fails(413, "POST", path, ["x" * 5_300_000])
    assert len(rest.fails(412, "POST", path, ["x" * 1_000_000])) < 2_100


def test_open_and_stored_messages_can_be_read(rest, broker, name):
    topic = f"persistent/public/default/{name}"
    with geminga.Client(broker.service_url) as client:
        consumer = client.subscribe(name, "s", geminga.ConsumerType.Shared)
        producer = client.create_producer(name)
        ids = [producer.send(b"m%d" % number) for number in range(5)]
        for _ in range(2):
            message = consumer.receive(60_000)
        consumer.acknowledge(message)
        consumer.close()
    rest.call("PUT", f"persistent/public/default/{name}-empty")

    def read(path: str) -> bytes | int:
        status, body, _ = rest.raw("GET", f"/admin/v2/{path}")
        return body if status == 200 else status

    assert [read(f"{topic}/subscription/s/position/{nth}") for nth in (1, 2, 5)] == [b"m0", b"m2", 404]
    entry = f"ledger/{ids[4].ledger_id()}/entry"
    assert [read(f"{each}/{entry}/4") for each in (topic, f"{topic}-empty")] == [b"m4", 404]
    assert [read(f"{topic}/{each}") for each in (f"{entry}/5", "ledger/999999/entry/0")] == [404, 404]
    nth = f"{topic}/examinemessage?initialPosition"
    found = [read(f"{nth}={each}") for each in ("earliest&messagePosition=2", "latest&messagePosition=2")]
    assert found == [b"m1", b"m3"]
    assert read(f"{nth}=latest&messagePosition=6") == 404
    ends = [rest.get(f"{topic}/messageid/{moment}")["entryId"] for moment in (0, 1_900_000_000_000)]
    assert ends == [0, 4]
    last = {"ledgerId": ids[4].ledger_id(), "entryId": 4, "partitionIndex": -1}
    size = rest.get(f"{topic}/stats")["storageSize"]
    assert rest.call("PUT", f"{topic}/backlogSize", last, status=200) * 5 == size
