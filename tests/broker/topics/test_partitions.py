"""Partitioned topics are created, grown and deleted in slices: clients in between lose nothing."""

from random import Random
from typing import Any

import pytest

from geminga.broker.runtime.refusal import Refused
from geminga.errors import StoreError
from geminga.ids import MessageId, TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.sliced import Sliced

NAME = TopicName.parse("persistent://public/default/parts")
Said = list[StoreError | None]


@pytest.fixture
def sliced():
    """A turn has time for one item."""
    return Sliced(Random(0), 1.0)


def create(sliced: Sliced, count: int, *subscriptions: str) -> None:
    said: Said = []
    sliced.actions.create_partitioned(NAME, count, said.append)
    sliced.settle()
    for index in range(count):
        for each in subscriptions:
            sliced.actions.cursors.create(NAME.partition_name(index), each, MessageId.earliest, said.append)
    sliced.settle()
    assert said == [None] * (1 + count * len(subscriptions))


def grow(sliced: Sliced, count: int) -> Said:
    said: Said = []
    sliced.actions.update_partitions(NAME, count, said.append)
    return said


def delete(sliced: Sliced) -> Said:
    said: Said = []
    sliced.actions.delete(NAME, True, said.append)
    return said


def subscriptions(sliced: Sliced, index: int) -> set[str]:
    found = sliced.broker.topics.find(NAME.partition_name(index))
    return set(found.subscriptions)


def partitions(sliced: Sliced) -> list[str]:
    return [key for key in sliced.store.keys.names("topic/") if "parts-partition-" in key]


def publish(sliced: Sliced, index: int) -> None:
    peer = sliced.peer(connect=False)
    peer.command("connect", client_version="test", protocol_version=21)
    peer.command("producer", topic=str(NAME.partition_name(index)), producer_id=1, request_id=1)
    wait_for(sliced, peer, pb.BaseCommand.PRODUCER_SUCCESS)
    peer.send(0)
    wait_for(sliced, peer, pb.BaseCommand.SEND_RECEIPT)


def wait_for(sliced: Sliced, peer: Any, kind: int) -> None:
    for _ in range(1_000):
        if peer.take(kind):
            return
        sliced.turn()
        sliced.take_in()
    raise AssertionError(peer.frames)


@pytest.mark.parametrize("end", ["", "crash"])
def test_messages_to_a_new_partition_before_its_subscriptions_are_delivered(sliced, end):
    create(sliced, 2, "s")
    grow(sliced, 6)
    if end:
        sliced.crash()
    publish(sliced, 5)
    sliced.settle()
    topic: Any = sliced.broker.topics.find(NAME.partition_name(5))
    assert topic.subscriptions["s"].backlog == 1


def test_growth_interrupted_by_a_crash_resumes_at_the_next_request(sliced):
    create(sliced, 2, "s")
    grow(sliced, 6)
    sliced.turn()
    assert 2 < len(partitions(sliced)) < 6
    sliced.crash()
    said = grow(sliced, 6)
    sliced.settle()
    assert said == [None]
    assert all(subscriptions(sliced, index) == {"s"} for index in range(6))


def test_two_concurrent_growths_create_all_partitions(sliced):
    create(sliced, 1, "s")
    first, second = grow(sliced, 4), grow(sliced, 8)
    sliced.settle()
    assert (first, second) == ([None], [None])
    assert all(subscriptions(sliced, index) == {"s"} for index in range(8))
    assert b"fresh" not in sliced.store.keys.get(f"partitioned/{NAME}").base


def test_a_deleted_topic_gets_no_new_partitions(sliced):
    create(sliced, 20, "s")
    said = delete(sliced)
    sliced.turn()
    with pytest.raises(Refused, match="is being deleted"):
        grow(sliced, 25)
    with pytest.raises(Refused, match="is being deleted"):
        sliced.actions.create(NAME.partition_name(30), said.append)
    sliced.settle()
    assert said == [None]
    assert not partitions(sliced)
    assert not list(sliced.store.keys.names("cursor/"))


def test_concurrent_deletions_spare_a_recreated_topic(sliced):
    """Otherwise the second deletion, still running, would delete part of the recreated topic."""
    create(sliced, 20)
    first = delete(sliced)
    for _ in range(8):
        sliced.turn()
    second = delete(sliced)
    while not first:
        sliced.turn()
        sliced.take_in()
    assert (first, second) == ([None], [None])
    create(sliced, 20, "s")
    assert len(partitions(sliced)) == 20


def test_deletion_keeps_policies_and_schemas_of_a_recreated_topic(sliced):
    """Data of the deleted topic is deleted with its record, not when that is reported to be durable."""
    create(sliced, 3)
    namespaces = sliced.broker.namespaces
    namespaces.set_topic_policy(NAME, "message_ttl_in_seconds", 77)
    said = delete(sliced)
    while sliced.broker.topics.partitioned.count(NAME):
        sliced.turn()
    assert not said
    assert namespaces.get_topic_policy(NAME, "message_ttl_in_seconds") is None
    made: Said = []
    sliced.actions.create_partitioned(NAME, 3, made.append)
    namespaces.set_topic_policy(NAME, "message_ttl_in_seconds", 99)
    sliced.settle()
    assert said == made == [None]
    assert namespaces.get_topic_policy(NAME, "message_ttl_in_seconds") == 99


def test_a_stopping_broker_answers_all_waiting_deletions(sliced):
    create(sliced, 20)
    first = delete(sliced)
    sliced.turn()
    second = delete(sliced)
    sliced.broker.close()
    assert [str(said[0])[:15] for said in (first, second)] == ["the broker ends"] * 2
