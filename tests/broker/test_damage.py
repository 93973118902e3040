"""A flipped bit in the store harms only the record that it hit: the broker starts and serves all others."""

from typing import Any, Self

import pytest

from geminga.broker.admin import damage as admin_damage
from geminga.broker.admin.damage import described, settle
from geminga.broker.delivery.cursor_writer import cursor_key
from geminga.broker.entries.ledger_list import key_of as ledgers_key
from geminga.broker.rules.schemas import schema_key
from geminga.broker.runtime.cooperative import CooperativeScheduler
from geminga.broker.topics.persistent import topic_key
from geminga.errors import StoreDamaged
from geminga.ids import TopicName, to_signed
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import Harness, Peer, entry_bytes
from tests.support.faulty_filesystem import FaultyFileSystem, SimulatedDisk

FOLDER = "/data"
HARMED = "persistent://public/default/harmed"
NAME = TopicName.parse(HARMED)
WELL = "persistent://public/default/well"
STORE = StoreSettings(cache_bytes=0, preallocate_bytes=0, deletion_delay_seconds=3600.0)
HOUR = 3600.0


class Lives:
    """A broker on a simulated disk, and what a damaged disk makes of its next life."""

    def __init__(self, **settings: Any) -> None:
        self.disk = SimulatedDisk()
        self.settings = settings
        self.harness = Harness(self.store(), ledger_entries_max=4, **settings)

    def store(self) -> FileStore:
        return FileStore.open(FOLDER, settings=STORE, filesystem=FaultyFileSystem(self.disk), threads=False)

    def harm(self, *what: bytes) -> Self:
        """The process dies, and the last byte of each piece of the log is not what was written."""
        self.disk.kill()
        self.flip(*what)
        return self

    def flip(self, *what: bytes) -> None:
        """Change the last byte of each piece of the log; the broker runs on."""
        for piece in what:
            for path in self.disk.names:
                content = self.disk.content(path)
                if "/log-" in path and piece in content:
                    content[content.rindex(piece) + len(piece) - 1] ^= 0x11
                    break
            else:
                raise AssertionError(f"{piece!r} is not in the log")

    def restart(self) -> Harness:
        now = self.harness.now + 1
        self.harness = Harness(self.store(), ledger_entries_max=4, **self.settings)
        self.harness.now = now
        self.harness.advance(1)
        return self.harness

    def record(self, key: str) -> bytes:
        """The bytes of the last record of a key that is a whole value."""
        value = self.harness.store.keys.get(key)
        return key.encode() + value.base

    def delta(self, key: str, index: int = -1) -> bytes:
        value = self.harness.store.keys.get(key)
        return key.encode() + value.deltas[index]


@pytest.fixture
def lives():
    return Lives()


@pytest.fixture
def harness(lives):
    return lives.harness


def fill(harness: Harness, topic: str, count: int = 10, *, subscribes: bool = False) -> Peer:
    peer = harness.producer(topic, producer_name="p", user_provided_producer_name=True)
    for number in range(count):
        payload = f"{topic} {number}".encode()
        peer.send(number, entry_bytes(payload, publish_time=harness.now_ms, sequence_id=number))
    if subscribes:
        peer.subscribe(topic)
    return peer


def payloads(topic: str, numbers: Any) -> list[bytes]:
    return [f"{topic} {number}".encode() for number in numbers]


def check_serves(harness: Harness, topic: str, *, subscription: str = "fresh") -> None:
    """Publishing and receiving work, from beginning to end."""
    peer = harness.producer(topic)
    peer.send(99, entry_bytes(b"new"))
    peer.subscribe(topic, subscription)
    assert peer.payloads()[-1] == b"new"


def test_a_lost_acknowledgement_is_redelivered_and_the_others_stay(harness, lives):
    for topic in (HARMED, WELL):
        peer = fill(harness, topic)
        peer.subscribe(topic)
        ids = peer.ids()
        for number in (0, 3, 5, 9):
            peer.ack(ids[number])
    harness = lives.harm(lives.delta(cursor_key(HARMED, "s"), 1)).restart()
    (thing,) = harness.store.damage.found
    assert (thing.key, thing.lost) == (cursor_key(HARMED, "s"), DamageLoss.DELTA)
    for topic, left in ((WELL, (1, 2, 4, 6, 7, 8)), (HARMED, (1, 2, 3, 4, 6, 7, 8))):
        assert harness.consumer(topic).payloads() == payloads(topic, left)
    check_serves(harness, HARMED)


