"""Producers with no other permission than to publish cannot make the mirror skip or acknowledge messages of
others."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import geminga
from geminga.client.entry_reader import EntryReader
from geminga.errors import AdminAuthorizationError
from geminga.mirror import history
from geminga.mirror.entries import TargetEntry
from geminga.mirror.keys import KEY_PREFIX, StampKeys
from geminga.mirror.pairing import PAIR_PROPERTY, subscription_of
from geminga.mirror.partition import PartitionMirror
from geminga.mirror.positions import NOWHERE, Position
from geminga.mirror.publishing import EntryPublisher
from geminga.mirror.replication_stamp import StampOrigin, mark_field, marks_in
from geminga.wire.metadata import build_entry, metadata_size
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.mirror.helpers import mirror, mirrored

Earliest = geminga.InitialPosition.Earliest
Shared = geminga.ConsumerType.Shared
pytestmark = pytest.mark.timeout(240)
MINE = subscription_of("standalone")


@pytest.fixture
def sides() -> Iterator[tuple[Any, Any]]:
    with geminga.embedded(batch_index_ack=True) as one, geminga.embedded(batch_index_ack=True) as other:
        yield one, other


def until(what: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def publish(broker: Any, *numbers: int) -> None:
    with broker.client() as client:
        producer = client.create_producer("t")
        for number in numbers:
            producer.send(b"%d" % number)


def publish_raw(broker: Any, entry: bytes, name: str = "", place: Position = NOWHERE) -> None:
    """As anybody can who may publish: bytes of his own, and a name and a sequence id of his own."""
    receipts: list[Position] = []
    name, place = name or secrets.token_hex(8), max(place, Position(0, 0))

    async def send() -> None:
        context = client.context
        publisher = await EntryPublisher.open(
            context, "persistent://public/default/t", name, lambda _, place: receipts.append(place)
        )
        publisher.send(place, TargetEntry(entry, b"", 1))
        deadline = time.monotonic() + 60
        while not receipts:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await publisher.close()

    with broker.client() as client:
        client.runtime.call(send())
    assert receipts[0] > NOWHERE  # else it was dropped as a duplicate


@contextlib.contextmanager
def held(broker: Any, name: str) -> Iterator[Callable[[], None]]:
    """A producer of that name is there, until it is let go."""
    with broker.client() as client:
        context = client.context
        holder = client.runtime.call(
            EntryPublisher.open(context, "persistent://public/default/t", name, lambda *_: None)
        )
        yield lambda: client.runtime.call(holder.close())


def forged(payload: bytes, *fields: bytes, **metadata: Any) -> bytes:
    made = pb.MessageMetadata(producer_name="mallory", sequence_id=0, publish_time=1, **metadata)
    return build_entry(made.SerializeToString() + b"".join(fields), payload)


def mark(pair: bytes, place: Position, after: Position = NOWHERE) -> bytes:
    """With a key that is not the mirror's."""
    return mark_field(StampOrigin(pair, place, after), b"m" * 32)


def pair_in(broker: Any) -> bytes:
    """The pair of the mirror that reads there: everybody sees it who may publish."""
    with geminga.Admin(broker.admin_url) as admin:
        properties = admin.topics.stats("t").subscriptions[MINE].subscription_properties
    return bytes.fromhex(properties[PAIR_PROPERTY])


def entries(broker: Any) -> list[bytes]:
    with broker.client() as client, EntryReader.open(client, "t", geminga.MessageId.earliest) as reader:
        newest, found = reader.last_message_id(), []
        while newest.entry_id >= 0:
            raws = reader.read(1000, 60)
            found += [bytes(raw.entry) for raw in raws]
            if (raws[-1].ledger_id, raws[-1].entry_id) >= (newest.ledger_id, newest.entry_id):
                break
        return found


def field_of(entry: bytes) -> bytes:
    """The mirror's field, as it travels: a copy is signed as the original."""
    end = 10 + metadata_size(entry)
    (found,) = marks_in(entry[10:end])
    size = len(found.body) + len(found.signature)
    start = entry.index(found.body)
    return entry[entry.rindex(b"\xaa\xcf\x03", 0, start) : start + size]


def messages(broker: Any) -> list[int]:
    """All that is there; what is no number is Mallory's."""
    with broker.client() as client:
        reader = client.create_reader("t", geminga.MessageId.earliest)
        found = []
        while reader.has_message_available():
            data = reader.read_next(30_000).data()
            if data.isdigit():
                found.append(int(data))
        return found


def backlog(broker: Any) -> int:
    with geminga.Admin(broker.admin_url) as admin:
        return admin.topics.stats("t").subscriptions["s"].messages_in_backlog


def forget_progress(one: Any, other: Any) -> None:
    """The mirror's subscription is behind, and the target's deduplication has forgotten its name."""
    with geminga.Admin(one.admin_url) as here, geminga.Admin(other.admin_url) as there:
        there.topic_policies.deduplication.set("t", False)
        here.subscriptions.reset_to_id("t", MINE, geminga.MessageId.earliest)


