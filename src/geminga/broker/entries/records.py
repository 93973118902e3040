"""Encoding of the broker's durable records: varints and length-prefixed bytes."""

from geminga.errors import StoreDamaged
from geminga.wire.varint import read_varint, varint


def put_varint(buffer: bytearray, value: int) -> None:
    """Append a non-negative number of up to 64 bits."""
    buffer += varint(value)


def put_bytes(buffer: bytearray, data: bytes) -> None:
    """Append a length and that many bytes."""
    buffer += varint(len(data))
    buffer += data


class RecordReader:
    """Parser of encoded records; raises `StoreDamaged` naming ``what`` and the position."""

    __slots__ = ("_data", "_what", "position")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self.position = 0

    def __bool__(self) -> bool:
        """Return whether there is more to read."""
        return self.position < len(self._data)

    def damaged(self, problem: str) -> StoreDamaged:
        return StoreDamaged(f"{self._what}: {problem} at byte {self.position} of {len(self._data)}")

    def varint(self) -> int:
        try:
            value, self.position = read_varint(self._data, self.position)
        except (IndexError, ValueError) as error:
            raise self.damaged("a number does not end") from error
        return value

    def blob(self) -> bytes:
        """Return the bytes written by `put_bytes`."""
        return self.take(self.varint())

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        end = self.position + size
        if end > len(self._data):
            raise self.damaged(f"{size} bytes are announced but missing")
        found = self._data[self.position : end]
        self.position = end
        return found
