"""Compaction: what is left of a topic, who gets it, and that nothing is lost on the way."""

import dataclasses
import gc
import logging
import weakref
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from doubles import calls_of

from geminga.broker.admin.errors import AdminRefusal, admin_error
from geminga.broker.delivery.cursor_writer import cursor_key
from geminga.broker.delivery.subscription import COMPACTION, PersistentSubscription
from geminga.broker.entries import compacted_view
from geminga.broker.entries.compacted_view import owner_of
from geminga.broker.runtime import background_jobs
from geminga.broker.runtime.cooperative import CooperativeScheduler, at_once
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics.compaction import LEDGER_PROPERTY
from geminga.errors import StoreFull
from geminga.ids import MessageId, TopicName
from geminga.ledger.api import LostWrites, StoredValue
from geminga.ledger.damage import Damage, DamageLoss, EntriesDamaged
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.batch_model import open_batch
from tests.broker.conftest import NAME, START_MS, SUBSCRIBE, Harness, Peer
from tests.support.disk_stores import SMALL_FILES, open_store, succeeded
from tests.support.entries import batch_entry, in_batch, single_entry
from tests.support.faulty_filesystem import Fate, Plan, PowerLoss, SimulatedDisk

Pair = tuple[str | None, bytes]
SECRET = [pb.EncryptionKeys(key="k", value=b"v")]
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


def single(key: str | None, value: bytes, **fields: Any) -> bytes:
    return single_entry(value, publish_time=START_MS, partition_key=key, **fields)


def batch(pairs: list[Pair], **fields: Any) -> bytes:
    messages = [in_batch(value, sequence_id=3, partition_key=key) for key, value in pairs]
    return batch_entry(messages, publish_time=START_MS, **fields)


def messages_of(entry: bytes) -> list[Pair]:
    """The messages that a client would deliver."""
    parsed = parse_entry(entry)
    if not parsed.metadata.HasField("num_messages_in_batch"):
        key = parsed.metadata.partition_key if parsed.metadata.HasField("partition_key") else None
        return [(key, bytes(parsed.payload))]
    opened = open_batch(entry)
    assert opened is not None
    found: list[Pair] = []
    for index, message in enumerate(opened.messages):
        if message is not None:
            data = opened.body[opened.starts[index] : opened.starts[index + 1]]
            size = int.from_bytes(data[:4], "big")
            key = None if message[0] is None else message[0].decode()
            found.append((key, data[4 + size :]))
    return found


def finish(harness: Harness) -> None:
    """Until nothing is left to do now."""
    for _ in range(100_000):
        harness.poll()
        harness.broker.turn(harness.now, harness.now_ms)
        if not harness.broker.slices.waiting and not harness.store.is_writing:
            harness.poll()
            topic: Any = harness.broker.topics.in_memory(NAME)
            if topic is None or topic.compaction is None or not topic.compaction.is_running:
                return
    raise AssertionError("compaction does not end")


def outcome(harness: Harness) -> dict[str, str]:
    """The status after a compaction."""
    harness.actions.compact(NAME)
    finish(harness)
    return harness.actions.compaction_status(NAME)


def compact(harness: Harness) -> None:
    assert outcome(harness) == {"status": "SUCCESS", "lastError": ""}


def entries(harness: Harness, **fields: Any) -> list[tuple[tuple[int, int], bytes]]:
    """Everything that a reader from the beginning is sent, with the ids of the entries."""
    options = {"durable": False, "read_compacted": True, "permits": 1_000_000, **fields}
    peer = harness.consumer("t", "reader", 7, **options)
    for _ in range(50):
        harness.poll()
    found = [((each.ledger_id, each.entry_id), bytes(each.entry)) for each in peer.messages()]
    peer.disconnect()
    return found


def read(harness: Harness, **fields: Any) -> list[tuple[tuple[int, int], Pair]]:
    return [(position, pair) for position, entry in entries(harness, **fields) for pair in messages_of(entry)]


def pairs_of(consumer: Peer) -> list[Pair]:
    """The messages that the consumer was sent."""
    return [pair for each in consumer.messages() for pair in messages_of(bytes(each.entry))]


def publisher(harness: Harness, entries: Iterable[bytes] = ()) -> Peer:
    """A producer that has sent these entries."""
    peer = harness.producer("t")
    for number, entry in enumerate(entries):
        peer.send(number, entry)
    return peer


