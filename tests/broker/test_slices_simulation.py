"""Broker state driven between single slices of a turn, against a plain model.

Each topic has a client that sends one request after another and knows what must hold then (`slices_model`);
so have a partitioned topic and a namespace (`slices_places`). They run beside each other, and beside an
actor who unloads topics, changes policies and settings and lets time pass. A seed decides which actor runs
next, and how much a turn of the loop has time for: often one item. So requests meet work that is half done.
The model must hold at each check, at the end, and for another broker on the same store.
"""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.broker.admin import http
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.core import Broker
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics.topic import ROUND_SECONDS
from geminga.errors import StoreError
from geminga.ids import MessageId, TopicName
from geminga.ledger import memory as memory_module
from geminga.ledger.store import FileStore
from tests.broker.conftest import SUBSCRIBE, Command, Peer, entry_bytes
from tests.broker.sliced import Sliced
from tests.broker.slices_model import POLICIES, RULES, TTL, TTL_SECONDS_MAX, Client, Wait, payload
from tests.broker.slices_places import Partitions, Space
from tests.support.disk_stores import SMALL_FILES
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, SimulatedDisk


def check_nothing_is_left(broker: Broker) -> None:
    """Check that no job has failed, waits or has left something half-done."""
    topics = broker.topics
    assert not any(broker.scheduler.failures.values()), broker.scheduler.failures
    left = (
        broker.slices._owed, topics.loader._preparing, topics.loader._under_way, topics.partitioned._leaving,
    )  # fmt: skip
    assert not any(left), left


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.disk = SimulatedDisk() if random.random() < 0.3 else None
        self.by_index = random.random() < 0.7
        self.least_ttl: dict[str, int] = {}
        """Shortest TTL that was ever in force, by namespace."""
        self.told: list[list[StoreError | None]] = []
        self.is_ending = False
        self.harness = Sliced(
            random,
            random.choice((0.0, 0.05, 0.3, 1.0)),
            self.open_store(),
            ledger_entries_max=random.choice((2, 5, 50_000)),
            batch_index_ack=self.by_index,
        )
        self.harness.polls_seldom = random.random() < 0.5
        self.harness.broker.namespaces.create_namespace("public", "other")
        self.harness.settle()
        names = [f"{space}/t{number}" for space in ("default", "other") for number in range(3)]
        self.clients: list[Any] = [*(Client(self, name) for name in names), Partitions(self), Space(self)]
        self.running: dict[Any, tuple[Wait, Callable[[], object]]] = {}

    def open_store(self) -> Any:
        if self.disk is None:
            return None
        filesystem = FaultyFileSystem(self.disk)
        return FileStore.open("/data/store", settings=SMALL_FILES, filesystem=filesystem, threads=False)

    def disturb(self) -> None:
        harness, random = self.harness, self.random
        space = random.choice(("default", "other"))
        match random.randrange(5):
            case 0:
                random.choice(self.clients).unload_now()
            case 1:
                field, value = random.choice(POLICIES)
                if field == TTL and value is not None:
                    self.least_ttl[space] = min(value, self.least_ttl.get(space, value))
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
        check_nothing_is_left(broker)
        for topic in broker.topics.in_memory_now():
            assert topic.policies == broker.namespaces.topic_policies(topic.name), topic
        for client in self.clients:
            client.look()
        self.let_expire()
        self.crash()

    def let_expire(self) -> None:
        """Check that messages with a time to live expire soon after it, in loaded and in unloaded topics."""
        harness = self.harness
        harness.pass_time(TTL_SECONDS_MAX + 40 * ROUND_SECONDS)
        for client in self.clients:
            client.look()
            if isinstance(client, Client) and client.exists:
                policies = harness.broker.namespaces.topic_policies(client.name)
                if policies.message_ttl_seconds:
                    assert not any(each.backlog for each in client.durable().values()), client.text

    def crash(self) -> None:
        """The process ends, or the power goes. Another broker finds what was confirmed."""
        if self.disk is None:
            reports = self.harness.store.reports
            reports.ready.clear()
            reports.reporting.clear()
        else:
            self.disk = self.disk.crash(Fate.by_chance(self.random))
            self.harness.store = self.open_store()
            assert self.harness.store.damage.found == []
        self.harness.web.close()
        self.harness.crash()
        for client in self.clients:
            if client.is_between:
                client.look()
                client.look_at_keys()
        self.harness.settle()
        failures = self.harness.broker.scheduler.failures
        assert not any(failures.values()), failures


