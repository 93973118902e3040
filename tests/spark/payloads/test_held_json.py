"""The option ``jsonColumn``: JSON objects that a struct column holds completely, and all others as bytes."""

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from geminga.errors import IncompatibleSchema, InvalidConfiguration
from geminga.spark.datasource import PulsarDataSource
from geminga.spark.payloads.held_json import JsonColumnConverter, without_json_column

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


@pytest.mark.parametrize(("option", "value"), [("columns", "value"), ("valueSchema", "JSON")])
def test_options_that_contradict_it_are_refused(option, value):
    options = {"service.url": "pulsar://127.0.0.1:1", "topic": "t", "jsonColumn": "held", option: value}
    schema = StructType().add("held", USER).add("value", "binary")
    with pytest.raises(InvalidConfiguration, match=f"jsonColumn and {option} exclude each other"):
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