def numbered(numbers: Iterable[int], keys: int) -> list[bytes]:
    """Messages with these numbers, under ``keys`` keys in turn."""
    return [single(f"k{number % keys}", b"%d" % number) for number in numbers]


def compacted_ledgers(harness: Harness) -> int:
    """The number of the topic's compacted ledgers in the store."""
    return len(harness.store.ledgers(owner_of(NAME.text)))


def newest(pairs: list[Pair]) -> dict[str, bytes]:
    """Return the newest value of each key, as compaction must keep it."""
    kept: dict[str, bytes] = {}
    for key, value in pairs:
        if key is None:
            continue
        kept.pop(key, None)
        if value:
            kept[key] = value
    return kept


def test_the_newest_message_of_each_key_keeps_its_id(harness):
    peer = publisher(harness, numbered(range(30), 3))
    peer.send(30, single(None, b"no key"))
    peer.send(31, single("k1", b""))
    before = dict(read(harness, read_compacted=False))
    compact(harness)
    found = read(harness)
    assert [pair for _, pair in found] == [("k0", b"27"), ("k2", b"29")]
    assert all(before[position] == pair for position, pair in found)
    # Later entries are read from the topic itself.
    peer.send(32, single("k0", b"new"))
    assert [pair for _, pair in read(harness)] == [("k0", b"27"), ("k2", b"29"), ("k0", b"new")]
    assert len(read(harness, read_compacted=False)) == 33


def test_any_history_compacts_to_the_newest_values(make_harness):
    random = Random(7)
    harness = make_harness(ledger_entries_max=50)
    peer = publisher(harness)
    sent: list[Pair] = []
    for round_ in range(4):
        for _ in range(60):
            pairs: list[Pair] = [
                (random.choice([f"key-{random.randrange(60)}", f"k{random.randrange(5)}", None]),
                 b"" if random.random() < 0.2 else b"v%d" % random.randrange(10**6))
                for _ in range(random.choice([1, 1, 2, 5, 7]))
            ]  # fmt: skip
            if len(pairs) == 1 and random.random() < 0.7:
                peer.send(0, single(*pairs[0]))
            else:
                kind = random.choice([pb.NONE, pb.ZSTD])
                peer.send(0, batch(pairs, compression=kind), messages=len(pairs))
            sent += pairs
        compact(harness)
        found = [pair for _, pair in read(harness)]
        assert dict(found) == newest(sent), round_
        assert len(found) == len(newest(sent))
        assert [key for key, _ in found] == list(newest(sent))
        if round_ == 2:
            harness.restart()
            peer = publisher(harness)
            assert dict(pair for _, pair in read(harness)) == newest(sent)
    assert compacted_ledgers(harness) == 1


def test_trimmed_messages_stay_in_the_compacted_view(make_harness):
    harness = make_harness(ledger_entries_max=5, retention_minutes=0, retention_megabytes=0)
    publisher(harness, numbered(range(23), 4))
    compact(harness)
    harness.advance(3600)
    assert harness.topic().ledger.start > 15  # retention keeps nothing
    harness.restart()
    publisher(harness).send(23, single("k0", b"live"))
    expected = [("k3", b"19"), ("k0", b"20"), ("k1", b"21"), ("k2", b"22"), ("k0", b"live")]
    assert [pair for _, pair in read(harness)] == expected
    publisher(harness, numbered(range(24, 60), 4))
    harness.advance(3600)
    assert harness.topic().ledger.start <= 23  # not compacted yet
    compact(harness)
    assert [pair for _, pair in read(harness)] == [(f"k{n % 4}", b"%d" % n) for n in range(56, 60)]


def test_a_reader_continues_at_its_position(make_harness):
    harness = make_harness(ledger_entries_max=5, retention_minutes=0, retention_megabytes=0)
    publisher(harness, (single(f"k{number if number < 20 else 0}", b"%d" % number) for number in range(40)))
    compact(harness)
    harness.advance(3600)
    full = read(harness)
    assert [int(pair[1]) for _, pair in full] == [*range(1, 20), 39]
    place = full[7][0]
    rest = read(harness, start_message_id={"ledgerId": place[0], "entryId": place[1]})
    assert rest == full[7:]


