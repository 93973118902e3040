"""Avro: values as Avro binary, read with the writer's schema.

Needs fastavro (``pip install 'geminga[avro]'``).
"""

from __future__ import annotations

import contextlib
import io
import json
from enum import Enum
from typing import Any, overload

from geminga._util.values import V
from geminga.errors import CorruptPayload, IncompatibleSchema, OperationNotSupported
from geminga.schema.avro_encoding import encoder_of
from geminga.schema.definition import Record
from geminga.schema.models import Form, model_of
from geminga.schema.schema import SchemaInfo, SchemaType
from geminga.schema.versions import Reader, VersionedSchema


class AvroSchema(VersionedSchema[V]):
    """Schema of a `Record` class, a dataclass, a Pydantic model, a named tuple or a typed dict (see
    `geminga.schema.models`), or of an Avro definition with dicts as values.

    A message written with another version of the topic's schema is resolved by Avro's rules: fields that
    the writer lacked get their defaults, removed fields are left out, numbers are widened. The outermost
    records of writer and reader may have different names.

    Raises `OperationNotSupported` without fastavro, and `TypeError` if neither argument is given.
    """

    @overload
    def __init__(self, record_cls: type[V], schema_definition: dict[str, Any] | None = None) -> None: ...

    @overload
    def __init__(
        self: AvroSchema[dict[str, Any]], record_cls: None, schema_definition: dict[str, Any]
    ) -> None: ...

    def __init__(self, record_cls: type | None, schema_definition: dict[str, Any] | None = None) -> None:
        if record_cls is None and schema_definition is None:
            raise TypeError("AvroSchema needs a record class or a schema definition")
        try:
            import fastavro
            from fastavro.schema import SchemaParseException
        except ImportError:
            raise OperationNotSupported(
                "AvroSchema needs fastavro: pip install 'geminga[avro]' (or use JsonSchema)"
            ) from None
        self._fastavro = fastavro
        self._model = None
        definition: Any = schema_definition
        if isinstance(record_cls, type) and issubclass(record_cls, Record):
            definition = record_cls.schema()
        elif record_cls is not None:
            self._model = model_of(record_cls, Form.AVRO)
            record_cls, definition = self._model.value_type, self._model.definition
        self._definition = definition
        try:
            self._parsed = fastavro.parse_schema(definition)
        except (SchemaParseException, KeyError, ValueError) as error:
            raise ValueError(f"the Avro definition is not valid: {type(error).__name__}: {error}") from error
        self._encoder = encoder_of(self._parsed)
        super().__init__(record_cls, SchemaType.AVRO, definition, "AVRO")

    def encode(self, obj: Any) -> bytes:
        """Return the payload. Raises `TypeError` for a value of another type than the record class,
        `ValueError` for anything but a dict if the definition is a record's, and fastavro's errors for a
        value that does not fit.
        """
        if self._record_cls is not None:
            self._validate_object_type(obj)
        elif not isinstance(obj, dict) and _is_record(self._definition):
            raise ValueError(f"AvroSchema over a definition takes a dict, not a {type(obj).__name__}")
        value = obj if self._model is None else self._model.to_plain(obj)
        if self._encoder is not None:
            out = bytearray()
            with contextlib.suppress(Exception):  # fastavro encodes the value, or says what is wrong
                self._encoder(value, out)
                return bytes(out)
        buffer = io.BytesIO()
        plain = _avro_value(value)
        self._fastavro.schemaless_writer(buffer, self._parsed, plain)
        return buffer.getvalue()

    def encode_dict(self, d: dict[str, Any]) -> dict[str, Any]:
        """Return a dict in the form for Avro: nested records as dicts, enumerations by their names."""
        return {name: _avro_value(value) for name, value in d.items()}

    def decode(self, data: bytes) -> V:
        """Return the value of a payload written with this schema. Raises `CorruptPayload`."""
        value: V = self._decode(data, self._parsed, self._parsed)
        return value

    def _decode(self, data: bytes, writer: Any, reader: Any) -> Any:
        buffer = io.BytesIO(data)
        try:
            value: Any = self._fastavro.schemaless_reader(buffer, writer, reader)
        except self._fastavro.read.SchemaResolutionError as error:
            raise IncompatibleSchema(f"{self} cannot read what was written: {error}") from error
        except Exception as error:
            raise CorruptPayload(
                f"{len(data)} bytes are no value of {self}: {type(error).__name__}: {error}"
            ) from error
        if buffer.tell() != len(data):
            raise CorruptPayload(f"a value of {self} ends at byte {buffer.tell()} of {len(data)}")
        if self._model is not None:
            return self._model.from_plain(value)
        return value if self._record_cls is None else self._record_cls(**value)

    def _reader(self, writer: SchemaInfo) -> Reader:
        if writer.type != int(SchemaType.AVRO):
            raise IncompatibleSchema(
                f"{self} cannot read what was written with a schema of type {writer.type}"
            )
        if writer.data == self._schema_data:
            return self._read_own
        try:
            definition = json.loads(writer.data)
            written = self._fastavro.parse_schema(definition)
            own = self._fastavro.parse_schema(self._renamed(definition))
        except Exception as error:
            raise IncompatibleSchema(
                f"the topic's schema cannot be used: {type(error).__name__}: {error}"
            ) from error
        return lambda msg: self._decode(msg.data(), written, own)

    def _renamed(self, writer: Any) -> Any:
        """Return our definition with the writer's outermost name."""
        if not (_is_record(self._definition) and _is_record(writer)):
            return self._definition
        name = writer["name"]
        if "." not in name and writer.get("namespace"):
            name = f"{writer['namespace']}.{name}"
        aliases = [*self._definition.get("aliases", ()), name]
        return {**self._definition, "aliases": aliases}


def _is_record(definition: Any) -> bool:
    return isinstance(definition, dict) and definition.get("type") == "record"


def _avro_value(value: Any) -> Any:
    if isinstance(value, Record):
        return {name: _avro_value(getattr(value, name)) for name in value._fields}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return [_avro_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _avro_value(item) for key, item in value.items()}
    return value
