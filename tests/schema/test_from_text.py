"""Values and schemas given as texts. The payloads are those that Apache Pulsar 4.0.4 stores for them."""

import base64
import json
import re

import pytest

from geminga.errors import IncompatibleSchema
from geminga.schema import from_text
from geminga.schema.from_text import info_of_texts, text_encoders
from geminga.schema_info import SchemaInfo, SchemaType

pytest.importorskip("fastavro")
RECORD = {
    "type": "record", "name": "R",
    "fields": [{"name": "a", "type": "int"}, {"name": "s", "type": ["null", "string"], "default": None}],
}  # fmt: skip


def described(kind: str, definition: object = None) -> str:
    data = b"" if definition is None else json.dumps(definition).encode()
    return json.dumps({"type": kind, "schema": base64.b64encode(data).decode(), "properties": {}})


def encoded(kind: str, text: str, definition: object = None) -> bytes:
    return text_encoders(info_of_texts("", described(kind, definition)))[1](text)


@pytest.mark.parametrize(
    ("kind", "text", "payload"),
    [
        ("INT8", "1", "01"), ("INT16", "1", "0001"), ("INT32", "-5", "fffffffb"), ("INT32", "+7", "00000007"),
        ("INT64", "5", "0000000000000005"), ("FLOAT", "1.5", "3fc00000"),
        ("DOUBLE", "1.5", "3ff8000000000000"), ("BOOLEAN", "TRUE", "01"), ("BOOLEAN", "x", "00"),
        ("STRING", "ü", "c3bc"), ("BYTES", "aGk=", "61476b3d"), ("NONE", "x", "78"),
        ("TIME", "1000", "00000000000003e8"), ("TIMESTAMP", "1000", "00000000000003e8"),
        ("INSTANT", "2020-01-01T00:00:00Z", "000000005e0be10000000000"),
        ("LOCAL_DATE", "2020-01-02", "0000000000004757"), ("LOCAL_TIME", "10:11:12", "0000215a5d888000"),
        ("LOCAL_DATE_TIME", "2020-01-01T10:00:00", "0000000000004756000020bde7364000"),
    ],
)  # fmt: skip
def test_values_of_simple_types(kind, text, payload):
    assert encoded(kind, text).hex() == payload


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("INT8", "200"), ("INT32", "x"), ("INT32", " 7"), ("INT32", "7.0"), ("DOUBLE", "x"),
        ("DOUBLE", "1_0"), ("JSON", "1e999"), ("TIMESTAMP", "2020-01-01"), ("INSTANT", "2020-01-01T00:00:00"),
        ("LOCAL_DATE", "today"), ("JSON", "nojson"), ("JSON", "NaN"), ("JSON", "[" * 100_000),
        ("STRING", "\ud800"),
    ],
)  # fmt: skip
def test_texts_that_do_not_fit_are_refused(kind, text):
    with pytest.raises((ValueError, TypeError)):
        encoded(kind, text, RECORD if kind == "JSON" else None)


def test_json_is_written_without_spaces():
    assert encoded("JSON", '{"a": 1, "s": {"x": "ü"}}', RECORD) == '{"a":1,"s":{"x":"ü"}}'.encode()


def test_avro_takes_avros_json():
    encode = text_encoders(info_of_texts("", described("AVRO", RECORD)))[1]
    assert encode('{"a": 1, "s": null}') == b"\x02\x00"
    assert encode('{"a": 1,\n "s": {"string": "x"}}') == b"\x02\x02\x02x"
    assert encode('{"a": 1}') == b"\x02\x00"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":1,"s":"x"}', '"x" names no branch of its union; allowed: null, {"string": ...}'),
        ('{"a":1,"s":{"int":5}}', "names no branch"),
        ('{"a":1,"s":{"string":5}}', "s=5 is not allowed; allowed: null, string"),
        ('{"a":1,"S":{"string":"x"}}', "S is no field of R; allowed: a, s"),
        ('{"a":"x"}', 'a="x" is not allowed; allowed: int'),
        ('{"a":1.5,"s":null}', "allowed: int"),
        ('{"b":1}', "b is no field of R"),
        ("{}", "a=null is not allowed"),
        ("[1]", "[1] is not allowed; allowed: R"),
        ("", "Expecting value"),
    ],
)  # fmt: skip
def test_other_json_is_refused_with_what_is_wrong(text, expected):
    with pytest.raises(ValueError, match=re.escape(expected)):
        encoded("AVRO", text, RECORD)