# --- progress ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [Position(0, 24), Position(1 << 34, 7)])
def test_progress_in_the_target_cannot_be_claimed(sides: tuple[Any, Any], place: Position) -> None:
    one, other = sides
    publish(one, *range(20))
    mirrored(one, other)
    publish_raw(other, forged(b"x", mark(pair_in(one), place)))
    publish(one, *range(20, 30))
    assert mirrored(one, other).messages == 10
    assert messages(other) == list(range(30))


def test_a_copied_mark_does_not_set_the_mirror_back(sides: tuple[Any, Any]) -> None:
    one, other = sides
    publish(one, *range(20))
    mirrored(one, other)
    there = entries(other)
    for _ in range(3):
        for entry in there[:6]:
            publish_raw(other, forged(b"x", field_of(entry)))
            publish_raw(other, entry)  # the whole of it
    forget_progress(one, other)
    publish(one, *range(20, 25))
    status = mirrored(one, other)
    assert status.messages == 5
    assert sorted(set(messages(other))) == list(range(25))


def test_copies_lead_no_subscription_astray(sides: tuple[Any, Any]) -> None:
    """The target position of the source's mark is searched by bisection."""
    one, other = sides
    with one.client() as client:
        client.subscribe("t", "s", initial_position=Earliest).close()
    publish(one, *range(40))
    mirrored(one, other)
    copies = [forged(b"x", field_of(entry)) for entry in entries(other)[:5]]
    publish(other, *range(1000, 1200))
    for entry in copies * 6:
        publish_raw(other, entry)
    publish(other, *range(1200, 1300))
    with one.client() as client:
        consumer = client.subscribe("t", "s", consumer_type=Shared)
        for _ in range(4):
            consumer.acknowledge(consumer.receive(30_000))
    mirrored(one, other)
    with other.client() as client:
        consumer = client.subscribe("t", "s", consumer_type=Shared)
        left = [
            int(data) for _ in range(backlog(other)) if (data := consumer.receive(30_000).data()).isdigit()
        ]
    assert sorted(left) == [*range(4, 40), *range(1000, 1300)]


@pytest.mark.parametrize("place", [Position(0, 24), Position(1 << 34, 7)])
def test_another_producer_with_the_mirrors_name_causes_no_gap(
    sides: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, place: Position
) -> None:
    """Deduplication believes him, and would drop what has a lower sequence id."""
    monkeypatch.setattr("geminga.mirror.partition._CLAIM_SECONDS", 0.5)
    one, other = sides
    publish(one, *range(20))
    mirrored(one, other)
    publish_raw(other, forged(b"x"), f"{MINE}.{pair_in(one).hex()}", place)
    publish(one, *range(20, 30))
    assert mirrored(one, other).messages == 10
    publish(one, *range(30, 40))
    assert mirrored(one, other).messages == 10
    assert messages(other) == list(range(40))


# --- entries from the target -------------------------------------------------------------------------------


def test_a_forged_mark_acknowledges_nothing_in_the_target(sides: tuple[Any, Any]) -> None:
    one, other = sides
    with one.client() as client:
        client.subscribe("t", "s", initial_position=Earliest).close()
    mirrored(one, other)
    mirrored(other, one)
    publish(other, *range(10))
    back = pair_in(other)
    for entry in range(10):
        publish_raw(one, forged(b"x", mark(back, Position(0, entry)), replicated_from="standalone"))
    status = mirrored(one, other)
    assert (status.messages, status.partitions[0].skipped) == (10, 0)  # they are messages as any other
    with one.client() as client:
        consumer = client.subscribe("t", "s")
        for _ in range(10):
            consumer.acknowledge(consumer.receive(30_000))
    mirrored(one, other)
    assert backlog(other) == 10  # those of the other side


@pytest.mark.parametrize("runs_on", [True, False])
def test_a_copy_of_an_echo_acknowledges_nothing(sides: tuple[Any, Any], runs_on: bool) -> None:
    one, other = sides
    with one.client() as client:
        client.subscribe("t", "s", initial_position=Earliest).close()
    publish(other, *range(10))
    mirrored(one, other)
    mirrored(other, one)
    loop_detection = entries(one)
    assert len(loop_detection) == 10

    def copy() -> None:
        for entry in loop_detection[3:6]:
            publish_raw(one, forged(b"x", field_of(entry), replicated_from="standalone"))

    with mirror(one, other) as running:
        assert running.wait_until_caught_up(60)
        if runs_on:
            copy()
            until(lambda: running.status().messages == 3)
    if not runs_on:
        copy()
        assert mirrored(one, other).messages == 3
    with one.client() as client:
        consumer = client.subscribe("t", "s", consumer_type=Shared)
        for _ in range(13):
            message = consumer.receive(30_000)
            if not message.data().isdigit():
                consumer.acknowledge(message)
    mirrored(one, other)
    assert backlog(one) == backlog(other) == 10
    # Genuine entries continue as before.
    publish(other, 10)
    mirrored(other, one)
    assert mirrored(one, other).partitions[0].skipped == 1
    assert messages(one) == messages(other) == list(range(11))