@pytest.mark.parametrize("placed", ["latest", "seek to latest", "seek ahead"])
@pytest.mark.parametrize("before", [0, 7])
def test_messages_after_compaction_are_not_skipped(make_harness, placed, before):
    """A subscription from the end of an empty or trimmed topic receives newer messages."""
    harness = make_harness(ledger_entries_max=5, retention_minutes=0, retention_megabytes=0)
    publisher(harness, (single(f"old{number}", b"old") for number in range(before)))
    consumer = harness.consumer("t", earliest=placed != "latest", read_compacted=True, permits=0)
    if placed != "latest":
        place = LATEST if placed == "seek to latest" else {"ledgerId": 1 << 40, "entryId": 3}
        consumer.command("seek", consumer_id=1, request_id=9, message_id=place)
        harness.poll()
    consumer.disconnect()
    harness.advance(3600)
    publisher(harness, numbered(range(before, before + 4), 2))
    compact(harness)
    consumer = harness.consumer("t", read_compacted=True)
    harness.poll()
    assert pairs_of(consumer) == [(f"k{number % 2}", b"%d" % number) for number in (before + 2, before + 3)]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("earliest", [False, True])
def test_trimmed_messages_are_not_redelivered(make_harness, earliest, restarts):
    """The topic begins where a subscription is then, as it does for one that is new."""
    harness = make_harness(ledger_entries_max=5, retention_minutes=0, retention_megabytes=0)

    def received(name: str, **options: Any) -> list[Pair]:
        consumer = harness.consumer("t", name, read_compacted=True, **options)
        harness.advance(1)
        messages = consumer.messages()
        if messages:
            consumer.ack((messages[-1].ledger_id, messages[-1].entry_id), cumulative=True)
        consumer.disconnect()
        return [pair for each in messages for pair in messages_of(bytes(each.entry))]

    def trimmed() -> None:
        harness.advance(3600)
        topic = harness.topic()
        assert topic.ledger.start == topic.ledger.end
        if restarts:
            harness.restart()

    publisher(harness, numbered(range(10), 4))
    compact(harness)
    kept = [(f"k{number % 4}", b"%d" % number) for number in range(6, 10)]
    assert received("c", earliest=earliest) == (kept if earliest else [])
    trimmed()
    assert received("c") == []
    assert received("new") == kept
    publisher(harness).send(10, single("k0", b"new"))
    compact(harness)
    assert received("c") == [("k0", b"new")]
    assert received("c") == []


MOVES: dict[str, Callable[[Peer, Any, int], object]] = {
    "seek": lambda peer, cursors, now: peer.request("seek", consumer_id=1, message_id=LATEST),
    "seek to now": lambda peer, cursors, now: peer.request("seek", consumer_id=1, message_publish_time=now),
    "reset": lambda peer, cursors, now: cursors.reset(NAME, "c", succeeded, position=MessageId.latest),
    "reset to now": lambda peer, cursors, now: cursors.reset(NAME, "c", succeeded, timestamp_ms=now),
    "behind the last": lambda peer, cursors, now: cursors.reset(
        NAME, "c", succeeded, position=MessageId(-1, 1, 4, -1), excluded=True
    ),
    "created": lambda peer, cursors, now: cursors.create(NAME, "c", MessageId.latest, succeeded),
}


@pytest.mark.parametrize("how", MOVES)
def test_a_subscription_moved_to_the_end_gets_nothing_older(make_harness, how):
    """All entries are trimmed, so that the end is the topic's beginning too. Also holds after a restart."""
    harness = make_harness(ledger_entries_max=5, retention_minutes=0, retention_megabytes=0)
    publisher(harness, numbered(range(10), 4))
    compact(harness)
    harness.advance(3600)
    topic = harness.topic()
    assert topic.ledger.start == topic.ledger.end
    consumer = harness.peer()
    if how != "created":
        consumer.subscribe("t", "c", read_compacted=True, permits=0)
    assert topic.compacted.seal.last[:2] == (1, 4), "the last entry"
    MOVES[how](consumer, harness.actions.cursors, harness.now_ms)
    consumer.disconnect()
    harness.restart()
    publisher(harness).send(10, single("k0", b"new"))
    compact(harness)
    consumer = harness.consumer("t", "c", read_compacted=True)
    harness.advance(1)
    assert pairs_of(consumer) == [("k0", b"new")]
    # And who wants everything again gets it.
    harness.actions.cursors.reset(NAME, "c", succeeded, position=MessageId.earliest)
    consumer = harness.consumer("t", "c", read_compacted=True)
    harness.advance(1)
    assert pairs_of(consumer) == [("k2", b"6"), ("k3", b"7"), ("k1", b"9"), ("k0", b"new")]


