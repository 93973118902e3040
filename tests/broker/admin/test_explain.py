"""Causes of a subscription that does not receive: each is found, named, and its advice works."""

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from doubles import raising

from geminga.broker.admin import facts
from geminga.broker.delivery import delayed, shared
from geminga.cli.explain import as_text
from geminga.client.admin.types import Explanation
from geminga.diagnosis.commands import shell_command
from geminga.diagnosis.conclude import CONSUMERS_NAMED_MAX, REDELIVERIES, Trouble
from geminga.errors import StoreError
from geminga.ids import MessageId, TopicName
from geminga.ledger.damage import Damage, DamageLoss, EntriesDamaged
from geminga.records import decode
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, TOPIC

PASSING = {"delayed", "no-permits", "not-reading", "switching", "key-blocked"}
"""Findings that count as trouble only after some time."""
TYPES = ("Shared", "Key_Shared", "Exclusive", "Failover")


class Case:
    """A topic with a subscription ``s``, a producer, and the result of `explain`."""

    def __init__(self, harness: Any, make_entry: Callable[..., bytes]) -> None:
        self.harness = harness
        self.make_entry = make_entry
        self.producer = harness.peer()
        self.producer.producer(TOPIC)

    def publish(self, count: int = 1, **fields: Any) -> None:
        fields.setdefault("publish_time", self.harness.now_ms)
        for number in range(count):
            self.producer.send(number, self.make_entry(b"x" * 50, **fields))

    def subscribe(self, kind: str = "Shared", permits: int = 100, **fields: Any) -> Any:
        peer = self.harness.consumer(TOPIC, kind=kind, permits=permits, **fields)
        return peer

    def create(self) -> None:
        self.harness.actions.cursors.create(NAME, "s", MessageId.earliest, self.done)

    @staticmethod
    def done(error: Exception | None) -> None:
        assert error is None

    def explain(self) -> dict[str, Any]:
        found = self.harness.actions.cursors.explain(NAME, "s")
        json.dumps(found)
        assert "\n" not in found["summary"]
        assert len(as_text(decode(Explanation, found)).splitlines()) <= 25, "one screen"
        stopping = {each["kind"] for each in found["findings"] if each["stops"]}
        quota = any(
            each["kind"] == "quota" and each["details"]["subscription"] == "s" for each in found["findings"]
        )
        assert found["trouble"] == facts.trouble(*self.harness.actions.cursors.found(NAME, "s")), (
            "as in the overview"
        )
        if found["trouble"] >= Trouble.STOPPED:
            assert stopping or quota, "the level agrees with the findings"
        else:
            assert stopping <= PASSING or found["trouble"] == Trouble.IDLE, found["findings"]
        return dict(found)

    def finding(self, kind: str) -> dict[str, Any]:
        found = [each for each in self.explain()["findings"] if each["kind"] == kind]
        assert len(found) == 1, self.explain()["findings"]
        return dict(found[0])

    def stopping(self) -> list[str]:
        return [each["kind"] for each in self.explain()["findings"] if each["stops"]]

    def run(self, command: str) -> None:
        """Do what ``geminga topics ...`` and ``geminga subscriptions ...`` do."""
        for one in command.split(" && "):
            words = shlex.split(one)
            assert words[:2] in (["geminga", "topics"], ["geminga", "subscriptions"]), command
            _run(self.harness, words[2], words[3:])


def _run(harness: Any, name: str, words: list[str]) -> None:
    actions, done = harness.actions, Case.done
    assert words[0] == TOPIC
    if name == "unload":
        actions.unload(NAME)
    elif name == "skip":
        ledger, entry = words[words.index("--message") + 1].split(":")
        actions.cursors.skip_entry(NAME, words[1], MessageId(-1, int(ledger), int(entry)), done)
    elif name == "redeliver-unacked":
        properties = {"redeliver-unacked-after-seconds": words[2]}
        actions.cursors.set_properties(NAME, words[1], properties, done)
    elif name == "policy":
        fields = {
            "maxUnackedMessagesOnConsumer": "max_unacked_messages_per_consumer",
            "maxUnackedMessagesOnSubscription": "max_unacked_messages_per_subscription",
            "delayedDelivery": "delayed_delivery_policies",
        }
        harness.broker.namespaces.set_topic_policy(NAME, fields[words[1]], json.loads(words[2]), done)
    elif name == "reset":
        actions.cursors.reset(NAME, words[1], done, position=MessageId.earliest, excluded=False)
    elif name == "expire":
        ledger, entry = words[words.index("--to") + 1].split(":")
        actions.cursors.expire_to(
            NAME, words[1], MessageId(-1, int(ledger), int(entry)), done, excluded=False
        )
    else:
        raise AssertionError(f"no command {name}")
    harness.poll()


