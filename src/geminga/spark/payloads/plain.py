"""Payloads of Pulsar's primitive schemas: numbers as Java writes them, booleans, text, dates and times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from geminga.spark.payloads.arrays import binary_parts, booleans, gathered, nulls_of, numbers
from geminga.spark.payloads.nodes import SchemaNode
from geminga.spark.payloads.types import spark_type
from geminga.spark.releases import arrow_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

_SIZES = {
    "boolean": 1, "int8": 1, "int16": 2, "int": 4, "long": 8, "float": 4, "double": 8, "instant": 12,
    "date-time": 16,
}  # fmt: skip
_DAY_US = 86_400_000_000
_DAY_NS = 86_400_000_000_000


class PlainReader:
    """Reads the payloads of one primitive schema."""

    def __init__(self, node: SchemaNode) -> None:
        self.node = node

    def read(self, payloads: pa.Array) -> tuple[pa.Array, Mask]:
        """Return the values, null where null or of an invalid size, and the mask of invalid payloads."""
        kind = self.node.kind
        if kind == "bytes":
            return payloads, np.zeros(len(payloads), np.bool_)
        if kind == "string":
            return _text(payloads)
        starts, ends, data = binary_parts(payloads)
        absent = nulls_of(payloads)
        size = _SIZES[kind]
        damaged = ~absent & (ends - starts != size)
        usable = ~(absent | damaged)
        raw = np.zeros((len(payloads), size), np.uint8)
        raw[usable] = data[starts[usable, None] + np.arange(size)]
        if kind == "boolean":
            return booleans(raw[:, 0] != 0, ~usable), damaged
        if kind == "date-time":
            time_ns = raw[:, 8:].copy().view(">i8")[:, 0]
            wrong = usable & ((time_ns < 0) | (time_ns >= _DAY_NS))
            damaged, usable = damaged | wrong, usable & ~wrong
        return _numbers(raw, self.node, ~usable), damaged


def _numbers(raw: NDArray[np.uint8], node: SchemaNode, absent: Mask) -> pa.Array:
    kind = arrow_type(spark_type(node))
    if node.kind == "instant":
        seconds = raw[:, :8].copy().view(">i8")[:, 0].astype(np.int64)
        nanoseconds = raw[:, 8:].copy().view(">i4")[:, 0].astype(np.int64)
        return numbers(seconds * 1_000_000 + nanoseconds // 1000, kind, absent)
    if node.kind == "date-time":
        parts = raw.view(">i8").astype(np.int64)
        return numbers(parts[:, 0] * _DAY_US + parts[:, 1] // 1000, kind, absent)
    size = raw.shape[1]
    native = raw[:, ::-1].copy().view(f"<u{size}")[:, 0]
    if node.logical == "timestamp-millis":
        return numbers(native.view(np.int64) * 1000, kind, absent)
    if node.logical == "date":
        return numbers(native.view(np.int64).astype(np.int32), kind, absent)
    return numbers(native, kind, absent)


def _text(payloads: pa.Array) -> tuple[pa.Array, Mask]:
    nothing = np.zeros(len(payloads), np.bool_)
    try:
        return payloads.cast(pa.string()), nothing
    except pa.ArrowInvalid:
        words: list[str | None] = []
        for number, value in enumerate(payloads.to_pylist()):
            try:
                words.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                nothing[number] = True
                words.append(None)
        return pa.array(words, pa.string()), nothing


def split_pairs(payloads: pa.Array) -> tuple[pa.Array, pa.Array, Mask]:
    """Return keys and values of INLINE pairs, as binary arrays, and the mask of invalid payloads.

    A part is its size (big-endian, 4 bytes; -1 for null) and as many bytes.
    """
    starts, ends, data = binary_parts(payloads)
    usable = ~nulls_of(payloads)
    damaged = np.zeros(len(payloads), np.bool_)
    place = starts.copy()
    parts = []
    for _ in range(2):
        is_cut = usable & (ends - place < 4)
        usable &= ~is_cut
        sizes = np.full(len(payloads), -1, np.int64)
        head = data[place[usable, None] + np.arange(4)].copy()
        sizes[usable] = head.view(">i4").reshape(-1)
        place += np.where(usable, 4, 0)
        is_wrong = usable & ((sizes < -1) | (sizes > ends - place))
        usable &= ~is_wrong
        damaged |= is_cut | is_wrong
        parts.append((place.copy(), np.where(usable, sizes, -1)))
        place += np.maximum(np.where(usable, sizes, 0), 0)
    is_longer = usable & (place != ends)
    damaged |= is_longer
    found = [gathered(data, at, np.where(damaged, -1, sizes), pa.binary()) for at, sizes in parts]
    return found[0], found[1], damaged