def test_a_reader_keeps_the_compacted_ledger_that_it_reads(harness):
    peer = publisher(harness, (single(f"k{number}", b"1") for number in range(10)))
    compact(harness)
    reader = harness.consumer("t", "slow", 7, durable=False, read_compacted=True, permits=2)
    assert len(reader.messages()) == 2
    peer.send_all(single(f"k{number}", b"" if number == 5 else b"2") for number in range(10))
    compact(harness)
    assert compacted_ledgers(harness) == 2
    reader.command("flow", consumer_id=7, messagePermits=1000)
    harness.poll()
    found = pairs_of(reader)
    # The deletion of k5 is among them: it was in what the reader had begun with.
    assert ("k5", b"") in found
    assert len(found) == 8 + 10
    assert compacted_ledgers(harness) == 1


def test_a_reader_keeps_its_compacted_ledger_when_compaction_ends(harness, monkeypatch):
    monkeypatch.setattr(compacted_view, "ENTRIES_PER_FETCH", 2)
    peer = publisher(harness)
    reader = harness.peer()
    for value in (b"1", b"2"):
        peer.send_all(single(f"k{number}", value) for number in range(10))
        compact(harness)
        if value == b"1":
            reader.subscribe("t", "slow", 7, durable=False, read_compacted=True, permits=3)
    harness.topic().subscriptions[COMPACTION].delete(None)
    reader.command("flow", consumer_id=7, messagePermits=1000)
    harness.advance(60)
    assert pairs_of(reader) == [(f"k{number}", value) for value in (b"1", b"2") for number in range(10)]
    assert not compacted_ledgers(harness)


@pytest.mark.parametrize("is_wanted_again", [False, True])
def test_a_compacted_ledger_of_a_deleted_subscription_is_not_used(make_harness, monkeypatch, is_wanted_again):
    """A reader keeps the compacted ledger for a while; then the process is killed."""
    monkeypatch.setattr(compacted_view, "ENTRIES_PER_FETCH", 2)
    harness = make_harness(ledger_entries_max=5, retention_minutes=0, retention_megabytes=0)
    peer = publisher(harness, (single(f"k{number}", b"old") for number in range(10)))
    compact(harness)
    harness.peer().subscribe("t", "slow", 7, durable=False, read_compacted=True, permits=3)
    topic = harness.topic()
    topic.subscriptions[COMPACTION].delete(None)
    for number in range(10, 20):
        peer.send(number, single(f"k{number - 10}", b"new"))
    harness.advance(3600)
    assert topic.ledger.start == topic.ledger.end == 20
    assert compacted_ledgers(harness)
    if is_wanted_again:
        topic.subscription(COMPACTION, offset=topic.ledger.start)
    harness.crash()
    topic = harness.topic()
    assert topic.compacted is None
    assert not compacted_ledgers(harness)
    assert read(harness) == []


def begin_compactions(harness: Harness, *, others: int, entries: int = 1) -> list[TopicName]:
    """Begin to compact this topic and others with ``entries`` entries each, without polling the store."""
    peer = publisher(harness, (single("k", b"%d" % number) for number in range(10)))
    names = [NAME, *(TopicName.parse(f"other{number}") for number in range(others))]
    peer.receipts()
    for number, name in enumerate(names[1:], 2):
        peer.producer(name.text, number)
        for _ in range(entries):
            peer.send(0, single("k", b"1"), producer_id=number)
            peer.receipts()
    peer.disconnect()
    harness.auto_poll = False
    for name in names:
        harness.actions.compact(name)
    return names


def test_closing_during_a_compaction_is_no_failure(harness, monkeypatch, caplog):
    """Compactions that wait for their turn do not begin then."""
    monkeypatch.setattr(background_jobs, "SLICE_SECONDS", -1.0)
    begin_compactions(harness, others=50)
    topic: Any = harness.broker.topics.in_memory(NAME)
    while not topic.compaction.bytes_read:
        harness.store.poll()
        harness.broker.tick(harness.now, harness.now_ms)
    assert topic.compaction.is_running
    fetched: list[Any] = []
    monkeypatch.setattr(harness.store, "fetch", lambda *args, **more: fetched.append(args))
    harness.restart()
    assert not fetched
    assert not [each for each in caplog.records if each.levelno > logging.INFO]
    monkeypatch.undo()
    harness.auto_poll = True
    compact(harness)
    assert [pair for _, pair in read(harness)] == [("k", b"9")]


