"""Runs of MESSAGEs: the decoder that finds them against the one that does not, and both against protobuf."""

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.errors import CorruptPayload
from geminga.wire import message_runs
from geminga.wire.client_frames import ClientFrameDecoder
from geminga.wire.frames import ENTRY_COPY_BYTES_MAX, Frame, FrameDecoder, MessageFrame, encode_message
from geminga.wire.message_runs import RUN_MESSAGES_MAX, MessageRun, are_plain, encrypted_alike, parse_together
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

TIME = 1_700_000_000_000

METADATA = st.fixed_dictionaries(
    {
        "producer_name": st.sampled_from(["p-1", "p-2", "", "n" * 127, "n" * 127 + "\x10"]),
        "sequence_id": st.sampled_from([0, 1, 127, 128, 20_000, 1 << 40]),
        "publish_time": st.sampled_from([TIME, TIME + 1, 0, 300]),
    },
    optional={
        "uncompressed_size": st.sampled_from([0, 100, 300]),
        "partition_key": st.sampled_from(["", "key", "k" * 200]),
        "event_time": st.just(TIME),
        "schema_version": st.sampled_from([b"\x00" * 8, b"\x00" * 7 + b"\x07", b"\x01"]),
        "ordering_key": st.just(b"o"),
        "null_value": st.booleans(),
        "compression": st.sampled_from([0, 1]),
        "num_messages_in_batch": st.just(2),
        "num_chunks_from_msg": st.sampled_from([1, 2]),
        "marker_type": st.just(20),
        "deliver_at_time": st.just(TIME),
        "replicated_from": st.just("cluster"),
    },
)


def metadata_of(
    fields: dict[str, Any], properties: Sequence[tuple[str, str]] = (), encrypted: bool = False
) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(**fields)
    for key, value in properties:
        metadata.properties.add(key=key, value=value)
    if encrypted:
        metadata.encryption_keys.add(key="k", value=b"v")
    return metadata


def frame_of(entry: bytes, entry_id: int = 0, **options: Any) -> bytes:
    return encode_message(3, options.pop("ledger_id", 17), entry_id, -1, len(entry), **options) + entry


def plain(number: int = 0, payload: bytes = b"payload", **fields: Any) -> bytes:
    metadata = metadata_of({"producer_name": "p", "sequence_id": number, "publish_time": TIME, **fields})
    return build_entry(metadata.SerializeToString(), payload)


def singly(frames: Sequence[Frame]) -> list[tuple[Any, ...]]:
    found = []
    for frame in frames:
        for each in frame.frames() if isinstance(frame, MessageRun) else [frame]:
            assert isinstance(each, MessageFrame)
            found.append(
                (
                    each.consumer_id, each.ledger_id, each.entry_id, each.partition,
                    each.redelivery_count, tuple(each.ack_set), each.consumer_epoch, bytes(each.entry),
                )
            )  # fmt: skip
    return found


def run_of(entries: Sequence[bytes]) -> MessageRun:
    (run,) = ClientFrameDecoder().feed(b"".join(frame_of(entry, n) for n, entry in enumerate(entries)))
    assert isinstance(run, MessageRun)
    return run


def metadata_of_run(entries: Sequence[bytes]) -> list[Any] | None:
    """Parsed metadata of the messages of a run; None if an entry must be read singly."""
    columns = run_of(entries).columns()
    if columns is None:
        return None
    parsed = parse_together(columns[0])
    if are_plain(columns[0]):
        assert parsed is not None
    return None if parsed is None else parsed[0]


def is_single(entry: bytes) -> bool:
    """Whether protobuf's parser finds a message that is an entry of its own."""
    try:
        metadata = parse_entry(entry).metadata
    except CorruptPayload:
        return False
    unusual = ("num_messages_in_batch", "marker_type", "num_chunks_from_msg")
    return entry[:2] == b"\x0e\x01" and not any(map(metadata.HasField, unusual))


