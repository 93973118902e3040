"""Protobuf payloads as Arrow arrays, and back."""

import math
import random
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf import timestamp_pb2 as timestamps
from google.protobuf.internal.encoder import _VarintBytes as varint
from google.protobuf.message import DecodeError
from pyspark.sql.pandas.types import from_arrow_schema

from geminga.errors import IncompatibleSchema, InvalidMessage
from geminga.schema import ProtobufNativeSchema
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.payloads.definitions import definition_of
from geminga.spark.payloads.fitting import fit
from geminga.spark.payloads.protobuf import ProtobufReader, node_of
from geminga.spark.payloads.types import columns_of
from geminga.spark.payloads.writing import PayloadWriter

SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8,
    "string": 9, "bytes": 12, "uint32": 13, "enum": 14, "sfixed32": 15, "sfixed64": 16, "sint32": 17,
    "sint64": 18,
}  # fmt: skip
OPTIONAL, REPEATED = 1, 3


def add_map(message: Any, name: str, number: int, key: int, value: int, type_name: str | None = None) -> None:
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=key, label=OPTIONAL)
    entry.field.add(name="value", number=2, type=value, label=OPTIONAL, type_name=type_name)
    message.field.add(
        name=name, number=number, type=11, label=REPEATED, type_name=f".t.{message.name}.{entry.name}"
    )


def everything(syntax: str) -> Any:
    """A message class with every kind of field."""
    file = descriptor_pb2.FileDescriptorProto(
        name="everything.proto", package="t", syntax=syntax, dependency=["google/protobuf/timestamp.proto"]
    )
    letters = file.enum_type.add(name="Letter")
    for name, number in (("A", 0), ("B", 1), ("Z", -7)):
        letters.value.add(name=name, number=number)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=3, label=OPTIONAL)
    inner.field.add(name="words", number=2, type=9, label=REPEATED)
    inner.field.add(name="at", number=3, type=11, label=OPTIONAL, type_name=".google.protobuf.Timestamp")
    outer = file.message_type.add(name="Outer")
    for number, (kind, code) in enumerate(SCALARS.items(), 1):
        type_name = ".t.Letter" if kind == "enum" else None
        outer.field.add(name=f"one_{kind}", number=number, type=code, label=OPTIONAL, type_name=type_name)
        outer.field.add(
            name=f"many_{kind}", number=number + 100, type=code, label=REPEATED, type_name=type_name
        )
    outer.field.add(name="inner", number=200, type=11, label=OPTIONAL, type_name=".t.Inner")
    outer.field.add(name="inners", number=201, type=11, label=REPEATED, type_name=".t.Inner")
    outer.field.add(name="at", number=202, type=11, label=OPTIONAL, type_name=".google.protobuf.Timestamp")
    outer.field.add(name="times", number=203, type=11, label=REPEATED, type_name=".google.protobuf.Timestamp")
    outer.oneof_decl.add(name="choice")
    outer.field.add(name="left", number=204, type=5, label=OPTIONAL, oneof_index=0)
    outer.field.add(name="right", number=205, type=11, label=OPTIONAL, type_name=".t.Inner", oneof_index=0)
    if syntax == "proto3":
        outer.oneof_decl.add(name="_maybe")
        outer.field.add(name="maybe", number=206, type=5, label=OPTIONAL, proto3_optional=True, oneof_index=1)
    add_map(outer, "marks", 210, 9, 1)
    add_map(outer, "parts", 211, 9, 11, ".t.Inner")
    add_map(outer, "places", 212, 3, 9)
    add_map(outer, "moments", 213, 9, 11, ".google.protobuf.Timestamp")
    pool = descriptor_pool.DescriptorPool()
    times = descriptor_pb2.FileDescriptorProto()
    timestamps.DESCRIPTOR.CopyToProto(times)
    pool.Add(times)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Outer"))


def schema_of(message: Any) -> SchemaInfo:
    return SchemaInfo(
        type=int(SchemaType.PROTOBUF_NATIVE), data=ProtobufNativeSchema(message).schema_info().data
    )


def reader_of(message: Any, wanted: pa.DataType | None = None) -> ProtobufReader:
    info = schema_of(message)
    return ProtobufReader(info, node_of(info), wanted)


