"""What administrators do to topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.admin.errors import AdminError, admin_error
from geminga.broker.admin.topic_actions import Joined
from geminga.broker.refusal import Refused
from geminga.errors import StoreStopped
from geminga.ids import MessageId, TopicName
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
PARTS = TopicName.parse("parts")
Command = pb.BaseCommand


def ignore(error: Exception | None) -> None:
    assert error is None


@pytest.fixture
def topics(harness: Any) -> Any:
    return harness.actions


def fill(harness: Any, make_entry: Callable[..., bytes], count: int = 5) -> Any:
    peer = harness.peer()
    peer.producer(TOPIC)
    for n in range(count):
        peer.send(n, make_entry(b"m%d" % n, publish_time=1_800_000_000_000 + n * 1000))
    peer.disconnect()
    harness.actions.create_subscription(NAME, "s", MessageId.earliest, ignore)
    return harness.actions


def read(harness: Any) -> list[bytes]:
    peer = harness.peer()
    peer.subscribe(TOPIC)
    found = peer.payloads()
    peer.disconnect()
    return found  # type: ignore[no-any-return]


def refused(status: int, call: Callable[..., Any], *args: Any, **options: Any) -> None:
    with pytest.raises(AdminError) as error:
        call(*args, **options)
    assert error.value.status == status


# --- life ---
def test_creating(harness: Any, topics: Any) -> None:
    done: list[Any] = []
    harness.auto_poll = False
    topics.create(NAME, done.append, properties={"a": "b"})
    assert not done
    harness.poll()
    assert done == [None]
    refused(409, topics.create, NAME, ignore)
    refused(404, topics.create, TopicName.parse("persistent://no/where/t"), ignore)
    assert (topics.partitions(NAME), topics.properties(NAME)) == (0, {"a": "b"})
    harness.restart()
    assert harness.actions.list("public/default", "persistent") == [TOPIC]
    assert harness.actions.properties(NAME) == {"a": "b"}


def test_partitioned_topics(harness: Any, topics: Any) -> None:
    refused(412, topics.create_partitioned, PARTS.partition_name(1), 2, ignore)
    refused(412, topics.create_partitioned, PARTS, 0, ignore)
    refused(412, topics.create_partitioned, PARTS, 10**6, ignore)
    topics.create_partitioned(PARTS, 2, ignore, properties={"x": "y"})
    refused(409, topics.create_partitioned, PARTS, 2, ignore)
    refused(409, topics.create, PARTS, ignore)
    assert topics.partitions(PARTS) == 2
    assert topics.partitioned("public/default") == [str(PARTS)]
    assert topics.list("public/default", "persistent") == [f"{PARTS}-partition-{n}" for n in range(2)]
    refused(422, topics.update_partitions, PARTS, 1, ignore)
    refused(422, topics.update_partitions, PARTS, 10**6, ignore)
    topics.create(NAME, ignore)
    refused(409, topics.update_partitions, NAME, 3, ignore)
    topics.update_partitions(PARTS, 4, ignore)
    harness.restart()
    topics = harness.actions
    assert topics.partitions(PARTS) == 4
    assert topics.properties(PARTS) == {"x": "y"}
    assert len(topics.list("public/default", "persistent")) == 5
    done: list[Any] = []
    topics.delete(PARTS, False, done.append)
    harness.poll()
    assert done == [None]
    assert not topics.exists(PARTS)
    assert topics.list("public/default", "persistent") == [TOPIC]
    refused(404, topics.partitions, PARTS)


def test_deleting(harness: Any, topics: Any, make_entry: Any) -> None:
    refused(404, topics.delete, NAME, False, ignore)
    fill(harness, make_entry)
    peer = harness.peer()
    peer.producer(TOPIC)
    consumer = harness.peer()
    consumer.subscribe(TOPIC)
    consumer.ack((0, 0))
    refused(412, topics.delete, NAME, False, ignore)
    done: list[Any] = []
    topics.delete(NAME, True, done.append)
    harness.poll()
    assert done == [None]
    assert peer.pop().type == Command.CLOSE_PRODUCER
    assert consumer.take(Command.CLOSE_CONSUMER)
    left = [key for key, _ in harness.store.scan("") if "public/default/t" in key]
    assert left == []
    assert harness.store.ledgers(TOPIC) == []
    harness.restart()
    assert not harness.actions.exists(NAME)


def test_acknowledgements_under_way_do_not_bring_a_deleted_cursor_back(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    subscription = topics.topics.find(NAME).subscriptions["s"]
    subscription.cursor.acknowledge(0)
    harness.broker.agenda.mark_cursor(subscription)
    topics.delete_subscription(NAME, "s", ignore)
    harness.broker.agenda.flush_cursors()
    assert not list(harness.store.scan("cursor/"))


def test_unloading_disconnects_and_loses_nothing(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    peer = harness.peer()
    peer.subscribe(TOPIC)
    assert len(peer.payloads()) == 5
    peer.ack((0, 0))
    topics.unload(NAME)
    assert peer.pop().type == Command.CLOSE_CONSUMER
    assert topics.topics.loaded() == []
    assert read(harness) == [b"m1", b"m2", b"m3", b"m4"]
    refused(404, topics.unload, PARTS)


def test_unloading_with_entries_under_way_keeps_the_topic(harness: Any, topics: Any) -> None:
    peer = harness.peer()
    peer.producer(TOPIC)
    harness.auto_poll = False
    peer.send(0)
    topics.unload(NAME)
    assert topics.topics.loaded() == [NAME]
    harness.poll()
    assert len(peer.receipts()) == 1


def test_idle_topics_leave_memory(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    assert topics.topics.loaded() == [NAME]
    harness.advance(100)
    assert topics.topics.loaded() == []
    assert len(read(harness)) == 5


def test_truncating(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    topics.truncate(NAME, ignore)
    assert read(harness) == []
    assert topics.topics.find(NAME).ledger.size_bytes == 0
    peer = harness.peer()
    peer.producer(TOPIC)
    peer.send(9)
    assert read(harness) == [b"m9"]


# --- subscriptions ---
def test_subscriptions(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    refused(409, topics.create_subscription, NAME, "s", MessageId.latest, ignore)
    topics.create_subscription(NAME, "end", MessageId.latest, ignore, properties={"k": "v"})
    topics.create_subscription(NAME, "mid", MessageId(-1, 0, 3), ignore)
    assert list(topics.subscriptions(NAME)) == ["end", "mid", "s"]
    backlog = {name: each["msgBacklog"] for name, each in topics.stats(NAME)["subscriptions"].items()}
    assert backlog == {"end": 0, "mid": 2, "s": 5}
    topics.set_subscription_properties(NAME, "mid", {"new": "1"}, ignore)
    harness.restart()
    topics = harness.actions
    assert topics.subscription_properties(NAME, "end") == {"k": "v"}
    assert topics.subscription_properties(NAME, "mid") == {"new": "1"}
    harness.peer().subscribe(TOPIC)
    refused(412, topics.delete_subscription, NAME, "s", ignore)
    topics.delete_subscription(NAME, "s", ignore, force=True)
    refused(404, topics.delete_subscription, NAME, "s", ignore)
    refused(404, topics.subscriptions, PARTS)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"position": MessageId(-1, 0, 2)}, 2),
        ({"position": MessageId(-1, 0, 2), "excluded": True}, 3),
        ({"position": MessageId.earliest}, 0),
        ({"position": MessageId.latest}, 5),
        ({"position": MessageId.latest, "excluded": True}, 5),
        ({"timestamp_ms": 1_800_000_003_000}, 3),
        ({"timestamp_ms": 1_800_000_002_500}, 3),
    ],
)
def test_resetting(harness: Any, make_entry: Any, options: dict[str, Any], first: int) -> None:
    topics = fill(harness, make_entry)
    topics.skip_all(NAME, "s", ignore)
    topics.reset_cursor(NAME, "s", ignore, **options)
    harness.restart()
    assert read(harness) == [b"m%d" % n for n in range(first, 5)]


def test_a_reset_needs_a_place(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    refused(412, topics.reset_cursor, NAME, "s", ignore)
    refused(404, topics.reset_cursor, NAME, "absent", ignore, timestamp_ms=0)


def test_skipping_counts_open_entries(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    topics.topics.find(NAME).subscriptions["s"].cursor.acknowledge(1)
    topics.skip(NAME, "s", 2, ignore)
    assert read(harness) == [b"m3", b"m4"]
    topics.skip(NAME, "s", 100, ignore)
    assert read(harness) == []


def test_expiring(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    harness.advance(10)
    topics.expire(NAME, "s", 7, ignore)
    harness.restart()
    assert read(harness) == [b"m3", b"m4"]


def test_skipping_reaches_consumers_that_are_connected(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    shared = harness.peer()
    shared.subscribe(TOPIC, "sh", kind="Shared", permits=2)
    assert len(shared.payloads()) == 2
    topics.skip_all(NAME, "sh", ignore)
    shared.command("flow", consumer_id=1, messagePermits=10)
    assert shared.payloads() == []
    assert shared.session.consumers[1].unacked_messages == 0


# --- looking at entries ---
def payload(entry: bytes) -> bytes:
    return bytes(parse_entry(entry).payload)


def test_peeking_and_reading(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    topics.topics.find(NAME).subscriptions["s"].cursor.acknowledge(1)
    found = [topics.peek(NAME, "s", nth) for nth in (1, 2, 3)]
    assert [(i.entry_id, payload(e)) for i, e in found] == [(0, b"m0"), (2, b"m2"), (3, b"m3")]
    refused(404, topics.peek, NAME, "s", 5)
    assert payload(topics.read_entry(NAME, 0, 4)) == b"m4"
    refused(404, topics.read_entry, NAME, 0, 5)
    refused(404, topics.read_entry, NAME, 3, 0)
    assert payload(topics.examine(NAME, "earliest", 2)[1]) == b"m1"
    assert payload(topics.examine(NAME, "latest", 2)[1]) == b"m3"
    refused(404, topics.examine, NAME, "latest", 6)
    assert topics.last_message_id(NAME).entry_id == 4
    assert topics.message_id_at(NAME, 1_800_000_002_000).entry_id == 2
    assert topics.message_id_at(NAME, 1_900_000_000_000).entry_id == 4
    assert topics.backlog_size(NAME, MessageId(-1, 0, 4)) * 5 == topics.stats(NAME)["storageSize"]


def test_another_topics_ledgers_are_not_readable(harness: Any, make_entry: Any) -> None:
    topics = fill(harness, make_entry)
    topics.create(TopicName.parse("other"), ignore)
    refused(404, topics.read_entry, TopicName.parse("other"), 0, 0)


def test_properties(harness: Any, topics: Any) -> None:
    topics.create(NAME, ignore)
    topics.set_properties(NAME, {"a": "1"}, ignore)
    harness.restart()
    assert harness.actions.properties(NAME) == {"a": "1"}
    refused(404, topics.properties, PARTS)


def test_joined_reports_once_with_the_first_error() -> None:
    said: list[Any] = []
    joined = Joined(3, said.append)
    first, second = StoreStopped("first"), StoreStopped("second")
    joined(None)
    joined(first)
    assert not said
    joined(second)
    assert said == [first]
    Joined(0, said.append)
    assert said == [first, None]


def test_codes_have_a_status() -> None:
    assert admin_error(Refused(pb.TopicNotFound, "x")).status == 404
    assert admin_error(Refused(pb.UnknownError, "x")).status == 500
