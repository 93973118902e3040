"""Numbers, big-endian as Java writes them, and booleans: schemas that ``pulsar-client`` lacks.

Their definitions are empty, as a broker refuses any other.
"""

from __future__ import annotations

import struct
from typing import Any

from geminga.errors import CorruptPayload
from geminga.schema.schema import Schema, SchemaType
from geminga.values import V


class _Number(Schema[V]):
    """Base of the schemas of fixed-size numbers."""

    nulls_are_none = True

    def __init__(self, kind: SchemaType, layout: str, python_type: Any) -> None:
        super().__init__(python_type, kind, None, kind.name, schema_data=b"")
        self._layout = struct.Struct(layout)

    def encode(self, obj: Any) -> bytes:
        """Return the payload. Raises `TypeError` for another type or a number that does not fit."""
        self._validate_object_type(obj)
        if isinstance(obj, bool):
            raise TypeError(f"{self} takes a number, not a bool")
        try:
            return self._layout.pack(obj)
        except (struct.error, OverflowError) as error:
            raise TypeError(f"{obj!r} does not fit into {self}: {error}") from error

    def decode(self, data: bytes) -> V:
        """Return the value. Raises `CorruptPayload` for a payload of another length."""
        if len(data) != self._layout.size:
            raise CorruptPayload(f"{self} takes {self._layout.size} bytes, not {len(data)}")
        value: V = self._layout.unpack(data)[0]
        return value


class Int8Schema(_Number[int]):
    """Signed integers of 8 bits."""

    def __init__(self) -> None:
        super().__init__(SchemaType.INT8, ">b", int)


class Int16Schema(_Number[int]):
    """Signed integers of 16 bits, big-endian."""

    def __init__(self) -> None:
        super().__init__(SchemaType.INT16, ">h", int)


class Int32Schema(_Number[int]):
    """Signed integers of 32 bits, big-endian."""

    def __init__(self) -> None:
        super().__init__(SchemaType.INT32, ">i", int)


class Int64Schema(_Number[int]):
    """Signed integers of 64 bits, big-endian."""

    def __init__(self) -> None:
        super().__init__(SchemaType.INT64, ">q", int)


class FloatSchema(_Number[float]):
    """Floating-point numbers of 32 bits, big-endian."""

    def __init__(self) -> None:
        super().__init__(SchemaType.FLOAT, ">f", (float, int))


class DoubleSchema(_Number[float]):
    """Floating-point numbers of 64 bits, big-endian."""

    def __init__(self) -> None:
        super().__init__(SchemaType.DOUBLE, ">d", (float, int))


class BooleanSchema(Schema[bool]):
    """Booleans as one byte, 0 or 1."""

    nulls_are_none = True

    def __init__(self) -> None:
        super().__init__(bool, SchemaType.BOOLEAN, None, "BOOLEAN", schema_data=b"")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        return b"\x01" if obj else b"\x00"

    def decode(self, data: bytes) -> bool:
        """Return the value. Raises `CorruptPayload` for a payload of another length."""
        if len(data) != 1:
            raise CorruptPayload(f"BooleanSchema takes 1 byte, not {len(data)}")
        return data != b"\x00"
