"""Causes of a subscription that does not receive: each is found, named, and its advice works."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from doubles import raising

from geminga.broker.admin import facts
from geminga.cli.explain import as_text
from geminga.client.admin.types import Explanation
from geminga.diagnosis.commands import shell_command
from geminga.diagnosis.conclude import CONSUMERS_NAMED_MAX, REDELIVERIES, Trouble
from geminga.errors import StoreError
from geminga.ids import MessageId, TopicName
from geminga.ledger.damage import Damage, DamageLoss, EntriesDamaged
from geminga.records import decode
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.admin.geminga_commands import run_commands
from tests.broker.conftest import NAME, TOPIC
from tests.support.disk_stores import succeeded

PASSING = {
    "delayed", "no-permits", "not-reading", "switching", "key-blocked", "transaction", "transaction-acks",
}  # fmt: skip
"""Findings that count as trouble only after some time."""
TYPES = ("Shared", "Key_Shared", "Exclusive", "Failover")


class Case:
    """A topic with a subscription ``s``, a producer, and the result of `explain`."""

    def __init__(self, harness: Any, make_entry: Callable[..., bytes]) -> None:
        self.harness = harness
        self.make_entry = make_entry
        self.producer = harness.peer()
        self.producer.producer(TOPIC)

    def publish(self, count: int = 1, *, wait: float = 0, **fields: Any) -> None:
        fields.setdefault("publish_time", self.harness.now_ms)
        for number in range(count):
            self.producer.send(number, self.make_entry(b"x" * 50, **fields))
        if wait:
            self.harness.advance(wait)

    def subscribe(self, kind: str = "Shared", permits: int = 100, **fields: Any) -> Any:
        return self.harness.consumer(TOPIC, kind=kind, permits=permits, **fields)

    def create(self) -> None:
        self.harness.actions.cursors.create(NAME, "s", MessageId.earliest, succeeded)

    def explain(self) -> dict[str, Any]:
        found = self.harness.actions.cursors.explain(NAME, "s")
        json.dumps(found)
        assert "\n" not in found["summary"]
        assert len(as_text(decode(Explanation, found)).splitlines()) <= 25, "one screen"
        stopping = {each["kind"] for each in found["findings"] if each["stops"]}
        quotas = [each["details"] for each in found["findings"] if each["kind"] == "quota"]
        quota = any(each["subscription"] == "s" for each in quotas)
        shown = facts.trouble(*self.harness.actions.cursors.found(NAME, "s"))
        assert found["trouble"] == shown, "as in the overview"
        if found["trouble"] >= Trouble.STOPPED:
            assert stopping or quota, "the level agrees with the findings"
        else:
            assert stopping <= PASSING or found["trouble"] == Trouble.IDLE, found["findings"]
        return dict(found)

    def finding(self, kind: str) -> dict[str, Any]:
        found = [each for each in self.explain()["findings"] if each["kind"] == kind]
        assert len(found) == 1, self.explain()["findings"]
        return dict(found[0])

    def stops(self, kind: str, text: str) -> dict[str, Any]:
        """Return a finding of this kind and with this text that stops the subscription."""
        finding = self.finding(kind)
        assert finding["stops"]
        assert text in finding["text"]
        return finding

    def begin(self) -> tuple[int, int]:
        return self.producer.begin_transaction()

    def end(self, txn: tuple[int, int], *, commit: bool = True) -> None:
        assert not self.producer.end_transaction(txn, commit=commit).HasField("error")

    def publish_in(self, txn: tuple[int, int]) -> None:
        self.producer.send(0, self.make_entry(b"x"), transaction=txn)

    def stopping(self) -> list[str]:
        return [each["kind"] for each in self.explain()["findings"] if each["stops"]]

    def run(self, command: str) -> None:
        run_commands(self.harness, command)

    def policy(self, name: str, value: Any) -> None:
        self.harness.broker.namespaces.set_topic_policy(NAME, name, value, succeeded)
        self.harness.poll()


def command_in(text: str, start: str) -> str:
    """The command that begins so in a finding's ``mend``."""
    found = re.search(rf"{re.escape(start)}[^;]*", text)
    assert found is not None, text
    return found[0].strip()


@pytest.fixture
def make_case(make_harness, make_entry):
    return lambda **settings: Case(make_harness(**settings), make_entry)


