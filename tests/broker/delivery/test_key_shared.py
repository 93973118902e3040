"""Key_Shared: one key, one consumer, one order."""

import base64
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.delivery import key_shared
from geminga.broker.delivery.key_shared import sticky_key
from geminga.broker.delivery.selectors import ConsistentHashSelector
from geminga.wire.metadata import peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC

STICKY = {"keySharedMode": pb.STICKY}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ordering_key": b"o", "partition_key": "k"}, b"o"),
        ({"partition_key": "kä"}, "kä".encode()),
        (
            {"partition_key": base64.b64encode(b"\x00\xff").decode(), "partition_key_b64_encoded": True},
            b"\x00\xff",
        ),
        ({"partition_key": "no base64!", "partition_key_b64_encoded": True}, b"no base64!"),
        ({"producer_name": "me", "sequence_id": 7}, b"me-7"),
        ({"producer_name": "", "sequence_id": 7}, b"NONE_KEY"),
        ({"ordering_key": b""}, b""),
        (None, b"NONE_KEY"),
    ],
)
def test_sticky_keys_are_read_from_the_metadata_if_it_can_be_read(make_entry, fields, expected):
    assert sticky_key(None if fields is None else peek_entry(make_entry(**fields))) == expected


class Keyed:
    """A topic to which (key, number) pairs are published."""

    def __init__(self, harness: Any, make_entry: Callable[..., bytes]) -> None:
        self.harness = harness
        self._make_entry = make_entry
        self.producer = harness.peer()
        self.producer.producer(TOPIC)
        self.count = 0

    def publish(self, *keys: str, **fields: Any) -> None:
        for key in keys:
            fields |= {"partition_key": key, "sequence_id": self.count}
            self.producer.send(self.count, self._make_entry(b"%d" % self.count, **fields))
            self.count += 1

    def consumer(self, name: str, permits: int = 1000, **fields: Any) -> Any:
        return self.harness.consumer(TOPIC, kind="Key_Shared", consumer_name=name, permits=permits, **fields)


@pytest.fixture
def keyed(harness, make_entry):
    return Keyed(harness, make_entry)


def owner_of(keys: list[str], *names: str) -> dict[str, str]:
    selector = ConsistentHashSelector()
    for name in names:
        selector.add(type("Named", (), {"name": name})())
    return {key: selector.select(selector.slot(key.encode())).name for key in keys}


KEYS = [f"key-{n}" for n in range(40)]


def test_a_consumer_without_permits_holds_up_only_its_own_keys(keyed):
    stuck, going = keyed.consumer("alpha", permits=1), keyed.consumer("beta")
    keyed.publish(*KEYS)
    owners = owner_of(KEYS, "alpha", "beta")
    mine = [n for n, key in enumerate(KEYS) if owners[key] == "alpha"]
    assert going.entry_ids() == [n for n, key in enumerate(KEYS) if owners[key] == "beta"]
    assert stuck.entry_ids() == mine[:1]
    stuck.command("flow", consumer_id=1, messagePermits=100)
    assert stuck.entry_ids() == mine[1:]


@pytest.mark.parametrize("acknowledged", [19, 20, 21, 60])
def test_acknowledged_entries_do_not_block_later_ones_of_their_key(keyed, two_keys, acknowledged):
    """A reconnected consumer acknowledges its earlier entries; its new connection has no permits yet."""
    back, own, *_ = two_keys
    keyed.publish(*[own] * 100)
    back.ack(*((0, entry) for entry in range(acknowledged)))
    assert back.entry_ids() == []
    back.command("flow", consumer_id=1, messagePermits=100)
    assert back.entry_ids() == list(range(acknowledged, 100))


def test_moved_slots_wait_for_their_old_consumer(keyed):
    old = keyed.consumer("alpha")
    keyed.publish(*KEYS)
    assert len(old.entry_ids()) == len(KEYS)
    new = keyed.consumer("beta")
    moved = [key for key, name in owner_of(KEYS, "alpha", "beta").items() if name == "beta"]
    assert moved
    keyed.publish(*KEYS)
    assert new.entry_ids() == []
    first = moved[0]
    old.ack((0, KEYS.index(first)))
    assert new.entry_ids() == [len(KEYS) + KEYS.index(first)]
    old.disconnect()
    found = new.entry_ids()
    again = [n for n in range(2 * len(KEYS)) if n not in (KEYS.index(first), len(KEYS) + KEYS.index(first))]
    assert sorted(found) == again
    for key in KEYS:
        mine = [n for n in found if KEYS[n % len(KEYS)] == key]
        assert mine == sorted(mine)