def command_in(text: str, start: str) -> str:
    """The command that begins so in a finding's ``mend``."""
    found = re.search(rf"{re.escape(start)}[^;]*", text)
    assert found is not None, text
    return found[0].strip()


@pytest.fixture
def case(harness, make_entry):
    return Case(harness, make_entry)


def test_a_fully_acknowledged_subscription_is_reported_as_caught_up(case):
    peer = case.subscribe()
    case.publish(2)
    peer.ack((0, 0), (0, 1))
    found = case.explain()
    assert found["summary"] == "everything is acknowledged"
    assert [each["kind"] for each in found["findings"]] == ["caught-up"]
    assert found["facts"]["messagesInBacklog"] == 0
    assert found["facts"]["oldestOpenMessage"] == "end"
    case.harness.actions.topic(NAME).terminate(case.done)
    assert "terminated" in case.finding("caught-up")["text"]


def test_delivered_messages_that_await_acknowledgement_are_no_problem(case):
    case.subscribe()
    case.publish(2)
    found = case.explain()
    assert found["findings"] == []
    assert found["summary"] == "all messages are delivered, and wait to be acknowledged"
    assert (found["facts"]["type"], found["facts"]["consumers"]) == ("Shared", 1)


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
    finding = case.finding("no-permits")
    assert finding["stops"]
    assert "consumer 'idle' at /10.0.0.1:4242 never asked for messages" in finding["text"]
    peer.command("flow", consumer_id=1, messagePermits=5)
    assert not case.stopping()


@pytest.mark.parametrize("kind", TYPES)
def test_a_consumer_that_stopped_asking_for_messages_is_reported(case, kind):
    peer = case.subscribe(kind, permits=2)
    case.publish(5, partition_key="k")
    assert case.stopping() == ["no-permits"]
    case.harness.advance(45)
    peer.command("ping")
    finding = case.finding("paused")
    assert finding["stops"]
    assert "it last asked for messages 45 s ago" in finding["text"]
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
    finding = case.finding("not-reading")
    assert finding["stops"]
    assert "does not read from its connection" in finding["text"]
    peer.writable = True
    assert case.stopping() == []


def test_a_consumer_at_its_limit_of_unacknowledged_messages_is_reported(make_harness, make_entry):
    case = Case(make_harness(unacked_messages_per_consumer_max=3), make_entry)
    peer = case.subscribe()
    case.publish(5)
    finding = case.finding("unacked-limit")
    assert finding["stops"]
    assert "holds 3 unacknowledged messages, 3 are allowed" in finding["text"]
    assert finding["details"]["limit"] == 3
    case.run(command_in(finding["mend"], "geminga topics policy"))
    peer.ack((0, 0), (0, 1))
    assert case.stopping() == []


def test_a_subscription_at_its_limit_of_unacknowledged_messages_is_reported(make_harness, make_entry):
    case = Case(make_harness(unacked_messages_per_subscription_max=4), make_entry)
    peer = case.subscribe()
    case.publish(6)
    finding = case.finding("unacked-limit")
    assert finding["stops"]
    assert "its consumers hold 4 unacknowledged messages" in finding["text"]
    case.run(command_in(finding["mend"], "geminga subscriptions redeliver-unacked"))
    assert case.harness.actions.cursors.found(NAME, "s")[1].cursor.properties
    case.harness.advance(80)
    assert {m.redelivery_count for m in peer.messages()} >= {1}


