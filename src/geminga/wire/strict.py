"""Checks of the protocol that protobuf's parser does not make.

Protobuf's parser accepts a message that lacks required fields, and hands text that is not UTF-8 out as
``bytes``. These helpers close both gaps.
"""

from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from geminga.errors import PeerError
from geminga.wire.checksum import Buffer

M = TypeVar("M", bound=Message)

EXCERPT_BYTES_MAX = 32
"""Maximum bytes of a peer's data in an error message."""


def excerpt(data: Buffer) -> str:
    """The first bytes in hexadecimal, for error messages."""
    return bytes(data[:EXCERPT_BYTES_MAX]).hex() + ("..." if len(data) > EXCERPT_BYTES_MAX else "")


def parse(kind: type[M], data: bytes, what: str, error: type[PeerError]) -> M:
    """The message of class ``kind`` that ``data`` holds, with all of its required fields.

    Raises ``error``, whose text calls the data ``what``.
    """
    try:
        message = kind.FromString(data)
    except DecodeError as cause:
        raise error(f"{what} of {len(data)} bytes is no {kind.__name__}: {excerpt(data)}") from cause
    if not message.IsInitialized():
        raise error(f"{what} of {len(data)} bytes lacks {missing_fields(message)}: {excerpt(data)}")
    return message


def missing_fields(message: Any) -> str:
    """The required fields that are missing, as a list for error messages."""
    return ", ".join(message.FindInitializationErrors())


def text(value: str | bytes) -> str:
    """A string field's value; text that is not UTF-8 is read with replacement characters, as in Java."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


@cache
def holds_text(descriptor: Descriptor) -> bool:
    """Whether the message, or a message inside it, has a string field."""
    return _holds_text(descriptor, set())


def _holds_text(descriptor: Descriptor, seen: set[str]) -> bool:
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        field.type == FieldDescriptor.TYPE_STRING
        or (field.message_type is not None and _holds_text(field.message_type, seen))
        for field in descriptor.fields
    )


def check_text(message: Message, where: str, error: type[PeerError]) -> None:
    """Raise ``error`` when a string field of the message, at any depth, is not UTF-8."""
    for name, repeated, is_message in _fields_with_text(message.DESCRIPTOR):
        value = getattr(message, name)
        if type(value) is str or (is_message and not repeated and not message.HasField(name)):
            continue
        for item in value if repeated else (value,):
            if is_message:
                check_text(item, f"{where}.{name}", error)
            elif not isinstance(item, str):
                raise error(f"{where}.{name} is not UTF-8 text: {excerpt(item)}")


@cache
def _fields_with_text(descriptor: Descriptor) -> tuple[tuple[str, bool, bool], ...]:
    """Return name, whether it is repeated and whether it is a message, of each field that holds text."""
    return tuple(
        (field.name, _is_repeated(field), field.message_type is not None)
        for field in descriptor.fields
        if field.type == FieldDescriptor.TYPE_STRING
        or (field.message_type is not None and holds_text(field.message_type))
    )


def _is_repeated(field: Any) -> bool:
    # protobuf 6.31 brought the property, later versions drop the label.
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED if repeated is None else repeated)
