"""The option ``jsonColumn``: JSON objects that a struct column holds completely, and all others as bytes."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions
from pyspark.sql.types import LongType, StringType, StructType

from geminga.errors import IncompatibleSchema, InvalidConfiguration
from geminga.spark.datasource import PulsarDataSource
from geminga.spark.payloads.held_json import (
    JsonColumnConverter,
    WithoutObjectsConverter,
    may_be_none,
    without_json_column,
)

USER = StructType().add("id", LongType()).add("name", StringType())
HELD = {
    b'{"id": 1, "name": "a"}': {"id": 1, "name": "a"},
    b'{"name": null}': {"id": None, "name": None},
    b"{}": {"id": None, "name": None},
}
NOT_HELD = [
    b'{"id": 1, "more": 2}', b'{"id": "1"}', b'{"id": 1, "id": 2}', b'{"id": 1} {}', b"{ broken", b"null",
    b"5", b"[]", b"", b'{"name": "\xff"}',
]  # fmt: skip


def converted(payloads: list[bytes | None], *, value: str = "binary") -> tuple[list[object], list[object]]:
    """Return the columns of the struct and of the bytes."""
    schema = StructType().add("__key", "string").add("held", USER).add("value", value)
    converter = JsonColumnConverter(schema, "held")
    assert converter.columns == ["key_bytes", "value"]
    keys = pa.array([b"k"] * len(payloads), pa.binary())
    messages = pa.RecordBatch.from_arrays([keys, pa.array(payloads, pa.binary())], names=converter.columns)
    found = converter.shape(messages)
    assert found.schema == converter.schema
    assert found.column(0).to_pylist() == ["k"] * len(payloads)
    return found.column(1).to_pylist(), found.column(2).to_pylist()


def test_a_payload_is_in_the_struct_or_in_the_bytes():
    for payload, row in HELD.items():
        assert converted([payload]) == ([row], [None])
    for payload in NOT_HELD:
        assert converted([payload]) == ([None], [payload])
    assert converted([None]) == ([None], [None]), "a message without a payload"
    rows, values = converted([*HELD, *NOT_HELD, None, *HELD])
    nothing = [None] * (len(NOT_HELD) + 1)
    assert rows == [*HELD.values(), *nothing, *HELD.values()]
    assert values == [*[None] * len(HELD), *NOT_HELD, None, *[None] * len(HELD)]


def test_bytes_as_text_do_not_decide_what_is_held():
    assert converted([b'{"name": "\xff"}'], value="string") == ([None], ['{"name": "\ufffd"}'])


def test_columns_that_cannot_be_read_are_refused():
    with pytest.raises(InvalidConfiguration, match="jsonColumn=held: the query has no STRUCT column"):
        without_json_column(StructType().add("held", "string").add("value", "binary"), "held")
    with pytest.raises(InvalidConfiguration, match="requires the column 'value'"):
        without_json_column(StructType().add("held", USER), "held")
    with pytest.raises(InvalidConfiguration, match="no column 'other'"):
        without_json_column(StructType().add("held", USER).add("other", "binary"), "held")
    with pytest.raises(IncompatibleSchema):
        without_json_column(
            StructType().add("held", StructType().add("v", "interval day to second")).add("value", "binary"),
            "held",
        )


@pytest.mark.parametrize(
    ("option", "value"), [("columns", "value"), ("valueSchema", "JSON"), ("withoutJsonObjects", "true")]
)
def test_options_that_contradict_it_are_refused(option, value):
    options = {"service.url": "pulsar://127.0.0.1:1", "topic": "t", "jsonColumn": "held", option: value}
    schema = StructType().add("held", USER).add("value", "binary")
    with pytest.raises(
        InvalidConfiguration, match=f"(jsonColumn.*{option}|{option}.*jsonColumn) exclude each other"
    ):
        PulsarDataSource(options).reader(schema)


def test_a_query_has_the_struct_beside_other_columns(broker, client):
    producer = client.create_producer("events")
    for payload in [*HELD, *NOT_HELD]:
        producer.send(payload)
    schema = StructType().add("value", "binary").add("held", USER).add("__entryId", "long")
    options = {"service.url": broker.service_url, "topic": "events", "jsonColumn": "held"}
    reader = PulsarDataSource(options).reader(schema)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["held"] for row in rows] == [*HELD.values(), *[None] * len(NOT_HELD)]
    assert [row["value"] for row in rows] == [*[None] * len(HELD), *NOT_HELD]
    assert [row["__entryId"] for row in rows] == list(range(len(rows)))


ODD = [
    b"{ broken", b"", b" ", b"null", b"5", b"[]", b'"x"', b"\xef\xbb\xbf{}", b"{'a': 1}", b"{a: 1}",
    b"{} {}", b' {"a": 1} x', b'{"a": 1},"w":{}', b'null,"v":{}', b'{"a": 1}}\n{"v":{}', b'{"a": NaN}',
    b'{"a": [-Infinity]}', b'{"a": Inf}', b'{"a": 1e999}', b'{"a": 01}', b'{"a": +1}', b'{"a": .5}',
    b'{"a": 1.}', b'{"a": 1,}', b'{"a": 1, "a": 2}', b'{"": 1}', b'{"a": "\x01"}', b'{"a": "\\x"}',
    b'{"a": "\\ud800"}', b'{"a": "\xff"}', b'{"a": /* c */ 1}', b"{}\x00", b"\x00{}",
    b'{"id": 1, "more": {"x": [1]}}', b'{"a": %b}' % (b"1" * 1001),
    b'{"a": -1%b.%be%b}' % ((b"1" * 333,) * 3), b'{"%b": 1}' % (b"n" * 50_001),
    b'{"a": "%b"}' % (b"x" * 60_000), b'{"a":%b}' % (b"[" * 1000 + b"]" * 1000),
    b'{"a":[%b]}' % b",".join([b"{}"] * 1000),
]  # fmt: skip
"""Payloads that parsers of JSON may take differently."""


def test_all_messages_that_are_no_objects_are_searched_for():
    objects = pa.array([b'{"id": %d}' % number for number in range(10_000)], pa.binary())
    assert not may_be_none(objects).any()
    assert not may_be_none(objects[:0]).any()
    for payload in [b"{ broken", None]:
        found = may_be_none(pa.concat_arrays([objects, pa.array([payload], pa.binary()), objects]))
        assert found[10_000]
        assert found.sum() <= 64


def test_columns_are_decoded_for_messages_that_may_be_no_objects():
    schema = StructType().add("__key", "string").add("value", "string")
    converter = WithoutObjectsConverter(schema)

    def shaped(payloads: list[bytes]) -> pa.RecordBatch:
        values = pa.array(payloads, pa.binary())
        keys = pa.array([b"k%d" % number for number in range(len(payloads))], pa.binary())
        asked: list[list[str]] = []

        def again(columns: list[str]) -> pa.RecordBatch:
            asked.append(columns)
            return pa.RecordBatch.from_arrays([keys, values], names=columns)

        found = converter.shape(pa.RecordBatch.from_arrays([values], names=converter.columns), again)
        assert found.schema == converter.rest.schema
        assert asked == ([["key_bytes", "value"]] if found.num_rows else [])
        return found

    assert shaped([b"{}"] * 100).num_rows == 0
    assert {"__key": "k99", "value": "{"} in shaped([*[b"{}"] * 99, b"{"]).to_pylist()


@pytest.mark.spark
def test_each_odd_payload_is_where_sparks_own_parser_puts_it(
    spark, pulsar_broker, pulsar_client, pulsar_topic
):
    """As the template ingest reads rows and dead letters."""
    with pulsar_client.create_producer(pulsar_topic) as producer:
        for payload in ODD:
            producer.send(payload)

    def read(schema: str, **options: str) -> Any:
        reader = spark.read.format("pulsar").option("service.url", pulsar_broker.service_url)
        rows = reader.option("topic", pulsar_topic).options(**options).schema(schema).load()
        return rows.withColumn("keys", functions.json_object_keys(rows.value.cast("string")))

    objects = [row.keys is not None for row in read("value BINARY").select("keys").collect()]
    assert set(objects) == {True, False}
    for payload, is_object in zip(ODD, objects, strict=True):
        assert is_object or may_be_none(pa.array([payload])).all(), payload
    letters = read("value BINARY", withoutJsonObjects="true").where("keys IS NULL").collect()
    assert [row.value for row in letters] == [each for each, has in zip(ODD, objects, strict=True) if not has]
    held = read("held STRUCT<a: BIGINT>, value BINARY", jsonColumn="held")
    rows = held.selectExpr("held IS NOT NULL OR keys IS NOT NULL AS found").collect()
    assert [row.found for row in rows] == objects
