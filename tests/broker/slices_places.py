"""Models of what a partitioned topic and a namespace must hold while they are created and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from geminga.broker.admin.http import Resource
from geminga.broker.admin.namespaces import delete_namespace_with_topics
from geminga.ids import MessageId, TopicName
from tests.broker.conftest import Command, Peer
from tests.broker.slices_model import KINDS, TTL, Asking, Wait, entry_of

if TYPE_CHECKING:
    from tests.broker.test_slices_simulation import World


class Partitions(Asking):
    """A partitioned topic that comes, grows and goes: who has subscribed to one partition has to all."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name = TopicName.parse("persistent://public/default/parted")
        self.count = 0
        self.subscriptions: set[str] = set()

    def run(self) -> Wait:
        while not self.world.is_ending:
            yield from self.pause()
            choice = self.random.random()
            if not self.count:
                count = self.random.randrange(1, 5)
                if choice < 0.2:
                    yield from self._both(
                        self.ask("create", self.actions.create_partitioned, self.name, count),
                        self.ask("delete", self.actions.delete, self.name, True),
                    )
                else:
                    yield from self.admin("create", self.actions.create_partitioned, self.name, count)
                    self.count = count
            elif choice < 0.2:
                yield from self.admin("delete", self.actions.delete, self.name, True)
                self.count, self.subscriptions = 0, set()
            elif choice < 0.35:
                # Partitions that are being created while the topic is deleted are deleted, too.
                count = self.count + self.random.randrange(1, 8)
                growing = self.ask(f"grow to {count}", self.actions.update_partitions, self.name, count)
                for _ in range(self.random.choice((0, 0, 3, 10))):
                    self.world.harness.slice()
                yield from self._both(growing, self.ask("delete", self.actions.delete, self.name, True))
                self.count, self.subscriptions = 0, set()
            elif choice < 0.6:
                count = self.count + self.random.randrange(0, 4)
                yield from self.admin(f"grow to {count}", self.actions.update_partitions, self.name, count)
                self.count = count
            else:
                yield from self.subscribe()
            self.look()
            self.look_at_keys()

    def _both(self, first: list[Any], second: list[Any]) -> Wait:
        yield lambda: first and second
        assert first == second == [None], (first, second)

    def subscribe(self) -> Wait:
        name = f"s{self.random.randrange(3)}"
        if name not in self.subscriptions:
            for index in range(self.count):
                partition, create = self.name.partition_name(index), self.actions.cursors.create
                yield from self.admin("subscribe", create, partition, name, MessageId.earliest)
            self.subscriptions.add(name)

    def unload_now(self) -> None:
        name = self.name.partition_name(0)
        if self.world.harness.broker.topics.in_memory(name) is not None:
            self.world.harness.call(lambda: self.actions.unload(name))

    def look(self) -> None:
        topics = self.world.harness.broker.topics
        assert topics.partitioned.count(self.name) == self.count, self.done[-5:]
        for index in range(20):
            partition = self.name.partition_name(index)
            assert topics.is_stored(partition) == (index < self.count), (index, self.done[-5:])
            if index < self.count:
                found: Any = topics.find(partition)
                assert found.subscriptions.keys() == self.subscriptions, (index, self.done[-5:])

    def look_at_keys(self) -> None:
        store = self.world.harness.store
        for kind in KINDS[:-1]:
            prefix = f"{kind}{self.name}-partition-"
            numbers = {
                int(key[len(prefix) :].partition("\0")[0].partition("/")[0])
                for key in store.keys.names(prefix)
            }
            assert all(number < self.count for number in numbers), (kind, numbers, self.done[-5:])


class Space(Asking):
    """A namespace that comes and goes with all that is in it, while others use it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name = TopicName.parse("persistent://public/passing/t")
        self.exists = False

    def run(self) -> Wait:
        namespaces = self.world.harness.broker.namespaces
        while not self.world.is_ending:
            yield from self.pause()
            yield from self.admin("create", namespaces.create_namespace, "public", "passing", None)
            self.exists = True
            self.look_afresh()
            peers: list[Peer] = []
            yield from self.fill(peers)
            if self.random.random() < 0.3:
                yield from self.pause()
            going = self.world.harness.web.begin(
                delete_namespace_with_topics(Resource(self.world.harness.web), "public", "passing")
            )
            self.done.append("delete")
            for _ in range(self.random.randrange(4)):
                yield lambda: True
                peers.append(self.knock())
            yield going.done
            going.result()
            self.exists = False
            # Disconnect refused clients, so that they do not reconnect to the next topic of this name.
            self.world.harness.settle()
            for peer in peers:
                peer.disconnect()
            self.look()
            self.look_at_keys()

    def fill(self, peers: list[Peer]) -> Wait:
        """Topics, their policies and subscriptions; some come by being used."""
        namespaces, base = self.world.harness.broker.namespaces, TopicName.parse("public/passing/parted")
        subscribed = self.name
        if self.random.random() < 0.7:
            yield from self.admin("create", self.actions.create, self.name)
            set_policy = namespaces.set_topic_policy
            yield from self.admin("policy", set_policy, self.name, "max_producers_per_topic", 3)
        if self.random.random() < 0.5:
            subscribed = base.partition_name(0)
            yield from self.admin("create", self.actions.create_partitioned, base, 3)
        if self.actions.exists(subscribed):
            create = self.actions.cursors.create
            yield from self.admin("subscribe", create, subscribed, "s", MessageId.earliest)
        if self.random.random() < 0.5:
            yield from self.admin("policy", namespaces.set_policy, "public", "passing", TTL, 7)
        peers += [self.knock() for _ in range(self.random.randrange(3))]
        if self.random.random() < 0.3 and self.actions.exists(base):
            self.ask("grow", self.actions.update_partitions, base, 6)

    def knock(self) -> Peer:
        """Try to publish to the topic, a partition, or a topic of a similar name."""
        peer = self.peer()
        topic = self.random.choice((str(self.name), f"{self.name}2", "public/passing/parted-partition-1"))
        peer.command("producer", topic=topic, producer_id=1, request_id=1)
        if peer.take(Command.PRODUCER_SUCCESS):
            entry = entry_of("knock", [("k", b"v")], self.world.harness.now_ms, is_batch=False)
            peer.send(0, entry)
        return peer

    def unload_now(self) -> None:
        if self.world.harness.broker.topics.in_memory(self.name) is not None:
            self.world.harness.call(lambda: self.actions.unload(self.name))

    def look_afresh(self) -> None:
        """A new one has nothing of the one before."""
        broker = self.world.harness.broker
        assert not [*broker.topics.walk("public/passing", persistent=True)], self.done[-5:]
        assert broker.namespaces.topic_policies(self.name) == broker.namespaces.policies("public", "passing")
        assert broker.namespaces.policies("public", "passing").message_ttl_seconds == 0

    def look(self) -> None:
        assert self.world.harness.broker.namespaces.exists("public", "passing") == self.exists

    def look_at_keys(self) -> None:
        if not self.exists:
            store = self.world.harness.store
            found = [
                key for kind in (*KINDS, "partitioned/", "schema/")
                for key in store.keys.names(f"{kind}persistent://public/passing/")
            ]  # fmt: skip
            assert not found, (found, self.done[-5:])
