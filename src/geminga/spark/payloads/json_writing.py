"""Writer of JSON texts from Arrow columns, a column at a time."""

import base64
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.errors import InvalidMessage
from geminga.spark.payloads.nodes import SchemaNode

_ESCAPED = r'["\\\x00-\x1f]'


def json_texts(array: pa.Array, node: SchemaNode, name: str = "") -> pa.Array:
    """Return the values of ``array`` as JSON texts, without nulls.

    Bytes are base64, timestamps and dates the numbers of their logical types, and floats that are not numbers
    words, as Jackson writes them. Raises `InvalidMessage` naming a required field that is null.
    """
    inner = node.inner
    if array.null_count and not (node.kind == "null" or any(b.kind == "null" for b in node.branches)):
        raise InvalidMessage(f"{array.null_count} rows have no value for the field {name or 'value'!r}")
    if pa.types.is_null(array.type):
        return pa.repeat("null", len(array)) if len(array) else pa.array([], pa.string())
    texts = _texts(array, inner, name)
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _texts(array: pa.Array, node: SchemaNode, name: str) -> pa.Array:
    """Return the texts; null, or any text, where a value is null."""
    kind = array.type
    if pa.types.is_struct(kind):
        texts = _objects(array, node, name)
        return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts
    if pa.types.is_list(kind):
        items = json_texts(array.values, node.branches[0], f"{name}[]")
        return _joined(array, items, "[", "]")
    if pa.types.is_map(kind):
        keys = _strings(array.keys)
        items = json_texts(array.items, node.branches[0], f"{name}{{}}")
        return _joined(array, pc.binary_join_element_wise(keys, items, ":"), "{", "}")
    if pa.types.is_string(kind):
        if node.kind == "enum":
            check_symbols(array, node, name)
        return _strings(array)
    if pa.types.is_binary(kind):
        words = [None if raw is None else f'"{base64.b64encode(raw).decode()}"' for raw in array.to_pylist()]
        return pa.array(words, pa.string())
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_timestamp(kind):
        numbers = array.cast(pa.int64())
        if node.logical.endswith("millis"):
            # Python's own rounding: towards the past, as in the other formats.
            numbers = pc.divide(pc.subtract(numbers, pc.if_else(pc.less(numbers, 0), 999, 0)), 1000)
        return numbers.cast(pa.string())
    if pa.types.is_date(kind):
        return array.cast(pa.int32()).cast(pa.string())
    return array.cast(pa.string())


def _objects(array: pa.StructArray, node: SchemaNode, name: str) -> pa.Array:
    parts: list[Any] = []
    if array.null_count:
        # Values below a null are not written, and may be null where required.
        present = array.is_valid()
        dense = _objects(array.filter(present), node, name)
        places = np.cumsum(present.to_numpy(zero_copy_only=False)) - 1
        return (
            dense.take(pa.array(np.where(present.to_numpy(zero_copy_only=False), places, 0)))
            if len(dense)
            else (pa.nulls(len(array), pa.string()))
        )
    for number, field in enumerate(node.fields):
        opening = "{" if not parts else ","
        path = f"{name}.{field.name}" if name else field.name
        parts += [f"{opening}{json.dumps(field.name)}:", json_texts(array.field(number), field.node, path)]
    if not parts:
        return pa.repeat("{}", len(array)) if len(array) else pa.array([], pa.string())
    return pc.binary_join_element_wise(*parts, "}", "")


def _joined(array: pa.Array, items: pa.Array, opening: str, closing: str) -> pa.Array:
    lists = pa.Array.from_buffers(
        pa.list_(pa.string()), len(array), array.buffers()[:2], array.null_count, offset=array.offset,
        children=[items],
    )  # fmt: skip
    return pc.binary_join_element_wise(opening, pc.binary_join(lists, ","), closing, "")


def _strings(array: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(array, _ESCAPED)).as_py():
        words = [None if word is None else json.dumps(word, ensure_ascii=False) for word in array.to_pylist()]
        return pa.array(words, pa.string())
    return pc.binary_join_element_wise('"', array, '"', "")


def _floats(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    texts = pc.if_else(pc.equal(texts, "-0"), "-0.0", texts)  # "-0" would be an integer, without sign
    odd = pc.invert(pc.is_finite(array))
    if not pc.any(odd).as_py():
        return texts
    words = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"', "-nan": '"NaN"'}
    return pa.array([words.get(text, text) for text in texts.to_pylist()], pa.string())


def check_symbols(array: pa.Array, node: SchemaNode, name: str) -> None:
    """Raise `InvalidMessage` for a text that is no symbol of the enumeration."""
    unknown = pc.drop_null(
        array.filter(pc.invert(pc.is_in(array, value_set=pa.array(node.symbols, pa.string()))))
    )
    if len(unknown):
        raise InvalidMessage(f"field {name!r}: {unknown[0].as_py()!r} is none of {', '.join(node.symbols)}")
