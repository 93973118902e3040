"""Splitting batches: the fast reader agrees with the careful one, and refuses every lie."""

import itertools
from typing import Any

import pytest
from entries import encode_single_metadata
from hypothesis import given
from hypothesis import strategies as st

from geminga.consumer.unbatching import (
    DECOMPRESSION_ERROR,
    UNCOMPRESSED_SIZE_CORRUPTION,
    InvalidEntry,
    open_payload,
)
from geminga.errors import CorruptPayload
from geminga.wire.batch import decode_batch, split_batch
from geminga.wire.compression import compress
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.consumer.conftest import batch_body


def metadata_of(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)


def payloads_of(body: bytes, starts: list[int]) -> list[bytes]:
    found = []
    for start, end in itertools.pairwise(starts):
        size = int.from_bytes(body[start : start + 4], "big")
        found.append(body[start + 4 + size : end])
    return found


keys = st.none() | st.text(max_size=140)
singles = st.builds(
    lambda payload, sequence_id, key, ordering, properties, event_time, removed, null: (
        payload,
        encode_single_metadata(
            len(payload), sequence_id, partition_key=key, ordering_key=ordering, properties=properties,
            event_time=event_time, compacted_out=removed, null_value=null,
        ),
        removed,
    ),
    st.binary(max_size=40) | st.integers(100, 40_000).map(bytes),
    st.none() | st.integers(0, 1 << 63),
    keys,
    st.none() | st.binary(max_size=20),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.sampled_from([0, 1_700_000_000_000]),
    st.booleans(),
    st.booleans(),
)  # fmt: skip


@given(st.lists(singles, max_size=12))
def test_agrees_with_the_row_decoder(messages):
    body = b"".join(len(m).to_bytes(4, "big") + m + payload for payload, m, _ in messages)
    starts, removed = split_batch(body, len(messages))
    assert payloads_of(body, starts) == [payload for payload, _, _ in messages]
    assert removed == [index for index, message in enumerate(messages) if message[2]]
    assert [single.payload for single in decode_batch(body, len(messages))] == payloads_of(body, starts)


@pytest.mark.parametrize("sizes", [(0,), (1, 127, 128, 16383, 16384, 3)])
@pytest.mark.parametrize("key", [None, "k", "k" * 127, "k" * 128])
def test_size_boundaries(sizes, key):
    body = batch_body([b"x" * size for size in sizes], partition_key=key)
    starts, removed = split_batch(body, len(sizes))
    assert [len(p) for p in payloads_of(body, starts)] == list(sizes)
    assert removed == []


def one_by_one(body: bytes, count: int) -> list[list[int]] | None:
    """Read batches in which a different first message makes the sizes uneven."""
    before = batch_body([b""])
    try:
        starts, removed = split_batch(before + body, count + 1)
    except CorruptPayload:
        return None
    return [[start - len(before) for start in starts[1:]], [index - 1 for index in removed]]


@given(st.data(), st.integers(2, 40), st.sampled_from([0, 1, 2, 30, 127, 128, 300, 20_000]))
def test_messages_of_one_size_are_found_as_any_others(data, count, size):
    first = data.draw(st.sampled_from([0, 100, 126, 128, 16_382, 1 << 40]) | st.none())
    fields = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "compacted_out": st.just(True),
                "event_time": st.just(32),  # a space, as is the tag of what is compacted out
                "ordering_key": st.binary(max_size=3),
                "null_value": st.just(True),
                "partition_key": st.text(max_size=2),
            },
        )
    )
    parts = []
    for number in range(count):
        metadata = encode_single_metadata(size, None if first is None else first + number, **fields)
        parts += [len(metadata).to_bytes(4, "big"), metadata, b" " * size]
    body = bytearray(b"".join(parts))
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)))):
        body[place] = value
    try:
        found = list(split_batch(bytes(body), count))
    except CorruptPayload:
        found = None
    assert found == one_by_one(bytes(body), count)


@pytest.mark.parametrize("count", [0, 4, 6, 1 << 40, -1])
def test_wrong_count(count):
    with pytest.raises(CorruptPayload):
        split_batch(batch_body([b"0123456789"] * 5), count)


def test_fields_in_another_order_are_understood():
    # payload_size (3) before the key (2): allowed by protobuf, written by no known client.
    metadata = b"\x18\x02" + b"\x12\x01k"
    starts, removed = split_batch(len(metadata).to_bytes(4, "big") + metadata + b"ab", 1)
    assert starts == [0, 4 + len(metadata) + 2]
    assert removed == []


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4])
def test_open_payload(kind):
    data = b"abc" * 1000
    metadata = metadata_of(compression=kind, uncompressed_size=len(data))
    assert open_payload(metadata, compress(kind, data), 1 << 20) == data
    assert open_payload(metadata, memoryview(compress(kind, data)), 1 << 20) == data


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_wrong_sizes_and_garbage_are_refused_with_the_validation_error(kind):
    data = compress(kind, b"abc" * 1000)
    with pytest.raises(InvalidEntry) as caught:
        open_payload(metadata_of(compression=kind, uncompressed_size=5000), data, 4999)
    assert caught.value.validation_error == UNCOMPRESSED_SIZE_CORRUPTION
    for size, payload in ((2999, data), (3001, data), (3000, b"\xff garbage")):
        with pytest.raises(InvalidEntry) as caught:
            open_payload(metadata_of(compression=kind, uncompressed_size=size), payload, 1 << 20)
        assert caught.value.validation_error == DECOMPRESSION_ERROR
