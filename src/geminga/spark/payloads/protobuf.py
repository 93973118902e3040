"""Reader of Protobuf payloads: decodes them by the topic's registered descriptors into Arrow arrays.

Protobuf's own library parses the payloads. Scalars without presence are never null; enumerations are their
names, or their numbers as text where they have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from geminga.schema_info import SchemaInfo
from geminga.spark.payloads.arrays import Mask
from geminga.spark.payloads.fitting import pruned
from geminga.spark.payloads.nodes import DEPTH_MAX, SchemaField, SchemaNode
from geminga.spark.payloads.types import spark_type
from geminga.spark.releases import arrow_type

_KINDS: dict[int, SchemaNode] = {
    FieldDescriptor.CPPTYPE_INT32: SchemaNode("int"),
    FieldDescriptor.CPPTYPE_INT64: SchemaNode("long"),
    FieldDescriptor.CPPTYPE_UINT32: SchemaNode("long"),
    # As Spark's from_protobuf: 20 digits hold every unsigned number.
    FieldDescriptor.CPPTYPE_UINT64: SchemaNode("fixed", "decimal", precision=20),
    FieldDescriptor.CPPTYPE_DOUBLE: SchemaNode("double"),
    FieldDescriptor.CPPTYPE_FLOAT: SchemaNode("float"),
    FieldDescriptor.CPPTYPE_BOOL: SchemaNode("boolean"),
    FieldDescriptor.CPPTYPE_ENUM: SchemaNode("enum"),
}


def node_of(info: SchemaInfo) -> SchemaNode:
    """Return the tree of a registered Protobuf schema. Raises `ValueError` for damaged and recursive ones."""
    from geminga.schema.protobuf import message_class_of

    return _record(message_class_of(info.data).DESCRIPTOR, (), {})


Known = dict[str, SchemaNode]
"""Messages already converted to nodes, by name."""


def _record(descriptor: Any, above: tuple[str, ...], known: Known) -> SchemaNode:
    if descriptor.full_name in above or len(above) > DEPTH_MAX:
        raise ValueError(f"{descriptor.full_name} contains itself, which Spark has no type for")
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        return SchemaNode("long", "timestamp-micros")
    if name not in known:
        fields = (
            SchemaField(each.name, _of_field(each, (*above, name), known)) for each in descriptor.fields
        )
        known[name] = SchemaNode("record", fields=tuple(fields))
    return known[name]


def is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _of_field(field: Any, above: tuple[str, ...], known: Known) -> SchemaNode:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        if key.cpp_type != FieldDescriptor.CPPTYPE_STRING:
            # Spark's maps of a definition have text as keys.
            pair = SchemaNode(
                "record",
                fields=(
                    SchemaField("key", _single(key, above, known)),
                    SchemaField("value", _single(value, above, known)),
                ),
            )
            return SchemaNode("array", branches=(pair,))
        return SchemaNode("map", branches=(_single(value, above, known),))
    node = _single(field, above, known)
    return SchemaNode("array", branches=(node,)) if field.is_repeated else node


def _single(field: Any, above: tuple[str, ...], known: Known) -> SchemaNode:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _record(field.message_type, above, known)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return SchemaNode("bytes" if field.type == FieldDescriptor.TYPE_BYTES else "string")
    return _KINDS[field.cpp_type]


class ProtobufReader:
    """Reads the payloads of one registered schema. ``wanted`` as for Avro."""

    def __init__(
        self,
        info: SchemaInfo,
        node: SchemaNode,
        wanted: pa.DataType | None = None,
        reader: SchemaNode | None = None,
    ) -> None:
        from geminga.schema.protobuf import message_class_of

        self.info = info
        self.message = message_class_of(info.data)
        self.node = pruned(node, wanted, reader)
        self.kind = arrow_type(spark_type(self.node))
        self.convert = _message(self.message.DESCRIPTOR, self.node)

    def read(self, payloads: pa.Array) -> tuple[pa.Array, Mask]:
        """Return the values, null where a payload is null or damaged, and the mask of the damaged."""
        values: list[Any] = []
        damaged = np.zeros(len(payloads), np.bool_)
        parse, convert = self.message.FromString, self.convert
        for number, payload in enumerate(payloads.to_pylist()):
            try:
                values.append(None if payload is None else convert(parse(payload)))
            except (DecodeError, ValueError, OverflowError):
                values.append(None)
                damaged[number] = True
        return pa.array(values, self.kind), damaged


Convert = Callable[[Any], Any]


def _message(descriptor: Any, node: SchemaNode) -> Convert:
    if node.kind != "record":
        # A Timestamp: microseconds since 1970; out-of-range values wrap around, like out-of-range event
        # times.
        return lambda message: _wrapped(message.seconds * 1_000_000 + message.nanos // 1000)
    getters = [
        (field.name, _getter(descriptor.fields_by_name[field.name], field.node)) for field in node.fields
    ]

    def convert(message: Message) -> dict[str, Any]:
        return {name: get(message) for name, get in getters}

    return convert


def _getter(field: Any, node: SchemaNode) -> Convert:
    name = field.name
    if is_map(field):
        of_value = _scalar(field.message_type.fields_by_name["value"], _value_node(node))
        if node.kind == "map":
            return lambda message: [(key, of_value(one)) for key, one in getattr(message, name).items()]
        return lambda message: [
            {"key": key, "value": of_value(one)} for key, one in getattr(message, name).items()
        ]
    if field.is_repeated:
        of_item = _scalar(field, node.branches[0])
        return lambda message: [of_item(one) for one in getattr(message, name)]
    of_field = _scalar(field, node)
    if field.has_presence:
        return lambda message: of_field(getattr(message, name)) if message.HasField(name) else None
    return lambda message: of_field(getattr(message, name))


def _value_node(node: SchemaNode) -> SchemaNode:
    inner = node.branches[0]
    if node.kind == "map":
        return inner
    value = inner.field("value")
    return inner if value is None else value.node


def _scalar(field: Any, node: SchemaNode) -> Convert:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _message(field.message_type, node)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value) or str(value)
    if field.type == FieldDescriptor.TYPE_STRING:
        # Where the library accepts invalid UTF-8, it returns bytes.
        return lambda value: value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
    return lambda value: value


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
