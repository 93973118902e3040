"""Numbers, big-endian as Java writes them, and booleans: schemas that ``pulsar-client`` lacks.

Their definitions are empty, as a broker refuses any other.
"""

import struct
from struct import Struct
from typing import Any, ClassVar

from geminga._util.values import V
from geminga.errors import CorruptPayload
from geminga.schema.schema import Schema, SchemaType


class FixedSizeSchema(Schema[V]):
    """Base of schemas whose payloads have a fixed size; subclasses define how values become numbers."""

    nulls_are_none = True
    kind: ClassVar[SchemaType]
    """Type of the schema."""
    _layout: ClassVar[Struct]
    _python_type: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__(self._python_type, self.kind, None, self._name(), schema_data=b"")

    def _name(self) -> str:
        return self.kind.name

    def encode(self, obj: Any) -> bytes:
        """Return the payload. Raises `TypeError` for another type, a value that does not fit, and for times
        also for a missing or forbidden time zone."""
        self._validate_object_type(obj)
        try:
            return self._layout.pack(*self._numbers(obj))
        except (struct.error, OverflowError) as error:
            raise TypeError(f"{obj!r} does not fit into {self}: {error}") from error

    def decode(self, data: bytes) -> V:
        """Return the value. Raises `CorruptPayload` for a payload of another length, or a value outside
        Python's range."""
        if len(data) != self._layout.size:
            raise CorruptPayload(f"{self} takes {self._layout.size} bytes, not {len(data)}")
        try:
            value: V = self._value(*self._layout.unpack(data))
            return value
        except (OverflowError, ValueError) as error:
            raise CorruptPayload(f"{self}: {error}") from error

    def _numbers(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def _value(self, *numbers: Any) -> Any:
        return numbers[0]


class _Number(FixedSizeSchema[V]):
    def _validate_object_type(self, obj: Any) -> None:
        super()._validate_object_type(obj)
        if isinstance(obj, bool):
            raise TypeError(f"{self} takes a number, not a bool")


class Int8Schema(_Number[int]):
    """Signed integers of 8 bits."""

    kind, _layout, _python_type = SchemaType.INT8, Struct(">b"), int


class Int16Schema(_Number[int]):
    """Signed integers of 16 bits, big-endian."""

    kind, _layout, _python_type = SchemaType.INT16, Struct(">h"), int


class Int32Schema(_Number[int]):
    """Signed integers of 32 bits, big-endian."""

    kind, _layout, _python_type = SchemaType.INT32, Struct(">i"), int


class Int64Schema(_Number[int]):
    """Signed integers of 64 bits, big-endian."""

    kind, _layout, _python_type = SchemaType.INT64, Struct(">q"), int


class FloatSchema(_Number[float]):
    """Floating-point numbers of 32 bits, big-endian."""

    kind, _layout, _python_type = SchemaType.FLOAT, Struct(">f"), (float, int)


class DoubleSchema(_Number[float]):
    """Floating-point numbers of 64 bits, big-endian."""

    kind, _layout, _python_type = SchemaType.DOUBLE, Struct(">d"), (float, int)


class BooleanSchema(FixedSizeSchema[bool]):
    """Booleans as one byte, 0 or 1."""

    kind, _layout, _python_type = SchemaType.BOOLEAN, Struct("?"), bool
