"""Column-wise reader of Protobuf payloads, without a Python object for each message.

The fields of a message type are a table of nodes that a compiled loop follows
(`geminga.spark.payloads.protobuf_kernels`). Every field that is not repeated has a slot in each message of
its type, so that fields may be in any order, or missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor as F

from geminga.spark.payloads import protobuf_kernels as k
from geminga.spark.payloads.arrays import (
    binary_parts,
    booleans,
    gathered,
    indices,
    nulls_of,
    numbers,
    validity,
)
from geminga.spark.payloads.nodes import SchemaNode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Mask = NDArray[np.bool_]

SLOTS_MAX = 1 << 26
"""Maximum slots of the messages in one pass; more payloads are read in parts. A single payload that needs
more is left to the library: two bytes can make a message of a thousand fields."""
GROUPS_MAX = 64
"""Maximum groups (non-repeated fields and oneofs) of a message; larger messages are left to the library."""

_OPERATIONS = {
    F.TYPE_BOOL: k.BOOL, F.TYPE_INT32: k.INT32, F.TYPE_UINT32: k.UINT32, F.TYPE_SINT32: k.SINT32,
    F.TYPE_INT64: k.INT64, F.TYPE_UINT64: k.INT64, F.TYPE_SINT64: k.SINT64, F.TYPE_ENUM: k.ENUM,
    F.TYPE_FIXED32: k.UNSIGNED_4, F.TYPE_SFIXED32: k.SIGNED_4, F.TYPE_FIXED64: k.BYTES_8,
    F.TYPE_SFIXED64: k.BYTES_8, F.TYPE_DOUBLE: k.BYTES_8, F.TYPE_FLOAT: k.FLOAT_4, F.TYPE_BYTES: k.BYTES,
    F.TYPE_STRING: k.TEXT, F.TYPE_MESSAGE: k.MESSAGE,
}  # fmt: skip


class NotByColumns(Exception):
    """Raised for a message type that the compiled loop can't follow."""


@dataclass(slots=True)
class _Place:
    """A node of the table: a field, or the message itself. ``node``: its requested schema, if any."""

    operation: int
    parent: int
    depth: int
    descriptor: Any = None
    field: Any = None
    node: SchemaNode | None = None
    group: int = -1
    needs: int = 0
    """Number of required groups: an entry of a map has a key and a value."""
    first: int = 0
    children: int = 0

    @property
    def is_repeated(self) -> bool:
        return self.field is not None and bool(self.field.is_repeated)

    @property
    def inner(self) -> SchemaNode:
        """Requested schema of one message, without repetition."""
        assert self.node is not None
        return self.node.branches[0] if self.is_repeated else self.node

    @property
    def width(self) -> int:
        """Numbers of one value."""
        return {k.MESSAGE: 0, k.BYTES: 2, k.TEXT: 2}.get(self.operation, 1)


