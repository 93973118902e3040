"""Encoding of values written as JSON, by a topic's schema: for the command line and the console."""

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

from geminga.schema.avro_encoding import PRIMITIVES
from geminga.schema.generic import schema_of
from geminga.schema.protobuf import message_class_of
from geminga.schema.schema import SchemaInfo, SchemaType

SHOWN_MAX: Final = 80
"""Longest value in an error, in characters."""
ENDLESS: Final = 1 << 62
"""Steps of a value whose defaults may have no end."""
_TYPES: Final = {*PRIMITIVES, "record", "error", "enum", "array", "map", "fixed"}
FAILED_STEPS: Final = 40
"""Steps as long as one in a union of records, each of which is tried, and described if it does not fit."""


def json_encoder(info: SchemaInfo | None) -> Callable[[Any], bytes]:
    """Return the function that encodes a value, as from `json.loads`, by the schema ``info`` of a topic.

    It raises `ValueError` that names the field, its value and what is allowed; fields that the schema does
    not have are refused (of a JSON schema in the outermost record only). Values of JSON schemas are checked
    if fastavro is installed and the definition is Avro's. Raises `IncompatibleSchema` for a schema that
    cannot be used, `OperationNotSupported` for Avro without fastavro.
    """
    schema = schema_of(info)
    if info is None or info.type not in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF_NATIVE):
        return schema.encode
    if info.type == SchemaType.PROTOBUF_NATIVE:
        return _protobuf_encoder(info)
    check = _check_of(info)

    def encode(value: Any) -> bytes:
        if check is not None:
            check(value)
        try:
            payload = schema.encode(value)
        except OverflowError as error:
            raise ValueError(str(error)) from None
        if info.type == SchemaType.AVRO:
            _check_kept(value, schema.decode(payload))
        return payload

    return encode


def _protobuf_encoder(info: SchemaInfo) -> Callable[[Any], bytes]:
    from google.protobuf.json_format import ParseDict, ParseError

    message_class = message_class_of(info.data)

    def encode(value: Any) -> bytes:
        if not isinstance(value, dict):
            raise ValueError(_refusal("the value", value, [message_class.DESCRIPTOR.full_name]))
        try:
            return ParseDict(value, message_class()).SerializeToString()
        except (ParseError, OverflowError, SystemError) as error:  # the last: of half characters in names
            raise ValueError(str(error)) from None

    return encode


def _check_of(info: SchemaInfo) -> Callable[[Any], None] | None:
    """Return the check of values by an Avro definition; None if there is no such check for JSON."""
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException
        from fastavro.validation import ValidationError
    except ImportError:
        return None
    # Not the compiled one of the same module: a default that contains itself ends the process there.
    validate = import_module("fastavro._validation_py").validate
    definition = json.loads(info.data or b"null")
    try:
        parsed: Any = parse_schema(definition)
    except (SchemaParseException, KeyError, ValueError, TypeError):
        return None  # a definition of another form, such as JSON Schema
    is_record = isinstance(parsed, dict) and parsed.get("type") == "record"
    fields = [each["name"] for each in parsed["fields"]] if is_record else []
    as_text = {"bytes", "fixed", "decimal"} if info.type == SchemaType.JSON else set()  # their form in JSON

    def check(value: Any) -> None:
        if is_record and isinstance(value, dict):
            for unknown in value.keys() - set(fields):
                raise ValueError(f"{unknown} is no field of {parsed['name']}; allowed: {', '.join(fields)}")
        try:
            validate(value, parsed, raise_errors=True)
        except ValidationError as error:
            found: dict[str, tuple[Any, list[str]]] = {}
            for each in error.errors:
                found.setdefault(each.field or "the value", (each.datum, []))[1].append(_kind(each.schema))
            refused = [
                _refusal(name, datum, kinds) for name, (datum, kinds) in found.items()
                if not (isinstance(datum, str) and as_text.intersection(kinds))
            ]  # fmt: skip
            if refused:
                raise ValueError("; ".join(refused)) from None

    return check


def _check_kept(value: Any, written: Any, place: str = "") -> None:
    """Raise `ValueError` for a field of ``value`` that Avro did not write, since no record has it."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name not in written:
                raise ValueError(f"{place}{name} is no field there; allowed: {', '.join(written)}")
            _check_kept(each, written[name], f"{place}{name}.")
    elif isinstance(value, list):
        for at, each in enumerate(value):
            _check_kept(each, written[at], f"{place}{at}.")


def steps_counter(info: SchemaInfo) -> Callable[[Any], int]:
    """Return the function that estimates in how many steps, of about 0.1 µs, fastavro checks and writes a
    value.

    It tries every record of a union, in it the unions of its fields, and so again for each level that it
    writes: in unions of several records the steps multiply with each level, of defaults too.
    """
    if info.type not in (SchemaType.AVRO, SchemaType.JSON):
        return lambda _value: 0
    records, defaults, by_name = 1, 0, False
    for each in _parts(json.loads(info.data or b"null")):
        kinds = each if isinstance(each, list) else [each.get(name) for name in ("type", "items", "values")]
        by_name |= any(isinstance(kind, str) and kind not in _TYPES for kind in kinds)
        if isinstance(each, list):
            records = max(records, sum(not isinstance(one, str) or one not in PRIMITIVES for one in each))
        else:
            is_map = isinstance(each.get("type"), dict) and each["type"].get("type") == "map"
            defaults += max(0, json.dumps(each.get("default")).count("{") - is_map)
    if defaults and by_name:
        return lambda _value: ENDLESS  # a record may be its own default, which ends the process in fastavro
    factor = max(2, records) ** defaults
    return lambda value: _steps(value, records, FAILED_STEPS if records > 1 else 1) * factor


def _parts(definition: Any) -> Iterator[Any]:
    """Yield the unions, types and fields of an Avro definition."""
    if isinstance(definition, list | dict):
        yield definition
    if isinstance(definition, dict):
        fields = definition.get("fields")
        definition = [definition.get(name) for name in ("type", "items", "values")]
        definition += fields if isinstance(fields, list) else ()
    for each in definition if isinstance(definition, list) else ():
        yield from _parts(each)


def _steps(value: Any, records: int, weight: int, depth: int = 1) -> int:
    inside: Any = value if isinstance(value, list) else ()
    if isinstance(value, dict):
        inside, weight = value.values(), weight * records
    return weight * depth + sum(_steps(each, records, weight, depth + 1) for each in inside)


def _kind(schema: Any) -> str:
    """Return the short name of an Avro type."""
    if isinstance(schema, list):
        return " or ".join(map(_kind, schema))
    if not isinstance(schema, dict):
        return str(schema)
    if "symbols" in schema:
        return " or ".join(schema["symbols"])
    return str(schema.get("name") or schema.get("logicalType") or _kind(schema["type"]))


def _refusal(name: str, value: Any, kinds: list[str]) -> str:
    return f"{name}={shown(value)} is not allowed; allowed: {', '.join(kinds)}"


def shown(value: Any) -> str:
    """Return a value as JSON for an error, shortened."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
