"""Avro: values as Avro binary, read with the schema that they were written with.

Needs fastavro (``pip install 'geminga[avro]'``).
"""

from __future__ import annotations

import io
import json
import logging
from enum import Enum
from typing import Any

from geminga.errors import OperationNotSupported, PulsarException
from geminga.schema.definition import Record
from geminga.schema.schema import Schema, SchemaType

logger = logging.getLogger("geminga")

VERSIONS_MAX = 1000
"""Writer schemas that one `AvroSchema` keeps; beyond that the oldest are asked for again."""


class AvroSchema(Schema):
    """Over a `Record` class, or over an Avro definition with dicts as values.

    A message written with another version of the topic's schema is resolved against ours: the sync
    client asks the broker for that version once. Under asyncio, where decoding must not wait, a message
    is read with our own definition.

    Raises `OperationNotSupported` without fastavro, and `TypeError` when neither argument is given.
    """

    def __init__(
        self, record_cls: type[Record] | None, schema_definition: dict[str, Any] | None = None
    ) -> None:
        if record_cls is None and schema_definition is None:
            raise TypeError("AvroSchema needs a record class or a schema definition")
        try:
            import fastavro
        except ImportError:
            raise OperationNotSupported(
                "AvroSchema needs fastavro: pip install 'geminga[avro]' (or use JsonSchema)"
            ) from None
        self._fastavro = fastavro
        definition = schema_definition if record_cls is None else record_cls.schema()
        assert definition is not None
        self._definition = definition
        self._parsed = fastavro.parse_schema(definition)
        self._writers: dict[tuple[str, str], Any] = {}
        super().__init__(record_cls, SchemaType.AVRO, definition, "AVRO")

    def encode(self, obj: Any) -> bytes:
        if self._record_cls is not None:
            self._validate_object_type(obj)
        elif not isinstance(obj, dict):
            raise TypeError(f"AvroSchema over a definition takes a dict, not a {type(obj).__name__}")
        buffer = io.BytesIO()
        self._fastavro.schemaless_writer(buffer, self._parsed, _avro_value(obj))
        return buffer.getvalue()

    def decode(self, data: bytes) -> Any:
        return self._decode(data, self._parsed)

    def decode_message(self, msg: Any) -> Any:
        return self._decode(msg.data(), self._writer_schema(msg))

    def _decode(self, data: bytes, writer: Any) -> Any:
        value: Any = self._fastavro.schemaless_reader(io.BytesIO(data), writer, self._parsed)
        return value if self._record_cls is None else self._record_cls(**value)

    def _writer_schema(self, message: Any) -> Any:
        version = message.schema_version()
        lookup = getattr(self._client, "schema_of_message", None)
        if not version or lookup is None:
            return self._parsed
        key = (message.topic_name(), version)
        parsed = self._writers.get(key)
        if parsed is None:
            parsed = self._ask(lookup, *key)
            if len(self._writers) >= VERSIONS_MAX:
                del self._writers[next(iter(self._writers))]
            self._writers[key] = parsed
        return parsed

    def _ask(self, lookup: Any, topic: str, version: str) -> Any:
        try:
            info = lookup(topic, version)
            if info is None or info.type != int(SchemaType.AVRO):
                raise PulsarException(f"{topic} has no Avro schema of version {version!r}")
            definition = json.loads(info.data)
            # Records of one topic may be called differently by writer and reader: only fields count.
            definition["name"] = self._definition["name"]
            definition.pop("namespace", None)
            if "namespace" in self._definition:
                definition["namespace"] = self._definition["namespace"]
            return self._fastavro.parse_schema(definition)
        except (PulsarException, ValueError, KeyError) as error:
            logger.warning("the writer schema %r of %s cannot be used: %s", version, topic, error)
            return self._parsed


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
