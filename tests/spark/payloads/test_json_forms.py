"""JSON payloads in unusual forms beside Spark's ``from_json``, and the forms that are read otherwise."""

import pytest
from pyspark.sql import DataFrame, functions

SCHEMA = (
    "i BIGINT, x DOUBLE, b BOOLEAN, s STRING, m DECIMAL(10,2), t TIMESTAMP, d DATE, y BINARY, "
    "a ARRAY<INT>, k MAP<STRING,INT>, u STRUCT<a: INT, b: STRING>, _corrupt STRING"
)
SAME = r"""
{"i":7} {"i":"7"} {"i":7.5} {"i":true} {"i":""} {"i":[7]} {"i":{}} {"i":9223372036854775808} {"i":null} {}
{"I":7} {"i":7,"i":8} {"i":-0} {"i":007} {"i":+7} {"i":0x7} {"i":NaN} {"i":7 {"i":} {i:7} {"i":7,}
/*c*/{"i":7} [7] 7 "x" [{"i":7}] {"x":1} {"x":"1.5"} {"x":"NaN"} {"x":NaN} {"x":"Infinity"} {"x":Infinity}
{"x":"+INF"} {"x":-Infinity} {"x":"nan"} {"x":1.} {"x":.5} {"x":01.5} {"x":1e999} {"b":true} {"b":"true"}
{"b":1} {"b":True} {"s":[1,2]} {"s":{"a":1}} {"s":true} {"s":"\x"} {"s":"\u00e9"} {"s":"\/"}
{"s":"a\u0000b"} {"m":1.25} {"m":"1.25"} {"m":"1,000.25"} {"m":123456789.1} {"m":"x"} {"m":""} {"m":1e3}
{"t":1.5} {"t":"x"} {"t":""} {"t":"2024-01-01T25:00:00"} {"t":"2024-02-30"} {"t":"1700000000"} {"d":"x"}
{"d":"2024-02-30"} {"y":"YWI"} {"y":"@"} {"y":1} {"a":1} {"a":[1,"2"]} {"a":[1,null]} {"a":"[1]"} {"a":{}}
{"a":[1,]} {"k":{"a":"1"}} {"k":{"a":null}} {"k":[]} {"u":{"a":1}} {"u":[1]} {"u":1} {"u":{"a":"1","b":"x"}}
{"u":[{"a":1}]} {"u":null} {"u":{}}
"""
"""Payloads with the same result, between spaces."""
UNREADABLE = (
    # `from_json` reads the first value, and has no value for an empty payload.
    '{"i":7} x', '{"i":7} {"i":8}', '{"i":7},', '{"i":7}}', '{"i":7}//c', '{"i":7}\0', "{'i':7}", "", " ",
    # It rounds, puts today's date before a time of day, or replaces the half of a surrogate pair.
    '{"m":1.255}', '{"t":"12:30"}', '{"s":"\\ud800"}', '{"t":"+12024-01-01"}',
)  # fmt: skip
OTHERWISE = {
    # `from_json` rejects these.
    '{"i":7.0}': '{"i":7}', '{"i":1e2}': '{"i":100}', "null": "{}", '\ufeff{"i":7}': '{"i":7}',
    # It changes digits, and keeps both values of a key.
    '{"s":1.50}': '{"s":"1.50"}', '{"k":{"a":1,"a":2}}': '{"k":{"a":2}}',
}  # fmt: skip


@pytest.mark.spark
def test_unusual_forms_of_json_are_read_like_from_json_except_for_those_documented(
    spark, pulsar_broker, pulsar_client, pulsar_topic
):
    payloads = [*SAME.split(), *UNREADABLE, *OTHERWISE]
    with pulsar_client.create_producer(pulsar_topic, batching_enabled=False) as producer:
        for payload in payloads:
            producer.send(payload.encode())
    source = spark.read.format("pulsar").option("service.url", pulsar_broker.service_url)
    source = source.option("topic", pulsar_topic)
    lenient = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    texts = source.schema("value STRING, __entryId BIGINT").load()
    parsed = texts.select("__entryId", functions.from_json("value", SCHEMA, lenient).alias("v"))
    own = values(parsed.select("__entryId", "v.*"))
    ours = values(source.options(**lenient, valueSchema="JSON").schema(f"{SCHEMA}, __entryId BIGINT").load())
    for payload, expected, found in zip(payloads, own, ours, strict=True):
        if payload in OTHERWISE:
            assert found == OTHERWISE[payload] != expected, payload
        elif payload in UNREADABLE:
            assert found is None is not expected, payload
        else:
            assert found == expected, payload


def values(rows: DataFrame) -> list[str | None]:
    """The rows as JSON, in their order; None for unreadable payloads."""
    row = functions.to_json(functions.struct(*"ixbsmtdyaku"))
    found = functions.when(functions.col("_corrupt").isNull(), row).alias("v")
    return [each.v for each in rows.orderBy("__entryId").select(found).collect()]
