"""Model of a topic's contents, and a client that compares the topic with it.

A client sends one request after another and waits for each answer: between two of its steps the broker may
have done any part of the request, and work for other clients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Any

from geminga.broker.delivery.cursor import words_from_bits
from geminga.broker.delivery.subscription import COMPACTION
from geminga.errors import StoreError
from geminga.ids import MessageId, TopicName
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import Command, Peer

if TYPE_CHECKING:
    from tests.broker.test_slices_simulation import World

Wait = Generator[Callable[[], object], None, None]
Message = tuple[str, int]
"""The tag of its entry, and its index there."""
Keyed = tuple[str, bytes]
"""A key and a value; an empty one deletes the key."""

RULES = (
    ("max_producers_per_topic", 50), ("max_producers_per_topic", None), ("max_consumers_per_topic", 60),
    ("deduplicationEnabled", True), ("deduplicationEnabled", None),
    ("retention_policies", {"retentionSizeInMB": 10, "retentionTimeInMinutes": 5}),
    ("retention_policies", None),
)  # fmt: skip
TTL = "message_ttl_in_seconds"
TTL_SECONDS_MAX = 20
POLICIES = (*RULES, (TTL, 3), (TTL, TTL_SECONDS_MAX), (TTL, None))
KINDS = ("topic/", "ledgers/", "cursor/", "counts/", "dedup/", "delays/", "topic-policies/")
"""Prefixes of a topic's keys in the catalog; the topic's name follows."""
_SIZE = Struct(">I")


# --- entries ---
def entry_of(tag: str, messages: list[Keyed], publish_time: int, *, is_batch: bool) -> bytes:
    """An entry that knows its name, and what is in it."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time)
    metadata.properties.add(key="tag", value=tag)
    if not is_batch:
        key, value = messages[0]
        metadata.partition_key = key
        return build_entry(metadata.SerializeToString(), value)
    metadata.num_messages_in_batch = len(messages)
    body = b""
    for key, value in messages:
        single = pb.SingleMessageMetadata(partition_key=key, payload_size=len(value)).SerializeToString()
        body += _SIZE.pack(len(single)) + single + value
    return build_entry(metadata.SerializeToString(), body)


def payload(entry: Any) -> bytes:
    return bytes(parse_entry(bytes(entry)).payload)


def tag_of(entry: Any) -> str:
    return parse_entry(bytes(entry)).metadata.properties[0].value


def keyed_in(entry: Any) -> Iterator[tuple[Message, Keyed]]:
    """The messages of an entry; of a batch those that compaction has left in it."""
    found = parse_entry(bytes(entry))
    metadata, body, at = found.metadata, bytes(found.payload), 0
    tag = metadata.properties[0].value
    if not metadata.HasField("num_messages_in_batch"):
        yield (tag, 0), (metadata.partition_key, body)
        return
    for index in range(metadata.num_messages_in_batch):
        size = _SIZE.unpack_from(body, at)[0]
        at += _SIZE.size
        single = pb.SingleMessageMetadata.FromString(body[at : at + size])
        at += size
        if not single.compacted_out:
            yield (tag, index), (single.partition_key, body[at : at + single.payload_size])
        at += single.payload_size


def bits_of(words: Iterable[int]) -> int:
    """Return the bits of ``ack_set``; 0 without one."""
    return sum((word & ((1 << 64) - 1)) << 64 * place for place, word in enumerate(words))


def newest(found: Iterable[Keyed]) -> dict[str, bytes]:
    """Return the table that results from applying all records in order; an empty value deletes its key."""
    table = dict[str, bytes]()
    for key, value in found:
        if value:
            table[key] = value
        else:
            table.pop(key, None)
    return table


# --- actors ---
class Asking:
    """Client that sends one request after another; ``done`` lists them for others to see."""

    def __init__(self, world: World) -> None:
        self.world, self.random = world, world.random
        self.is_between = True
        """Nothing was asked for that is not answered."""
        self.done: list[str] = []

    def pause(self) -> Wait:
        """Continue with another client before the next request."""
        self.is_between = True
        yield lambda: True
        self.is_between = False

    @property
    def actions(self) -> Any:
        return self.world.harness.actions

    def admin(self, what: str, call: Callable[..., object], *arguments: Any, **options: Any) -> Wait:
        """Ask for something durable and wait for it."""
        said = self.ask(what, call, *arguments, **options)
        yield lambda: said
        assert said == [None], (what, said)

    def ask(self, what: str, call: Callable[..., object], *arguments: Any, **options: Any) -> list[Any]:
        """Start a durable change; return the list that receives its one result."""
        said: list[StoreError | None] = []
        self.done.append(what)
        self.world.harness.call(lambda: call(*arguments, said.append, **options))
        self.world.told.append(said)
        return said

    def peer(self) -> Peer:
        peer = self.world.harness.peer(connect=False)
        peer.command("connect", client_version="test", protocol_version=21)
        return peer


