"""A disk with little space: publishing is refused, all else works, and publishing resumes automatically."""

from collections.abc import Callable
from typing import Any

import pytest
from entries import single_entry

from geminga.broker.runtime import background_jobs
from geminga.broker.runtime import disk as disk_module
from geminga.broker.runtime.disk import DiskLevel
from geminga.errors import StoreFull
from geminga.ids import TopicName
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC, Command
from tests.support.faulty_filesystem import FaultyFileSystem, SimulatedDisk

MIB = 1024 * 1024
SMALL = StoreSettings(
    log_file_bytes=256 * 1024, preallocate_bytes=0, garbage_bytes_min=1, checkpoint_log_bytes=256 * 1024,
    deletion_delay_seconds=0.0,
)  # fmt: skip


class Room:
    """Broker on a simulated disk with an adjustable amount of free space."""

    def __init__(self, make_harness: Callable[..., Any], **settings: Any) -> None:
        self.disk = SimulatedDisk()
        self.disk.capacity_bytes = 8 * MIB
        files = FaultyFileSystem(self.disk)
        store = FileStore.open("/data/store", settings=SMALL, filesystem=files, threads=False)
        settings = {"disk_low_water_bytes": MIB, "disk_low_water_fraction": 0.9} | settings
        self.harness = make_harness(store, **settings)
        self.guard = self.harness.broker.disk

    def leave(self, free: int) -> None:
        """Set the free bytes, and have the broker check the disk."""
        self.disk.others_bytes = self.disk.capacity_bytes - self.disk.used_bytes - free
        self.look()

    def look(self) -> None:
        for _ in range(8):
            self.harness.advance(disk_module.LOOK_SECONDS / 8 + 0.1)
            for _ in range(20):  # the store has no threads here: it works when it is polled
                self.harness.poll()


@pytest.fixture
def room(make_harness):
    return Room(make_harness)


