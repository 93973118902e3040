"""Frames as payloads: the schema definition of a frame's columns, and its rows in the topic's format."""

import json
import re
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from geminga.errors import IncompatibleSchema, InvalidMessage
from geminga.schema.generic import schema_of
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.payloads.avro_writing import AvroWriter
from geminga.spark.payloads.definitions import definition_of
from geminga.spark.payloads.fitting import fit
from geminga.spark.payloads.json_writing import json_texts
from geminga.spark.payloads.nodes import NO_DEFAULT, Definition, SchemaField, SchemaNode
from geminga.spark.payloads.types import check_readable, columns_of
from geminga.spark.releases import arrow_type
from geminga.spark.schema import same_name

_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_FORMS: dict[T.DataType, tuple[Any, SchemaNode]] = {
    T.BinaryType(): ("bytes", SchemaNode("bytes")),
    T.BooleanType(): ("boolean", SchemaNode("boolean")),
    T.ByteType(): ("int", SchemaNode("int8")),
    T.ShortType(): ("int", SchemaNode("int16")),
    T.IntegerType(): ("int", SchemaNode("int")),
    T.LongType(): ("long", SchemaNode("long")),
    T.FloatType(): ("float", SchemaNode("float")),
    T.DoubleType(): ("double", SchemaNode("double")),
    T.StringType(): ("string", SchemaNode("text")),
    T.NullType(): ("null", SchemaNode("null")),
    T.DateType(): ({"type": "int", "logicalType": "date"}, SchemaNode("string", "date")),
    T.TimestampType(): (
        {"type": "long", "logicalType": "timestamp-micros"}, SchemaNode("long", "timestamp-seconds")
    ),
    T.TimestampNTZType(): (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        SchemaNode("string", "local-timestamp-micros"),
    ),
}  # fmt: skip
"""Avro definitions of types, and their nodes for JSON without a schema: there a time may be a number of
seconds, a date may not, and any value is text."""


def avro_definition(schema: T.StructType, name: str, namespace: str = "") -> dict[str, Any]:
    """Return the Avro definition of rows of ``schema``.

    Names are those of Spark's ``to_avro``. Every field is a union with null and has null as its default,
    whether the column can be null or not: frames of successive queries differ in that, and later schemas may
    add and drop optional fields. Raises `IncompatibleSchema` naming a column that Avro can't represent.
    """
    full = f"{namespace}.{name}" if namespace else name
    fields: list[dict[str, Any]] = []
    for each in schema.fields:
        if not _AVRO_NAME.match(each.name):
            raise IncompatibleSchema(
                f"column {each.name!r} can't be a field of a schema: names are made of letters, digits and _"
            )
        kind = _optional(_defined(each.dataType, each.name, full))
        fields.append({"name": each.name, "type": kind, "default": None})
    described: dict[str, Any] = {"type": "record", "name": name, "fields": fields}
    return {**described, "namespace": namespace} if namespace else described


