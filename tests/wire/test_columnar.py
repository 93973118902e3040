"""The columnar codec, judged by protobuf, by the row codec and by recorded frames."""

import base64
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import Recorded, recorded_frames

from geminga import errors
from geminga.ids import MessageId
from geminga.wire.batch import decode_batch
from geminga.wire.columnar import EXTRA_COLUMNS, MESSAGE_COLUMNS, ChunkCarry, decode_entries, message_schema
from geminga.wire.columnar_encoding import encode_table
from geminga.wire.compression import compress, decompress
from geminga.wire.hashing import partition_of
from geminga.wire.metadata import RawEntry, build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

pytestmark = pytest.mark.usefixtures("loops")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def entry_of(
    batch_body: bytes, count: int | None, *, number: int = 0, kind: int = 0, ack_set: Any = (), **fields: Any
) -> RawEntry:
    metadata = pb.MessageMetadata(producer_name="p-1", sequence_id=40, publish_time=1_700_000_000_123)
    if count is not None:
        metadata.num_messages_in_batch = count
    if kind:
        metadata.compression = kind
        metadata.uncompressed_size = len(batch_body)
    for name, value in fields.items():
        setattr(metadata, name, value)
    entry = build_entry(metadata.SerializeToString(), compress(kind, batch_body))
    return RawEntry("persistent://public/default/t", 2, 7, number, entry, 0, ack_set)


def single(payload: bytes = b"", **fields: Any) -> bytes:
    metadata = pb.SingleMessageMetadata(payload_size=len(payload), **fields)
    data = metadata.SerializeToString()
    return struct.pack(">I", len(data)) + data + payload


# --- encoding: the row codec and protobuf are the judges ---
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
ROW = st.fixed_dictionaries(
    {
        "value": st.none() | st.binary(max_size=200),
        "key": st.none() | TEXT,
        "ordering_key": st.none() | st.binary(max_size=9),
        "properties": st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
        "event_time": st.none() | st.integers(1, (1 << 41) - 1),
    }
)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table(
        {
            "value": pa.array([row["value"] for row in rows], pa.binary()),
            "key": pa.array([row["key"] for row in rows], pa.string()),
            "ordering_key": pa.array([row["ordering_key"] for row in rows], pa.binary()),
            "properties": pa.array(
                [None if row["properties"] is None else list(row["properties"].items()) for row in rows],
                pa.map_(pa.string(), pa.string()),
            ),
            "event_time": pa.array([row["event_time"] for row in rows], pa.timestamp("ms", tz="UTC")),
        }
    )


@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    partitions=st.integers(1, 5),
    hashing=st.sampled_from(["JavaStringHash", "Murmur3_32Hash", "BoostHash"]),
    max_messages=st.integers(1, 8),
    max_bytes=st.integers(1, 500),
    cut=st.integers(0, 5),
)
def test_batches_are_what_the_row_codec_reads(rows, partitions, hashing, max_messages, max_bytes, cut):
    rows = rows[min(cut, len(rows) - 1) :]
    padded = [dict.fromkeys(ROW_FIELDS, None)] * 3 + rows
    batches = encode_table(
        table_of(padded).slice(3),
        partitions=partitions,
        hashing=hashing,
        first_partition=1,
        max_messages=max_messages,
        max_bytes=max_bytes,
    )
    seen = []
    for batch in batches:
        messages = decode_batch(bytes(batch.body), batch.count)
        assert len(batch.rows) == batch.count <= max_messages
        assert batch.first_row == batch.rows[0]
        assert batch.uncompressed_size == len(batch.body)
        sizes = [len(message.payload) for message in messages]
        assert sum(sizes) <= max_bytes or batch.count == 1
        for index, message in zip(batch.rows, messages, strict=True):
            row = rows[index]
            seen.append(index)
            assert message.null_value == (row["value"] is None)
            assert bytes(message.payload) == (row["value"] or b"")
            assert message.partition_key == row["key"]
            assert message.ordering_key == row["ordering_key"]
            assert dict(message.properties) == (row["properties"] or {})
            assert message.event_time == (row["event_time"] or 0)
            if row["key"] is not None:
                assert batch.partition == partition_of(row["key"], partitions, hashing)
            assert batch.keyed == (row["key"] is not None)
        assert batch.partition_key == rows[batch.rows[0]]["key"]
        assert batch.ordering_key == rows[batch.rows[0]]["ordering_key"]
    assert sorted(seen) == list(range(len(rows)))


