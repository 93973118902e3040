"""Validity of schema definitions, and compatibility of a new schema with a topic's versions."""

import base64
import json
from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Any

from geminga.broker.rules.avro_rules import AvroType, ComparisonBudget, NotAvro, parse, unreadable
from geminga.broker.runtime.refusal import Refused
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text

_RECORDS = frozenset((pb.Schema.Avro, pb.Schema.Json))
_EMPTY = (b"", b"null")
_ANYTHING = frozenset((getattr(pb.Schema, "None"), pb.Schema.AutoConsume))
_TRANSITIVE = "_TRANSITIVE"
"""Suffix of the strategies that check all versions."""
_PART_SIZE = Struct(">i")


def meaning(schema: pb.Schema) -> bytes:
    """Return a 16-byte hash that equivalent schema definitions share. Parses the definition.

    C++ writes ``null`` where Java writes nothing; whole numbers may be written with a fraction of zero.
    """
    data = schema.schema_data
    if data in _EMPTY:
        data = b""
    elif schema.type in _RECORDS:
        try:
            # The prefix, with which no definition begins, distinguishes normalized JSON from other text.
            data = b"\0" + json.dumps(json.loads(data, parse_float=_number), sort_keys=True).encode()
        except (ValueError, RecursionError):
            pass  # not JSON: compared as text
    return _digest(schema.type, data)


def text_digest(schema: pb.Schema) -> bytes:
    """Return a 16-byte hash that schemas of one type and text share."""
    return _digest(schema.type, schema.schema_data)


def _digest(kind: int, data: bytes) -> bytes:
    from hashlib import blake2b  # loaded here, because loading OpenSSL would delay each start

    return blake2b(b"%d:%b" % (kind, data), digest_size=16).digest()


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def check_definition(schema: pb.Schema) -> None:
    """Raise `Refused` IncompatibleSchema for an invalid definition.

    Accepts what Apache Pulsar's validator accepts: Avro definitions for Avro, Protobuf and JSON (or an
    old-style JSON schema), anything for primitive types, a pair of definitions for a pair.
    """
    problem = _definition_problem(schema)
    if problem:
        raise Refused(pb.IncompatibleSchema, f"Invalid schema definition data: {problem}")


def _definition_problem(schema: pb.Schema) -> str:
    kind, data = schema.type, schema.schema_data
    if kind in _ANYTHING:
        return ""
    if kind == pb.Schema.Json and (data == b"null" or _is_old_style(data)):
        return ""
    if kind in (pb.Schema.Avro, pb.Schema.Json, pb.Schema.Protobuf):
        try:
            parse(data)
        except NotAvro as error:
            return str(error)
        return ""
    if kind == pb.Schema.KeyValue:
        parts = _parts(schema)
        if parts is None:
            return "it is no pair of schemas"
        return _definition_problem(parts[0]) or _definition_problem(parts[1])
    if kind == pb.Schema.ProtobufNative:
        return "" if _root_message(data) else "it describes no Protobuf message"
    if data and not (kind == pb.Schema.String and data in _EMPTY):
        return f"a schema of type {_type_text(schema)} has no definition"
    return ""


def check_compatible(
    schema: pb.Schema, versions: Sequence[pb.Schema], strategy: str, *, for_consumer: bool = False
) -> None:
    """Raise `Refused` IncompatibleSchema if ``schema`` is incompatible with ``versions`` under ``strategy``.

    A consumer only has to read the stored data: it is checked as a reader.
    """
    if not versions or strategy == "ALWAYS_COMPATIBLE":
        return
    if strategy == "ALWAYS_INCOMPATIBLE":
        raise _incompatible("the strategy is ALWAYS_INCOMPATIBLE")
    if strategy in ("UNDEFINED", ""):
        strategy = "FULL"
    last = versions[-1]
    if last.type != schema.type:
        raise _incompatible(f"exists schema type {_type_text(last)}, new schema type {_type_text(schema)}")
    kind = strategy.removesuffix(_TRANSITIVE)
    reads = kind in ("BACKWARD", "FULL") or for_consumer
    is_read = kind in ("FORWARD", "FULL") and not for_consumer
    budget = ComparisonBudget()
    for old in versions if strategy.endswith(_TRANSITIVE) else versions[-1:]:
        problem = _problem(schema, old, budget, reads=reads, is_read=is_read)
        if problem:
            raise _incompatible(problem)


