"""Broker state driven between single slices of a turn, against a plain model.

Each topic has a client that asks for one thing after another and knows what must hold then. The clients run
beside each other, and beside somebody who unloads topics, changes policies and settings and lets time pass.
A seed decides who goes on, and how much a turn of the loop has time for: often for one item. So whatever is
worked off in slices is met half done. What the model says must hold at each look, at the end, and for
another broker on the same store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any

import pytest

from geminga.broker.admin.errors import AdminError
from geminga.broker.topics.looks import ROUND_SECONDS
from geminga.errors import StoreError
from geminga.ids import MessageId, TopicName
from geminga.ledger import memory as memory_module
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.testing.faulty_filesystem import Fate, FaultyFileSystem, SimulatedDisk
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import Peer, entry_bytes
from tests.broker.sliced import Sliced

Command = pb.BaseCommand
Wait = Generator[Callable[[], object], None, None]
SETTINGS = StoreSettings(
    log_file_bytes=16_384,
    preallocate_bytes=1024,
    cache_bytes=2_000,
    checkpoint_records=60,
    checkpoint_state_bytes=20_000,
    rewrite_live_fraction=0.6,
    garbage_bytes_min=1,
    deletion_delay_seconds=0.0,
)


class Client:
    """What one topic is to hold. ``messages`` are payloads in order; each subscription has a set of those
    that it has acknowledged."""

    def __init__(self, world: World, text: str) -> None:
        self.world = world
        self.random = world.random
        self.name = TopicName.parse(f"persistent://public/{text}")
        self.text = str(self.name)
        self.exists = False
        self.messages: list[bytes] = []
        self.subscriptions: dict[str, set[bytes]] = {}
        self.peer: Peer | None = None
        self.serial = 0
        self.is_between = True
        """Nothing was asked for that is not answered."""
        self.done: list[str] = []

    @property
    def actions(self) -> Any:
        return self.world.harness.actions

    def admin(self, what: str, call: Callable[..., object], *arguments: Any, **options: Any) -> Wait:
        """Ask for something durable and wait for it."""
        said: list[StoreError | None] = []
        self.done.append(what)
        self.world.harness.call(lambda: call(*arguments, said.append, **options))
        yield lambda: said
        assert said == [None], (what, said)
        self.world.told.append(said)

    # --- what there is, from memory or the store ---
    def topic(self) -> Any:
        found = self.world.harness.broker.topics.find(self.name)
        assert found is not None, self.text
        return found

    def stored(self) -> list[bytes]:
        ledger = self.topic().ledger
        return [payload(ledger.read_one(at)) for at in range(ledger.start, ledger.confirmed)]

    def look(self) -> None:
        """That the topic is what the model says."""
        broker = self.world.harness.broker
        assert broker.topics.is_stored(self.name) == self.exists, (self.text, self.done[-5:])
        if not self.exists:
            return
        topic = self.topic()
        ledger = topic.ledger
        stored = self.stored()
        assert stored == self.messages[len(self.messages) - len(stored) :], (self.text, self.done[-5:])
        gone = self.messages[: len(self.messages) - len(stored)]
        found = {name: each for name, each in topic.subscriptions.items() if each.durable}
        assert found.keys() == self.subscriptions.keys(), (self.text, self.done[-5:])
        for name, subscription in found.items():
            acked = self.subscriptions[name]
            assert acked.issuperset(gone), (self.text, name, "a message that was not acknowledged is gone")
            cursor = subscription.cursor
            left = {
                payload(ledger.read_one(at))
                for at in range(max(cursor.mark, ledger.start), ledger.confirmed)
                if cursor.next_open(at) == at
            }
            assert left == set(stored) - acked, (self.text, name, self.done[-5:])

    def look_at_keys(self) -> None:
        """That nothing is left of a topic that is gone."""
        if not self.exists:
            store = self.world.harness.store
            kinds = ("topic/", "ledgers/", "cursor/", "counts/", "dedup/", "topic-policies/")
            assert [key for kind in kinds for key in store.names(f"{kind}{self.text}")] == []
            assert not store.ledgers(self.text)

    # --- what it asks for ---
    def run(self) -> Wait:
        while not self.world.is_ending:
            self.is_between = True
            yield lambda: True
            self.is_between = False
            if not self.exists:
                yield from self.create()
                continue
            choices = [
                self.publish, self.publish, self.subscribe, self.consume, self.consume, self.skip, self.seek,
                self.unload, self.trim, self.truncate, self.unsubscribe, self.delete, self.look_now,
                self.policy, self.expire,
            ]  # fmt: skip
            yield from self.random.choice(choices)()

    def look_now(self) -> Wait:
        self.look()
        yield lambda: True

    def create(self) -> Wait:
        yield from self.admin("create", self.actions.create, self.name)
        self.exists = True

    def delete(self) -> Wait:
        if self.random.random() < 0.2:
            yield from self.admin("delete", self.actions.delete, self.name, True)
            self.exists, self.messages, self.subscriptions = False, [], {}
            self.peer = None

    def publish(self) -> Wait:
        self.done.append("publish")
        peer = self.peer = self.world.harness.peer(connect=False)
        peer.command("connect", client_version="test", protocol_version=21)
        peer.command("producer", topic=self.text, producer_id=1, request_id=1)
        answers: list[Any] = []

        def answered(*kinds: int) -> Callable[[], object]:
            def is_there() -> object:
                answers.extend(each for kind in kinds for each in peer.take(kind))
                return answers

            return is_there

        yield answered(Command.PRODUCER_SUCCESS, Command.ERROR)
        assert answers[0].type == Command.PRODUCER_SUCCESS, answers[0].command
        count = self.random.randrange(1, 8)
        sent = []
        for number in range(count):
            self.serial += 1
            sent.append(b"%s/%d" % (self.name.local.encode(), self.serial))
            peer.send(number, entry_bytes(sent[-1], publish_time=self.world.harness.now_ms))
        receipts: list[Any] = []

        def all_receipted() -> bool:
            receipts.extend(peer.receipts())
            return len(receipts) == count or bool(peer.take(Command.CLOSE_PRODUCER))

        yield all_receipted
        receipts.extend(peer.receipts())
        assert not peer.take(Command.SEND_ERROR)
        assert [each.sequence_id for each in receipts] == list(range(len(receipts))), "receipts in order"
        ids = [(each.ledger_id, each.entry_id) for each in receipts]
        assert ids == sorted(set(ids))
        if len(receipts) < count:
            # It was unloaded meanwhile: the rest may have been taken in.
            self.world.harness.settle()
            late = len(peer.receipts())
            stored = self.stored()
            before = stored.index(sent[0]) if sent and sent[0] in stored else len(stored)
            assert stored[before:] == sent[: len(stored) - before]
            assert len(stored) - before >= len(receipts) + late, "what was receipted is there"
            sent = stored[before:]
        self.messages += sent
        if self.random.random() < 0.5:
            peer.disconnect()

    def subscribe(self) -> Wait:
        name = f"s{self.random.randrange(3)}"
        if name not in self.subscriptions:
            yield from self.admin(
                f"subscribe {name}", self.actions.create_subscription, self.name, name, MessageId.earliest
            )
            stored = set(self.stored())
            self.subscriptions[name] = set(self.messages) - stored

    def unsubscribe(self) -> Wait:
        if self.subscriptions and self.random.random() < 0.4:
            name = self.random.choice([*self.subscriptions])
            yield from self.admin(
                f"unsubscribe {name}", self.actions.delete_subscription, self.name, name, force=True
            )
            del self.subscriptions[name]

    def consume(self) -> Wait:
        """Receive what a subscription has left and acknowledge some of it."""
        if not self.subscriptions:
            return
        name = self.random.choice([*self.subscriptions])
        self.done.append(f"consume {name}")
        peer = self.world.harness.peer(connect=False)
        peer.command("connect", client_version="test", protocol_version=21)
        kind = self.random.choice(("Shared", "Exclusive", "Failover", "Key_Shared"))
        peer.command(
            "subscribe", topic=self.text, subscription=name, consumer_id=1, request_id=1,
            subType=pb.CommandSubscribe.SubType.Value(kind), initialPosition=1,
        )  # fmt: skip
        answers: list[Any] = []

        def subscribed() -> object:
            answers.extend([*peer.take(Command.SUCCESS), *peer.take(Command.ERROR)])
            return answers or peer.take(Command.CLOSE_CONSUMER)

        yield subscribed
        if not answers:
            return
        assert answers[0].type == Command.SUCCESS, answers[0].command
        peer.command("flow", consumer_id=1, messagePermits=1000)
        if self.random.random() < 0.5:
            yield from self.publish()  # and it is handed out as it comes
        left = set(self.messages) - self.subscriptions[name]
        found: list[tuple[bytes, tuple[int, int]]] = []
        is_over = False

        def received() -> bool:
            nonlocal is_over
            found.extend((payload(each.entry), (each.ledger_id, each.entry_id)) for each in peer.messages())
            is_over = is_over or bool(peer.take(Command.CLOSE_CONSUMER))
            return is_over or len(found) >= len(left)

        yield received
        payloads = [each for each, _ in found]
        assert len(payloads) == len(set(payloads)), (self.text, name, "received twice")
        assert set(payloads) <= left, (self.text, name, "acknowledged, and delivered again")
        if not is_over:
            assert set(payloads) == left
            chosen = [each for each in found if self.random.random() < 0.6]
            if chosen:
                cumulative = kind in ("Exclusive", "Failover") and self.random.random() < 0.5
                if cumulative:
                    last = max(place for _, place in chosen)
                    chosen = [each for each in found if each[1] <= last]
                    peer.ack(last, cumulative=True, request_id=2)
                else:
                    peer.ack(*(place for _, place in chosen), request_id=2)
                responses: list[Any] = []

                def confirmed() -> bool:
                    responses.extend(peer.take(Command.ACK_RESPONSE))
                    return bool(responses or peer.take(Command.CLOSE_CONSUMER))

                yield confirmed
                if not responses:
                    self.world.harness.settle()
                    responses = peer.take(Command.ACK_RESPONSE)
                acked = {each for each, _ in chosen}
                if responses:
                    assert not responses[0].command.ackResponse.HasField("error"), responses[0].command
                    self.subscriptions[name] |= acked
                else:
                    self._learn(name, acked)
        if self.random.random() < 0.5:
            peer.disconnect()
        else:
            peer.command("close_consumer", consumer_id=1, request_id=3)
            yield lambda: peer.take(Command.SUCCESS) or peer.take(Command.ERROR) or peer.is_closed
            peer.disconnect()

    def _learn(self, name: str, may_be: set[bytes]) -> None:
        """What was not confirmed may be either way."""
        cursor, ledger = self.topic().subscriptions[name].cursor, self.topic().ledger
        for at in range(ledger.start, ledger.confirmed):
            each = payload(ledger.read_one(at))
            if each in may_be and cursor.next_open(at) != at:
                self.subscriptions[name].add(each)
        self.subscriptions[name] |= may_be - set(self.stored())

    def skip(self) -> Wait:
        if not self.subscriptions:
            return
        name = self.random.choice([*self.subscriptions])
        left = [each for each in self.messages if each not in self.subscriptions[name]]
        if self.random.random() < 0.3:
            yield from self.admin(f"skip all {name}", self.actions.skip_all, self.name, name)
            self.subscriptions[name] = set(self.messages)
        else:
            count = self.random.randrange(1, 5)
            yield from self.admin(f"skip {name}", self.actions.skip, self.name, name, count)
            self.subscriptions[name].update(left[:count])

    def expire(self) -> Wait:
        """Skip everything up to a message."""
        if not self.subscriptions or not self.stored():
            return
        name = self.random.choice([*self.subscriptions])
        index, position = self._some()
        yield from self.admin(
            f"expire {name}", self.actions.expire_to, self.name, name, position, excluded=False
        )
        self.subscriptions[name].update(self.messages[: index + 1])

    def seek(self) -> Wait:
        if not self.subscriptions or not self.stored():
            return
        name = self.random.choice([*self.subscriptions])
        index, position = self._some()
        yield from self.admin(f"seek {name}", self.actions.reset_cursor, self.name, name, position=position)
        self.subscriptions[name] = set(self.messages[:index])

    def _some(self) -> tuple[int, MessageId]:
        ledger = self.topic().ledger
        at = self.random.randrange(ledger.start, ledger.confirmed)
        found = payload(ledger.read_one(at))
        return self.messages.index(found), MessageId(self.name.partition, *ledger.position(at))

    def unload(self) -> Wait:
        self.done.append("unload")
        self.world.harness.call(lambda: self.actions.unload(self.name))
        yield lambda: True

    def trim(self) -> Wait:
        self.done.append("trim")
        self.world.harness.call(lambda: self.actions.trim(self.name))
        yield lambda: True

    def truncate(self) -> Wait:
        if self.random.random() < 0.2:
            before = set(self.messages)
            yield from self.admin("truncate", self.actions.truncate, self.name)
            for acked in self.subscriptions.values():
                acked |= before

    def policy(self) -> Wait:
        field, value = self.random.choice(POLICIES)
        yield from self.admin(
            field, self.world.harness.broker.namespaces.set_topic_policy, self.name, field, value
        )


POLICIES = (
    ("max_producers_per_topic", 50), ("max_producers_per_topic", None), ("max_consumers_per_topic", 60),
    ("deduplicationEnabled", True), ("deduplicationEnabled", None),
    ("retention_policies", {"retentionSizeInMB": 10, "retentionTimeInMinutes": 5}),
    ("retention_policies", None),
)  # fmt: skip


def payload(entry: Any) -> bytes:
    return bytes(parse_entry(bytes(entry)).payload)


class Partitions:
    """A partitioned topic that comes, grows and goes: who has subscribed to one partition has to all."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.name = TopicName.parse("persistent://public/default/parted")
        self.count = 0
        self.subscriptions: set[str] = set()
        self.is_between = True
        self.done: list[str] = []

    @property
    def actions(self) -> Any:
        return self.world.harness.actions

    admin = Client.admin

    def run(self) -> Wait:
        while not self.world.is_ending:
            self.is_between = True
            yield lambda: True
            self.is_between = False
            if not self.count:
                count = self.random.randrange(1, 5)
                yield from self.admin("create", self.actions.create_partitioned, self.name, count)
                self.count = count
            elif self.random.random() < 0.3:
                yield from self.admin("delete", self.actions.delete, self.name, True)
                self.count, self.subscriptions = 0, set()
            elif self.random.random() < 0.5:
                count = self.count + self.random.randrange(0, 4)
                yield from self.admin(f"grow to {count}", self.actions.update_partitions, self.name, count)
                self.count = count
            else:
                name = f"s{self.random.randrange(3)}"
                if name not in self.subscriptions:
                    for index in range(self.count):
                        yield from self.admin(
                            "subscribe", self.actions.create_subscription, self.name.partition_name(index),
                            name, MessageId.earliest,
                        )  # fmt: skip
                    self.subscriptions.add(name)
            self.look()

    def look(self) -> None:
        topics = self.world.harness.broker.topics
        assert topics.partition_count(self.name) == self.count, self.done[-5:]
        for index in range(20):
            partition = self.name.partition_name(index)
            assert topics.is_stored(partition) == (index < self.count), (index, self.done[-5:])
            if index < self.count:
                found: Any = topics.find(partition)
                assert found.subscriptions.keys() == self.subscriptions, (index, self.done[-5:])

    def look_at_keys(self) -> None:
        store = self.world.harness.store
        kinds = ("topic/", "ledgers/", "cursor/", "counts/", "dedup/")
        for kind in kinds:
            prefix = f"{kind}{self.name}-partition-"
            numbers = {
                int(key[len(prefix) :].partition("\0")[0].partition("/")[0]) for key in store.names(prefix)
            }
            assert all(number < self.count for number in numbers), (kind, numbers)


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.disk = SimulatedDisk() if random.random() < 0.3 else None
        self.told: list[list[StoreError | None]] = []
        self.is_ending = False
        self.harness = Sliced(
            random,
            random.choice((0.0, 0.05, 0.3, 1.0)),
            self.open_store(),
            ledger_entries_max=random.choice((2, 5, 50_000)),
        )
        self.harness.polls_seldom = random.random() < 0.5
        self.harness.broker.namespaces.create_namespace("public", "other")
        self.harness.settle()
        names = [f"{space}/t{number}" for space in ("default", "other") for number in range(3)]
        self.clients: list[Any] = [*(Client(self, name) for name in names), Partitions(self)]
        self.running: dict[Any, tuple[Wait, Callable[[], object]]] = {}

    def open_store(self) -> Any:
        if self.disk is None:
            return None
        filesystem = FaultyFileSystem(self.disk)
        return FileStore.open("/data/store", settings=SETTINGS, filesystem=filesystem, threads=False)

    def disturb(self) -> None:
        harness, random = self.harness, self.random
        space = random.choice(("default", "other"))
        match random.randrange(5):
            case 0:
                name = random.choice(self.clients).name
                if harness.broker.topics.in_memory(name) is not None:
                    harness.call(lambda: harness.actions.unload(name))
            case 1:
                field, value = random.choice(POLICIES)
                harness.call(lambda: harness.broker.namespaces.set_policy("public", space, field, value))
            case 2:
                number = str(random.randrange(30, 60))
                harness.call(lambda: harness.broker.dynamic.set("subscriptionExpirationTimeMinutes", number))
            case 3:
                harness.now += random.choice((0.0, 0.01, 1.0))
            case 4:
                if random.random() < 0.2:
                    harness.pass_time(random.choice((ROUND_SECONDS, 5 * ROUND_SECONDS)))

    def step(self, client: Any) -> None:
        work, condition = self.running[client]
        if condition():
            self.go_on(client, work)

    def go_on(self, client: Any, work: Wait) -> None:
        condition = next(work, None)
        if condition is None:
            del self.running[client]
        else:
            self.running[client] = work, condition

    def run(self, steps: int) -> None:
        for client in self.clients:
            self.go_on(client, client.run())
        for _ in range(steps):
            choice = self.random.random()
            if choice < 0.5:
                self.step(self.random.choice(self.clients))
            elif choice < 0.97:
                self.harness.slice()
            else:
                self.disturb()

    def end(self) -> None:
        """Everything that was begun ends; then there is nothing half done."""
        self.is_ending = True
        for _ in range(200):
            self.harness.settle()
            for client in [*self.running]:
                self.step(client)
            if not self.running:
                break
        assert not self.running, [(client.name, client.done[-5:]) for client in self.running]
        broker = self.harness.broker
        assert all(len(said) == 1 for said in self.told), "each is told once"
        assert not any(broker.agenda.failures.values()), broker.agenda.failures
        assert not broker.turns._owed
        assert not broker.topics._preparing
        assert not broker.topics._under_way
        assert not broker.topics._leaving
        for topic in broker.topics.in_memory_now():
            assert topic.policies == broker.namespaces.topic_policies(topic.name), topic
        for client in self.clients:
            client.look()
        self.crash()

    def crash(self) -> None:
        """The process ends, or the power goes. Another broker finds what was confirmed."""
        if self.disk is None:
            self.harness.store._ready.clear()
            self.harness.store._reporting.clear()
        else:
            self.disk = self.disk.crash(Fate.by_chance(self.random))
            self.harness.store = self.open_store()
            assert self.harness.store.damage == []
        self.harness.crash()
        for client in self.clients:
            if client.is_between:
                client.look()
                client.look_at_keys()
        self.harness.settle()
        assert not any(self.harness.broker.agenda.failures.values()), self.harness.broker.agenda.failures