def test_delayed_messages_are_reported_with_the_next_time(case):
    peer = case.subscribe()
    case.publish(2, deliver_at_time=case.harness.now_ms + 90_000)
    finding = case.finding("delayed")
    assert finding["stops"]
    assert "2 entries are to be delivered later: the next at 2027-01-15T08:01:30.000Z" in finding["text"]
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
    ranges = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=0)])
    case.harness.consumer(
        TOPIC, kind="Key_Shared",
        keySharedMeta={"keySharedMode": pb.STICKY, "hashRanges": list(ranges.hashRanges)},
    )  # fmt: skip
    case.publish(1, partition_key="a")
    assert case.finding("key-unowned")["stops"]


def test_a_hole_is_reported_with_the_consumer_that_has_it(case):
    peer = case.subscribe(consumer_name="forgetful")
    case.publish(6)
    case.harness.advance(20)
    peer.ack(*[(0, entry) for entry in (0, 2, 3, 5)])
    finding = case.finding("hole")
    assert not finding["stops"]
    assert "message 0:1 is not acknowledged although 3 later ones are" in finding["text"]
    assert "consumer 'forgetful' at /10.0.0.1:4242 holds it; published 20 s ago" in finding["text"]
    assert finding["details"]["holes"] == 2
    case.run(command_in(finding["mend"], "geminga subscriptions skip"))
    assert "message 0:4 is not acknowledged although 1 later one is" in case.finding("hole")["text"]
    peer.messages()
    case.run(command_in(finding["mend"], "geminga subscriptions redeliver-unacked"))
    assert "redelivered after 60 s" in case.finding("hole")["text"]
    case.harness.advance(80)
    peer.command("ping")
    assert [m.entry_id for m in peer.messages()] == [4]


def test_a_hole_inside_a_batch_is_reported_with_its_indexes(case):
    peer = case.subscribe()
    case.producer.send(0, case.make_entry(num_messages_in_batch=6), messages=6)
    part = pb.MessageIdData(ledgerId=0, entryId=0, ack_set=[0b011010])
    peer.command("ack", consumer_id=1, ack_type=0, message_id=[part])
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


def test_a_quota_that_stops_the_producers_is_reported(make_harness, make_entry):
    case = Case(make_harness(backlog_quota_bytes=300), make_entry)
    peer = case.subscribe()
    case.publish(6)
    peer.ack(*[(0, entry) for entry in range(1, 6)])
    case.harness.advance(16)
    finding = case.finding("quota")
    assert "producers are stopped: backlog quota exceeded (producer_request_hold)" in finding["text"]
    assert "message is 0:0" in finding["text"]
    case.harness.actions.cursors.create(NAME, "other", MessageId.latest, case.done)
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


def test_a_failover_consumer_that_stands_by_is_reported(make_harness, make_entry):
    case = Case(make_harness(failover_delay_seconds=5), make_entry)
    case.subscribe("Failover", consumer_name="b")
    case.publish(1)
    case.subscribe("Failover", consumer_name="a", permits=0, priority_level=1)
    assert "consumer 'a' at /10.0.0.1:4242 is on standby: consumer 'b'" in case.finding("standby")["text"]


def test_a_failover_consumer_about_to_take_over_is_reported(make_harness, make_entry):
    case = Case(make_harness(failover_delay_seconds=5), make_entry)
    case.subscribe("Failover", consumer_name="old", priority_level=1)
    case.publish(2)
    case.subscribe("Failover", consumer_name="new", priority_level=0)
    finding = case.finding("switching")
    assert finding["stops"]
    assert "consumer 'new' at /10.0.0.1:4242 becomes active in a moment" in finding["text"]
    case.harness.advance(6)
    assert case.stopping() == []


def test_messages_that_are_held_for_two_minutes_are_reported(case):
    case.subscribe(consumer_name="worker-3")
    case.publish(3)
    assert case.explain()["trouble"] == Trouble.MOVING
    case.harness.advance(120)
    finding = case.finding("unacknowledged")
    assert (
        "consumer 'worker-3' at /10.0.0.1:4242 holds 3 messages, and has acknowledged none since 2027"
        in finding["text"]
    )
    found = case.explain()
    assert (found["trouble"], found["sentence"]) == (Trouble.WATCH, finding["text"])
    case.run(command_in(finding["mend"], "geminga subscriptions redeliver-unacked"))


