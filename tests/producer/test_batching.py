from geminga.producer.batching import Batch, KeyedBatches
from geminga.producer.message import OutgoingMessage


def message(**fields):
    return OutgoingMessage(b"x", **fields)


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


def test_each_sub_batch_has_its_own_schema():
    batches = KeyedBatches(0.0, 1.0)
    batches.append(b"", None, message(partition_key="a", schema_version=b"1"), 0)
    assert not batches.accepts(message(partition_key="a"))
    assert batches.accepts(message(partition_key="b"))
    assert batches.accepts(None)
    batches.append(b"", None, None, 1)
    assert batches.accepts(None)
