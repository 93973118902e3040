"""Stored record of a topic."""

from geminga.broker.topics.record import TopicRecord
from geminga.ledger.api import LostWrites, StoredValue


def test_a_record_is_decoded_as_encoded():
    record = TopicRecord(7, {"k": "v"})
    record.due_ms, record.epoch, record.terminated, record.unused_ms = 8, 0, True, 9
    record.unused_subscriptions, record.written_ledger, record.written_ms = {"s": 10}, 3, 11
    found = TopicRecord.decode(StoredValue(record.encode(), ()), "record")
    assert {name: getattr(found, name) for name in TopicRecord.__slots__} == {
        name: getattr(record, name) for name in TopicRecord.__slots__
    }


def test_a_new_topics_record_has_only_its_creation_time():
    assert TopicRecord(7).encode() == b'{"created_ms":7}'


def test_a_damaged_record_has_the_values_of_a_new_topic():
    found = TopicRecord.decode(StoredValue(b"", (), LostWrites(values=1)), "record")
    assert (found.created_ms, found.due_ms, found.terminated, found.epoch) == (0, 0, False, None)
