"""Writer of Avro payloads from Arrow columns, the inverse of `geminga.spark.payloads.avro`.

A column becomes the numbers that reading would have appended to its nodes, and one compiled loop writes them
out, row by row.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.errors import InvalidMessage
from geminga.spark.payloads.arrays import Int64s, binary_parts
from geminga.spark.payloads.avro import WalkTable
from geminga.spark.payloads.json_writing import check_symbols
from geminga.spark.payloads.nodes import SchemaNode

_WORST_NUMBER = 11
"""Maximum bytes of a number; of an array, its size and its end."""


class AvroWriter:
    """Writes values of one definition. Raises `InvalidMessage` for unions of several types."""

    def __init__(self, node: SchemaNode) -> None:
        self.program = WalkTable.of(node)
        self.numbers: list[Int64s] = []
        self.data: list[NDArray[np.uint8]] = []
        self.data_size = 0

    def write(self, values: pa.StructArray) -> pa.Array:
        """Return the payloads of ``values``. Raises `InvalidMessage` naming a required field that is null, an
        unknown symbol, or a size that differs from the definition's."""
        from geminga.spark.payloads import avro_kernels

        count = len(self.program.nodes)
        self.numbers = [np.zeros(0, np.int64)] * count
        self.data, self.data_size = [np.zeros(1, np.uint8)], 1
        self._add(0, values, "")
        sizes = np.array([len(each) for each in self.numbers], np.int64)
        base = np.cumsum(sizes) - sizes
        fixed = sum(
            len(each) * node.size for each, node in zip(self.numbers, self.program.nodes, strict=True)
        )
        worst = int(_WORST_NUMBER * (sizes.sum() + len(values)) + self.data_size + fixed)
        out = np.empty(worst, np.uint8)
        offsets = np.zeros(len(values) + 1, np.int64)
        table = self.program.table
        write: Any = avro_kernels.write
        write(np.concatenate(self.numbers), np.concatenate(self.data), base, *table[:4], offsets, out)
        if offsets[-1] > (1 << 31) - 1:
            raise InvalidMessage(f"{len(values)} payloads take {offsets[-1]} bytes")
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out[: offsets[-1]])]
        return pa.Array.from_buffers(pa.binary(), len(values), buffers, 0)

    def _add(self, number: int, array: pa.Array, name: str) -> None:
        node = self.program.nodes[number]
        children = self.program.children[number]
        if node.kind == "union":
            self._union(number, node, array, name)
            return
        if node.kind == "null":
            return
        if array.null_count:
            raise InvalidMessage(f"{array.null_count} rows have no value for the field {name or 'value'!r}")
        if node.kind == "record":
            for field, child, column in zip(node.fields, children, array.flatten(), strict=True):
                self._add(child, column, f"{name}.{field.name}" if name else field.name)
        elif node.kind == "array":
            self.numbers[number] = pc.list_value_length(array).to_numpy().astype(np.int64)
            self._add(children[0], array.flatten(), f"{name}[]")
        elif node.kind == "map":
            bounds = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
            self.numbers[number] = np.diff(bounds).astype(np.int64)
            first, last = (int(bounds[0]), int(bounds[-1])) if len(array) else (0, 0)
            self._add(children[0], array.keys.slice(first, last - first), f"{name} (keys)")
            self._add(children[1], array.items.slice(first, last - first), f"{name}{{}}")
        elif node.kind in ("bytes", "string", "fixed"):
            self._binary(number, node, array, name)
        else:
            self.numbers[number] = _leaf(array, node, name)

    def _union(self, number: int, node: SchemaNode, array: pa.Array, name: str) -> None:
        children = self.program.children[number]
        nulls = [i for i, branch in enumerate(node.branches) if branch.kind == "null"]
        members = [i for i in range(len(node.branches)) if i not in nulls]
        if len(members) != 1:
            raise InvalidMessage(
                f"field {name!r} is a union of several types, which frames can't be written as"
            )
        if not array.null_count:
            self.numbers[number] = np.full(len(array), members[0], np.int64)
            self._add(children[members[0]], array, name)
            return
        if not nulls:
            raise InvalidMessage(f"{array.null_count} rows have no value for the field {name!r}")
        present = array.is_valid()
        self.numbers[number] = np.where(present.to_numpy(zero_copy_only=False), members[0], nulls[0])
        self._add(children[members[0]], array.filter(present), name)

    def _binary(self, number: int, node: SchemaNode, array: pa.Array, name: str) -> None:
        if node.logical == "decimal":
            low_and_high = (
                np.frombuffer(array.buffers()[1], np.int64) if len(array) else np.zeros(0, np.int64)
            )
            self.numbers[number] = low_and_high[2 * array.offset : 2 * (array.offset + len(array))]
            return
        starts, ends, data = binary_parts(array)
        sizes = ends - starts
        if node.kind == "fixed" and (sizes != node.size).any():
            raise InvalidMessage(f"field {name!r} takes {node.size} bytes")
        pairs = np.empty(2 * len(array), np.int64)
        pairs[0::2], pairs[1::2] = starts + self.data_size, sizes
        self.numbers[number] = pairs
        self.data.append(data)
        self.data_size += len(data)


def _leaf(array: pa.Array, node: SchemaNode, name: str) -> Int64s:
    found: Any
    if node.kind == "enum":
        check_symbols(array, node, name)
        found = pc.index_in(array, value_set=pa.array(node.symbols, pa.string())).to_numpy()
    elif node.kind == "boolean":
        found = array.to_numpy(zero_copy_only=False)
    elif node.kind == "float":
        found = array.to_numpy().view(np.int32)
    elif node.kind == "double":
        found = array.to_numpy().view(np.int64)
    elif pa.types.is_timestamp(array.type):
        found = array.cast(pa.int64()).to_numpy()
        found = found // 1000 if node.logical.endswith("millis") else found
    elif pa.types.is_date(array.type):
        found = array.cast(pa.int32()).to_numpy()
    else:
        found = array.to_numpy()
    numbers: Int64s = found.astype(np.int64)
    return numbers
