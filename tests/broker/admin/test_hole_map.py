"""Map of ack holes: at every scale it agrees with the cursor."""

import random
from typing import Any

import pytest

from geminga.broker.admin.hole_map import CELLS_MAX, ENTRIES_MAX, hole_map
from geminga.ids import TopicName
from geminga.ledger.damage import Damage, DamageLoss, EntriesDamaged
from tests.broker.conftest import TOPIC


@pytest.fixture
def make_map(harness):
    def make(start: int | None = None, stop: int | None = None, cells: int = 100) -> dict[str, Any]:
        found = harness.actions.cursors.found(TopicName.parse(TOPIC), "s")
        return hole_map(*found, start, stop, cells)

    return make


def publish(harness: Any, entries: int, **fields: Any) -> Any:
    peer = harness.consumer(TOPIC, kind="Shared", permits=1_000_000)
    harness.producer(TOPIC).publish(entries, **fields)
    return peer


def test_a_topic_without_entries_has_an_empty_map(harness, make_map):
    publish(harness, 0)
    found = make_map()
    assert (found["first"], found["end"], found["entries"]) == (0, 0, [])


def test_a_short_stretch_is_mapped_entry_by_entry(harness, make_map):
    publish(harness, 5).ack((0, 0), (0, 3))
    found = make_map()
    states = [each["state"] for each in found["entries"]]
    assert states == ["acknowledged", "open", "open", "acknowledged", "open"]
    assert found["entries"][1]["consumer"] is not None
    assert found["entries"][1]["id"] == "0:1"
    assert (found["mark"], found["read"], found["holes"]) == (1, 5, 1)


def test_open_messages_of_a_batch_are_shown_as_ranges(harness, make_entry, make_map):
    harness.consumer(TOPIC, kind="Shared")
    harness.producer(TOPIC).send(0, make_entry(num_messages_in_batch=8), messages=8)
    found = harness.actions.cursors.found(TopicName.parse(TOPIC), "s")
    found[1].cursor.acknowledge_part(0, [0b11001111], 8)
    entry = make_map()["entries"][0]
    assert (entry["state"], entry["messages"], entry["open"]) == ("partly", 8, [[0, 3], [6, 7]])


def test_cells_count_their_acknowledged_entries(harness, make_map):
    chance = random.Random(7)
    peer = publish(harness, 3000)
    acknowledged = sorted(chance.sample(range(3000), 1700))
    peer.ack(*((0, entry) for entry in acknowledged))
    for start, stop, cells in [(None, None, 100), (0, 3000, CELLS_MAX), (401, 1999, 7), (10, 900, 333)]:
        found = make_map(start, stop, cells)
        low, width = found["from"], found["width"]
        for cell, count in enumerate(found["acknowledged"]):
            begin, end = low + cell * width, min(found["to"], low + (cell + 1) * width)
            assert count == sum(begin <= each < end for each in acknowledged), (start, stop, cells, cell)
        assert len(found["acknowledged"]) <= cells


def test_stretches_beyond_the_topic_are_cut(harness, make_map):
    publish(harness, 10)
    assert (make_map(5, 1 << 60)["from"], make_map(5, 1 << 60)["to"]) == (5, 10)
    assert make_map(1 << 60, 1 << 61)["entries"] == []
    assert make_map(7, 3)["entries"] == []


def test_damaged_entries_are_shown(harness, make_map):
    publish(harness, 4)
    topic, _ = harness.actions.cursors.found(TopicName.parse(TOPIC), "s")
    damage = Damage("log-1", 0, "entries", 0, 2, 2, DamageLoss.ENTRIES)
    topic.ledger.damage_found(topic.ledger.segments[0], EntriesDamaged("gone", damage))
    found = make_map()
    assert found["damaged"] == [[2, 3]]
    assert found["entries"][2]["state"] == "damaged"


def test_very_many_holes_are_cheap_to_draw(harness, make_map):
    """Counted in steps and not by the clock: no more cells, and no more chunks looked at, than there are."""
    publish(harness, 1)
    topic, subscription = harness.actions.cursors.found(TopicName.parse(TOPIC), "s")
    cursor, entries = subscription.cursor, 200_000
    for key in range(entries >> 10):
        cursor.holes._chunks[key] = int("10" * 512, 2)
    cursor.holes._count = 512 * (entries >> 10)
    topic.ledger.segments[0].entries = entries
    topic.ledger.end = topic.ledger.confirmed = entries
    found = make_map(None, None, 1000)
    assert sum(found["acknowledged"]) == len(cursor.holes)
    assert len(found["acknowledged"]) <= 1000
    assert len(make_map(100_000, 100_000 + ENTRIES_MAX)["entries"]) == ENTRIES_MAX


def test_very_many_partly_acknowledged_batches_are_sampled(harness, make_map):
    publish(harness, 1)
    topic, subscription = harness.actions.cursors.found(TopicName.parse(TOPIC), "s")
    entries = 100_000
    subscription.cursor.batches = dict.fromkeys(range(0, entries, 2), 1)
    topic.ledger.segments[0].entries = entries
    topic.ledger.end = topic.ledger.confirmed = entries
    found = make_map(None, None, 100)
    assert sum(found["partly"]) == pytest.approx(entries / 2, rel=0.01)
    assert max(found["partly"]) <= found["width"]


def test_each_entry_is_shown_with_the_consumer_that_holds_it(harness):
    topic = "persistent://public/default/held"
    peers = [harness.peer() for _ in range(2)]
    for number, peer in enumerate(peers):
        peer.subscribe(topic, kind="Shared", consumer_name=f"c{number}", permits=10 + 490 * number)
    harness.producer(topic).publish(500)
    found = hole_map(*harness.actions.cursors.found(TopicName.parse(topic), "s"), 0, 400, 512)
    ids = {peer: {message.entry_id for message in peer.messages()} for peer in peers}
    assert all(ids.values())
    for entry in found["entries"]:
        assert entry["consumer"] == ("c0" if entry["offset"] in ids[peers[0]] else "c1")
