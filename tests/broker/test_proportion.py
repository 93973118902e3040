"""Costs in proportion, as numbers of lines of Python: of n and 10 n objects, and of single steps."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, TOPIC, Harness, Peer, entry_bytes

FEW, MANY = 20, 200
Work = Callable[[], object]


def consumers(harness: Harness, count: int, kind: str, permits: int = 10, first: int = 0) -> list[Peer]:
    peers = [harness.peer() for _ in range(count)]
    for number, peer in enumerate(peers, first):
        peer.subscribe(TOPIC, kind=kind, permits=permits, consumer_name=f"c{number:05}")
    return peers


def producer(harness: Harness) -> Peer:
    return harness.producer(TOPIC)


def keyed(number: int) -> bytes:
    return entry_bytes(b"x", partition_key=str(number))


# --- all of n objects ---
def opening(kind: str) -> Callable[[Harness, int], Work]:
    return lambda harness, count: lambda: consumers(harness, count, kind)


def closing(kind: str) -> Callable[[Harness, int], Work]:
    def axis(harness: Harness, count: int) -> Work:
        peers, sender = consumers(harness, count, kind), producer(harness)
        # Key_Shared: as many at both sizes, as a message is redelivered log n times while n consumers leave.
        for number in range(10 * (FEW if kind == "Key_Shared" else count)):
            sender.send(number, keyed(number))
        return lambda: [peer.disconnect() for peer in peers]

    return axis


def closing_of_one_client(kind: str) -> Callable[[Harness, int], Work]:
    """The messages that its consumers hold go to the one that stays, once."""

    def axis(harness: Harness, count: int) -> Work:
        peer, sender = harness.peer(), producer(harness)
        for number in range(count):
            peer.subscribe(TOPIC, kind=kind, consumer_id=number, consumer_name=f"c{number:05}")
        sender.send_all(keyed(number) for number in range(10 * count))
        consumers(harness, 1, kind, permits=0, first=count)
        return peer.disconnect

    return axis


def closing_with_blocked_keys(harness: Harness, count: int) -> Work:
    """The first consumer holds messages of keys that belong to the others by now."""
    [first], sender = consumers(harness, 1, "Key_Shared", permits=1000), producer(harness)
    sender.send_all(keyed(number) for number in range(2 * FEW))
    peers = consumers(harness, count, "Key_Shared", first=1)
    sender.send_all(keyed(number % (2 * FEW)) for number in range(10 * FEW))
    return lambda: [peer.disconnect() for peer in (*peers, first)]


def redelivery(kind: str) -> Callable[[Harness, int], Work]:
    def axis(harness: Harness, count: int) -> Work:
        [peer], sender = consumers(harness, 1, kind, permits=10 * count), producer(harness)
        sender.send_all(keyed(number) for number in range(10 * count))
        return lambda: peer.command("redeliverUnacknowledgedMessages", consumer_id=1)

    return axis


def unloading(kind: str) -> Callable[[Harness, int], Work]:
    def axis(harness: Harness, count: int) -> Work:
        consumers(harness, count, kind)
        return lambda: harness.actions.unload(NAME)

    return axis


def clearing(kind: str) -> Callable[[Harness, int], Work]:
    """A consumer holds the whole backlog."""

    def axis(harness: Harness, count: int) -> Work:
        _, sender = consumers(harness, 1, kind, permits=10 * count), producer(harness)
        sender.send_all(keyed(number) for number in range(10 * count))
        return lambda: harness.actions.cursors.skip_all(NAME, "s", lambda error: None)

    return axis


def waiting_producers(harness: Harness, count: int) -> Work:
    """Producers that wait for exclusive access leave together."""
    producer(harness)
    peer = harness.peer()
    for number in range(count):
        peer.command("producer", topic=TOPIC, producer_id=number, request_id=number, producer_access_mode=2)
    return peer.disconnect


def second_schemas(harness: Harness, count: int) -> Work:
    schemas, names = harness.broker.schemas, [TopicName.parse(f"t{number}") for number in range(count)]
    for name in names:
        schemas.put(name, definition("a"), auto_update=True)
    return lambda: [schemas.put(name, definition("b"), auto_update=True) for name in names]


def definition(field: str) -> pb.Schema:
    listed = f'{{"name":"{field}","type":"int","default":0}}'
    text = f'{{"type":"record","name":"r","fields":[{listed}]}}'.encode()
    return pb.Schema(schema_data=text, type=pb.Schema.Json)


def schema_versions(harness: Harness, count: int) -> Work:
    schemas = harness.broker.schemas
    return lambda: [schemas.put(NAME, definition(f"f{number}"), auto_update=True) for number in range(count)]


def failover_of_a_non_persistent_topic(harness: Harness, count: int) -> Work:
    """All but the first are inactive: each is notified once."""
    topic = TOPIC.replace("persistent", "non-persistent")

    def open_and_close() -> None:
        peers = [harness.peer() for _ in range(count)]
        for number, peer in enumerate(peers):
            peer.subscribe(topic, kind="Failover", consumer_name=f"c{number:05}")
        for peer in reversed(peers):
            peer.disconnect()

    return open_and_close


IN_PROPORTION: dict[str, Callable[[Harness, int], Work]] = {
    **{f"open {kind} consumers": opening(kind) for kind in ("Shared", "Key_Shared", "Failover")},
    **{f"close {kind} consumers": closing(kind) for kind in ("Shared", "Key_Shared", "Failover")},
    **{
        f"close a client with {kind} consumers": closing_of_one_client(kind)
        for kind in ("Shared", "Key_Shared")
    },
    **{f"unload {kind} consumers": unloading(kind) for kind in ("Shared", "Key_Shared", "Failover")},
    **{f"redeliver {kind} messages": redelivery(kind) for kind in ("Shared", "Key_Shared")},
    **{f"clear a {kind} backlog": clearing(kind) for kind in ("Shared", "Key_Shared")},
    "close Key_Shared consumers with blocked keys": closing_with_blocked_keys,
    "close producers that wait for exclusive access": waiting_producers,
    "add the second schema of topics": second_schemas,
    "add versions of a schema": schema_versions,
    "open and close Failover consumers of a non-persistent topic": failover_of_a_non_persistent_topic,
}


@pytest.mark.rotating(10)
@pytest.mark.parametrize("name", IN_PROPORTION)
def test_ten_times_the_objects_cost_at_most_twelve_times_as_much(name, make_harness, lines_run):
    few, many = (lines_run(IN_PROPORTION[name](make_harness(), count)) for count in (FEW, MANY))
    assert many <= 12 * few


# --- one object beside n ---
def message_beside(kind: str, how: str) -> Callable[[Harness, int], Work]:
    """A message for the only consumer that can take it."""

    def axis(harness: Harness, count: int) -> Work:
        sender, [ready] = producer(harness), consumers(harness, 1, kind, permits=0, first=count)
        for peer in consumers(harness, count, kind, permits=0 if how == "without permits" else 10):
            peer.writable = how != "unread"
            consumer = peer.session.consumers[1]
            consumer.blocked = how == "blocked"
        sender.send_all(keyed(number) for number in range(20))
        ready.command("flow", consumer_id=1, messagePermits=1000)
        return lambda: [sender.send(number, keyed(number)) for number in range(20, 40)]

    return axis


def foreign_acknowledgements(harness: Harness, count: int) -> Work:
    peers, sender = consumers(harness, count, "Shared", permits=1000), producer(harness)
    sender.publish(50)
    peers[0].ack((0, 0))
    return lambda: peers[-1].ack(*[(0, entry) for entry in range(49, 0, -2)])


def late_acknowledgement(harness: Harness, count: int) -> Work:
    """An acknowledgement of an acknowledged message, on a terminated topic."""
    peers, sender = consumers(harness, count, "Shared"), producer(harness)
    sender.publish(1)
    harness.actions.topic(NAME).terminate(lambda error: None)
    peers[0].ack((0, 0))
    return lambda: peers[0].ack((0, 0))


def newest_schema(harness: Harness, count: int) -> Work:
    schemas = harness.broker.schemas
    for number in range(count):
        schemas.put(NAME, definition(f"f{number}"), auto_update=True)
    return lambda: schemas.put(NAME, definition(f"f{count - 1}"), auto_update=True)


def join_and_leave(kind: str) -> Callable[[Harness, int], Work]:
    def axis(harness: Harness, count: int) -> Work:
        consumers(harness, count, kind)
        return lambda: consumers(harness, 1, kind, first=count)[0].disconnect()

    return axis


BESIDE: dict[str, Callable[[Harness, int], Work]] = {
    **{
        f"a {kind} message, others are {how}": message_beside(kind, how)
        for kind in ("Shared", "Key_Shared") for how in ("without permits", "unread", "blocked")
    },
    "acknowledgements by another consumer": foreign_acknowledgements,
    "a late acknowledgement on a terminated topic": late_acknowledgement,
    "the newest version of a schema": newest_schema,
    **{f"{kind} join and leave": join_and_leave(kind) for kind in ("Shared", "Key_Shared", "Failover")},
}  # fmt: skip


@pytest.mark.rotating(5)
@pytest.mark.parametrize("name", BESIDE)
def test_one_object_costs_the_same_beside_ten_times_as_many(name, make_harness, lines_run):
    few, many = (lines_run(BESIDE[name](make_harness(), count)) for count in (FEW, MANY))
    assert many <= 2 * few


# --- single steps ---
@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
@pytest.mark.parametrize("how", ["redelivered", "disconnected"])
def test_a_large_pending_set_is_given_back_in_several_steps(harness, monkeypatch, kind, how):
    monkeypatch.setattr("geminga.broker.delivery.shared.RETURNED_AT_ONCE_MAX", 10)
    [holder], sender = consumers(harness, 1, kind, permits=95), producer(harness)
    sender.send_all(keyed(number % 7) for number in range(95))
    [other] = consumers(harness, 1, kind, permits=0, first=1)
    dispatcher: Any = other.session.consumers[1].subscription.dispatcher
    harness.auto_poll = False
    if how == "redelivered":
        holder.command("redeliverUnacknowledgedMessages", consumer_id=1)
    else:
        holder.disconnect()
    sizes = [dispatcher.replay_size]
    while sizes[-1] < 95:
        harness.broker.tick(harness.now, harness.now_ms)
        sizes.append(dispatcher.replay_size)
    assert max(after - before for before, after in zip([0, *sizes], sizes, strict=False)) <= 20
    harness.auto_poll = True
    if how == "redelivered":
        holder.disconnect()
    other.command("flow", consumer_id=1, messagePermits=1000)
    harness.advance(1)
    assert other.entry_ids() == list(range(95))


def test_nothing_is_redelivered_to_consumers_that_are_about_to_be_disconnected(harness):
    [holder], sender = consumers(harness, 1, "Shared", permits=50), producer(harness)
    sender.publish(50)
    [other] = consumers(harness, 1, "Shared", permits=1000, first=1)
    harness.actions.unload(NAME)
    assert [len(peer.take(pb.BaseCommand.CLOSE_CONSUMER)) for peer in (holder, other)] == [1, 1]
    assert other.messages() == []
    assert len(consumers(harness, 1, "Shared", permits=1000)[0].messages()) == 50


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared", "Failover"])
def test_consumers_whose_clients_are_not_notified_yet_change_nothing(harness, monkeypatch, kind):
    monkeypatch.setattr("geminga.broker.delivery.consumer.CLOSED_AT_ONCE_MAX", 10)
    peers, sender = consumers(harness, 30, kind), producer(harness)
    sender.publish(50)
    with monkeypatch.context() as patched:
        patched.setattr(type(harness.broker.slices), "turn_used_up", True)
        harness.actions.unload(NAME)
    late = peers[-1]
    assert not late.take(pb.BaseCommand.CLOSE_CONSUMER)
    late.ack(*((0, entry) for entry in range(50)))
    late.messages()
    late.command("unsubscribe", consumer_id=1, request_id=1)
    assert late.take(pb.BaseCommand.ERROR)
    for _ in range(5):
        harness.broker.turn(harness.now, harness.now_ms)
    assert len(late.take(pb.BaseCommand.CLOSE_CONSUMER)) == 1
    harness.poll()
    again = harness.consumer(TOPIC, kind=kind, earliest=False)
    assert again.entry_ids() == list(range(50))


def test_a_client_that_reuses_the_id_of_a_closed_consumer_keeps_the_new_one(harness, monkeypatch):
    monkeypatch.setattr("geminga.broker.delivery.consumer.CLOSED_AT_ONCE_MAX", 1)
    peers = consumers(harness, 2, "Shared")
    with monkeypatch.context() as patched:
        patched.setattr(type(harness.broker.slices), "turn_used_up", True)
        harness.actions.unload(NAME)
    peers[1].command("subscribe", topic=TOPIC, subscription="s", consumer_id=1, request_id=1, subType=1)
    for _ in range(5):
        harness.broker.turn(harness.now, harness.now_ms)
    harness.poll()
    assert [frame.type for frame in peers[1].frames] == [pb.BaseCommand.SUCCESS]


def test_returning_many_entries_does_not_wait_for_the_dispatch_rate(harness, monkeypatch):
    monkeypatch.setattr("geminga.broker.delivery.shared.RETURNED_AT_ONCE_MAX", 10)
    [holder], sender = consumers(harness, 1, "Shared", permits=200), producer(harness)
    sender.publish(95)
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 60}
    harness.broker.namespaces.set_topic_policy(NAME, "topicDispatchRate", {"standalone": rate})
    for number in range(95, 98):
        sender.send(number, entry_bytes())
    dispatcher: Any = holder.session.consumers[1].subscription.dispatcher
    holder.command("redeliverUnacknowledgedMessages", consumer_id=1)
    harness.advance(0.01)
    assert dispatcher.replay_size >= 95


def test_redelivery_to_all_consumers_sends_each_message_once(harness):
    peers, sender = consumers(harness, 5, "Shared", permits=1000), producer(harness)
    sender.publish(50)
    received = [len(peer.messages()) for peer in peers]
    peers[0].session.consumers[1].permits = 0
    subscription = harness.actions.cursors.found(NAME, "s")[1]
    assert subscription.redeliver_unacknowledged() == sum(received) == 50
    again = [message for peer in peers for message in peer.messages()]
    assert sorted(message.entry_id for message in again) == list(range(50))
    assert {message.redelivery_count for message in again} == {1}