@pytest.mark.parametrize("kind", TYPES)
def test_pending_messages_are_reported_for_every_type(case, kind):
    peer = case.subscribe(kind)
    case.publish(4)
    peer.ack((0, 0))
    assert case.explain()["facts"]["messagesHeld"] == 3


def test_consumers_without_permits_are_trouble_only_after_a_while(case):
    case.subscribe(permits=2)
    case.publish(5)
    found = case.explain()
    assert case.stopping() == ["no-permits"]
    assert (found["trouble"], found["sentence"]) == (
        Trouble.MOVING,
        "its consumers are busy: waiting messages are delivered as they ask for more",
    )
    case.harness.advance(6)
    found = case.explain()
    assert found["trouble"] == Trouble.GROWING
    assert found["sentence"] == found["summary"] == found["findings"][0]["text"]


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
    producer = harness.producer(f"persistent://public/default/{kind}")
    producer.publish(1)
    found = harness.actions.cursors.explain(TopicName.parse(f"persistent://public/default/{kind}"), "s")
    assert CONSUMERS_NAMED_MAX <= len(found["findings"]) <= CONSUMERS_NAMED_MAX + 2
    assert found["findings"][0]["stops"]


def test_a_consumer_that_acknowledges_nothing_is_reported_after_a_minute(case):
    peer = case.subscribe(permits=100_000, consumer_name="silent")
    for _ in range(80):
        case.publish(2)
        case.harness.advance(1)
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
        case.publish(3, partition_key="k")
        case.harness.advance(1)
        peer.command("ping")
        found = case.explain()
        assert not [each for each in found["findings"] if each["kind"] in ("paused", "no-permits")]
        assert found["trouble"] < Trouble.STOPPED
    assert found["trouble"] == Trouble.WATCH
    assert (
        "consumer 'slow' at /10.0.0.1:4242 is slower than the producers: 1.0/s against 3.0/s; 40 unackno"
        in (found["sentence"])
    )
    assert case.stopping() == []


def _fill_look_ahead(case: Case) -> tuple[Any, Any]:
    """Fill the look-ahead with entries of a Key_Shared consumer that holds its limit, beside another one."""
    case.harness.broker.namespaces.set_topic_policy(NAME, "max_unacked_messages_per_consumer", 50, case.done)
    case.harness.poll()
    slow = case.subscribe("Key_Shared", permits=10_000, consumer_name="slow")
    healthy = case.subscribe("Key_Shared", permits=100_000, consumer_name="healthy")
    delivered: list[Any] = []
    for number in range(12_000):
        case.publish(1, partition_key=f"key-{number % 200}")
        if number % 100 == 0:
            delivered = healthy.messages()
            healthy.ack(*[(each.ledger_id, each.entry_id) for each in delivered])
    healthy.ack(*[(each.ledger_id, each.entry_id) for each in healthy.messages()])
    case.harness.advance(15)
    healthy.command("ping")
    return slow, healthy


def test_a_full_look_ahead_names_the_consumer_that_fills_it(case):
    slow, healthy = _fill_look_ahead(case)
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
    other.ack(*[(each.ledger_id, each.entry_id) for each in other.messages()])
    case.harness.advance(10)
    found = case.explain()
    assert found["trouble"] == Trouble.GROWING
    assert re.search(
        r"consumer 'full' at .* takes no more: .*; [0-9]+ entries of its keys", found["sentence"]
    )
    assert case.stopping() == ["no-permits"]


def test_a_subscription_at_its_limit_of_delayed_messages_is_reported(case, monkeypatch):
    for module in (delayed, shared):
        monkeypatch.setattr(module, "DELAYED_MAX", 20)
    case.subscribe(permits=1000)
    case.publish(20, deliver_at_time=case.harness.now_ms + 3_600_000)
    case.publish(5)
    case.harness.advance(10)
    found = case.explain()
    assert (found["trouble"], case.stopping()) == (Trouble.GROWING, ["delayed-limit"])
    assert "20 entries are to be delivered later, the most that a subscription keeps" in found["sentence"]
    case.run(command_in(case.finding("delayed-limit")["mend"], "geminga topics policy"))
    assert len(case.subscribe(permits=1000).messages()) == 25


