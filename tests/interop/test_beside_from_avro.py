"""Avro payloads beside Spark's own ``from_avro`` and ``to_avro``: the same types and values.

``tools/fetch_kafka.py`` fetches Spark's module for Avro.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, functions
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import BinaryType, StructField, StructType

import geminga
from geminga import EmbeddedBroker
from geminga.schema import AutoProduceBytesSchema, AvroSchema
from geminga.spark.payloads.writing import avro_definition
from tests.spark.payloads import test_avro, test_values

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(500)]

VALUE = StructType([StructField("value", BinaryType())])
FORMS: list[tuple[str, Any, list[Any]]] = [
    ("millis", {"type": "long", "logicalType": "timestamp-millis"}, [0, -1, 1_700_000_000_123]),
    ("micros", {"type": "long", "logicalType": "timestamp-micros"}, [0, -1, 1_700_000_000_123_456]),
    ("local_millis", {"type": "long", "logicalType": "local-timestamp-millis"}, [0, -1, 1_700_000_000_123]),
    ("local_micros", {"type": "long", "logicalType": "local-timestamp-micros"}, [0, -1, 1_700_000_123_456]),
    ("time", {"type": "int", "logicalType": "time-millis"}, [0, 86_399_999]),
    ("uuid", {"type": "string", "logicalType": "uuid"}, ["6ba7b810-9dad-11d1-80b4-00c04fd430c8"]),
    ("date", {"type": "int", "logicalType": "date"}, [0, -1, 20_000, -700_000]),
    (
        "wide",
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18},
        [b"\x7f" * 15, b"\xff"],
    ),
    (
        "fixed",
        {"type": "fixed", "size": 9, "name": "Nine", "logicalType": "decimal", "precision": 20, "scale": 2},
        [b"\x00\x7f" + b"\xff" * 7, b"\xff" * 9],
    ),
    ("numbers", ["null", "float", "double"], [None, 0.5]),
    ("mixed", ["string", "long", "null"], ["x", 1 << 62, None]),
    ("one", ["long"], [1, -(1 << 63)]),
    ("float", "float", [0.1, float("nan"), float("-inf"), -0.0]),
    ("double", "double", [5e-324, float("nan"), -0.0]),
    ("maps", {"type": "map", "values": {"type": "array", "items": ["null", "int"]}}, [{}, {"a": [None, 1]}]),
]  # fmt: skip
"""Fields with values that are written without their logical type."""


@pytest.fixture(scope="module")
def embedded():
    with geminga.embedded(web_port=None) as broker:
        yield broker


@pytest.fixture
def spark(spark_with_modules):
    return spark_with_modules


def shown(rows: DataFrame) -> list[Any]:
    """Each row as the JVM shows it, with all digits; the order of a map's keys does not count."""
    of_times = {
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
    texts = rows.select(functions.to_json(functions.struct("*"), {**of_times, "ignoreNullFields": "false"}))
    return [json.loads(row[0], parse_int=str, parse_float=str) for row in texts.collect()]


def publish(broker: EmbeddedBroker, topic: str, definition: Any, payloads: list[bytes]) -> None:
    with broker.client() as client:
        client.create_producer(topic, schema=AvroSchema(None, definition)).close()
        with client.create_producer(topic, schema=AutoProduceBytesSchema()) as producer:
            for payload in payloads:
                producer.send(payload)


def types(rows: DataFrame) -> dict[str, str]:
    return {each.name: each.dataType.simpleString() for each in rows.schema}


def decoded(rows: DataFrame, definition: Any) -> DataFrame:
    """The column ``value`` as Spark's own function reads it; a damaged payload fails."""
    return rows.select(from_avro("value", json.dumps(definition), {"mode": "FAILFAST"}).alias("v")).select(
        "v.*"
    )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_from_avro_reads_what_the_sink_writes(spark, data):
    schema, values = data.draw(test_values.structs())
    rows = data.draw(st.lists(values, min_size=1, max_size=4))
    payloads = test_values.written("AVRO", schema, test_values.array_of(schema, rows))[1].to_pylist()
    read = decoded(
        spark.createDataFrame([(each,) for each in payloads], VALUE).coalesce(1),
        avro_definition(schema, "topLevelRecord"),
    )
    wanted = spark.createDataFrame(rows, schema).coalesce(1)
    assert shown(read) == shown(wanted)


def test_rows_of_to_avro_are_read_like_the_frame(spark, embedded):
    """Every type, in both directions, over topics."""
    schema, rows = test_values.seeded(40)
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    at = {"service.url": embedded.service_url}
    frame.write.format("pulsar").options(**at, topic="ours", valueSchema="AVRO").mode("append").save()
    definition = avro_definition(schema, "topLevelRecord")
    packed = frame.select(to_avro(functions.struct("*"), json.dumps(definition)))
    publish(embedded, "theirs", definition, [bytes(row[0]) for row in packed.collect()])

    def source(topic: str, **options: str) -> DataFrame:
        return spark.read.format("pulsar").options(**at, topic=topic, **options).load()

    wanted = shown(frame.orderBy("id"))
    assert shown(decoded(source("ours"), definition).orderBy("id")) == wanted
    for topic in ("ours", "theirs"):
        read = source(topic, valueSchema="TOPIC").select(frame.columns)
        assert shown(read.orderBy("id")) == wanted


@pytest.mark.parametrize("kind", ["everything", "forms"])
def test_each_form_of_avro_is_read_like_from_avro(kind, spark, embedded):
    if kind == "everything":
        definition, values = test_avro.EVERYTHING, test_avro.rows(60)
        payloads = test_avro.encoded(definition, values).to_pylist()
    else:
        definition, payloads = forms()
    publish(embedded, kind, definition, payloads)
    source = spark.read.format("pulsar").options(**{"service.url": embedded.service_url, "topic": kind})
    wanted = decoded(source.load(), definition)
    read = source.option("valueSchema", "TOPIC").load().select(wanted.columns)
    assert types(read) == types(wanted)
    assert shown(read) == shown(wanted)
    assert len(shown(read)) == len(payloads)


def forms() -> tuple[Any, list[bytes]]:
    """A definition of all `FORMS`, and payloads with each of their values."""
    fields = [{"name": name, "type": kind} for name, kind, _ in FORMS]
    bare = [{"name": name, "type": plain(kind)} for name, kind, _ in FORMS]
    count = max(len(values) for _, _, values in FORMS)
    rows = [{name: values[at % len(values)] for name, _, values in FORMS} for at in range(count)]
    payloads = test_avro.encoded({"type": "record", "name": "R", "fields": bare}, rows).to_pylist()
    return {"type": "record", "name": "R", "fields": fields}, payloads


def plain(kind: Any) -> Any:
    """The type without a logical type."""
    if not isinstance(kind, dict):
        return kind
    return {name: value for name, value in kind.items() if name not in ("logicalType", "precision", "scale")}