def test_many_waiting_compactions_without_work_end(harness, monkeypatch):
    names = begin_compactions(harness, others=600, entries=0)
    harness.auto_poll = True
    finish(harness)
    harness.advance(1)
    for name in names:
        assert harness.actions.compaction_status(name) == {"status": "SUCCESS", "lastError": ""}


def test_a_truncation_ends_a_running_compaction(make_harness, monkeypatch):
    """Between its passes too: what there is then is not the newest of each key."""
    monkeypatch.setattr(background_jobs, "SLICE_SECONDS", -1.0)
    before = [("k0", b"8"), ("k1", b"9")]
    after = [("k0", b"8"), ("k1", b"19")]
    seen = set()
    for steps in range(1, 60, 2):
        harness = make_harness(ledger_entries_max=4)
        peer = publisher(harness, numbered(range(10), 2))
        compact(harness)
        for number in range(10, 20):
            peer.send(number, single("k1", b"%d" % number))
        harness.auto_poll = False
        harness.actions.compact(NAME)
        for _ in range(steps):
            harness.store.poll()
            harness.broker.tick(harness.now, harness.now_ms)
        harness.actions.topic(NAME).truncate(lambda _: None)
        harness.auto_poll = True
        finish(harness)
        status = harness.actions.compaction_status(NAME)["status"]
        assert [pair for _, pair in read(harness)] == (after if status == "SUCCESS" else before)
        seen.add(status)
    assert seen == {"SUCCESS", "ERROR"}


def test_the_last_message_id_is_of_a_delivered_message(harness):
    peer = publisher(harness)
    peer.send(0, batch([("a", b"1"), ("b", b"2"), ("c", b"3")]), messages=3)
    peer.send(3, single("c", b""))
    compact(harness)
    reader = harness.consumer("t", "r", 7, durable=False, read_compacted=True)
    found = reader.messages()[0]
    last = reader.last_message_id(7)
    assert (last.ledgerId, last.entryId, last.batch_index) == (found.ledger_id, found.entry_id, 1)
    peer.send(4, single("d", b"4"))
    assert len(reader.messages()) == 1
    assert reader.last_message_id(7).entryId == 2


def test_the_last_message_id_of_a_whole_batch_is_its_last_message(harness):
    """A smaller id would make a client that reads up to the last message skip the rest of the batch."""
    peer = publisher(harness)
    peer.send(0, batch([("a", b"1"), ("b", b"2"), ("c", b"3")], encryption_keys=SECRET), messages=3)
    reader = harness.consumer("t", "r", 7, durable=False, read_compacted=True)
    found = []
    for _ in range(2):
        reader.messages()
        found.append(reader.last_message_id(7).batch_index)
        compact(harness)
    assert found == [2, 2]


def test_unreadable_messages_are_kept(harness):
    peer = publisher(harness)
    peer.send(0, batch([("a", b"1"), ("b", b"2")], encryption_keys=SECRET), messages=2)
    peer.send(2, single("a", b"secret", encryption_keys=SECRET))
    peer.send(3, single("a", b"newer", encryption_keys=SECRET))
    broken = batch([("a", b"1"), ("b", b"2")])
    metadata = parse_entry(broken).metadata
    metadata.num_messages_in_batch = 3
    peer.send(4, build_entry(metadata.SerializeToString(), bytes(parse_entry(broken).payload)), messages=3)
    ids = [position for position, _ in entries(harness)]
    compact(harness)
    assert [position for position, _ in entries(harness)] == [ids[0], ids[2], ids[3]]


def test_deleted_keys_stay_deleted_in_unreadable_batches(harness):
    """An encrypted batch stays whole, with the keys that were deleted behind it: that stays, too."""
    peer = publisher(harness)
    keys = 6
    peer.send(0, single("k0", b"before"))
    peer.send(1, single("k0", b""))
    pairs: list[Pair] = [(f"k{number}", b"1") for number in range(keys)]
    peer.send(2, batch(pairs, encryption_keys=SECRET), messages=keys)
    peer.send(3, batch([("k1", b""), ("k2", b"2")]), messages=2)
    peer.send(5, single("k3", b""))
    peer.send(6, batch([(f"k{number}", b"") for number in range(4, keys)]), messages=keys - 4)
    for _ in range(2):
        compact(harness)
        kept: dict[str | None, bytes] = {}
        for _, entry in entries(harness):
            body = bytes(parse_entry(entry).payload)
            is_secret = bool(parse_entry(entry).metadata.encryption_keys)
            kept |= dict(pairs if is_secret else messages_of(entry)) if body else {"k3": b""}
        assert {key: value for key, value in kept.items() if value} == {"k0": b"1", "k2": b"2"}
        peer.send(7, single("other", b""))


