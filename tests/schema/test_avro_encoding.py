"""Compiled Avro encoders, compared with fastavro, and the JSON of records, with the json module."""

import io
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga import schema
from geminga.schema.avro_encoding import NotCompiled, encoder_of

fastavro = pytest.importorskip("fastavro")

INT, LONG = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": INT,
    "long": LONG,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False) | INT,
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=200),
}


def definitions() -> st.SearchStrategy[Any]:
    return st.recursive(
        st.sampled_from(sorted(VALUES)),
        lambda inner: (
            st.builds(lambda of: {"type": "array", "items": of}, inner)
            | st.builds(lambda of: {"type": "map", "values": of}, inner)
            | st.builds(
                lambda of, first: ["null", of] if first else [of, "null"],
                inner.filter(lambda of: of != "null" and not isinstance(of, list)),
                st.booleans(),
            )
        ),
        max_leaves=3,
    )


def values_of(definition: Any) -> st.SearchStrategy[Any]:
    if isinstance(definition, str):
        return VALUES[definition]
    if isinstance(definition, list):
        return st.none() | values_of(definition[1] if definition[0] == "null" else definition[0])
    if definition["type"] == "array":
        return st.lists(values_of(definition["items"]), max_size=4)
    return st.dictionaries(st.text(max_size=5), values_of(definition["values"]), max_size=4)


def written(parsed: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, value)
    return buffer.getvalue()


@settings(max_examples=25)
@given(st.data())
def test_bytes_are_those_of_fastavro(data):
    kinds = data.draw(st.lists(definitions(), min_size=1, max_size=3))
    fields = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(kinds)]
    parsed = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    encoder = encoder_of(parsed)
    assert encoder is not None
    value = {f"f{i}": data.draw(values_of(kind)) for i, kind in enumerate(kinds)}
    out = bytearray()
    encoder(value, out)
    assert bytes(out) == written(parsed, value)


class Colour(Enum):
    RED = 1
    BLUE = 2


class Node(schema.Record):
    name = schema.String(required=True)
    count = schema.Integer()
    colour = schema.CustomEnum(Colour)
    tags = schema.Array(schema.String())


def test_a_value_that_does_not_fit_is_refused_as_by_fastavro():
    made = schema.AvroSchema(None, {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    for wrong in ({"n": "text"}, {}, {"n": None}):
        with pytest.raises((TypeError, ValueError)):
            made.encode(wrong)


def test_a_dict_that_names_its_type_is_left_to_fastavro():
    encoder = encoder_of(fastavro.parse_schema(["null", {"type": "record", "name": "R", "fields": []}]))
    assert encoder is not None
    with pytest.raises(NotCompiled):
        encoder({"-type": "Another"}, bytearray())


@pytest.mark.parametrize("kind", [{"type": "long", "logicalType": "timestamp-micros"}, ["int", "string"]])
def test_other_definitions_are_left_to_fastavro(kind):
    assert encoder_of(fastavro.parse_schema(kind)) is None


@given(
    st.text(), st.none() | INT, st.sampled_from([None, *Colour]), st.none() | st.lists(st.text(), max_size=3)
)
def test_the_json_of_records_is_that_of_the_json_module(name, count, colour, tags):
    import json

    value = Node(name=name, count=count, colour=colour, tags=tags)
    plain = {"name": name, "count": count, "colour": None if colour is None else colour.value, "tags": tags}
    made = schema.JsonSchema(Node)
    assert made.encode(value) == json.dumps(plain, indent=True).encode()
    assert made.decode(made.encode(value)) == value
