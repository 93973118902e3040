"""Avro's reading rules, judged by Apache Pulsar's own answers."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.broker.rules.avro_rules import (
    DEPTH_MAX,
    ComparisonBudget,
    NotAvro,
    _Resolution,
    parse,
    unreadable,
)

VECTORS = json.loads((Path(__file__).parent.parent.parent / "vectors" / "compatibility.json").read_text())


def schema(definition: Any) -> Any:
    return parse(json.dumps(definition).encode())


@pytest.mark.parametrize("group", range(len(VECTORS["avro"])))
def test_answers_equal_those_of_java(group):
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
def test_reasons_name_the_path_of_the_field(reader, writer, reason):
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
def test_invalid_definitions_are_refused(definition):
    with pytest.raises(NotAvro):
        schema(definition)


def test_the_depth_of_schemas_is_bounded():
    deep: Any = "int"
    for _ in range(DEPTH_MAX + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(NotAvro, match="nested"):
        schema(deep)
    for data in (b"{", b"", b"\xff", b"[" * 100_000):
        with pytest.raises(NotAvro, match="no JSON"):
            parse(data)


def test_recursive_types_are_compared_in_finite_time():
    def node(kind: str) -> Any:
        fields = [{"name": "v", "type": kind}, {"name": "next", "type": ["null", "Node"]}]
        return schema({"type": "record", "name": "Node", "fields": fields})

    assert unreadable(reader=node("long"), writer=node("int")) == ""
    assert unreadable(reader=node("int"), writer=node("long")) == "v was long and is read as int"


def nested_unions(levels: int, leaf: str) -> Any:
    """Records that hold a union of two records at each level: pairs to compare multiply with the levels."""

    def level(number: int, side: str) -> Any:
        name = f"{side}{number}"
        if number == levels:
            return {"type": "record", "name": name, "fields": [{"name": "v", "type": leaf}]}
        inner = [level(number + 1, "A"), level(number + 1, "B")] if side == "A" else [f"A{number + 1}"]
        return {"type": "record", "name": name, "fields": [{"name": "x", "type": inner}]}

    return level(0, "A")


def renamed(definition: Any, to: str) -> Any:
    """The same schema with other record names, so that every pair of branches is tried."""
    text = json.dumps(definition)
    for number in range(100):
        for side in "AB":
            text = text.replace(f'"{side}{number}"', f'"{to}{side}{number}"')
    return json.loads(text)


@pytest.mark.parametrize(("read", "written"), [("long", "int"), ("int", "long")])
def test_a_pair_of_records_is_compared_once(read, written):
    # It took 1.6 times as long with every level before: 0.01 s with 16, so 10 s with these.
    reader, writer = schema(nested_unions(30, read)), schema(renamed(nested_unions(30, written), "Z"))
    begin = time.thread_time()
    reason = unreadable(reader=reader, writer=writer)
    assert time.thread_time() - begin < 1
    assert (reason == "") == (read == "long")


def test_an_endless_comparison_is_refused_with_a_reason():
    many = [
        {"type": "record", "name": f"R{n}", "fields": [{"name": f"f{n}", "type": "int"}]} for n in range(400)
    ]
    other = [
        {"type": "record", "name": f"W{n}", "fields": [{"name": f"g{n}", "type": "int"}]} for n in range(400)
    ]
    begin = time.thread_time()
    reason = unreadable(reader=schema(many), writer=schema(other))
    assert time.thread_time() - begin < 1
    assert reason == "the union takes no record W0"
    fields = [
        {"name": "x", "type": ["null", *many]},
        {"name": "y", "type": ["null", *(f"R{n}" for n in range(400))]},
    ]
    record = {"type": "record", "name": "R", "fields": fields}
    big = schema(record)
    budget = ComparisonBudget(1_000)
    for writer in (parse(json.dumps(record).replace('"R', '"W').encode()), big):
        assert "takes more than 1000 steps" in unreadable(reader=big, writer=writer, budget=budget)


def test_wrong_assumptions_of_a_comparison_are_dropped():
    def tree(leaf: str) -> Any:
        fields = [
            {"name": "child", "type": ["null", {"type": "record", "name": "C", "fields": [
                {"name": "parent", "type": ["null", "P"]}]}]},
            {"name": "v", "type": leaf},
        ]  # fmt: skip
        parent = {"type": "record", "name": "P", "fields": fields}
        return [parent, {"type": "record", "name": "Other", "fields": [{"name": "c", "type": ["null", "C"]}]}]

    # C is readable as long as P is assumed to be; P is not, so C is not either.
    writer = schema(tree("long"))
    resolution = _Resolution(schema(tree("int")), ComparisonBudget())
    reader = schema(tree("int"))
    parents = reader.branches[0], writer.branches[0]
    children = tuple(each.fields[0].type.branches[1] for each in parents)
    assert resolution.problem(*parents, "", 0) == "v was long and is read as int"
    assert resolution.problem(*children, "", 0) == "v was long and is read as int"


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
            {"name": name, "type": ["null", kind], "default": None}
            if optional
            else {"name": name, "type": kind}
            for name, kind, optional in fields
        ],
    }
)


@given(records)
def test_every_schema_reads_itself(definition):
    assert unreadable(reader=schema(definition), writer=schema(definition)) == ""


@given(records, records)
def test_readable_schemas_are_read_by_fastavro(reader, writer):
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
