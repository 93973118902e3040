"""Reader of Avro payloads: decodes them with their writer's schema into Arrow arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.spark.payloads.arrays import (
    Int64s,
    Mask,
    binary_parts,
    booleans,
    gathered,
    indices,
    nulls_of,
    scattered,
    validity,
)
from geminga.spark.payloads.fitting import pruned
from geminga.spark.payloads.nodes import SchemaNode
from geminga.spark.payloads.types import number_of, spark_type
from geminga.spark.releases import arrow_type
from geminga.spark.schema import as_text
from geminga.wire.columnar import number_array


@dataclass(slots=True)
class WalkTable:
    """Table of schema nodes that the compiled loops of `geminga.spark.payloads.avro_kernels` follow."""

    nodes: list[SchemaNode] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    keep: list[bool] = field(default_factory=list)

    @staticmethod
    def of(
        node: SchemaNode, wanted: pa.DataType | None = None, reader: SchemaNode | None = None
    ) -> WalkTable:
        """Build the table; ``wanted`` and ``reader`` as for `AvroReader`."""
        program = WalkTable()
        program._descend(node, pruned(node, wanted, reader))
        return program

    @property
    def table(self) -> tuple[NDArray[Any], ...]:
        """Return operations, arguments, index of each node's first child, children, nodes to keep."""
        starts = np.cumsum([0, *(len(each) for each in self.children)])[:-1]
        flat = [child for each in self.children for child in each]
        return (
            np.array(self.operations, np.int64),
            np.array(self.arguments, np.int64),
            np.array(starts, np.int64),
            np.array(flat or [0], np.int64),
            np.array(self.keep, np.bool_),
        )

    def _add(self, node: SchemaNode, wanted: bool) -> int:
        number = len(self.nodes)
        self.nodes.append(node)
        self.operations.append(_operation(node))
        self.arguments.append(_argument(node))
        self.children.append([])
        self.keep.append(wanted)
        return number

    def _descend(self, node: SchemaNode, kept: SchemaNode | None) -> int:
        """Add a node and those below it; ``kept`` is its counterpart in the tree without unused fields."""
        number = self._add(node, kept is not None)
        children = self.children[number]
        if node.kind == "record":
            for each in node.fields:
                known = None if kept is None else kept.field(each.name)
                children.append(self._descend(each.node, None if known is None else known.node))
            return number
        if node.kind == "map":
            children.append(self._descend(_KEY, None if kept is None else _KEY))
        below = kept.branches if kept is not None else [None] * len(node.branches)
        children += map(self._descend, node.branches, below)
        return number


_KEY = SchemaNode("string")


def _operation(node: SchemaNode) -> int:
    from geminga.spark.payloads import avro_kernels as k

    if node.logical == "decimal":
        return k.DECIMAL
    if node.logical.endswith("millis"):
        return k.MILLIS
    return {
        "null": k.NULL, "boolean": k.BOOLEAN, "int": k.INT, "long": k.LONG, "float": k.FLOAT,
        "double": k.DOUBLE, "bytes": k.BYTES, "string": k.BYTES, "fixed": k.FIXED, "enum": k.ENUM,
        "record": k.RECORD, "array": k.ARRAY, "map": k.MAP, "union": k.UNION,
    }[node.kind]  # fmt: skip


def _argument(node: SchemaNode) -> int:
    if node.logical == "decimal":
        return 64 * node.size + node.precision
    return {
        "fixed": node.size,
        "enum": len(node.symbols),
        "record": len(node.fields),
        "union": len(node.branches),
    }.get(node.kind, 0)


class AvroReader:
    """Reads the payloads of one definition.

    ``wanted``: the requested Arrow type; fields that it lacks are skipped. ``reader``: the newest definition,
    for the aliases of its fields.
    """

    def __init__(
        self, node: SchemaNode, wanted: pa.DataType | None = None, reader: SchemaNode | None = None
    ) -> None:
        self.program = WalkTable.of(node, wanted, reader)
        self.table = self.program.table

    def read(self, payloads: pa.Array) -> tuple[pa.Array, Mask]:
        """Return the values of ``payloads`` (binary), in Spark's type for the definition without unused
        fields; null where a payload is null or damaged. The mask marks the damaged payloads."""
        from geminga.spark.payloads import avro_kernels

        walk: Any = avro_kernels.walk

        starts, ends, data = binary_parts(payloads)
        absent = nulls_of(payloads)
        good = ~absent
        operations, arguments, first, children, keep = self.table
        base = np.zeros(len(operations), np.int64)
        nothing = np.zeros(1, np.int64)
        while True:
            counts = np.zeros(len(operations), np.int64)
            places = (data, starts, ends, operations, arguments, first, children, keep, base, good)
            if not walk(*places, counts, nothing, False):
                break
        widths = np.array([_width(node) for node in self.program.nodes], np.int64)
        sizes = np.where(keep, counts * widths, 0)
        base = np.cumsum(sizes) - sizes
        out = np.empty(int(sizes.sum()) + 1, np.int64)
        written = np.zeros(len(operations), np.int64)
        walk(data, starts, ends, operations, arguments, first, children, keep, base, good, written, out, True)
        built = _Built(self.program, data, base, counts, out)
        values = built.array(0, None if good.all() else ~good)
        return values, ~(good | absent)


