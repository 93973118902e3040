"""Every type that Spark's frames have, exactly: written, read back, and beside Spark's own ``from_json``."""

import datetime as dt
import io
import json
import math
import random
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.payloads.avro import AvroReader
from geminga.spark.payloads.definitions import definition_of
from geminga.spark.payloads.json_text import JsonReader
from geminga.spark.payloads.writing import PayloadWriter, avro_definition, frame_schema, node_of_type
from geminga.spark.releases import arrow_schema, arrow_type

_UTC_TIMES = st.datetimes(timezones=st.just(dt.UTC))
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_SIMPLE: dict[DataType, st.SearchStrategy[Any]] = {
    BinaryType(): st.binary(max_size=20),
    BooleanType(): st.booleans(),
    ByteType(): st.integers(-128, 127),
    ShortType(): st.integers(-(1 << 15), (1 << 15) - 1),
    IntegerType(): st.integers(-(1 << 31), (1 << 31) - 1),
    LongType(): st.integers(-(1 << 63), (1 << 63) - 1),
    FloatType(): st.floats(width=32),
    DoubleType(): st.floats(),
    StringType(): _TEXTS,
    NullType(): st.none(),
    DateType(): st.dates(),
    TimestampType(): _UTC_TIMES,
    TimestampNTZType(): st.datetimes(),
}


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    bound = 10**precision - 1
    unscaled = st.integers(-bound, bound) | st.sampled_from([bound, -bound, 0, 1, -1, 1 << 63, -(1 << 63)])
    return unscaled.filter(lambda n: abs(n) <= bound).map(lambda n: Decimal(f"{n}E-{scale}"))


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[DataType, st.SearchStrategy[Any]]:
    """A type, and values of it."""
    choice = draw(st.integers(0, 4 if depth else 1))
    if choice == 0:
        return draw(st.sampled_from(sorted(_SIMPLE.items(), key=str)))
    if choice == 1:
        precision = draw(st.sampled_from([1, 9, 18, 19, 28, 29, 37, 38]) | st.integers(1, 38))
        scale = draw(st.integers(0, precision))
        return DecimalType(precision, scale), decimals(precision, scale)
    if choice == 2:
        schema, values = draw(structs(depth - 1))
        return schema, values
    kind, values = draw(kinds(depth - 1))
    items = st.none() | values
    if choice == 3:
        return ArrayType(kind), st.lists(items, max_size=3)
    return MapType(StringType(), kind), st.dictionaries(_TEXTS, items, max_size=3)


@st.composite
def structs(draw: st.DrawFn, depth: int = 2) -> tuple[StructType, st.SearchStrategy[Any]]:
    found = draw(st.lists(kinds(depth), min_size=1, max_size=4))
    schema = StructType([StructField(f"f{number}", kind) for number, (kind, _) in enumerate(found)])
    return schema, st.fixed_dictionaries({f"f{n}": st.none() | values for n, (_, values) in enumerate(found)})


def array_of(schema: StructType, rows: list[Any]) -> pa.Array:
    kind = pa.struct(list(arrow_schema(schema)))
    return pa.array(rows, kind)


def written(kind: str, schema: StructType, rows: pa.Array) -> tuple[SchemaInfo, pa.Array]:
    info = frame_schema(schema, kind, "topLevelRecord", "")
    return info, PayloadWriter(info, schema).write(rows.flatten(), len(rows))


def shape(value: Any) -> str:
    """Equal for equal values alone: with the sign of zero, NaN, and the digits of decimals."""
    return repr(value)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_written_values_are_read_back_exactly(kind, data):
    schema, values = data.draw(structs())
    rows = array_of(schema, data.draw(st.lists(values, min_size=1, max_size=4)))
    info, payloads = written(kind, schema, rows)
    reader = (AvroReader if kind == "AVRO" else JsonReader)(definition_of(info).root)
    found, damaged = reader.read(payloads)
    assert not damaged.any()
    assert shape(found.to_pylist()) == shape(rows.to_pylist())
    # A damaged payload beside them takes JSON the slow way.
    found, damaged = reader.read(pa.concat_arrays([payloads, pa.array([b"\xff"], pa.binary())]))
    assert damaged.tolist() == [*[False] * len(rows), True]
    assert shape(found.to_pylist()) == shape([*rows.to_pylist(), None])


@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_written_avro_is_read_by_fastavro(data):
    schema, values = data.draw(structs())
    rows = array_of(schema, [data.draw(values)])
    (payload,) = written("AVRO", schema, rows)[1].to_pylist()
    parsed = fastavro.parse_schema(avro_definition(schema, "topLevelRecord"))
    found = fastavro.schemaless_reader(io.BytesIO(payload), parsed, None)
    assert shape(array_of(schema, [found]).to_pylist()) == shape(rows.to_pylist())


