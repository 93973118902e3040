"""The last hour of every subscription, by the minute."""

from geminga.broker.admin import history
from geminga.broker.admin.history import SAMPLES, History, SubscriptionHistory
from tests.broker.conftest import TOPIC


def test_each_minute_has_rates_and_the_backlog(harness):
    kept = History(harness.broker)
    peer = harness.producer(TOPIC)
    harness.consumer(TOPIC, permits=1000)
    for _ in range(3):
        peer.publish(120)
        harness.advance(60)
    found = kept.of([TOPIC], "s")
    assert found["backlog"] == [120, 240, 360]
    assert found["in"][1:] == [2, 2]
    assert found["out"][1:] == [2, 2]
    assert found["seconds"] == 60


def test_no_more_than_an_hour_is_kept(harness):
    kept = History(harness.broker)
    peer = harness.producer(TOPIC)
    harness.peer().subscribe(TOPIC)
    for _ in range(SAMPLES + 5):
        peer.publish(1)
        harness.advance(60)
    found = kept.of([TOPIC], "s")
    assert len(found["backlog"]) == SAMPLES
    assert found["backlog"][-1] == SAMPLES + 5
    assert found["backlog"][0] == 6


def test_idle_subscriptions_take_no_memory(harness, monkeypatch):
    kept = History(harness.broker)
    new: list[SubscriptionHistory] = []
    monkeypatch.setattr(history, "SubscriptionHistory", lambda: new.append(SubscriptionHistory()) or new[-1])
    harness.peer().subscribe(TOPIC)
    harness.advance(600)
    assert new == []
    assert kept.of([TOPIC], "s")["backlog"] == [0.0] * 10


def test_a_backlog_stays_while_its_topic_is_not_in_memory(harness):
    kept = History(harness.broker)
    peer, other = harness.producer(TOPIC), harness.peer()
    other.subscribe(TOPIC)
    peer.publish(5)
    harness.advance(120)
    peer.disconnect()
    other.disconnect()
    harness.advance(240)
    assert harness.broker.topics.in_memory(TOPIC) is None
    assert kept.of([TOPIC], "s")["backlog"] == [5] * 6
    later = History(harness.broker)  # as after a restart
    harness.advance(120)
    assert later.of([TOPIC], "s")["backlog"] == []
    harness.producer(TOPIC).publish(2)
    harness.advance(60)
    assert later.of([TOPIC], "s")["backlog"] == [5, 5, 7]
    assert kept.of([TOPIC], "s")["backlog"] == [*[5] * 8, 7]


def test_minutes_that_were_missed_have_no_messages_and_the_same_backlog():
    ring = SubscriptionHistory()
    ring.add(1, 0, 0, 5)
    ring.add(4, 60, 60, 7)
    assert ring.line("backlog", 5)[-5:] == [5, 5, 5, 7, 7]
    assert ring.line("in", 5)[-5:] == [0, 0, 0, 1, 0]
    assert ring.line("in", 200) == [0.0] * SAMPLES


def test_topics_without_subscriptions_are_sampled_in_slices(harness, monkeypatch):
    kept = History(harness.broker)
    for number in range(3):
        harness.peer().producer(f"{TOPIC}-{number}")
    monkeypatch.setattr(type(harness.broker.slices), "should_yield", True)
    assert len(list(kept._sample(1))) == 3
