"""Protobuf messages in binary encoding, with the definition of Java's ``ProtobufNativeSchema``."""

import base64
import json
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError, Message

from geminga.errors import CorruptPayload
from geminga.schema.schema import Schema, SchemaType

M = TypeVar("M", bound=Message)


class ProtobufNativeSchema(Schema[M]):
    """Schema of a generated Protobuf message class. Raises `TypeError` for any other class."""

    nulls_are_none = True

    def __init__(self, record_cls: type[M]) -> None:
        if not (isinstance(record_cls, type) and issubclass(record_cls, Message)):
            raise TypeError(f"record_cls must be a Protobuf message class, not {record_cls!r}")
        super().__init__(
            record_cls, SchemaType.PROTOBUF_NATIVE, _definition(record_cls.DESCRIPTOR), "PROTOBUF_NATIVE"
        )

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        data: bytes = obj.SerializeToString()
        return data

    def decode(self, data: bytes) -> M:
        """Return the message. Raises `CorruptPayload` if the bytes cannot be parsed."""
        try:
            value: M = self._record_cls.FromString(data)
            return value
        except DecodeError as error:
            raise CorruptPayload(f"not a {self._record_cls.__name__}: {error}") from error

    def __str__(self) -> str:
        return f"ProtobufNativeSchema({self._record_cls.__name__})"


def _definition(descriptor: Any) -> dict[str, str]:
    files = descriptor_pb2.FileDescriptorSet()
    _collect(descriptor.file, set(), files)
    return {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": descriptor.full_name,
        "rootFileDescriptorName": descriptor.file.name,
    }


def _collect(file: Any, seen: set[str], files: descriptor_pb2.FileDescriptorSet) -> None:
    """Add a file after the files that it imports, each once."""
    if file.name in seen:
        return
    seen.add(file.name)
    for dependency in file.dependencies:
        _collect(dependency, seen, files)
    file.CopyToProto(files.file.add())


def message_class_of(definition: bytes) -> type[Message]:
    """Return the message class of a topic's definition, created in a separate descriptor pool.

    Raises `ValueError` or `TypeError` for any other definition.
    """
    from google.protobuf import descriptor_pool, message_factory

    described = json.loads(definition)
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(described["fileDescriptorSet"]))
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(described["rootMessageTypeName"]))
    except (DecodeError, KeyError, TypeError) as error:
        raise ValueError(f"no Protobuf definition: {type(error).__name__}: {error}") from error