def _defined(kind: T.DataType, name: str, namespace: str) -> Any:
    if isinstance(kind, T.StructType):
        return avro_definition(kind, name, namespace)
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": _optional(_defined(kind.elementType, name, namespace))}
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return {"type": "map", "values": _optional(_defined(kind.valueType, name, namespace))}
    if isinstance(kind, T.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if kind not in _FORMS:
        raise _not_representable(kind, name)
    return _FORMS[kind][0]


def _not_representable(kind: T.DataType, name: str) -> IncompatibleSchema:
    advice = "use STRING, with a cast"
    if isinstance(kind, T.MapType):
        advice = "keys of maps must be strings: use transform_keys(), or map_entries() for an array"
    elif kind.typeName() == "variant":
        advice = "use STRING, with to_json() or parse_json()"
    return IncompatibleSchema(f"column {name!r}: no schema can represent {kind.simpleString()}; {advice}")


def _optional(defined: Any) -> Any:
    return defined if defined == "null" else ["null", defined]


def node_of_type(kind: T.DataType, name: str = "value") -> SchemaNode:
    """Return the node whose JSON Spark's own ``from_json`` reads as ``kind``.

    Raises `IncompatibleSchema` naming the column, ``name`` or a field, for a type that has none.
    """
    if isinstance(kind, T.StructType):
        return SchemaNode(
            "record", fields=tuple(SchemaField(f.name, node_of_type(f.dataType, f.name)) for f in kind.fields)
        )
    if isinstance(kind, T.ArrayType):
        return SchemaNode("array", branches=(node_of_type(kind.elementType, name),))
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return SchemaNode("map", branches=(node_of_type(kind.valueType, name),))
    if isinstance(kind, T.DecimalType):
        return SchemaNode("bytes", "decimal", precision=kind.precision, scale=kind.scale)
    if kind not in _FORMS:
        raise _not_representable(kind, name)
    return _FORMS[kind][1]


def frame_schema(schema: T.StructType, value_schema: str, name: str, namespace: str) -> SchemaInfo:
    """Return the schema to register for a frame whose payload columns are ``schema``."""
    return SchemaInfo(
        type=int(SchemaType[value_schema]),
        name=name,
        data=json.dumps(avro_definition(schema, name, namespace)).encode(),
    )


class PayloadWriter:
    """Encodes rows of a frame as payloads of one schema; ``schema``: the frame's payload columns.

    Raises `IncompatibleSchema` naming a column that doesn't fit.
    """

    def __init__(self, info: SchemaInfo, schema: T.StructType) -> None:
        self.info = info
        self.definition = definition_of(info)
        _check_writable(self.definition)
        root = self.definition.root.inner
        self.fields = root.fields if root.kind == "record" else (SchemaField("value", self.definition.root),)
        columns = columns_of(self.definition)
        check_readable(schema, columns, "")
        self.sources: list[tuple[SchemaField, int]] = []
        """Fields with the indices of their columns in the frame, as far as it has them."""
        for field in self.fields:
            source = same_name(schema.names, field.name)
            if source is None and field.default is NO_DEFAULT and not _is_optional(field.node):
                raise IncompatibleSchema(
                    f"the topic's schema requires the field {field.name!r}, and the frame has no such column"
                )
            if source is not None:
                self.sources.append((field, schema.names.index(source)))
        used = {column for _, column in self.sources}
        unused = [name for number, name in enumerate(schema.names) if number not in used]
        if unused:
            raise IncompatibleSchema(
                f"the topic's schema has no field for the column {unused[0]!r}; it has "
                f"{', '.join(columns.names)}"
            )
        self.wanted = pa.struct([pa.field(f.name, arrow_type(f.dataType)) for f in columns.fields])

    def write(self, columns: list[pa.Array], count: int) -> pa.Array:
        """Return the payloads of ``count`` rows, given the frame's payload columns. Raises `InvalidMessage`
        naming a field whose value the schema doesn't take."""
        arrays = [columns[column] for _, column in self.sources]
        if arrays:
            frame = pa.StructArray.from_arrays(arrays, names=[field.name for field, _ in self.sources])
        else:
            frame = pa.Array.from_buffers(pa.struct([]), count, [None], 0)
        whole = fit(frame, self.wanted, SchemaNode("record", fields=self.fields))
        if not self.definition.is_record:
            return _plain(self.definition, whole.field(0))
        if self.definition.format == "json":
            return json_texts(whole, self.definition.root).cast(pa.binary())
        return AvroWriter(self.definition.root).write(whole)


def _is_optional(node: SchemaNode) -> bool:
    return node.kind == "null" or (node.kind == "union" and any(b.kind == "null" for b in node.branches))


def _check_writable(definition: Definition) -> None:
    if definition.format not in ("avro", "json", "plain") or (
        definition.format != "plain" and not definition.is_record
    ):
        raise IncompatibleSchema(
            f"the topic's schema is of type {SchemaType(definition.info.type).name}, which frames can't "
            "be written as; write the payloads as bytes in the column 'value'"
        )


def _plain(definition: Definition, values: pa.Array) -> pa.Array:
    """Return payloads of a primitive schema; null for null."""
    codec = schema_of(definition.info)
    if definition.root.kind in ("bytes", "string"):
        return values.cast(pa.binary())
    try:
        payloads = [None if value is None else codec.encode(value) for value in values.to_pylist()]
    except TypeError as error:
        raise InvalidMessage(f"column 'value': {error}") from None
    return pa.array(payloads, pa.binary())