def test_after_a_lost_seek_no_entry_is_skipped(harness, lives):
    """Acknowledgements from before the seek would hide the entries that it asked to be redelivered."""
    peer = fill(harness, HARMED, subscribes=True)
    peer.ack(peer.ids()[8], cumulative=True)
    harness.subscription(topic=NAME).reset(2, lambda error: None)
    harness.poll()
    harness = lives.harm(lives.record(cursor_key(HARMED, "s"))).restart()
    assert [thing.lost for thing in harness.store.damage.found] == [DamageLoss.VALUE]
    peer = harness.consumer(HARMED)
    got = peer.ids()
    assert len(got) == 10
    peer.ack(*got)
    harness = lives.harm().restart()
    assert harness.consumer(HARMED).payloads() == [], "what was acknowledged since comes again"


def test_an_unreadable_cursor_is_fenced_and_can_be_reset(harness, lives):
    fill(harness, HARMED, subscribes=True)
    harness.store.keys.put(cursor_key(HARMED, "s"), b"\x63of a later version")
    harness.poll()
    harness = lives.harm().restart()
    with pytest.raises(AssertionError, match="cannot be read from the st"):
        harness.peer().subscribe(HARMED)
    check_serves(harness, HARMED)
    harness.subscription(topic=NAME).reset(4, lambda error: None)
    assert harness.consumer(HARMED).payloads() == [*payloads(HARMED, range(4, 10)), b"new"]


def test_a_damaged_entry_is_skipped_until_it_is_settled(lives):
    for topic in (HARMED, WELL):
        fill(lives.harness, topic).subscribe(topic)
        lives.harness.peer().subscribe(topic, "other", kind="Shared")
    harness = lives.harm(f"{HARMED} 3".encode(), f"{HARMED} 5".encode()).restart()
    left = [number for number in range(10) if number not in (3, 5)]
    for subscription, kind in (("s", "Exclusive"), ("other", "Shared"), ("keys", "Key_Shared")):
        peer = harness.consumer(HARMED, subscription, kind=kind)
        ids = peer.ids()
        assert len(ids) == len(left), kind
        peer.ack(*ids)
    topic = harness.topic(NAME)
    assert [topic.subscriptions[name].backlog for name in ("s", "other", "keys")] == [2, 2, 2]
    first, second = harness.store.damage.found
    assert described(harness.store, first)["topic"] == HARMED
    done: list[Any] = []
    settle(harness.broker, first.name, done.append)
    settle(harness.broker, second.name, done.append)
    harness.poll()
    assert done == [None, None]
    assert [topic.subscriptions[name].backlog for name in ("s", "other", "keys")] == [0, 0, 0]
    assert harness.store.damage.found == []
    harness = lives.harm().restart()
    assert harness.consumer(HARMED).payloads() == []
    assert harness.store.damage.found == []


def last_entry_id(peer: Peer) -> int:
    """The entry id that the broker names as the newest of the topic; -1 for an empty topic."""
    return to_signed(peer.last_message_id().entryId)


def test_the_last_message_id_is_that_of_the_newest_readable_entry(lives):
    """The last three entries are damaged, in two ledgers of four entries each."""
    for topic in (HARMED, WELL):  # the end of the log itself is cut off at the damage
        fill(lives.harness, topic, 10)
    peer = lives.harm(*(f"{HARMED} {number}".encode() for number in (7, 8, 9))).restart().peer()
    peer.subscribe(HARMED)
    assert last_entry_id(peer) == 2, "the entries behind 1:2 are damaged"
    assert peer.payloads() == payloads(HARMED, range(7))
    assert last_entry_id(peer) == 2
    fill(lives.harness, HARMED, 1)
    assert peer.payloads() == payloads(HARMED, [0])
    assert last_entry_id(peer) == 0, "the new entry is the first of a new ledger"


def test_damage_that_reading_finds_changes_the_last_message_id(harness, lives):
    """The broker runs on: it reads the entries from the disk for the question itself."""
    fill(harness, HARMED, 10).disconnect()
    harness.actions.unload(NAME)
    lives.flip(f"{HARMED} 8".encode(), f"{HARMED} 9".encode())
    peer = harness.consumer(HARMED, permits=0)
    assert last_entry_id(peer) == 3
    assert len(harness.store.damage.found) == 2
    assert harness.actions.last_message_id(NAME).entry_id == 3