@pytest.fixture
def case(make_case):
    return make_case()


def test_a_fully_acknowledged_subscription_is_reported_as_caught_up(case):
    peer = case.subscribe()
    case.publish(2)
    peer.ack((0, 0), (0, 1))
    found = case.explain()
    assert found["summary"] == "everything is acknowledged"
    assert [each["kind"] for each in found["findings"]] == ["caught-up"]
    assert found["facts"]["messagesInBacklog"] == 0
    assert found["facts"]["oldestOpenMessage"] == "end"
    case.harness.actions.topic(NAME).terminate(succeeded)
    assert "terminated" in case.finding("caught-up")["text"]


@pytest.mark.parametrize("kind", TYPES)
def test_delivered_messages_that_await_acknowledgement_are_no_problem(case, kind):
    peer = case.subscribe(kind)
    case.publish(4)
    peer.ack((0, 0))
    found = case.explain()
    assert found["findings"] == []
    assert found["summary"] == "all messages are delivered, and wait to be acknowledged"
    facts = found["facts"]
    assert (facts["type"], facts["consumers"], facts["messagesHeld"]) == (kind, 1, 3)


def test_a_subscription_without_consumers_is_reported_as_stopped(case):
    case.create()
    case.publish(3)
    finding = case.finding("nobody-connected")
    assert finding["stops"]
    assert finding["text"] == "no consumer is connected", "none was since the topic was loaded"
    assert f"geminga peek {TOPIC} s" in finding["mend"]
    peer = case.subscribe()
    assert not case.stopping()
    peer.disconnect()
    case.harness.advance(30)
    found = case.explain()
    assert found["sentence"] == "no consumer is connected (since 2027-01-15T08:00:00.000Z)"
    assert found["trouble"] == Trouble.STOPPED
    case.harness.advance(60)
    assert case.explain()["trouble"] == Trouble.IDLE
    assert case.finding("nobody-connected")["stops"]


@pytest.mark.parametrize("kind", TYPES)
def test_a_consumer_that_never_asked_for_messages_is_reported(case, kind):
    peer = case.subscribe(kind, permits=0, consumer_name="idle")
    case.publish(3)
    case.stops("no-permits", "consumer 'idle' at /10.0.0.1:4242 never asked for messages")
    peer.command("flow", consumer_id=1, messagePermits=5)
    assert not case.stopping()


@pytest.mark.parametrize("kind", TYPES)
def test_a_consumer_that_stopped_asking_for_messages_is_reported(case, kind):
    peer = case.subscribe(kind, permits=2)
    case.publish(5, partition_key="k")
    assert case.stopping() == ["no-permits"]
    found = case.explain()
    assert found["trouble"] == Trouble.MOVING
    assert found["sentence"] == "its consumers are busy: waiting messages are delivered as they ask for more"
    case.harness.advance(6)
    found = case.explain()
    assert found["trouble"] == Trouble.GROWING
    assert found["sentence"] == found["summary"] == found["findings"][0]["text"]
    case.harness.advance(39)
    peer.command("ping")
    finding = case.stops("paused", "it last asked for messages 45s ago")
    case.run(command_in(finding["mend"], "geminga topics unload"))
    assert case.finding("nobody-connected")


def test_a_consumer_without_permits_stops_nothing_while_another_has_some(case):
    case.subscribe(permits=1)
    case.publish(1)
    case.subscribe(permits=100)
    case.publish(5)
    assert case.stopping() == []
    assert not case.finding("no-permits")["stops"]


def test_a_client_that_does_not_read_its_connection_is_reported(case):
    peer = case.subscribe()
    peer.writable = False
    case.publish(3)
    case.stops("not-reading", "does not read from its connection")
    peer.writable = True
    assert case.stopping() == []


def test_a_consumer_at_its_limit_of_unacknowledged_messages_is_reported(make_case):
    case = make_case(unacked_messages_per_consumer_max=3)
    peer = case.subscribe()
    case.publish(5)
    finding = case.stops("unacked-limit", "holds 3 unacknowledged messages, 3 are allowed")
    assert finding["details"]["limit"] == 3
    case.run(command_in(finding["mend"], "geminga topics policy"))
    peer.ack((0, 0), (0, 1))
    assert case.stopping() == []