def test_a_branch_is_the_one_that_is_named():
    a, b = ({"type": "record", "name": each, "fields": []} for each in "AB")
    kinds = ["null", "string", "bytes", "int", a, b, {"type": "array", "items": "int"},
             {"type": "map", "values": ["null", "A"]}]  # fmt: skip
    definition = {"type": "record", "name": "R", "fields": [{"name": "u", "type": kinds}]}
    for text, payload in (
        ('{"string": "x"}', b"\x02\x02x"), ('{"bytes": "\\u00ff"}', b"\x04\x02\xff"),
        ('{"int": 1}', b"\x06\x02"),
        ('{"A": {}}', b"\x08"), ('{"B": {}}', b"\x0a"), ('{"array": [1]}', b"\x0c\x02\x02\x00"),
        ('{"map": {"k": {"A": {}}}}', b"\x0e\x02\x02k\x02\x00"), ("null", b"\x00"),
    ):  # fmt: skip
        assert encoded("AVRO", f'{{"u": {text}}}', definition) == payload
    with pytest.raises(ValueError, match='u="1" is not allowed; allowed: int'):
        encoded("AVRO", '{"u": {"int": "1"}}', definition)


def test_a_record_may_contain_itself():
    node = {"type": "record", "name": "n.Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    text = '{"next": {"n.Node": {"next": {"n.Node": {"next": null}}}}}'
    assert encoded("AVRO", text, node) == b"\x02\x02\x00"


def test_long_checks_of_avro_values_end(monkeypatch):
    encode = text_encoders(info_of_texts("", described("AVRO", RECORD)))[1]
    monkeypatch.setattr(from_text, "STEPS_MAX", 700)
    short = text_encoders(info_of_texts("", described("AVRO", RECORD)))[1]
    text = '{"a": 1, "s": null}'
    assert encode(text) == short(text)
    short(text)
    for _ in range(2):
        with pytest.raises(ValueError, match="send fewer"):
            short(text)


def test_a_record_that_is_its_own_default_is_not_tried():
    endless = {"type": "record", "name": "D", "fields": [{"name": "d", "type": "D", "default": {}}]}
    with pytest.raises(ValueError, match="too large or too deep"):
        encoded("AVRO", "{}", endless)


def test_a_pair_has_its_key_apart():
    info = info_of_texts(described("INT32"), described("STRING"))
    encode_key, encode = text_encoders(info)
    assert encode_key is not None
    assert (encode_key("5"), encode("v")) == (b"\0\0\0\5", b"v")
    properties = dict(info.properties)
    assert properties["kv.encoding.type"] == "SEPARATED"
    assert (properties["key.schema.type"], properties["value.schema.type"]) == ("INT32", "STRING")


def test_without_a_schema_values_are_strings():
    info = info_of_texts("", "")
    assert (info.type, info.properties) == (SchemaType.STRING, (("__charset", "UTF-8"),))


@pytest.mark.parametrize("properties", ["5", "[1]", "[" * 100_000])
def test_a_pair_with_other_properties_is_refused(properties):
    names = ("key.schema.type", "STRING"), ("value.schema.type", "STRING"), ("kv.encoding.type", "SEPARATED")
    pairs = *names, ("key.schema.properties", properties)
    with pytest.raises(IncompatibleSchema, match="describes no pair"):
        text_encoders(SchemaInfo(type=SchemaType.KEY_VALUE, data=bytes(8), properties=pairs))


@pytest.mark.parametrize(
    "text", ["{x", "[]", '{"type": "ZORK"}', '{"type": "JSON", "schema": "{}"}', '{"a": 1}']
)
def test_other_texts_are_no_schemas(text):
    with pytest.raises(ValueError, match="is no schema"):
        info_of_texts("", text)


@pytest.mark.parametrize("kind", ["DATE", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE", "AUTO_CONSUME"])
def test_other_types_are_refused_by_name(kind):
    with pytest.raises(IncompatibleSchema, match=f"{kind} schemas"):
        info_of_texts("", described(kind))
    with pytest.raises(IncompatibleSchema, match=f"{kind} schemas|describes no pair"):
        text_encoders(SchemaInfo(type=SchemaType[kind], properties=(("kv.encoding.type", "SEPARATED"),)))