class Client(Asking):
    """Model of what one topic must hold. ``entries`` are tags in order; each subscription has a set of the
    messages that it has acknowledged."""

    def __init__(self, world: World, text: str) -> None:
        super().__init__(world)
        self.name = TopicName.parse(f"persistent://public/{text}")
        self.space = self.name.namespace
        self.text = str(self.name)
        self.is_keyed = self.random.random() < 0.5
        """Whether messages have few keys, and are compacted."""
        self.exists = False
        self.serial = 0
        self.contents: dict[str, list[Keyed]] = {}
        self.published_ms: dict[str, int] = {}
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.entries: list[str] = []
        self.subscriptions: dict[str, set[Message]] = {}
        self.peer_now: Peer | None = None
        self.least_ttl: int | None = None
        self.compacted_from: int | None = None
        """Number of entries deleted before the first compaction."""

    # --- state, from memory or the store ---
    def topic(self) -> Any:
        found = self.world.harness.broker.topics.find(self.name)
        assert found is not None, self.text
        return found

    def stored(self) -> list[str]:
        ledger = self.topic().ledger
        return [tag_of(ledger.read_one(at)) for at in range(ledger.start, ledger.confirmed)]

    def messages(self, tags: Iterable[str]) -> list[Message]:
        return [(tag, index) for tag in tags for index in range(len(self.contents[tag]))]

    def open_now(self, subscription: Any) -> set[Message]:
        """Return the messages that the broker has as unacknowledged."""
        cursor, ledger = subscription.cursor, subscription.topic.ledger
        found = set()
        for at in range(max(cursor.mark, ledger.start), ledger.confirmed):
            if cursor.next_open(at) == at:
                tag, bits = tag_of(ledger.read_one(at)), cursor.open_bits(at)
                found |= {(tag, index) for index in range(len(self.contents[tag])) if bits >> index & 1}
        return found

    def durable(self) -> dict[str, Any]:
        subscriptions = self.topic().subscriptions
        return {name: each for name, each in subscriptions.items() if each.durable and name != COMPACTION}

    def shown(self) -> Any:
        """All that there is."""
        topic = self.topic()
        waiting = {
            name: (self.open_now(each), each.cursor.mark, each.backlog_tally())
            for name, each in self.durable().items()
        }
        view = topic.compacted
        return self.stored(), waiting, None if view is None else (view.ledger_id, view.seal)

    def may_have_expired(self, tag: str) -> bool:
        limits = [each for each in (self.least_ttl, self.world.least_ttl.get(self.space)) if each is not None]
        return bool(limits) and self.world.harness.now_ms - self.published_ms[tag] >= min(limits) * 1000

    def learn(self, name: str, may_be: Iterable[Message] = ()) -> None:
        """Copy the broker's state of messages that may have expired or whose ack is unconfirmed."""
        acked = self.subscriptions[name]
        still_open = self.open_now(self.topic().subscriptions[name])
        for each in (*may_be, *self.messages(filter(self.may_have_expired, self.entries))):
            if each not in still_open:
                acked.add(each)

    def look(self) -> None:
        """Check that the topic is what the model expects."""
        broker, last = self.world.harness.broker, self.done[-5:]
        assert broker.topics.is_stored(self.name) == self.exists, (self.text, last)
        if not self.exists:
            return
        stored = self.stored()
        assert stored == self.entries[len(self.entries) - len(stored) :], (self.text, last)
        gone = self.messages(self.entries[: len(self.entries) - len(stored)])
        found = self.durable()
        assert found.keys() == self.subscriptions.keys(), (self.text, last)
        for name, subscription in found.items():
            self.learn(name)
            acked = self.subscriptions[name]
            assert acked.issuperset(gone), (self.text, name, "a message that was not acknowledged is gone")
            still_open = self.open_now(subscription)
            assert still_open == set(self.messages(stored)) - acked, (self.text, name, last)
            assert subscription.backlog == len({tag for tag, _ in still_open}), (self.text, name, last)
            tally = subscription.backlog_tally()
            assert tally is None or tally[0] == len(still_open), (self.text, name, tally, last)

    def look_at_keys(self) -> None:
        """That there is a cursor for each subscription, and nothing left of a topic that is gone."""
        store = self.world.harness.store
        if self.exists:
            names = {key.partition("\0")[2] for key in store.keys.names(f"cursor/{self.text}\0")}
            assert names - {COMPACTION} == self.subscriptions.keys(), (self.text, self.done[-5:])
            return
        assert [key for kind in KINDS for key in store.keys.names(f"{kind}{self.text}")] == []
        assert not store.ledgers(self.text)
        assert not store.ledgers(f"compacted\0{self.text}")

    # --- requests of the actor ---
    def run(self) -> Wait:
        while not self.world.is_ending:
            yield from self.pause()
            if not self.exists:
                yield from self.create()
                continue
            choices = [
                self.publish, self.publish, self.publish, self.subscribe, *[self.consume] * 6,
                self.skip, self.seek, self.unload, self.trim, self.truncate, self.unsubscribe, self.delete,
                self.look_now, self.policy, self.expire, self.compact, self.read_compacted,
            ]  # fmt: skip
            if not self.subscriptions and self.random.random() < 0.7:
                choices = [self.subscribe]
            yield from self.random.choice(choices)()

    def look_now(self) -> Wait:
        self.look()
        yield lambda: True

    def create(self) -> Wait:
        yield from self.admin("create", self.actions.create, self.name)
        self.exists = True

    def delete(self) -> Wait:
        if self.random.random() < 0.2:
            yield from self.delete_now()

    def delete_now(self) -> Wait:
        yield from self.admin("delete", self.actions.delete, self.name, True)
        self.exists = False
        self._begin_anew()

    def _make(self) -> bytes:
        """A new entry, noted but not sent."""
        self.serial += 1
        tag = f"{self.name.local}/{self.serial}"
        is_batch = self.random.random() < 0.4
        count = self.random.randrange(1, 6) if is_batch else 1
        messages = []
        for number in range(count):
            key = f"k{self.random.randrange(3)}" if self.is_keyed else tag
            is_empty = self.is_keyed and self.random.random() < 0.2
            messages.append((key, b"" if is_empty else b"%d/%d" % (self.serial, number)))
        self.contents[tag] = messages
        self.published_ms[tag] = self.world.harness.now_ms
        return entry_of(tag, messages, self.published_ms[tag], is_batch=is_batch)

    def publish(self) -> Wait:
        self.done.append("publish")
        peer = self.peer_now = self.peer()
        answers: list[Any] = []

        def answered() -> object:
            answers.extend([*peer.take(Command.PRODUCER_SUCCESS), *peer.take(Command.ERROR)])
            return answers

        is_in = False
        while not is_in:
            answers.clear()
            peer.command("producer", topic=self.text, producer_id=1, request_id=1)
            yield answered
            is_in = answers[0].type == Command.PRODUCER_SUCCESS
            if not is_in:  # it was unloaded while the producer's name was being stored: clients ask again
                assert answers[0].command.error.error == pb.ServiceNotReady, answers[0].command
        count = self.random.randrange(1, 8)
        sent = []
        for number in range(count):
            entry = self._make()
            sent.append(tag_of(entry))
            peer.send(number, entry, messages=len(self.contents[sent[-1]]))
        receipts: list[Any] = []

        def all_receipted() -> bool:
            receipts.extend(peer.receipts())
            return len(receipts) == count or bool(peer.take(Command.CLOSE_PRODUCER))

        if self.random.random() < 0.1:
            peer.disconnect()  # its commands so far are handled or dropped
            self.world.harness.settle()
        else:
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
            before = stored.index(sent[0]) if sent[0] in stored else len(stored)
            assert stored[before:] == sent[: len(stored) - before]
            assert len(stored) - before >= len(receipts) + late, "what was receipted is there"
            sent = stored[before:]
        self.entries += sent
        if self.random.random() < 0.5 and not peer.is_closed:
            peer.disconnect()

    def subscribe(self) -> Wait:
        name = f"s{self.random.randrange(3)}"
        if name not in self.subscriptions:
            yield from self._create(name)
            self._acknowledged_from(name, len(self.entries) - len(self.stored()))

    def _create(self, name: str) -> Wait:
        create = self.actions.cursors.create
        yield from self.admin(f"subscribe {name}", create, self.name, name, MessageId.earliest)

    def _acknowledged_from(self, name: str, index: int) -> None:
        """Everything before an entry is acknowledged, and nothing else; what is gone is, too."""
        gone = len(self.entries) - len(self.stored())
        self.subscriptions[name] = set(self.messages(self.entries[: max(index, gone)]))

    def unsubscribe(self) -> Wait:
        if self.subscriptions and self.random.random() < 0.4:
            yield from self.unsubscribe_from(self.random.choice([*self.subscriptions]))

    def unsubscribe_from(self, name: str) -> Wait:
        yield from self.admin(f"unsubscribe {name}", self.actions.cursors.delete, self.name, name, force=True)
        del self.subscriptions[name]

    # --- consuming ---
    def consume(self) -> Wait:
        """Receive what a subscription has left and acknowledge some of it."""
        if not self.subscriptions:
            return
        name = self.random.choice([*self.subscriptions])
        self.done.append(f"consume {name}")
        kind = self.random.choice(("Shared", "Exclusive", "Failover", "Key_Shared"))
        peer, before = self.peer(), len(self.entries)
        self.learn(name)
        left = set(self.messages(self.entries)) - self.subscriptions[name]
        if not (yield from self._subscribed(peer, name, kind)):
            return
        if self.random.random() < 0.5:
            yield from self.publish()  # and it is handed out as it comes
            left.update(self.messages(self.entries[before:]))
        found: dict[str, tuple[tuple[int, int], int]] = {}
        """By tag: the entry's position, and the bits of its messages that were open at delivery."""
        got: set[Message] = set()
        is_over = False

        def received() -> bool:
            nonlocal is_over
            for each in peer.messages():
                tag = tag_of(each.entry)
                assert tag not in found, (self.text, name, tag, "received twice")
                bits = bits_of(each.ack_set) or (1 << len(self.contents[tag])) - 1
                found[tag] = (each.ledger_id, each.entry_id), bits
                got.update((tag, index) for index in range(len(self.contents[tag])) if bits >> index & 1)
            is_over = is_over or bool(peer.take(Command.CLOSE_CONSUMER))
            return is_over or all(each in got or self.may_have_expired(each[0]) for each in left)

        yield received
        assert got <= left, (self.text, name, "acknowledged, and delivered again", got - left)
        if not is_over:
            self.learn(name)
            assert got >= left - self.subscriptions[name]
            yield from self._acknowledge(peer, name, kind, found)
            if name in self.subscriptions and not peer.is_closed and self.random.random() < 0.1:
                yield from self._seek_over(peer, name)
        if self.random.random() < 0.5:
            peer.command("close_consumer", consumer_id=1, request_id=3)
            yield lambda: peer.take(Command.SUCCESS) or peer.take(Command.ERROR) or peer.is_closed
        peer.disconnect()

    def _subscribed(self, peer: Peer, name: str, kind: str, **fields: Any) -> Generator[Any, None, bool]:
        """Attach a consumer that takes all; whether that was not undone before it was answered."""
        fields |= {"subType": pb.CommandSubscribe.SubType.Value(kind), "initialPosition": 1, "request_id": 1}
        peer.command("subscribe", topic=self.text, subscription=name, consumer_id=1, **fields)
        answers: list[Any] = []

        def subscribed() -> object:
            answers.extend([*peer.take(Command.SUCCESS), *peer.take(Command.ERROR)])
            return answers or peer.take(Command.CLOSE_CONSUMER)

        yield subscribed
        if not answers or "closed meanwhile: try again" in answers[0].command.error.message:
            return False
        assert answers[0].type == Command.SUCCESS, answers[0].command
        peer.command("flow", consumer_id=1, messagePermits=1000)
        return True

    def _acknowledge(self, peer: Peer, name: str, kind: str, found: dict[str, Any]) -> Wait:
        """Some of what was received, entries as a whole and messages of batches."""
        by_index = self.world.by_index
        chosen = [tag for tag in found if self.random.random() < 0.6]
        if not chosen:
            return
        ids, acked = [], set[Message]()
        cumulative = kind in ("Exclusive", "Failover") and self.random.random() < 0.5
        if cumulative:
            chosen = [max(chosen, key=self.entries.index)]
            acked |= set(self.messages(self.entries[: self.entries.index(chosen[0])]))
        for tag in chosen:
            (ledger_id, entry_id), bits = found[tag]
            place = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
            ids.append(place)
            everything = set(self.messages([tag]))
            if len(everything) > 1 and self.random.random() < 0.6:
                kept = bits & self.random.getrandbits(len(everything))
                place.ack_set.extend(words_from_bits(kept) or [0])
                if by_index:
                    acked |= {each for each in everything if not kept >> each[1] & 1}
            else:
                acked |= everything
        is_hasty = self.random.random() < 0.3
        parts = [ids] if cumulative or self.random.random() < 0.5 else [[each] for each in ids]
        for number, part in enumerate(parts, 1):
            asks = number == len(parts) and not is_hasty
            fields = {"ack_type": int(cumulative), "message_id": part}
            peer.command("ack", consumer_id=1, request_id=2 if asks else None, **fields)
        if is_hasty:
            yield from self._in_haste(peer, name, acked)
            return
        responses: list[Any] = []

        def confirmed() -> bool:
            responses.extend(peer.take(Command.ACK_RESPONSE))
            return bool(responses or peer.take(Command.CLOSE_CONSUMER))

        yield confirmed
        if not responses:
            self.world.harness.settle()
            responses = peer.take(Command.ACK_RESPONSE)
        if responses:
            assert not responses[0].command.ackResponse.HasField("error"), responses[0].command
            self.subscriptions[name] |= acked
        else:
            self.learn(name, acked)

    def _in_haste(self, peer: Peer, name: str, acked: set[Message]) -> Wait:
        """Acknowledge without waiting for the result, and run something else at the same time."""
        self.done.append("in haste")
        if self.random.random() < 0.5:
            for _ in range(self.random.randrange(8)):
                self.world.harness.slice()
        if self.random.random() < 0.5:
            peer.disconnect()
        choice = self.random.random()
        if choice < 0.3:
            self.unload_now()
        elif choice < 0.6:
            yield from self.unsubscribe_from(name)
            yield from self._create(name)
            self._acknowledged_from(name, 0)
            return
        elif choice < 0.7:
            yield from self.delete_now()
            return
        elif choice < 0.8 and self.stored():
            # The seek undoes earlier acknowledgements; later ones may be accepted for a closed consumer.
            index, position = self._some()
            reset = self.actions.cursors.reset
            yield from self.admin(f"seek {name}", reset, self.name, name, position=position)
            self._acknowledged_from(name, index)
            return
        self.world.harness.settle()
        self.learn(name, acked)

    def _seek_over(self, peer: Peer, name: str) -> Wait:
        """As a consumer asks for it, into a batch, too."""
        if not self.stored():
            return
        index, position = self._some()
        tag = self.entries[index]
        count = len(self.contents[tag])
        bits = self.random.randrange(1, 1 << count) if count > 1 else 0
        place = {
            "ledgerId": position.ledger_id, "entryId": position.entry_id, "ack_set": words_from_bits(bits),
        }  # fmt: skip
        self.done.append(f"seek over {name}")
        peer.command("seek", consumer_id=1, request_id=4, message_id=place)
        answers: list[Any] = []

        def answered() -> object:
            answers.extend([*peer.take(Command.SUCCESS), *peer.take(Command.ERROR)])
            return answers

        yield answered
        if answers[0].type == Command.SUCCESS:
            self._acknowledged_from(name, index)
            if bits and self.world.by_index:
                self.subscriptions[name] |= {(tag, each) for each in range(count) if not bits >> each & 1}

    # --- actions of administrators ---
    def skip(self) -> Wait:
        if not self.subscriptions:
            return
        name = self.random.choice([*self.subscriptions])
        self.learn(name)
        acked = self.subscriptions[name]
        left = [each for each in self.messages(self.entries) if each not in acked]
        count, choice, cursors = self.random.randrange(1, 5), self.random.random(), self.actions.cursors
        if choice < 0.3:
            going = left
            yield from self.admin(f"skip all {name}", cursors.skip_all, self.name, name)
        elif choice < 0.6:
            tags = [*dict.fromkeys(tag for tag, _ in left)][:count]
            going = self.messages(tags)
            yield from self.admin(f"skip {count} of {name}", cursors.skip, self.name, name, count)
        else:
            going = left[:count]
            what = f"skip {count} messages of {name}"
            yield from self.admin(what, cursors.skip_messages, self.name, name, count)
        acked.update(going)

    def expire(self) -> Wait:
        """Skip everything up to a message."""
        if not self.subscriptions or not self.stored():
            return
        name = self.random.choice([*self.subscriptions])
        index, position = self._some()
        expire = self.actions.cursors.expire_to
        yield from self.admin(f"expire {name}", expire, self.name, name, position, excluded=False)
        self.subscriptions[name].update(self.messages(self.entries[: index + 1]))

    def seek(self) -> Wait:
        if not self.subscriptions or not self.stored():
            return
        name = self.random.choice([*self.subscriptions])
        index, position = self._some()
        yield from self.admin(f"seek {name}", self.actions.cursors.reset, self.name, name, position=position)
        self._acknowledged_from(name, index)

    def _some(self) -> tuple[int, MessageId]:
        ledger = self.topic().ledger
        at = self.random.randrange(ledger.start, ledger.confirmed)
        found = tag_of(ledger.read_one(at))
        return self.entries.index(found), MessageId(self.name.partition, *ledger.position(at))

    def unload(self) -> Wait:
        self.unload_now()
        yield lambda: True

    def unload_now(self) -> None:
        """Unload the topic: loading it again must show the state that it had in memory."""
        self.done.append("unload")
        topics = self.world.harness.broker.topics
        if topics.in_memory(self.name) is None:
            return
        before = self.shown()
        self.world.harness.call(lambda: self.actions.unload(self.name))
        if topics.in_memory(self.name) is None:
            assert self.shown() == before, (self.text, self.done[-5:], "unloaded, and another one now")

    def trim(self) -> Wait:
        self.done.append("trim")
        self.world.harness.call(lambda: self.actions.trim(self.name))
        yield lambda: True

    def truncate(self) -> Wait:
        # Messages that were not compacted yet are deleted: the model expects nothing of keyed topics here.
        if not self.is_keyed and self.random.random() < 0.2:
            before = set(self.messages(self.entries))
            yield from self.admin("truncate", lambda done: self.actions.topic(self.name).truncate(done))
            for acked in self.subscriptions.values():
                acked |= before

    def policy(self) -> Wait:
        field, value = self.random.choice(POLICIES)
        if field == TTL and value is not None:
            self.least_ttl = min(value, self.least_ttl or value)
        set_policy = self.world.harness.broker.namespaces.set_topic_policy
        yield from self.admin(f"{field}={value}", set_policy, self.name, field, value)

    # --- compaction ---
    def compact(self) -> Wait:
        if not self.is_keyed or self.random.random() < 0.5:
            return
        self.done.append("compact")
        if self.compacted_from is None:
            self.compacted_from = len(self.entries) - len(self.stored())
        self.world.harness.call(lambda: self.actions.compact(self.name))
        yield lambda: self.actions.compaction_status(self.name)["status"] != "RUNNING"
        status = self.actions.compaction_status(self.name)
        assert status["status"] in ("SUCCESS", "NOT_RUN"), status
        if status["status"] == "SUCCESS":
            yield from self.read_compacted(is_fresh=True)

    def read_compacted(self, *, is_fresh: bool = False) -> Wait:
        """Read the compacted view and the entries after it: the result has the newest value of each key."""
        if not self.is_keyed:
            return
        self.done.append("read compacted")
        first = self.compacted_from
        if first is None:
            first = len(self.entries) - len(self.stored())
        wanted = newest(each for tag in self.entries[first:] for each in self.contents[tag])
        peer = self.peer()
        start = {"ledgerId": (1 << 64) - 1, "entryId": (1 << 64) - 1}
        fields = {"durable": False, "read_compacted": True, "start_message_id": start}
        if not (yield from self._subscribed(peer, f"reader{self.serial}", "Exclusive", **fields)):
            return
        found: dict[Message, Keyed] = {}
        is_over = False

        def received() -> bool:
            nonlocal is_over
            for each in peer.messages():
                for place, keyed in keyed_in(each.entry):
                    assert place not in found, (self.text, place, "read twice")
                    assert self.contents[place[0]][place[1]] == keyed
                    found[place] = keyed
            is_over = is_over or bool(peer.take(Command.CLOSE_CONSUMER))
            return is_over or newest(found.values()) == wanted

        yield received
        self.world.harness.settle()
        received()
        order = [(self.entries.index(tag), index) for tag, index in found]
        assert order == sorted(order), (self.text, "not in order")
        if not is_over:
            assert newest(found.values()) == wanted
            if is_fresh:
                assert len(found) == len(wanted), (self.text, found, "that is not all that could go")
        peer.disconnect()