@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    partitions=st.integers(1, 5),
    max_messages=st.integers(1, 8),
    max_bytes=st.integers(1, 500),
    cut=st.integers(0, 5),
)
def test_batches_of_one_key(rows, partitions, max_messages, max_bytes, cut):
    """Nothing is lost or doubled, each batch has one key, and each key its order and its partition."""
    rows = [row | {"key": row["key"] and row["key"][:1]} for row in rows[min(cut, len(rows) - 1) :]]
    padded = [dict.fromkeys(ROW_FIELDS, None)] * 3 + rows
    batches = encode_table(
        table_of(padded).slice(3), partitions=partitions, hashing="BoostHash", max_messages=max_messages,
        max_bytes=max_bytes, by_key=True,
    )  # fmt: skip
    order: dict[tuple[Any, Any], list[int]] = {}
    for batch in batches:
        pair = (batch.partition_key, batch.ordering_key)
        key = pair[0]
        for index, message in zip(batch.rows, decode_batch(bytes(batch.body), batch.count), strict=True):
            assert bytes(message.payload) == (rows[index]["value"] or b"")
            assert (rows[index]["key"], rows[index]["ordering_key"]) == pair
            assert (message.partition_key, message.ordering_key) == pair
        order.setdefault(pair, []).extend(batch.rows)
        assert batch.keyed == (key is not None)
        assert 0 <= batch.partition < partitions
        if key is not None:
            assert batch.partition == partition_of(key, partitions, "BoostHash")
    assert all(places == sorted(places) for places in order.values())
    assert sorted(place for places in order.values() for place in places) == list(range(len(rows)))


ROW_FIELDS = ("value", "key", "ordering_key", "properties", "event_time")


@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    kind=st.sampled_from([0, 1, 2, 3, 4]),
    max_messages=st.integers(1, 8),
)
def test_encoded_tables_decode_unchanged(rows, kind, max_messages):
    batches = encode_table(table_of(rows), max_messages=max_messages)
    entries = [
        entry_of(bytes(batch.body), batch.count, number=number, kind=kind)
        for number, batch in enumerate(batches)
    ]
    table = decode_entries(entries)
    assert table.schema.equals(message_schema())
    order = [index for batch in batches for index in batch.rows]
    for column in ROW_FIELDS:
        expected = [rows[index][column] for index in order]
        if column == "properties":
            expected = [list((row or {}).items()) for row in expected]
        if column == "event_time":
            expected = [None if t is None else EPOCH + timedelta(milliseconds=t) for t in expected]
        assert table.column(column).to_pylist() == expected
    assert table.column("entry_id").to_pylist() == [
        number for number, batch in enumerate(batches) for _ in range(batch.count)
    ]
    assert table.column("batch_index").to_pylist() == [i for batch in batches for i in range(batch.count)]


def test_bytes_equal_protobuf_in_the_fields_order_of_official_clients():
    table = pa.table({"value": [b"msg-0", None], "key": ["key-0", None]})
    (batch,) = encode_table(table.slice(0, 1))
    assert bytes(batch.body) == single(b"msg-0", partition_key="key-0")
    (batch,) = encode_table(table.slice(1, 1).drop(["key"]))
    assert bytes(batch.body) == single(null_value=True)


def test_unkeyed_batches_go_round_the_partitions():
    table = pa.table({"value": [b"x"] * 10})
    batches = encode_table(table, partitions=3, first_partition=2, max_messages=4)
    assert [(batch.partition, batch.count, batch.keyed) for batch in batches] == [
        (2, 4, False), (0, 4, False), (1, 2, False),
    ]  # fmt: skip
    assert [list(batch.rows) for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    "value",
    [
        pa.array(["ä", "b"], pa.string()),
        pa.array(["ä", "b"], pa.large_string()),
        pa.array(["ä".encode(), b"b"], pa.large_binary()),
        pa.chunked_array([pa.array(["ä"]), pa.array(["b"])]),
        pa.array(["ä", "b"]).dictionary_encode(),
        pa.array(["ä".encode(), b"b"], pa.binary_view()),
    ],
    ids=lambda value: str(value.type),
)
def test_value_column_of_every_text_like_type(value):
    (batch,) = encode_table(pa.table({"value": value}))
    assert [message.payload for message in decode_batch(bytes(batch.body), 2)] == ["ä".encode(), b"b"]


