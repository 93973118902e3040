"""Conversion of columns from the writer's schema to the one that a query reads."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa

from geminga.errors import IncompatibleSchema
from geminga.spark.payloads.nodes import NO_DEFAULT, SchemaField, SchemaNode
from geminga.spark.schema import as_text, same_name


def fit(array: pa.Array, kind: pa.DataType, reader: SchemaNode | None = None) -> pa.Array:
    """Convert ``array`` to the Arrow type ``kind``, which `geminga.spark.payloads.types.check_readable`
    allows.

    Fields are matched by name, or by an alias in ``reader``, the newest definition; fields that the writer
    lacked have the default of ``reader``, or are null.
    """
    if array.type == kind:
        return array
    reader = None if reader is None else reader.inner
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(kind):
        return _struct(array, kind, reader)
    if pa.types.is_list(kind):
        inner = reader.branches[0] if reader is not None and reader.kind == "array" else None
        return nested(array, kind, fit(array.values, kind.value_type, inner))
    if pa.types.is_map(kind):
        inner = reader.branches[0] if reader is not None and reader.kind == "map" else None
        pairs = [fit(array.keys, kind.key_type), fit(array.items, kind.item_type, inner)]
        return nested(
            array, kind, pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
        )
    if pa.types.is_string(kind):
        return as_text(array)
    return array.cast(kind, safe=not pa.types.is_floating(kind))


def nested(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map ``array`` with other children."""
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], array.null_count, offset=array.offset, children=[child]
    )


def source_of(names: list[str], wanted: str, reader: SchemaNode | None) -> str | None:
    """Return the writer's field that a reader's field is read from."""
    found = same_name(names, wanted)
    if found is None and (field := reader_field(reader, wanted)) is not None:
        found = next((alias for alias in field.aliases if alias in names), None)
    return found


def reader_field(reader: SchemaNode | None, name: str) -> SchemaField | None:
    if reader is None or reader.inner.kind != "record":
        return None
    known = same_name([field.name for field in reader.inner.fields], name)
    return None if known is None else reader.inner.field(known)


def pruned(node: SchemaNode, wanted: pa.DataType | None, reader: SchemaNode | None) -> SchemaNode:
    """Return ``node`` without the fields that are not in ``wanted``."""
    if wanted is None:
        return node
    if node.kind == "union" and node.inner is not node:
        branches = tuple(
            branch if branch.kind == "null" else pruned(branch, wanted, reader) for branch in node.branches
        )
        return SchemaNode("union", branches=branches)
    reader = None if reader is None else reader.inner
    if node.kind == "record" and pa.types.is_struct(wanted):
        names = [field.name for field in node.fields]
        chosen = {}
        for each in wanted:
            source = source_of(names, each.name, reader)
            if source is not None:
                known = reader_field(reader, each.name)
                chosen[source] = (each.type, None if known is None else known.node)
        fields = tuple(
            type(field)(field.name, pruned(field.node, *chosen[field.name]), field.default, field.aliases)
            for field in node.fields
            if field.name in chosen
        )
        return SchemaNode("record", fields=fields)
    if (node.kind, wanted.id) in (("array", pa.lib.Type_LIST), ("map", pa.lib.Type_MAP)):
        items = reader.branches[0] if reader is not None and reader.kind == node.kind else None
        kind = wanted.value_type if node.kind == "array" else wanted.item_type
        return SchemaNode(node.kind, branches=(pruned(node.branches[0], kind, items),))
    return node


def _struct(array: pa.StructArray, kind: pa.StructType, reader: SchemaNode | None) -> pa.Array:
    names = [field.name for field in array.type]
    columns = []
    for field in kind:
        source = source_of(names, field.name, reader)
        known = reader_field(reader, field.name)
        if source is not None:
            column = fit(array.field(names.index(source)), field.type, None if known is None else known.node)
        else:
            column = _absent(len(array), field.type, known)
        columns.append(column)
    mask = array.is_null() if array.null_count else None
    if not columns:
        return pa.nulls(len(array), kind) if mask is not None else pa.array([{}] * len(array), kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _absent(count: int, kind: pa.DataType, reader: SchemaField | None) -> pa.Array:
    if reader is None or reader.default is None or reader.default is NO_DEFAULT:
        return pa.nulls(count, kind)
    try:
        value = pa.scalar(default_value(reader.default, reader.node), kind)
    except (pa.ArrowException, ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise IncompatibleSchema(
            f"the default {reader.default!r} of the field {reader.name!r} is no {kind}: {error}"
        ) from None
    return pa.repeat(value, count) if value.is_valid else pa.nulls(count, kind)


def default_value(plain: Any, node: SchemaNode) -> Any:
    """Convert a default, given in a definition's JSON form, to the Python value that Arrow takes."""
    node = node.branches[0] if node.kind == "union" else node
    if node.kind == "null" or plain is None:
        return None
    if node.kind in ("bytes", "fixed") and isinstance(plain, str):
        raw = plain.encode("latin-1")
        if node.logical == "decimal":
            return decimal.Decimal(f"{int.from_bytes(raw, 'big', signed=True)}E-{node.scale}")
        return raw
    if node.logical == "date":
        return dt.date(1970, 1, 1) + dt.timedelta(days=plain)
    if node.logical:
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(
            microseconds=plain * (1000 if node.logical.endswith("millis") else 1)
        )
        return moment if node.logical.startswith("local") else moment.replace(tzinfo=dt.UTC)
    if node.kind == "record":
        return {
            field.name: default_value(plain.get(field.name, field.default), field.node)
            for field in node.fields
            if field.name in plain or field.default is not NO_DEFAULT
        }
    if node.kind == "array":
        return [default_value(one, node.branches[0]) for one in plain]
    if node.kind == "map":
        return [(key, default_value(one, node.branches[0])) for key, one in plain.items()]
    return plain
