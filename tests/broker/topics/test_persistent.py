"""A topic's own doings that no command shows directly."""

from __future__ import annotations

from typing import Any

import pytest

from geminga.broker.topics.record import decode_json, encode_json
from geminga.errors import StoreDamaged
from geminga.ids import TopicName
from geminga.ledger.api import Lost, Value

NAME = TopicName.parse("t")


def filled(harness: Any, make_entry: Any, times: list[int]) -> Any:
    peer = harness.peer()
    peer.producer(str(NAME))
    for sequence_id, time in enumerate(times):
        peer.send(sequence_id, make_entry(publish_time=time))
    return harness.broker.topics.find(NAME)


@pytest.mark.parametrize(
    ("time", "offset"), [(0, 0), (10, 0), (11, 1), (20, 1), (25, 3), (30, 3), (31, 4), (10**15, 4)]
)
def test_places_by_time(harness: Any, make_entry: Any, time: int, offset: int) -> None:
    assert filled(harness, make_entry, [10, 20, 20, 30]).offset_by_time(time) == offset


def test_an_empty_topic_has_no_last_position(harness: Any, make_entry: Any) -> None:
    topic = filled(harness, make_entry, [])
    assert topic.last_position == (-1, -1)
    assert topic.last_batch_index() == -1
    assert topic.publish_time(0) == topic.agenda.now_ms
    assert topic.offset_by_time(5) == 0


def test_entries_that_cannot_be_read_have_no_time(harness: Any) -> None:
    peer = harness.peer()
    peer.producer(str(NAME))
    peer.send(0, b"\x00\x00\x00\x02\xff\xff")
    topic = harness.broker.topics.find(NAME)
    assert topic.publish_time(0) == 0
    assert topic.last_batch_index() == -1


def test_idle_means_that_nobody_is_there_and_nothing_is_under_way(harness: Any, make_entry: Any) -> None:
    topic = filled(harness, make_entry, [])
    assert not topic.idle
    peer = next(iter(harness.broker.sessions)).output
    harness.auto_poll = False
    peer.send(0)
    peer.disconnect()
    assert not topic.idle
    harness.poll()
    assert topic.idle


def test_only_topics_with_consumers_keep_entries_in_memory(harness: Any, make_entry: Any) -> None:
    topic = filled(harness, make_entry, [1, 2])
    assert not topic.ledger.cached
    harness.peer().subscribe(str(NAME))
    next(p.output for p in harness.broker.sessions if p.producers).send(2)
    assert len(topic.ledger.cached) == 1


def test_records() -> None:
    assert decode_json(Value(encode_json({"a": 1}), ()), "r") == {"a": 1}
    for damaged in (b"{", b"[]", b""):
        with pytest.raises(StoreDamaged, match="the record is no JSON object"):
            decode_json(Value(damaged, ()), "the record")
    assert decode_json(Value(b"", (), Lost(values=1)), "the record") == {}
    assert decode_json(Value(encode_json({"a": 1}), (), Lost(values=1)), "r") == {"a": 1}