def simulate(seed: int, steps: int = 400) -> None:
    world = World(seed)
    world.run(steps)
    if world.random.random() < 0.5:
        world.end()
    else:
        world.crash()


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_REPORTED_AT_ONCE", 1)


@pytest.mark.simulation(60, 10)
def test_what_is_met_half_done_is_what_the_model_says(seeds: range) -> None:
    for seed in seeds:
        try:
            simulate(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


# --- everybody at once ---
class Crowd:
    """Actors who ask for anything of the same few topics, deletions included, and wait for nobody.

    There is no model of that. But what was confirmed and not taken back holds, each is told once, nothing is
    left of what is gone, and another broker finds what this one has in memory.
    """

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.harness = Sliced(
            random,
            random.choice((0.05, 0.3, 1.0)),
            ledger_entries_max=random.choice((2, 50_000)),
        )
        self.harness.polls_seldom = random.random() < 0.5
        if random.random() < 0.3:  # they are counted before one more is made
            namespaces = self.harness.broker.namespaces
            namespaces.set_policy("public", "default", "max_topics_per_namespace", 50)
        self.names = [TopicName.parse(f"t{number}") for number in range(2)]
        self.base = TopicName.parse("parted")
        self.names += [self.base.partition_name(index) for index in range(4)]
        self.step = 0
        self.told: list[tuple[str, list[object]]] = []
        self.taken_back: dict[str, int] = {}
        """When a topic was last deleted, or may have been: what was confirmed before does not hold."""
        self.moved: dict[tuple[str, str], int] = {}
        """The same of subscriptions that were sought back."""
        self.over: list[Any] = []
        """What was deleted or sought since somebody has listened last."""
        self.stored: list[tuple[int, str, bytes]] = []
        self.acked: list[tuple[int, str, str, bytes]] = []
        self.peers: list[Peer] = []
        self.sent: dict[tuple[Peer, int], tuple[str, bytes]] = {}
        self.wanted_acks: dict[tuple[Peer, int], tuple[str, str, bytes]] = {}
        self.held: dict[Peer, list[tuple[bytes, tuple[int, int]]]] = {}
        self.reads: dict[Peer, tuple[str, str]] = {}
        self.writes: dict[Peer, str] = {}
        self.serial = 0

    # --- asking ---
    def ask(self, what: str, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
        said: list[object] = []
        try:
            self.harness.call(lambda: call(*arguments, said.append, **options))
        except AdminError:
            assert not said, what
        else:
            self.told.append((what, said))

    def act(self) -> None:
        actions, random = self.harness.actions, self.random
        name = random.choice(self.names)
        text, subscription = str(name), f"s{random.randrange(2)}"
        match random.randrange(14):
            case 0 | 1:
                self.connect(text)
            case 2 | 3 | 4:
                self.send()
            case 5:
                self.read(text, subscription)
            case 6 | 7:
                self.acknowledge()
            case 8:
                self.ask("create", actions.create, random.choice(self.names[:2]))
                self.ask("partitions", actions.create_partitioned, self.base, random.randrange(1, 4))
            case 9:
                self.ask("grow", actions.update_partitions, self.base, random.randrange(1, 5))
            case 10 if random.random() < 0.5:
                gone = random.choice([self.base, *self.names[:2]])
                for each in self.names:
                    if each.base == gone:
                        self.taken_back[str(each)] = 1 << 60  # until it is through
                self.ask("delete", self.delete, gone)
            case 11:
                self.ask("subscribe", actions.create_subscription, name, subscription, MessageId.earliest)
            case 12:
                if random.random() < 0.5:
                    self.moved[text, subscription] = 1 << 60
                    self.ask("seek", self.seek, name, subscription)
                else:
                    self.harness.call(lambda: self.unload(name))
            case 13:
                self.ask("skip", actions.skip, name, subscription, 2)
                field, value = random.choice(POLICIES[:4])
                self.harness.call(lambda: self.harness.broker.namespaces.set_topic_policy(name, field, value))

    def delete(self, gone: TopicName, done: Callable[[object], None]) -> None:
        def over() -> None:
            self.over += [str(each) for each in self.names if each.base == gone]

        def through(error: object) -> None:
            over()
            done(error)

        try:
            self.harness.actions.delete(gone, True, through)
        except AdminError:
            over()
            raise

    def seek(self, name: TopicName, subscription: str, done: Callable[[object], None]) -> None:
        def through(error: object) -> None:
            self.over.append((str(name), subscription))
            done(error)

        try:
            earliest = MessageId.earliest
            self.harness.actions.reset_cursor(name, subscription, through, position=earliest)
        except AdminError:
            self.over.append((str(name), subscription))
            raise

    def unload(self, name: TopicName) -> None:
        topic = self.harness.broker.topics.in_memory(name)
        if topic is not None:
            self.harness.broker.topics.unload_topic(topic)

    # --- connections ---
    def connect(self, text: str) -> Peer:
        peer = self.harness.peer(connect=False)
        self.peers.append(peer)
        peer.command("connect", client_version="test", protocol_version=21)
        peer.command("producer", topic=text, producer_id=1, request_id=1)
        self.writes[peer] = text
        return peer

    def send(self) -> None:
        ready = [each for each in self.writes if not each.is_closed and each in self.may_send]
        if ready:
            peer = self.random.choice(ready)
            self.serial += 1
            self.sent[peer, self.serial] = self.writes[peer], b"%d" % self.serial
            peer.send(self.serial, entry_bytes(b"%d" % self.serial, sequence_id=self.serial))

    def read(self, text: str, subscription: str) -> None:
        peer = self.harness.peer(connect=False)
        self.peers.append(peer)
        peer.command("connect", client_version="test", protocol_version=21)
        peer.command(
            "subscribe", topic=text, subscription=subscription, consumer_id=1, request_id=1,
            subType=pb.CommandSubscribe.SubType.Value("Shared"), initialPosition=1,
        )  # fmt: skip
        self.reads[peer] = text, subscription
        self.held[peer] = []

    def acknowledge(self) -> None:
        holding = [each for each, held in self.held.items() if held and not each.is_closed]
        if holding:
            peer = self.random.choice(holding)
            each, place = self.held[peer].pop(self.random.randrange(len(self.held[peer])))
            peer.request_id += 1
            self.wanted_acks[peer, peer.request_id] = *self.reads[peer], each
            peer.ack(place, request_id=peer.request_id)

    def hear(self) -> None:
        """What came back."""
        for peer in [*self.peers]:
            for receipt in peer.receipts():
                text, each = self.sent.pop((peer, receipt.sequence_id))
                self.stored.append((self.step, text, each))
            for frame in peer.take(Command.PRODUCER_SUCCESS):
                assert frame.command.producer_success.producer_ready
                self.may_send.add(peer)
            if peer.take(Command.CLOSE_PRODUCER):
                self.may_send.discard(peer)
            for _ in peer.take(Command.SUCCESS):
                peer.command("flow", consumer_id=1, messagePermits=100)
            for message in peer.messages():
                self.held[peer].append((payload(message.entry), (message.ledger_id, message.entry_id)))
            for frame in peer.take(Command.ACK_RESPONSE):
                answer = frame.command.ackResponse
                wanted = self.wanted_acks.pop((peer, answer.request_id))
                if not answer.HasField("error"):
                    self.acked.append((self.step, *wanted))
            if peer.take(Command.CLOSE_CONSUMER):
                self.held[peer] = []
            if peer.is_closed or self.random.random() < 0.01:
                self.may_send.discard(peer)
                self.held.pop(peer, None)
                self.peers.remove(peer)
                if not peer.is_closed:
                    peer.disconnect()

        for each in self.over:
            (self.taken_back if isinstance(each, str) else self.moved)[each] = self.step
        self.over.clear()

    may_send: set[Peer]

    def run(self, steps: int) -> None:
        self.may_send = set()
        for _ in range(steps):
            self.step += 1
            if self.random.random() < 0.3:
                self.act()
            else:
                self.harness.slice()
            if self.random.random() < 0.2:
                self.hear()
        if self.random.random() < 0.3:
            self.close()
            return
        for _ in range(20):
            self.harness.settle()
            self.hear()
        self.end()

    def close(self) -> None:
        """The broker ends in the middle of all that: everybody is told, and what was confirmed is kept."""
        broker = self.harness.broker
        broker.close()
        assert all(peer.is_closed for peer in self.peers)
        self.harness.store.poll()
        for what, said in self.told:
            assert len(said) == 1, (what, said)
        assert not any(broker.agenda.failures.values()), broker.agenda.failures
        self.peers = [each for each in self.peers if each.frames]
        self.hear()
        self.harness.crash()
        self.harness.settle()
        self.look()

    # --- what holds ---
    def shown(self) -> dict[str, Any]:
        """All that there is, by topic: messages, what is open of each subscription, policies."""
        topics = self.harness.broker.topics
        found: dict[str, Any] = {}
        for name in self.names:
            topic: Any = topics.find(name)
            if topic is not None:
                ledger = topic.ledger
                held = {at: payload(ledger.read_one(at)) for at in range(ledger.start, ledger.confirmed)}
                waiting = {
                    each.name: [held[at] for at in held if each.cursor.next_open(at) == at]
                    for each in topic.subscriptions.values()
                    if each.durable
                }
                assert topic.policies == self.harness.broker.namespaces.topic_policies(name)
                found[str(name)] = [*held.values()], waiting
        return found

    def end(self) -> None:
        broker = self.harness.broker
        for what, said in self.told:
            assert len(said) == 1, (what, said)
        assert not any(broker.agenda.failures.values()), broker.agenda.failures
        assert not broker.turns._owed
        assert not broker.topics._preparing
        assert not broker.topics._leaving
        shown = self.look()
        self.harness.store._ready.clear()
        self.harness.store._reporting.clear()
        self.harness.crash()
        assert self.shown() == shown, "another broker finds what this one had in memory"

    def look(self) -> dict[str, Any]:
        """What there is; that what was confirmed is among it, and nothing is left of what is gone."""
        shown = self.shown()
        for step, text, each in self.stored:
            if step > self.taken_back.get(text, -1):
                assert text in shown, (text, each)
                assert shown[text][0].count(each) == 1, (text, each, "was receipted")
        for step, text, subscription, each in self.acked:
            if step > max(self.taken_back.get(text, -1), self.moved.get((text, subscription), -1)):
                assert each not in shown[text][1].get(subscription, ()), (text, subscription, each)
        kinds = ("ledgers/", "cursor/", "counts/", "dedup/")
        for kind in kinds:
            for key in self.harness.store.names(f"{kind}persistent://"):
                assert key.removeprefix(kind).partition("\0")[0] in shown, (key, "is left over")
        return shown


@pytest.mark.simulation(40, 10)
def test_what_everybody_asks_for_at_once_holds_when_it_was_confirmed(seeds: range) -> None:
    for seed in seeds:
        try:
            Crowd(seed).run(500)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