@dataclass(slots=True)
class Table:
    """The nodes of a message type, those of each message next to each other."""

    places: list[_Place] = field(default_factory=list)
    groups_max: int = 1
    symbols: list[int] = field(default_factory=lambda: [0])
    symbol_ranges: list[tuple[int, int]] = field(default_factory=list)

    @staticmethod
    def of(descriptor: Any, node: SchemaNode) -> Table:
        """Raises `NotByColumns`."""
        table = Table()
        table.places.append(_Place(k.MESSAGE, -1, 0, descriptor, node=node))
        number = 0
        while number < len(table.places):
            if table.places[number].operation == k.MESSAGE:
                table._open(number)
            number += 1
        table.symbol_ranges = [table._symbols(place.field) for place in table.places]
        return table

    def _open(self, number: int) -> None:
        place = self.places[number]
        descriptor = place.descriptor
        if descriptor.GetOptions().message_set_wire_format:
            raise NotByColumns
        place.first, place.children = len(self.places), len(descriptor.fields)
        groups: dict[object, int] = {}
        is_entry = bool(descriptor.GetOptions().map_entry)
        for each in descriptor.fields:
            operation = _OPERATIONS.get(each.type)
            if operation is None:
                raise NotByColumns
            one_of = each.containing_oneof
            group = -1
            if one_of is not None and len(one_of.fields) > 1:
                group = groups.setdefault(one_of.name, len(groups))
            elif is_entry or (operation == k.MESSAGE and not each.is_repeated):
                group = groups.setdefault(each.number, len(groups))
            self.places.append(
                _Place(
                    operation,
                    number,
                    place.depth + 1,
                    each.message_type,
                    each,
                    _wanted(place, each),
                    group,
                )
            )
        if is_entry:
            place.needs = len(groups)
        if len(groups) > GROUPS_MAX:
            raise NotByColumns
        self.groups_max = max(self.groups_max, len(groups))

    def _symbols(self, each: Any) -> tuple[int, int]:
        """Return start and number of a closed enumeration's values in `symbols`; number -1 otherwise."""
        if each is None or each.enum_type is None or not each.enum_type.is_closed:
            return 0, -1
        found = (len(self.symbols), len(each.enum_type.values_by_number))
        self.symbols += list(each.enum_type.values_by_number)
        return found

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Return the schema arguments of the compiled loop."""
        places = self.places
        columns = [
            [place.operation for place in places],
            [0 if place.field is None else place.field.number for place in places],
            [place.is_repeated for place in places],
            [place.first for place in places],
            [place.children for place in places],
            [place.group for place in places],
            [place.needs for place in places],
            [first for first, _ in self.symbol_ranges],
            [count for _, count in self.symbol_ranges],
            self.symbols,
        ]
        return (
            *(np.array(column, np.int64) for column in columns),
            np.array([place.node is not None for place in places], np.bool_),
        )


def _wanted(place: _Place, each: Any) -> SchemaNode | None:
    """Return the requested node of a message's field; None if the field is not requested."""
    above = place.node
    if above is None:
        return None
    if above.kind == "long":  # a Timestamp
        return SchemaNode("long")
    if place.field is not None and place.is_repeated:
        if above.kind == "map":
            return SchemaNode("string") if each.name == "key" else above.branches[0]
        above = above.branches[0]
        if above.kind == "long":
            return SchemaNode("long")
        if each.name == "key" and place.descriptor.GetOptions().map_entry:
            return SchemaNode("long")  # of the entries with one key the last one counts
    known = above.field(each.name)
    return None if known is None else known.node


class ColumnReader:
    """Reads payloads of one message type; ``node``: the requested schema. Raises `NotByColumns`."""

    def __init__(self, descriptor: Any, node: SchemaNode) -> None:
        self.table = Table.of(descriptor, node)
        self.arrays = self.table.arrays
        self.depth_max = max(place.depth for place in self.table.places) + 1

    def read(self, payloads: pa.Array) -> tuple[pa.Array, Mask]:
        """Return the values, null where a payload is null or odd, and the mask of odd payloads."""
        starts, ends, data = binary_parts(payloads)
        absent = nulls_of(payloads)
        good = ~absent
        values = self._values(data, starts, ends, good)
        return values, ~(good | absent)

    def _values(self, data: NDArray[np.uint8], starts: Int64s, ends: Int64s, good: Mask) -> pa.Array:
        places = self.table.places
        nothing = np.zeros(1, np.int64)
        unused = np.zeros(len(places), np.int64)
        while True:
            counts = np.zeros(len(places), np.int64)
            if not self._walk(data, starts, ends, unused, unused, good, counts, nothing, nothing, False):
                break
        messages = np.array([0, *(counts[place.parent] for place in places[1:])], np.int64)
        widths = np.array([place.width for place in places], np.int64)
        repeated, keep = self.arrays[2].astype(np.bool_), self.arrays[-1]
        sizes = np.where(keep, np.where(repeated, counts, messages) * widths, 0)
        marked = np.where(keep, messages, 0)
        if int(sizes.sum() + marked.sum()) > SLOTS_MAX:
            return self._in_parts(data, starts, ends, good)
        base, marks_base = np.cumsum(sizes) - sizes, np.cumsum(marked) - marked
        out = np.zeros(int(sizes.sum()) + 1, np.int64)
        marks = np.zeros(int(marked.sum()) + 1, np.int64)
        written = np.zeros(len(places), np.int64)
        self._walk(data, starts, ends, base, marks_base, good, written, out, marks, True)
        built = _Built(self.table, data, base, marks_base, counts, out, marks)
        return built.struct(0, None if good.all() else ~good)

    def _walk(
        self, data: Any, starts: Any, ends: Any, base: Any, marks_base: Any, good: Any, counts: Any,
        out: Any, marks: Any, writing: bool,
    ) -> int:  # fmt: skip
        walk: Any = k.walk
        odd: int = walk(
            data, starts, ends, *self.arrays, base, marks_base, self.depth_max, self.table.groups_max, good,
            counts, out, marks, writing,
        )  # fmt: skip
        return odd

    def _in_parts(self, data: NDArray[np.uint8], starts: Int64s, ends: Int64s, good: Mask) -> pa.Array:
        if len(starts) == 1:
            good[:] = False
            return self._values(data, starts, ends, good)
        middle = len(starts) // 2
        parts = [slice(0, middle), slice(middle, len(starts))]
        return pa.concat_arrays([self._values(data, starts[p], ends[p], good[p]) for p in parts])