def numeric(kind: pa.DataType) -> pa.DataType:
    """``kind`` with whole numbers for times: Python has none beyond the year 9999."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, numeric(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, numeric(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(numeric(kind.value_type))
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def rows_of(reader: ProtobufReader, array: pa.Array) -> list[Any]:
    return [plain(row) for row in fit(fit(array, reader.kind), numeric(reader.kind)).to_pylist()]


def plain(value: Any) -> Any:
    """Maps have no order, and no number is one."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {key: plain(one) for key, one in value}
        if value and isinstance(value[0], dict) and set(value[0]) == {"key", "value"}:
            return {one["key"]: plain(one["value"]) for one in value}
        return [plain(one) for one in value]
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def read(reader: ProtobufReader, payloads: list[bytes | None]) -> list[Any]:
    """Return the rows of payloads that are part of a larger array; None where damaged."""
    found, damaged = reader.read(pa.array([b"-", *payloads], pa.binary())[1:])
    found.validate(full=True)
    rows = rows_of(reader, found)
    nulls = [payload is None for payload in payloads]
    assert damaged.tolist() == [row is None and not null for row, null in zip(rows, nulls, strict=True)]
    return rows


EDGES: dict[str, list[Any]] = {
    "bool": [True, False], "enum": [0, 1, -7], "string": ["", "a", "grüß dich", "日本", "🚲", "x" * 300],
    "bytes": [b"", b"\x00\xff", b"y" * 200],
    "double": [0.0, -1.5, math.inf, math.nan], "float": [0.0, -1.5, math.inf, math.nan],
    **{kind: [0, 1, -1, (1 << 31) - 1, -(1 << 31)] for kind in ("int32", "sint32", "sfixed32")},
    **{kind: [0, 1, -1, (1 << 63) - 1, -(1 << 63)] for kind in ("int64", "sint64", "sfixed64")},
    **{kind: [0, 1, (1 << 32) - 1] for kind in ("uint32", "fixed32")},
    **{kind: [0, 1, (1 << 64) - 1, 1 << 63] for kind in ("uint64", "fixed64")},
}  # fmt: skip


def fill_inner(rng: random.Random, inner: Any) -> None:
    if rng.random() < 0.7:
        inner.x = rng.choice(EDGES["int64"])
    inner.words.extend(rng.choices(EDGES["string"], k=rng.choice((0, 0, 1, 3))))
    if rng.random() < 0.3:
        fill_time(rng, inner.at)


def fill_time(rng: random.Random, time: Any) -> None:
    time.SetInParent()
    if rng.random() < 0.8:
        # Spark's times are microseconds.
        time.seconds, time.nanos = rng.randrange(-(1 << 35), 1 << 35), rng.randrange(0, 1_000_000) * 1000


def filled(rng: random.Random, message: Any) -> Any:
    value = message()
    for kind in SCALARS:
        if rng.random() < 0.5:
            setattr(value, f"one_{kind}", rng.choice(EDGES[kind]))
        if rng.random() < 0.5:
            getattr(value, f"many_{kind}").extend(rng.choices(EDGES[kind], k=rng.randrange(5)))
    if rng.random() < 0.5:
        value.inner.SetInParent()
        fill_inner(rng, value.inner)
    for _ in range(rng.choice((0, 1, 4))):
        fill_inner(rng, value.inners.add())
    if rng.random() < 0.5:
        fill_time(rng, value.at)
    for _ in range(rng.choice((0, 1, 3))):
        fill_time(rng, value.times.add())
    if rng.random() < 0.6:
        if rng.random() < 0.5:
            value.left = rng.choice((0, 5))
        else:
            value.right.SetInParent()
    if "maybe" in message.DESCRIPTOR.fields_by_name and rng.random() < 0.5:
        value.maybe = rng.choice((0, 7))
    for _ in range(rng.choice((0, 1, 3))):
        value.marks[rng.choice(EDGES["string"])] = rng.choice(EDGES["double"])
        value.places[rng.choice((0, -1, 5))] = rng.choice(EDGES["string"])
        fill_inner(rng, value.parts[rng.choice("abc")])
        fill_time(rng, value.moments[rng.choice("abc")])
    return value


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_requested_columns_have_the_values_of_the_whole_message(syntax):
    message = everything(syntax)
    rng = random.Random(6)
    payloads: list[bytes | None] = [filled(rng, message).SerializeToString() for _ in range(100)]
    wanted = pa.struct(
        {
            "one_string": pa.string(),
            "inner": pa.struct({"at": pa.timestamp("us", "UTC")}),
            "inners": pa.list_(pa.struct({"words": pa.list_(pa.string())})),
            "places": pa.list_(pa.struct({"value": pa.string()})),
        }
    )
    found = read(reader_of(message, wanted), payloads)
    for row, whole in zip(found, read(reader_of(message), payloads), strict=True):
        # The values of a map without their keys have no order.
        row["places"] = sorted(each["value"] for each in row["places"])
        assert row == {
            "one_string": whole["one_string"],
            "inner": whole["inner"] and {"at": whole["inner"]["at"]},
            "inners": [{"words": each["words"]} for each in whole["inners"]],
            "places": sorted(whole["places"].values() if whole["places"] else []),
        }