def test_a_topic_of_damaged_entries_alone_has_no_last_message_id(lives):
    for topic in (HARMED, WELL):
        fill(lives.harness, topic, 2)
    peer = lives.harm(f"{HARMED} 0".encode(), f"{HARMED} 1".encode()).restart().peer()
    peer.subscribe(HARMED)
    assert last_entry_id(peer) == -1
    assert peer.payloads() == []


def test_many_damaged_entries_are_settled_in_steps(lives, monkeypatch):
    monkeypatch.setattr(admin_damage, "SETTLED_AT_ONCE", 1)
    harness = lives.harness
    fill(harness, HARMED, 12).subscribe(HARMED)
    topic = harness.topic(NAME)
    ledger = topic.ledger.segments[0].ledger_id
    harm = Damage("log-0000000001", 0, "a file is missing", lost=DamageLoss.ENTRIES, ledger_id=ledger,
                  first_entry_id=1, last_entry_id=3)  # fmt: skip
    harness.store.state.quarantine.add(harm)
    monkeypatch.setattr(CooperativeScheduler, "should_yield", True)
    done: list[Any] = []
    settle(harness.broker, harm.name, done.append)
    assert harness.store.damage.found != [], "others are heard first"
    for _ in range(10):
        harness.broker.turn(harness.now, harness.now_ms)
        harness.poll()
    assert done == [None]
    assert harness.store.damage.found == []
    assert topic.subscriptions["s"].backlog == 12 - 3


def test_a_damaged_entry_holds_up_neither_trimming_nor_expiry():
    lives = Lives(retention_minutes=0, message_ttl_seconds=3600)
    peer = fill(lives.harness, HARMED, 12, subscribes=True)
    harness = lives.harm(f"{HARMED} 1".encode() + b"", f"{HARMED} 5".encode()).restart()
    peer = harness.consumer(HARMED)
    peer.ack(*peer.ids())
    topic = harness.topic(NAME)
    harness.advance(60)
    assert topic.ledger.start >= 8, "acknowledged entries before and behind a damaged one stay"
    fill(harness, HARMED, 12)
    assert not any(harness.broker.scheduler.failures.values())


def test_expiry_continues_behind_a_damaged_entry():
    lives = Lives(retention_minutes=0, message_ttl_seconds=3600)
    fill(lives.harness, HARMED, 6).subscribe(HARMED)
    harness = lives.harm(f"{HARMED} 0".encode(), f"{HARMED} 3".encode()).restart()
    topic = harness.topic(NAME)
    harness.advance(60)
    assert topic.subscriptions["s"].backlog == 6, "too young"
    harness.advance(2 * HOUR)
    assert harness.subscription(topic=NAME).backlog == 0


def test_new_messages_are_delivered_after_the_end_of_the_log_was_lost(harness, lives):
    """The offsets of acknowledged entries that are gone are not given to others."""
    peer = fill(harness, HARMED, 3, subscribes=True)
    log = f"{FOLDER}/log-0000000001"
    start = harness.store.stats().disk_bytes
    for number in range(3, 20):
        peer.send(number, entry_bytes(f"{HARMED} {number}".encode()))
    end = harness.store.stats().disk_bytes
    peer.ack(*peer.ids())
    lives.disk.kill()
    lives.disk.content(log)[start:end] = b"\x55" * (end - start)
    harness = lives.restart()
    assert harness.store.damage.found
    peer = harness.producer(HARMED)
    peer.subscribe(HARMED)
    assert peer.payloads() == []
    peer.send_all(entry_bytes(b"new %d" % number) for number in range(50))
    assert peer.payloads() == [b"new %d" % number for number in range(50)]
    topic = harness.topic(NAME)
    assert topic.subscriptions["s"].backlog == 50, "what is not there counts as backlog"


