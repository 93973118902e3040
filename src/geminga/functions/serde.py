"""`SerDe`: how a function's values become payloads, and payloads values."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from typing import Any


class SerDe:
    """Base of the two directions."""

    @abstractmethod
    def serialize(self, input: Any) -> bytes:
        """The payload of a value."""

    @abstractmethod
    def deserialize(self, input_bytes: bytes) -> Any:
        """The value of a payload."""


class PickleSerDe(SerDe):
    """Python's pickle. Whoever can publish to the topic can run code in the function: only for topics whose
    producers are trusted."""

    def serialize(self, input: Any) -> bytes:
        return pickle.dumps(input)

    def deserialize(self, input_bytes: bytes) -> Any:
        return pickle.loads(input_bytes)


class IdentitySerDe(SerDe):
    """Numbers and texts as their text, bytes as they are. The way back takes the first of int, float,
    complex and text that the payload can be, and bytes for everything else."""

    _TEXTUAL = (int, float, complex, str)

    def serialize(self, input: Any) -> bytes:
        """Raises `TypeError` for a value of any other type."""
        if type(input) in self._TEXTUAL:
            return str(input).encode("utf-8")
        if type(input) is bytes:
            return input
        raise TypeError(f"IdentitySerDe takes int, float, complex, str or bytes, not {type(input).__name__}")

    def deserialize(self, input_bytes: bytes) -> Any:
        try:
            text = input_bytes.decode("utf-8")
        except UnicodeDecodeError:
            return input_bytes
        for kind in self._TEXTUAL:
            try:
                return kind(text)
            except ValueError:
                continue
        return input_bytes
