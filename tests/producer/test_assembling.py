"""Closing of batches, unbatched messages, and permits: algorithms.md section 5."""

import random

import pytest

from geminga.errors import MessageTooBig, ProducerQueueIsFull
from geminga.producer.message import OutgoingMessage, bound_to, build_message
from geminga.producer.settings import BatchingType, CompressionType
from geminga.transactions import TransactionCore, TransactionId
from geminga.wire.batch import decode_batch


def counts(sent):
    return [s.metadata.num_messages_in_batch if s.is_batch else 1 for s in sent]


def test_a_batch_closes_on_count(bench):
    b = bench(batching_max_messages=3).connect()
    assert [b.add(b"x") for _ in range(7)] == [False, False, True, False, False, True, False]
    assert counts(b.written()) == [3, 3]
    assert counts(b.flushed()) == [1]


def test_a_batch_closes_on_bytes_and_before_it_would_exceed_them(bench):
    b = bench(batching_max_allowed_size_in_bytes=10).connect()
    b.add(b"1234")
    b.add(b"123456")  # 10: full
    b.add(b"12345678")
    b.add(b"123")  # would be 11: the open batch goes first
    assert counts(b.written()) == [2, 1]
    assert counts(b.flushed()) == [1]


def test_a_message_larger_than_a_batch_goes_alone(bench):
    b = bench(batching_max_allowed_size_in_bytes=10).connect()
    b.add(b"1")
    b.add(b"x" * 50)
    b.add(b"2")
    assert counts(b.flushed()) == [1, 1, 1]


def test_a_batch_of_one_is_a_plain_message_with_all_its_fields(bench):
    b = bench().connect()
    b.add(b"x", OutgoingMessage(b"x", partition_key="k", properties=(("a", "b"),), event_time=5))
    (sent,) = b.flushed()
    assert not sent.is_batch
    assert sent.metadata.properties[0].key == "a"
    assert (sent.metadata.partition_key, sent.metadata.event_time) == ("k", 5)


def test_a_batch_closes_on_time_and_when_somebody_waits(bench):
    b = bench(batching_max_publish_delay_seconds=0.01).connect()
    b.now = 5.0
    b.add(b"x")
    assert b.partition.next_deadline() == pytest.approx(5.01)
    b.partition.tick(5.005)
    assert b.written() == []
    b.partition.tick(5.0101)
    assert counts(b.written()) == [1]
    b.add(b"y")
    b.partition.batch.urgent = True
    b.partition.tick(5.0102)
    assert counts(b.written()) == [1]


def test_a_delayed_message_goes_alone_and_after_what_came_before(bench):
    b = bench().connect()
    b.add(b"1")
    b.add(b"2")
    b.add(b"3", OutgoingMessage(b"3", deliver_at_time=9))
    sent = b.written()
    assert counts(sent) == [2, 1]
    assert sent[1].metadata.deliver_at_time == 9
    assert [s.command.sequence_id for s in sent] == [0, 2]


def test_explicit_ids_share_batches_while_they_grow(bench):
    b = bench().connect()
    for number in (10, 12, 15, 15, 20):
        b.add(b"x", OutgoingMessage(b"x", sequence_id=number))
    b.add(b"x")
    b.add(b"x", OutgoingMessage(b"x", sequence_id=30))
    sent = b.flushed()
    assert [(s.command.sequence_id, s.command.highest_sequence_id) for s in sent] == [
        (10, 15),
        (15, 0),
        (20, 0),
        (0, 0),
        (30, 0),
    ]
    assert [s.sequence_id for s in decode_batch(sent[0].body, 3)] == [10, 12, 15]


@pytest.mark.parametrize("batching_type", BatchingType)
@pytest.mark.parametrize("initial", [None, 3])
def test_explicit_ids_that_the_broker_may_have_share_no_batch_with_others(bench, batching_type, initial):
    # Deduplication ignores a batch by its first id: 12 and 13 would be lost behind the repeated 11.
    b = bench(batching_type=batching_type, producer_name="p", initial_sequence_id=initial)
    b.connect(last_sequence_id=11)
    for number in (10, 11, 12, 13, 13, 5, 14, 15):
        b.add(b"x", OutgoingMessage(b"x", sequence_id=number))
    sent = [(s.command.sequence_id, s.command.num_messages) for s in b.flushed()]
    by_key = batching_type is BatchingType.KeyBased  # its batches have the highest id
    assert sent == [(10, 1), (11, 1), (13 if by_key else 12, 2), (13, 1), (5, 1), (15 if by_key else 14, 2)]


