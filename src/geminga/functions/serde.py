"""`SerDe`: serialisation of a function's values to payloads and back."""

import pickle
from abc import abstractmethod
from typing import Any


class SerDe:
    """Base class of serialisers."""

    @abstractmethod
    def serialize(self, input: Any) -> bytes:
        """Return the payload of a value."""

    @abstractmethod
    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the value of a payload."""


class PickleSerDe(SerDe):
    """Python's pickle. Any producer of the topic can run code in the function: all must be trusted."""

    def serialize(self, input: Any) -> bytes:
        return pickle.dumps(input)

    def deserialize(self, input_bytes: bytes) -> Any:
        return pickle.loads(input_bytes)


class IdentitySerDe(SerDe):
    """Numbers and text as text, bytes unchanged. `deserialize` returns the first of int, float, complex and
    str that the payload can be parsed as, else bytes."""

    _TEXTUAL = (int, float, complex, str)

    def serialize(self, input: Any) -> bytes:
        """Return the payload. Raises `TypeError` for a value of any other type."""
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