def test_a_subscription_at_its_limit_of_unacknowledged_messages_is_reported(make_case):
    case = make_case(unacked_messages_per_subscription_max=4)
    peer = case.subscribe()
    case.publish(6)
    finding = case.stops("unacked-limit", "its consumers hold 4 unacknowledged messages")
    case.run(command_in(finding["mend"], "geminga subscriptions redeliver-unacked"))
    assert case.harness.actions.cursors.found(NAME, "s")[1].cursor.properties
    case.harness.advance(80)
    assert {m.redelivery_count for m in peer.messages()} >= {1}


def test_delayed_messages_are_reported_with_the_next_time(case):
    peer = case.subscribe()
    case.publish(2, deliver_at_time=case.harness.now_ms + 90_000)
    text = "2 entries are to be delivered later: the next at 2027-01-15T08:01:30.000Z"
    finding = case.stops("delayed", text)
    case.publish(1)
    assert not case.finding("delayed")["stops"]
    case.run(command_in(finding["mend"], "geminga topics policy"))
    peer = case.subscribe()
    assert len(peer.messages()) == 3


def test_a_key_that_waits_for_another_consumer_is_reported(case):
    first = case.subscribe("Key_Shared", consumer_name="first")
    case.publish(2, partition_key="a")
    others = [case.subscribe("Key_Shared", consumer_name=f"other-{number}") for number in range(9)]
    case.publish(3, partition_key="a")
    finding = case.finding("key-blocked")
    assert finding["stops"]
    assert finding["details"]["key"] == "a"
    assert (finding["details"]["waiting"], finding["details"]["held"]) == (3, 2)
    assert "3 entries of key 'a' wait: consumer 'first'" in finding["text"]
    first.ack((0, 0), (0, 1))
    assert case.stopping() == []
    assert sum(len(other.messages()) for other in others) == 3


def test_a_key_without_an_owner_is_reported(case):
    ranges = {"keySharedMode": pb.STICKY, "hashRanges": [pb.IntRange(start=0, end=0)]}
    case.subscribe("Key_Shared", keySharedMeta=ranges)
    case.publish(1, partition_key="a")
    assert case.finding("key-unowned")["stops"]


def test_a_hole_is_reported_with_the_consumer_that_has_it(case):
    peer = case.subscribe(consumer_name="forgetful")
    case.publish(6, wait=20)
    peer.ack(*[(0, entry) for entry in (0, 2, 3, 5)])
    finding = case.finding("hole")
    assert not finding["stops"]
    assert "message 0:1 is not acknowledged although 3 later ones are" in finding["text"]
    assert "consumer 'forgetful' at /10.0.0.1:4242 holds it; published 20s ago" in finding["text"]
    assert finding["details"]["holes"] == 2
    case.run(command_in(finding["mend"], "geminga subscriptions skip"))
    assert "message 0:4 is not acknowledged although 1 later one is" in case.finding("hole")["text"]
    peer.messages()
    case.run(command_in(finding["mend"], "geminga subscriptions redeliver-unacked"))
    assert "redelivered after 60 s" in case.finding("hole")["text"]
    case.harness.advance(80)
    peer.command("ping")
    assert [m.entry_id for m in peer.messages()] == [4]


@pytest.mark.parametrize("consumer", ["receiving", "without permits", "closed"])
def test_a_hole_that_waits_for_its_delivery_time_is_not_to_be_skipped(case, consumer):
    peer = case.subscribe(permits=0 if consumer == "without permits" else 100)
    case.publish(3, deliver_at_time=case.harness.now_ms + 90_000)
    peer.ack((0, 1))  # canceled
    if consumer == "closed":
        peer.command("close_consumer", consumer_id=1, request_id=7)
    finding = case.finding("hole")
    assert "message 0:0 is not acknowledged although 1 later one is" in finding["text"]
    assert "; it is to be delivered later" in finding["text"]
    assert finding["mend"] == "wait"


def test_a_hole_inside_a_batch_is_reported_with_its_indexes(case):
    peer = case.subscribe()
    case.producer.send(0, case.make_entry(num_messages_in_batch=6), messages=6)
    peer.ack((0, 0), ack_set=[0b011010])
    assert "of its batch, messages 1, 3 to 4 are not" in case.finding("hole")["text"]


