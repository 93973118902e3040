import pytest

from geminga import schema
from geminga.errors import CorruptPayload

CASES = [
    (schema.Int8Schema, -5, b"\xfb"),
    (schema.Int16Schema, 258, b"\x01\x02"),
    (schema.Int32Schema, -2, b"\xff\xff\xff\xfe"),
    (schema.Int64Schema, 1, bytes(7) + b"\x01"),
    (schema.FloatSchema, 1.5, b"\x3f\xc0\x00\x00"),
    (schema.DoubleSchema, 1, b"\x3f\xf0" + bytes(6)),
    (schema.BooleanSchema, True, b"\x01"),
    (schema.BooleanSchema, False, b"\x00"),
]


@pytest.mark.parametrize(("kind", "value", "data"), CASES)
def test_values_are_encoded_and_decoded(kind, value, data):
    codec = kind()
    assert codec.encode(value) == data
    assert codec.decode(data) == value
    assert codec.schema_info().data == b""  # brokers refuse any text here
    with pytest.raises(TypeError):
        codec.encode("text")
    with pytest.raises(CorruptPayload):
        codec.decode(data + b"\x00")


@pytest.mark.parametrize(
    ("kind", "value"), [(schema.Int8Schema, 128), (schema.Int32Schema, True), (schema.FloatSchema, 1e300)]
)
def test_values_out_of_range_are_refused(kind, value):
    with pytest.raises(TypeError):
        kind().encode(value)


KINDS = {
    "int8": schema.Int8Schema, "int16": schema.Int16Schema, "int32": schema.Int32Schema,
    "int64": schema.Int64Schema, "float": schema.FloatSchema, "double": schema.DoubleSchema,
    "boolean": schema.BooleanSchema,
}  # fmt: skip


class Tombstone:
    def data(self):
        return b""

    def has_null_value(self):
        return True


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_null_values_are_none(kind):
    assert KINDS[kind]().decode_message(Tombstone()) is None