@pytest.mark.parametrize("batching_type", BatchingType)
@pytest.mark.parametrize("name", ["p", None])
def test_explicit_ids_share_no_batch_before_the_broker_has_sent_its_last_id(bench, batching_type, name):
    # A lazily started partition takes messages before it is connected.
    b = bench(batching_type=batching_type, producer_name=name)
    for number in (10, 11, 12):
        b.add(b"x", OutgoingMessage(b"x", sequence_id=number))
    b.connect(last_sequence_id=11 if name else -1)
    for number in (13, 14, 15):
        b.add(b"x", OutgoingMessage(b"x", sequence_id=number))
    assert counts(b.flushed()) == ([1, 1, 1, 3] if name else [6])  # a new name has no ids


@pytest.mark.parametrize("batching_type", BatchingType)
def test_explicit_ids_that_an_open_batch_will_have_share_no_batch_with_others(bench, batching_type):
    b = bench(batching_type=batching_type).connect()
    for _ in range(5):
        b.add(b"x")
    for number in (3, 6, 7):
        b.add(b"x", OutgoingMessage(b"x", sequence_id=number))
    assert counts(b.flushed()) == [5, 1, 2]


def test_the_first_message_sets_the_shared_metadata(bench):
    b = bench().connect()
    b.add(b"1", OutgoingMessage(b"1", partition_key="a", replicate_to=("c",)))
    b.add(b"2", OutgoingMessage(b"2", partition_key="b"))
    (sent,) = b.flushed()
    assert sent.metadata.partition_key == "a"
    assert list(sent.metadata.replicate_to) == ["c"]
    assert [s.partition_key for s in decode_batch(sent.body, 2)] == ["a", "b"]


@pytest.mark.parametrize("batching_type", BatchingType)
def test_another_schema_version_begins_another_batch(bench, batching_type):
    b = bench(batching_type=batching_type).connect()
    for version in (b"1", b"1", b"2", None):
        b.add(b"x", OutgoingMessage(b"x", schema_version=version))
    assert [s.metadata.schema_version for s in b.flushed()] == [b"1", b"2", b""]


def test_key_based_batches_are_sent_as_java_does(bench):
    # Recorded case java.batch_key_based: keys 0 1 0 1 0 give (3, highest 3) and (4, highest 4).
    b = bench(batching_type=BatchingType.KeyBased).connect()
    for number in range(5):
        key = f"key-{number % 2}"
        b.add(b"msg-%d" % number, OutgoingMessage(b"msg-%d" % number, partition_key=key))
    first, second = b.flushed()
    assert (first.command.sequence_id, first.command.highest_sequence_id) == (3, 3)
    assert (second.command.sequence_id, second.command.highest_sequence_id) == (4, 4)
    assert [(s.sequence_id, s.partition_key) for s in decode_batch(first.body, 2)] == [
        (1, "key-1"),
        (3, "key-1"),
    ]
    assert [s.sequence_id for s in decode_batch(second.body, 3)] == [0, 2, 4]
    assert (first.metadata.partition_key, second.metadata.partition_key) == ("key-1", "key-0")


def test_key_based_batches_are_of_one_ordering_key_or_else_partition_key(bench):
    b = bench(batching_type=BatchingType.KeyBased).connect()
    keys = ["a", None], ["b", None], ["a", None], ["x", b"o"], ["y", b"o"], [None, None]
    for key, ordering_key in keys:
        b.add(b"x", build_message(b"x", partition_key=key, ordering_key=ordering_key))
    b.add(b"bare")
    assert [s.command.sequence_id for s in b.flushed()] == [1, 2, 4, 6]


def test_explicit_ids_of_key_based_batches_are_not_moved_when_the_broker_sends_its_last_id(bench):
    b = bench(batching_type=BatchingType.KeyBased, producer_name="p")
    b.partition.start()
    for sequence_id in range(4):
        b.add(b"x", build_message(b"x", partition_key="ab"[sequence_id % 2], sequence_id=sequence_id))
        if sequence_id == 1:
            b.partition.close_batch()
    b.add(b"y", build_message(b"y", partition_key="a"))  # an automatic id needs another batch
    b.connect(last_sequence_id=100)
    b.partition.close_batch()
    assert [operation.sequence_id for operation in b.partition.pending] == [0, 1, 2, 3, 101]


def test_key_based_limits_count_over_all_keys(bench):
    b = bench(batching_type=BatchingType.KeyBased, batching_max_messages=3).connect()
    for number in range(3):
        b.add(b"x", OutgoingMessage(b"x", partition_key=str(number)))
    assert counts(b.written()) == [1, 1, 1]
    assert b.permits_used[0] == 3