def test_a_damaged_entry_is_reported_and_passed_over(case, monkeypatch):
    case.create()
    case.publish(4)
    plain = case.harness.store.read

    def damaged(ledger_id: int, first: int, **limits: int) -> Any:
        if first == 1:
            damage = Damage("log", 0, "checksum", 0, 1, 1, DamageLoss.ENTRIES)
            raise EntriesDamaged("entry 1 fails its checksum", damage)
        return plain(ledger_id, first, **limits)[: 1 if first == 0 else 9]

    monkeypatch.setattr(case.harness.store, "read", damaged)
    peer = case.subscribe()
    assert [message.entry_id for message in peer.messages()] == [0, 2, 3]
    finding = case.finding("damaged-entry")
    assert "entry 0:1 cannot be read from the disk" in finding["text"]
    peer.ack((0, 0), (0, 2), (0, 3))
    assert case.explain()["facts"]["messagesInBacklog"] == 1
    case.run(command_in(finding["mend"], "geminga subscriptions skip"))
    assert case.explain()["summary"] == "everything is acknowledged"


def test_a_store_that_cannot_be_read_is_reported(case, monkeypatch):
    case.create()
    case.publish(2)
    with monkeypatch.context() as patch:
        patch.setattr(case.harness.store, "read", raising(StoreError("the disk is gone")))
        peer = case.subscribe()
        assert case.finding("store")["stops"]
    case.harness.advance(6)
    assert len(peer.messages()) == 2
    assert case.stopping() == []


def test_a_quota_that_stops_the_producers_is_reported(make_case):
    case = make_case(backlog_quota_bytes=300)
    peer = case.subscribe()
    case.publish(6)
    peer.ack(*[(0, entry) for entry in range(1, 6)])
    case.harness.advance(16)
    finding = case.finding("quota")
    assert "producers are stopped: backlog quota exceeded (producer_request_hold)" in finding["text"]
    assert "message is 0:0" in finding["text"]
    case.harness.actions.cursors.create(NAME, "other", MessageId.latest, succeeded)
    other = case.harness.actions.cursors.explain(NAME, "other")["findings"][0]
    assert other["mend"] == f"see that subscription: geminga explain {TOPIC} s"
    case.run(command_in(finding["mend"], "geminga subscriptions skip"))
    # The producer's client tries again by itself.
    case.producer.frames.clear()
    assert case.producer.producer(TOPIC).producer_ready
    assert [each["kind"] for each in case.explain()["findings"]] == ["caught-up"]


@pytest.mark.parametrize(
    ("kind", "state", "command"),
    [
        ("fenced", {"fenced": True}, "geminga topics unload"),
        ("harmed", {"harmed": "its record fails its checksum"}, "geminga subscriptions reset"),
    ],
)
def test_a_fenced_or_damaged_subscription_is_reported(case, kind, state, command):
    case.create()
    case.publish(1)
    for name, value in state.items():
        setattr(case.harness.broker.topics.find(NAME).subscriptions["s"], name, value)
    finding = case.finding(kind)
    assert finding["stops"]
    case.run(command_in(finding["mend"], command))
    assert case.stopping() == ["nobody-connected"]


def test_a_failover_consumer_that_stands_by_is_reported(make_case):
    case = make_case(failover_delay_seconds=5)
    case.subscribe("Failover", consumer_name="b")
    case.publish(1)
    case.subscribe("Failover", consumer_name="a", permits=0, priority_level=1)
    assert "consumer 'a' at /10.0.0.1:4242 is on standby: consumer 'b'" in case.finding("standby")["text"]


def test_a_failover_consumer_about_to_take_over_is_reported(make_case):
    case = make_case(failover_delay_seconds=5)
    case.subscribe("Failover", consumer_name="old", priority_level=1)
    case.publish(2)
    case.subscribe("Failover", consumer_name="new", priority_level=0)
    case.stops("switching", "consumer 'new' at /10.0.0.1:4242 becomes active in a moment")
    case.harness.advance(6)
    assert case.stopping() == []


