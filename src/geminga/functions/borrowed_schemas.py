"""Schemas and records of the module ``pulsar``, for functions written for ``pulsar-client``."""

import sys
from typing import Any

from geminga.schema import AvroSchema, Schema, SchemaType


def borrowed(found: Any) -> Schema[Any] | None:
    """Return this client's schema for a schema of ``pulsar.schema``, or for a ``Record`` (as ``JsonSchema``);
    None for anything else."""
    theirs = sys.modules.get("pulsar.schema")
    if theirs is None or sys.modules.get("geminga.schema") is theirs:
        return None
    if isinstance(found, type) and issubclass(found, theirs.Record):
        found = theirs.JsonSchema(found)
    elif isinstance(found, type) and issubclass(found, theirs.Schema):
        found = found()
    if not isinstance(found, theirs.Schema):
        return None
    return _BorrowedAvro(found) if isinstance(found, theirs.AvroSchema) else _Borrowed(found)


class _Borrowed(Schema[Any]):
    def __init__(self, theirs: Any) -> None:
        info = theirs.schema_info()
        kind = SchemaType[info.schema_type().name]
        super().__init__(theirs._record_cls, kind, None, info.name(), schema_data=info.schema().encode())
        self.encode = theirs.encode  # type: ignore[method-assign]
        self.decode = theirs.decode  # type: ignore[method-assign]


class _BorrowedAvro(AvroSchema[Any]):
    """Avro schema that also decodes messages written with other versions of the schema."""

    def __init__(self, theirs: Any) -> None:
        super().__init__(None, theirs._schema)
        self._theirs_record = theirs._record_cls
        self.encode = theirs.encode  # type: ignore[method-assign]

    def _decode(self, data: bytes, writer: Any, reader: Any) -> Any:
        value = super()._decode(data, writer, reader)
        return value if self._theirs_record is None else self._theirs_record(**value)
