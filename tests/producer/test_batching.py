from geminga.producer.batching import Batch, KeyedBatches
from geminga.producer.message import OutgoingMessage, simple_message


def message(**fields):
    return OutgoingMessage(b"x", **fields)


def test_a_batch_keeps_payloads_tokens_and_rich_messages():
    batch = Batch(0.0, 1.0)
    rich = message(partition_key="k")
    batch.append(b"ab", 1, None)
    batch.append(b"x", 2, rich)
    assert (batch.payloads, batch.tokens, batch.size, len(batch)) == ([b"ab", b"x"], [1, 2], 3, 2)
    assert batch.messages == {1: rich}
    assert batch.first is None


def test_many_messages_are_added_with_their_keys():
    batch = Batch(0.0, 1.0)
    keyed = simple_message(b"ab", "k")
    batch.append_many([b"x", b"ab"], [1, 2], [None, keyed], 3)
    batch.append_many([b"y"], [3], None, 1)
    assert (batch.payloads, batch.tokens, batch.size) == ([b"x", b"ab", b"y"], [1, 2, 3], 4)
    assert batch.messages == {1: keyed}
    assert batch.first is None


def test_explicit_and_automatic_ids_do_not_mix_and_explicit_ones_grow():
    batch = Batch(0.0, 1.0)
    assert batch.accepts(message(sequence_id=5))
    batch.explicit = True
    batch.sequence_ids = [5]
    batch.append(b"x", None, message(sequence_id=5))
    assert batch.accepts(message(sequence_id=6))
    assert not batch.accepts(message(sequence_id=5))
    assert not batch.accepts(message(sequence_id=4))
    assert not batch.accepts(message())
    assert not batch.accepts(None)
    automatic = Batch(0.0, 1.0)
    automatic.append(b"x", None, None)
    assert not automatic.accepts(message(sequence_id=9))
    assert automatic.accepts(message())


def test_another_schema_needs_another_batch():
    batch = Batch(0.0, 1.0)
    batch.append(b"x", None, message(schema_version=b"1"))
    assert batch.accepts(message(schema_version=b"1"))
    assert not batch.accepts(message())
    assert not batch.accepts(None)


def test_sub_batches_by_ordering_key_then_partition_key():
    batches = KeyedBatches(0.0, 1.0)
    for number, fields in enumerate(
        [
            {"partition_key": "a"},
            {"partition_key": "b"},
            {"partition_key": "a"},
            {"partition_key": "x", "ordering_key": b"o"},
            {"partition_key": "y", "ordering_key": b"o"},
        ]
    ):
        batches.append(b"%d" % number, number, message(**fields), number)
    batches.append(b"5", 5, None, 5)
    assert len(batches) == 6
    assert batches.size == 6
    assert [b.sequence_ids for b in batches.in_order()] == [[1], [0, 2], [3, 4], [5]]


def test_sub_batches_go_in_the_order_of_their_highest_ids():
    batches = KeyedBatches(0.0, 1.0)
    for number, key in enumerate("abbba"):
        batches.append(b"", None, message(partition_key=key), number)
    assert [b.sequence_ids for b in batches.in_order()] == [[1, 2, 3], [0, 4]]


def test_ids_of_sub_batches_can_be_moved():
    batches = KeyedBatches(0.0, 1.0)
    batches.append(b"", None, message(partition_key="a"), 0)
    batches.append(b"", None, None, 1)
    batches.shift(10)
    assert [b.sequence_ids for b in batches.in_order()] == [[10], [11]]


def test_each_sub_batch_has_its_own_schema():
    batches = KeyedBatches(0.0, 1.0)
    batches.append(b"", None, message(partition_key="a", schema_version=b"1"), 0)
    assert not batches.accepts(message(partition_key="a"))
    assert batches.accepts(message(partition_key="b"))
    assert batches.accepts(None)
    batches.append(b"", None, None, 1)
    assert batches.accepts(None)