def test_messages_that_are_held_for_two_minutes_are_reported(case):
    case.subscribe(consumer_name="worker-3")
    case.publish(3)
    assert case.explain()["trouble"] == Trouble.MOVING
    case.harness.advance(120)
    finding, found = case.finding("unacknowledged"), case.explain()
    text = "consumer 'worker-3' at /10.0.0.1:4242 holds 3 messages, and has acknowledged none since 2027"
    assert text in finding["text"]
    assert (found["trouble"], found["sentence"]) == (Trouble.WATCH, finding["text"])
    case.run(command_in(finding["mend"], "geminga subscriptions redeliver-unacked"))


def test_holes_are_no_trouble_while_the_mark_moves(case):
    peer = case.subscribe()
    case.publish(6)
    peer.ack((0, 0), (0, 2))
    assert case.explain()["trouble"] == Trouble.MOVING
    case.harness.advance(31)
    found = case.explain()
    assert found["trouble"] == Trouble.WATCH
    assert found["sentence"].startswith("message 0:1 is not acknowledged although 1 later one is")


@pytest.mark.parametrize("kind", ["Shared", "Failover"])
def test_only_some_of_very_many_consumers_are_reported(harness, kind):
    peer = harness.peer()
    for number in range(CONSUMERS_NAMED_MAX + 20):
        peer.subscribe(f"persistent://public/default/{kind}", kind=kind, consumer_id=number, permits=0)
    harness.producer(f"persistent://public/default/{kind}").publish(1)
    found = harness.actions.cursors.explain(TopicName.parse(f"persistent://public/default/{kind}"), "s")
    assert CONSUMERS_NAMED_MAX <= len(found["findings"]) <= CONSUMERS_NAMED_MAX + 2
    assert found["findings"][0]["stops"]


def test_a_consumer_that_acknowledges_nothing_is_reported_after_a_minute(case):
    peer = case.subscribe(permits=100_000, consumer_name="silent")
    for _ in range(80):
        case.publish(2, wait=1)
        peer.command("ping")
    found = case.explain()
    assert found["trouble"] == Trouble.WATCH
    assert "'silent' at /10.0.0.1:4242 holds 160 messages, and has acknowledged none" in found["sentence"]
    assert found["findings"][0]["details"]["sinceTimestamp"] == case.harness.start_ms
    peer.ack((0, 0))
    assert case.explain()["trouble"] == Trouble.MOVING


@pytest.mark.parametrize("kind", TYPES)
def test_a_slow_consumer_is_not_reported_as_paused(case, kind):
    peer = case.subscribe(kind, permits=100, consumer_name="slow")
    case.publish(130, partition_key="k")
    case.explain()
    for number in range(60):
        peer.ack((0, number))
        case.publish(3, partition_key="k", wait=1)
        peer.command("ping")
        found = case.explain()
        assert not [each for each in found["findings"] if each["kind"] in ("paused", "no-permits")]
        assert found["trouble"] < Trouble.STOPPED
    assert found["trouble"] == Trouble.WATCH
    text = "consumer 'slow' at /10.0.0.1:4242 is slower than the producers: 1.0/s against 3.0/s; 40 unackno"
    assert text in found["sentence"]
    assert case.stopping() == []


def test_a_full_look_ahead_names_the_consumer_that_fills_it(case):
    """Its entries are those of a Key_Shared consumer that holds its limit."""
    case.policy("max_unacked_messages_per_consumer", 50)
    slow = case.subscribe("Key_Shared", permits=10_000, consumer_name="slow")
    healthy = case.subscribe("Key_Shared", permits=100_000, consumer_name="healthy")
    for number in range(12_000):
        case.publish(1, partition_key=f"key-{number % 200}")
        if number % 100 == 0:
            healthy.ack(*healthy.ids())
    healthy.ack(*healthy.ids())
    case.harness.advance(15)
    healthy.command("ping")
    assert not healthy.messages()
    assert case.explain()["trouble"] == Trouble.GROWING
    finding = case.finding("look-ahead")
    assert re.match("no further entry is read: 4,0[0-9]{2} entries wait for their", finding["text"])
    assert "because of consumer 'slow' at /10.0.0.1:4242, which holds 50 unacknowledged" in finding["text"]
    assert finding["advice"][0]["effects"] == {"closes": "slow"}
    slow.disconnect()
    assert healthy.messages(), "its messages go to the other consumer"


