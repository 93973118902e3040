"""Administrators' operations on topics."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.admin.errors import AdminRefusal, admin_error
from geminga.broker.admin.topic_actions import JoinedCompletion
from geminga.broker.runtime.cooperative import at_once
from geminga.broker.runtime.refusal import Refused
from geminga.errors import StoreStopped
from geminga.ids import MessageId, TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, TOPIC, Command
from tests.support.disk_stores import succeeded

PARTS = TopicName.parse("parts")


@pytest.fixture
def topics(harness):
    return harness.actions


def fill(harness: Any, make_entry: Callable[..., bytes], count: int = 5) -> Any:
    peer = harness.producer(TOPIC)
    peer.send_all(make_entry(b"m%d" % n, publish_time=1_800_000_000_000 + n * 1000) for n in range(count))
    peer.disconnect()
    harness.actions.cursors.create(NAME, "s", MessageId.earliest, succeeded)
    return harness.actions


def read(harness: Any) -> list[bytes]:
    peer = harness.consumer(TOPIC)
    found = peer.payloads()
    peer.disconnect()
    return found


def refused(status: int, call: Callable[..., Any], *args: Any, **options: Any) -> None:
    with pytest.raises((AdminRefusal, Refused)) as error:
        call(*args, **options)
    found = error.value if isinstance(error.value, AdminRefusal) else admin_error(error.value)
    assert found.status == status


# --- life ---
def test_a_topic_is_created_once_the_store_has_it(harness, topics):
    done: list[Any] = []
    harness.auto_poll = False
    topics.create(NAME, done.append, properties={"a": "b"})
    assert not done
    harness.poll()
    assert done == [None]
    refused(409, topics.create, NAME, succeeded)
    refused(404, topics.create, TopicName.parse("persistent://no/where/t"), succeeded)
    assert (topics.partitions(NAME), topics.properties(NAME)) == (0, {"a": "b"})
    harness.restart()
    assert list(harness.actions.topics.walk("public/default", persistent=True)) == [TOPIC]
    assert harness.actions.properties(NAME) == {"a": "b"}


def test_deleting_a_topic_closes_its_clients(harness, topics, make_entry):
    refused(404, topics.delete, NAME, False, succeeded)
    fill(harness, make_entry)
    peer = harness.producer(TOPIC)
    consumer = harness.consumer(TOPIC)
    consumer.ack((0, 0))
    refused(412, topics.delete, NAME, False, succeeded)
    done: list[Any] = []
    topics.delete(NAME, True, done.append)
    harness.poll()
    assert done == [None]
    assert peer.pop().type == Command.CLOSE_PRODUCER
    assert consumer.take(Command.CLOSE_CONSUMER)
    assert [key for key, _ in harness.store.keys.scan("") if "public/default/t" in key] == []
    assert harness.store.ledgers(TOPIC) == []
    harness.restart()
    assert not harness.actions.exists(NAME)


def test_acknowledgements_under_way_do_not_bring_a_deleted_cursor_back(harness, make_entry):
    topics = fill(harness, make_entry)
    subscription = topics.topics.find(NAME).subscriptions["s"]
    subscription.cursor.acknowledge(0)
    harness.broker.scheduler.mark_cursor(subscription)
    topics.cursors.delete(NAME, "s", succeeded)
    harness.broker.scheduler.flush_cursors()
    assert not list(harness.store.keys.scan("cursor/"))


def test_unloading_disconnects_and_loses_nothing(harness, make_entry):
    topics = fill(harness, make_entry)
    peer = harness.consumer(TOPIC)
    assert len(peer.payloads()) == 5
    peer.ack((0, 0))
    topics.unload(NAME)
    assert peer.pop().type == Command.CLOSE_CONSUMER
    assert topics.topics.loaded() == []
    assert read(harness) == [b"m1", b"m2", b"m3", b"m4"]
    refused(404, topics.unload, PARTS)


def test_unloading_with_entries_under_way_keeps_the_topic(harness, topics):
    peer = harness.producer(TOPIC)
    harness.auto_poll = False
    peer.send(0)
    topics.unload(NAME)
    assert topics.topics.loaded() == [NAME]
    harness.poll()
    assert len(peer.receipts()) == 1


def test_truncating_removes_all_messages(harness, make_entry):
    topics = fill(harness, make_entry)
    topics.topic(NAME).truncate(succeeded)
    assert read(harness) == []
    assert topics.topics.find(NAME).ledger.size_bytes == 0
    harness.producer(TOPIC).send(9)
    assert read(harness) == [b"m9"]


# --- subscriptions ---
def test_a_subscription_in_use_is_deleted_by_force_and_properties_survive_a_restart(harness, make_entry):
    fill(harness, make_entry)
    harness.actions.cursors.create(NAME, "mid", MessageId(-1, 0, 3), succeeded, properties={"k": "v"})
    harness.restart()
    topics = harness.actions
    assert topics.cursors.found(NAME, "mid")[1].cursor.properties == {"k": "v"}
    assert topics.stats(NAME)["subscriptions"]["mid"]["msgBacklog"] == 2
    harness.peer().subscribe(TOPIC)
    refused(412, topics.cursors.delete, NAME, "s", succeeded)
    topics.cursors.delete(NAME, "s", succeeded, force=True)
    refused(404, topics.cursors.delete, NAME, "s", succeeded)


def test_a_reset_without_a_place_is_refused(harness, make_entry):
    topics = fill(harness, make_entry)
    refused(412, topics.cursors.reset, NAME, "s", succeeded)
    refused(404, topics.cursors.reset, NAME, "absent", succeeded, timestamp_ms=0)


def test_joined_reports_once_with_the_first_error():
    said: list[Any] = []
    joined = JoinedCompletion(3, said.append)
    first, second = StoreStopped("first"), StoreStopped("second")
    joined(None)
    joined(first)
    assert not said
    joined(second)
    assert said == [first]
    JoinedCompletion(0, said.append)
    assert said == [first, None]


def test_expiring_to_a_position_never_goes_back(harness, make_entry):
    actions = fill(harness, make_entry)
    peer = harness.consumer(TOPIC, kind="Shared")
    peer.ack((0, 0), (0, 1), (0, 3))
    peer.disconnect()
    actions.cursors.expire_to(NAME, "s", MessageId(-1, 0, 0), succeeded, excluded=False)
    cursor = actions.cursors.found(NAME, "s")[1].cursor
    assert (cursor.mark, list(cursor.holes.ranges())) == (2, [(3, 4)])
    actions.cursors.expire_to(NAME, "s", MessageId(-1, 0, 2), succeeded, excluded=True)
    assert cursor.mark == 2
    actions.cursors.expire_to(NAME, "s", MessageId(-1, 0, 2), succeeded, excluded=False)
    assert cursor.mark == 4
    assert subscription_stats(actions)["totalMsgExpired"] == 1
    assert read(harness) == [b"m4"]


# --- messages inside batches ---
def fill_batches(harness: Any, make_entry: Callable[..., bytes], *sizes: int) -> Any:
    peer = harness.producer(TOPIC)
    for number, messages in enumerate(sizes):
        entry = make_entry(num_messages_in_batch=messages if messages > 1 else None)
        peer.send(number, entry, messages=messages)
    peer.disconnect()
    harness.actions.cursors.create(NAME, "s", MessageId.earliest, succeeded)
    return harness.actions


def subscription_stats(actions: Any) -> dict[str, Any]:
    return actions.stats(NAME)["subscriptions"]["s"]


def test_the_backlog_is_counted_in_messages(harness, make_entry):
    actions = fill_batches(harness, make_entry, 400, 1, 5)
    stats = subscription_stats(actions)
    assert (stats["msgBacklog"], stats["messagesInBacklog"]) == (3, 406)
    assert stats["bytesInBacklog"] == actions.stats(NAME)["storageSize"] == stats["backlogSize"]
    assert actions.cursors.backlog(NAME, "s") == (3, 406)
    harness.advance(7)
    assert subscription_stats(actions)["oldestBacklogMessageAgeSeconds"] == 7
    assert actions.stats(NAME)["oldestBacklogMessageAgeSeconds"] == 7
    assert actions.stats(NAME)["oldestBacklogMessageSubscriptionName"] == "s"
    actions.cursors.skip_all(NAME, "s", succeeded)
    # As Apache Pulsar has it: no name where nothing waits.
    assert "oldestBacklogMessageSubscriptionName" not in actions.stats(NAME)
    stats = subscription_stats(actions)
    assert (stats["messagesInBacklog"], stats["bytesInBacklog"]) == (0, 0)
    assert stats["oldestBacklogMessageAgeSeconds"] == -1


def test_messages_are_skipped_one_by_one(harness, make_entry):
    actions = fill_batches(harness, make_entry, 3, 1, 1000, 2)
    assert actions.cursors.skip_messages(NAME, "s", 1, succeeded) == 1
    assert subscription_stats(actions)["messagesInBacklog"] == 1005
    assert actions.cursors.skip_messages(NAME, "s", 104, succeeded) == 104
    stats = subscription_stats(actions)
    assert (stats["msgBacklog"], stats["messagesInBacklog"], stats["ackHoles"]) == (2, 901, 0)
    cursor = at_once(actions.internal_stats(NAME))["cursors"]["s"]
    assert cursor["partlyAcknowledgedBatches"] == {"0:2": {"messages": 1000, "open": [(101, 999)]}}
    harness.crash()
    assert subscription_stats(harness.actions)["messagesInBacklog"] == 901
    peer = harness.consumer(TOPIC)
    first = peer.messages()[0]
    assert (first.entry_id, first.ack_set[1]) == (2, -(1 << 37))
    peer.disconnect()
    assert harness.actions.cursors.skip_messages(NAME, "s", 5000, succeeded) == 901
    assert subscription_stats(harness.actions)["msgBacklog"] == 0


def test_a_delivered_batch_that_is_skipped_in_part_frees_the_consumer(harness, make_entry):
    actions = fill_batches(harness, make_entry, 5, 5)
    harness.consumer(TOPIC, kind="Shared")
    assert subscription_stats(actions)["unackedMessages"] == 10
    actions.cursors.skip_messages(NAME, "s", 7, succeeded)
    assert subscription_stats(actions)["unackedMessages"] == 3


def test_holes_are_counted_between_messages(harness, make_entry):
    actions = fill_batches(harness, make_entry, 1, 4, 4, 1, 4, 1)
    peer = harness.consumer(TOPIC, kind="Shared")

    def acknowledge(entry_id: int, still_open: int) -> int:
        part = pb.MessageIdData(ledgerId=0, entryId=entry_id, ack_set=[still_open] if still_open else [])
        peer.command("ack", consumer_id=1, ack_type=0, message_id=[part])
        return subscription_stats(actions)["ackHoles"]

    assert acknowledge(1, 0b1111) == 0
    assert acknowledge(1, 0b1010) == 2  # behind message 0:0, and behind the second of the batch
    assert acknowledge(2, 0b1100) == 3
    assert acknowledge(3, 0) == 4
    assert acknowledge(2, 0b0100) == 4  # the last of the batch goes with the entry behind it
    assert acknowledge(0, 0) == 3
    assert acknowledge(4, 0b0111) == 4
    assert acknowledge(5, 0) == 4
    internals = at_once(actions.internal_stats(NAME))["cursors"]["s"]
    assert internals["partlyAcknowledgedBatchCount"] == 3
    assert internals["partlyAcknowledgedBatches"]["0:1"] == {"messages": 4, "open": [(1, 1), (3, 3)]}
