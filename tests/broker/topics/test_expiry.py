"""TTL, retention, and deletion of unused subscriptions and topics."""

import pytest
from doubles import raising

from geminga.broker.topics import expiry
from geminga.errors import StoreBusy, StoreError
from tests.broker.topics.conftest import NAME, TOPIC, succeeded


def test_by_default_acknowledged_messages_stay_for_a_week(make):
    topic = make()
    topic.publish(6)
    assert topic.stored_after(60) == 6
    topic.peer.disconnect()
    assert topic.after(7 * 24 * 3600 - 120) == (3, False)
    assert topic.after(180) == (0, False)


@pytest.mark.parametrize(
    ("minutes", "megabytes", "left"), [(0, 0, 2), (-1, -1, 6), (1, -1, 2), (-1, 0, 2), (5, -1, 6), (-1, 1, 6)]
)
def test_retention_keeps_by_time_and_size(make, minutes, megabytes, left):
    topic = make(retention_minutes=minutes, retention_megabytes=megabytes)
    topic.publish(6)
    assert topic.stored_after(90) == left


@pytest.mark.parametrize("error", [StoreBusy("slow"), StoreError("away")])
def test_acknowledged_messages_are_trimmed_if_ages_cannot_be_read(filled, monkeypatch, error):
    monkeypatch.setattr(expiry, "too_old_below", raising(error))
    topic = filled(6, retention_minutes=0, message_ttl_seconds=5)
    topic.keep_connected(20)
    topic.actions.cursors.skip(NAME, "s", 4, succeeded)
    assert topic.stored_after(20) == 2


def test_of_many_subscriptions_the_slowest_expire_first(make, monkeypatch):
    monkeypatch.setattr(expiry, "EXPIRED_AT_ONCE_MAX", 2)
    topic = make(message_ttl_seconds=60)
    for name in "abcde":
        topic.subscribe(name)
    topic.publish(6)
    topic.actions.cursors.skip(NAME, "a", 1, succeeded)
    monkeypatch.setattr(expiry, "too_old_below", lambda topic, *_: topic.ledger.confirmed)
    left = []
    for _ in range(3):
        expiry.expire(topic.topics.find(NAME))
        left.append([topic.backlog(name) for name in "abcde"])
    assert left == [[5, 0, 0, 6, 6], [5, 0, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_nothing_is_trimmed_before_it_is_compacted(make, monkeypatch):
    """With a threshold, entries must not be deleted before they are compacted."""
    topic = make(retention_minutes=0)
    topic.publish(6)
    with monkeypatch.context() as patch:
        patch.setattr(expiry.compaction, "prepare", raising(StoreBusy("slow")))
        assert topic.stored_after(20) == 6
    assert topic.stored_after(20) == 2


def test_retention_by_size_keeps_the_newest(make):
    topic = make(retention_minutes=-1, retention_megabytes=1)
    topic.publish(8, size=300_000)
    assert topic.stored_after(20) == 4
    assert topic.topics.find(NAME).ledger.size_bytes >= 1024 * 1024


def test_unacknowledged_messages_are_kept(filled):
    topic = filled(6, retention_minutes=0)
    assert topic.stored_after(20) == 6
    topic.actions.cursors.skip(NAME, "s", 3, succeeded)
    topic.keep_connected(20)
    assert (topic.stored, topic.backlog()) == (4, 3)


def test_a_live_reader_is_moved_past_trimmed_entries(make):
    topic = make(retention_minutes=0)
    reader = topic.harness.peer()
    topic.publish(6)
    first = {"ledgerId": 0, "entryId": 0}
    reader.subscribe(TOPIC, "r", durable=False, start_message_id=first, permits=1)
    assert [m.ledger_id for m in reader.messages()] == [0]
    assert topic.stored_after(20) == 2
    reader.command("flow", consumer_id=1, messagePermits=10)
    assert [(m.ledger_id, m.entry_id) for m in reader.messages()] == [(2, 0), (2, 1)]


def test_old_messages_expire(filled):
    topic = filled(2, message_ttl_seconds=60)
    topic.keep_connected(40)
    topic.publish(2)
    assert topic.backlog() == 4
    topic.keep_connected(40)
    assert topic.backlog() == 2
    stats = topic.actions.stats(NAME)["subscriptions"]["s"]
    assert stats["totalMsgExpired"] == 2
    assert stats["lastExpireTimestamp"] > 0
    topic.harness.restart()
    assert topic.harness.broker.topics.find(NAME).subscriptions["s"].backlog == 2


def test_expiry_is_logged_once_a_minute(make, caplog):
    caplog.set_level("INFO")
    topic = make(message_ttl_seconds=10)
    topic.subscribe()
    for _ in range(24):
        topic.publish(1)
        topic.keep_connected(5)
    lines = [record.getMessage() for record in caplog.records if "entries expired" in record.getMessage()]
    assert len(lines) == 2
    assert topic.backlog() < 4


def test_acknowledged_messages_do_not_expire_again(filled):
    topic = filled(2, message_ttl_seconds=10)
    topic.actions.cursors.skip_all(NAME, "s", succeeded)
    topic.keep_connected(60)
    assert topic.actions.stats(NAME)["subscriptions"]["s"]["totalMsgExpired"] == 0


def test_unused_subscriptions_expire_if_configured(make):
    topic = make(subscription_expiration_minutes=1)
    topic.subscribe("unused")
    consumer = topic.harness.consumer(TOPIC, "used")
    for _ in range(8):
        topic.keep_connected(15)
        consumer.command("ping")
    assert list(topic.actions.subscriptions(NAME)) == ["used"]


def test_a_reader_that_does_not_reconnect_after_a_seek_is_removed(make):
    topic = make()
    reader = topic.harness.consumer(TOPIC, "r", durable=False)
    reader.command("seek", consumer_id=1, request_id=1, message_publish_time=0)
    assert list(topic.actions.subscriptions(NAME)) == ["r"]
    topic.keep_connected(80)
    assert list(topic.actions.subscriptions(NAME)) == []