def test_key_shared_messages_waiting_for_a_consumer_without_permits_are_reported(case):
    case.subscribe("Key_Shared", permits=1, consumer_name="full")
    other = case.subscribe("Key_Shared", permits=1000, consumer_name="other")
    for number in range(100):
        case.publish(1, partition_key=f"key-{number}")
    other.ack(*other.ids())
    case.harness.advance(10)
    found = case.explain()
    assert found["trouble"] == Trouble.GROWING
    assert re.search("consumer 'full' at .* takes no more: .*; [0-9]+ entries of its keys", found["sentence"])
    assert case.stopping() == ["no-permits"]


def test_advice_for_a_quota_frees_enough_for_producers_to_continue(make_case):
    """Skipping the oldest message alone frees too little: then it is not advised."""
    case = make_case(backlog_quota_bytes=2_000)
    case.create()
    case.publish(60, wait=16)
    assert case.explain()["trouble"] == Trouble.PRODUCERS_STOPPED
    (advice,) = case.finding("quota")["advice"]
    effects = advice["effects"]
    assert effects["producersContinue"]
    text = "frees [0-9.]+ KiB, and producers continue; 0:0 alone frees [0-9]+ B, too"
    assert re.search(text, advice["text"])
    topic, subscription = case.harness.actions.cursors.found(NAME, "s")
    before, messages = topic.ledger.size_bytes, subscription.backlog
    case.run(advice["command"])
    assert messages - subscription.backlog == effects["messages"]
    assert before - topic.ledger.size_from(subscription.cursor.mark) == effects["frees"]
    case.producer.frames.clear()
    assert case.producer.producer(TOPIC).producer_ready


def test_advice_for_a_quota_names_another_subscription_that_exceeds_it(make_case):
    case = make_case(backlog_quota_bytes=2_000)
    case.create()
    case.harness.actions.cursors.create(NAME, "t", MessageId.earliest, succeeded)
    case.publish(60, wait=16)
    held = case.harness.actions.cursors.found(NAME, "s")[0].quota_exceeded.subscription
    (advice,) = case.harness.actions.cursors.explain(NAME, held)["findings"][0]["advice"]
    other = "t" if held == "s" else "s"
    assert f"but subscription '{other}' exceeds the quota, too" in advice["text"]
    assert not advice["effects"]["producersContinue"]


def test_each_subscription_over_the_quota_stops_the_producers(make_case):
    """The verdict does not depend on which subscription is the slowest; one within the quota has none."""
    case = make_case(backlog_quota_bytes=2_000)
    case.create()
    for name in ("t", "within"):
        case.harness.actions.cursors.create(NAME, name, MessageId.earliest, succeeded)
    case.publish(60, wait=16)
    topic, within = case.harness.actions.cursors.found(NAME, "within")
    within.skip_to(topic.ledger.confirmed - 1)
    found = {name: case.harness.actions.cursors.explain(NAME, name) for name in ("s", "t", "within")}
    stopped = Trouble.PRODUCERS_STOPPED
    assert (found["s"]["trouble"], found["t"]["trouble"]) == (stopped, stopped)
    assert found["within"]["trouble"] < stopped
    for name in "st":
        assert f"subscription '{name}' keeps " in found[name]["findings"][0]["text"]
        subscription = case.harness.actions.cursors.found(NAME, name)[1]
        assert facts.trouble(topic, subscription) == stopped, "in the overview, too"


def test_advice_for_a_quota_does_not_call_the_only_message_too_little(make_case):
    """Another subscription exceeds the quota, too: skipping the one open message frees all that it can."""
    case = make_case(backlog_quota_bytes=2_000)
    peer = case.subscribe()
    case.publish(60)
    case.harness.actions.cursors.create(NAME, "t", MessageId(-1, 0, 1, -1), succeeded)
    peer.ack(*[(0, entry) for entry in range(1, 60)])
    case.harness.advance(16)
    (advice,) = case.finding("quota")["advice"]
    assert re.match("acknowledge 0:0, or skip it: frees [0-9.]+ KiB, but subscription 't' ex", advice["text"])
    assert "too little" not in advice["text"]
    assert not advice["effects"]["producersContinue"]