def _problem(new: pb.Schema, old: pb.Schema, budget: ComparisonBudget, *, reads: bool, is_read: bool) -> str:
    """Return why ``new`` cannot read the data of ``old``, or the reverse; empty if compatible."""
    if new.type != old.type:
        return f"exists schema type {_type_text(old)}, new schema type {_type_text(new)}"
    if new.type in _RECORDS:
        return _record_problem(new, old, budget, reads=reads, is_read=is_read)
    if new.type == pb.Schema.KeyValue:
        new_parts, old_parts = _parts(new), _parts(old)
        if new_parts is None or old_parts is None:
            return "the schema is no pair of schemas"
        for what, one, other in zip(("key", "value"), new_parts, old_parts, strict=True):
            found = _problem(one, other, budget, reads=reads, is_read=is_read)
            if found:
                return f"of the {what}: {found}"
        return ""
    if new.type == pb.Schema.ProtobufNative:
        written, read = _root_message(old.schema_data), _root_message(new.schema_data)
        return "" if written == read else f"the root message was {written} and is {read}"
    return ""


def _record_problem(
    new: pb.Schema, old: pb.Schema, budget: ComparisonBudget, *, reads: bool, is_read: bool
) -> str:
    try:
        ours = _avro(new)
    except NotAvro as error:
        return f"the schema is not valid: {error}"
    try:
        theirs = _avro(old)
    except NotAvro:
        return ""  # accepted before such were refused
    if ours is None or theirs is None:
        # Old-style JSON schemas: an Avro definition may follow one, but not the reverse.
        return "" if theirs is None else "an Avro definition is not followed by an old-style JSON schema"
    found = unreadable(reader=ours, writer=theirs, budget=budget) if reads else ""
    return found or (unreadable(reader=theirs, writer=ours, budget=budget) if is_read else "")


def _avro(schema: pb.Schema) -> AvroType | None:
    """Parse the definition; None for an old-style JSON schema. Raises `NotAvro`."""
    data = schema.schema_data
    if schema.type == pb.Schema.Json and (data == b"null" or _is_old_style(data)):
        return None
    return parse(data)


def _is_old_style(data: bytes) -> bool:
    """Return whether JSON describes its objects by "JSON schema", as before protocol version 13."""
    definition = _json(data)
    return isinstance(definition, dict) and definition.get("type") == "object"


def _root_message(data: bytes) -> str:
    """Return the message name of a Protobuf-native definition; empty if the definition is invalid."""
    definition = _json(data)
    if not isinstance(definition, dict):
        return ""
    name, files = definition.get("rootMessageTypeName"), definition.get("fileDescriptorSet")
    if not isinstance(name, str) or not isinstance(files, str):
        return ""
    try:
        base64.b64decode(files, validate=True)
    except ValueError:
        return ""
    return name


def _parts(schema: pb.Schema) -> tuple[pb.Schema, pb.Schema] | None:
    """Return the schemas of key and value; None if ``schema`` is not a pair (framing.md section 11)."""
    pairs: Any = schema.properties
    properties = {text(pair.key): text(pair.value) for pair in pairs}
    types: dict[str, int] = {name.upper().replace("_", ""): number for name, number in pb.Schema.Type.items()}
    types.update(BYTES=types["NONE"], BOOLEAN=types["BOOL"])
    data, place = schema.schema_data, 0
    found = []
    for part in ("key", "value"):
        try:
            (size,) = _PART_SIZE.unpack_from(data, place)
        except StructError:
            return None
        place += _PART_SIZE.size
        kind = types.get(properties.get(f"{part}.schema.type", "").replace("_", ""))
        if kind is None or not 0 <= size <= len(data) - place:
            return None
        found.append(
            pb.Schema(name="", type=kind, schema_data=data[place : place + size])  # type: ignore[arg-type]
        )
        place += size
    return (found[0], found[1]) if place == len(data) else None


def _incompatible(reason: str) -> Refused:
    return Refused(pb.IncompatibleSchema, f"Incompatible schema: {reason}")


def _type_text(schema: pb.Schema) -> str:
    return pb.Schema.Type.Name(schema.type).upper()


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