def test_frames_that_arrive_together_are_one_run():
    run = run_of([plain(number) for number in range(100)])
    assert list(run.entry_ids) == list(range(100))
    assert run.columns() == ([plain(number)[10:-7] for number in range(100)], [b"payload"] * 100)
    assert run.consumer_id == 3


def test_a_run_has_a_limited_number_of_messages():
    """A malformed entry id ends a run, and the frames after it are read twice: not the whole stream."""
    data = b"".join(frame_of(plain(), 1000 + number) for number in range(2 * RUN_MESSAGES_MAX + 1))
    frames = ClientFrameDecoder().feed(data)
    assert [len(frame.entry_ids) for frame in frames if isinstance(frame, MessageRun)] == [
        RUN_MESSAGES_MAX
    ] * 2
    assert [frame[2] for frame in singly(frames)] == list(range(1000, 1000 + 2 * RUN_MESSAGES_MAX + 1))


def test_messages_of_many_producers_are_compared_with_one_pattern(monkeypatch):
    """Compiling a pattern takes longer than parsing a few metadata."""
    compiled = []

    def compile_pattern(pattern: bytes, flags: int) -> re.Pattern[bytes]:
        compiled.append(pattern)
        return re.compile(pattern, flags)

    monkeypatch.setattr(message_runs, "re", SimpleNamespace(compile=compile_pattern, DOTALL=re.DOTALL))
    for number in range(300):
        assert are_plain([plain(producer_name=f"{number:077}{other}")[10:-7] for other in range(3)])
    assert len(compiled) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 1, 1, 2, 500, 16_384, 0, -1]),
            st.integers(0, 40),
            st.sampled_from([{}, {}, {}, {"redelivery_count": 2}, {"consumer_epoch": 5}, {"ack_set": [1]}]),
            st.sampled_from([17, 17, 17, 18]),
        ),
        max_size=40,
    ),
    st.integers(1, 400),
    st.sampled_from([0, 120, 16_370]),
)
def test_any_stream_has_the_same_frames_with_and_without_runs(steps, cut, entry_id):
    pieces = []
    for step, size, options, ledger_id in steps:
        entry_id = max(0, entry_id + step)
        pieces.append(frame_of(plain(payload=b"x" * size), entry_id, ledger_id=ledger_id, **options))
    data = b"".join(pieces)
    decoder = ClientFrameDecoder()
    found: list[Frame] = []
    for start in range(0, len(data), cut):
        found += decoder.feed(data[start : start + cut])
    assert singly(found) == singly(FrameDecoder().feed(data))
    for run in found:
        assert not isinstance(run, MessageRun) or list(run.entry_ids) == sorted(run.entry_ids)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_frames_max_counts_the_messages_of_a_run(count):
    decoder = ClientFrameDecoder()
    data = b"".join(frame_of(plain(number), number) for number in range(5))
    found = []
    while frames := decoder.feed(data, count):
        assert len(singly(frames)) <= count
        found += singly(frames)
        data = b""
    assert [frame[2] for frame in found] == [0, 1, 2, 3, 4]


@given(
    st.lists(
        st.tuples(
            METADATA, st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=2), st.booleans()
        ),
        min_size=2,
        max_size=4,
    )
)
def test_a_run_has_the_metadata_that_protobuf_finds_in_each_entry(described):
    metadata = [metadata_of(*each) for each in described]
    entries = [build_entry(each.SerializeToString(), b"body") for each in metadata]
    assert metadata_of_run(entries) == (metadata if all(map(is_single, entries)) else None)