def test_messages_without_a_key_are_kept_if_configured(make_harness):
    harness = make_harness(compaction_retain_null_key=True)
    peer = publisher(harness)
    peer.send(0, single(None, b"1"))
    peer.send(1, batch([(None, b"2"), ("a", b"3"), ("a", b"4")]), messages=3)
    compact(harness)
    assert [pair for _, pair in read(harness)] == [(None, b"1"), (None, b"2"), ("a", b"4")]


def test_the_threshold_of_the_policies_starts_compaction(make_harness):
    harness = make_harness(ledger_entries_max=10, retention_minutes=0, retention_megabytes=0)
    harness.broker.namespaces.set_policy("public", "default", "compaction_threshold", 2000)
    peer = publisher(harness, (single(f"k{number % 2}", b"x" * 10) for number in range(10)))
    harness.advance(120)
    finish(harness)
    topic = harness.topic()
    assert COMPACTION in topic.subscriptions
    assert topic.compacted is None
    assert topic.ledger.start == 0  # entries that are not compacted yet are not trimmed
    peer.send_all(single(f"k{number % 2}", b"x" * 10) for number in range(100))
    for _ in range(10):
        harness.advance(60)
        finish(harness)
    assert topic.compacted.entries == 2
    assert topic.ledger.start > 50


def test_a_failed_compaction_is_retried_after_many_times_its_duration(make_harness):
    """One with too many keys reads the topic from the start each time."""
    harness = make_harness(compaction_memory_bytes_max=1024 * 1024)
    publisher(harness, (single(f"{number:050000}", b"1") for number in range(30)))
    harness.actions.compact(NAME)
    harness.now += 30
    finish(harness)
    topic = harness.topic()
    assert topic.compaction.status == "ERROR"
    assert topic.compaction.retry_ms == harness.now_ms + 600_000


def test_status_stats_and_refusals_are_reported(harness):
    publisher(harness, (single("k", b"%d" % number) for number in range(5)))
    assert harness.actions.compaction_status(NAME) == {"status": "NOT_RUN", "lastError": ""}
    harness.actions.compact(NAME)
    if harness.actions.compaction_status(NAME)["status"] == "RUNNING":
        with pytest.raises(Refused, match="already in progress") as refused:
            harness.actions.compact(NAME)
        assert admin_error(refused.value).status == 409
    finish(harness)
    topic = harness.topic()
    stats = harness.actions.stats(NAME)["compaction"]
    assert stats["lastCompactionRemovedEventCount"] == 4
    assert stats["lastCompactionSucceedTimestamp"] == harness.now_ms
    internal = at_once(harness.actions.internal_stats(NAME))
    assert internal["compactedLedger"]["entries"] == 1
    ledger_id = internal["compactedLedger"]["ledgerId"]
    assert internal["cursors"][COMPACTION]["properties"][LEDGER_PROPERTY] == ledger_id
    with pytest.raises(AdminRefusal, match="cannot be moved"):
        harness.actions.cursors.skip_all(NAME, COMPACTION, succeeded)
    frame = harness.peer().request("subscribe", **(SUBSCRIBE | {"subscription": COMPACTION}))
    assert frame.command.error.error == pb.NotAllowedError
    harness.actions.cursors.delete(NAME, COMPACTION, succeeded)
    assert topic.compacted is None
    assert not compacted_ledgers(harness)
    assert len(read(harness)) == 5


def test_a_topic_that_is_deleted_during_its_compaction_leaves_nothing(make_harness, monkeypatch):
    was_running = 0
    for steps in range(40):
        harness = make_harness()
        publisher(harness, numbered(range(10), 4)).disconnect()
        compact(harness)
        publisher(harness, numbered(range(10), 4)).disconnect()
        monkeypatch.setattr(background_jobs, "SLICE_SECONDS", -1.0)
        topic = weakref.ref(harness.topic())
        harness.auto_poll = False
        harness.actions.compact(NAME)
        for _ in range(steps):
            harness.store.poll()
            harness.broker.tick(harness.now, harness.now_ms)
        was_running += topic().compaction.is_running
        harness.actions.delete(NAME, True, succeeded)
        harness.auto_poll = True
        monkeypatch.undo()
        finish(harness)
        harness.advance(1.0)
        gc.collect()
        assert topic() is None, f"deleted after {steps} steps"
        assert not compacted_ledgers(harness)
        assert not list(harness.store.keys.names("cursor/"))
    assert 5 < was_running < 40