def _width(node: SchemaNode) -> int:
    if node.kind in ("bytes", "string", "fixed"):
        return 2
    return 0 if node.kind in ("null", "record") else 1


class _Built:
    """Builds Arrow arrays from the output of the compiled loops."""

    def __init__(
        self, program: WalkTable, data: NDArray[np.uint8], base: Int64s, counts: Int64s, out: Int64s
    ) -> None:
        self.program = program
        self.data = data
        self.base = base.tolist()
        self.counts = counts.tolist()
        self.out = out

    def _numbers(self, number: int) -> Int64s:
        start, count = self.base[number], self.counts[number]
        return self.out[start : start + count]

    def array(self, number: int, absent: Mask | None) -> pa.Array:
        """Return the values of a node, with nulls inserted where ``absent``."""
        node = self.program.nodes[number]
        if node.kind == "null":
            return pa.nulls(self.counts[number] if absent is None else len(absent), pa.null())
        if node.kind in ("bytes", "string", "fixed"):
            return self._binary(number, node, absent)
        if node.kind == "record":
            return self._record(number, absent)
        if node.kind in ("array", "map"):
            return self._items(number, node, absent)
        if node.kind == "union":
            return self._union(number, node, absent)
        return _leaf(self._numbers(number), node, absent)

    def _binary(self, number: int, node: SchemaNode, absent: Mask | None) -> pa.Array:
        start, count = self.base[number], self.counts[number]
        pairs = self.out[start : start + 2 * count].reshape(count, 2)
        if node.logical == "decimal":
            return number_array(scattered(pairs, absent), arrow_type(spark_type(node)), absent)
        starts, sizes = scattered(pairs[:, 0], absent), scattered(pairs[:, 1], absent, -1)
        found = gathered(self.data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes))
        return as_text(found) if node.kind == "string" else found

    def _record(self, number: int, absent: Mask | None) -> pa.Array:
        node = self.program.nodes[number]
        children = self.program.children[number]
        count = self.counts[number]
        fields, columns = [], []
        for each, child in zip(node.fields, children, strict=True):
            if self.program.keep[child]:
                column = self.array(child, None)
                fields.append(pa.field(each.name, column.type))
                columns.append(column)
        if columns:
            found = pa.StructArray.from_arrays(columns, fields=fields)
        else:
            found = pa.Array.from_buffers(pa.struct([]), count, [None], 0)
        return _spread(found, absent)

    def _items(self, number: int, node: SchemaNode, absent: Mask | None) -> pa.Array:
        children = self.program.children[number]
        sizes = scattered(self._numbers(number), absent)
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        valid, nulls = validity(absent)
        buffers = [valid, pa.py_buffer(offsets)]
        items = self.array(children[-1], None)
        if node.kind == "array":
            return pa.Array.from_buffers(pa.list_(items.type), len(sizes), buffers, nulls, children=[items])
        kind = pa.map_(pa.string(), items.type)
        pairs = pa.StructArray.from_arrays(
            [self.array(children[0], None), items], fields=[kind.key_field, kind.item_field]
        )
        return pa.Array.from_buffers(kind, len(sizes), buffers, nulls, children=[pairs])

    def _union(self, number: int, node: SchemaNode, absent: Mask | None) -> pa.Array:
        children = self.program.children[number]
        chosen = scattered(self._numbers(number), absent, -1)
        nothing = [i for i, branch in enumerate(node.branches) if branch.kind == "null"]
        members = [i for i in range(len(node.branches)) if i not in nothing]
        if len(members) == 1:
            is_absent = chosen != members[0]
            return self.array(children[members[0]], is_absent if is_absent.any() else None)
        columns = [self.array(children[i], chosen != i) for i in members]
        number_kind = number_of(node)
        if number_kind is not None:
            return pc.coalesce(*(column.cast(arrow_type(number_kind)) for column in columns))
        if not members:
            return pa.nulls(len(chosen), pa.null())
        fields = [pa.field(f"member{i}", column.type) for i, column in enumerate(columns)]
        is_absent = np.isin(chosen, [-1, *nothing])
        mask = booleans(is_absent) if is_absent.any() else None
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _spread(array: pa.Array, absent: Mask | None) -> pa.Array:
    return array if absent is None else array.take(indices(~absent))


def _leaf(values: Int64s, node: SchemaNode, absent: Mask | None) -> pa.Array:
    kind = arrow_type(spark_type(node))
    values = scattered(values, absent)
    if node.kind == "boolean":
        return booleans(values != 0, absent)
    if node.kind == "enum":
        words = pa.DictionaryArray.from_arrays(
            number_array(values, pa.int64(), absent), pa.array(node.symbols)
        )
        return words.cast(pa.string())
    if node.kind == "float":
        return number_array(values.astype(np.uint32), kind, absent)
    if node.kind == "int":
        return number_array(values.astype(np.int32), kind, absent)
    return number_array(values, kind, absent)