def test_a_batch_that_uses_the_last_permit_waits_for_nothing(bench):
    b = bench(max_pending_messages=3).connect()
    for _ in range(3):
        b.add(b"x")
    assert counts(b.written()) == [3]
    with pytest.raises(ProducerQueueIsFull, match="max_pending_messages=3"):
        b.add(b"x")
    b.receipt(0, 2)
    b.add(b"x")


def test_an_oversize_message_fails_alone(bench):
    b = bench(max_message_size=1000).connect()
    b.add(b"before")
    with pytest.raises(MessageTooBig, match="max_message_size=1000"):
        b.add(b"x" * 1001)
    b.add(b"after")
    (sent,) = b.flushed()
    assert [bytes(s.payload) for s in decode_batch(sent.body, 2)] == [b"before", b"after"]


def test_a_message_that_is_still_too_big_when_compressed_fails_alone(bench):
    b = bench(compression_type=CompressionType.LZ4, max_message_size=1000).connect()
    b.add(b"before")
    b.add(random.Random(5).randbytes(3000), token="big")
    b.add(b"y" * 3000)
    b.add(b"after")
    assert [s.body for s in b.flushed()] == [b"before", b"y" * 3000, b"after"]
    (failed,) = b.settled()
    assert isinstance(failed.error, MessageTooBig)
    assert failed.tokens == ["big"]


def test_a_batch_over_the_brokers_maximum_is_split(bench):
    b = bench(batching_max_messages=64, max_message_size=700).connect()
    messages = [OutgoingMessage(b"%02d" % n, properties=(("key", "value" * 3),)) for n in range(64)]
    for message in messages:
        b.add(message.payload, message)
    sent = b.written()
    assert len(sent) > 2
    assert all(s.entry_size <= 700 + 14 for s in sent)
    singles = [s for frame in sent for s in decode_batch(frame.body, frame.metadata.num_messages_in_batch)]
    assert [bytes(s.payload) for s in singles] == [m.payload for m in messages]
    assert [s.sequence_id for s in singles] == list(range(64))
    for frame in sent:
        b.receipt(frame.command.sequence_id, frame.command.highest_sequence_id)
    tokens = [t for o in b.settled() for t in o.tokens]
    assert tokens == [m.payload for m in messages]
    assert b.permits_used == (0, 0, 0)


def test_every_part_of_a_split_batch_belongs_to_its_transaction(bench):
    core = TransactionCore(TransactionId(1, 7), 60.0, lambda: 0.0, lambda part: core.joined(part))
    other = TransactionCore(TransactionId(1, 8), 60.0, lambda: 0.0, lambda part: None)
    b = bench(max_message_size=1000)
    payloads, tokens = [bytes([n]) * 200 for n in range(8)], list(range(8))
    b.add(payloads[0], bound_to(core, payloads[0], None))
    assert b.partition.batch.accepts_simple(core)
    assert not b.partition.batch.accepts_simple(None)
    b.partition.start()
    assert b.partition.add_many(payloads, tokens, None, 1, 0.0, other) == 0
    assert b.partition.add_many(payloads, tokens, None, 1, 0.0) == 0
    assert b.partition.add_many(payloads, tokens, None, 1, 0.0, core) == 7
    b.connect()
    sent = b.flushed()
    assert len(sent) == 2
    assert {(s.metadata.txnid_most_bits, s.metadata.txnid_least_bits) for s in sent} == {(1, 7)}
    assert {(s.command.txnid_most_bits, s.command.txnid_least_bits) for s in sent} == {(1, 7)}
    rows = [
        bytes(row.payload) for s in sent for row in decode_batch(s.body, s.metadata.num_messages_in_batch)
    ]
    assert rows == payloads
    assert core.pending == 8


def test_a_split_key_based_batch_keeps_javas_numbering(bench):
    b = bench(batching_max_messages=8, batching_type=BatchingType.KeyBased, max_message_size=120).connect()
    for _number in range(8):
        b.add(b"x" * 10, OutgoingMessage(b"x" * 10, partition_key="k"))
    sent = b.written()
    assert len(sent) > 1
    assert all(s.command.sequence_id == s.command.highest_sequence_id for s in sent if s.is_batch)
    assert sent[-1].command.sequence_id == 7


def test_only_too_big_messages_of_a_batch_fail(bench):
    b = bench(batching_max_messages=4, max_message_size=200).connect()
    b.add(b"1")
    b.add(b"2", OutgoingMessage(b"2", properties=(("k", "v" * 300),)))
    b.add(b"3")
    b.add(b"4")
    sent = b.written()
    assert sum(counts(sent)) == 3
    (failed,) = b.settled()
    assert isinstance(failed.error, MessageTooBig)
    assert failed.tokens == [b"2"]
    assert b.permits_used[0] == 3
