"""Policy checks and what is in force when layers are merged."""

import json
import pickle
from typing import Any

import pytest
from cases import cases

from geminga.broker.admin.errors import STATUS_OF_RULE
from geminga.broker.rules.effective_policies import resolve
from geminga.broker.rules.policies import (
    FIELDS,
    InvalidRequest,
    RuleViolation,
    bundle_ranges,
    check_document,
    check_policy,
)
from geminga.broker.settings import BrokerSettings
from geminga.policies import DispatchRate, PublishRate, SubscribeRate
from tests.support.recorded import VECTORS

SETTINGS = BrokerSettings(memory=True)

OFFICIAL: dict[str, Any] = json.loads((VECTORS / "policies.json").read_text())["documents"]


@pytest.mark.parametrize(("field", "value", "status"), cases("policies_refused"))
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
    assert found.publish_rate == PublishRate()
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
    assert found.dispatch_rate == DispatchRate(messages=100, bytes=1000)
    assert found.subscribe_rate == SubscribeRate(subscribes_per_consumer=10, period_seconds=30)
    assert found.subscription_types_enabled == {"Shared", "Failover", "Exclusive", "Key_Shared"}
    assert found.delete_inactive_topics
    assert found.inactive_topic_seconds == 3600


def test_rates_of_other_clusters_are_ignored():
    rates = {"topicDispatchRate": {"elsewhere": {"dispatchThrottlingRateInMsg": 1}}}
    assert resolve(SETTINGS, rates).dispatch_rate == DispatchRate()


def test_age_and_size_quota_are_independent():
    given = {"message_age": {"limitTime": 60, "policy": "consumer_backlog_eviction"}}
    quotas = check_policy("backlog_quota_map", given)
    found = resolve(SETTINGS, {"backlog_quota_map": quotas})
    assert found.backlog_quota_seconds == 60
    assert found.backlog_quota_age_action == "consumer_backlog_eviction"
    assert found.backlog_quota_bytes == -1


def test_rule_violations_can_be_pickled_and_have_a_message():
    error = pickle.loads(pickle.dumps(RuleViolation(InvalidRequest.IN_THE_WAY, "exists")))
    assert (error.wrong, str(error)) == (InvalidRequest.IN_THE_WAY, "exists")
