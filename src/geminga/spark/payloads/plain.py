"""Payloads of Pulsar's primitive schemas: numbers as Java writes them, booleans, text, dates and times."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa

from geminga.errors import CorruptPayload
from geminga.schema.key_value import split_pair
from geminga.spark.payloads.arrays import Mask
from geminga.spark.payloads.nodes import SchemaNode
from geminga.spark.payloads.types import spark_type
from geminga.spark.releases import arrow_type

_LAYOUTS = {
    "boolean": ">?", "int8": ">b", "int16": ">h", "int": ">i", "long": ">q", "float": ">f", "double": ">d",
    "instant": ">qi", "date-time": ">qq",
}  # fmt: skip
_DAY_US = 86_400_000_000
_DAY_NS = 86_400_000_000_000


class PlainReader:
    """Reads the payloads of one primitive schema."""

    def __init__(self, node: SchemaNode) -> None:
        self.node = node
        self.kind = arrow_type(spark_type(node))

    def read(self, payloads: pa.Array) -> tuple[pa.Array, Mask]:
        """Return the values, null where null or of an invalid size, and the mask of invalid payloads."""
        damaged = np.zeros(len(payloads), np.bool_)
        if self.node.kind == "bytes":
            return payloads, damaged
        if self.node.kind == "string":
            try:
                return payloads.cast(pa.string()), damaged
            except pa.ArrowInvalid:
                pass  # one of them is invalid; determined below
        values: list[Any] = payloads.to_pylist()
        for number, payload in enumerate(values):
            try:
                values[number] = None if payload is None else _value(self.node, payload)
            except (struct.error, ValueError, OverflowError):
                values[number], damaged[number] = None, True
        return pa.array(values, self.kind), damaged


def _value(node: SchemaNode, payload: bytes) -> Any:
    """Return Arrow's input for a payload; times are microseconds, dates are days."""
    if node.kind == "string":
        return payload.decode()
    value, *rest = struct.unpack(_LAYOUTS[node.kind], payload)
    nanoseconds = rest[0] if rest else 0
    bits = 31 if node.logical == "date" else 63
    if node.kind == "instant":
        value = value * 1_000_000 + nanoseconds // 1000
    elif node.kind == "date-time":
        if not 0 <= nanoseconds < _DAY_NS:
            raise OverflowError("a time of day beyond the day")
        value = value * _DAY_US + nanoseconds // 1000
    elif node.logical == "timestamp-millis":
        value *= 1000
    if node.logical and not -(1 << bits) <= value < 1 << bits:
        raise OverflowError("a time that Arrow cannot hold")
    return value


def split_pairs(payloads: pa.Array) -> tuple[pa.Array, pa.Array, Mask]:
    """Return keys and values of INLINE pairs, as binary arrays, and the mask of invalid payloads."""
    damaged = np.zeros(len(payloads), np.bool_)
    pairs: list[tuple[bytes | None, bytes | None]] = [(None, None)] * len(payloads)
    for number, payload in enumerate(payloads.to_pylist()):
        try:
            pairs[number] = (None, None) if payload is None else split_pair(payload)
        except CorruptPayload:
            damaged[number] = True
    keys, values = (pa.array([pair[part] for pair in pairs], pa.binary()) for part in (0, 1))
    return keys, values, damaged
