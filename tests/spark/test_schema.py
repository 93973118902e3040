import datetime as dt

import pyarrow as pa
import pytest
from entries import single_entry
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from geminga.errors import InvalidConfiguration
from geminga.spark.releases import arrow_schema
from geminga.spark.schema import (
    COLUMNS,
    KEPT_ROWS_MAX,
    ArrowBatchConverter,
    FrameLayout,
    as_type,
    message_columns,
    source_schema,
    to_messages,
    without_collations,
    written_columns,
)
from geminga.wire.columnar import decode_entries
from geminga.wire.metadata import RawEntry
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"


def entry(value: bytes = b"v") -> RawEntry:
    encoded = single_entry(
        value, sequence_id=3, publish_time=1_700_000_000_001, event_time=1_600_000_000_002,
        partition_key="k", ordering_key=b"o", properties=[pb.KeyValue(key="a", value="b")],
    )  # fmt: skip
    return RawEntry(TOPIC, 2, 7, 8, encoded)


def shaped(schema: StructType, entries: list[RawEntry]) -> pa.RecordBatch:
    converter = ArrowBatchConverter(schema)
    batch = converter.shape(decode_entries(entries, converter.columns))
    assert batch.schema.equals(arrow_schema(schema))
    batch.validate(full=True)
    return batch


def test_every_column_has_sparks_arrow_type():
    schema = source_schema(tuple(COLUMNS))
    (row,) = shaped(schema, [entry()]).to_pylist()
    assert row["value"] == b"v"
    assert row["__key"] == b"k"
    assert row["__topic"] == TOPIC
    assert row["__eventTime"].microsecond == 2000
    assert row["__messageProperties"] == [("a", "b")]
    assert (row["__partition"], row["__ledgerId"], row["__entryId"], row["__batchIndex"]) == (2, 7, 8, -1)
    assert (row["__producerName"], row["__sequenceId"], row["__orderingKey"]) == ("p", 3, b"o")
    assert shaped(schema, []).num_rows == 0


def test_text_columns_replace_invalid_utf_8():
    schema = StructType().add("value", StringType()).add("__KEY", StringType())
    assert shaped(schema, [entry(b"a\xff"), entry(b"b")]).to_pylist() == [
        {"value": "a\ufffd", "__KEY": "k"},
        {"value": "b", "__KEY": "k"},
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("valeu",), r"no column 'valeu' \(did you mean 'value'\?\)"),
        ((), "names no column"),
        (("value", "VALUE"), "names a column twice"),
    ],
)
def test_unknown_columns_are_refused(columns, message):
    with pytest.raises(InvalidConfiguration, match=message):
        source_schema(columns)


def test_constant_columns_are_made_once_unless_they_are_large():
    def made(rows):
        coded = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [TOPIC])
        column = as_type(coded, pa.string())
        assert column.to_pylist() == [TOPIC] * rows
        return column

    made(0)
    assert made(100).buffers()[2].address == made(101).buffers()[2].address
    large = made(KEPT_ROWS_MAX + 1)
    assert made(KEPT_ROWS_MAX + 1).buffers()[2].address != large.buffers()[2].address


def test_unsuitable_schemas_are_refused():
    with pytest.raises(InvalidConfiguration, match="'value' can be read as binary or string, not as int"):
        message_columns(StructType().add("value", IntegerType()))
    with pytest.raises(InvalidConfiguration, match="no column 'id'"):
        message_columns(StructType().add("id", IntegerType()))


TEXT_MAP = MapType(StringType(), StringType())


def test_columns_of_a_frame_are_assigned_to_message_fields():
    schema = StructType()
    for name, kind in [
        ("__key", StringType()), ("value", BinaryType()), ("__eventTime", TimestampType()),
        ("__messageProperties", TEXT_MAP), ("__messageId", BinaryType()), ("__topic", StringType()),
        ("__orderingKey", BinaryType()), ("__publishTime", TimestampType()),
    ]:  # fmt: skip
        schema.add(name, kind)
    assert written_columns(schema, None).columns == {
        "key": 0, "value": 1, "event_time": 2, "properties": 3, "topic": 5, "ordering_key": 6,
    }  # fmt: skip


@pytest.mark.parametrize("last", [DayTimeIntervalType.MINUTE, DayTimeIntervalType.SECOND])
def test_a_delay_may_be_any_day_time_interval(last):
    """``INTERVAL 15 MINUTES`` is of another type than one of days to seconds."""
    schema = StructType().add("value", BinaryType()).add("__deliverAfter", DayTimeIntervalType(2, last))
    assert written_columns(schema, "t").columns == {"value": 0, "deliver_after": 1}


@pytest.mark.parametrize(
    ("fields", "topic", "message"),
    [
        (
            {"values": BinaryType()},
            "t",
            r"column 'values' can't be written \(did you mean 'value'\?\).*to_json",
        ),
        ({"value": LongType()}, "t", "must be binary or string, not bigint"),
        ({"value": BinaryType(), "key": LongType()}, "t", "'key' must be binary or string"),
        ({"value": BinaryType(), "key": StringType(), "__key": StringType()}, "t", "two columns"),
        ({"__key": StringType()}, "t", "no column 'value'"),
        (
            {"value": BinaryType(), "__deliverAt": LongType(), "__deliverAfter": LongType()},
            "t",
            "both __deliverAt and __deliverAfter",
        ),
        ({"value": BinaryType()}, None, "neither the option topic nor a column __topic"),
    ],
    ids=["name", "value kind", "key kind", "twice", "no value", "two times", "no topic"],
)
def test_unsuitable_frames_are_refused(fields, topic, message):
    schema = StructType()
    for name, kind in fields.items():
        schema.add(name, kind)
    with pytest.raises(InvalidConfiguration, match=f"(?s){message}"):
        written_columns(schema, topic)


def test_strings_with_a_collation_are_strings():
    text = StringType("UTF8_LCASE")
    schema = StructType().add("value", text).add("a", ArrayType(text)).add("m", MapType(text, text))
    schema.add("s", StructType().add("x", text, False).add("n", LongType()))
    plain = without_collations(schema)
    assert "collate" in schema.simpleString()
    assert plain.simpleString() == schema.simpleString().replace(" collate UTF8_LCASE", "")
    assert not plain["s"].dataType["x"].nullable


def test_properties_with_null_values_are_left_out():
    pairs = [[("a", "1")], None, [("b", None), ("c", "2")], [], [("d", None)]]
    kind = pa.map_(pa.string(), pa.string())
    batch = pa.record_batch({"value": [b"v"] * 5, "properties": pa.array(pairs, kind)})
    for rows in (batch, batch.slice(1), batch.slice(2, 2)):
        found = to_messages(rows, FrameLayout({"value": 0, "properties": 1}, StructType()), 0)["properties"]
        found.validate(full=True)
        assert found.to_pylist() == [
            None if row is None else [pair for pair in row if pair[1] is not None]
            for row in rows.column("properties").to_pylist()
        ]


def test_delays_become_delivery_times():
    columns = {"value": [b"v", b"v"], "after": pa.array([dt.timedelta(seconds=2), None], pa.duration("us"))}
    layout = FrameLayout({"value": 0, "deliver_after": 1}, StructType())
    assert to_messages(pa.record_batch(columns), layout, 1000)["deliver_at"].to_pylist() == [3000, None]
