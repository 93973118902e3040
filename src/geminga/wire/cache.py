"""Cache of encoded fields and texts: a dictionary that computes missing values."""

from collections.abc import Callable, Sized
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V", bound=Sized)

ENTRIES_MAX = 16_384
"""Maximum entries of a cache; then it is cleared."""
VALUE_SIZE_MAX = 128
"""Maximum size of a cached value; larger ones are computed with each use."""


class Cache(dict[K, V], Generic[K, V]):
    """Maps a key to ``make(key)``. A look-up of a known key costs no call."""

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        if len(self) >= ENTRIES_MAX:
            self.clear()
        if len(value) <= VALUE_SIZE_MAX:
            self[key] = value
        return value