def test_a_message_with_marks_of_both_ways_does_not_go_round(sides: tuple[Any, Any]) -> None:
    """A client that reads both clusters can copy marks of either into one message."""
    one, other = sides
    publish(one, *range(3))
    publish(other, *range(3, 6))
    with mirror(one, other) as there, mirror(other, one) as back:
        until(lambda: (there.status().messages, back.status().messages) == (3, 3))
        fields = [
            field_of(next(entry for entry in entries(broker) if marks_in(entry[10:])))
            for broker in (one, other)
        ]
        for order in (fields, fields[::-1]):
            publish_raw(one, forged(b"7", *order, replicated_from="standalone"))
            publish_raw(other, forged(b"8", *order, replicated_from="standalone"))
        for number in range(10, 20):
            publish(one, number)
            until(lambda number=number: number in messages(other))
            publish(other, 10 * number)
            until(lambda number=number: 10 * number in messages(one))
    for broker in sides:
        assert all(messages(broker).count(number) <= 4 for number in (7, 8))
        assert all(messages(broker).count(number) == 1 for number in (*range(6), *range(10, 20)))


# --- the key ------------------------------------------------------------------------------------------------


def test_each_namespace_has_one_key_that_all_mirrors_use(sides: tuple[Any, Any]) -> None:
    one, other = sides
    publish(one, *range(3))
    publish(other, *range(3, 6))
    for _ in range(2):
        mirrored(one, other)
        mirrored(other, one)
    mirrored(one, other, name="second", target_name="other")
    found = []
    for broker in sides:
        with geminga.Admin(broker.admin_url) as admin:
            properties = admin.namespaces.policies("public/default").get("properties", {})
            found.append([key for name, key in properties.items() if name.startswith(KEY_PREFIX)])
    assert [len(keys) for keys in found] == [1, 1]
    assert found[0] != found[1]


def test_a_source_that_keeps_no_key_is_reported(
    sides: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: StampKeys, namespace: str) -> tuple[bytes, ...]:
        raise AdminAuthorizationError("may not", status=403)

    one, other = sides
    publish(one, 1)
    with monkeypatch.context() as patched:
        patched.setattr(StampKeys, "learn", refused)
        status = mirror(one, other, once=True).run(signals=False)
        assert "administration of the tenant" in status.failed[0]
        assert messages(other) == []
    mirrored(one, other)
    assert messages(other) == [1]


def test_what_is_no_key_is_not_used(sides: tuple[Any, Any]) -> None:
    one, other = sides
    with geminga.Admin(one.admin_url) as admin:
        for name, text in (("0", "zz"), ("1", "00"), ("2", "")):
            admin.call(
                "PUT", "namespaces/public/default/properties", {f"{KEY_PREFIX}{name}": text, "else": "x"}
            )
    publish(one, *range(3))
    mirrored(one, other)
    publish_raw(other, forged(b"x", mark_field(StampOrigin(pair_in(one), Position(0, 9), NOWHERE), b"")))
    publish(one, *range(3, 6))
    mirrored(one, other)
    assert messages(other) == list(range(6))


@pytest.mark.parametrize("count", [1, 12])
def test_subscriptions_that_only_say_they_are_mirrors_cost_one_reading_together(
    sides: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Any client that may subscribe chooses name and properties: the source is not searched for each of
    them."""
    one, other = sides
    with one.client() as client:
        consumer = client.subscribe("t", "s")
        publish(one, *range(200))
        for _ in range(100):
            consumer.acknowledge(consumer.receive(10_000))
    mirrored(one, other, subscriptions=False)
    with other.client() as client:
        for number in range(count):
            properties = {PAIR_PROPERTY: secrets.token_hex(8)}
            client.subscribe(
                "t", subscription_of(f"of-nobody-{number}"), subscription_properties=properties,
                initial_position=Earliest,
            ).close()  # fmt: skip
    read = []
    opened = history.open_entries

    async def counted(context: Any, topic: str, start: Any, *, stop_at: Any, **options: Any) -> Any:
        if context is ends[0]:
            read.append(stop_at.entry_id - start.entry_id + 1)
        return await opened(context, topic, start, stop_at=stop_at, **options)

    ends: list[Any] = []

    class Noted(PartitionMirror):
        def __init__(self, given: Any, *rest: Any) -> None:
            ends[:] = [given.source]
            super().__init__(given, *rest)

    monkeypatch.setattr(history, "open_entries", counted)
    monkeypatch.setattr("geminga.mirror.mirror.PartitionMirror", Noted)
    mirrored(one, other)
    assert sum(read) <= 200
    with geminga.Admin(other.admin_url) as admin:
        assert admin.topics.stats("t").subscriptions["s"].messages_in_backlog == 100