def field(number: int, wire: int, content: bytes) -> bytes:
    return bytes(varint(number << 3 | wire)) + content


def sized(number: int, content: bytes) -> bytes:
    return field(number, 2, bytes(varint(len(content))) + content)


def test_forms_that_encoders_may_use():
    """Fields in any order, repeated, packed or not, and unknown ones."""
    message = everything("proto3")
    numbers = message.DESCRIPTOR.fields_by_name
    one, many = numbers["one_int32"].number, numbers["many_int32"].number
    words = numbers["many_string"].number
    rows = read(
        reader_of(message),
        [
            field(one, 0, b"\x05") + sized(words, b"x") + field(one, 0, b"\x06"),
            field(many, 0, b"\x01") + sized(many, b"\x02\x03") + field(many, 0, b"\x04") + sized(many, b""),
            sized(words, b"a") + field(many, 0, b"\x01") + sized(words, b"b"),
            field(999, 0, b"\x01") + sized(998, b"what") + field(997, 1, bytes(8)) + field(996, 5, bytes(4)),
            field(one, 0, bytes(varint((1 << 64) - 3))),
            field(numbers["one_bool"].number, 0, b"\x80\x80\x02"),
            sized(210, sized(1, b"k") + field(2, 1, bytes(8))) * 3,
        ],
    )
    assert [rows[0]["one_int32"], rows[1]["many_int32"], rows[2]["many_string"]] == [
        6,
        [1, 2, 3, 4],
        ["a", "b"],
    ]
    assert rows[6]["marks"] == {"k": 0.0}


def test_unusual_and_damaged_payloads_are_read_as_the_library_reads_them():
    message = everything("proto3")
    numbers = message.DESCRIPTOR.fields_by_name
    text = numbers["one_string"].number
    good = sized(text, b"ok")
    payloads: list[bytes | None] = [
        sized(200, field(1, 0, b"\x05")) + sized(200, sized(2, b"w")),  # one message in two parts
        field(204, 0, b"\x05") + sized(205, b""),  # two members of a oneof
        sized(205, b"") + field(204, 0, b"\x05"),
        field(numbers["one_int32"].number, 5, bytes(4)),  # another wire type than the field's
        sized(numbers["one_int32"].number, b"\x01"),
        field(900, 3, field(1, 0, b"\x01")) + field(900, 4, b""),  # a group
        sized(210, sized(1, b"k")),  # an entry without a value
        sized(211, sized(1, b"k")),
        sized(text, b"\xff"),  # no text
        sized(text, "ü".encode()[:1]),
        b"\x00\x01",  # no field has the number 0
        field(text, 2, b"\x7fcut"),
        field(text, 2, b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        b"\x80",
        b"\xff" * 30,
        sized(200, b"\x08"),
        field(900, 6, b""),
        field(900, 4, b""),
    ]
    rows = read(reader_of(message), [good, *payloads, None, good])
    for row, payload in zip(rows[1:-2], payloads, strict=True):
        with nullcontext() if row else pytest.raises(DecodeError):
            message.FromString(payload)
    assert rows[0] == rows[-1]
    assert rows[0]["one_string"] == "ok"
    assert rows[1]["inner"]["x"] == 5
    assert rows[1]["inner"]["words"] == ["w"]
    assert rows[9] is rows[10] is None


def test_closed_enumerations():
    """A number that an enumeration of proto2 lacks is no value of its fields."""
    message = everything("proto2")
    one, many = (message.DESCRIPTOR.fields_by_name[name].number for name in ("one_enum", "many_enum"))
    rows = read(
        reader_of(message),
        [field(one, 0, b"\x09"), field(many, 0, b"\x09") + field(many, 0, b"\x01"), field(one, 0, b"\x01")],
    )
    assert [row["one_enum"] for row in rows] == [None, None, "B"]
    assert rows[1]["many_enum"] == ["B"]


def test_times_that_no_timestamp_holds():
    message = everything("proto3")
    time = field(1, 0, bytes(varint((1 << 63) - 1))) + field(2, 0, b"\x05")
    finer = field(1, 0, bytes(varint(1))) + field(2, 0, bytes(varint(1999)))
    rows = read(reader_of(message), [sized(202, time), sized(203, time), sized(202, finer)])
    assert rows[2]["at"] == 1_000_001


def test_no_payloads():
    found, damaged = reader_of(everything("proto3")).read(pa.array([], pa.binary()))
    assert len(found) == len(damaged) == 0


def test_groups_are_read_as_structs():
    file = descriptor_pb2.FileDescriptorProto(name="g.proto", package="t", syntax="proto2")
    message = file.message_type.add(name="M")
    group = message.nested_type.add(name="G")
    group.field.add(name="x", number=1, type=5, label=OPTIONAL)
    message.field.add(name="g", number=1, type=10, label=OPTIONAL, type_name=".t.M.G")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.M"))
    reader = reader_of(made)
    value = made()
    value.g.x = 4
    found, _ = reader.read(pa.array([value.SerializeToString()], pa.binary()))
    assert found.to_pylist() == [{"g": {"x": 4}}]


# --- writing ---
def columns_for(reader: ProtobufReader, values: list[Any]) -> tuple[list[pa.Array], Any]:
    """The columns of messages, as a slice of larger ones, and their Spark types."""
    payloads = [value.SerializeToString() for value in values]
    rows, _ = reader.read(pa.array([payloads[-1], *payloads, payloads[0]], pa.binary()))
    return list(rows.slice(1, len(values)).flatten()), columns_of(definition_of(reader.info))


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_writing_what_was_read(syntax):
    message = everything(syntax)
    rng = random.Random(8)
    values = [filled(rng, message) for _ in range(300)]
    for value in values[:100]:
        for name in ("marks", "parts", "places", "moments"):
            value.ClearField(name)
    info = schema_of(message)
    columns, schema = columns_for(reader_of(message), values)
    payloads = PayloadWriter(info, schema).write(columns, len(values))
    payloads.validate(full=True)
    for payload, value in zip(payloads.to_pylist(), values, strict=True):
        assert plain_message(message.FromString(payload)) == plain_message(value)
    # Without maps, which have no order, to the byte.
    assert payloads.to_pylist()[:100] == [value.SerializeToString() for value in values[:100]]


def plain_message(value: Any) -> str:
    """As text: NaN is not itself."""
    return text_format.MessageToString(value, as_one_line=True)


def small(syntax: str = "proto3", label: int = OPTIONAL) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="t", syntax=syntax)
    letters = file.enum_type.add(name="Letter")
    letters.value.add(name="A", number=0)
    message = file.message_type.add(name="Small")
    message.field.add(name="id", number=1, type=4, label=label)
    message.field.add(name="small", number=2, type=13, label=OPTIONAL)
    message.field.add(name="letter", number=3, type=14, label=OPTIONAL, type_name=".t.Letter")
    message.field.add(name="words", number=4, type=9, label=REPEATED)
    add_map(message, "marks", 5, 9, 9)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Small"))


