"""Protobuf messages in their own encoding, described as Java's ``ProtobufNativeSchema`` describes them."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError, Message

from geminga.errors import CorruptPayload
from geminga.schema.schema import Schema, SchemaType


class ProtobufNativeSchema(Schema):
    """Over a generated message class. Raises `TypeError` for anything else."""

    def __init__(self, record_cls: type[Message]) -> None:
        if not (isinstance(record_cls, type) and issubclass(record_cls, Message)):
            raise TypeError(f"record_cls must be a Protobuf message class, not {record_cls!r}")
        super().__init__(
            record_cls, SchemaType.PROTOBUF_NATIVE, _definition(record_cls.DESCRIPTOR), "PROTOBUF_NATIVE"
        )

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        data: bytes = obj.SerializeToString()
        return data

    def decode(self, data: bytes) -> Any:
        """Raises `CorruptPayload` for bytes that are no such message."""
        try:
            return self._record_cls.FromString(data)
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
    """A file after all that it imports, each once."""
    if file.name in seen:
        return
    seen.add(file.name)
    for dependency in file.dependencies:
        _collect(dependency, seen, files)
    file.CopyToProto(files.file.add())