class _Built:
    """Builds Arrow arrays from the output of the compiled loop."""

    def __init__(
        self,
        table: Table,
        data: NDArray[np.uint8],
        base: Int64s,
        marks_base: Int64s,
        counts: Int64s,
        out: Int64s,
        marks: Int64s,
    ) -> None:
        self.places = table.places
        self.data = data
        self.base = base.tolist()
        self.marks_base = marks_base.tolist()
        self.counts = counts.tolist()
        self.out = out
        self.marks = marks

    def struct(self, number: int, absent: Mask | None) -> pa.Array:
        """Return the messages of a node, with nulls inserted where ``absent``."""
        place = self.places[number]
        found: pa.Array
        if place.inner.kind == "long":
            found = self._moments(place)
        else:
            names = {
                self.places[child].field.name: child
                for child in range(place.first, place.first + place.children)
                if self.places[child].node is not None
            }
            columns = [self.column(child) for child in names.values()]
            if columns:
                fields = [pa.field(name, each.type) for name, each in zip(names, columns, strict=True)]
                found = pa.StructArray.from_arrays(columns, fields=fields)
            else:
                found = pa.Array.from_buffers(pa.struct([]), self.counts[number], [None], 0)
        return found if absent is None else found.take(indices(~absent))

    def _moments(self, place: _Place) -> pa.Array:
        by_name = {self.places[c].field.name: c for c in range(place.first, place.first + place.children)}
        messages = self.counts[self.places[by_name["seconds"]].parent]
        seconds, nanos = (self._numbers(by_name[name], messages) for name in ("seconds", "nanos"))
        return numbers(seconds * 1_000_000 + nanos // 1000, pa.timestamp("us", tz="UTC"))

    def _numbers(self, number: int, count: int) -> Int64s:
        start = self.base[number]
        return self.out[start : start + count * self.places[number].width]

    def column(self, number: int) -> pa.Array:
        """Return a field's values, one for each message that it is in."""
        place = self.places[number]
        messages = self.counts[place.parent]
        marks = self.marks[self.marks_base[number] : self.marks_base[number] + messages]
        if place.is_repeated:
            return self._items(number, marks)
        absent = None
        if place.field.has_presence:
            absent = marks == 0
            absent = absent if absent.any() else None
        if place.operation == k.MESSAGE:
            return self.struct(number, absent)
        return self._leaf(place, self._numbers(number, messages), absent)

    def _items(self, number: int, marks: Int64s) -> pa.Array:
        place = self.places[number]
        offsets = np.zeros(len(marks) + 1, np.int32)
        np.cumsum(marks, out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets)]
        if place.operation != k.MESSAGE:
            items = self._leaf(place, self._numbers(number, self.counts[number]), None)
            return pa.Array.from_buffers(pa.list_(items.type), len(marks), buffers, 0, children=[items])
        if place.descriptor.GetOptions().map_entry:
            return self._map(number, offsets)
        items = self.struct(number, None)
        return pa.Array.from_buffers(pa.list_(items.type), len(marks), buffers, 0, children=[items])

    def _map(self, number: int, offsets: NDArray[np.int32]) -> pa.Array:
        place = self.places[number]
        by_name = {self.places[c].field.name: c for c in range(place.first, place.first + place.children)}
        key_place = self.places[by_name["key"]]
        keys = self._leaf(key_place, self._numbers(by_name["key"], self.counts[number]), None)
        assert place.node is not None
        columns = {"key": keys}
        if self.places[by_name["value"]].node is not None:
            columns["value"] = self.column(by_name["value"])
        offsets, last = _last_of_each_key(keys, offsets)
        if last is not None:
            columns = {name: column.take(last) for name, column in columns.items()}
        buffers = [None, pa.py_buffer(offsets)]
        if place.node.kind == "map":
            kind = pa.map_(pa.string(), columns["value"].type)
            pairs = pa.StructArray.from_arrays(
                [columns["key"], columns["value"]], fields=[kind.key_field, kind.item_field]
            )
        else:
            wanted = [each.name for each in place.node.branches[0].fields]
            pairs = pa.StructArray.from_arrays([columns[name] for name in wanted], names=wanted)
            kind = pa.list_(pairs.type)
        return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, 0, children=[pairs])

    def _leaf(self, place: _Place, values: Int64s, absent: Mask | None) -> pa.Array:
        each, operation = place.field, place.operation
        if operation in (k.BYTES, k.TEXT):
            pairs = values.reshape(-1, 2)
            sizes = pairs[:, 1] if absent is None else np.where(absent, -1, pairs[:, 1])
            kind = pa.string() if operation == k.TEXT else pa.binary()
            return gathered(self.data, np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(sizes), kind)
        if operation == k.BOOL:
            return booleans(values != 0, absent)
        if operation == k.ENUM:
            return _words(values, each.enum_type, absent)
        if operation == k.FLOAT_4:
            return numbers(values.astype(np.uint32), pa.float32(), absent)
        if each.type == F.TYPE_DOUBLE:
            return numbers(values, pa.float64(), absent)
        if operation in (k.INT32, k.SINT32, k.SIGNED_4):
            return numbers(values.astype(np.int32), pa.int32(), absent)
        if each.type in (F.TYPE_UINT64, F.TYPE_FIXED64):
            return _unsigned(values, absent)
        return numbers(values, pa.int64(), absent)


