"""The whole core: restarts, crashes, the store underneath, and what one call into it does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geminga.broker.topics.topic import ROUND_SECONDS
from geminga.ids import TopicName
from geminga.ledger.store import FileStore
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.sliced import Sliced

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
Command = pb.BaseCommand


def publish(peer: Any, count: int, first: int = 0) -> None:
    for sequence_id in range(first, first + count):
        peer.send(sequence_id)


# --- over restarts ---
@pytest.mark.parametrize("end", ["restart", "crash"])
def test_receipted_messages_survive_a_restart(harness, end):
    peer, consumer = harness.peer(), harness.peer()
    peer.producer(TOPIC)
    consumer.subscribe(TOPIC)
    publish(peer, 10)
    consumer.ack(*((0, n) for n in (0, 1, 4, 7)), request_id=1)
    assert consumer.take(Command.ACK_RESPONSE)
    getattr(harness, end)()
    consumer = harness.peer()
    consumer.subscribe(TOPIC)
    assert [m.entry_id for m in consumer.messages()] == [2, 3, 5, 6, 8, 9]


def test_ids_only_grow_over_restarts(harness):
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        peer = harness.peer()
        peer.producer(TOPIC)
        publish(peer, 3)
        seen += [(r.ledger_id, r.entry_id) for r in peer.receipts()]
        harness.restart()
    assert seen == sorted(set(seen))
    assert len({ledger for ledger, _ in seen}) == 3


class FileHarness:
    """A harness whose store is a folder; `kill` drops everything that was not handed to the store."""

    def __init__(self, make_harness: Callable[..., Any], folder: Path) -> None:
        self._make = make_harness
        self._folder = folder
        self.open()

    def open(self) -> None:
        self.store = FileStore.open(self._folder, sync="never")
        self.harness = self._make(self.store)

    def reopen(self) -> None:
        self.harness.broker.close()
        self.store.close()
        self.open()


@pytest.fixture
def files(make_harness, tmp_path):
    return FileHarness(make_harness, tmp_path / "store")


def settle(files: FileHarness, peer: Any, kind: int, count: int) -> list[Any]:
    """Poll the store until ``count`` frames of a type have come."""
    found: list[Any] = []
    for _ in range(200_000):
        files.harness.poll()
        found += peer.take(kind)
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} frames came")


def subscribe(files: FileHarness, peer: Any, **fields: Any) -> None:
    peer.command(
        "subscribe", topic=TOPIC, subscription="s", consumer_id=1, request_id=1, initialPosition=1, **fields
    )
    settle(files, peer, Command.SUCCESS, 1)
    peer.command("flow", consumer_id=1, messagePermits=1_000_000)


def test_everything_on_disk_survives_reopening(files):
    peer = files.harness.peer()
    peer.command("producer", topic=TOPIC, producer_id=1, request_id=1)
    settle(files, peer, Command.PRODUCER_SUCCESS, 1)
    consumer = files.harness.peer()
    subscribe(files, consumer, subType=1)
    publish(peer, 500)
    receipts = settle(files, peer, Command.SEND_RECEIPT, 500)
    ids = [(frame.ledger_id, frame.entry_id) for frame in receipts]
    source = random.Random(3)
    acked = set(source.sample(ids, 200))
    consumer.ack(*acked, request_id=7)
    settle(files, consumer, Command.ACK_RESPONSE, 1)
    for _ in range(2):
        files.reopen()
        consumer = files.harness.peer()
        subscribe(files, consumer, subType=1)
        frames = settle(files, consumer, Command.MESSAGE, len(ids) - len(acked))
        found = [(frame.ledger_id, frame.entry_id) for frame in frames]
        assert sorted(found) == sorted(set(ids) - acked)
        consumer.disconnect()


def test_many_holes_survive_a_restart(harness):
    peer = harness.peer()
    peer.producer(TOPIC)
    topic = harness.broker.topics.find(NAME)
    for _ in range(200_000):
        topic.ledger.append(b"", 1, now_ms=0, limits=topic.limits, done=lambda error: None)
    harness.poll()
    topic.ledger.confirmed = topic.ledger.end
    consumer = harness.peer()
    consumer.subscribe(TOPIC, kind="Shared", permits=0)
    subscription = topic.subscriptions["s"]
    for offset in range(0, 200_000, 2):
        subscription.cursor.acknowledge(offset)
    harness.broker.scheduler.mark_cursor(subscription)
    harness.restart()
    cursor = harness.broker.topics.find(NAME).subscriptions["s"].cursor
    assert (cursor.mark, len(cursor.holes), cursor.backlog(200_000)) == (1, 99_999, 100_000)
    value = harness.store.keys.get(f"cursor/{TOPIC}\x00s")
    assert len(value.base) + sum(map(len, value.deltas)) < 700_000


@pytest.mark.parametrize("seed", range(20))
def test_acknowledged_messages_are_not_redelivered_and_others_not_lost(harness, seed):
    """Random work with crashes in between; what was answered holds."""
    source = random.Random(seed)
    published: set[tuple[int, int]] = set()
    acked: set[tuple[int, int]] = set()
    sequence_id = 0
    for _ in range(12):
        peer, consumer = harness.peer(), harness.peer()
        peer.producer(TOPIC, producer_name="p", user_provided_producer_name=True)
        consumer.subscribe(TOPIC, kind=source.choice(["Shared", "Exclusive", "Failover", "Key_Shared"]))
        for _ in range(source.randrange(1, 20)):
            peer.send(sequence_id)
            sequence_id += 1
        published |= {(r.ledger_id, r.entry_id) for r in peer.receipts()}
        found = [(m.ledger_id, m.entry_id) for m in consumer.messages()]
        assert not set(found) & acked
        assert max(Counter(found).values(), default=1) == 1
        assert set(found) == published - acked
        chosen = [each for each in found if source.random() < 0.6]
        consumer.ack(*chosen, request_id=1)
        assert consumer.take(Command.ACK_RESPONSE)
        acked |= set(chosen)
        getattr(harness, source.choice(["restart", "crash"]))()


def test_a_failed_load_is_retried(harness, monkeypatch):
    peer = harness.peer()
    peer.producer(TOPIC)
    publish(peer, 1)
    harness.restart()
    key = f"ledgers/{TOPIC}"
    kept = harness.store.keys.get(key)
    harness.store.keys.put(key, b"\xff")
    peer = harness.peer()
    frame = peer.request("producer", topic=TOPIC, producer_id=1)
    assert frame.command.error.error == pb.PersistenceError
    assert "ledger list" in frame.command.error.message
    harness.store.keys.put(key, b"".join((kept.base, *kept.deltas)))
    assert peer.producer(TOPIC).producer_ready


# --- one call ---
def test_acknowledgements_of_one_call_are_one_write(harness):
    peer = harness.peer()
    peer.producer(TOPIC)
    consumer = harness.peer()
    consumer.subscribe(TOPIC)
    publish(peer, 100)
    from geminga.wire.frames import encode_command

    frames = b""
    for entry in range(100):
        command = pb.BaseCommand(type=Command.ACK)
        command.ack.consumer_id = 1
        command.ack.ack_type = pb.CommandAck.Individual
        command.ack.message_id.add(ledgerId=0, entryId=entry)
        frames += encode_command(command)
    consumer.send_bytes(frames)
    value = harness.store.keys.get(f"cursor/{TOPIC}\x00s")
    assert len(value.deltas) == 1
    assert len(value.deltas[0]) < 10


def test_the_wall_clock_is_extrapolated_in_calls_without_it(harness):
    peer = harness.peer()
    harness.broker.tick(2000.0, 5_000_000)
    peer.session.closed(2001.5)
    assert harness.broker.scheduler.now_ms == 5_001_500


def test_the_deadline_is_known_at_any_time(harness):
    before = harness.broker.deadline
    assert before <= harness.now + ROUND_SECONDS
    harness.peer(connect=False)
    assert harness.broker.deadline == min(before, harness.now + harness.settings.handshake_seconds)


def test_closing_ends_every_session_and_writes_pending_changes(harness):
    peer, consumer = harness.peer(), harness.peer()
    peer.producer(TOPIC)
    consumer.subscribe(TOPIC)
    publish(peer, 1)
    subscription = consumer.session.consumers[1].subscription
    subscription.cursor.acknowledge(0)
    harness.broker.scheduler.mark_cursor(subscription)
    harness.broker.close()
    assert peer.is_closed
    assert consumer.is_closed
    harness.crash()
    assert harness.broker.topics.find(NAME).subscriptions["s"].backlog == 0


def test_many_connections_and_topics_do_not_mix(harness):
    peers = []
    for number in range(50):
        peer = harness.peer()
        topic = f"persistent://public/default/t{number}"
        peer.producer(topic)
        peer.subscribe(topic)
        peers.append(peer)
    for number, peer in enumerate(peers):
        peer.send(number)
    for number, peer in enumerate(peers):
        assert peer.payloads() == [b"m%d" % number]
        assert [r.sequence_id for r in peer.receipts()] == [number]


# --- what a turn has no time for ---
@pytest.mark.parametrize("when", ["poll", "later"])
def test_an_exception_between_two_reports_loses_none(when, monkeypatch):
    monkeypatch.setattr("geminga.ledger.memory._REPORTED_AT_ONCE", 1)
    sliced = Sliced(random.Random(0), 1.0)
    told: list[object] = []
    for number in range(20):
        sliced.store.keys.put(f"k{number}", b"", told.append)
    if when == "later":
        sliced.take_in()

    def fails() -> None:
        monkeypatch.undo()
        raise ValueError("a fault of ours")

    monkeypatch.setattr(sliced.broker.disk, "look", fails)
    if when == "poll":
        with pytest.raises(ValueError, match="a fault of ours"):
            sliced.take_in()
    assert len(told) < 20
    for _ in range(100):
        sliced.turn()  # without polling: the store does not wake the broker for the rest
    assert told == [None] * 20
    assert sliced.broker.scheduler.failures["store"] == (when == "later")
