"""Backlogs of topics that are not in memory: over unloading, loading, restarts, and while they are read."""

import random
from typing import Any

import pytest

from geminga.broker.admin import metrics
from geminga.broker.runtime import background_jobs
from geminga.broker.runtime.cooperative import at_once
from geminga.broker.topics import resting as module
from geminga.broker.topics.resting import Figures
from geminga.errors import StoreBusy
from geminga.ids import TopicName
from geminga.ledger import memory
from tests.broker.conftest import Harness

SPACE = "public/default"
NAMESPACE = f'{{namespace="{SPACE}"}}'


def text_of(topic: str) -> str:
    return f"persistent://{SPACE}/{topic}"


def publish(harness: Harness, topic: str, count: int, subscriptions: tuple[str, ...] = ("s",)) -> None:
    """Have subscriptions with ``count`` more unacknowledged entries each."""
    peer = harness.peer()
    for number, subscription in enumerate(subscriptions, 1):
        peer.subscribe(text_of(topic), subscription, consumer_id=number, permits=0)
    peer.producer(text_of(topic))
    peer.publish(count)
    peer.disconnect()


def unload(harness: Harness, topic: str) -> None:
    found = harness.broker.topics.find(TopicName.parse(text_of(topic)))
    harness.actions.unload(found.name)
    assert not harness.broker.topics.in_memory(text_of(topic))


def begin(harness: Harness) -> Any:
    """Have the topics read that are not in memory."""
    done: list[bool] = []
    harness.broker.topics.resting.begin(lambda: done.append(True))
    assert done == [True]
    return harness.broker.topics.resting


def scrape(harness: Harness, *, by_topic: bool = True) -> dict[str, float]:
    """Samples by name, and by topic and subscription where there are any."""
    topics = harness.broker.topics
    out = metrics.Exposition()
    listed = metrics.TopicMetrics(out, by_topic=by_topic)
    for name in topics.loaded():
        at_once(listed.add(name, harness.actions.stats(name), (), topics.in_memory(name)))
    listed.finish({SPACE: 1}, topics.resting, topics.in_memory)
    samples: dict[str, float] = {}
    for line in out.text().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert name not in samples, "a series twice"
            samples[name] = float(value)
    return samples


def labels(topic: str, subscription: str = "s") -> str:
    return f'{{namespace="{SPACE}",topic="{text_of(topic)}",subscription="{subscription}"}}'


def check(harness: Harness, topic: str, backlog: int) -> dict[str, float]:
    found = scrape(harness)
    assert found[f"pulsar_subscription_back_log{labels(topic)}"] == backlog
    assert found[f'pulsar_msg_backlog{{namespace="{SPACE}",topic="{text_of(topic)}"}}'] == backlog
    assert found["pulsar_broker_msg_backlog"] == backlog
    assert found[f'geminga_namespace_msg_backlog{{namespace="{SPACE}"}}'] == backlog
    assert found["pulsar_broker_subscriptions_count"] == 1
    return found


def test_a_backlog_stays_when_its_topic_leaves_memory(harness):
    begin(harness)
    publish(harness, "t", 100)
    before = check(harness, "t", 100)
    unload(harness, "t")
    after = check(harness, "t", 100)
    assert after["pulsar_broker_storage_size"] == before["pulsar_broker_storage_size"] > 0
    assert after[f"pulsar_subscription_consumers_count{labels('t')}"] == 0
    peer = harness.consumer(text_of("t"))
    peer.ack(*peer.ids()[:40])
    check(harness, "t", 60)


def test_sums_of_a_namespace_keep_topics_that_left_memory_and_its_counters_never_fall(harness):
    begin(harness)
    for topic in ("left", "deleted"):
        publish(harness, topic, 3)
        assert len(harness.consumer(text_of(topic)).messages()) == 3
    unload(harness, "left")
    harness.broker.topics.delete_topic(TopicName.parse(text_of("deleted")), None)
    found = scrape(harness, by_topic=False)
    assert found[f"pulsar_subscription_back_log{NAMESPACE}"] == 3
    assert found[f"pulsar_in_messages_total{NAMESPACE}"] == 6
    assert found[f"pulsar_out_messages_total{NAMESPACE}"] == 6


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_backlog_is_known_after_a_start_before_its_topic_is_used(harness, how):
    publish(harness, "t", 10)
    peer = harness.consumer(text_of("t"))
    peer.ack(*peer.ids()[::2])
    getattr(harness, how)()
    assert begin(harness).is_complete
    check(harness, "t", 5)