DAMAGE: list[tuple[DataType, list[str]]] = [
    (DecimalType(6, 2), ["12.345", "10000", '"1_0"', '"NaN"', "NaN", "true", "1e999999999"]),
    (DecimalType(38, 18), ["1E-19", "123456789012345678901", "9" * 80, "1e70", f"{10**38}.5"]),
    (LongType(), ["9223372036854775808", "1e999999999", "1.5", "true", '"1"']),
    (
        TimestampType(),
        ["1700000000.5", "99999999999999", "-9223372036855", '"2024-02-30"', '"2024-01-01T1 x"'],
    ),
    (TimestampNTZType(), ["1700000000", '"2024-01-01T00:00:00Z"']),
    (DateType(), ["12", "[1970, 1, 2]", '"2024-02-29x"', '"2024-13-01"']),
]


@pytest.mark.parametrize(("kind", "texts"), DAMAGE, ids=lambda given: str(given)[:20])
def test_json_that_a_column_cannot_hold_exactly_is_damage(kind, texts):
    schema = StructType([StructField("v", kind)])
    reader = JsonReader(node_of_type(schema), arrow_type(schema))
    for text in texts:
        found, damaged = reader.read(pa.array([b'{"v":null}', f'{{"v":{text}}}'.encode()]))
        assert (damaged.tolist(), found.to_pylist()) == ([False, True], [{"v": None}, None]), text


def test_avro_decimals_with_more_digits_than_their_type_are_damage():
    definition = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
    info = SchemaInfo(type=int(SchemaType.AVRO), data=json.dumps(definition).encode())
    whole = [999, -999, 1000, -1000, 1 << 64, 1 << 127, 1 << 128, -(1 << 135), (1 << 128) + 1]
    raw = [number.to_bytes(18, "big", signed=True) for number in whole]
    payloads = pa.array([bytes([36]) + each for each in raw], pa.binary())
    found, damaged = AvroReader(definition_of(info).root).read(payloads)
    assert found.to_pylist() == [Decimal("99.9"), Decimal("-99.9"), *[None] * 7]
    assert damaged.tolist() == [False, False, *[True] * 7]


