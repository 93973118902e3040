"""Existing topics, and the topics in memory."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from doubles import calls_of

from geminga.broker.rules.namespaces import TOPIC_POLICIES
from geminga.broker.rules.policies import RuleViolation
from geminga.broker.runtime.cooperative import DONE, SUSPENDED, TURN_SECONDS
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics.persistent import PersistentTopic, topic_key
from geminga.broker.topics.prefetch import partitioned_key
from geminga.broker.topics.topic_loading import LOADS_AT_ONCE
from geminga.broker.topics.topic_registry import TopicRegistry
from geminga.errors import StoreDamaged, StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, SUBSCRIBE
from tests.broker.sliced import Sliced


def code(call: Any, *args: Any, **options: Any) -> int:
    with pytest.raises(Refused) as refused:
        call(*args, **options)
    return refused.value.code


@pytest.fixture
def topics(harness):
    return harness.broker.topics


def test_finding_does_not_create_but_loads(harness, topics):
    assert topics.find(NAME) is None
    assert topics.loaded() == []
    topic = topics.find_or_create(NAME)
    assert topics.find(NAME) is topic
    assert topics.loaded() == [NAME]
    assert code(topics.find_or_create, TopicName.parse("absent"), may_create=False) == pb.TopicNotFound
    harness.restart()
    topics = harness.broker.topics
    assert topics.is_stored(NAME)
    assert topics.loaded() == []
    topics.find(NAME)
    assert topics.loaded() == [NAME]


def test_topics_are_counted_in_slices_while_others_change(harness, topics, monkeypatch, jobs):
    monkeypatch.setattr("geminga.ledger.memory._PAGE_NAMES", 3)
    for number in range(10):
        topics.create(TopicName.parse(f"m{number}"))
    harness.broker.namespaces.set_policy("public", "default", "max_topics_per_namespace", 12)
    jobs.clear()
    assert code(topics.make, TopicName.parse("m10")) == pb.ServiceNotReady
    counted: list[Any] = []
    topics.loader.when_counted(NAME, counted.append)
    (counting,) = jobs
    harness.broker.slices.first_step(counting, "counting")
    # m0 to m2 are counted. Topics before and after them are deleted and created by calls without the limit.
    for gone in ("m1", "m8"):
        topics.delete_topic(TopicName.parse(gone), None)
    for partitioned in ("a", "z"):
        jobs.clear()
        topics.partitioned.create(TopicName.parse(partitioned), 1, None, None)
        for job in jobs:
            list(job)
    while harness.broker.slices.first_step(counting, "counting") is not DONE:
        pass
    assert counted == [None]
    topics.make(TopicName.parse("m10"))
    topics.make(TopicName.parse("m11"))
    assert code(topics.make, TopicName.parse("m12")) == pb.NotAllowedError
    assert len(list(topics.walk("public/default", persistent=True))) == 12


def test_partitions_are_deleted_in_steps_and_not_created_meanwhile(harness, topics, jobs):
    def step() -> None:
        for job in [*jobs]:
            if harness.broker.slices.first_step(job, "job") in (DONE, SUSPENDED):
                jobs.remove(job)

    name = TopicName.parse("parts")
    topics.partitioned.create(name, 100, None, lambda error: None)
    for _ in range(50):
        step()
    gone: list[Any] = []
    harness.actions.delete(name, True, gone.append)
    for _ in range(20):
        step()
    assert 20 < len(list(topics.walk("public/default", persistent=True))) < 50
    assert code(topics.find_or_create, name.partition_name(3)) == pb.TopicNotFound
    assert topics.partitioned.count(name) == 100, "a crash leaves a partitioned topic"
    while jobs:
        step()
    harness.poll()
    harness.poll()
    assert gone == [None]
    assert list(topics.walk("public/default", persistent=True)) == []
    assert topics.partitioned.count(name) == 0
    assert topics.find_or_create(name.partition_name(3)) is not None


def test_a_store_that_stopped_refuses_creation(harness, topics):
    harness.store.close()
    assert code(topics.make, NAME) == pb.PersistenceError
    assert code(topics.partitioned.create, NAME, 2, None, None) == pb.PersistenceError
    assert topics.loaded() == []


def test_damaged_records_are_refused_and_kept(harness, topics):
    harness.store.keys.put(topic_key(str(NAME)), b"{")
    assert code(topics.find, NAME) == pb.PersistenceError
    assert topics.loaded() == []
    harness.store.keys.put(partitioned_key(NAME), b"[1]")
    with pytest.raises(Exception, match="record of partitioned topic"):
        topics.partitioned.count(NAME)


@pytest.mark.parametrize("how", ["unloaded", "deleted", "deleted while an entry is under way"])
@pytest.mark.parametrize("with_subscription", [False, True])
def test_an_unloaded_topic_is_freed_at_once(harness, with_subscription, how):
    peer = harness.producer(str(NAME))
    if with_subscription:
        peer.subscribe(str(NAME))
    peer.publish(3)
    harness.auto_poll = "under way" not in how
    peer.send(3)
    peer.disconnect()
    topic = weakref.ref(harness.broker.topics.find(NAME))
    gc.collect()
    gc.disable()
    try:
        if how == "unloaded":
            harness.actions.unload(NAME)
        else:
            harness.actions.delete(NAME, True, lambda error: None)
        harness.poll()
        assert topic() is None, "nothing waits for the collector of cycles"
    finally:
        gc.enable()


# --- loading in steps ---
TOPIC = "persistent://public/default/large"


class Stepwise:
    """A broker whose topic has six large cursors: each takes 15 ms of the clock to load."""

    def __init__(self, make_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = make_harness()
        peer = self.harness.producer(TOPIC)
        peer.publish(5)
        for number in range(6):
            peer.subscribe(TOPIC, f"s{number}", consumer_id=number, permits=0)
        peer.disconnect()
        self.harness.advance(300)
        assert self.harness.broker.topics.loaded() == []
        self.time, self.loads = 0.0, 0
        self.harness.clock = lambda: self.time
        load = PersistentTopic._load_cursor

        def slow(topic: PersistentTopic, name: str, value: Any) -> None:
            self.time += 0.015
            self.loads += 1
            load(topic, name, value)

        monkeypatch.setattr(PersistentTopic, "_load_cursor", slow)

    def turn(self) -> None:
        self.harness.broker.turn(self.harness.now, self.harness.now_ms)
        self.harness.poll()

    def subscribe(self, peer: Any, subscription: str) -> None:
        fields = {"topic": TOPIC, "subscription": subscription, "subType": 1, "request_id": 1}
        peer.command("subscribe", **(SUBSCRIBE | fields))


@pytest.fixture
def broker(make_harness, monkeypatch):
    return Stepwise(make_harness, monkeypatch)


def test_large_cursors_are_loaded_in_steps_without_blocking_others(broker):
    one, two, other = (broker.harness.peer() for _ in range(3))
    broker.subscribe(one, "s0")
    broker.subscribe(two, "s1")
    slices = 0
    while broker.loads < 6 or not (one.frames and two.frames):
        before = broker.time
        other.command("ping")
        broker.harness.broker.slices.begin(broker.time)
        broker.turn()
        assert broker.time - before < 0.05, "a turn loads a cursor or two"
        assert other.pop().type == pb.BaseCommand.PONG
        slices += 1
        assert slices < 50
    assert slices >= 3
    assert broker.loads == 6, "it is loaded once for both"
    assert one.pop().type == two.pop().type == pb.BaseCommand.SUCCESS


def test_a_synchronous_load_supersedes_a_pending_one(broker):
    peer = broker.harness.peer()
    broker.subscribe(peer, "s0")
    assert peer.frames == []
    topic = broker.harness.broker.topics.find(TopicName.parse(TOPIC))
    for _ in range(10):
        broker.turn()
    assert peer.pop().type == pb.BaseCommand.SUCCESS
    assert broker.harness.broker.topics.in_memory(TopicName.parse(TOPIC)) is topic
    assert len(topic.subscriptions["s0"].consumers) == 1


def test_a_peer_that_disconnects_while_waiting_affects_no_other(broker):
    gone, peer = broker.harness.peer(), broker.harness.peer()
    broker.subscribe(gone, "s0")
    broker.subscribe(peer, "s1")
    gone.disconnect()
    for _ in range(20):
        broker.turn()
    assert peer.pop().type == pb.BaseCommand.SUCCESS
    assert broker.harness.broker.topics.in_memory(TopicName.parse(TOPIC)) is not None


class SlowDisk:
    """A broker whose disk answers all at once, when it does; making a topic takes 2 ms of the clock."""

    def __init__(self, make_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = make_harness()
        self.time, self.longest = 0.0, 0.0
        self.harness.clock = lambda: self.time
        self.answers: list[Done] = []
        monkeypatch.setattr(self.harness.store, "bring", lambda wanted, done: self._bring(done))
        make = TopicRegistry.make

        def slow(topics: TopicRegistry, *args: Any) -> Any:
            self.time += 0.002
            return make(topics, *args)

        monkeypatch.setattr(TopicRegistry, "make", slow)

    def _bring(self, done: Done) -> bool:
        self.answers.append(done)
        return False

    def answer(self) -> None:
        """All that was read together is reported together."""
        answers, self.answers = self.answers, []
        for done in answers:
            done(None)

    def turn(self, work: Callable[[], None]) -> None:
        before, slices = self.time, self.harness.broker.slices
        slices.begin(self.time)
        work()
        slices.end()
        slices.turn()
        self.harness.broker.store.poll()
        self.longest = max(self.longest, self.time - before)


def test_callbacks_of_many_loaded_topics_run_in_slices(make_harness, monkeypatch):
    """256 topics of which the disk says in one go that they are not there: making them is the work."""
    broker = SlowDisk(make_harness, monkeypatch)
    topics = broker.harness.broker.topics
    names = [TopicName.parse(f"s{number}") for number in range(2 * LOADS_AT_ONCE)]
    told: list[str] = []

    def make(name: TopicName, error: StoreError | None) -> None:
        assert error is None
        topics.find_or_create(name)
        told.append(name.local)

    for name in names:
        topics.loader.prepare(name, partial(make, name))
    assert len(broker.answers) == LOADS_AT_ONCE
    slices = 0
    while len(told) < len(names):
        broker.turn(broker.answer)
        slices += 1
        assert slices < 2 * len(names)
    assert told == [name.local for name in names], "in their order"
    assert broker.longest < 2.5 * TURN_SECONDS
    assert topics.loaded_count == len(names)


def test_very_many_callers_waiting_for_one_topic_continue_in_slices(make_harness, monkeypatch):
    broker = SlowDisk(make_harness, monkeypatch)
    topics = broker.harness.broker.topics
    told: list[int] = []

    def go_on(number: int, error: StoreError | None) -> None:
        broker.time += 0.001
        told.append(number)

    for number in range(1_000):
        topics.loader.prepare(NAME, partial(go_on, number))
    while len(told) < 1_000:
        broker.turn(broker.answer)
        if len(told) == 500:
            topics.loader.prepare(NAME, lambda error: told.append(-1))
    assert [number for number in told if number >= 0] == list(range(1_000))
    assert broker.longest < 2.5 * TURN_SECONDS


# --- a topic that is gone, and another one of its name ---
@pytest.mark.parametrize("how", ["delete", "inactive"])
def test_work_pending_at_a_deletion_does_not_affect_a_recreated_topic(harness, how):
    peer = harness.producer("t")
    harness.auto_poll = False
    peer.send(0)
    if how == "inactive":  # its producer is closing, which waits for the receipt
        peer.command("close_producer", producer_id=1, request_id=7)
    harness.actions.delete(NAME, True, lambda error: None)
    harness.poll()  # the store reports on an entry of a topic that is gone
    harness.auto_poll = True
    later = harness.producer("t", 2)
    later.subscribe("t", consumer_id=3)
    topic = harness.broker.topics.find(NAME)
    for sequence_id in range(40):  # 20 minutes
        harness.advance(30)
        later.send(sequence_id, producer_id=2)
        assert harness.broker.topics.find(NAME) is topic
        assert [message.entry_id for message in later.messages()] == [sequence_id]
    assert harness.store.keys.get(topic_key(str(NAME))) is not None


def test_unloading_a_deleted_topic_does_not_affect_its_successor(topics):
    gone = topics.find_or_create(NAME)
    topics.delete_topic(NAME, None)
    there = topics.find_or_create(NAME)
    topics.let_go(gone)
    assert topics.find(NAME) is there


def test_a_deletion_is_confirmed_once_it_is_durable(harness, topics):
    topics.find_or_create(NAME)
    confirmed: list[Any] = []
    topics.delete_topic(NAME, confirmed.append)
    assert confirmed == []
    harness.poll()
    assert confirmed == [None]


def test_no_topic_is_created_in_a_namespace_under_deletion(harness, topics):
    topics.find_or_create(NAME)
    namespaces, absent = harness.broker.namespaces, TopicName.parse("u")
    with namespaces.leaving("public", "default"):
        assert code(topics.find_or_create, NAME) == pb.TopicNotFound
        assert code(topics.make, absent) == code(topics.create, absent) == pb.TopicNotFound
        assert code(topics.partitioned.create, absent, 3, None, None) == pb.TopicNotFound
        with pytest.raises(RuleViolation), namespaces.leaving("public", "default"):
            pass
        topics.delete_topic(NAME, None)
    topics.find_or_create(NAME)


def test_policies_reach_the_others_when_one_topics_own_cannot_be_read(harness, topics, monkeypatch):
    """A bad disk sector under one topic's policies must not leave the others with shorter retention."""
    first, second, third = (topics.make(TopicName.parse(name)) for name in ("a", "b", "c"))
    namespaces = harness.broker.namespaces
    namespaces.set_topic_policy(second.name, "message_ttl_in_seconds", 60)
    key = f"{TOPIC_POLICIES}{second.name}"
    get = harness.store.keys.get

    def damaged(wanted: str) -> Any:
        if wanted == key:
            raise StoreDamaged("a bad place")
        return get(wanted)

    monkeypatch.setattr(harness.store.keys, "get", damaged)
    kept = {"retentionTimeInMinutes": 600, "retentionSizeInMB": -1}
    namespaces.set_policy("public", "default", "retention_policies", kept)
    assert [topic.policies.retention_minutes for topic in (first, third)] == [600, 600]
    # The policies of that topic are not known now: no rule deletes any of its messages.
    assert (second.policies.retention_minutes, second.policies.message_ttl_seconds) == (-1, 0)
    monkeypatch.undo()
    namespaces.set_policy("public", "default", "max_topics_per_namespace", 50)
    assert (second.policies.retention_minutes, second.policies.message_ttl_seconds) == (600, 60)