def test_a_quota_that_is_no_longer_exceeded_is_not_reported(make_case):
    """Housekeeping notes an exceeded quota, and only later that it is not any more."""
    case = make_case(backlog_quota_bytes=2_000)
    peer = case.subscribe()
    case.publish(60, wait=16)
    assert case.explain()["trouble"] == Trouble.PRODUCERS_STOPPED
    peer.ack(*[(0, entry) for entry in range(60)])
    assert case.harness.actions.cursors.found(NAME, "s")[0].quota_exceeded is not None
    assert (case.explain()["trouble"], len(case.explain()["findings"])) == (Trouble.NOTHING_WAITS, 1)


def test_a_reader_is_not_asked_to_acknowledge(case):
    case.subscribe("Exclusive", durable=False)
    case.publish(wait=100)
    found = case.explain()
    assert found["trouble"] == Trouble.MOVING
    assert found["sentence"] == "all messages are delivered to its reader"


def test_a_dispatch_rate_that_slows_delivery_is_named_while_messages_move(case):
    value = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    case.policy("topicDispatchRate", {"standalone": value})
    case.subscribe()
    case.publish(20, wait=0.5)
    found = case.explain()
    assert found["trouble"] == Trouble.MOVING
    assert found["sentence"].startswith("a dispatch rate limits delivery: ")
    assert case.finding("throttled")["stops"] is False


def test_a_message_that_consumers_reject_again_and_again_is_worth_a_look(case):
    consumer = case.subscribe()
    case.publish()
    for _ in range(REDELIVERIES):
        assert case.explain()["trouble"] == Trouble.MOVING
        consumer.command("redeliverUnacknowledgedMessages", consumer_id=1)
        consumer.messages()
    found = case.explain()
    assert (found["trouble"], found["findings"][0]["kind"]) == (Trouble.WATCH, "rejected")
    assert f"was redelivered {REDELIVERIES} times and is not acknowledged" in found["sentence"]
    case.run(found["findings"][0]["advice"][1]["command"])
    assert case.explain()["trouble"] == Trouble.NOTHING_WAITS


def test_expired_messages_are_not_called_acknowledged(case):
    case.create()
    case.publish(3, wait=1)
    case.harness.actions.cursors.expire(NAME, "s", succeeded, seconds=0)
    case.harness.advance(200)
    expected = "everything is acknowledged or expired: 3 entries expired, the last 3m 20s ago"
    assert case.explain()["sentence"] == expected


def test_a_subscription_whose_name_begins_with_a_dash_is_named_behind_two(case):
    assert shell_command("peek", TOPIC, "-s", options="-n 3") == f"geminga peek -n 3 -- {TOPIC} -s"
    assert shell_command("topics policy", TOPIC, "x", "-1") == f"geminga topics policy -- {TOPIC} x -1"
    case.subscribe(subscription="-s")
    case.publish()
    found = case.harness.actions.cursors.explain(NAME, "-s")
    commands = [each["command"] for one in found["findings"] for each in one["advice"]]
    assert all(" -- " in each for each in commands if each)


@pytest.mark.parametrize("kind", TYPES)
def test_an_open_transaction_that_holds_back_messages_of_others_is_named_with_the_helping_command(case, kind):
    peer = case.subscribe(kind, permits=1_000)
    txn = case.begin()
    case.publish_in(txn)
    assert case.explain()["summary"] == "everything is acknowledged", "nobody else's message waits"
    case.publish(2, wait=2)
    found = case.explain()
    assert (found["trouble"], found["facts"]["messagesInBacklog"]) == (Trouble.MOVING, 0)
    text = "2 messages wait behind the first message of transaction 0:1 (open since 2027-01-15T08:00:00.000Z"
    assert found["summary"] == f"{text}, time limit 2027-01-15T08:10:00.000Z)"
    assert [each["kind"] for each in found["findings"]] == ["transaction"]
    case.harness.advance(40)
    peer.command("ping")
    assert case.explain()["trouble"] == Trouble.STOPPED
    case.publish()
    assert case.explain()["trouble"] == Trouble.GROWING
    finding = case.stops("transaction", "3 messages wait behind the first message")
    assert finding["details"]["transaction"] == "0:1"
    case.run(command_in(finding["mend"], "geminga transactions abort"))
    assert len(peer.messages()) == 3
    assert case.stopping() == []