def test_out_of_order_delivery_does_not_wait(keyed):
    meta = {"keySharedMode": pb.AUTO_SPLIT, "allowOutOfOrderDelivery": True}
    keyed.consumer("alpha", keySharedMeta=meta)
    keyed.publish(*KEYS)
    new = keyed.consumer("beta", keySharedMeta=meta)
    keyed.publish(*KEYS)
    assert new.entry_ids()


def test_sticky_ranges_and_slots_without_an_owner(keyed):
    half = {**STICKY, "hashRanges": [pb.IntRange(start=0, end=32767)]}
    low = keyed.consumer("low", keySharedMeta=half)
    keyed.publish("hello", "key-1")  # slots 64071 and 5536
    assert low.entry_ids() == [1]
    rest = {**STICKY, "hashRanges": [pb.IntRange(start=32768, end=65535)]}
    high = keyed.consumer("high", keySharedMeta=rest)
    assert high.entry_ids() == [0]


def test_consumers_of_different_modes_are_refused(keyed, harness):
    keyed.consumer("a")
    peer = harness.peer()
    meta = {**STICKY, "hashRanges": [pb.IntRange(start=0, end=5)]}
    fields = {"topic": TOPIC, "subscription": "s", "consumer_id": 1, "subType": 3, "keySharedMeta": meta}
    frame = peer.request("subscribe", **fields)
    assert frame.command.error.error == pb.ConsumerBusy


@pytest.fixture
def two_keys(keyed):
    """A consumer without permits and one of its keys, and a consumer with permits and one of its keys."""
    stuck, going = keyed.consumer("alpha", permits=0), keyed.consumer("beta")
    owners = owner_of(KEYS, "alpha", "beta")
    keys = [next(key for key in KEYS if owners[key] == name) for name in ("alpha", "beta")]
    return stuck, keys[0], going, keys[1]


def test_entries_held_for_blocked_keys_are_bounded(keyed, harness, two_keys, monkeypatch):
    monkeypatch.setattr(key_shared, "LOOK_AHEAD_PER_CONSUMER_MAX", 5)
    stuck, blocked, going, free = two_keys
    keyed.publish(*[blocked] * 40, free)
    assert 10 <= harness.subscription().dispatcher.replay_size <= 10 + 20
    assert going.entry_ids() == []
    stuck.command("flow", consumer_id=1, messagePermits=100)
    assert stuck.entry_ids() == list(range(40))
    assert going.entry_ids() == [40]


def test_a_full_look_ahead_does_not_hold_up_due_messages_of_other_keys(keyed, harness, two_keys, monkeypatch):
    monkeypatch.setattr(key_shared, "LOOK_AHEAD_PER_CONSUMER_MAX", 5)
    stuck, blocked, going, free = two_keys
    keyed.publish(*[blocked] * 100, *[free] * 100, deliver_at_time=harness.now_ms + 1000)
    keyed.publish(*[blocked] * 40)
    assert stuck.session.consumers[1].subscription.dispatcher.look_ahead_full
    harness.advance(1)
    assert going.entry_ids() == list(range(100, 200))
    stuck.command("flow", consumer_id=1, messagePermits=1000)
    assert stuck.entry_ids() == [*range(100), *range(200, 240)]


def test_due_messages_that_wait_for_a_consumer_are_bounded(keyed, harness, two_keys, monkeypatch):
    monkeypatch.setattr(key_shared, "DUE_AHEAD_MAX", 200)
    stuck, blocked, going, free = two_keys
    keyed.publish(*[blocked] * 1000, free, deliver_at_time=harness.now_ms + 1000)
    harness.advance(1)
    consumer = stuck.session.consumers[1]
    dispatcher = consumer.subscription.dispatcher
    assert 200 <= dispatcher.queued_for(consumer) <= 300
    assert (dispatcher.replay_size, going.entry_ids()) == (1001, [])
    stuck.command("flow", consumer_id=1, messagePermits=1000)
    harness.advance(1)
    assert (stuck.entry_ids(), going.entry_ids()) == (list(range(1000)), [1000])