def simulate(seed: int, steps: int = 400) -> None:
    world = World(seed)
    try:
        world.run(steps)
        if world.random.random() < 0.5:
            world.end()
        else:
            world.crash()
    finally:
        world.harness.web.close()


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch):
    monkeypatch.setattr(memory_module, "_REPORTED_AT_ONCE", 1)
    monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=lambda: 0.0))  # a seed decides everything


@pytest.mark.simulation(20, 10)
def test_requests_between_slices_agree_with_the_model(seeds):
    for seed in seeds:
        try:
            simulate(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


# --- everybody at once ---
class Crowd:
    """Actors who send any request, deletions included, to the same few topics without waiting for each other.

    There is no model of that. But confirmed changes that were not undone hold, each request gets one answer,
    nothing is left of deleted topics, and another broker finds the state that this one has in memory.
    """

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        chance, entries = random.choice((0.05, 0.3, 1.0)), random.choice((2, 50_000))
        self.harness = Sliced(random, chance, ledger_entries_max=entries)
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
        """Step at which a topic was last deleted, or may have been: changes confirmed before do not hold."""
        self.moved: dict[tuple[str, str], int] = {}
        """Step at which a subscription was last moved back by a seek."""
        self.over: list[Any] = []
        """Deletions and seeks since the answers were last read."""
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
        except (AdminRefusal, Refused):
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
                self.ask("subscribe", actions.cursors.create, name, subscription, MessageId.earliest)
            case 12:
                if random.random() < 0.5:
                    self.moved[text, subscription] = 1 << 60
                    self.ask("seek", self.seek, name, subscription)
                else:
                    self.harness.call(lambda: self.unload(name))
            case 13:
                self.ask("skip", actions.cursors.skip, name, subscription, 2)
                field, value = random.choice(RULES[:4])
                self.harness.call(lambda: self.harness.broker.namespaces.set_topic_policy(name, field, value))

    def delete(self, gone: TopicName, done: Callable[[object], None]) -> None:
        def over() -> None:
            self.over += [str(each) for each in self.names if each.base == gone]

        def through(error: object) -> None:
            over()
            done(error)

        try:
            self.harness.actions.delete(gone, True, through)
        except (AdminRefusal, Refused):
            over()
            raise

    def seek(self, name: TopicName, subscription: str, done: Callable[[object], None]) -> None:
        def through(error: object) -> None:
            self.over.append((str(name), subscription))
            done(error)

        try:
            earliest = MessageId.earliest
            self.harness.actions.cursors.reset(name, subscription, through, position=earliest)
        except (AdminRefusal, Refused):
            self.over.append((str(name), subscription))
            raise

    def unload(self, name: TopicName) -> None:
        topic = self.harness.broker.topics.in_memory(name)
        if topic is not None:
            self.harness.actions.unload(topic.name)

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
        fields = {"topic": text, "subscription": subscription, "subType": 1, "initialPosition": 1}
        peer.command("subscribe", **(SUBSCRIBE | fields), request_id=1)
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
        """Read the answers of all peers."""
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
        """Close the broker while requests are pending: each is answered, and confirmed changes are kept."""
        broker = self.harness.broker
        broker.close()
        assert all(peer.is_closed for peer in self.peers)
        self.harness.store.poll()
        for what, said in self.told:
            assert len(said) == 1, (what, said)
        assert not any(broker.scheduler.failures.values()), broker.scheduler.failures
        self.peers = [each for each in self.peers if each.frames]
        self.hear()
        self.harness.crash()
        self.harness.settle()
        self.look()

    # --- checks ---
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
        check_nothing_is_left(broker)
        shown = self.look()
        reports = self.harness.store.reports
        reports.ready.clear()
        reports.reporting.clear()
        self.harness.crash()
        assert self.shown() == shown, "another broker finds what this one had in memory"

    def look(self) -> dict[str, Any]:
        """Return the state; check that it has all confirmed changes and nothing of deleted topics."""
        shown = self.shown()
        for step, text, each in self.stored:
            if step > self.taken_back.get(text, -1):
                assert text in shown, (text, each)
                assert shown[text][0].count(each) == 1, (text, each, "was receipted")
        for step, text, subscription, each in self.acked:
            if step > max(self.taken_back.get(text, -1), self.moved.get((text, subscription), -1)):
                assert each not in shown[text][1].get(subscription, ()), (text, subscription, each)
        kinds = ("ledgers/", "cursor/", "counts/", "dedup/", "delays/")
        for kind in kinds:
            for key in self.harness.store.keys.names(f"{kind}persistent://"):
                assert key.removeprefix(kind).partition("\0")[0] in shown, (key, "is left over")
        return shown


@pytest.mark.simulation(12, 6)
def test_confirmed_changes_of_concurrent_actors_hold(seeds):
    for seed in seeds:
        try:
            Crowd(seed).run(500)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
