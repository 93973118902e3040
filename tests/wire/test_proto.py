"""The generated module holds every field and enum value of the protocol."""

import csv
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from geminga.wire.proto import pulsar_wire_pb2 as pb

FILE = pb.DESCRIPTOR


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def message(name: str) -> Any:
    first, *rest = name.split(".")
    descriptor: Any = FILE.message_types_by_name[first]
    for part in rest:
        descriptor = descriptor.nested_types_by_name[part]
    return descriptor


def enum(name: str) -> Any:
    *outer, last = name.split(".")
    return message(".".join(outer)).enum_types_by_name[last] if outer else FILE.enum_types_by_name[last]


def type_name(field: FieldDescriptor) -> str:
    other = field.message_type or field.enum_type
    if other is not None:
        return str(other.full_name).removeprefix(f"{FILE.package}.")
    return next(
        n[5:].lower() for n, v in vars(FieldDescriptor).items() if n.startswith("TYPE_") and v == field.type
    )


def test_fields(vectors):
    expected = rows(vectors / "wire_fields.tsv")
    assert len(expected) > 400
    for row in expected:
        if not row["number"]:
            assert not message(row["message"]).fields
            continue
        field = message(row["message"]).fields_by_number[int(row["number"])]
        where = f"{row['message']}.{row['name']}"
        assert field.name == row["name"], where
        assert type_name(field) == row["type"], where
        label = "repeated" if field.is_repeated else "required" if field.is_required else "optional"
        assert label == row["label"], where
        assert bool(row["packed"]) == field.is_packed, where
        if row["default"]:
            value = field.default_value
            if field.enum_type is not None:
                value = field.enum_type.values_by_number[value].name
            elif isinstance(value, bool):
                value = str(value).lower()
            assert str(value) == row["default"], where


def test_enums(vectors):
    expected = rows(vectors / "wire_enums.tsv")
    assert len(expected) > 150
    for row in expected:
        assert enum(row["enum"]).values_by_name[row["name"]].number == int(row["number"]), row


def test_a_command_s_body_has_the_number_of_its_type():
    fields = pb.BaseCommand.DESCRIPTOR.fields_by_number
    for value in enum("BaseCommand.Type").values:
        assert fields[value.number].message_type is not None, value.name


@pytest.mark.parametrize("name", ["BaseCommand", "MessageMetadata", "SingleMessageMetadata", "MessageIdData"])
def test_the_package_is_our_own(name):
    # Another copy of Pulsar's messages in the same process must not clash with ours.
    assert getattr(pb, name).DESCRIPTOR.full_name == f"{FILE.package}.{name}"
    assert FILE.package.startswith("geminga")
