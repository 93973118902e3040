"""Simulated histories of a subscription: the diagnosis agrees with its clients, and advice does what it says.

A seed decides the settings and every step of producers and consumers. The history keeps its own record of
what clients sent and received; the diagnosis is compared with that record alone. A copy of the broker is made
by repeating the steps: advice is executed there, and a subscription that is called stopped is left alone.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from geminga.broker.admin import facts
from geminga.broker.delivery import delivery_times, key_shared
from geminga.broker.runtime.cooperative import at_once
from geminga.diagnosis.conclude import QUIET_SECONDS, STUCK_SECONDS, Trouble, diagnose
from geminga.diagnosis.pulsar import facts_from_stats
from geminga.ids import MessageId
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.admin.geminga_commands import run_commands
from tests.broker.conftest import NAME, TOPIC
from tests.support.disk_stores import succeeded

TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
STEPS = 45
HABITS = ("good", "good", "slow", "silent", "paused")
Step = tuple[Any, ...]
Id = tuple[int, int]


class Consumer:
    def __init__(self, peer: Any, name: str, habit: str) -> None:
        self.peer = peer
        self.name = name
        self.habit = habit
        self.held: dict[Id, None] = {}
        self.owed = 0
        """Messages received since its last FLOW."""
        self.acked_at = -float("inf")


class World:
    """A broker, its clients, and the record of what they sent and received."""

    def __init__(self, kind: str, settings: dict[str, Any], make: Any, entry: Any) -> None:
        self.kind, self.settings, self.make, self.entry = kind, settings, make, entry
        self.harness = make(**settings)
        self.steps: list[Step] = []
        self.consumers: dict[str, Consumer] = {}
        self.published: dict[Id, float] = {}
        """Ids of messages, and when each is due."""
        self.acked: set[Id] = set()
        self.open: dict[tuple[int, int], tuple[list[Id], list[Id]]] = {}
        """Open transactions: the messages that they publish, and those that they acknowledge."""
        self.times: Counter[Id] = Counter()
        self.delivered_at = self.acked_at = self.waiting_since = -float("inf")
        self.transactions = False
        """Whether steps of transactions are drawn."""
        self.actions.create(NAME, succeeded)
        self.actions.cursors.create(NAME, "s", MessageId.earliest, succeeded)
        self.actions.cursors.create(NAME, "other", MessageId.earliest, succeeded)
        self.harness.poll()
        self.producer: Any = None

    def copy(self) -> World:
        """The same world on a broker of its own: all steps are repeated."""
        found = World(self.kind, self.settings, self.make, self.entry)
        for step in self.steps:
            found.do(*step)
        return found

    @property
    def actions(self) -> Any:
        return self.harness.actions

    @property
    def now(self) -> float:
        return float(self.harness.now)

    def do(self, name: str, *arguments: Any) -> None:
        self.steps.append((name, *arguments))
        getattr(self, name)(*arguments)
        self.collect()

    def collect(self) -> None:
        for consumer in self.consumers.values():
            for each in consumer.peer.messages():
                self.times[each.ledger_id, each.entry_id] += 1
                consumer.held[each.ledger_id, each.entry_id] = None
                consumer.owed += 1
                self.delivered_at = self.now
        waiting = self.waiting()
        if not waiting:
            self.waiting_since = float("inf")
        elif self.waiting_since == float("inf"):
            self.waiting_since = self.now

    # --- steps ---
    def publish(self, count: int, keys: int, delay: int) -> None:
        if self.producer is None or self.producer.take(pb.BaseCommand.CLOSE_PRODUCER):
            self.producer = self.harness.peer()
            answer = self.producer.request("producer", topic=TOPIC, producer_id=1)
            if answer.type != pb.BaseCommand.PRODUCER_SUCCESS:
                self.producer = None
                return
        for number in range(count):
            fields = {"deliver_at_time": self.harness.now_ms + delay * 1000} if delay else {}
            key = f"key-{(number * 7 + len(self.published)) % keys}"
            entry = self.entry(b"x" * 40, publish_time=self.harness.now_ms, partition_key=key, **fields)
            self.producer.send(0, entry)
        self.publish_receipts(self.published, self.now + delay)

    def publish_receipts(self, found: dict[Id, float], due: float) -> None:
        found.update({(each.ledger_id, each.entry_id): due for each in self.producer.receipts()})

    def begin(self) -> None:
        self.open[self.harness.peer().begin_transaction(24 * 3600 * 1000)] = [], []

    def publish_in(self, txn: tuple[int, int]) -> None:
        if self.producer is None or self.producer.take(pb.BaseCommand.CLOSE_PRODUCER):
            self.publish(0, 1, 0)
        if self.producer is not None:
            self.producer.send(0, self.entry(b"x", publish_time=self.harness.now_ms), transaction=txn)
            stored: dict[Id, float] = {}
            self.publish_receipts(stored, 0)
            self.open[txn][0].extend(stored)

    def ack_in(self, txn: tuple[int, int], name: str, ids: tuple[Id, ...]) -> None:
        self.consumers[name].peer.ack(*ids, txn=txn)
        self.open[txn][1].extend(ids)
        self.let_go(name, ids)

    def end(self, txn: tuple[int, int], commit: bool) -> None:
        assert not self.harness.peer().end_transaction(txn, commit=commit).HasField("error")
        published, acked = self.open.pop(txn)
        if commit:
            self.published.update(dict.fromkeys(published, self.now))
            self.acked.update(acked)
        self.acked_at = self.now  # the entries of an aborted one count as acknowledged

    def join(self, name: str, permits: int, habit: str) -> None:
        peer = self.harness.peer()
        try:
            peer.subscribe(TOPIC, kind=self.kind, permits=permits, consumer_name=name)
        except AssertionError:
            return  # an Exclusive consumer is there already
        self.consumers[name] = Consumer(peer, name, habit)

    def leave(self, name: str) -> None:
        self.consumers.pop(name).peer.disconnect()

    def flow(self, name: str, permits: int) -> None:
        consumer = self.consumers[name]
        consumer.owed = 0
        consumer.peer.command("flow", consumer_id=1, messagePermits=permits)

    def ack(self, name: str, ids: tuple[Id, ...]) -> None:
        self.consumers[name].peer.ack(*ids)
        self.acked.update(ids)
        self.let_go(name, ids)

    def let_go(self, name: str, ids: tuple[Id, ...]) -> None:
        """The consumer has acknowledged these messages."""
        for each in self.consumers.values():
            for acked in ids:
                each.held.pop(acked, None)
        self.consumers[name].acked_at = self.acked_at = self.now

    def nack(self, name: str) -> None:
        consumer = self.consumers[name]
        consumer.held.clear()
        consumer.peer.command("redeliverUnacknowledgedMessages", consumer_id=1)

    def reads(self, name: str, does: bool) -> None:
        peer = self.consumers[name].peer
        peer.writable = does
        if does:
            peer.session.writable_again(self.now)
            self.harness.poll()

    def advance(self, seconds: float) -> None:
        self.harness.advance(seconds)
        for consumer in self.consumers.values():
            consumer.peer.command("ping")

    def unload(self) -> None:
        self.actions.unload(NAME)
        self.consumers.clear()
        self.producer = None

    def command(self, text: str) -> None:
        """Execute what ``geminga`` would."""
        if "unload" in run_commands(self.harness, text):
            self.consumers.clear()

    # --- questions ---
    def receivers(self) -> list[Consumer]:
        """Those that messages are sent to: of Exclusive and Failover one."""
        if self.kind in ("Shared", "Key_Shared"):
            return list(self.consumers.values())
        active = self.actions.cursors.found(NAME, "s")[1].dispatcher
        return [each for each in self.consumers.values() if active and each.name == active.active.name]

    def waiting(self) -> set[Id]:
        """Messages that are due, not acknowledged, and with no consumer that receives."""
        held = {id_ for consumer in self.receivers() for id_ in consumer.held}
        held |= self.acked_in_transactions() | (set() if self.consumers else self.behind_transactions())
        return {each for each, due in self.published.items() if due <= self.now} - self.acked - held

    def acked_in_transactions(self) -> set[Id]:
        return {id_ for _, acked in self.open.values() for id_ in acked}

    def behind_transactions(self) -> set[Id]:
        """Messages behind the first one of an open transaction."""
        first = min((id_ for published, _ in self.open.values() for id_ in published), default=(1 << 60, 0))
        return {each for each in self.published if each > first}

    def explain(self) -> dict[str, Any]:
        found = self.actions.cursors.explain(NAME, "s")
        json.dumps(found)
        return dict(found)


# --- drawing a history ---
def make_world(random: Random, make: Any, entry: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    settings: dict[str, Any] = {"failover_delay_seconds": random.choice((0, 1))}
    if random.random() < 0.4:
        settings["unacked_messages_per_consumer_max"] = random.choice((3, 10))
    if random.random() < 0.3:
        settings["unacked_messages_per_subscription_max"] = random.choice((5, 20))
    if random.random() < 0.4:
        settings["backlog_quota_bytes"] = random.choice((1_000, 5_000))
    if random.random() < 0.1:
        settings["topic_dispatch_rate_messages"] = 1
    monkeypatch.setattr(key_shared, "LOOK_AHEAD_PER_CONSUMER_MAX", random.choice((5, 2_000)))
    monkeypatch.setattr(delivery_times, "RUN_ENTRIES", random.choice((6, 2_048)))
    world = World(random.choice(TYPES), settings, make, entry)
    world.transactions = random.random() < 0.5
    return world


def draw(random: Random, world: World, number: int) -> Step | None:
    """The next step."""
    choice = random.random()
    names = list(world.consumers)
    if world.transactions and random.random() < 0.25:
        return draw_of_transactions(random, world, names)
    if choice < 0.25 and not world.actions.cursors.found(NAME, "s")[0].quota_exceeded:
        delay = random.choice((0, 0, 0, 0, 20, 300))
        return "publish", random.choice((1, 5, 30)), random.choice((1, 3, 50)), delay
    if choice < 0.37 and len(names) < 4:
        return "join", f"c{number}", random.choice((0, 1, 10, 1000)), random.choice(HABITS)
    if choice < 0.40 and names:
        return "leave", random.choice(names)
    if choice < 0.44 and names:
        return "reads", random.choice(names), random.random() < 0.5
    if choice < 0.46 and names:
        return "nack", random.choice(names)
    if choice < 0.47:
        return ("unload",)
    if choice < 0.75 and names:
        return act(random, world.consumers[random.choice(names)])
    return "advance", random.choice((0.1, 1, 4, 6, 15, 31, 70))


def draw_of_transactions(random: Random, world: World, names: list[str]) -> Step | None:
    choice, refused = random.random(), world.actions.cursors.found(NAME, "s")[0].quota_exceeded
    if not world.open or choice < 0.2:
        return ("begin",)
    txn = random.choice(list(world.open))
    if choice < 0.5 and not refused:
        return "publish_in", txn
    if choice < 0.8 and names:
        name = random.choice(names)
        held = tuple(world.consumers[name].held)
        return ("ack_in", txn, name, held[: random.choice((1, 5))]) if held else None
    return "end", txn, random.random() < 0.5


def act(random: Random, consumer: Consumer) -> Step | None:
    """A step of a consumer, by its habit."""
    held = tuple(consumer.held)
    if consumer.habit == "good" and held:
        return "ack", consumer.name, held
    if consumer.habit == "slow" and held and random.random() < 0.7:
        return "ack", consumer.name, held[: random.choice((1, 2))]
    if consumer.habit != "paused" and consumer.owed:
        return "flow", consumer.name, consumer.owed
    return None


# --- properties ---
def check(world: World) -> dict[str, Any]:
    found = world.explain()
    now, names = world.now, list(world.consumers)
    level, findings = found["trouble"], found["findings"]
    topic, subscription = world.actions.cursors.found(NAME, "s")
    assert level == facts.trouble(topic, subscription), "as in the overview and the metrics"
    quiet_since = max(world.delivered_at, world.acked_at, world.waiting_since)
    stopping = [each for each in findings if each["stops"]]
    assert not any(each["kind"] == "undelivered" for each in findings), "each cause is known"
    taking_over = any(each["kind"] == "switching" for each in findings)
    if world.waiting() and now - quiet_since >= QUIET_SECONDS and not taking_over:
        assert level >= Trouble.STOPPED or (level == Trouble.IDLE and not names), found
        assert stopping, found
        text = " ".join(each["text"] for each in stopping)
        named = any(f"'{name}'" in text for name in names)
        if not names:
            assert stopping[0]["kind"] == "nobody-connected", found
        else:
            known = {"behind the first message of transaction", "its consumers hold"}
            known |= {"entries are to be delivered later", "a dispatch rate"}
            assert named or any(each in text for each in known), found
    for consumer in world.consumers.values():
        if now - consumer.acked_at < QUIET_SECONDS:
            for each in findings:
                assert each["kind"] != "paused" or each["details"]["consumer"] != consumer.name, found
    if not subscription.backlog and not any(each["kind"] == "transaction" for each in findings):
        assert level == Trouble.NOTHING_WAITS, found
    check_from_stats(world, quiet_since, taking_over)
    return found


def check_from_stats(world: World, quiet_since: float, taking_over: bool) -> None:
    """The same from the JSON of stats, as if the broker were an Apache Pulsar: with less knowledge."""
    actions, now = world.actions, world.now
    stats = json.loads(json.dumps(actions.stats(NAME)))
    inside = json.loads(json.dumps(at_once(actions.internal_stats(NAME))))
    found = diagnose(facts_from_stats(TOPIC, "s", stats, inside, world.harness.now_ms))
    for consumer in world.consumers.values():
        if now - consumer.acked_at < QUIET_SECONDS:
            for each in found.findings:
                assert each.kind != "paused" or each.details["consumer"] != consumer.name, found.findings
    delays = world.actions.cursors.found(NAME, "s")[0].policies.delayed_delivery
    if stats["msgRateIn"] or stats["subscriptions"]["s"].get("msgDelayed") or not delays or taking_over:
        return  # without the time of a publication a message may just have come
    if world.open:
        return  # Apache Pulsar counts the messages of open transactions
    if world.waiting() and now - quiet_since >= QUIET_SECONDS:
        assert found.level >= Trouble.STOPPED or not world.consumers, found.findings
        named = [each.text for each in found.findings if each.stops]
        names = [*world.consumers, "no consumer is connected", "its consumers hold"]
        assert any(name in text for name in names for text in named), found.findings


def stopped_is_stopped(world: World) -> None:
    """Left alone, a subscription that is called stopped delivers nothing."""
    copy = world.copy()
    before = sum(copy.times.values())
    due = any(world.now - 1 < when <= world.now + STUCK_SECONDS for when in world.published.values())
    if not due and "topic_dispatch_rate_messages" not in world.settings:
        copy.do("advance", STUCK_SECONDS - 1)
        assert sum(copy.times.values()) == before, world.explain()


def try_advice(world: World, finding: dict[str, Any], advice: dict[str, Any]) -> str:
    """Execute the command on a copy; returns the effect that was checked."""
    copy, effects = world.copy(), advice["effects"]
    topic, subscription = copy.actions.cursors.found(NAME, "s")
    kept = topic.ledger.size_from(subscription.wanted_from)
    backlog, times = subscription.backlog, dict(copy.times)
    held = {id_ for each in copy.receivers() for id_ in each.held} - copy.acked
    if "closes" in effects:
        copy.do("leave", effects["closes"])
    elif advice["command"]:
        copy.command(advice["command"])
    copy.collect()
    if "frees" in effects:
        assert kept - topic.ledger.size_from(subscription.wanted_from) == effects["frees"]
    if effects.get("messages", -1) >= 0:
        assert backlog - subscription.backlog == effects["messages"]
    if "producersContinue" in effects:
        assert (topic.check_quota() is None) == effects["producersContinue"]
    if "redelivers" in effects or "delivers" in effects:
        copy.kind, copy.settings = world.kind, world.settings
        copy.do("join", "new", 100_000, "good")
        copy.do("advance", 3)
        # A limit of unacknowledged messages stops deliveries before all are delivered.
        is_limited = any(each["kind"] == "unacked-limit" for each in copy.explain()["findings"])
        if "topic_dispatch_rate_messages" not in world.settings and not is_limited:
            again = [each for each in copy.times if copy.times[each] > times.get(each, 0)]
            wanted = held if "redelivers" in effects else set(copy.published) - copy.acked
            wanted = wanted - copy.behind_transactions() - copy.acked_in_transactions()
            assert wanted <= set(again), wanted - set(again)
    if "redeliversLater" in effects:
        copy.do("advance", 80)
        rate_limited = "topic_dispatch_rate_messages" in world.settings
        assert rate_limited or sum(copy.times.values()) > sum(times.values())
    if "resumes" in effects and "topic_dispatch_rate_messages" not in world.settings:
        delays = any(each["kind"].startswith("delayed") for each in copy.explain()["findings"])
        assert delays or sum(copy.times.values()) > sum(times.values()), "messages are delivered at once"
    if "closes" in effects:
        names = [each["details"].get("consumer") for each in copy.explain()["findings"]]
        assert effects["closes"] not in names
    return next(iter(effects), "")


def run(seed: int, make: Any, entry: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """One history. Returns how often each kind, level and effect was seen."""
    random, seen = Random(seed), Counter[str]()
    world = make_world(random, make, entry, monkeypatch)
    for number in range(STEPS):
        step = draw(random, world, number)
        if step is None:
            continue
        world.do(*step)
        found = check(world)
        seen.update({each["kind"] for each in found["findings"]})
        seen[Trouble(found["trouble"]).name] += 1
        if number % 15 != 14:
            continue
        if found["trouble"] in (Trouble.STOPPED, Trouble.GROWING):
            stopped_is_stopped(world)
        for finding in found["findings"]:
            for advice in finding["advice"]:
                if advice["effects"]:
                    seen[f"advice: {try_advice(world, finding, advice)}"] += 1
    return seen


@pytest.mark.simulation(12, 6)
def test_the_diagnosis_agrees_with_the_clients_in_every_history(seeds, make_harness, make_entry, monkeypatch):
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += run(seed, make_harness, make_entry, monkeypatch)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    if len(seeds) >= 30:
        for kind in ("paused", "unacked-limit", "nobody-connected", "slow", "advice: redelivers"):
            assert seen[kind], "the histories reach every cause"