def test_a_lost_namespace_policy_deletes_nothing_until_it_is_set_again():
    lives = Lives(retention_minutes=0, message_ttl_seconds=0)
    harness = lives.harness
    namespaces = harness.broker.namespaces
    namespaces.set_policy("public", "default", "message_ttl_in_seconds", 60)
    retention = {"retentionTimeInMinutes": 600, "retentionSizeInMB": -1}
    namespaces.set_policy("public", "default", "retention_policies", retention)
    harness.poll()
    fill(harness, HARMED, 12).subscribe(HARMED)
    harness = lives.harm(lives.record("namespace/public/default")).restart()
    assert [thing.key for thing in harness.store.damage.found] == ["namespace/public/default"]
    policies = harness.broker.namespaces.policies("public", "default")
    assert (policies.retention_minutes, policies.message_ttl_seconds) == (-1, 0)
    harness.advance(2 * HOUR)
    topic = harness.topic(NAME)
    assert (topic.ledger.start, topic.subscriptions["s"].backlog) == (0, 12)
    harness.broker.namespaces.set_policy("public", "default", "message_ttl_in_seconds", 60)
    assert harness.broker.namespaces.policies("public", "default").message_ttl_seconds == 60
    harness.advance(HOUR)
    assert harness.store.damage.found == []
    assert harness.subscription(topic=NAME).backlog == 0


def test_a_policy_lost_completely_has_its_defaults(harness, lives):
    harness.broker.namespaces.create_namespace("public", "other", {"message_ttl_in_seconds": 5})
    harness.broker.topics.make(NAME)
    harness.broker.namespaces.set_topic_policy(NAME, "message_ttl_in_seconds", 7)
    harness.poll()
    lives.harm(lives.record("namespace/public/other"), lives.record(f"topic-policies/{HARMED}"))
    harness = lives.harm(lives.record("tenant/public")).restart()
    namespaces = harness.broker.namespaces
    assert namespaces.policies("public", "other").message_ttl_seconds == 0
    assert namespaces.policies("public", "other").retention_minutes == -1
    assert namespaces.topic_policies(NAME).message_ttl_seconds == 0
    assert namespaces.policies("public", "default").retention_minutes != -1
    assert namespaces.document("public", "other")["bundles"]["numBundles"] > 0
    assert namespaces.tenants.get("public")["allowedClusters"]
    check_serves(harness, "persistent://public/other/t")
    check_serves(harness, WELL)
    told: list[tuple[str, TopicName | None]] = []
    namespaces.watchers.append(lambda namespace, about, _: told.append((namespace, about)))
    for thing in harness.store.damage.found:
        settle(harness.broker, thing.name, lambda error: None)
    assert namespaces.topic_policies(NAME).retention_minutes != -1, "settled policies are in force"
    assert namespaces.policies("public", "other").retention_minutes != -1
    concerned = [("public/default", NAME), ("public/other", None)]
    assert sorted(told, key=str) == concerned, "there may be very many others"


@pytest.mark.parametrize("which", ["topic", "partitioned", "ledgers", "dedup"])
def test_lost_records_leave_the_topic_and_all_others_served(which):
    lives = Lives(deduplication=True)
    harness = lives.harness
    harness.broker.topics.partitioned.create(TopicName.parse(f"{HARMED}-many"), 3, None, None)
    harness.poll()
    fill(harness, HARMED).subscribe(HARMED)
    fill(harness, WELL).subscribe(WELL)
    harness.poll()
    harness.topic(NAME).dedup.save()
    harness.poll()
    records = {
        "topic": lambda: lives.record(topic_key(HARMED)),
        "partitioned": lambda: lives.record(f"partitioned/{HARMED}-many"),
        "ledgers": lambda: lives.delta(ledgers_key(HARMED), 1),
        "dedup": lambda: lives.record(f"dedup/{HARMED}")[len(f"dedup/{HARMED}") :],
    }
    harness = lives.harm(records[which]()).restart()
    assert harness.store.damage.found or which == "dedup"
    assert harness.broker.topics.partitioned.count(TopicName.parse(f"{HARMED}-many")) == 3
    assert all(harness.broker.topics.is_stored(TopicName.parse(text)) for text in (HARMED, WELL))
    for topic_name in (WELL, HARMED):
        peer = harness.consumer(topic_name)
        assert peer.payloads() == payloads(topic_name, range(10))
        peer.producer(topic_name, producer_name="p", user_provided_producer_name=True)
        peer.send(4, entry_bytes(b"a duplicate", sequence_id=4))
        assert [receipt.entry_id for receipt in peer.receipts()] == [-1]
        check_serves(harness, topic_name)
    harness.advance(100)
    assert not any(harness.broker.scheduler.failures.values())