# --- crashes and damage ---
STORE = dataclasses.replace(SMALL_FILES, cache_bytes=1_000)
SMALL = {"ledger_entries_max": 7, "retention_minutes": 0, "retention_megabytes": 0}


class Writer:
    """Publishes single messages and batches; knows what is receipted."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.receipted = 0

    def live(self, harness: Harness, rounds: int, random: Random) -> None:
        peer = publisher(harness)
        for _ in range(rounds):
            for _ in range(12):
                pairs = [
                    (
                        f"k{random.randrange(9)}",
                        b"" if random.random() < 0.25 else b"%d" % random.randrange(10**9),
                    )
                    for _ in range(random.choice([1, 3]))
                ]
                self.sent += pairs
                if len(pairs) == 1:
                    peer.send(0, single(*pairs[0]))
                else:
                    peer.send(0, batch(list(pairs)), messages=len(pairs))
                assert peer.receipts()
                self.receipted = len(self.sent)
            compact(harness)
            harness.advance(600)

    def check(self, harness: Harness) -> None:
        found = [pair for _, pair in read(harness)]
        for kept in range(self.receipted, len(self.sent) + 1):
            if newest(found) == newest(list(self.sent[:kept])):
                self.sent = self.sent[:kept]
                self.receipted = kept
                break
        else:
            raise AssertionError(f"lost or come back: {found}")
        topic = harness.topic()
        left = harness.store.ledgers(owner_of(topic.text))
        named = [] if topic.compacted is None else [topic.compacted.ledger_id]
        assert [each.ledger_id for each in left] == named


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_crash_at_any_step_loses_no_newest_value(how, part):
    """Three compactions with trimming behind each; the process or the power ends at each write in turn."""
    reached_end = False
    for point in part(range(1, 1000), 12):
        disk, writer = SimulatedDisk(), Writer()
        try:
            writer.live(Harness(open_store(disk, STORE, Plan(crash_at=point)), **SMALL), 3, Random(1))
            reached_end = True
        except PowerLoss:
            pass
        disk = disk.kill() if how == "kill" else disk.crash(Fate.by_chance(Random(point)))
        store = open_store(disk, STORE)
        assert store.damage.found == []
        harness = Harness(store, **SMALL)
        if not harness.broker.topics.is_stored(NAME):
            assert not writer.receipted
            continue
        writer.check(harness)
        writer.live(harness, 1, Random(2))
        writer.check(harness)
        if reached_end:
            break
    assert reached_end
    assert point > 50


def until_the_new_ledger_is_being_named(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """A topic with something compacted, whose next compaction waits for nothing but its cursor's write."""
    writer = Writer()
    writer.live(harness, 1, Random(1))
    peer = publisher(harness)
    for number in range(30):
        pair = f"k{number % 4}", b"%d" % number
        writer.sent.append(pair)
        peer.send(0, single(*pair))
    assert peer.receipts()
    peer.disconnect()
    writer.receipted = len(writer.sent)
    written = calls_of(monkeypatch, PersistentSubscription, "write_snapshot")
    harness.actions.compact(NAME)
    for step in range(1_000):
        if COMPACTION in [subscription.name for subscription, _ in written]:
            break
        if step % 2:
            harness.store.poll()
        else:
            harness.broker.tick(harness.now, harness.now_ms)
    topic: Any = harness.broker.topics.in_memory(NAME)
    assert topic.compaction.is_running
    assert COMPACTION in [subscription.name for subscription, _ in written]
    return writer


def test_closing_while_the_new_ledger_is_recorded_loses_nothing(monkeypatch):
    """The ledger named by the cursor is never deleted: entries below its horizon may not exist elsewhere."""
    disk = SimulatedDisk()
    harness = Harness(open_store(disk, STORE), **SMALL)
    writer = until_the_new_ledger_is_being_named(harness, monkeypatch)
    harness.broker.close()
    harness.store.close()
    harness = Harness(open_store(disk.kill(), STORE), **SMALL)
    writer.check(harness)
    harness.advance(600)
    writer.check(harness)


