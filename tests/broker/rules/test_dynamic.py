"""Settings that are changed while the broker runs: in force at once, kept, and given back."""

from typing import Any

import pytest

from geminga.broker.rules.dynamic import DYNAMIC
from geminga.broker.rules.policies import RuleViolation
from geminga.broker.settings import BrokerSettings
from geminga.ids import TopicName
from geminga.ledger.api import LostWrites, StoredValue
from geminga.wire.frames import encode_send
from tests.broker.conftest import TOPIC


def policies(harness: Any) -> Any:
    return harness.broker.namespaces.topic_policies(TopicName.parse(TOPIC))


def change(harness: Any, name: str, text: str | None) -> None:
    dynamic = harness.broker.dynamic
    dynamic.remove(name) if text is None else dynamic.set(name, text)
    harness.advance(1)


def test_each_name_changes_one_setting():
    fields = {one.field for one in DYNAMIC.values()}
    assert len(fields) == len(DYNAMIC)
    settings = BrokerSettings(memory=True)
    for name, one in DYNAMIC.items():
        value = getattr(settings, one.field)
        if value is None:
            continue
        text = str(one.show(value)).lower() if isinstance(value, bool) else str(one.show(value))
        assert one.read(text) == value, name


def test_a_setting_applies_at_once_is_kept_and_is_removable(make_harness):
    harness = make_harness(retention_minutes=5)
    harness.producer(TOPIC)
    (loaded,) = harness.broker.topics.in_memory_now()
    assert loaded.policies.retention_minutes == policies(harness).retention_minutes == 5
    change(harness, "defaultRetentionTimeInMinutes", "60")
    change(harness, "maxUnackedMessagesPerConsumer", "7")
    assert loaded.policies.retention_minutes == policies(harness).retention_minutes == 60
    harness.restart(retention_minutes=6)
    assert policies(harness).retention_minutes == 60
    assert policies(harness).unacked_messages_per_consumer_max == 7
    assert harness.broker.dynamic.changed == {
        "defaultRetentionTimeInMinutes": "60", "maxUnackedMessagesPerConsumer": "7"
    }  # fmt: skip
    change(harness, "defaultRetentionTimeInMinutes", None)
    assert policies(harness).retention_minutes == 6
    harness.restart()
    assert policies(harness).retention_minutes == 6
    assert policies(harness).unacked_messages_per_consumer_max == 7


def test_policies_override_dynamic_settings(harness):
    namespaces = harness.broker.namespaces
    namespaces.set_policy("public", "default", "message_ttl_in_seconds", 100)
    change(harness, "ttlDurationDefaultInSeconds", "5")
    assert policies(harness).message_ttl_seconds == 100
    namespaces.set_policy("public", "default", "message_ttl_in_seconds", None)
    assert policies(harness).message_ttl_seconds == 5
    topic = TopicName.parse(TOPIC)
    change(harness, "dispatchThrottlingRatePerTopicInMsg", "50")
    assert policies(harness).dispatch_rate.messages == 50
    rate = {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    namespaces.set_topic_policy(topic, "topicDispatchRate", {"standalone": rate})
    assert policies(harness).dispatch_rate.messages == -1


@pytest.mark.parametrize(
    "name", ["brokerPublisherThrottlingMaxMessageRate", "maxPublishRatePerTopicInMessages"]
)
def test_changed_publish_rates_apply_to_loaded_topics(harness, make_entry, name):
    peer = harness.producer(TOPIC)

    def publish(count: int) -> None:
        entries = [make_entry(b"m", sequence_id=number) for number in range(count)]
        peer.send_bytes(b"".join(encode_send(1, n, 1, None, len(one)) + one for n, one in enumerate(entries)))

    publish(100)
    assert len(peer.receipts()) == 100
    change(harness, name, "10")
    publish(600)
    taken = len(peer.receipts())
    assert taken < 400
    harness.advance(5)
    taken += len(peer.receipts())
    assert taken < 400
    change(harness, name, None)
    harness.advance(2)  # the debt under the old rate is dropped
    assert len(peer.receipts()) == 600 - taken
    publish(100)
    harness.advance(1)
    assert len(peer.receipts()) == 100


@pytest.mark.parametrize("of", ["", "PerTopic", "PerSubscription"])
def test_changed_dispatch_rates_apply_to_loaded_topics(harness, of):
    name = f"dispatchThrottlingRate{of}InMsg"
    peer = harness.producer(TOPIC)
    peer.subscribe(TOPIC, "s", consumer_id=2)
    change(harness, name, "2")
    peer.publish(100)
    peer.command("flow", consumer_id=2, messagePermits=1000)
    harness.advance(10)
    early = len(peer.messages())
    assert early <= 30
    change(harness, name, None)
    harness.advance(2)
    assert len(peer.messages()) == 100 - early


def test_a_shorter_ttl_expires_the_backlog_of_unused_topics(harness):
    """A shorter TTL applies to topics that were not used since the change."""
    peer = harness.producer(TOPIC)
    consumer = harness.consumer(TOPIC, "s")
    peer.publish(5)
    consumer.disconnect()
    peer.disconnect()
    harness.advance(600)
    change(harness, "ttlDurationDefaultInSeconds", "60")
    harness.advance(120)
    assert harness.actions.stats(TopicName.parse(TOPIC))["subscriptions"]["s"]["msgBacklog"] == 0


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("webServicePort", "1", "non-dynamic configuration webServicePort"),
        ("nothing", "1", "non-dynamic configuration nothing"),
        ("allowAutoTopicCreation", "maybe", "true or false"),
        ("defaultNumPartitions", "many", "a whole number"),
        ("defaultNumPartitions", "0", "auto_create_partitions"),
        ("backlogQuotaDefaultRetentionPolicy", "hope", "backlog_quota_action"),
        ("ttlDurationDefaultInSeconds", "-5", "message_ttl_seconds"),
        ("managedLedgerOffloadDeletionLagMs", "1.5", "a whole number"),
        ("managedLedgerOffloadDeletionLagMs", "9" * 400, "offload_deletion_lag_seconds"),
    ],
)
def test_bad_settings_are_refused(harness, name, text, told):
    before = harness.broker.dynamic.current
    with pytest.raises(RuleViolation, match=told):
        harness.broker.dynamic.set(name, text)
    assert harness.broker.dynamic.current is before
    assert not harness.broker.dynamic.changed
    if name not in DYNAMIC:
        with pytest.raises(RuleViolation, match="Can't delete non-dynamic configuration"):
            harness.broker.dynamic.remove(name)