def _words(values: Int64s, enumeration: Any, absent: Mask | None) -> pa.Array:
    """Return the names of numbers; the text of numbers without a name."""
    names = {number: value.name for number, value in enumeration.values_by_number.items()}
    found, codes = np.unique(values, return_inverse=True)
    words = pa.array([names.get(number) or str(number) for number in found.tolist()], pa.string())
    coded = numbers(codes.reshape(-1).astype(np.int64), pa.int64(), absent)
    return pa.DictionaryArray.from_arrays(coded, words).cast(pa.string())


def _unsigned(values: Int64s, absent: Mask | None) -> pa.Array:
    """Return decimals of 20 digits from the low 8 bytes of the numbers."""
    wide = np.zeros((len(values), 2), np.int64)
    wide[:, 0] = values
    valid, nulls = validity(absent)
    return pa.Array.from_buffers(pa.decimal128(20), len(values), [valid, pa.py_buffer(wide)], nulls)


def _last_of_each_key(
    keys: pa.Array, offsets: NDArray[np.int32]
) -> tuple[NDArray[np.int32], pa.Array | None]:
    """Return the offsets of maps without duplicate keys, and the entries to keep; None for all."""
    sizes = np.diff(offsets)
    if not len(keys) or int(sizes.max(initial=0)) < 2:
        return offsets, None
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    owners = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    both = owners * (int(codes.max()) + 1) + codes
    _, from_behind = np.unique(both[::-1], return_index=True)
    if len(from_behind) == len(both):
        return offsets, None
    last = np.sort(len(both) - 1 - from_behind)
    kept = np.zeros(len(offsets), np.int32)
    np.cumsum(np.bincount(owners[last], minlength=len(sizes)), out=kept[1:])
    return kept, numbers(last.astype(np.int64), pa.int64())
