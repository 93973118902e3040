"""Parsing of commands by protobuf, with checks that they are known and complete and their text is UTF-8."""

from functools import cache
from typing import Any, Final

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from geminga.errors import ProtocolError
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import check_text, excerpt, holds_text, missing_fields

_BODY_FIELDS: Final[dict[int, str]] = {
    field.number: field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.number != pb.BaseCommand.TYPE_FIELD_NUMBER
}
"""Number of a command's type to the name of its body: the numbers are the same (framing.md 1.1)."""


def parse_command(data: bytes) -> pb.BaseCommand:
    """Return a complete and known command. Raises `ProtocolError` naming the fault for anything else."""
    try:
        command = pb.BaseCommand.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"a command of {len(data)} bytes is no protobuf: {excerpt(data)}") from error
    kind = command.type
    name = _BODY_FIELDS.get(kind)
    if name is None or not command.HasField(name):
        raise _bodiless(command, data)
    try:
        command.SerializeToString()  # finds missing fields in less than half of the time of IsInitialized
    except EncodeError:
        if not command.HasField("type"):
            raise _bodiless(command, data) from None
        raise ProtocolError(f"a {type_name(kind)} command lacks {missing_fields(command)}") from None
    if _holds_text(kind):
        check_text(getattr(command, name), name, ProtocolError)
    return command


def _bodiless(command: pb.BaseCommand, data: bytes) -> ProtocolError:
    if not command.HasField("type"):
        fields: Any = UnknownFieldSet(command)
        unknown = [field.data for field in fields if field.field_number == pb.BaseCommand.TYPE_FIELD_NUMBER]
        what = f"a command of the unknown type {unknown[-1]}" if unknown else "a command without a type"
        return ProtocolError(f"{what} came in: {excerpt(data)}")
    return ProtocolError(f"a {type_name(command.type)} command came without its body: {excerpt(data)}")


@cache
def _holds_text(kind: int) -> bool:
    return holds_text(getattr(pb.BaseCommand(), _BODY_FIELDS[kind]).DESCRIPTOR)


def type_name(number: int) -> str:
    """Return the type of a command as Pulsar spells it."""
    return pb.BaseCommand.Type.Name(number)