@pytest.mark.parametrize("digits", [19, 20, 400])
@pytest.mark.parametrize("name", sorted(DYNAMIC))
def test_huge_numbers_are_refused_or_safe(harness, name, digits):
    """One that was kept, and that arithmetic cannot do with, would stand in the way of every start."""
    harness.peer().producer(TOPIC)
    try:
        harness.broker.dynamic.set(name, "9" * digits)
    except RuleViolation:
        assert not harness.broker.dynamic.changed
    harness.advance(400)
    harness.restart()
    harness.broker.dynamic.shown()
    harness.producer(TOPIC).publish(1)
    harness.advance(400)
    assert not any(harness.broker.scheduler.failures.values())


def test_an_unknown_stored_setting_does_not_stop_the_start(harness):
    harness.store.keys.put("dynamic-configuration/fromTheFuture", b"1")
    harness.store.keys.put("dynamic-configuration/defaultRetentionTimeInMinutes", b"3")
    harness.restart()
    assert harness.broker.dynamic.changed == {"defaultRetentionTimeInMinutes": "3"}
    assert policies(harness).retention_minutes == 3
    harness.broker.dynamic.remove("fromTheFuture")
    assert harness.store.keys.get("dynamic-configuration/fromTheFuture") is None
    with pytest.raises(RuleViolation, match="non-dynamic configuration fromTheFuture"):
        harness.broker.dynamic.remove("fromTheFuture")


@pytest.mark.parametrize("mended", ["-1", None])
def test_rules_delete_nothing_while_a_setting_is_unusable(make_harness, mended):
    """A value stored by another version, or in conflict with the start settings, may have meant "keep"."""
    harness = make_harness(retention_minutes=0)
    harness.store.keys.put("dynamic-configuration/defaultRetentionTimeInMinutes", b"for ever")
    harness.restart()
    assert policies(harness).retention_minutes == -1
    assert not harness.broker.dynamic.changed
    harness.restart()
    assert policies(harness).retention_minutes == -1
    change(harness, "defaultRetentionTimeInMinutes", mended)
    assert policies(harness).retention_minutes == (0 if mended is None else -1)
    assert not harness.broker.dynamic.lost


def test_rules_delete_nothing_while_a_setting_is_lost_to_damage(make_harness, monkeypatch):
    harness = make_harness(retention_minutes=1)
    scan = harness.store.keys.scan

    def damaged(prefix: str) -> Any:
        if prefix == "dynamic-configuration/":
            return [(f"{prefix}defaultRetentionTimeInMinutes", StoredValue(b"", (), LostWrites(values=1)))]
        return scan(prefix)

    monkeypatch.setattr(harness.store.keys, "scan", damaged)
    harness.restart()
    assert policies(harness).retention_minutes == -1
    change(harness, "defaultRetentionTimeInMinutes", "60")
    assert policies(harness).retention_minutes == 60
    harness.restart()
    assert policies(harness).retention_minutes == -1
    harness.broker.dynamic.accept("dynamic-configuration/defaultRetentionTimeInMinutes")
    assert policies(harness).retention_minutes == 1
