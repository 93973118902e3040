import pytest
from interpreter import run_python

from geminga import schema


def test_bytes_are_unchanged_and_register_no_schema():
    codec = schema.BytesSchema()
    assert codec.encode(b"x") == b"x"
    assert codec.decode(b"x") == b"x"
    assert codec.told_to_topic() is None
    assert codec.schema_info().schema_type() is schema.SchemaType.BYTES
    assert codec.wire_schema() is None
    with pytest.raises(TypeError, match="BytesSchema takes a bytes, not a str"):
        codec.encode("x")


def test_text_is_encoded_as_utf_8():
    codec = schema.StringSchema()
    assert codec.decode(codec.encode("grüß")) == "grüß"
    info = codec.schema_info()
    assert (info.type, info.name, info.data) == (1, "STRING", b"null")
    with pytest.raises(TypeError):
        codec.encode(b"x")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-be"])
def test_json_is_read_in_every_encoding_that_json_loads_reads(encoding):
    class Town(schema.Record):
        name = schema.String()

    codec = schema.JsonSchema(Town)
    assert codec.decode('{"name": "Zürich"}'.encode(encoding)).name == "Zürich"
    for damaged in (b"", b"{", b'{"name": "\xff"}'):
        with pytest.raises(ValueError):
            codec.decode(damaged)


def test_json_is_read_from_text_as_well():
    """Programs written for pulsar-client pass it in tests of their own."""

    class Town(schema.Record):
        name = schema.String()

    codec = schema.JsonSchema(Town)
    assert codec.decode('{"name": "Zürich"}').name == "Zürich"
    with pytest.raises(TypeError, match="must be str, bytes or bytearray, not NoneType"):
        codec.decode(None)


@pytest.mark.parametrize("name", ["definition", "schema", "schema_avro", "schema_protobuf"])
def test_modules_of_pulsar_client_are_attributes_of_the_package(name):
    run_python(f"import geminga.schema; assert geminga.schema.{name}.__name__ == 'geminga.schema.{name}'")
