"""Policy checks and what is in force when layers are merged."""

import json
import pickle
from typing import Any

import pytest

from geminga.broker.admin.errors import STATUS_OF_RULE
from geminga.broker.rules.effective_policies import ThrottleRate, resolve
from geminga.broker.rules.policies import (
    FIELDS,
    InvalidRequest,
    RuleViolation,
    bundle_ranges,
    check_document,
    check_policy,
)
from geminga.broker.settings import BrokerSettings

SETTINGS = BrokerSettings(memory=True)

# Bodies as the official command line tool sends them (recorded).
OFFICIAL: dict[str, Any] = {
    "autoTopicCreationOverride":
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2},
    "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": True},
    "backlog_quota_map": {"destination_storage":
        {"limit": 10485760, "limitSize": 10485760, "limitTime": -1, "policy": "producer_exception"}},
    "deduplicationEnabled": True,
    "message_ttl_in_seconds": 100,
    "persistence":
        {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1,
         "managedLedgerMaxMarkDeleteRate": 0.0},
    "replication_clusters": ["standalone"],
    "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100},
    "compaction_threshold": 10485760,
    "delayed_delivery_policies": {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0},
    "topicDispatchRate": {"standalone":
        {"dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": 1000,
         "relativeToPublishRate": False, "ratePeriodInSecond": 1}},
    "publishMaxMessageRate":
        {"standalone": {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": 1000}},
    "clusterSubscribeRate":
        {"standalone": {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}},
    "inactive_topic_policies":
        {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 3600,
         "deleteWhileInactive": True},
    "schema_compatibility_strategy": "BACKWARD",
    "subscription_types_enabled": ["Shared", "Failover", "Exclusive", "Key_Shared"],
    "max_consumers_per_topic": 10,
    "encryption_required": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("message_ttl_in_seconds", -1, 412),
        ("message_ttl_in_seconds", True, 412),
        ("message_ttl_in_seconds", "10 s", 412),
        ("message_ttl_in_seconds", "-1", 412),
        ("message_ttl_in_seconds", float("inf"), 412),
        ("deduplicationEnabled", "yes", 412),
        ("backlog_quota_map", {"destination_storage": {"limit": "10k"}}, 412),
        ("retention_policies", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, 400),
        ("retention_policies", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 5}, 412),
        ("retention_policies", [1], 412),
        ("persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1}, 400),
        ("backlog_quota_map", {"disk": {}}, 412),
        ("backlog_quota_map", {"destination_storage": {"policy": "drop"}}, 412),
        ("autoTopicCreationOverride", {"topicType": "odd"}, 412),
        ("autoTopicCreationOverride", {"topicType": "partitioned", "defaultNumPartitions": 0}, 412),
        ("autoTopicCreationOverride", {"topicType": "non-partitioned", "defaultNumPartitions": 3}, 406),
        ("subscription_types_enabled", ["Odd"], 412),
        ("schema_compatibility_strategy", "NONE", 412),
        ("properties", {"a": 1}, 412),
        ("no_such_policy", 1, 400),
    ],
)
def test_invalid_policies_are_refused_with_their_status(field, value, status):
    with pytest.raises(RuleViolation) as caught:
        check_policy(field, value)
    assert STATUS_OF_RULE[caught.value.wrong] == status
    assert caught.value.reason


@pytest.mark.parametrize("field", sorted(OFFICIAL))
def test_numbers_may_be_given_as_text_everywhere(field):
    def as_text(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: as_text(item) for name, item in value.items()}
        if isinstance(value, (int, float)):
            return json.dumps(value)
        return value

    found = check_policy(field, as_text(OFFICIAL[field]))
    assert found == OFFICIAL[field]
    assert resolve(SETTINGS, {field: found}) == resolve(SETTINGS, {field: OFFICIAL[field]})


def test_blank_text_in_an_object_counts_as_null():
    quota = {"limit": "10240", "limitTime": " ", "policy": "producer_exception"}
    assert check_policy("backlog_quota_map", {"destination_storage": quota})["destination_storage"] == {
        "limit": 10240, "limitSize": 10240, "limitTime": -1, "policy": "producer_exception",
    }  # fmt: skip


def test_any_json_is_accepted_or_refused():
    junk: list[Any] = [None, True, 0, -1, 1.5, "x", [], [1], {}, {"a": None}, {"standalone": 3}, [["a"]]]
    statuses = set()
    for field in FIELDS:
        for value in junk:
            try:
                check_policy(field, value)
            except RuleViolation as error:
                statuses.add(STATUS_OF_RULE[error.wrong])
    assert statuses <= {400, 406, 412}


def test_documents_keep_unknown_fields_and_drop_nulls():
    assert check_document({"from_the_future": {"a": 1}, "migrated": None}) == {"from_the_future": {"a": 1}}
    with pytest.raises(RuleViolation):
        check_document(["no", "object"])


def test_bundles_cover_the_hash_range():
    assert bundle_ranges(4) == {
        "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
        "numBundles": 4,
    }
    with pytest.raises(RuleViolation):
        bundle_ranges(0)


def test_broker_settings_apply_without_policies():
    found = resolve(SETTINGS, {})
    assert found.retention_minutes == SETTINGS.retention_minutes
    assert found.auto_create_topics
    assert found.auto_create_partitions == 0
    assert found.schema_compatibility_strategy == "FULL"
    assert found.publish_rate == ThrottleRate()
    assert found.unacked_messages_per_consumer_max == 50_000


def test_the_namespace_wins_over_the_broker_and_the_topic_over_both():
    namespace = {**OFFICIAL, "message_ttl_in_seconds": 100, "max_consumers_per_topic": 10}
    topic = {
        "message_ttl_in_seconds": 0,
        "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    }
    found = resolve(SETTINGS, topic, namespace)
    assert found.message_ttl_seconds == 0
    assert found.retention_minutes == -1
    assert found.max_consumers_per_topic == 10
    assert found.backlog_quota_bytes == 10485760
    assert found.backlog_quota_action == "producer_exception"
    assert found.auto_create_partitions == 2
    assert found.deduplication
    assert found.dispatch_rate == ThrottleRate(messages=100, bytes=1000)
    assert found.subscribe_rate == ThrottleRate(messages=10, period_seconds=30)
    assert found.subscription_types_enabled == {"Shared", "Failover", "Exclusive", "Key_Shared"}
    assert found.delete_inactive_topics
    assert found.inactive_topic_seconds == 3600


def test_rates_of_other_clusters_are_ignored():
    rates = {"topicDispatchRate": {"elsewhere": {"dispatchThrottlingRateInMsg": 1}}}
    assert resolve(SETTINGS, rates).dispatch_rate == ThrottleRate()


def test_age_and_size_quota_are_independent():
    quotas = check_policy(
        "backlog_quota_map", {"message_age": {"limitTime": 60, "policy": "consumer_backlog_eviction"}}
    )
    found = resolve(SETTINGS, {"backlog_quota_map": quotas})
    assert found.backlog_quota_seconds == 60
    assert found.backlog_quota_age_action == "consumer_backlog_eviction"
    assert found.backlog_quota_bytes == -1


def test_rule_violations_can_be_pickled_and_have_a_message():
    error = pickle.loads(pickle.dumps(RuleViolation(InvalidRequest.IN_THE_WAY, "exists")))
    assert (error.wrong, str(error)) == (InvalidRequest.IN_THE_WAY, "exists")