def test_a_reader_while_the_new_ledger_is_recorded_misses_nothing(monkeypatch):
    """The disk takes its time, and what only the old mark kept is trimmed."""
    harness = Harness(open_store(SimulatedDisk(), STORE), **SMALL)
    writer = until_the_new_ledger_is_being_named(harness, monkeypatch)
    topic: Any = harness.broker.topics.in_memory(NAME)
    compaction, waiting = topic.compaction, list[Any]()
    # The report is still pending.
    monkeypatch.setattr(CooperativeScheduler, "start", lambda self, job, about: waiting.append((job, about)))
    assert harness.actions.trim(NAME) > 0
    assert newest([pair for _, pair in read(harness)]) == newest(list(writer.sent))
    assert compaction.is_running
    monkeypatch.undo()
    for job, about in waiting:
        harness.broker.slices.start(job, about)
    finish(harness)
    writer.check(harness)


def damage_compacted(harness: Harness, monkeypatch: pytest.MonkeyPatch, last: int, is_lost: Any) -> int:
    """Have reads of the compacted ledger's entries from 4 to ``last`` fail; return the ledger's id."""
    ledger_id, fetch = harness.topic().compacted.ledger_id, harness.store.fetch

    def broken(found: int, first: int, *, entries_max: int, **rest: Any) -> Any:
        if found == ledger_id:
            if is_lost(first):
                damage = Damage("log", 0, "bad", ledger_id, 4, last, DamageLoss.ENTRIES)
                raise EntriesDamaged("bad entries", damage)
            if first < 4:
                entries_max = min(entries_max, 4 - first)
        return fetch(found, first, entries_max=entries_max, **rest)

    monkeypatch.setattr(harness.store, "fetch", broken)
    return ledger_id


def test_lost_entries_of_the_compacted_ledger_are_named(harness, caplog, monkeypatch):
    peer = publisher(harness, (single(f"k{number}", b"1") for number in range(10)))
    compact(harness)
    ledger_id = damage_compacted(harness, monkeypatch, 5, lambda first: first == 4)
    assert [pair[0] for _, pair in read(harness)] == ["k0", "k1", "k2", "k3", "k6", "k7", "k8", "k9"]
    assert f"compacted ledger {ledger_id} are lost" in caplog.text
    peer.send(10, single("k0", b"2"))
    status = outcome(harness)
    assert status["status"] == "SUCCESS"
    assert "bad entries" in status["lastError"]
    assert [pair[0] for _, pair in read(harness)] == ["k1", "k2", "k3", "k6", "k7", "k8", "k9", "k0"]


def test_unreadable_entries_end_the_compaction(harness, monkeypatch):
    """Its two passes know messages by their number: what one of them missed would be another one's."""
    peer = publisher(harness)
    for first in range(0, 12_000, 500):
        peer.send(first, batch([(f"k{key}", b"1") for key in range(first, first + 500)]), messages=500)
    compact(harness)
    before = read(harness)
    passes: list[int] = []

    def is_lost(first: int) -> bool:
        passes.extend([0] * (not first))
        return first == 4 and len(passes) % 2 == 1

    damage_compacted(harness, monkeypatch, 4, is_lost)
    peer.send(12_000, single("k0", b"2"))
    assert outcome(harness)["status"] == "ERROR"
    assert len(passes) > 1
    monkeypatch.undo()
    assert read(harness)[:-1] == before


def test_a_cursor_lost_to_damage_finds_its_compacted_ledger(make_harness):
    harness = make_harness(**SMALL)
    publisher(harness, numbered(range(30), 5))
    compact(harness)
    harness.advance(3600)
    before = read(harness)
    harness.broker.close()
    key = cursor_key("persistent://public/default/t", COMPACTION)
    get = harness.store.keys.get
    scan = harness.store.keys.scan
    lost = StoredValue(b"", (), LostWrites(values=1))
    harness.store.keys.get = lambda wanted: lost if wanted == key else get(wanted)
    harness.store.keys.scan = lambda prefix, **more: (
        (found, lost if found == key else value) for found, value in scan(prefix, **more)
    )
    harness.crash()
    assert read(harness) == before


def test_a_full_disk_keeps_the_old_compacted_ledger(harness):
    peer = publisher(harness, numbered(range(10), 3))
    compact(harness)
    before = read(harness)
    peer.send(10, single("k0", b"new"))
    harness.store.disk.refuse_entries(StoreFull("no room"))
    assert outcome(harness) == {"status": "ERROR", "lastError": "no room"}
    harness.store.disk.refuse_entries(None)
    assert compacted_ledgers(harness) == 1
    assert read(harness)[: len(before)] == before
    compact(harness)
    assert dict(pair for _, pair in read(harness))["k0"] == b"new"
