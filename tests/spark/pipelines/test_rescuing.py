"""Texts that hold more than the columns of a table, which the templates rescue."""

import pyarrow as pa
import pytest
from pyspark.sql import functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from geminga.spark.pipelines.rescuing import beyond, texts_that

USER = StructType().add("id", IntegerType()).add("tags", ArrayType(StructType().add("t", StringType())))
HELD: list[tuple[DataType, list[str]]] = [
    (USER, ['{"id": 1}', '{"id": 1, "tags": [{"t": "x"}, null, {}]}', "null", '{"tags": null}']),
    (MapType(StringType(), USER), ['{"a": {"id": 1}, "b": null}']),
    (DecimalType(6, 2), ["12.34", "12.3400", '"0.5"', "7", "-9999.99"]),
    (DoubleType(), ["0.1", "5", "1e22", '"NaN"', "-0.0"]),
    (FloatType(), ["0.1", "16777216"]),
    (StringType(), ['"1"', '""']),
    (TimestampType(), ["1700000000", '"2024-02-29T12:00:00.123456Z"', '"2024-02-29T12:00:00.5+01:00"']),
    (TimestampNTZType(), ['"2024-02-29T12:00:00.123"']),
    (DateType(), ['"2024-02-29"']),
    (BinaryType(), ['"YWI="']),
]
BEYOND: list[tuple[DataType, list[str]]] = [
    (USER, ['{"id": 1, "email": "x"}', '{"tags": [{"t": "x"}, {"u": 1}]}', '{"id": 1, "id": 2}', "[]", "5"]),
    (MapType(StringType(), USER), ['{"a": {"id": 1, "b": 2}}', '{"a": 5}']),
    (DecimalType(6, 2), ["12.345", "10000", "true"]),
    (DoubleType(), ["9.999999999999999999", "9007199254740993", "1e400", "true", "NaN", f"1.{'0' * 1000}"]),
    (FloatType(), ["0.123456789", "16777217"]),
    (IntegerType(), ["2147483648", "1.5", '"1"', "true"]),
    (StringType(), ["1", "{}", "true"]),
    (TimestampType(), ["1.5", *(f'"2024-02-29T12:00:00.{one}234567Z"' for one in ("1", r"\u0031")), "{}"]),
    (TimestampNTZType(), ['"2024-02-29T12:00:00.1234567"']),
    (DateType(), ['"2024-02-29T12:00:00"', "5"]),
    (BinaryType(), ['"?"', "1"]),
]


@pytest.mark.parametrize(("kind", "values"), HELD, ids=lambda given: str(given)[:12])
def test_json_that_the_columns_hold_exactly_is_not_rescued(kind, values):
    texts = pa.array([*(f'{{"v": {value}}}' for value in values), None, "", "{}"])
    assert texts_that(StructType().add("v", kind), texts).to_pylist() == [None] * len(texts)


@pytest.mark.parametrize(("kind", "values"), [*HELD, *BEYOND], ids=lambda given: str(given)[:12])
def test_a_text_alone_is_rescued_as_beside_one_that_arrow_cannot_parse(kind, values):
    schema = StructType().add("v", kind)
    for text in [*(f'{{"v": {value}}}' for value in values), '{"v": null} {}', '{"w": 1}', "null", "5"]:
        alone = texts_that(schema, pa.array([text])).to_pylist()
        assert alone == texts_that(schema, pa.array([text, "{"])).to_pylist()[:1], text


@pytest.mark.parametrize(("kind", "values"), BEYOND, ids=lambda given: str(given)[:12])
def test_json_that_columns_do_not_hold_exactly_is_rescued_whole(kind, values):
    texts = pa.array(
        [*(f'{{"v": {value}}}' for value in values), '{"v": null} {}', '{"w": 1}', "{" * 100_000]
    )
    assert texts_that(StructType().add("v", kind), texts).to_pylist() == texts.to_pylist()


def test_bytes_that_are_no_utf_8_are_rescued():
    raw = pa.array([b'{"v": "\xff"}'])
    texts = pa.Array.from_buffers(pa.string(), 1, raw.buffers())
    found = texts_that(StructType().add("v", StringType()), texts)
    assert found.cast(pa.binary()).to_pylist() == raw.to_pylist()


@pytest.mark.spark
def test_every_json_value_is_in_its_column_or_rescued(spark):
    """As the templates do it, beside ``from_json`` itself."""
    for kind, held, more in [(kind, held, dict(BEYOND).get(kind, [])) for kind, held in HELD]:
        schema = StructType().add("v", kind).add("_corrupt", StringType())
        texts = [f'{{"v": {value}}}' for value in [*held, *more]]
        frame = spark.createDataFrame([(text,) for text in texts], "text STRING").coalesce(1)
        options = {"columnNameOfCorruptRecord": "_corrupt"}
        row = functions.from_json("text", schema, options).alias("row")
        rescued = functions.coalesce("row._corrupt", beyond(StructType().add("v", kind))("text"))
        keys = functions.json_object_keys("text").alias("keys")
        found = frame.select("text", row).select(rescued.alias("rescued"), keys).collect()
        assert [each.rescued for each in found] == [*[None] * len(held), *texts[len(held) :]]
        assert all(each.keys for each in found[: len(held)]), "a row of ingest is no dead letter"