def encrypted(
    fields: dict[str, Any], vector: bytes = b"v" * 12, key: bytes = b"data key"
) -> pb.MessageMetadata:
    numbers = {"sequence_id": 1000, "publish_time": TIME}
    metadata = pb.MessageMetadata(producer_name="p", encryption_param=vector, **{**numbers, **fields})
    metadata.encryption_keys.add(key="k", value=key)
    return metadata


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [{}] * 5
                + [{"sequence_id": 1001}, {"uncompressed_size": 5}, {"schema_version": b"s" * 8}]
                + [{"null_value": True}, {"marker_type": 1}]
            ),
            st.sampled_from([b"v" * 12] * 5 + [b"w" * 12, b"w" * 11]),
            st.sampled_from([b"data key"] * 5 + [b"other key", b"data keY"]),
        ),
        min_size=2,
        max_size=4,
    )
)
def test_encrypted_messages_are_alike_if_only_numbers_and_vectors_differ(described):
    metadata = [encrypted(*each) for each in described]
    alike = encrypted_alike([each.SerializeToString() for each in metadata])
    others = [({**fields, "sequence_id": 0}, b"v" * len(vector), key) for fields, vector, key in described]
    if any(each != others[0] for each in others) or metadata[0].marker_type:
        assert alike is None
    else:
        assert alike == (metadata[0], [vector for _, vector, _ in described])


@pytest.mark.parametrize("added", [b"\x40\x01", b"\x7a\x0c" + b"w" * 12], ids=["compression", "vector"])
def test_encrypted_messages_with_compression_or_a_second_vector_at_the_end_are_not_alike(added):
    encoded = encrypted({}).SerializeToString()
    assert encrypted_alike([encoded] * 2) is not None
    assert encrypted_alike([encoded + added] * 2) is None


@given(st.data())
def test_a_run_with_metadata_that_protobuf_rejects_is_read_singly(data):
    """Any changed bytes, under a correct checksum."""
    good = plain(20_000, uncompressed_size=7)
    metadata = bytearray(good[10:-7])
    for _ in range(data.draw(st.integers(1, 2))):
        metadata[data.draw(st.integers(0, len(metadata) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(metadata), len(metadata), len(metadata) - 1, 3]))
    bad = build_entry(bytes(metadata[:cut]), b"payload")
    entries = data.draw(st.permutations([good, bad, good]))
    assert (metadata_of_run(entries) is not None) == is_single(bad)


@given(st.integers(1, 30))
def test_metadata_that_are_cut_across_entries_are_read_singly(size):
    encoded = plain()[10:-7]
    halves = [encoded[: len(encoded) - size], encoded[len(encoded) - size :] + encoded]
    entries = [build_entry(each, b"payload") for each in halves if each]
    if len(entries) == 2:
        assert metadata_of_run(entries) is None


@pytest.mark.parametrize(
    "damaged",
    [plain()[:-1] + b"?", plain()[:6] + b"\x00\x00\xff\xff" + plain()[10:]],
    ids=["checksum", "metadata too long"],
)
def test_a_run_with_a_damaged_or_unusual_entry_is_read_singly(damaged):
    assert metadata_of_run([plain(), damaged, plain()]) is None


@pytest.mark.parametrize(
    "entry",
    [b"", plain()[:9], plain()[6:], b"\x0e\x02\x00\x00\x00\x02\x08\x01" + plain()],
    ids=["empty", "short", "no checksum", "broker metadata"],
)
def test_an_entry_without_a_checksum_at_its_beginning_is_in_no_run(entry):
    data = b"".join(frame_of(each, n) for n, each in enumerate([plain(), plain(), entry, entry, plain()]))
    first, *others = ClientFrameDecoder().feed(data)
    assert [type(each) for each in (first, *others)] == [MessageRun, MessageFrame, MessageFrame, MessageFrame]
    assert singly([first, *others]) == singly(FrameDecoder().feed(data))


def test_entry_ids_beyond_the_signed_range_are_read_as_without_runs():
    last = (1 << 63) - 2
    heads = [frame_of(plain(), entry_id) for entry_id in (last, last + 1, last + 2, last + 3)]
    data = b"".join(heads)
    assert singly(ClientFrameDecoder().feed(data)) == singly(FrameDecoder().feed(data))


def test_large_payloads_do_not_keep_the_read_buffer():
    sizes = [10, ENTRY_COPY_BYTES_MAX, 1, 3 * ENTRY_COPY_BYTES_MAX]
    columns = run_of([plain(payload=b"x" * size) for size in sizes]).columns()
    assert columns is not None
    assert [(type(payload), len(payload)) for payload in columns[1]] == [(bytes, size) for size in sizes]
