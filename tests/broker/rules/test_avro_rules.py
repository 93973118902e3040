"""Avro's reading rules, judged by Apache Pulsar's own answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.broker.rules.avro_rules import DEPTH_MAX, NotAvro, parse, unreadable

VECTORS = json.loads((Path(__file__).parent.parent.parent / "vectors" / "compatibility.json").read_text())


def schema(definition: Any) -> Any:
    return parse(json.dumps(definition).encode())


@pytest.mark.parametrize("group", range(len(VECTORS["avro"])))
def test_java_answers_the_same(group: int) -> None:
    definitions, answers = VECTORS["avro"][group]["schemas"], VECTORS["avro"][group]["readable"]
    parsed = {name: schema(definition) for name, definition in definitions.items()}
    wrong = []
    for reader, row in answers.items():
        for writer, answer in zip(parsed, row, strict=True):
            problem = unreadable(reader=parsed[reader], writer=parsed[writer])
            if (problem == "") != (answer == "1"):
                wrong.append((reader, writer, problem))
    assert wrong == []


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        ("int", "string", "the schema was string and is read as int"),
        (["null", "int"], "string", "the union takes no string"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]},
            {"type": "record", "name": "R", "fields": []},
            "the field x is missing in what was written and has no default",
        ),
        (
            {"type": "array", "items": {"type": "map", "values": "int"}},
            {"type": "array", "items": {"type": "map", "values": "long"}},
            "[]{} was long and is read as int",
        ),
    ],
)  # fmt: skip
def test_reasons_name_the_place(reader: Any, writer: Any, reason: str) -> None:
    assert unreadable(reader=schema(reader), writer=schema(writer)) == reason


R = {"type": "record", "name": "R", "fields": []}


@pytest.mark.parametrize(
    "definition",
    [
        None, 5, {}, {"type": 5}, "nothing", {"type": "nothing"}, {"type": "array"}, {"type": "map"},
        {"type": "record", "fields": []}, {"type": "record", "name": "R-1", "fields": []},
        {"type": "record", "name": "", "fields": []}, {"type": "record", "name": "a..b", "fields": []},
        {"type": "record", "name": "R"}, {"type": "record", "name": "R", "fields": [5]},
        {"type": "record", "name": "R", "fields": [{"name": "x"}]},
        {"type": "record", "name": "R", "fields": [{"name": "1", "type": "int"}]},
        {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}] * 2},
        {"type": "record", "name": "R", "fields": [{"name": "x", "type": R}]},
        {"type": "enum", "name": "E"}, {"type": "fixed", "name": "F"}, ["int", ["string"]],
    ],
)  # fmt: skip
def test_definitions_that_are_none(definition: Any) -> None:
    with pytest.raises(NotAvro):
        schema(definition)


def test_depth_is_bounded() -> None:
    deep: Any = "int"
    for _ in range(DEPTH_MAX + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(NotAvro, match="nested"):
        schema(deep)
    for data in (b"{", b"", b"\xff", b"[" * 100_000):
        with pytest.raises(NotAvro, match="no JSON"):
            parse(data)


def test_recursive_types_end() -> None:
    def node(kind: str) -> Any:
        fields = [{"name": "v", "type": kind}, {"name": "next", "type": ["null", "Node"]}]
        return schema({"type": "record", "name": "Node", "fields": fields})

    assert unreadable(reader=node("long"), writer=node("int")) == ""
    assert unreadable(reader=node("int"), writer=node("long")) == "v was long and is read as int"


types = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"]),
    lambda inner: (
        st.builds(lambda t: {"type": "array", "items": t}, inner)
        | st.builds(lambda t: {"type": "map", "values": t}, inner)
    ),
    max_leaves=4,
)
records = st.lists(
    st.tuples(st.sampled_from("abcd"), types, st.booleans()), unique_by=lambda f: f[0], max_size=4
).map(
    lambda fields: {
        "type": "record",
        "name": "R",
        "fields": [
            {
                "name": name,
                "type": ["null", kind] if optional else kind,
                **({"default": None} if optional else {}),
            }
            for name, kind, optional in fields
        ],
    }
)


@given(records)
def test_every_schema_reads_itself(definition: Any) -> None:
    assert unreadable(reader=schema(definition), writer=schema(definition)) == ""


@settings(max_examples=200)
@given(records, records)
def test_what_is_readable_is_read_by_fastavro(reader: Any, writer: Any) -> None:
    """A second judge: a value of the writer's is decoded without an error where we say that it can be."""
    import io

    fastavro = pytest.importorskip("fastavro")
    if unreadable(reader=schema(reader), writer=schema(writer)):
        return
    value = {field["name"]: _value(field["type"]) for field in writer["fields"]}
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(writer), value)
    buffer.seek(0)
    read = fastavro.schemaless_reader(buffer, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    assert set(read) == {field["name"] for field in reader["fields"]}


def _value(kind: Any) -> Any:
    if isinstance(kind, list):
        return _value(kind[-1])
    if isinstance(kind, dict):
        return [_value(kind["items"])] if kind["type"] == "array" else {"k": _value(kind["values"])}
    return {
        "null": None, "boolean": True, "int": 1, "long": 2, "float": 1.5, "double": 2.5, "bytes": b"b",
        "string": "s",
    }[kind]  # fmt: skip