def test_an_open_transaction_stops_nothing_while_messages_before_it_wait_for_their_consumer(case):
    peer = case.subscribe(permits=1, consumer_name="slow")
    case.publish(2)
    txn = case.begin()
    case.publish_in(txn)
    case.publish(1, wait=60)
    peer.command("ping")
    assert case.stopping() == ["paused"]
    assert case.finding("transaction")["level"] == Trouble.WATCH


def test_messages_behind_an_open_transaction_are_no_trouble_without_a_consumer(case):
    case.create()
    txn = case.begin()
    case.publish_in(txn)
    case.publish(1, wait=60)
    found = case.explain()
    assert (found["trouble"], case.stopping()) == (Trouble.NOTHING_WAITS, [])
    assert case.finding("transaction")


def test_aborted_messages_behind_an_open_transaction_are_not_counted(case):
    case.subscribe()
    first, second = case.begin(), case.begin()
    case.publish_in(first)
    case.publish_in(second)
    assert "1 message waits behind" in case.finding("transaction")["text"]
    case.end(second, commit=False)
    assert [each["kind"] for each in case.explain()["findings"]] == ["caught-up"]


@pytest.mark.parametrize("kind", TYPES)
def test_acknowledgements_in_an_open_transaction_are_not_blamed_on_the_consumer(case, kind):
    peer = case.subscribe(kind, permits=2, consumer_name="worker")
    case.publish(2)
    txn = case.begin()
    case.harness.advance(70)
    peer.ack((0, 0), (0, 1), txn=txn)
    peer.command("ping")
    found = case.explain()
    assert found["facts"]["messagesInBacklog"] == 2
    case.harness.advance(70)
    peer.command("ping")
    found = case.explain()
    assert [one["kind"] for one in found["findings"] if one["level"] >= Trouble.WATCH] == ["transaction-acks"]
    assert found["summary"].startswith("2 messages are acknowledged in transaction 0:1 (open since ")
    assert "they count as unacknowledged until the commit" in found["summary"]
    case.end(txn)
    assert case.explain()["summary"] == "everything is acknowledged"


@pytest.mark.parametrize("kind", TYPES)
def test_what_a_new_consumer_does_not_get_because_of_an_open_transaction_is_explained(case, kind):
    peer = case.subscribe(kind)
    case.producer.send(0, case.make_entry(num_messages_in_batch=6), messages=6)
    txn = case.begin()
    peer.ack((0, 0), ack_set=(0b011010,), txn=txn)
    peer.disconnect()
    peer = case.subscribe(kind)
    case.harness.advance(40)
    peer.command("ping")
    assert not peer.messages()
    finding = case.stops("transaction-acks", "3 messages are acknowledged in transaction 0:1")
    assert case.stopping() == ["transaction-acks"]
    case.run(command_in(finding["mend"], "geminga transactions abort"))
    assert len(peer.messages()) == 1
    assert case.stopping() == []


def test_a_hole_that_is_acknowledged_in_a_transaction_says_so(case):
    peer = case.subscribe()
    case.publish(3)
    txn = case.begin()
    peer.ack((0, 0), txn=txn)
    peer.ack((0, 1), (0, 2))
    finding = case.finding("hole")
    assert finding["text"].endswith("; acknowledged in transaction 0:1, which is not committed")
    assert command_in(finding["mend"], "geminga transactions abort") == "geminga transactions abort 0:1"
    case.end(txn)
    assert case.explain()["summary"] == "everything is acknowledged"


def test_messages_behind_a_cumulative_acknowledgement_in_a_transaction_are_counted(case):
    peer = case.subscribe("Exclusive")
    case.publish(5)
    txn = case.begin()
    peer.ack((0, 3), cumulative=True, txn=txn)
    assert "4 messages are acknowledged in transaction 0:1" in case.finding("transaction-acks")["text"]
    peer.disconnect()
    peer = case.subscribe("Exclusive")
    assert len(peer.messages()) == 1
    assert case.explain()["facts"]["messagesHeld"] == 1


def test_messages_acknowledged_in_a_transaction_do_not_wait_for_a_consumer_without_permits(case):
    peer = case.subscribe()
    case.publish(2)
    peer.ack((0, 0), (0, 1), txn=case.begin())
    peer.disconnect()
    case.subscribe(permits=0)
    case.harness.advance(40)
    assert case.stopping() == ["transaction-acks"]
    assert not case.finding("no-permits")["stops"]
