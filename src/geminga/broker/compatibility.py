"""Whether a new schema fits the ones that a topic has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from geminga.broker.refusal import Refused
from geminga.wire.proto import pulsar_wire_pb2 as pb

_RECORDS = frozenset((pb.Schema.Avro, pb.Schema.Json))
_EMPTY = (b"", b"null")
_TRANSITIVE = "_TRANSITIVE"


def same_schema(left: pb.Schema, right: pb.Schema) -> bool:
    """Whether two schemas say the same. C++ writes ``null`` where Java writes nothing."""
    if left.type != right.type:
        return False
    if left.schema_data == right.schema_data:
        return True
    if left.schema_data in _EMPTY and right.schema_data in _EMPTY:
        return True
    if left.type in _RECORDS:
        first, second = _parse(left.schema_data), _parse(right.schema_data)
        return first is not None and first == second
    return False


def check_compatible(
    schema: pb.Schema, versions: Sequence[pb.Schema], strategy: str, *, for_consumer: bool = False
) -> None:
    """Raises `Refused` IncompatibleSchema when ``schema`` does not fit ``versions`` under ``strategy``.

    A consumer only has to be able to read what was written: it is checked as a reader.
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
    if schema.type not in _RECORDS:
        return
    new = _parse(schema.schema_data)
    if new is None:
        raise _incompatible("the schema's data is no JSON")
    for old_schema in versions if strategy.endswith(_TRANSITIVE) else versions[-1:]:
        old = _parse(old_schema.schema_data)
        if old is None:
            continue
        kind = strategy.removesuffix(_TRANSITIVE)
        if kind in ("BACKWARD", "FULL") or for_consumer:
            _check_readable(reader=new, writer=old)
        if kind in ("FORWARD", "FULL") and not for_consumer:
            _check_readable(reader=old, writer=new)


def _incompatible(reason: str) -> Refused:
    return Refused(pb.IncompatibleSchema, f"Incompatible schema: {reason}")


def _type_text(schema: pb.Schema) -> str:
    return pb.Schema.Type.Name(schema.type).upper()


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


# --- Avro's rules for reading what another schema wrote ---
_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_DEPTH_MAX = 100


def _check_readable(*, reader: Any, writer: Any) -> None:
    try:
        problem = _Reading(reader, writer).problem(reader, writer, "", 0)
    except (TypeError, AttributeError) as error:
        # A JSON value of the wrong kind somewhere: whatever it is, it is no Avro schema.
        raise _incompatible(f"not an Avro schema: {error}") from error
    if problem:
        raise _incompatible(problem)


class _Reading:
    """Compares two parsed Avro schemas; named types are looked up where they were defined."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader_names: dict[str, Any] = {}
        self._writer_names: dict[str, Any] = {}
        _collect(reader, self._reader_names, 0)
        _collect(writer, self._writer_names, 0)
        self._compared: set[tuple[str, str]] = set()

    def problem(self, reader: Any, writer: Any, where: str, depth: int) -> str:
        """Why data of ``writer`` cannot be read as ``reader``; empty when it can."""
        if depth > _DEPTH_MAX:
            return f"{where or 'the schema'} is nested more than {_DEPTH_MAX} deep"
        if isinstance(writer, list):
            for branch in writer:
                found = self.problem(reader, branch, where, depth + 1)
                if found:
                    return found
            return ""
        if isinstance(reader, list):
            problems = [self.problem(branch, writer, where, depth + 1) for branch in reader]
            return "" if "" in problems else f"{where or 'a union'} does not take {_name_of(writer)}"
        reader, writer = self._resolve(reader, self._reader_names), self._resolve(writer, self._writer_names)
        reader_type, writer_type = _name_of(reader), _name_of(writer)
        if reader_type != writer_type:
            if reader_type in _PROMOTIONS.get(writer_type, ()):
                return ""
            return f"{where or 'the schema'} was {writer_type} and is read as {reader_type}"
        if reader_type in ("record", "error"):
            return self._record_problem(reader, writer, where, depth)
        if reader_type == "array":
            return self.problem(reader.get("items"), writer.get("items"), f"{where}[]", depth + 1)
        if reader_type == "map":
            return self.problem(reader.get("values"), writer.get("values"), f"{where}{{}}", depth + 1)
        if reader_type == "enum":
            missing = set(writer.get("symbols", ())) - set(reader.get("symbols", ()))
            if missing and "default" not in reader:
                return f"{where or 'an enum'} lacks the symbols {sorted(missing)}"
        if reader_type == "fixed" and reader.get("size") != writer.get("size"):
            return f"{where or 'a fixed'} has another size"
        return ""

    def _record_problem(self, reader: Any, writer: Any, where: str, depth: int) -> str:
        pair = (str(reader.get("name")), str(writer.get("name")))
        if pair in self._compared:
            return ""
        self._compared.add(pair)
        written = {field.get("name"): field for field in writer.get("fields", ()) if isinstance(field, dict)}
        for field in reader.get("fields", ()):
            if not isinstance(field, dict):
                return f"{where or 'the schema'} has a field that is no object"
            names = [field.get("name"), *field.get("aliases", ())]
            match = next((written[name] for name in names if name in written), None)
            path = f"{where}.{field.get('name')}" if where else str(field.get("name"))
            if match is None:
                if "default" not in field:
                    return f"the field {path} is missing in what was written and has no default"
                continue
            found = self.problem(field.get("type"), match.get("type"), path, depth + 1)
            if found:
                return found
        return ""

    @staticmethod
    def _resolve(schema: Any, names: dict[str, Any]) -> Any:
        if isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)):
            return schema["type"]
        if isinstance(schema, str):
            return names.get(schema, names.get(schema.rpartition(".")[2], schema))
        return schema


def _name_of(schema: Any) -> str:
    return str(schema.get("type")) if isinstance(schema, dict) else str(schema)


def _collect(schema: Any, names: dict[str, Any], depth: int) -> None:
    if depth > _DEPTH_MAX:
        return
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, names, depth + 1)
    elif isinstance(schema, dict):
        name = schema.get("name")
        if schema.get("type") in ("record", "error", "enum", "fixed") and isinstance(name, str):
            names[name] = schema
        for key in ("type", "items", "values"):
            _collect(schema.get(key), names, depth + 1)
        for field in schema.get("fields", ()) if isinstance(schema.get("fields"), list) else ():
            if isinstance(field, dict):
                _collect(field.get("type"), names, depth + 1)
