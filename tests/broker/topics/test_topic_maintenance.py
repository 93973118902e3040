"""Policies that act by time: on topics in use, idle ones, and such that are not in memory, over restarts."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from doubles import calls_of, raising

from geminga.broker.rules.effective_policies import POLICY_SETTINGS, resolve
from geminga.broker.runtime import background_jobs
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics import expiry, topic_maintenance
from geminga.broker.topics.deadlines import acts_earlier
from geminga.broker.topics.topic import ROUND_SECONDS, UNUSED_SECONDS
from geminga.errors import InvalidConfiguration, StoreStopped
from geminga.ids import MessageId, TopicName
from geminga.ledger.api import LostWrites, StoredValue
from tests.broker.topics.conftest import NAME, TOPIC, succeeded

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
LATE = UNUSED_SECONDS + 3 * ROUND_SECONDS
"""Largest delay of maintenance."""
HOW = pytest.mark.parametrize("how", ["leave", "restart", "crash"])


def end(topic: Any, how: str) -> None:
    """The topic leaves memory in one of three ways."""
    if how == "leave":
        topic.leave()
    else:
        getattr(topic.harness, how)()


# --- retention ---
@HOW
def test_retention_frees_the_last_ledger_of_an_unused_topic(make, how):
    topic = make(retention_minutes=60)
    topic.publish(5)
    end(topic, how)
    assert topic.after(HOUR - MINUTE) == (3, False)
    # After a crash the last entry's time is not known: at most a day after its ledger was begun.
    assert topic.after(LATE + MINUTE + (DAY if how == "crash" else 0)) == (0, False)
    topic.connect()
    topic.publish(1)
    assert topic.stored == 1


def test_retention_frees_the_open_ledger_of_an_idle_topic(make):
    topic = make(retention_minutes=10, ledger_entries_max=100)
    topic.publish(3)
    assert topic.stored_after(10 * MINUTE - 30) == 3
    topic.keep_connected(60 + 2 * ROUND_SECONDS)
    assert (topic.stored, topic.ledgers) == (0, 0)
    topic.publish(1)
    assert topic.stored == 1


def test_an_open_ledger_stays_for_a_while_even_without_retention(make):
    topic = make(retention_minutes=0)
    topic.publish(5)
    assert topic.stored_after(60) == 1
    assert topic.stored_after(expiry.OPEN_LEDGER_UNUSED_SECONDS) == 0


def test_messages_acknowledged_late_are_trimmed_soon_after(make):
    topic = make(retention_minutes=60)
    topic.leave_with_backlog()
    assert topic.after(3 * DAY) == (3, False)
    topic.skip_all()
    assert topic.after(LATE) == (0, False)


def test_messages_acknowledged_before_a_crash_are_trimmed(make):
    topic = make(retention_minutes=0)
    topic.leave_with_backlog()
    topic.skip_all()
    topic.harness.crash()
    assert topic.after(HOUR + DAY + LATE) == (0, False)


def test_short_retention_rolls_ledgers_over_early(make):
    topic = make(retention_minutes=60, ledger_entries_max=1000)
    for _ in range(40):
        topic.publish(1)
        topic.keep_connected(3 * MINUTE)
    assert topic.stored <= (60 + 60 // 8) // 3 + 1


def test_long_retention_makes_few_ledgers(make):
    topic = make(message_ttl_seconds=60, retention_minutes=7 * 24 * 60, ledger_entries_max=1000)
    for _ in range(20):
        topic.publish(1)
        topic.keep_connected(3 * MINUTE)
    assert topic.ledgers <= 2


# --- TTL ---
@HOW
def test_ttl_frees_unacknowledged_messages_of_an_unused_topic(filled, how):
    topic = filled(5, message_ttl_seconds=600, retention_minutes=0)
    end(topic, how)
    assert topic.after(600 - MINUTE) == (3, False)
    assert topic.after(MINUTE + LATE + (DAY if how == "crash" else 0)) == (0, False)
    assert topic.backlog() == 0


def test_retention_after_the_ttl_counts_from_the_last_write(filled):
    """Unacknowledged messages are kept until the TTL, others until retention has passed since their write."""
    topic = filled(4, message_ttl_seconds=int(HOUR), retention_minutes=30)
    topic.leave()
    topic.harness.advance(30 * MINUTE + LATE)
    assert topic.ledgers == 2, "retention does not delete what is open"
    topic.harness.advance(30 * MINUTE)
    assert topic.ledgers == 0, "it counts from when the ledger was written, not from when it expired"


def test_a_subscription_moved_back_expires_again(filled):
    topic = filled(4, message_ttl_seconds=600)
    topic.skip_all()
    topic.leave()
    topic.harness.advance(HOUR)
    topic.actions.cursors.reset(NAME, "s", succeeded, position=MessageId.earliest)
    assert topic.backlog() == 4
    topic.harness.crash()
    topic.harness.advance(600 + LATE)
    assert topic.backlog() == 0


def test_a_clock_that_is_behind_expires_nothing_before_its_ledger_is_old(make):
    topic = make(message_ttl_seconds=int(HOUR), ledger_entries_max=1000)
    topic.subscribe()
    topic.clock_ms = -10 * int(DAY) * 1000
    topic.publish(4)
    topic.keep_connected(50 * MINUTE)
    assert topic.backlog() == 4
    topic.keep_connected(10 * MINUTE + LATE)
    assert topic.backlog() == 0


def test_messages_of_a_clock_that_is_ahead_expire(make):
    topic = make(message_ttl_seconds=int(HOUR), ledger_entries_max=1000)
    topic.subscribe()
    topic.clock_ms = 10 * int(DAY) * 1000
    topic.publish(4)
    topic.leave()
    topic.harness.advance(HOUR + LATE)
    assert topic.backlog() == 0


def test_a_clock_that_is_set_forward_makes_topics_in_use_due(filled):
    topic = filled(4, message_ttl_seconds=int(HOUR), ledger_entries_max=1000)
    topic.keep_connected(2 * MINUTE)
    topic.harness.start_ms += int(HOUR) * 1000
    topic.keep_connected(2 * ROUND_SECONDS)
    assert topic.backlog() == 0


def test_clocks_that_disagree_are_off_by_a_ledger_at_most(make):
    topic = make(message_ttl_seconds=int(8 * HOUR), ledger_entries_max=100_000)
    topic.subscribe()
    for number in range(60):
        topic.clock_ms = (int(DAY), -int(DAY))[number % 2] * 1000
        topic.publish(1)
        topic.keep_connected(10 * MINUTE)
        waited = (number + 1) * 10
        kept = min(waited, 8 * 60) // 10
        assert kept - 7 <= topic.backlog() <= kept + 7


# --- inactive topics ---
def test_a_topic_is_deleted_after_more_time_than_it_stays_in_memory(make):
    topic = make(delete_inactive_topics=True, inactive_topic_seconds=3 * int(HOUR))
    topic.publish(1)
    topic.peer.disconnect()
    topic.harness.advance(3 * HOUR - MINUTE)
    assert (topic.exists, topic.in_memory) == (True, False)
    topic.harness.advance(MINUTE + LATE)
    assert (topic.exists, topic.ledgers) == (False, 0)
    assert [key for key, _ in topic.harness.store.keys.scan("") if TOPIC in key] == []


def test_reading_stats_does_not_count_as_use(make):
    topic = make(delete_inactive_topics=True, inactive_topic_seconds=int(HOUR))
    topic.peer.disconnect()
    for _ in range(7):
        topic.harness.advance(10 * MINUTE)
        if topic.exists:
            topic.actions.stats(NAME)
    assert not topic.exists


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_restart_does_not_restart_the_time(make, how):
    topic = make(delete_inactive_topics=True, inactive_topic_seconds=int(3 * HOUR))
    topic.peer.disconnect()
    topic.harness.advance(2 * HOUR)
    getattr(topic.harness, how)()
    topic.harness.advance(HOUR + LATE)
    assert not topic.exists


def test_topics_in_use_at_a_crash_do_not_count_as_unused(make):
    topic = make(delete_inactive_topics=True, inactive_topic_seconds=int(HOUR))
    topic.peer.disconnect()
    topic.harness.advance(50 * MINUTE)
    topic.connect()
    topic.keep_connected(2 * HOUR)
    topic.harness.crash()
    topic.harness.advance(50 * MINUTE)
    assert topic.exists
    topic.harness.advance(10 * MINUTE + LATE)
    assert not topic.exists


def test_subscriptions_and_their_backlog_keep_a_topic(filled):
    topic = filled(1, delete_inactive_topics=True, inactive_topic_seconds=600)
    topic.leave()
    topic.harness.advance(DAY)
    assert topic.exists
    mode = "delete_when_subscriptions_caught_up"
    policy = {"inactiveTopicDeleteMode": mode, "maxInactiveDurationSeconds": 600}
    topic.set_policy("inactive_topic_policies", policy)
    topic.harness.advance(DAY)
    assert topic.exists
    topic.skip_all()
    topic.harness.advance(600 + LATE)
    assert not topic.exists


@HOW
def test_subscriptions_expire_in_unused_topics(make, how):
    topic = make(subscription_expiration_minutes=3 * 60)
    topic.subscribe()
    topic.peer.disconnect()
    topic.harness.advance(2 * HOUR)
    end(topic, how)
    topic.harness.advance(HOUR - MINUTE)
    assert (topic.subscriptions, topic.in_memory) == (["s"], False)
    topic.harness.advance(MINUTE + LATE)
    assert (topic.subscriptions, topic.in_memory) == ([], False)


def test_each_subscription_expires_by_its_own_time(make):
    topic = make(subscription_expiration_minutes=3 * 60)
    for name in ("a", "b"):
        topic.subscribe(name)
    topic.leave()
    topic.harness.advance(2 * HOUR)
    topic.harness.consumer(TOPIC, "a")
    topic.harness.crash()  # while a is in use
    topic.harness.advance(HOUR + LATE)
    assert topic.subscriptions == ["a"]
    topic.harness.advance(3 * HOUR)
    assert topic.subscriptions == []


def test_an_expired_subscription_frees_its_messages(make):
    topic = make(subscription_expiration_minutes=60, retention_minutes=0)
    topic.leave_with_backlog()
    topic.harness.advance(HOUR + LATE)
    assert (topic.subscriptions, topic.ledgers) == ([], 0)


def test_a_quota_evicts_old_messages_of_unused_topics(make):
    quota = {"backlog_quota_seconds": 600, "backlog_quota_action": "consumer_backlog_eviction"}
    topic = make(**quota, retention_minutes=0)
    topic.leave_with_backlog()
    topic.harness.advance(600 + LATE)
    assert (topic.backlog(), topic.stored) == (0, 0)


# --- policies that change ---
def test_policies_that_are_set_later_reach_topics_that_are_not_in_memory(make):
    topic = make(retention_minutes=-1)
    topic.leave_with_backlog()
    topic.harness.advance(DAY)
    topic.set_policy("message_ttl_in_seconds", 60)
    topic.set_policy("retention_policies", {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1})
    assert topic.after(LATE) == (0, False)


def publish_to(harness: Any, names: list[TopicName]) -> None:
    """Publish a message to each topic, and disconnect."""
    peer = harness.peer()
    for number, name in enumerate(names):
        peer.producer(str(name), producer_id=number)
        peer.send(0, producer_id=number)
        peer.receipts()
    peer.disconnect()


def test_later_policies_of_a_topic_reach_its_unloaded_partitions(make):
    topic = make(retention_minutes=-1)
    whole = TopicName.parse("parted")
    topic.topics.partitioned.create(whole, 3, None, None)
    publish_to(topic.harness, [whole.partition_name(index) for index in range(3)])
    topic.harness.advance(LATE)
    policy = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
    topic.harness.broker.namespaces.set_topic_policy(whole, "retention_policies", policy)
    topic.harness.advance(LATE + MINUTE)
    left = [topic.harness.store.ledgers(str(whole.partition_name(index))) for index in range(3)]
    assert (left, topic.topics.loaded()) == ([[], [], []], [NAME])


def test_a_walk_resumes_after_a_crash(make, monkeypatch):
    monkeypatch.setattr(topic_maintenance, "WALK_SAVED_TOPICS", 10)
    monkeypatch.setattr(background_jobs, "SLICE_STEPS_MAX", 35)
    topic = make(retention_minutes=-1)
    names = [TopicName.parse(f"t{number:03}") for number in range(100)]
    publish_to(topic.harness, names)
    topic.harness.advance(LATE)
    topic.set_policy("retention_policies", {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1})
    topic.harness.now += ROUND_SECONDS
    topic.harness.broker.tick(topic.harness.now, topic.harness.now_ms)
    left = sum(bool(topic.harness.store.ledgers(str(name))) for name in names)
    assert 60 <= left < 100
    topic.harness.crash()
    visited = calls_of(monkeypatch, expiry, "keep")
    topic.harness.advance(LATE)
    assert not any(topic.harness.store.ledgers(str(name)) for name in names)
    assert len(visited) <= 100 - 30 + 10 + 1


def test_longer_times_need_no_walk(make):
    topic = make(retention_minutes=60, message_ttl_seconds=60)
    topic.harness.advance(LATE)
    topic.leave()
    topic.set_policy("retention_policies", {"retentionTimeInMinutes": 70, "retentionSizeInMB": -1})
    topic.set_policy("message_ttl_in_seconds", 0)
    topic.set_policy("max_producers_per_topic", 7)
    assert list(topic.harness.store.keys.scan("due/0000000000000/")) == []


def walks(harness: Any) -> int:
    return sum("policies:" in key for key in harness.store.keys.names("due/"))


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_changed_settings_at_the_start_reach_unused_topics(make, how):
    topic = make(retention_minutes=0)
    topic.leave_with_backlog()
    harness = topic.harness
    harness.advance(HOUR)
    assert topic.backlog() == 5
    harness.advance(LATE)
    harness.settings = dataclasses.replace(harness.settings, message_ttl_seconds=60)
    getattr(harness, how)()
    harness.advance(LATE)
    assert topic.backlog() == 0
    harness.crash()
    assert walks(harness) == 0, "the settings are the same"


def test_settings_changed_while_running_reach_topics_in_memory_and_others(make):
    topic = make(retention_minutes=0)
    topic.leave_with_backlog()
    topic.harness.advance(LATE)
    names = [TopicName.parse(f"loaded-{number}") for number in range(20)]
    for name in names:
        topic.topics.make(name)
    topic.harness.broker.dynamic.set("ttlDurationDefaultInSeconds", "77")
    assert {topic.topics.in_memory(name).policies.message_ttl_seconds for name in names} == {77}
    assert walks(topic.harness) == 1
    topic.harness.advance(LATE + 77)
    assert (topic.in_memory, topic.ledgers, walks(topic.harness)) == (False, 0, 0)


@pytest.mark.parametrize("harm", ["lost", "unfit"])
def test_unknown_settings_of_the_previous_run_cause_a_walk(make, harm):
    topic = make()
    topic.leave()
    topic.harness.advance(LATE)
    store = topic.harness.store
    if harm == "unfit":
        store.keys.put(topic_maintenance.RULES_KEY, b'{"message_ttl_seconds":-5}')
    else:
        get, lost = store.keys.get, StoredValue(b"", (), LostWrites(values=1))
        store.keys.get = lambda key: lost if key == topic_maintenance.RULES_KEY else get(key)
    topic.harness.restart()
    assert topic.topics.is_stored(NAME)
    assert walks(topic.harness) == 1
    topic.harness.advance(LATE)
    assert walks(topic.harness) == 0
    assert not any(topic.harness.broker.scheduler.failures.values())


@pytest.mark.parametrize("evicts", [False, True])
def test_every_setting_that_can_act_earlier_is_compared(evicts):
    """Try each setting to find those that `acts_earlier` compares."""
    smaller: dict[str, Any] = {"backlog_quota_action": "consumer_backlog_eviction", "retention_megabytes": 1}
    settings = BrokerSettings(memory=True)
    if evicts:
        settings = dataclasses.replace(
            settings, backlog_quota_bytes=9, backlog_quota_seconds=9, delete_inactive_topics=True, **smaller
        )
    before = resolve(settings)
    acting = set()
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, (bool, int, float)):
            value = not value if isinstance(value, bool) else type(value)(1)
        with contextlib.suppress(InvalidConfiguration):
            value = smaller.get(field.name, value)
            other = dataclasses.replace(settings, **{field.name: value})
            if acts_earlier(before, resolve(other)):
                acting.add(field.name)
                assert any(getattr(other, name) != getattr(settings, name) for name in POLICY_SETTINGS)
    assert {"message_ttl_seconds", "retention_minutes", "subscription_expiration_minutes"} <= acting


def test_topics_without_index_entries_are_found_once(make):
    topic = make(retention_minutes=0)
    topic.publish(5)
    topic.leave()
    store = topic.harness.store
    for key, _ in list(store.keys.scan("due/")):
        store.keys.delete(key)
    store.keys.delete("broker/rules")
    store.keys.put(f"topic/{TOPIC}", b'{"created_ms":1}')
    topic.harness.crash()
    assert topic.after(DAY + LATE) == (0, False)
    assert store.keys.get("broker/rules") is not None


# --- costs ---
class Counted:
    """Records which topics are loaded from now on, and what is written."""

    def __init__(self, topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded = calls_of(monkeypatch, topic.topics, "find")
        self._writes = [calls_of(monkeypatch, topic.harness.store.keys, name) for name in ("put", "merge")]

    @property
    def written(self) -> list[str]:
        return [key for writes in self._writes for key, *_ in writes]


def test_housekeeping_costs_only_due_topics(make, monkeypatch):
    topic = make(retention_minutes=int(2 * DAY // 60))
    for number in range(300):
        topic.actions.create(TopicName.parse(f"idle-{number}"), succeeded)
    topic.publish(3)
    topic.leave()
    topic.harness.advance(LATE)
    counted = Counted(topic, monkeypatch)
    topic.harness.advance(DAY)
    assert (counted.loaded, counted.written) == ([], [])


def test_a_start_reads_no_topic(make, monkeypatch):
    topic = make()
    for number in range(300):
        topic.actions.create(TopicName.parse(f"idle-{number}"), succeeded)
    topic.harness.advance(LATE)
    store = topic.harness.store
    scan, read = store.keys.scan, list[str]()
    got = calls_of(monkeypatch, store.keys, "get")

    def scanned(*args: Any, **options: Any) -> Any:
        for key, value in scan(*args, **options):
            read.append(key)
            yield key, value

    monkeypatch.setattr(store.keys, "scan", scanned)
    topic.harness.restart()
    topic.harness.advance(HOUR)
    read += [key for (key,) in got]
    assert not [key for key in read if "idle-" in key and not key.startswith("due/")]


def test_using_a_topic_writes_nothing_for_the_index(filled, monkeypatch):
    topic = filled(1, ledger_entries_max=1000, retention_minutes=10, message_ttl_seconds=300)
    topic.keep_connected(ROUND_SECONDS)
    counted = Counted(topic, monkeypatch)
    for _ in range(20):
        topic.publish(3)
        topic.skip_all()
        topic.keep_connected(ROUND_SECONDS)
    assert [key for key in counted.written if key.startswith(("due/", "topic/"))] == []


def test_a_topic_in_use_is_visited_after_a_change(make, monkeypatch):
    topic = make(ledger_entries_max=1000)
    topic.keep_connected(2 * ROUND_SECONDS)
    kept: list[Any] = []
    monkeypatch.setattr(expiry, "keep", kept.append)
    topic.keep_connected(10 * MINUTE)
    assert len(kept) <= 1
    topic.publish(3)
    topic.keep_connected(2 * ROUND_SECONDS)
    assert len(kept) <= 2


# --- failures ---
def test_a_topic_that_cannot_be_loaded_is_retried_later(make, caplog):
    topic = make(retention_minutes=1)
    topic.keep_connected(ROUND_SECONDS)
    topic.publish(5)
    topic.leave()
    store = topic.harness.store
    intact = store.keys.get(f"ledgers/{TOPIC}")
    store.keys.put(f"ledgers/{TOPIC}", b"\xff")
    topic.harness.advance(HOUR - MINUTE)
    assert caplog.text.count("maintenance failed") == 1
    store.keys.put(f"ledgers/{TOPIC}", intact.base)
    for delta in intact.deltas:
        store.keys.merge(f"ledgers/{TOPIC}", delta)
    assert topic.after(2 * HOUR) == (0, False)


def test_a_store_that_refuses_is_retried(make, monkeypatch):
    topic = make(retention_minutes=1)
    topic.publish(5)
    topic.peer.disconnect()
    with monkeypatch.context() as context:
        context.setattr(topic.harness.store.keys, "put", raising(StoreStopped("no space left")))
        topic.harness.advance(10 * MINUTE)
        assert topic.in_memory
    assert topic.after(LATE + MINUTE) == (0, False)


def test_a_key_left_by_a_crash_is_removed(make):
    topic = make(retention_minutes=60)
    store = topic.harness.store
    store.keys.put("due/0000000000007/persistent://public/default/gone", b"")
    store.keys.put(f"due/0000000000008/{TOPIC}", b"")
    topic.leave()
    topic.harness.crash()
    topic.harness.advance(LATE)
    left = [key for key, _ in store.keys.scan("due/")]
    assert len(left) == 1
    assert left[0].endswith(TOPIC)


def test_topics_are_unloaded_sooner_while_many_are_loaded(make, monkeypatch):
    harness = make().harness
    monkeypatch.setattr("geminga.broker.topics.topic_maintenance.MANY_TOPICS", 10)
    peer = harness.peer()
    for number in range(15):
        peer.request("producer", topic=f"many-{number}", producer_id=number)
        if number:
            peer.request("close_producer", producer_id=number)
    topics = harness.broker.topics
    assert topics.loaded_count >= 15
    harness.advance(2 * ROUND_SECONDS)
    assert topics.in_memory(TopicName.parse("many-0")) is not None, "it is in use"
    assert topics.loaded_count == 10, "what is not too many stays for its time"
    harness.advance(LATE)
    assert [name.local for name in topics.loaded() if "many" in name.local] == ["many-0"]


# --- a disk that does not answer ---
def test_maintenance_waits_for_the_disk_without_blocking(make, monkeypatch):
    topic = make(retention_minutes=1)
    topic.publish(5)
    topic.leave()
    store, waiting = topic.harness.store, list[Any]()
    monkeypatch.setattr(store, "bring", lambda wanted, then: waiting.append(then))
    topic.harness.advance(HOUR)
    assert topic.ledgers == 3
    reads = 0
    while waiting:
        waiting.pop(0)(None)
        topic.harness.advance(0.1)
        reads += 1
    assert (topic.ledgers, topic.in_memory) == (0, False)
    assert reads >= 2, "the page of the index, and the topic"


def fail_once(topic: Any, monkeypatch: pytest.MonkeyPatch, is_meant: Callable[[Any], Any]) -> list[Exception]:
    """Have the first request to read ahead that is meant fail; return the failures that are left."""
    failures: list[Exception] = [StoreStopped("no answer")]

    def bring(wanted: Any, then: Any) -> bool:
        if failures and is_meant(wanted):
            assert topic.ledgers == 3
            then(failures.pop())
            return False
        return True

    monkeypatch.setattr(topic.harness.store, "bring", bring)
    return failures


FAILING: dict[str, Callable[[Any], Any]] = {
    "index": lambda wanted: wanted.pages[:1] == (("due/", ""),), "topic": lambda wanted: wanted.owners,
}  # fmt: skip


@pytest.mark.parametrize("failing", FAILING)
def test_topics_that_the_disk_cannot_read_are_visited_later(make, monkeypatch, failing):
    topic = make(retention_minutes=1)
    topic.publish(5)
    topic.leave()
    failures = fail_once(topic, monkeypatch, FAILING[failing])
    topic.harness.advance(LATE + 2 * MINUTE)
    assert not failures
    assert (topic.ledgers, topic.in_memory) == (0, False)


def test_a_walk_interrupted_by_the_disk_resumes(make, monkeypatch):
    topic = make(retention_minutes=-1)
    topic.publish(5)
    topic.leave()
    topic.harness.advance(LATE)
    failures = fail_once(
        topic, monkeypatch, lambda wanted: wanted.pages and wanted.pages[0][0].startswith("topic/")
    )
    topic.set_policy("retention_policies", {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1})
    topic.harness.advance(3 * ROUND_SECONDS)
    assert not failures
    assert (topic.ledgers, topic.in_memory) == (0, False)
