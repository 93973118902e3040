"""A topic's registered schema as a tree of nodes.

Avro and JSON schemas are registered as Avro definitions, the others by their type alone. A pair is a record
with the fields ``key`` and ``value``.
"""

import json
from collections.abc import Mapping
from typing import Any

from geminga.errors import IncompatibleSchema
from geminga.schema.key_value import KeyValueEncodingType, encoding_of, parts_of
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.payloads.nodes import NO_DEFAULT, Definition, SchemaField, SchemaNode, check_size


def definition_of(info: SchemaInfo) -> Definition:
    """Return the tree of a schema. Raises `IncompatibleSchema` for damaged, recursive, unknown ones."""
    try:
        found = _of(info)
        check_size(found.root)
        return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        name = SchemaType(info.type).name if info.type in set(SchemaType) else str(info.type)
        raise IncompatibleSchema(
            f"the {name} schema {str(info.name)!r} can't be read: {type(error).__name__}: {error}"
        ) from error


def _of(info: SchemaInfo) -> Definition:
    if info.type == SchemaType.AVRO:
        return Definition("avro", _Avro().node(json.loads(info.data), ""), info)
    if info.type == SchemaType.JSON:
        return Definition("json", _Avro().node(json.loads(info.data), ""), info)
    if info.type == SchemaType.PROTOBUF_NATIVE:
        raise IncompatibleSchema(
            "fields of Protobuf messages are no columns: leave valueSchema out; Spark's from_protobuf and "
            "to_protobuf, of its package spark-protobuf, convert the column value"
        )
    if info.type == SchemaType.KEY_VALUE:
        parts = tuple(_of(part) for part in parts_of(info))
        names = ("key", "value")
        fields = tuple(SchemaField(name, part.root) for name, part in zip(names, parts, strict=True))
        separated = encoding_of(info) is KeyValueEncodingType.SEPARATED
        return Definition("pair", SchemaNode("record", fields=fields), info, parts=parts, separated=separated)
    if info.type not in _PLAIN:
        raise IncompatibleSchema(f"schemas of type {info.type} are not read by columns")
    return Definition("plain", _PLAIN[info.type], info)


_PLAIN: Mapping[int, SchemaNode] = {
    SchemaType.BYTES: SchemaNode("bytes"),
    SchemaType.NONE: SchemaNode("bytes"),
    SchemaType.STRING: SchemaNode("string"),
    SchemaType.BOOLEAN: SchemaNode("boolean"),
    SchemaType.INT8: SchemaNode("int8"),
    SchemaType.INT16: SchemaNode("int16"),
    SchemaType.INT32: SchemaNode("int"),
    SchemaType.INT64: SchemaNode("long"),
    SchemaType.FLOAT: SchemaNode("float"),
    SchemaType.DOUBLE: SchemaNode("double"),
    SchemaType.DATE: SchemaNode("long", "timestamp-millis"),
    SchemaType.TIMESTAMP: SchemaNode("long", "timestamp-millis"),
    SchemaType.TIME: SchemaNode("long"),
    SchemaType.INSTANT: SchemaNode("instant", "timestamp-micros"),
    SchemaType.LOCAL_DATE: SchemaNode("long", "date"),
    SchemaType.LOCAL_TIME: SchemaNode("long"),
    SchemaType.LOCAL_DATE_TIME: SchemaNode("date-time", "local-timestamp-micros"),
}
"""Kinds besides Avro's: ``int8`` and ``int16``, ``instant`` (seconds and nanoseconds), ``date-time`` (days
and nanoseconds)."""

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_LOGICAL = {
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "decimal": ("bytes", "fixed"),
}
"""Logical types that Spark has a type for, by the types they annotate; others are ignored."""


class _Avro:
    """Reads one Avro definition."""

    def __init__(self) -> None:
        self.known: dict[str, SchemaNode | None] = {}
        """Named types; None while one is being parsed."""

    def node(self, schema: Any, namespace: str) -> SchemaNode:
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if isinstance(schema, list):
            branches = tuple(self.node(branch, namespace) for branch in schema)
            if not branches:
                raise ValueError("a union has no branches")
            return SchemaNode("union", branches=branches)
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.node(kind, namespace)
        if kind == "array":
            return SchemaNode("array", branches=(self.node(schema["items"], namespace),))
        if kind == "map":
            return SchemaNode("map", branches=(self.node(schema["values"], namespace),))
        if kind in ("record", "error", "enum", "fixed"):
            return self._defined(kind, schema, namespace)
        if kind in _PRIMITIVES:
            return _logical(SchemaNode(kind), schema)
        return self._named(kind, namespace)

    def _named(self, name: str, namespace: str) -> SchemaNode:
        if name in _PRIMITIVES:
            return SchemaNode(name)
        for full in (name, f"{namespace}.{name}") if "." not in name else (name,):
            if full in self.known:
                found = self.known[full]
                if found is None:
                    raise ValueError(f"{full} contains itself, which Spark has no type for")
                return found
        raise ValueError(f"{name!r} is not defined")

    def _defined(self, kind: str, schema: dict[str, Any], namespace: str) -> SchemaNode:
        name = schema["name"]
        namespace = schema.get("namespace", namespace) or ""
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        namespace = full.rpartition(".")[0]
        if kind == "enum":
            node = SchemaNode("enum", symbols=tuple(map(str, schema["symbols"])))
        elif kind == "fixed":
            size = int(schema["size"])
            if not 0 <= size < 1 << 31:
                raise ValueError(f"{full} has the size {size}")
            node = _logical(SchemaNode("fixed", size=size), schema)
        else:
            self.known[full] = None
            fields = tuple(self._field(field, namespace) for field in schema["fields"])
            names = [field.name for field in fields]
            if len(set(names)) < len(names):
                raise ValueError(f"{full} has a field twice")
            node = SchemaNode("record", fields=fields)
        self.known[full] = node
        return node

    def _field(self, schema: dict[str, Any], namespace: str) -> SchemaField:
        node = self.node(schema["type"], namespace)
        # pulsar-client writes "default": null beside types without null, where it has no meaning.
        default = schema.get("default", NO_DEFAULT)
        return SchemaField(str(schema["name"]), node, default, tuple(map(str, schema.get("aliases") or ())))


def _logical(node: SchemaNode, schema: dict[str, Any]) -> SchemaNode:
    name = schema.get("logicalType")
    if node.kind not in _LOGICAL.get(str(name), ()):
        return node
    if name != "decimal":
        return SchemaNode(node.kind, str(name), size=node.size)
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 38):
        return node
    if node.kind == "fixed" and 10**precision > 1 << (8 * node.size - 1 if node.size else 0):
        return node  # as in Avro's own library, a logical type that its bytes can't hold is ignored
    return SchemaNode(node.kind, "decimal", size=node.size, precision=precision, scale=scale)
