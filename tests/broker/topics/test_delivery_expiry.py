"""TTL that counts from the delivery time."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from doubles import calls_of

from geminga.broker.delivery import delivery_times
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.runtime import background_jobs
from geminga.broker.topics import delivery_expiry
from geminga.broker.topics.topic import ROUND_SECONDS
from geminga.errors import StoreBusy
from geminga.ids import MessageId
from tests.broker.conftest import NAME, TOPIC, Command
from tests.broker.topics.conftest import Topic
from tests.support.disk_stores import succeeded

TTL = 60
LATE = 2 * ROUND_SECONDS + delivery_expiry.TOGETHER_MS_MIN / 1000
"""Time after which a message whose TTL is over has surely expired."""
POLICY = "message_ttl_from_delivery"


@pytest.fixture
def counted(make):
    """Return a function that makes a topic whose TTL counts from the delivery time."""

    def new(**settings: Any) -> Topic:
        topic: Topic = make(**{"message_ttl_seconds": TTL, "ledger_entries_max": 50, **settings})
        topic.set_policy(POLICY, True)
        topic.subscribe()
        return topic

    return new


@pytest.fixture
def topic(counted):
    return counted()


@pytest.fixture
def reads(monkeypatch):
    """Entries that were examined."""
    return calls_of(monkeypatch, delivery_expiry, "may_be_delayed_or_chunk")


def open_entries(topic: Topic, name: str = "s") -> list[int]:
    subscription = topic.harness.subscription(name)
    end = subscription.topic.ledger.confirmed
    return [at for at in range(end) if not subscription.cursor.is_acknowledged(at)]


def test_by_default_a_delayed_message_expires_unread(make):
    topic = make(message_ttl_seconds=TTL)
    topic.subscribe()
    topic.publish(1, delay_seconds=600)
    topic.keep_connected(TTL + LATE)
    assert topic.backlog() == 0


@pytest.mark.parametrize("kind", ["", "Exclusive", "Failover", "Shared", "Key_Shared"])
def test_a_delayed_message_expires_after_its_delivery_time_for_each_type_of_subscription(topic, kind):
    if kind:
        peer = topic.harness.consumer(TOPIC, kind=kind)
    for _ in range(3):
        topic.publish(2)
        topic.publish(1, delay_seconds=600)
    topic.keep_connected(TTL + LATE)
    assert open_entries(topic) == [2, 5, 8]
    assert topic.topics.find(NAME).subscriptions["s"].cursor.mark == 2
    if kind:
        is_delayed = kind.endswith("hared")
        assert len(peer.take(Command.MESSAGE)) == (6 if is_delayed else 9)
    topic.keep_connected(600 - LATE - 1)  # until just before the TTL is over
    assert open_entries(topic) == [2, 5, 8]
    if kind:
        assert len(peer.take(Command.MESSAGE)) == (3 if is_delayed else 0)
    topic.keep_connected(LATE + 1)
    assert open_entries(topic) == []
    stats = topic.actions.stats(NAME)["subscriptions"]["s"]
    assert stats["totalMsgExpired"] == 9
    assert topic.harness.now_ms - stats["lastExpireTimestamp"] <= 1000 * LATE


def test_the_subscriptions_are_listed_once_for_each_step(topic, monkeypatch):
    listed = calls_of(monkeypatch, delivery_expiry, "waiting_for")
    examined = calls_of(monkeypatch, delivery_expiry.DeliveryExpiry, "_examine")
    topic.publish(120)
    topic.publish(1, delay_seconds=600)
    topic.publish(120)
    topic.keep_connected(TTL + LATE)
    assert topic.backlog() == 1
    assert len(listed) == len(examined) >= 3


def test_a_delivery_time_before_publishing_does_not_shorten_the_ttl(topic):
    topic.publish(1, delay_seconds=-3600)
    topic.keep_connected(TTL - 1)
    assert topic.backlog() == 1
    topic.keep_connected(LATE)
    assert topic.backlog() == 0


@pytest.mark.parametrize("restart", ["restart", "crash"])
def test_expired_messages_stay_so_after_a_restart_and_the_others_wait(topic, restart):
    topic.publish(2)
    topic.publish(1, delay_seconds=600)
    topic.publish(1, delay_seconds=10)
    topic.publish(1)
    topic.keep_connected(TTL + LATE)
    assert open_entries(topic) == [2]
    getattr(topic.harness, restart)()
    assert open_entries(topic) == [2]
    topic.connect()
    topic.keep_connected(600 - LATE - 1)
    assert open_entries(topic) == [2]
    topic.keep_connected(LATE + 1)
    assert open_entries(topic) == []


def test_a_message_that_is_due_waits_for_its_ttl_over_a_restart(counted):
    topic = counted(message_ttl_seconds=300)
    topic.publish(1, delay_seconds=310)
    topic.publish(1, delay_seconds=5000)
    topic.keep_connected(320)
    topic.harness.restart()
    topic.connect()
    topic.keep_connected(280)
    assert open_entries(topic) == [0, 1]
    topic.keep_connected(10 + LATE)
    assert open_entries(topic) == [1]


def test_a_topic_that_is_not_in_memory_is_loaded_when_a_ttl_is_over(topic, monkeypatch):
    topic.publish(1, delay_seconds=86_400)
    topic.publish(1, delay_seconds=2 * 86_400)
    topic.leave()
    loads = calls_of(monkeypatch, delivery_times.DeliveryTimes, "load")
    topic.harness.advance(86_400 - 3600)
    assert len(loads) <= 3
    assert open_entries(topic) == [0, 1]
    topic.harness.advance(3600 + TTL + LATE)
    assert open_entries(topic) == [1]
    topic.harness.advance(86_400 + LATE)
    assert len(loads) <= 8
    assert open_entries(topic) == []


def test_entries_that_wait_are_not_read_again(topic, reads):
    for _ in range(50):
        topic.publish(1, delay_seconds=3600)
        topic.publish(1)
    topic.keep_connected(TTL + LATE)
    assert len(reads) == 100
    assert open_entries(topic) == list(range(0, 100, 2))
    reads.clear()
    for _ in range(10):
        topic.publish(1)
        topic.keep_connected(TTL + LATE)
    assert len(reads) == 10
    topic.keep_connected(3600)
    assert open_entries(topic) == []
    assert len(reads) <= 10 + 3 * 50


def test_the_index_of_delivery_times_spares_reading(topic, reads):
    topic.harness.consumer(TOPIC, kind="Shared")
    topic.publish(20, delay_seconds=3600)
    topic.keep_connected(TTL + LATE)
    assert (reads, len(open_entries(topic))) == ([], 20)


def test_entries_whose_times_were_lost_are_examined_again(topic, reads):
    topic.publish(5, delay_seconds=3600)
    topic.keep_connected(TTL + LATE)
    times = topic.topics.find(NAME).delivery_times
    times.offsets.remove_range(0, 5)
    topic.topics.find(NAME).delivery_expiry.became_due(range(5))
    topic.topics.find(NAME).touch()
    reads.clear()
    topic.keep_connected(LATE)
    assert (len(reads), len(times.offsets)) == (5, 5)


def test_messages_that_a_seek_reopens_expire_again(topic):
    topic.publish(3)
    topic.publish(1, delay_seconds=3600)
    topic.keep_connected(TTL + LATE)
    assert open_entries(topic) == [3]
    topic.actions.cursors.reset(NAME, "s", succeeded, position=MessageId.earliest)
    assert open_entries(topic) == [0, 1, 2, 3]
    topic.subscribe("new")
    topic.keep_connected(LATE)
    assert open_entries(topic) == open_entries(topic, "new") == [3]


def test_each_subscription_keeps_its_own_acknowledgements(topic):
    topic.subscribe("other")
    topic.publish(2)
    topic.publish(2, delay_seconds=3600)
    topic.actions.cursors.skip(NAME, "s", 3, succeeded)
    topic.keep_connected(TTL + LATE)
    assert (open_entries(topic), open_entries(topic, "other")) == ([3], [2, 3])
    stats = topic.actions.stats(NAME)["subscriptions"]
    assert [stats[name]["totalMsgExpired"] for name in ("s", "other")] == [0, 2]


def test_without_the_policy_kept_messages_expire_at_once(topic):
    topic.publish(1, delay_seconds=3600)
    topic.leave()
    topic.harness.advance(TTL + LATE)
    assert topic.backlog() == 1
    topic.set_policy(POLICY, False)
    topic.harness.advance(LATE)
    assert topic.backlog() == 0


def test_a_topic_overrides_its_namespace(topic):
    topic.harness.broker.namespaces.set_topic_policy(NAME, POLICY, False)
    topic.publish(1, delay_seconds=3600)
    topic.keep_connected(TTL + LATE)
    assert topic.backlog() == 0


def test_a_longer_ttl_stops_the_running_job(topic, monkeypatch):
    monkeypatch.setattr(delivery_expiry, "ENTRIES_AT_ONCE", 1)
    monkeypatch.setattr(background_jobs, "SLICE_STEPS_MAX", 1)
    topic.publish(40)
    topic.keep_connected(TTL - 1)
    while topic.backlog() == 40:
        topic.harness.advance(0.1)
    topic.set_policy("message_ttl_in_seconds", 600)
    left = topic.backlog()
    assert left > 20
    topic.keep_connected(600 - TTL - 1)
    assert left - 1 <= topic.backlog() <= left
    topic.keep_connected(LATE)
    assert topic.backlog() == 0


def test_expiry_waits_for_a_busy_disk(topic, monkeypatch):
    topic.publish(1)
    topic.publish(1, delay_seconds=3600)
    topic.publish(1)

    def busy(*_: Any, **__: Any) -> Any:
        raise StoreBusy("slow")

    with monkeypatch.context() as patch:
        patch.setattr(ManagedLedger, "in_memory", lambda *_: [])
        patch.setattr(ManagedLedger, "fetch", busy)
        topic.keep_connected(TTL + LATE)
        assert topic.backlog() == 3
    topic.keep_connected(LATE)
    assert open_entries(topic) == [1]


def test_entries_that_were_read_from_the_disk_are_examined(topic, monkeypatch):
    topic.publish(1)
    topic.publish(1, delay_seconds=3600)
    whole, waits = ManagedLedger.in_memory, [True, True]

    def missing(self: Any, *arguments: Any) -> Any:
        return [] if waits and waits.pop() else whole(self, *arguments)

    def later(self: Any, *_: Any, done: Callable[[None], None], **__: Any) -> None:
        topic.harness.broker.scheduler.after(1, lambda: done(None), self)

    monkeypatch.setattr(ManagedLedger, "in_memory", missing)
    monkeypatch.setattr(ManagedLedger, "fetch", later)
    topic.keep_connected(TTL + LATE)
    assert open_entries(topic) == [1]


def test_damaged_entries_expire(topic, monkeypatch):
    topic.publish(3)
    topic.publish(1, delay_seconds=3600)
    whole = ManagedLedger.in_memory
    monkeypatch.setattr(
        ManagedLedger, "in_memory", lambda self, at, *rest: [] if at in (0, 1) else whole(self, at, *rest)
    )
    monkeypatch.setattr(ManagedLedger, "fetch", lambda *_, **__: [])
    monkeypatch.setattr(ManagedLedger, "skip_gap", lambda _, at: max(at, 2))
    topic.keep_connected(TTL + LATE)
    assert open_entries(topic) == [3]


@pytest.mark.parametrize("seed", range(8))
def test_each_message_expires_after_its_time_and_none_before(counted, monkeypatch, seed):
    monkeypatch.setattr(delivery_times, "RUN_ENTRIES", 20)
    monkeypatch.setattr(delivery_times, "SLICE_ENTRIES", 5)
    r = random.Random(seed)
    topic = counted(ledger_entries_max=r.choice([3, 50]))
    harness = topic.harness
    expires: list[float] = []
    acknowledged: set[int] = set()
    begun = harness.now

    def check() -> None:
        opened = set(open_entries(topic))
        for offset, at in enumerate(expires):
            if offset not in acknowledged:
                assert offset in opened or at <= harness.now, f"{offset} expired {at - harness.now} s early"
                late = max(begun, at) + LATE
                assert offset not in opened or late >= harness.now, f"{offset} is {harness.now - at} s late"

    for _ in range(60):
        match r.choice(["publish", "publish", "pass", "pass", "ack", "consume", "restart", "leave", "seek"]):
            case "publish":
                for _ in range(r.randrange(12)):
                    delay = r.choice([0, 0, r.uniform(1, 30), r.uniform(1, 1000)])
                    topic.publish(1, delay_seconds=delay)
                    expires.append(harness.now + delay + TTL)
            case "pass":
                topic.keep_connected(r.choice([1, 30, 200]))
            case "ack":
                opened = open_entries(topic)
                for offset in r.sample(opened, min(len(opened), 3)):
                    harness.subscription().skip_entry(offset, succeeded)
                    acknowledged.add(offset)
            case "consume":
                harness.consumer(TOPIC, kind="Shared", permits=r.choice([0, 5, 1000])).disconnect()
            case "restart":
                r.choice([harness.restart, harness.crash])()
                begun = harness.now
                topic.connect()
            case "leave":
                topic.leave()
                topic.connect()
                begun = harness.now
            case "seek" if r.random() < 0.3:
                topic.actions.cursors.reset(NAME, "s", succeeded, position=MessageId.earliest)
                begun = harness.now
                acknowledged.clear()
        check()
    topic.keep_connected(1000 + TTL + LATE)
    check()
    assert open_entries(topic) == []