def write_rows(message: Any, **columns: tuple[pa.DataType, list[Any]]) -> list[Any]:
    """The messages that rows of a frame become."""
    schema = from_arrow_schema(pa.schema({name: kind for name, (kind, _) in columns.items()}))
    arrays = [pa.array(values, kind) for kind, values in columns.values()]
    payloads = PayloadWriter(schema_of(message), schema).write(arrays, len(arrays[0]))
    return [message.FromString(payload) for payload in payloads.to_pylist()]


def test_columns_that_a_frame_has_or_lacks():
    message = small()
    found = write_rows(message, small=(pa.int32(), [5, None]), words=(pa.list_(pa.string()), [["a"], None]))
    assert found == [message(small=5, words=["a"]), message()]
    found = write_rows(message, id=(pa.int64(), [7]), letter=(pa.string(), ["9"]))
    assert found == [message(id=7, letter=9)]
    with pytest.raises(IncompatibleSchema, match="no field for the column 'other'"):
        write_rows(message, other=(pa.int32(), [1]))
    with pytest.raises(IncompatibleSchema, match="requires the field 'id'"):
        write_rows(small("proto2", 2), small=(pa.int32(), [5]))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"small": (pa.int64(), [1, 1 << 32])}, r"'small': a number is not from 0 to 2\^32"),
        ({"small": (pa.int64(), [-1])}, r"'small': a number is not from 0 to 2\^32"),
        ({"id": (pa.int64(), [-1])}, r"'id': a number is not from 0 to 2\^64"),
        ({"letter": (pa.string(), ["B"])}, "'letter': 'B' is none of A"),
        ({"words": (pa.list_(pa.string()), [["a", None]])}, "'words': an item is null"),
        ({"marks": (pa.map_(pa.string(), pa.string()), [[("k", None)]])}, "'marks.value' is required"),
    ],
)
def test_values_that_a_field_does_not_take(column, message):
    with pytest.raises(InvalidMessage, match=message):
        write_rows(small(), **column)


def test_a_required_field_that_is_null():
    with pytest.raises(InvalidMessage, match="field 'id' is required"):
        write_rows(small("proto2", 2), id=(pa.int64(), [1, None]))