def test_delayed_messages_keep_their_slot(keyed, harness):
    consumer = keyed.consumer("a")
    keyed.publish("k", deliver_at_time=harness.now_ms + 1000)
    keyed.publish("k")
    assert consumer.entry_ids() == [1]
    harness.advance(1)
    assert consumer.entry_ids() == [0]


@pytest.mark.parametrize("seed", range(25))
def test_each_keys_order_holds_while_consumers_join_and_leave(keyed, seed, monkeypatch):
    """A key's entries are first delivered in order, and never to two consumers at the same time."""
    if seed % 2:
        monkeypatch.setattr("geminga.broker.delivery.shared.RETURNED_AT_ONCE_MAX", 2)
    source = random.Random(seed)
    peers: dict[str, Any] = {}
    pending: dict[str, dict[int, str]] = defaultdict(dict)
    acked: set[int] = set()
    names = iter(range(1000))
    keys: list[str] = []

    def collect() -> None:
        for name, peer in peers.items():
            for entry in peer.entry_ids():
                key = keys[entry]
                assert entry not in acked
                holders = {other for other, held in pending.items() if other != name and key in held.values()}
                assert not holders, f"{key} is pending on {holders} and sent to {name}"
                older = [n for n in range(entry) if keys[n] == key and n not in acked]
                assert all(n in pending[name] for n in older), f"{entry} overtook {older}"
                pending[name][entry] = key

    for _ in range(80):
        action = source.random()
        if action < 0.35 or not peers:
            new = [f"k{source.randrange(12)}" for _ in range(source.randrange(1, 12))]
            keys += new
            keyed.publish(*new)
        if action < 0.1 or not peers:
            name = f"c{next(names)}"
            peers[name] = keyed.consumer(name, permits=source.choice([0, 5, 50]))
        elif action < 0.2:
            name = source.choice(list(peers))
            pending.pop(name, None)
            peers.pop(name).disconnect()
        elif action < 0.5:
            peer, permits = peers[source.choice(list(peers))], source.randrange(1, 20)
            peer.command("flow", consumer_id=1, messagePermits=permits)
        else:
            name = source.choice(list(peers))
            collect()
            chosen = [n for n in pending[name] if source.random() < 0.5]
            for entry in chosen:
                del pending[name][entry]
            acked.update(chosen)
            peers[name].ack(*((0, entry) for entry in chosen))
        collect()
    for peer in peers.values():
        peer.disconnect()
    pending.clear()
    peers.clear()
    peers["last"] = keyed.consumer("last", permits=10_000)
    collect()
    assert acked | set(pending["last"]) == set(range(len(keys)))


def test_entries_go_back_to_the_consumer_that_their_slot_is_bound_to(keyed):
    moving = next(key for key, owner in owner_of(KEYS, "alpha", "beta").items() if owner == "beta")
    alpha = keyed.consumer("alpha", permits=1)
    keyed.publish(moving, moving, *KEYS)
    assert alpha.entry_ids() == [0]
    beta = keyed.consumer("beta", permits=0)
    alpha.command("flow", consumer_id=1, messagePermits=1)
    beta.disconnect()
    alpha.command("flow", consumer_id=1, messagePermits=1000)
    assert sorted(alpha.entry_ids()) == list(range(1, 42))


def test_a_key_moves_to_another_consumer_only_after_a_complete_chunked_message(harness, producer, make_entry):
    def send_chunks(number: int) -> None:
        for key in range(20):
            fields = {"partition_key": f"k{key}", "uuid": f"u{key}", "chunk_id": number}
            producer.send(0, make_entry(b"part", num_chunks_from_msg=2, **fields), is_chunk=True)

    first = harness.consumer(TOPIC, kind="Key_Shared")
    send_chunks(0)
    second = harness.consumer(TOPIC, kind="Key_Shared")
    send_chunks(1)
    assert (first.entry_ids(), second.entry_ids()) == ([*range(40)], [])
    send_chunks(0)
    first.ack(*((0, entry) for entry in range(40)))
    moved = second.entry_ids()
    assert 0 < len(moved) < 20
    assert sorted([*moved, *first.entry_ids()]) == [*range(40, 60)]