@pytest.fixture
def told(monkeypatch):
    """The topics whose policies changed, in order."""
    return calls_of(monkeypatch, PersistentTopic, "policies_changed")


def test_policies_that_change_many_times_are_applied_in_few_walks(told):
    """A tenant's administrator changes them in a loop: a walk over all topics for each would be for all."""
    sliced = Sliced(Random(0), 1.0)
    topics, namespaces = sliced.broker.topics, sliced.broker.namespaces
    names = [TopicName.parse(f"t{number}") for number in range(50)]
    for name in names:
        topics.make(name)
    sliced.settle()
    told.clear()
    for number in range(1, 200):
        namespaces.set_policy("public", "default", "max_producers_per_topic", number)
        namespaces.set_topic_policy(names[number % 50], "max_consumers_per_topic", number)
        if number % 10 == 0:
            sliced.turn()
    assert sliced.broker.slices.waiting == 1
    sliced.settle()
    assert len(names) <= len(told) <= 3 * len(names)
    for topic in topics.in_memory_now():
        assert topic.policies == namespaces.topic_policies(topic.name)
        assert topic.policies.max_producers_per_topic == 199


def test_policies_of_a_topic_are_applied_to_it_alone(harness, topics, told):
    for text in ("p-partition-0", "p-partition-1", "other", "p"):
        topics.make(TopicName.parse(text))
    told.clear()
    harness.broker.namespaces.set_topic_policy(TopicName.parse("p"), "max_consumers_per_topic", 3)
    assert [topic.name.local for topic, _ in told] == ["p-partition-0", "p-partition-1", "p"]