def test_advice_for_a_quota_frees_enough_for_producers_to_continue(make_harness, make_entry):
    """Skipping the oldest message alone frees too little: then it is not advised."""
    case = Case(make_harness(backlog_quota_bytes=2_000), make_entry)
    case.create()
    case.publish(60)
    case.harness.advance(16)
    assert case.explain()["trouble"] == Trouble.PRODUCERS_STOPPED
    (advice,) = case.finding("quota")["advice"]
    effects = advice["effects"]
    assert effects["producersContinue"]
    assert re.search(
        r"frees [0-9,]+ bytes, and producers continue; 0:0 alone frees [0-9,]+ bytes", advice["text"]
    )
    topic, subscription = case.harness.actions.cursors.found(NAME, "s")
    before, messages = topic.ledger.size_bytes, subscription.backlog
    case.run(advice["command"])
    assert messages - subscription.backlog == effects["messages"]
    assert before - topic.ledger.size_from(subscription.cursor.mark) == effects["frees"]
    case.producer.frames.clear()
    assert case.producer.producer(TOPIC).producer_ready


def test_advice_for_a_quota_names_another_subscription_that_exceeds_it(make_harness, make_entry):
    case = Case(make_harness(backlog_quota_bytes=2_000), make_entry)
    case.create()
    case.harness.actions.cursors.create(NAME, "t", MessageId.earliest, case.done)
    case.publish(60)
    case.harness.advance(16)
    held = case.harness.actions.cursors.found(NAME, "s")[0].quota_exceeded.subscription
    (advice,) = case.harness.actions.cursors.explain(NAME, held)["findings"][0]["advice"]
    other = "t" if held == "s" else "s"
    assert f"but subscription '{other}' exceeds the quota, too" in advice["text"]
    assert not advice["effects"]["producersContinue"]


def test_a_quota_that_is_no_longer_exceeded_is_not_reported(make_harness, make_entry):
    """Housekeeping notes an exceeded quota, and only later that it is not any more."""
    case = Case(make_harness(backlog_quota_bytes=2_000), make_entry)
    peer = case.subscribe()
    case.publish(60)
    case.harness.advance(16)
    assert case.explain()["trouble"] == Trouble.PRODUCERS_STOPPED
    peer.ack(*[(0, entry) for entry in range(60)])
    assert case.harness.actions.cursors.found(NAME, "s")[0].quota_exceeded is not None
    assert (case.explain()["trouble"], len(case.explain()["findings"])) == (Trouble.NOTHING_WAITS, 1)


def test_a_reader_is_not_asked_to_acknowledge(case):
    case.subscribe("Exclusive", durable=False)
    case.publish()
    case.harness.advance(100)
    found = case.explain()
    assert (found["trouble"], found["sentence"]) == (
        Trouble.MOVING,
        "all messages are delivered to its reader",
    )


def test_a_dispatch_rate_that_slows_delivery_is_named_while_messages_move(case):
    value = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    case.harness.broker.namespaces.set_topic_policy(
        NAME, "topicDispatchRate", {"standalone": value}, case.done
    )
    case.subscribe()
    case.publish(20)
    case.harness.advance(0.5)
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
    case.publish(3)
    case.harness.advance(1)
    case.harness.actions.cursors.expire(NAME, "s", case.done, seconds=0)
    case.harness.advance(200)
    assert case.explain()["sentence"] == (
        "everything is acknowledged or expired: 3 entries expired, the last 3 min ago"
    )


def test_a_subscription_whose_name_begins_with_a_dash_is_named_behind_two(case):
    assert shell_command("peek", TOPIC, "-s", options="-n 3") == f"geminga peek -n 3 -- {TOPIC} -s"
    assert shell_command("topics policy", TOPIC, "x", "-1") == f"geminga topics policy -- {TOPIC} x -1"
    case.subscribe(subscription="-s")
    case.publish()
    found = case.harness.actions.cursors.explain(NAME, "-s")
    assert all(
        " -- " in each["command"] for one in found["findings"] for each in one["advice"] if each["command"]
    )