@pytest.mark.parametrize("action", ["producer_request_hold", "producer_exception"])
def test_below_the_mark_no_topic_is_auto_created(make_harness, action):
    """A producer on a topic that is not there was refused, but its record was written: room for nothing."""
    room = Room(make_harness, disk_full_action=action)
    harness, peer = room.harness, room.harness.peer()
    peer.producer(TOPIC)
    harness.broker.namespaces.set_policy(
        "public", "default", "autoTopicCreationOverride",
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4},
    )  # fmt: skip
    room.leave(MIB // 2)
    topics = list(harness.store.keys.names("topic/"))
    for number in range(50):
        name = f"persistent://public/default/new{number}"
        refused = peer.request("producer", topic=name, producer_id=9).command.error
        assert refused.error in (
            pb.ProducerBlockedQuotaExceededError, pb.ProducerBlockedQuotaExceededException
        )  # fmt: skip
        answer = peer.request("subscribe", topic=name, consumer_id=9, subscription="s", subType=0)
        refused = answer.command.error
        assert (refused.error, "the disk is full" in refused.message) == (pb.ServiceNotReady, True)
        failed = peer.request("partitionMetadata", topic=name).command.partitionMetadataResponse
        assert failed.error == pb.ServiceNotReady
    assert list(harness.store.keys.names("topic/")) == topics
    assert list(harness.store.keys.names("partitioned/")) == []
    peer.subscribe(TOPIC)  # stored messages can be read, which frees space
    peer.producer("non-persistent://public/default/n", producer_id=10)
    harness.actions.create(TopicName.parse("by-hand"), lambda error: None)
    room.leave(6 * MIB)
    peer.request_id += 1
    peer.command("producer", topic="persistent://public/default/x-partition-0", producer_id=11,
                 request_id=peer.request_id)  # fmt: skip
    harness.poll()
    assert peer.take(Command.PRODUCER_SUCCESS)


def test_below_the_mark_producers_wait_and_resume(room):
    harness = room.harness
    peer = harness.producer(TOPIC)
    peer.subscribe(TOPIC, "s", consumer_id=7)
    peer.publish(3)
    assert len(peer.receipts()) == 3
    assert room.guard.level is DiskLevel.PLENTY
    room.leave(MIB // 2)
    assert room.guard.level is DiskLevel.FULL
    peer.publish(2, first=3)
    assert peer.receipts() == []
    assert peer.take(Command.SEND_ERROR) == [], "an error would end the client's connection"
    assert [frame.command.close_producer.producer_id for frame in peer.take(Command.CLOSE_PRODUCER)] == [1]
    peer.command("producer", topic=TOPIC, producer_id=2, request_id=5)
    (answer,) = [frame.command.error for frame in peer.take(Command.ERROR)]
    assert answer.error == pb.ProducerBlockedQuotaExceededError
    assert "the disk is full" in answer.message
    assert "publishing stops below 1 MiB" in answer.message
    # Everything else keeps working.
    peer.ack(*peer.ids(), consumer_id=7, request_id=77)
    (answer,) = peer.take(Command.ACK_RESPONSE)
    assert not answer.command.ackResponse.HasField("error")
    other = harness.consumer(TOPIC, "another", earliest=True)
    assert len(other.messages()) == 3
    # Publishing resumes automatically.
    room.leave(3 * MIB)
    assert room.guard.level is DiskLevel.PLENTY
    peer.command("producer", topic=TOPIC, producer_id=3, request_id=6)
    peer.send(5, producer_id=3)
    assert len(peer.receipts()) == 1


def test_accepted_messages_are_receipted_before_the_producer_is_closed(room):
    harness = room.harness
    peer = harness.producer(TOPIC)
    harness.auto_poll = False
    peer.publish(3)
    harness.store.disk.refuse_entries(StoreFull("no room"))
    peer.publish(2, first=3)
    assert peer.take(Command.CLOSE_PRODUCER) == []
    harness.store.disk.refuse_entries(None)
    peer.publish(1, first=5)  # were it taken in, it would come before what the client sends again
    harness.poll()
    harness.poll()
    kinds = [frame.type for frame in peer.frames]
    assert kinds.count(Command.SEND_RECEIPT) == 3
    assert kinds[-1] == Command.CLOSE_PRODUCER
    harness.auto_poll = True
    peer.frames.clear()
    peer.producer(TOPIC, producer_id=2)
    peer.publish(3, first=3, producer_id=2)
    reader = harness.consumer(TOPIC)
    assert reader.payloads() == [b"m%d" % number for number in range(6)]


def test_producers_are_refused_with_producer_exception(make_harness):
    room = Room(make_harness, disk_full_action="producer_exception")
    room.leave(1000)
    answer = room.harness.peer().request("producer", topic=TOPIC, producer_id=2).command.error
    assert answer.error == pb.ProducerBlockedQuotaExceededException


def test_non_persistent_topics_accept_messages_on_a_full_disk(room):
    room.leave(1000)
    peer = room.harness.producer("non-persistent://public/default/t")
    peer.send(0)
    assert len(peer.receipts()) == 1


def test_a_full_disk_delays_accepted_messages(room):
    harness = room.harness
    peer = harness.producer(TOPIC)
    peer.publish(1)
    peer.receipts()
    room.disk.others_bytes = room.disk.capacity_bytes - room.disk.used_bytes
    harness.auto_poll = False
    peer.publish(3, first=1)
    harness.auto_poll = True
    harness.poll()
    assert peer.receipts() == []
    assert harness.store.failure is None
    assert room.guard.level is DiskLevel.FULL
    room.disk.others_bytes -= 4 * MIB
    room.look()
    assert len(peer.receipts()) == 3
    assert room.guard.level is DiskLevel.PLENTY


def publish(room: Room, topic: str, count: int, size: int = 10_000) -> None:
    peer = room.harness.producer(topic)
    peer.publish(count, entry=single_entry(bytes(size)))
    assert len(peer.receipts()) == count
    peer.disconnect()


def kept(room: Room, topic: str) -> int:
    found = room.harness.broker.topics.find(TopicName.parse(topic))
    return found.ledger.end - found.ledger.start


def test_retained_ledgers_are_deleted_oldest_first_and_unacknowledged_ones_never(make_harness):
    room = Room(make_harness, ledger_entries_max=10)
    harness = room.harness
    names = {name: f"persistent://public/default/{name}" for name in ("old", "waiting", "kept", "young")}
    harness.consumer(names["waiting"]).disconnect()
    for name in ("old", "waiting", "kept", "young"):
        publish(room, names[name], 100)
    for_ever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    harness.broker.namespaces.set_topic_policy(TopicName.parse(names["kept"]), "retention_policies", for_ever)
    assert [kept(room, names[name]) for name in names] == [100, 100, 100, 100]
    room.leave(3 * MIB // 2)
    for _ in range(4):
        room.look()
    assert room.guard.level is DiskLevel.PLENTY, "room has come back"
    assert kept(room, names["waiting"]) == 100
    assert kept(room, names["kept"]) == 100
    assert kept(room, names["old"]) < 100
    assert kept(room, names["old"]) == 0 or kept(room, names["young"]) == 100, "the oldest goes first"
    assert kept(room, names["young"]) > 50
    figures = harness.broker.retention_evictor
    assert figures.ledgers * 100_000 <= figures.bytes <= 1_200_000
    assert room.guard.described()["freeBytes"] >= 2 * MIB
    room.leave(MIB // 4)
    for _ in range(20):
        room.leave(MIB // 4)  # another process takes the space that was freed
    assert kept(room, names["waiting"]) == 100
    assert kept(room, names["kept"]) == 100
    assert kept(room, names["old"]) == kept(room, names["young"]) == 0


def test_retention_is_kept_if_it_must_not_free_space(make_harness):
    room = Room(make_harness, disk_retention_gives_way=False)
    publish(room, TOPIC, 100)
    room.leave(1000)
    room.look()
    assert kept(room, TOPIC) == 100
    assert room.guard.level is DiskLevel.FULL


def test_unloaded_topics_free_space_too_and_are_unloaded_again(make_harness, monkeypatch):
    room = Room(make_harness)
    for number in range(20):
        publish(room, f"persistent://public/default/t{number}", 10)
    room.harness.advance(300)
    assert room.harness.broker.topics.loaded() == []
    monkeypatch.setattr(background_jobs, "SLICE_SECONDS", -1.0)  # every topic is a slice
    room.leave(MIB // 4)
    room.look()
    assert room.harness.broker.retention_evictor.ledgers == 20
    assert room.harness.broker.topics.loaded() == []


def test_little_free_space_limits_pending_bytes(room):
    room.leave(MIB + 500_000)
    assert room.guard.level is DiskLevel.LOW
    assert room.harness.broker.backpressure.pending_bytes_max <= 250_000
    room.leave(5 * MIB)
    assert room.harness.broker.backpressure.pending_bytes_max == pytest.approx(2 * MIB, rel=0.01)


def test_the_write_rate_is_reported_and_excessive_retention_logged(room, caplog):
    room.leave(7 * MIB)
    assert not room.guard.overflows
    for _ in range(10):
        publish(room, TOPIC, 20)
        room.look()
    rate = room.guard.bytes_per_second
    assert 5_000 < rate < 50_000
    assert room.guard.overflows
    assert room.guard.described()["secondsToLowWater"] == pytest.approx(4 * MIB / rate, rel=0.2)
    (warning,) = [line for line in caplog.messages if "a second the disk is full in" in line]
    assert "for 7d" in warning
    assert "then the oldest of them are deleted earlier" in warning
    assert "publishing stops below 1 MiB" in room.guard.start_line()


def test_a_broker_in_memory_has_no_disk(harness):
    assert harness.broker.disk.described() == {}
    assert harness.broker.disk.start_line() == ""
    assert harness.broker.disk.mark == 0


def test_explain_reports_that_the_disk_stops_producers(room):
    room.harness.producer(TOPIC).subscribe(TOPIC)
    room.leave(1000)
    found = room.harness.actions.cursors.explain(TopicName.parse(TOPIC), "s")
    (finding,) = [each for each in found["findings"] if each["kind"] == "disk"]
    assert "producers are stopped: the disk is full" in finding["text"]
