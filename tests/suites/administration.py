"""Checks of `geminga.Admin` for any broker and both APIs: ``tests/client/admin`` runs them against ours,
``tests/interop`` against Apache Pulsar.

Each check takes an admin whose calls return their results (`Waited` wraps the asyncio API) and a `Place`.
"""

import asyncio
import base64
import dataclasses
import datetime as dt
import inspect
import json
import time
from collections.abc import Callable
from typing import Any, Protocol
from uuid import uuid4

import pytest
from waiting import eventually
from web_requests import ask

import geminga
from geminga.admin import (
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    PublishRate,
    Retention,
    SubscribeRate,
    TenantInfo,
)
from geminga.schema import JsonSchema, StringSchema


class Place(Protocol):
    """A running broker."""

    service_url: str
    admin_url: str


class Waited:
    """An admin for asyncio, or a part of one, whose calls are waited for."""

    def __init__(self, wrapped: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._wrapped = wrapped
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if inspect.iscoroutinefunction(found):
            return lambda *args, **named: self._loop.run_until_complete(found(*args, **named))
        return found if isinstance(found, (str, int)) else Waited(found, self._loop)


def fresh(name: str) -> str:
    return f"{name}-{uuid4().hex[:10]}"


def topic(name: str) -> str:
    return f"persistent://public/default/{fresh(name)}"


def publish(place: Place, name: str, count: int, *, batched: bool = False, **settings: Any) -> None:
    with geminga.Client(place.service_url) as client:
        producer = client.create_producer(
            name, batching_enabled=batched, batching_max_publish_delay_ms=5000, batching_max_messages=1000
        )
        for number in range(count):
            producer.send_async(b"%d" % number, None, **settings)
        producer.flush()
        producer.close()


def check_tenants(admin: Any, _place: Place) -> None:
    name = fresh("tenant")
    admin.tenants.create(name, admin_roles=["boss"])
    assert name in admin.tenants.list()
    clusters = tuple(admin.clusters.list())
    assert admin.tenants.get(name) == TenantInfo(admin_roles=("boss",), allowed_clusters=clusters)
    admin.tenants.update(name, admin_roles=["other"])
    assert admin.tenants.get(name) == TenantInfo(admin_roles=("other",), allowed_clusters=clusters)
    with pytest.raises(geminga.AdminConflict):
        admin.tenants.create(name)
    admin.namespaces.create(f"{name}/space")
    with pytest.raises(geminga.AdminConflict):
        admin.tenants.delete(name)
    admin.namespaces.delete(f"{name}/space")
    admin.tenants.delete(name)
    with pytest.raises(geminga.AdminNotFound) as caught:
        admin.tenants.get(name)
    assert caught.value.status == 404
    assert name in str(caught.value)


def check_namespaces(admin: Any, place: Place) -> None:
    name = f"public/{fresh('space')}"
    admin.namespaces.create(name, bundles=4)
    assert name in admin.namespaces.list("public")
    assert admin.namespaces.policies(name)["bundles"]["numBundles"] == 4
    inside = f"persistent://{name}/topic"
    admin.topics.create(inside)
    assert admin.namespaces.topics(name) == [inside]
    admin.subscriptions.create(inside, "s")
    publish(place, inside, 3)
    admin.namespaces.clear_backlog(name, subscription="s")
    eventually(lambda: admin.topics.stats(inside).subscriptions["s"].msg_backlog == 0)
    admin.namespaces.grant(name, "joe", ["produce", "consume"])
    assert {role: set(found) for role, found in admin.namespaces.permissions(name).items()} == {
        "joe": {"produce", "consume"}
    }
    assert set(admin.topics.permissions(inside)["joe"]) == {"produce", "consume"}
    admin.namespaces.revoke(name, "joe")
    assert not admin.namespaces.permissions(name)
    with pytest.raises(geminga.AdminConflict):
        admin.namespaces.delete(name)
    admin.namespaces.unload(name)
    # Apache Pulsar deletes only empty namespaces, unless its configuration allows more.
    eventually(lambda: _deleted(lambda: admin.topics.delete(inside, force=True)))
    eventually(lambda: _deleted(lambda: admin.namespaces.delete(name)))
    assert name not in admin.namespaces.list("public")


def _deleted(delete: Callable[[], None]) -> bool:
    """Apache Pulsar refuses now and then while a namespace is being unloaded."""
    try:
        delete()
    except geminga.AdminNotFound:
        return True
    except geminga.AdminError:
        return False
    return True


def _expired(expire: Callable[[], None]) -> bool:
    """Apache Pulsar refuses while it has not noted down where the expiration before led to."""
    try:
        expire()
    except geminga.AdminConflict:
        return False
    return True


POLICIES: dict[str, Any] = {
    "retention": Retention(minutes=60, megabytes=100_000),
    "message_ttl": 3600,
    "deduplication": True,
    "publish_rate": PublishRate(messages=1000, bytes=-1),
    "dispatch_rate": DispatchRate(messages=1000, period_seconds=2),
    "subscription_dispatch_rate": DispatchRate(bytes=10_000),
    "subscribe_rate": SubscribeRate(subscribes_per_consumer=5),
    "delayed_delivery": DelayedDelivery(active=True, tick_milliseconds=500),
    "inactive_topics": InactiveTopics(inactive_seconds_max=600),
    "max_consumers_per_subscription": 7,
    "max_subscriptions_per_topic": 8,
    "max_unacked_messages_per_consumer": 9,
    "max_unacked_messages_per_subscription": 10,
    "compaction_threshold": 1_000_000,
    "deduplication_snapshot_interval": 100,
    "schema_compatibility": "BACKWARD",
}
NOT_REMOVABLE = ("schema_compatibility",)
"""Policies of namespaces that Apache Pulsar has no call to remove."""


def check_policies_of_namespaces(admin: Any, _place: Place) -> None:
    name = f"public/{fresh('policies')}"
    admin.namespaces.create(name)
    for policy, value in POLICIES.items():
        part = getattr(admin.namespaces, policy)
        part.set(name, value)
        assert part.get(name) == value, policy
        if policy not in NOT_REMOVABLE:
            part.remove(name)
            assert part.get(name) != value, policy
    for kind, quota in {
        "destination_storage": BacklogQuota(limit_bytes=10_000_000, policy="producer_exception"),
        "message_age": BacklogQuota(limit_seconds=600, policy="consumer_backlog_eviction"),
    }.items():
        admin.namespaces.set_backlog_quota(name, quota, kind=kind)
        found = admin.namespaces.backlog_quotas(name)[kind]
        assert (found.policy, found.limit_seconds) == (quota.policy, quota.limit_seconds)
        assert found.limit_bytes == quota.limit_bytes or kind == "message_age"
        admin.namespaces.remove_backlog_quota(name, kind=kind)
        assert kind not in admin.namespaces.backlog_quotas(name)
    with pytest.raises(geminga.InvalidConfiguration, match="retention="):
        admin.namespaces.retention.set(name, "7d")
    with pytest.raises(geminga.AdminNotFound):
        admin.namespaces.retention.get("public/there-is-none")


def check_policies_of_topics(admin: Any, _place: Place) -> None:
    name = topic("policies")
    admin.topics.create(name)
    for policy in ("retention", "message_ttl", "publish_rate", "max_unacked_messages_per_consumer"):
        part, value = getattr(admin.topic_policies, policy), POLICIES[policy]
        part.set(name, value)
        # Apache Pulsar keeps policies of topics in a topic, and reads them from there.
        eventually(lambda part=part, value=value: part.get(name) == value)
        part.remove(name)
        eventually(lambda part=part: part.get(name) is None)
        assert part.get(name, applied=True) != value


def check_topics(admin: Any, place: Place) -> None:
    plain, parted = topic("plain"), topic("parted")
    admin.topics.create(plain, properties={"team": "a"})
    admin.topics.create(parted, partitions=3)
    assert (admin.topics.partitions(plain), admin.topics.partitions(parted)) == (0, 3)
    assert admin.topics.names(plain) == [plain]
    assert admin.topics.names(parted) == [f"{parted}-partition-{i}" for i in range(3)]
    assert plain in admin.topics.list("public/default")
    assert parted in admin.topics.list_partitioned("public/default")
    assert admin.topics.properties(plain) == {"team": "a"}
    admin.topics.update_properties(plain, {"tier": "1"})
    assert admin.topics.properties(plain) == {"team": "a", "tier": "1"}
    admin.topics.remove_property(plain, "team")
    assert admin.topics.properties(plain) == {"tier": "1"}
    with pytest.raises(geminga.AdminConflict):
        admin.topics.create(plain)
    assert admin.topics.ensure(plain) is False
    admin.topics.update_partitions(parted, 4)
    assert admin.topics.partitions(parted) == 4
    publish(place, plain, 3)
    last = admin.topics.last_message_id(plain)
    assert [m.data for m in admin.topics.messages_at(plain, last)] == [b"2"]
    assert [m.data for m in admin.topics.examine(plain, 1, start="earliest")] == [b"0"]
    first = admin.topics.message_id_at(plain, dt.timedelta(hours=1))
    assert first.entry_id == 0
    stats = admin.topics.stats(plain)
    assert stats.msg_in_counter == 3
    assert stats.storage_size > 0
    inside = admin.topics.internal_stats(plain)
    assert inside.number_of_entries == 3
    assert sum(ledger.entries for ledger in inside.ledgers) in (0, 3)  # Apache leaves the open one at 0
    publish(place, parted, 8)
    found = admin.topics.stats(parted)
    assert found.msg_in_counter == 8
    assert set(found.partitions) == {f"{parted}-partition-{i}" for i in range(4)}
    assert sum(part.msg_in_counter for part in found.partitions.values()) == 8
    assert admin.topics.terminate(plain) == {plain: last}
    for name in (plain, parted):
        admin.topics.delete(name)
    with pytest.raises(geminga.AdminTopicNotFound, match=r"HTTP 404 for GET persistent/public/default/plain"):
        admin.topics.stats(plain)
    with pytest.raises(geminga.TopicNotFound):
        admin.topics.delete(plain)


def check_compaction(admin: Any, place: Place) -> None:
    name = topic("compacted")
    admin.topics.create(name)
    publish(place, name, 10, partition_key="k")
    assert admin.topics.compaction_status(name).status == "NOT_RUN"
    admin.topics.compact(name)
    eventually(lambda: admin.topics.compaction_status(name).status == "SUCCESS")


def check_subscriptions(admin: Any, place: Place) -> None:
    name = topic("subscribed")
    admin.topics.create(name)
    admin.subscriptions.create(name, "late", properties={"team": "b"})
    publish(place, name, 10)
    admin.subscriptions.create(name, "early", position=geminga.MessageId.earliest)
    assert set(admin.subscriptions.list(name)) == {"late", "early"}
    assert admin.subscriptions.properties(name, "late") == {"team": "b"}
    admin.subscriptions.set_properties(name, "late", {"team": "c"})
    assert admin.subscriptions.properties(name, "late") == {"team": "c"}
    with pytest.raises(geminga.AdminConflict):
        admin.subscriptions.create(name, "late")
    assert [m.data for m in admin.subscriptions.peek(name, "early", 3)] == [b"0", b"1", b"2"]
    assert admin.subscriptions.skip(name, "early", 4) == 4
    (waiting,) = admin.subscriptions.peek(name, "early")
    assert waiting.data == b"4"
    third = geminga.MessageId(-1, waiting.message_id.ledger_id, 2)
    admin.subscriptions.reset_to_id(name, "early", third)
    assert [m.data for m in admin.subscriptions.peek(name, "early")] == [b"2"]
    admin.subscriptions.reset_to_id(name, "early", third, exclusive=True)
    assert [m.data for m in admin.subscriptions.peek(name, "early")] == [b"3"]
    admin.subscriptions.reset_to_time(name, "early", dt.timedelta(hours=2))
    assert len(admin.subscriptions.peek(name, "early", 20)) == 10
    assert admin.subscriptions.skip(name, "early", 100) == 10
    assert admin.subscriptions.peek(name, "early") == []
    admin.subscriptions.reset_to_id(name, "early", geminga.MessageId.earliest)
    admin.subscriptions.expire_to_id(name, "early", third)
    eventually(lambda: [m.data for m in admin.subscriptions.peek(name, "early")] == [b"3"])
    eventually(lambda: _expired(lambda: admin.subscriptions.expire(name, None, dt.timedelta(days=1))))
    assert len(admin.subscriptions.peek(name, "late", 20)) == 10
    admin.subscriptions.clear(name, "late")
    eventually(lambda: admin.topics.stats(name).subscriptions["late"].msg_backlog == 0)
    with pytest.raises(geminga.AdminSubscriptionNotFound):
        admin.subscriptions.peek(name, "there-is-none")
    with pytest.raises(geminga.AdminTopicNotFound):
        admin.subscriptions.peek(topic("none"), "early")
    admin.subscriptions.delete(name, "early")
    assert admin.subscriptions.list(name) == ["late"]


def check_batches_and_partitions(admin: Any, place: Place) -> None:
    name = topic("batched")
    admin.topics.create(name, partitions=2)
    admin.subscriptions.create(name, "s")
    one = f"{name}-partition-1"
    publish(place, one, 10, batched=True, partition_key="key", properties={"a": "ü"})
    publish(place, one, 10, batched=True)
    found = admin.subscriptions.peek(name, "s", 12)
    assert [m.data for m in found] == [b"%d" % (i % 10) for i in range(12)]
    assert (found[3].key, dict(found[3].properties)) == ("key", {"a": "ü"})
    assert (found[3].message_id.partition, found[3].message_id.batch_index) == (1, 3)
    assert abs(found[3].publish_time.timestamp() - time.time()) < 3600
    if admin.brokers.is_geminga():
        assert admin.subscriptions.skip(one, "s", 4) == 4
        assert admin.topics.stats(one).subscriptions["s"].messages_in_backlog == 16
    else:
        with pytest.raises(geminga.OperationNotSupported, match="possible are 0 and 10"):
            admin.subscriptions.skip(one, "s", 4)
        assert admin.subscriptions.skip(one, "s", 10) == 10
        assert admin.topics.stats(one).subscriptions["s"].msg_backlog == 1
    admin.subscriptions.reset_to_id(name, "s", geminga.MessageId.latest)
    assert admin.subscriptions.peek(name, "s") == []
    admin.subscriptions.reset_to_time(name, "s", dt.datetime.now(dt.UTC) - dt.timedelta(hours=1))
    assert len(admin.subscriptions.peek(name, "s", 100)) == 20


def published(place: Place, name: str, *messages: Any, **fields: Any) -> Any:
    """Publish over REST; return status and document."""
    items = [each if isinstance(each, dict) else {"payload": each} for each in messages]
    found = ask(f"{place.admin_url}/topics/{name.replace('://', '/')}", "POST", {"messages": items, **fields})
    return found.status, found.document


def namespace_with_duplicates(admin: Any) -> str:
    """Return a new namespace: Apache Pulsar 4.0.4 cannot publish over REST where duplicates are dropped."""
    name = f"public/{fresh('rest')}"
    admin.namespaces.create(name)
    admin.namespaces.deduplication.set(name, False)
    return name


def check_publishing(admin: Any, place: Place) -> None:
    namespace = namespace_with_duplicates(admin)
    name, parted = (f"persistent://{namespace}/{fresh(each)}" for each in ("rest", "rest-partitions"))
    admin.topics.create(name)
    admin.topics.create(parted, partitions=3)
    first = {"payload": "ü", "key": "k", "properties": {"a": "b"}, "eventTime": "1234", "zork": 1}
    status, document = published(place, name, first, {"payload": 5, "key": None}, producerName="me")
    assert (status, document["schemaVersion"]) == (200, 0)
    for number, each in enumerate(document["messagePublishResults"]):
        ledger, entry, partition = each.pop("messageId").split(":")
        assert (entry, partition, each) == (str(number), "-1", {"errorCode": 0, "schemaVersion": 0})
        assert ledger.isdigit()
    with geminga.Client(place.service_url) as client:
        reader = client.create_reader(name, geminga.MessageId.earliest, schema=StringSchema())
        one, two = reader.read_next(20_000), reader.read_next(20_000)
        assert (one.value(), one.partition_key(), one.properties()) == ("ü", "k", {"a": "b"})
        assert (one.event_timestamp(), one.producer_name(), two.value()) == (1234, "me", "5")
    assert admin.schemas.get(name).type == "STRING"
    assert published(place, name, "x", schemaVersion=0)[0] == 200
    assert published(place, name)[1] == {"messagePublishResults": [], "schemaVersion": 0}

    def partitions(path: str, *messages: Any) -> list[str]:
        found = published(place, path, *messages)[1]["messagePublishResults"]
        return [each["messageId"].rpartition(":")[2] for each in found]

    same = {"payload": "x", "key": "same"}
    assert partitions(parted, "0", "1", same, same) == ["0", "1", "2", "0"]
    assert partitions(parted, "0") == ["0"]
    assert partitions(f"{parted}/partitions/2", same, "1") == ["2", "2"]
    for path, number in ((f"{parted}/partitions/3", 3), (f"{name}/partitions/0", 0)):
        (found,) = published(place, path, "x")[1]["messagePublishResults"]
        assert (found["messageId"], found["errorCode"]) == (str(number), 2)
        assert "Topic not owned by current broker" in found["errorMsg"]
    for path, body, status in (
        (name, b"{x", 400),
        (name, [], 400),
        (name, {"messages": 5}, 400),
        (name, {"messages": [{"payload": {}}]}, 400),
        (f"{parted}-partition-1/partitions/1", {"messages": []}, 400),
        (f"{name}/partitions/x", {"messages": []}, 404),
        (name.replace("persistent", "zork"), {"messages": []}, 404),
    ):
        assert ask(f"{place.admin_url}/topics/{path.replace('://', '/')}", "POST", body).status == status
    assert ask(f"{place.admin_url}/topics/{name.replace('://', '/')}").status == 405
    assert published(place, topic("missing"), "x")[0] == (404 if admin.brokers.is_geminga() else 500)
    admin.topics.terminate(name)
    (found,) = published(place, name, "x")[1]["messagePublishResults"]
    assert found["errorCode"] == 2
    assert "terminated" in found["errorMsg"]


def check_publishing_by_schema(admin: Any, place: Place) -> None:
    fields = [{"name": "a", "type": "int"}, {"name": "s", "type": ["null", "string"], "default": None}]
    definition = base64.b64encode(json.dumps({"type": "record", "name": "R", "fields": fields}).encode())
    namespace = namespace_with_duplicates(admin)

    def sent(payload: str, kind: str, **others: Any) -> tuple[bytes, str]:
        name = f"persistent://{namespace}/{fresh('rest')}"
        admin.topics.create(name)
        schema = {"type": kind, "schema": definition.decode() if kind in ("JSON", "AVRO") else ""}
        message = {"payload": payload, "key": others.pop("key", None)}
        status, document = published(place, name, message, valueSchema=json.dumps(schema), **others)
        assert status == 200, document
        with geminga.Client(place.service_url) as client:
            read = client.create_reader(name, geminga.MessageId.earliest).read_next(20_000)
        return read.data(), read.partition_key()

    assert sent("-5", "INT32") == (b"\xff\xff\xff\xfb", "")
    assert sent("true", "BOOLEAN")[0] == b"\x01"
    assert sent("2020-01-02", "LOCAL_DATE")[0] == (18263).to_bytes(8)
    assert sent('{"a": 1, "s": "x"}', "JSON")[0] == b'{"a":1,"s":"x"}'
    assert sent('{"a": 1, "s": {"string": "x"}}', "AVRO")[0] == b"\x02\x02\x02x"
    keys = json.dumps({"type": "INT32", "schema": ""})
    assert sent("v", "STRING", key="5", keySchema=keys) == (b"v", "AAAABQ==")


def check_explaining(admin: Any, place: Place) -> None:
    name = topic("explained")
    admin.topics.create(name)
    admin.subscriptions.create(name, "s")
    assert [f.kind for f in admin.subscriptions.explain(name, "s")[0].findings] == ["caught-up"]
    publish(place, name, 30)
    (found,) = admin.subscriptions.explain(name, "s")
    assert found.findings[0].kind == "nobody-connected"
    assert found.findings[0].stops
    assert (found.topic, found.subscription, found.facts["entriesInBacklog"]) == (name, "s", 30)
    with geminga.Client(place.service_url) as client:
        consumer = client.subscribe(name, "s", geminga.ConsumerType.Shared, receiver_queue_size=10)
        held = [consumer.receive(60_000) for _ in range(3)]
        consumer.acknowledge(held[1])
        kinds = {"hole"}

        def said() -> bool:
            (now,) = admin.subscriptions.explain(name, "s")
            return kinds <= {f.kind for f in now.findings} and now.facts["consumers"] == 1

        eventually(said)
    with pytest.raises(geminga.AdminSubscriptionNotFound):
        admin.subscriptions.explain(name, "there-is-none")


@dataclasses.dataclass
class Job:
    number: int


@dataclasses.dataclass
class WiderJob:
    number: int
    name: str | None = None


def check_schemas(admin: Any, _place: Place) -> None:
    name = topic("schema")
    admin.topics.create(name)
    assert admin.schemas.get(name) is None
    assert admin.schemas.versions(name) == []
    assert admin.schemas.upload(name, Job) == 0
    found = admin.schemas.get(name)
    assert (found.version, found.type) == (0, "JSON")
    assert '"number"' in found.data
    assert admin.schemas.check(name, JsonSchema(Job)).compatible
    assert not admin.schemas.check(name, StringSchema()).compatible
    assert admin.schemas.upload(name, WiderJob) == 1
    assert [one.version for one in admin.schemas.versions(name)] == [0, 1]
    assert admin.schemas.get(name, 0).data == found.data
    with pytest.raises(geminga.AdminConflict):
        admin.schemas.upload(name, StringSchema())
    admin.schemas.delete(name)
    assert admin.schemas.get(name) is None


def check_brokers(admin: Any, _place: Place) -> None:
    assert admin.brokers.list()
    assert admin.brokers.version()
    assert admin.brokers.is_ready()
    admin.brokers.check_health()
    assert admin.brokers.leader().service_url
    cluster = admin.brokers.configuration()["clusterName"]
    assert cluster in admin.clusters.list()
    assert admin.clusters.get(cluster).broker_service_url
    assert "# TYPE" in admin.brokers.metrics()


def check_any_call(admin: Any, _place: Place) -> None:
    assert "public" in admin.call("GET", "tenants")
    with pytest.raises(geminga.AdminError):
        admin.call("GET", "there/is/nothing/here/at/all")
    with pytest.raises(geminga.InvalidConfiguration, match="percent-encoded"):
        admin.call("GET", "a b")


CHECKS = {
    name.removeprefix("check_"): found for name, found in globals().items() if name.startswith("check_")
}