def test_a_lost_ledger_list_is_rebuilt_and_stored(harness, lives):
    peer = fill(harness, HARMED, subscribes=True)
    ids = peer.ids()
    for number in (0, 1, 2, 3, 4, 8):
        peer.ack(ids[number])
    lives.harm(*(lives.delta(ledgers_key(HARMED), index) for index in (0, 2)))
    for _ in range(2):
        harness = lives.restart()
        assert harness.consumer(HARMED).payloads() == payloads(HARMED, (5, 6, 7, 9))
        lives.disk.kill()
    assert not harness.store.damage.found


def test_a_ledger_without_owner_is_returned_to_its_topic(harness, lives):
    fill(harness, HARMED, 3).subscribe(HARMED)
    content = lives.disk.content(f"{FOLDER}/log-0000000001")
    place = content.index(HARMED.encode(), content.index(f"ledgers/{HARMED}".encode()) - 200)
    lives.disk.kill()
    while content[place - 8 : place] == b"ledgers/" or content[place - 6 : place] == b"topic/":
        place = content.index(HARMED.encode(), place + 1)
    content[place + 20] ^= 0x11
    harness = lives.restart()
    assert [thing.lost for thing in harness.store.damage.found] == [DamageLoss.OWNER]
    assert harness.consumer(HARMED).payloads() == payloads(HARMED, range(3))
    assert harness.store.damage.found == []


def test_a_lost_schema_version_does_not_renumber_the_others(harness, lives):
    fill(harness, HARMED, 1)
    policy = "schema_compatibility_strategy"
    harness.broker.namespaces.set_policy("public", "default", policy, "ALWAYS_COMPATIBLE")
    definitions = [b'{"type":"record","name":"R%d","fields":[]}' % number for number in range(3)]
    schemas = [pb.Schema(name="s", type=pb.Schema.Json, schema_data=each) for each in definitions]
    for schema in schemas:
        harness.broker.schemas.put(NAME, schema, auto_update=True)
    harness.poll()
    harness = lives.harm(lives.delta(schema_key(NAME), 1)).restart()
    kept = harness.broker.schemas
    assert [kept.find(NAME, schema) for schema in schemas] == [0, -1, 2]
    assert kept.latest(NAME)[0] == 2
    with pytest.raises(StoreDamaged, match="version 1"):
        kept.get(NAME, 1)
    assert kept.get(NAME, 3) is None
    assert kept.put(NAME, schemas[1], auto_update=True) == 3


def test_flipped_bits_of_a_brokers_key_records_are_survived():
    """The broker starts, the damage is named, every other topic and subscription works."""
    lives = Lives(ledger_seconds_max=86_400)
    harness = lives.harness
    for topic in ("a", "b"):
        peer = harness.producer(topic)
        peer.publish(3)
        peer.subscribe(topic)
        peer.ack(peer.ids()[1])
    harness.broker.namespaces.set_policy("public", "default", "message_ttl_in_seconds", 99_999)
    harness.poll()
    lives.disk.kill()
    log = f"{FOLDER}/log-0000000001"
    content = bytes(lives.disk.content(log).rstrip(b"\0"))
    topic = "persistent://public/default/a"
    keys_of_a = [cursor_key(topic, "s"), topic_key(topic), ledgers_key(topic)]
    seen = 0
    for key in (*keys_of_a, "namespace/public/default", "tenant/public"):
        place = content.find(key.encode())
        if key == "namespace/public/default":
            place = content.rfind(key.encode())  # earlier versions are not read any more
        while place >= 0:
            for offset in range(place + len(key), place + len(key) + 3):
                for bit in range(8):
                    seen += 1
                    disk = lives.disk.copy()
                    disk.content(log)[offset] ^= 1 << bit
                    check_other_topic(disk, lives)
            place = content.find(key.encode(), place + 1)
    assert seen >= 144


def check_other_topic(disk: SimulatedDisk, lives: Lives) -> None:
    store = FileStore.open(FOLDER, settings=STORE, filesystem=FaultyFileSystem(disk), threads=False)
    harness = Harness(store, **lives.settings)
    assert store.damage.found
    peer = harness.consumer("persistent://public/default/b")
    assert peer.entry_ids() == [0, 2]
    peer.subscribe("persistent://public/default/a", consumer_id=2)
    assert {0, 2} <= set(peer.entry_ids()), "a message is left out"
    check_serves(harness, "persistent://public/default/b")
    harness.advance(20)
    assert not any(harness.broker.scheduler.failures.values())