def test_a_change_of_policies_is_answered_after_all_topics_apply_it(told):
    """Otherwise a topic could accept unencrypted entries after "encryption required" was answered."""
    sliced = Sliced(Random(0), 1.0)
    namespaces, topics = sliced.broker.namespaces, sliced.broker.topics
    heard: list[object] = []
    topics.policy_updates.when_applied(heard.append)
    assert heard == [None], "there is nothing to wait for"
    for number in range(20):
        topics.make(TopicName.parse(f"t{number}"))
    told.clear()
    heard.clear()
    known: list[tuple[int, int]] = []

    def change(number: int) -> None:
        namespaces.set_policy("public", "default", "max_producers_per_topic", number)

        def told_all(error: object) -> None:
            assert error is None
            least = min(topic.policies.max_producers_per_topic for topic in topics.in_memory_now())
            known.append((number, least))

        topics.policy_updates.when_applied(told_all)

    change(1)
    for number in range(2, 6):
        for _ in range(5):
            sliced.turn()
        change(number)
    sliced.settle()
    assert [number for number, _ in known] == [1, 2, 3, 4, 5]
    assert all(least >= number for number, least in known), known
    change(6)
    sliced.turn()
    sliced.broker.close()
    assert len(known) == 6, "at the end nobody waits on"
