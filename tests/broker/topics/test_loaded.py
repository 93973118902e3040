"""Which topics exist, and which of them are in memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from geminga.broker.refusal import Refused
from geminga.broker.topics import maintenance
from geminga.broker.topics.loaded import parse_topic, partitioned_key
from geminga.broker.topics.persistent import topic_key
from geminga.broker.turns import Turns
from geminga.errors import StoreStopped
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

NAME = TopicName.parse("t")


def code(call: Any, *args: Any, **options: Any) -> int:
    with pytest.raises(Refused) as refused:
        call(*args, **options)
    return refused.value.code


@pytest.fixture
def topics(harness: Any) -> Any:
    return harness.broker.topics


def test_finding_does_not_create(topics: Any) -> None:
    assert topics.find(NAME) is None
    assert topics.loaded() == []
    topic = topics.find_or_create(NAME)
    assert topics.find(NAME) is topic
    assert topics.loaded() == [NAME]
    assert code(topics.find_or_create, TopicName.parse("absent"), may_create=False) == pb.TopicNotFound


def test_a_topic_is_loaded_when_it_is_used(harness: Any, topics: Any) -> None:
    topics.make(NAME)
    harness.restart()
    topics = harness.broker.topics
    assert topics.is_stored(NAME)
    assert topics.loaded() == []
    topics.find(NAME)
    assert topics.loaded() == [NAME]


def test_topics_are_limited_by_policy(harness: Any, topics: Any) -> None:
    harness.broker.namespaces.set_policy("public", "default", "max_topics_per_namespace", 2)
    topics.make(NAME)
    topics.make(TopicName.parse("t2"))
    assert code(topics.make, TopicName.parse("t3")) == pb.NotAllowedError


def test_topics_are_counted_in_slices_while_they_come_and_go(
    harness: Any, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geminga.broker.topics.loaded._COUNTED_AT_ONCE", 3)
    monkeypatch.setattr(Turns, "start", lambda _, job, about: started.append(job))
    started: list[Any] = []
    for number in range(10):
        topics.create(TopicName.parse(f"m{number}"))
    harness.broker.namespaces.set_policy("public", "default", "max_topics_per_namespace", 12)
    started.clear()
    assert code(topics.make, TopicName.parse("m10")) == pb.ServiceNotReady
    assert not topics.is_counted(NAME)
    (counting,) = started
    # m0 to m2 are counted. Some come and go on both sides of that, by ways that know no limit.
    for gone in ("m1", "m8"):
        topics.delete_topic(TopicName.parse(gone), None)
    for partitioned in ("a", "z"):
        started.clear()
        topics.create_partitions(TopicName.parse(partitioned), 1, None, None)
        for job in started:
            list(job)
    assert list(counting) == [None, None]
    assert topics.is_counted(NAME)
    topics.make(TopicName.parse("m10"))
    topics.make(TopicName.parse("m11"))
    assert code(topics.make, TopicName.parse("m12")) == pb.NotAllowedError
    assert len(list(topics.walk("public/default", persistent=True))) == 12


def test_watchers_hear_of_every_topic(topics: Any) -> None:
    heard: list[tuple[str, bool]] = []
    topics.watch(lambda name, exists: heard.append((name.local, exists)))
    topics.make(NAME)
    topics.create_partitions(TopicName.parse("p"), 2, None, None)
    topics.delete_topic(NAME, None)
    topics.delete_topic(NAME, None)
    assert heard == [("t", True), ("p-partition-0", True), ("p-partition-1", True), ("t", False)]


def test_a_store_that_stopped_refuses_creation(harness: Any, topics: Any) -> None:
    harness.store.close()
    assert code(topics.make, NAME) == pb.PersistenceError
    assert code(topics.create_partitions, NAME, 2, None, None) == pb.PersistenceError
    assert topics.loaded() == []


def test_damaged_records_are_refused_and_kept(harness: Any, topics: Any) -> None:
    harness.store.put(topic_key(str(NAME)), b"{")
    assert code(topics.find, NAME) == pb.PersistenceError
    assert topics.loaded() == []
    harness.store.put(partitioned_key(NAME), b"[1]")
    with pytest.raises(Exception, match="record of partitioned topic"):
        topics.partition_count(NAME)


def test_a_topic_that_cannot_be_loaded_does_not_stop_housekeeping(harness: Any, topics: Any) -> None:
    topic = topics.make(NAME)
    topic.ledger.append(b"x", 1, now_ms=0, limits=topic.limits, keep=False, done=lambda error: None)
    harness.restart()
    harness.store.put(f"ledgers/{NAME}", b"\xff")
    harness.advance(200)
    assert harness.broker.topics.loaded() == []


def test_a_failing_store_does_not_stop_housekeeping(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = harness.peer()
    peer.producer(str(NAME))

    def stopped(topic: Any) -> int:
        raise StoreStopped("no space left")

    monkeypatch.setattr(maintenance, "trim", stopped)
    harness.advance(20)
    assert not peer.is_closed


def test_policies_reach_topics_that_are_loaded(harness: Any, topics: Any) -> None:
    mine = topics.find_or_create(NAME)
    harness.broker.namespaces.create_namespace("public", "other")
    other = topics.find_or_create(TopicName.parse("public/other/t"))
    harness.broker.namespaces.set_policy("public", "default", "message_ttl_in_seconds", 77)
    assert (mine.policies.message_ttl_seconds, other.policies.message_ttl_seconds) == (77, 0)
    harness.broker.namespaces.set_topic_policy(other.name, "message_ttl_in_seconds", 5)
    assert (mine.policies.message_ttl_seconds, other.policies.message_ttl_seconds) == (77, 5)


def test_names_are_checked() -> None:
    assert str(parse_topic("t")) == "persistent://public/default/t"
    assert code(parse_topic, "a/b") == pb.InvalidTopicName


@pytest.mark.parametrize("with_subscription", [False, True])
def test_a_topic_that_leaves_memory_is_given_back_at_once(harness: Any, with_subscription: bool) -> None:
    peer = harness.peer()
    peer.producer(str(NAME))
    if with_subscription:
        peer.subscribe(str(NAME))
    peer.publish(3)
    peer.disconnect()
    topic = weakref.ref(harness.broker.topics.find(NAME))
    gc.collect()
    gc.disable()
    try:
        harness.actions.unload(NAME)
        harness.poll()
        assert topic() is None, "nothing waits for the collector of cycles"
    finally:
        gc.enable()
