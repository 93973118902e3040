"""Avro payloads against fastavro, which writes them."""

import datetime as dt
import decimal
import io
import json
import random
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.payloads.avro import AvroReader
from geminga.spark.payloads.definitions import definition_of
from geminga.spark.payloads.nodes import SchemaNode
from geminga.spark.payloads.types import spark_type
from geminga.spark.releases import arrow_type

EVERYTHING = json.loads(Path(__file__).with_name("everything.avsc").read_text())


def node(definition: Any) -> SchemaNode:
    return definition_of(SchemaInfo(type=int(SchemaType.AVRO), data=json.dumps(definition).encode())).root


def encoded(definition: Any, values: list[Any]) -> pa.Array:
    parsed = fastavro.parse_schema(definition)
    payloads = []
    for value in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, value)
        payloads.append(buffer.getvalue())
    return pa.array(payloads, pa.binary())


def rows(count: int) -> list[dict[str, Any]]:
    one = random.Random(7)

    def sub() -> dict[str, Any]:
        return {
            "a": one.randint(-5, 5),
            "b": [[one.randint(-(1 << 31), (1 << 31) - 1)] * one.randint(0, 3)] * one.randint(0, 3),
        }

    return [
        {
            "id": one.randint(-(1 << 63), (1 << 63) - 1),
            "name": one.choice([None, "", "äö" * one.randint(0, 4)]),
            "tags": [one.choice([None, "t"])] * one.randint(0, 3),
            "marks": {str(i): i / 3 for i in range(one.randint(0, 3))},
            "sub": one.choice([None, sub()]),
            "again": sub(),
            "letter": one.choice("AB"),
            "three": b"abc",
            "any": one.choice([None, 3, "word", sub()]),
            "whole": one.choice([None, 5, 1 << 40]),
            "price": decimal.Decimal(one.randint(-(10**6), 10**6)).scaleb(-2),
            "at": dt.datetime.fromtimestamp(one.randint(0, 1 << 31), dt.UTC),
            "day": dt.date(1969, 12, 31),
            "ok": one.choice([True, False]),
            "share": 0.5,
            "nothing": None,
        }
        for _ in range(count)
    ]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row that was read as it was written."""
    members = row["any"]
    any_ = None if members is None else next((v for v in members.values() if v is not None), None)
    return {**row, "marks": dict(row["marks"]), "any": any_}


def test_every_type_is_read():
    written = rows(500)
    reader = AvroReader(node(EVERYTHING))
    found, damaged = reader.read(encoded(EVERYTHING, written))
    found.validate(full=True)
    assert found.type == arrow_type(spark_type(node(EVERYTHING)))
    assert [plain(row) for row in found.to_pylist()] == written
    assert not damaged.any()


def test_damage_is_reported_per_row_and_affects_no_other():
    written = rows(40)
    payloads = encoded(EVERYTHING, written).to_pylist()
    payloads[3] = payloads[3][:-1]
    payloads[5] += b"x"
    payloads[7] = b""
    payloads[9] = None
    found, damaged = AvroReader(node(EVERYTHING)).read(pa.array(payloads, pa.binary()))
    found.validate(full=True)
    assert [number for number in range(40) if damaged[number]] == [3, 5, 7]
    read = found.to_pylist()
    for number, row in enumerate(written):
        assert read[number] is None if number in (3, 5, 7, 9) else plain(read[number]) == row


def test_slices_are_read_like_the_whole():
    payloads = encoded(EVERYTHING, rows(30))
    reader = AvroReader(node(EVERYTHING))
    assert reader.read(payloads.slice(10, 7))[0].to_pylist() == reader.read(payloads)[0].to_pylist()[10:17]


def test_only_requested_fields_are_built():
    wanted = pa.struct([("sub", pa.struct([("b", pa.list_(pa.list_(pa.int32())))])), ("id", pa.int64())])
    written = rows(20)
    found, damaged = AvroReader(node(EVERYTHING), wanted).read(encoded(EVERYTHING, written))
    assert not damaged.any()
    assert found.to_pylist() == [
        {"id": row["id"], "sub": None if row["sub"] is None else {"b": row["sub"]["b"]}} for row in written
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2^63 - 1 items
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",  # an overlong varint
        b"\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a block of -1 items, of 2^63 - 1 bytes
        b"\x80\x10" * 3000 + b"\x00",  # items that take no bytes, without end
    ],
)
def test_wrong_lengths_in_a_payload_are_damage(payload):
    reader = AvroReader(node({"type": "array", "items": "null"}))
    found, damaged = reader.read(pa.array([payload, b"\x02\x00"], pa.binary()))
    assert damaged.tolist() == [True, False]
    assert found.to_pylist() == [None, [None]]


def test_random_bytes_give_valid_arrays():
    one = random.Random(11)
    reader = AvroReader(node(EVERYTHING))
    valid = encoded(EVERYTHING, rows(20)).to_pylist()
    for _ in range(100):
        payloads = []
        for payload in valid:
            mutated = bytearray(payload)
            for _ in range(one.randint(0, 3)):
                mutated[one.randrange(len(mutated))] = one.randrange(256)
            payloads.append(bytes(mutated))
        found, _ = reader.read(pa.array(payloads, pa.binary()))
        found.validate(full=True)
