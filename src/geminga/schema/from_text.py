"""Encoding of values written as texts, and of schemas, as Apache Pulsar's REST publishing takes them."""

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

from geminga.errors import IncompatibleSchema
from geminga.schema.avro_json import value_reader
from geminga.schema.from_json import json_encoder, steps_counter
from geminga.schema.generic import schema_of
from geminga.schema.key_value import KeyValueEncodingType, KeyValueSchema, encoding_of, parts_of
from geminga.schema.primitives import Int64Schema
from geminga.schema.schema import Schema, SchemaInfo, SchemaType
from geminga.schema.schema import from_wire as from_wire
from geminga.schema.schema import to_wire as to_wire

VALUE_STEPS_MAX: Final = 2_000_000
"""Maximum steps (of about 0.1 µs) that one Avro value may take: nothing else may run meanwhile."""
STEPS_MAX: Final = 10_000_000
"""Maximum steps that the Avro values of one encoder may take together."""
_STEPS_PER_BYTE: Final = 2
"""Steps for each value and byte of its definition, whose fields are gone through for each value."""
Encoder = Callable[[str], bytes]
"""Returns the payload of a text. Raises `ValueError` or `TypeError` for one that does not fit."""


def _whole(text: str) -> int:
    if not re.fullmatch("[+-]?[0-9]+", text):
        raise ValueError(f"{text[:80]!r} is not a whole number")
    return int(text)


def _decimal(text: str) -> float:
    if "_" in text:  # Python allows it within numbers
        raise ValueError(f"{text[:80]!r} is not a number")
    return float(text)


_VALUES: Final[dict[int, Callable[[str], Any]]] = {
    **dict.fromkeys((SchemaType.INT8, SchemaType.INT16, SchemaType.INT32, SchemaType.INT64), _whole),
    **dict.fromkeys((SchemaType.FLOAT, SchemaType.DOUBLE), _decimal),
    SchemaType.BOOLEAN: lambda text: text.lower() == "true",
    SchemaType.INSTANT: dt.datetime.fromisoformat,
    SchemaType.LOCAL_DATE: dt.date.fromisoformat,
    SchemaType.LOCAL_TIME: dt.time.fromisoformat,
    SchemaType.LOCAL_DATE_TIME: dt.datetime.fromisoformat,
}
_MILLISECONDS: Final = frozenset((SchemaType.TIME, SchemaType.TIMESTAMP))
_TEXTS: Final = frozenset((SchemaType.NONE, SchemaType.BYTES, SchemaType.STRING))
_SUPPORTED: Final = _VALUES.keys() | _MILLISECONDS | _TEXTS | {SchemaType.JSON, SchemaType.AVRO}


def info_of_texts(key_schema: str, value_schema: str) -> SchemaInfo:
    """Return the schema of two JSON objects with ``type``, ``schema`` (base64) and ``properties``; without
    ``value_schema`` values are strings, with ``key_schema`` it is a pair's. Raises `ValueError` for others,
    `IncompatibleSchema` for a type whose values have no text here."""
    value = _described(value_schema or '{"type": "STRING", "properties": {"__charset": "UTF-8"}}')
    if not key_schema:
        return value.schema_info()
    return KeyValueSchema(_described(key_schema), value, KeyValueEncodingType.SEPARATED).schema_info()


def _described(text: str) -> Schema:
    try:
        found = json.loads(text)
        kind = SchemaType.NONE if found["type"] == "BYTES" else SchemaType[found["type"]]
        data = base64.b64decode(found.get("schema") or "", validate=True)
        properties = tuple((str(name), str(value)) for name, value in (found.get("properties") or {}).items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{text[:200]} is no schema: give type, schema (the definition in base64) and properties "
            f"({type(error).__name__}: {error})"
        ) from None
    _check_kind(kind)
    return Schema(object, kind, None, kind.name, schema_data=data, properties=properties)


def _check_kind(kind: int) -> None:
    if kind not in _SUPPORTED:
        raise IncompatibleSchema(f"values of {SchemaType(kind).name} schemas cannot be given as text")


def text_encoders(info: SchemaInfo) -> tuple[Encoder | None, Encoder]:
    """Return the encoders of keys, for pairs alone, and of values. Raises `IncompatibleSchema` for a type
    whose values have no text here, `OperationNotSupported` for Avro without fastavro."""
    if info.type != SchemaType.KEY_VALUE:
        return None, _encoder(info)
    if encoding_of(info) is not KeyValueEncodingType.SEPARATED:
        raise IncompatibleSchema("values of KEY_VALUE schemas with INLINE cannot be given as text")
    key, value = parts_of(info)
    return _encoder(key), _encoder(value)


def _encoder(info: SchemaInfo) -> Encoder:
    kind = info.type
    _check_kind(kind)
    if kind in _TEXTS:
        return str.encode
    if kind == SchemaType.JSON:
        return lambda text: _compact(_parsed(text)).encode()
    if kind == SchemaType.AVRO:
        return _avro_encoder(info)
    if kind in _MILLISECONDS:
        return lambda text: Int64Schema().encode(_whole(text))
    encode, value_of = schema_of(info).encode, _VALUES[kind]
    return lambda text: encode(value_of(text))


def _avro_encoder(info: SchemaInfo) -> Encoder:
    """Return the encoder of Avro's JSON (`avro_json`)."""
    encode, steps_of = json_encoder(info), steps_counter(info)
    read = value_reader(json.loads(info.data))
    left = STEPS_MAX

    def encoded(text: str) -> bytes:
        nonlocal left
        value = _parsed(text) if left > 0 else None
        steps = steps_of(value)
        left -= steps + _STEPS_PER_BYTE * len(info.data)
        if steps > VALUE_STEPS_MAX or left < 0:
            raise ValueError("the values are too large or too deep to be checked here: send fewer at once")
        try:
            return encode(read(value))
        except (ValueError, TypeError):
            raise
        except Exception as error:  # fastavro's, of any type
            raise ValueError(f"no value of the schema: {type(error).__name__}: {error}") from None

    return encoded


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:80]} is larger than any number of 64 bits")
    return number


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