def test_avro_times_that_spark_cannot_count_are_damage():
    definition = {"type": "long", "logicalType": "timestamp-millis"}
    info = SchemaInfo(type=int(SchemaType.AVRO), data=json.dumps(definition).encode())
    payloads = []
    for count in ((1 << 63) // 1000 - 1, (1 << 63) // 1000, -(1 << 63)):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, {"type": "long"}, count)
        payloads.append(buffer.getvalue())
    found, damaged = AvroReader(definition_of(info).root).read(pa.array(payloads, pa.binary()))
    assert found.cast(pa.int64()).to_pylist() == [((1 << 63) // 1000 - 1) * 1000, None, None]
    assert damaged.tolist() == [False, True, True]


# --- in Spark ---
def seeded(count: int) -> tuple[StructType, list[dict[str, Any]]]:
    """Rows with every type, alone and in structs of arrays and maps."""
    chance = random.Random(7)
    kinds: list[tuple[DataType, list[Any]]] = [
        (BinaryType(), [bytearray(), bytearray(b"\x00\xff"), bytearray(range(256))]),
        (BooleanType(), [True, False]),
        (ByteType(), [-128, 127, 0]),
        (ShortType(), [-(1 << 15), (1 << 15) - 1]),
        (IntegerType(), [-(1 << 31), (1 << 31) - 1]),
        (LongType(), [-(1 << 63), (1 << 63) - 1, (1 << 53) + 1]),
        (FloatType(), [16777216.0, 1.401298464324817e-45, -0.0, math.inf, math.nan]),
        (DoubleType(), [0.1, 5e-324, 1.7976931348623157e308, -0.0, -math.inf, math.nan, 1e22]),
        (StringType(), ["", 'ä"\\\n\x01\u2028\U0001f600', "123", "null"]),
        (DateType(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
        (TimestampType(), [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(2024, 2, 29, 12)]),
        (TimestampNTZType(), [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)]),
    ]
    for precision in (9, 18, 28, 29, 38):
        for scale in (0, precision // 2, precision):
            bound = 10**precision - 1
            whole = [bound, -bound, *(chance.randint(-bound, bound) for _ in range(4))]
            kinds.append((DecimalType(precision, scale), [Decimal(f"{each}E-{scale}") for each in whole]))
    part = StructType([StructField(f"f{number}", kind) for number, (kind, _) in enumerate(kinds)])
    schema = StructType([StructField("id", LongType()), *part.fields])
    schema.add("list", ArrayType(part)).add("map", MapType(StringType(), part))

    def drawn() -> dict[str, Any]:
        return {f"f{n}": chance.choice([None, *values]) for n, (_, values) in enumerate(kinds)}

    rows = [
        {
            "id": at,
            **drawn(),
            "list": [None, drawn()][: at % 3],
            "map": {"a": drawn(), 'b"': None} if at % 2 else {},
        }
        for at in range(count)
    ]
    return schema, rows


@pytest.mark.spark
def test_every_type_of_a_frame_is_read_back_exactly(spark, pulsar_broker, pulsar_topic):
    schema, rows = seeded(40)
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    expected = frame.orderBy("id").collect()
    for kind in ("AVRO", "JSON"):
        given = {"service.url": pulsar_broker.service_url, "topic": f"{pulsar_topic}-{kind}"}
        frame.write.format("pulsar").options(**given, valueSchema=kind).mode("append").save()
        read = spark.read.format("pulsar").options(**given, valueSchema="TOPIC").load().select(frame.columns)
        for found, wanted in zip(read.orderBy("id").collect(), expected, strict=True):
            assert found.asDict(recursive=True).keys() == wanted.asDict(recursive=True).keys()
            for name in frame.columns:
                assert shape(found[name]) == shape(wanted[name]), (kind, name)


FROM_JSON = {
    "t TIMESTAMP": [
        "1700000000", "12", "-1", '"2024-02-29T12:00:00"', '"2024-02-29 12:00:00.123456"', '"2024-2-9 1:2:3"',
        '"2024-02-29T12:00:00.1234567Z"', '"2024-02-29T12:00:00+01:00"', "null",
        '"2024-02-29T12:00:00 Europe/Berlin"', '"2024-07-01T12:00:00.5 PST"', '"2024-07-01T12:00:00 GMT+1"',
        '"2024-03-10T02:30:00"', '"2024-11-03T01:30:00"', '"2024"', '"2024-02"', '"2024-02-29"',
        '"9999-12-31T23:59:59.999999"', '"0001-01-01T00:00:00Z"', '"1970-01-01T00:00:00GMT+01:00"',
    ],
    "n TIMESTAMP_NTZ": ['"2024-03-10T02:30:00.5"', '"2024"', '"0001-01-01T00:00:00"'],
    "d DATE": ['"2024-02-29"', '"2024-2-9"', '"2024"', '"2024-02-29T12:00:00Z"', '"0001-01-01"'],
    "s STRING": ['"ä"', "123", "true", '{"b": [1, "x\\n"], "a": null}', "[ 1 ]", "12345678901234567890123"],
    "m DECIMAL(38,18)": [
        "9.999999999999999999", "12345678901234567890.123456789012345678", '"1,000.5"', "1e2", "-0.1",
    ],
    "w DECIMAL(38,0)": ["9" * 38, "-" + "9" * 38, "1.0"],
    "f FLOAT": ["16777217.0000001", "0.1", "1.000000178813934215149572537484345957636833190917968750001"],
    "x DOUBLE": ["12345678901234567890123", "0.1", "1e400", "-0.0", '"NaN"', '"-Infinity"'],
    "b BINARY": ['"YWI="', '""'],
    "k MAP<STRING,DECIMAL(20,10)>": ['{"a": 1.0000000001, "b": null}'],
    "a ARRAY<STRUCT<t: TIMESTAMP, s: STRING>>": ['[{"t": 5, "s": 6}, {"t": "2024-07-01"}, null]'],
}  # fmt: skip


@pytest.mark.spark
def test_json_is_read_like_from_json(spark, pulsar_broker, pulsar_client, pulsar_topic):
    names = [ddl.split()[0] for ddl in FROM_JSON]
    count = max(map(len, FROM_JSON.values()))
    lines = [
        "{"
        + ",".join(f'"{n}":{c[at % len(c)]}' for n, c in zip(names, FROM_JSON.values(), strict=True))
        + "}"
        for at in range(count)
    ]
    with pulsar_client.create_producer(pulsar_topic) as producer:
        for line in lines:
            producer.send(line.encode())
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        schema = ", ".join(FROM_JSON)
        source = spark.read.format("pulsar").option("service.url", pulsar_broker.service_url)
        source = source.option("topic", pulsar_topic)
        values = source.schema("value STRING, __entryId BIGINT").load().orderBy("__entryId")
        own = values.select(functions.from_json("value", schema, {"mode": "FAILFAST"}).alias("v")).select(
            "v.*"
        )
        ours = source.option("valueSchema", "JSON").schema(f"{schema}, __entryId BIGINT").load()
        read = ours.orderBy("__entryId").drop("__entryId")
        found, wanted = ([row.v for row in rows.select(shown(names)).collect()] for rows in (read, own))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert len(found) == count
    assert found == wanted


def shown(names: list[str]) -> Any:
    """All columns as one text that the JVM makes: Python's own times are too narrow."""
    return functions.to_json(
        functions.struct(*names), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
    ).alias("v")