def test_a_deleted_topic_leaves_the_sums(harness):
    publish(harness, "t", 10)
    harness.restart()
    resting = begin(harness)
    assert resting.sums[SPACE].backlog == 10
    harness.broker.topics.delete_topic(TopicName.parse(text_of("t")), None)
    assert resting.sums[SPACE] == Figures()
    assert resting.listed == {}
    assert resting.not_listed == 0


def test_the_largest_backlogs_are_listed_and_all_are_in_the_sums(harness, monkeypatch):
    monkeypatch.setattr(module, "LISTED_MAX", 3)
    for number in range(10):
        publish(harness, f"t{number}", number)
    harness.restart()
    resting = begin(harness)
    assert resting.sums[SPACE].backlog == sum(range(10))
    kept = {text[-1] for text in resting.listed}
    assert len(kept) <= 6
    assert {"7", "8", "9"} <= kept
    assert resting.not_listed == 9 - len(kept)
    for number in range(10):
        harness.broker.topics.find(TopicName.parse(text_of(f"t{number}")))
    assert resting.sums[SPACE] == Figures()
    assert (resting.listed, resting.not_listed) == ({}, 0)


def test_topics_of_a_busy_disk_are_read_at_the_next_time(harness, monkeypatch):
    for number in range(5):
        publish(harness, f"t{number}", 2)
    harness.restart()
    bring, calls = harness.store.bring, iter([True, False])

    def busy(wanted: Any, done: Any) -> bool:
        if next(calls, True):
            return bring(wanted, done)
        done(StoreBusy("too many reads wait"))
        return False

    monkeypatch.setattr(harness.store, "bring", busy)
    assert not begin(harness).is_complete
    assert scrape(harness)["geminga_backlogs_complete"] == 0
    assert begin(harness).is_complete
    assert scrape(harness)["pulsar_broker_msg_backlog"] == 10


@pytest.mark.rotating(2)
@pytest.mark.parametrize("seed", range(8))
def test_sums_stay_exact_as_topics_come_and_go(seed, monkeypatch):
    """A step of the first reading, a topic loaded, unloaded, made or deleted, in an order by chance."""
    monkeypatch.setattr(background_jobs, "SLICE_STEPS_MAX", 1)
    monkeypatch.setattr(module, "TOPICS_AT_ONCE", 2)
    monkeypatch.setattr(memory, "_PAGE_NAMES", 3)
    chance = random.Random(seed)
    harness = Harness()
    wanted: dict[str, int] = {}
    names = [f"t{number}" for number in range(12)]
    for topic in names[::2]:
        wanted[topic] = chance.randrange(4)
        publish(harness, topic, wanted[topic], ("a", "b"))
    harness.restart()
    resting = harness.broker.topics.resting
    done: list[bool] = []
    published = 0
    resting.begin(lambda: done.append(True))
    for _ in range(200):
        topic = chance.choice(names)
        action = chance.choice(["advance", "publish", "load", "unload", "delete"])
        if action == "advance":
            harness.advance(0.01)
        elif action == "publish":
            more = chance.randrange(4)
            publish(harness, topic, more, ("a", "b"))
            wanted[topic] = wanted.get(topic, 0) + more
            published += more
        elif topic in wanted and action == "load":
            harness.broker.topics.find(TopicName.parse(text_of(topic)))
        elif topic in wanted and action == "unload":
            unload(harness, topic)
        elif topic in wanted:
            harness.broker.topics.delete_topic(TopicName.parse(text_of(topic)), None)
            del wanted[topic]
        if resting.is_complete:
            found = scrape(harness)
            assert found["pulsar_broker_msg_backlog"] == 2 * sum(wanted.values())
            assert found["pulsar_broker_subscriptions_count"] == 2 * len(wanted)
            sums = scrape(harness, by_topic=False)
            assert sums[f"pulsar_msg_backlog{NAMESPACE}"] == 2 * sum(wanted.values())
            assert sums[f"pulsar_in_messages_total{NAMESPACE}"] == published
    harness.advance(10)
    assert done == [True]
    assert not any(harness.broker.scheduler.failures.values())
    found = scrape(harness)
    for topic, entries in wanted.items():
        for subscription in "ab":
            series = f"pulsar_subscription_back_log{labels(topic, subscription)}"
            assert found.get(series, 0) == entries, topic
