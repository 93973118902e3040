"""Records: definitions, checks, and errors, which are those of pulsar-client where that is installed."""

import pytest
from record_classes import Color, records, value_of

from geminga import schema

RECORDS = records(schema)
Inner, Everything = RECORDS["Inner"], RECORDS["Everything"]


def test_values_are_stored_and_checked():
    record = Everything(text=b"bytes", ratio=1, raw="text", color="RED", inner={"x": 3})
    assert (record.text, record.raw, record.color) == ("bytes", b"text", Color.RED)
    assert record.inner == Inner(x=3)
    assert record.inner.y == "why"
    assert record.number == 7
    assert (record.flag, RECORDS["Plain"]().c) == (True, False)
    for name, value in [
        ("number", "7"),
        ("inner", Everything(ratio=1.0)),
        ("items", "abc"),
        ("table", {1: Inner(x=1)}),
    ]:
        with pytest.raises(TypeError, match=name):
            setattr(record, name, value)
    with pytest.raises(AttributeError, match="undeclared"):
        record.undeclared = 1
    record.number = True
    assert type(record.number) is int  # JSON would write true otherwise, which no other client reads


def refusals(module):
    """Errors for values that fields do not accept."""

    class Sub(module.Record):
        x = module.Integer()

    fields = {
        "Integer": (module.Integer(), [1.5, "x", b"x", [1]]),
        "required": (module.Integer(required=True), [None]),
        "Long": (module.Long(), ["x"]),
        "Float": (module.Float(), ["x"]),
        "Double": (module.Double(), [b"x"]),
        "String": (module.String(), [1, 1.5, [1]]),
        "required text": (module.String(required=True), [None]),
        "Boolean": (module.Boolean(), [1, "x"]),
        "Null": (module.Null(), [1]),
        "enumeration": (module.CustomEnum(Color), ["GREEN", 9, 1.5, True]),
        "Array": (module.Array(module.Integer()), [5, ["x"]]),
        "Array of records": (module.Array(Sub()), [[5]]),
        "Map": (module.Map(module.Integer()), [5, {1: 1}, {"a": "x"}]),
        "Map of texts": (module.Map(module.String()), [{"a": 5}]),
        "Map of records": (module.Map(Sub()), [{"a": 5}]),
        "sub-record": (Sub(), [5]),
    }
    said = {}
    for kind, (field, values) in fields.items():
        for value in values:
            with pytest.raises(TypeError) as caught:
                field.validate_type("f", value)
            said[kind, repr(value)] = str(caught.value).replace(module.__name__, "module")
    with pytest.raises(AttributeError) as caught:
        Sub().y = 1
    said["undeclared", ""] = str(caught.value)
    return said


def test_error_messages_equal_those_of_pulsar_client():
    theirs = pytest.importorskip("pulsar.schema")
    assert refusals(schema) == refusals(theirs)


def test_json_round_trip_of_nested_records():
    codec = schema.JsonSchema(Everything)
    record = value_of(RECORDS, "Everything")
    assert codec.decode(codec.encode(record)) == record


def test_unknown_fields_of_newer_writers_are_left_out():
    assert schema.JsonSchema(Inner).decode(b'{"x": 1, "later": true}') == Inner(x=1)


def test_defaults_are_not_shared_between_records():
    class Holder(schema.Record):
        items = schema.Array(schema.String(), default=["a"])

    first, second = Holder(), Holder()
    first.items.append("b")
    assert second.items == ["a"]


def test_a_derived_record_has_its_own_fields_only_as_in_pulsar_client():
    class Child(Inner):
        z = schema.Integer()

    assert [field["name"] for field in Child.schema()["fields"]] == ["z"]
    assert str(Child(x=1, z=2)) == "{'z': 2}"
    with pytest.raises(AttributeError):
        Child().x = 1


def test_the_switch_adds_the_fields_of_the_parents():
    class Child(Inner):
        _inherit_fields = True
        z = schema.Integer()

    class Grandchild(Child):
        a = schema.String()

    assert [field["name"] for field in Grandchild.schema()["fields"]] == ["x", "y", "z", "a"]


def test_fields_are_sorted_if_requested():
    class Sorted(schema.Record):
        _sorted_fields = True
        b = schema.Integer()
        a = schema.Integer()

    assert [field["name"] for field in Sorted.schema()["fields"]] == ["a", "b"]


def test_wrong_declarations_are_refused():
    with pytest.raises(TypeError):
        schema.Array(int)
    with pytest.raises(TypeError):
        schema.CustomEnum(int)


def test_records_have_a_repr_and_equality():
    assert repr(Inner(x=1)) == "Inner(x=1, y='why')"
    assert Inner(x=1) != Inner(x=2)
    assert Inner(x=1) != "text"