def test_an_ordering_key_may_be_text():
    (batch,) = encode_table(pa.table({"value": [b""], "ordering_key": ["ä"]}))
    assert batch.ordering_key == "ä".encode()
    assert decode_batch(bytes(batch.body), 1)[0].ordering_key == "ä".encode()


def test_event_times_of_any_unit():
    microseconds = pa.array([1_700_000_000_123_456], pa.timestamp("us", tz="Europe/Berlin"))
    for column in (microseconds, pa.array([1_700_000_000_123])):
        (batch,) = encode_table(pa.table({"value": [b""], "event_time": column}))
        assert decode_batch(bytes(batch.body), 1)[0].event_time == 1_700_000_000_123


def test_input_that_cannot_be_carried_is_refused():
    with pytest.raises(errors.InvalidMessage, match="no column 'value'"):
        encode_table(pa.table({"values": [b""]}))
    with pytest.raises(errors.InvalidMessage, match=r"column 'value' of type list"):
        encode_table(pa.table({"value": [[1]]}))
    with pytest.raises(errors.InvalidMessage, match=r"row 1: event_time -5 ms lies before 1970"):
        encode_table(pa.table({"value": [b"", b""], "event_time": [1, -5]}))
    properties = pa.array([[("a", None)]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(errors.InvalidMessage, match="null value"):
        encode_table(pa.table({"value": [b""], "properties": properties}))
    with pytest.raises(errors.InvalidConfiguration, match=r"did you mean 'BoostHash'"):
        encode_table(pa.table({"value": [b""]}), hashing="BostHash")
    assert encode_table(pa.table({"value": pa.array([], pa.binary())})) == []


# --- decoding ---
def recorded_entries() -> list[Recorded]:
    return [each for each in recorded_frames() if "metadata" in each.decoded]


def test_recorded_frames_decode_as_the_row_codec_says():
    seen = 0
    for recorded in recorded_entries():
        parsed = parse_entry(recorded.entry)
        metadata = parsed.metadata
        raw = RawEntry("t", -1, 1, 2, recorded.entry)
        if metadata.encryption_keys:
            with pytest.raises(errors.CryptoError, match="t:1:2"):
                decode_entries([raw])
            continue
        if metadata.num_chunks_from_msg > 1 or metadata.HasField("marker_type"):
            continue
        seen += 1
        got = decode_entries([raw], (*MESSAGE_COLUMNS, *EXTRA_COLUMNS)).to_pylist()
        payload = bytes(parsed.payload)
        if metadata.compression:
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size, limit=1 << 24)
        if not metadata.HasField("num_messages_in_batch"):
            assert len(got) == 1
            assert got[0]["value"] == (None if metadata.null_value else payload)
            assert got[0]["key"] == (metadata.partition_key if metadata.HasField("partition_key") else None)
            assert dict(got[0]["properties"]) == {p.key: p.value for p in metadata.properties}
            assert got[0]["batch_index"] == -1
            continue
        messages = decode_batch(payload, metadata.num_messages_in_batch)
        assert len(got) == len([m for m in messages if not m.compacted_out])
        for row, message in zip(got, [m for m in messages if not m.compacted_out], strict=True):
            assert row["value"] == (None if message.null_value else bytes(message.payload))
            assert row["key"] == message.partition_key
            assert row["ordering_key"] == message.ordering_key
            assert dict(row["properties"]) == dict(message.properties)
            assert row["sequence_id"] == message.sequence_id
            assert row["producer_name"] == metadata.producer_name
            assert MessageId.deserialize(row["message_id"]).batch_size == metadata.num_messages_in_batch
    assert seen > 50


def test_recorded_chunks_are_assembled():
    by_uuid: dict[tuple[str, str, str], list[tuple[int, bytes, int]]] = {}
    for recorded in recorded_entries():
        metadata = parse_entry(recorded.entry).metadata
        if recorded.direction == "client_to_broker" and metadata.num_chunks_from_msg > 1:
            place = (recorded.client, recorded.case, metadata.uuid)
            part = (metadata.chunk_id, recorded.entry, metadata.num_chunks_from_msg)
            by_uuid.setdefault(place, []).append(part)
    whole = {place: parts for place, parts in by_uuid.items() if len(parts) == parts[0][2]}
    assert whole
    for parts in whole.values():
        entries = [RawEntry("t", -1, 1, number, entry) for number, (_, entry, _) in enumerate(sorted(parts))]
        table = decode_entries(entries, ["value", "entry_id"])
        assert table.num_rows == 1
        assert table.column("entry_id").to_pylist() == [len(entries) - 1]


def chunked(payload: bytes, cuts: int, uuid: str = "p-1-0") -> list[RawEntry]:
    size = -(-len(payload) // cuts)
    return [
        entry_of(
            payload[i * size : (i + 1) * size], None, number=i, uuid=uuid, chunk_id=i,
            num_chunks_from_msg=cuts, total_chunk_msg_size=len(payload),
        )
        for i in range(cuts)
    ]  # fmt: skip


def test_chunks_over_several_calls():
    entries = chunked(b"0123456789", 3)
    carry = ChunkCarry()
    assert decode_entries(entries[:2], ["value"], chunks=carry).num_rows == 0
    assert list(carry.open) == [b"p-1-0"]
    done = decode_entries(
        [*entries[2:], entry_of(b"next", None, number=9)], ["value", "entry_id"], chunks=carry
    )
    assert done.to_pylist() == [{"value": b"0123456789", "entry_id": 2}, {"value": b"next", "entry_id": 9}]
    assert not carry.open
    assert not carry.headless
    decode_entries(entries[1:], ["value"], chunks=carry)
    assert carry.headless == ["persistent://public/default/t:7:1", "persistent://public/default/t:7:2"]


@pytest.mark.parametrize("part", [slice(0, 2), slice(1, 3)], ids=["end missing", "start missing"])
def test_a_cut_chunked_message_is_refused_by_name(part):
    with pytest.raises(errors.OperationNotSupported, match=r"t:7:1: a chunked message is cut"):
        decode_entries(chunked(b"0123456789", 3)[part], ["value"])


def test_duplicate_and_lost_chunks():
    entries = chunked(b"0123456789", 3)
    again = decode_entries([entries[0], entries[0], entries[1], entries[1], entries[2]], ["value"])
    assert again.column("value").to_pylist() == [b"0123456789"]
    carry = ChunkCarry()
    assert decode_entries([entries[0], entries[2]], ["value"], chunks=carry).num_rows == 0
    assert carry.headless == ["persistent://public/default/t:7:2"]


def test_open_chunked_messages_are_bounded():
    carry = ChunkCarry(limit=2)
    for uuid in ("a", "b", "c"):
        decode_entries(chunked(b"0123456789", 3, uuid)[:1], ["value"], chunks=carry)
    assert list(carry.open) == [b"b", b"c"]


def test_a_chunked_message_is_decompressed_after_assembly():
    whole = compress(pb.ZSTD, b"ab" * 500)
    parts = [whole[:5], whole[5:]]
    entries = [
        entry_of(part, None, number=i, uuid="u", chunk_id=i, num_chunks_from_msg=2, compression=pb.ZSTD,
                 uncompressed_size=1000)
        for i, part in enumerate(parts)
    ]  # fmt: skip
    assert decode_entries(entries, ["value"]).column("value").to_pylist() == [b"ab" * 500]


def test_plain_messages_take_their_fields_from_the_outer_metadata():
    entry = entry_of(
        b"payload", None, kind=pb.LZ4, partition_key="k", ordering_key=b"o", event_time=1_600_000_000_001,
    )  # fmt: skip
    row = decode_entries([entry]).to_pylist()[0]
    assert row["value"] == b"payload"
    assert (row["key"], row["ordering_key"], row["batch_index"]) == ("k", b"o", -1)
    assert row["event_time"] == EPOCH + timedelta(milliseconds=1_600_000_000_001)
    assert (row["sequence_id"], row["producer_name"]) == (40, "p-1")
    null = decode_entries([entry_of(b"", None, null_value=True, null_partition_key=True, partition_key="x")])
    assert null.to_pylist()[0]["value"] is None
    assert null.to_pylist()[0]["key"] is None


def test_acknowledged_and_compacted_positions_are_left_out():
    body = b"".join(single(b"m%d" % i, sequence_id=i, compacted_out=i == 4) for i in range(6))
    partly = entry_of(body, 6, ack_set=(0b101100,))
    rows = decode_entries([partly, entry_of(body, 6, number=1)], ["value", "batch_index", "entry_id"])
    first = [row["value"] for row in rows.to_pylist() if row["entry_id"] == 0]
    assert first == [b"m2", b"m3", b"m5"]
    assert [row["batch_index"] for row in rows.to_pylist()] == [2, 3, 5, 0, 1, 2, 3, 5]


@pytest.mark.parametrize("words", [(0, 60), (0, -(1 << 63) | 60), (0, (1 << 63) | 60)])
def test_ack_sets_beyond_one_word(words):
    body = b"".join(single(b"%d" % i) for i in range(130))
    rows = decode_entries([entry_of(body, 130, ack_set=words)], ["value"]).column("value").to_pylist()
    expected = [64 + i for i in range(64) if words[1] >> i & 1]
    assert [int(value) for value in rows] == expected


def test_schema_versions():
    """Each row has the schema version of its entry."""
    versions = [b"\0\0\0\0\0\0\0\1", b"", b"\0\0\0\0\0\0\0\1", b"\xff"]
    entries = [
        entry_of(single(b"a") + single(b"b"), 2, number=number, **({"schema_version": v} if v else {}))
        for number, v in enumerate(versions)
    ]
    column = decode_entries(entries, ["schema_version"]).column(0)
    assert column.to_pylist() == [version for version in versions for _ in range(2)]


def test_markers_are_left_out():
    assert decode_entries([entry_of(b"\xff\xff", None, marker_type=10)]).num_rows == 0


def test_keys_of_bytes_are_read_back_and_others_stay_text():
    keys = [b"\xff\x00", b"text", None, "grüß".encode(), b"", b"\xff\x00"]
    table = pa.table({"value": [b"v"] * 6, "key": pa.array(keys, pa.binary())})
    entries = [entry_of(bytes(batch.body), batch.count) for batch in encode_table(table)]
    found = decode_entries(entries, ["key", "key_bytes"])
    assert sorted(found.column("key_bytes").to_pylist(), key=repr) == sorted(keys, key=repr)
    texts = dict(zip(found.column("key_bytes").to_pylist(), found.column("key").to_pylist(), strict=True))
    assert texts == {b"\xff\x00": "/wA=", b"text": "text", None: None, "grüß".encode(): "grüß", b"": ""}


@pytest.mark.parametrize("kind", ["large_binary", "binary_view", "fixed", "dictionary"])
def test_keys_of_bytes_may_have_any_binary_type(kind):
    keys = pa.array([b"\xff\x00", b"ab"], pa.binary())
    if kind == "dictionary":
        keys = keys.dictionary_encode()
    else:
        keys = keys.cast(pa.binary(2) if kind == "fixed" else getattr(pa, kind)())
    (batch,) = encode_table(pa.table({"value": [b"v"] * 2, "key": keys}))
    assert (batch.partition_key, batch.partition_key_b64) == ("/wA=", True)
    found = decode_entries([entry_of(bytes(batch.body), 2)], ["key_bytes"])
    assert found.column("key_bytes").to_pylist() == [b"\xff\x00", b"ab"]


def test_keys_flagged_as_base64():
    keys = [b"\x00\xff\xfe", b"k", b"", bytes(range(256))]
    body = b"".join(
        single(partition_key=base64.b64encode(key).decode(), partition_key_b64_encoded=True) for key in keys
    )
    body += single(partition_key="plain") + single()
    table = decode_entries([entry_of(body, 6)], ["key_bytes", "key"])
    assert table.column("key_bytes").to_pylist() == [*keys, b"plain", None]
    assert table.column("key").to_pylist()[0] == "AP/+"
    broken = single(partition_key="a*b", partition_key_b64_encoded=True)
    with pytest.raises(errors.CorruptPayload, match=r"t:7:0: a key flagged as base64"):
        decode_entries([entry_of(broken, 1)], ["key_bytes"])


def test_message_ids_are_those_of_message_id():
    body = single(b"a") + single(b"b")
    entries = [
        RawEntry("t", partition, ledger, entry, entry_of(body, 2).entry)
        for partition, ledger, entry in [(-1, 1, 0), (3, 123456789, 42), (0, 1 << 62, (1 << 62) + 5)]
    ] + [RawEntry("t", 1, 5, 6, entry_of(b"x", None).entry)]
    expected = [
        MessageId(e.partition, e.ledger_id, e.entry_id, i, batch_size=2).serialize()
        for e in entries[:3]
        for i in range(2)
    ] + [MessageId(1, 5, 6).serialize()]
    assert decode_entries(entries, ["message_id"]).column("message_id").to_pylist() == expected


def test_a_redelivery_count_of_any_size_is_read():
    """32 bits on the wire, without a sign."""
    entries = [entry_of(b"x", None)._replace(redelivery_count=count) for count in (0, 2**31 - 1, 2**32 - 1)]
    table = decode_entries(entries, ["redelivery_count"])
    assert table.column("redelivery_count").to_pylist() == [0, 2**31 - 1, 2**31 - 1]


def test_text_that_is_not_utf8_is_read_with_replacement_characters():
    damaged = single(partition_key="kk", sequence_id=1).replace(b"kk", b"k\xff")
    assert decode_entries([entry_of(damaged, 1)], ["key"]).column("key").to_pylist() == ["k\ufffd"]


def test_broker_entry_metadata_is_stepped_over():
    extra = pb.BrokerEntryMetadata(broker_timestamp=1, index=2).SerializeToString()
    plain = entry_of(single(b"v"), 1)
    entry = b"\x0e\x02" + struct.pack(">I", len(extra)) + extra + bytes(plain.entry)
    assert decode_entries([plain._replace(entry=entry)], ["value"]).column("value").to_pylist() == [b"v"]
    without_checksum = bytes(plain.entry)[6:]
    assert decode_entries([plain._replace(entry=without_checksum)], ["value"]).num_rows == 1


def test_unknown_fields_are_stepped_over():
    unknown = b"\xa8\x3e\x01" + b"\xb1\x3e12345678" + b"\xba\x3e\x02zz" + b"\xbd\x3e1234"
    metadata = pb.SingleMessageMetadata(payload_size=1, sequence_id=3).SerializeToString() + unknown
    body = struct.pack(">I", len(metadata)) + metadata + b"v"
    assert decode_entries([entry_of(body, 1)], ["value"]).column("value").to_pylist() == [b"v"]


def test_empty_and_columnless():
    assert decode_entries([], ["value"]).num_rows == 0
    assert decode_entries([]).schema.equals(message_schema())
    assert decode_entries([entry_of(single(b"a") * 3, 3)], []).num_rows == 3
    with pytest.raises(
        errors.InvalidConfiguration, match=r"no message column 'vlaue' \(did you mean 'value'\?\)"
    ):
        decode_entries([], ["vlaue"])


DAMAGED = {
    "count too high": entry_of(single(b"a"), 2),
    "count too low": entry_of(single(b"a") * 2, 1),
    "count absurd": entry_of(single(b"a"), (1 << 31) - 1),
    "count negative": entry_of(single(b"a"), -1),
    "size beyond the end": entry_of(b"\x7f\xff\xff\xff" + single(b"abcdef")[4:], 1),
    "size cut": entry_of(single(b"a") + b"\x00\x00", 2),
    "payload size beyond the end": entry_of(struct.pack(">I", 2) + b"\x18\x7f", 1),
    "payload size negative": entry_of(struct.pack(">I", 11) + b"\x18" + b"\xff" * 9 + b"\x01", 1),
    "payload size missing": entry_of(struct.pack(">I", 2) + b"\x40\x01" + b"aaaa", 1),
    "varint overlong": entry_of(struct.pack(">I", 13) + b"\x18" + b"\xff" * 12, 1),
    "wire type of groups": entry_of(struct.pack(">I", 3) + b"\x18\x00\x0b", 1),
    "property cut": entry_of(struct.pack(">I", 6) + b"\x18\x00\x0a\x02\x0a\x05", 1),
    "property without value": entry_of(struct.pack(">I", 7) + b"\x18\x00\x0a\x03\x0a\x01a", 1),
}


@pytest.mark.parametrize("entry", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_batch_is_named(entry):
    good = entry_of(single(b"a"), 1)
    with pytest.raises(errors.CorruptPayload, match=r"persistent://public/default/t:7:33: "):
        decode_entries([good, entry._replace(entry_id=33), good])


def test_a_wrong_checksum_is_named():
    entry = bytearray(entry_of(single(b"abc"), 1).entry)
    entry[-1] ^= 1
    raw = RawEntry("t", 0, 3, 4, bytes(entry))
    with pytest.raises(errors.CorruptPayload, match=r"t:3:4: checksum mismatch"):
        decode_entries([raw])
    assert decode_entries([raw], ["value"], verify=False).column("value").to_pylist() == [b"abb"]


def test_a_decompression_bomb_is_refused():
    bomb = entry_of(b"\x00" * 1_000_000, 1, kind=pb.ZLIB)
    with pytest.raises(errors.CorruptPayload, match="t:7:0"):
        decode_entries([bomb], max_uncompressed_size=100_000)
