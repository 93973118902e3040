"""Bloom filter over the catalog's keys and ledger owners: reports from memory that a name is absent.

The creation of a topic first looks up a dozen keys that do not exist. The filter (a few bits per name)
answers nearly all of these lookups: it never misses a key that exists, and reports about one in a hundred
absent names as possibly present, for which the catalog is then asked.

The filter contains *stems*: the part of a key up to its first NUL, or the whole key without one. So it also
answers whether any key begins with such a part, and which owners have no ledger.

In a new store the filter is complete from the first write. In an existing one, the names in the catalog are
added in pages once enough lookups found nothing (`bloom_filter_builder`). Names are never removed; when the
filter has grown enough, a new one is built while the old one serves.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from geminga.ledger.api import KEYS_END, PrefetchRequest

_OWNER: Final = "\0"
"""Prefix of owners' names; no key begins with it."""
_STEMS_FIRST: Final = 1 << 15
"""Capacity of a filter's first part; each further part has four times as much."""
_PARTS_MAX: Final = 5
"""11 million names in 22 MB. More names cause more false positives, which only cost time."""
_OUTGROWN_TIMES: Final = 3
"""A filter is rebuilt when it has this many times its first number of names."""
DENIED_MIN: Final = 256
"""Failed lookups in the catalog after which its names are added to the filter."""


def stem_of(key: str) -> str:
    """Return the part of the key up to and including its first NUL, or the whole key."""
    end = key.find("\0")
    return key if end < 0 else key[: end + 1]


def _is_stem(prefix: str) -> bool:
    """Whether all keys with the prefix have it as their stem."""
    return prefix.endswith("\0") and prefix.find("\0") == len(prefix) - 1


_TWO_BITS: Final = [1 << (number & 63) | 1 << (number >> 6) for number in range(4096)]


class _Filter:
    """Array of 64-bit words, one for each four names, in which each name sets four bits.

    The words are in parts, each larger than the one before, allocated as names are added.
    """

    __slots__ = ("_parts", "_room", "names", "names_first")

    def __init__(self) -> None:
        self._parts: list[tuple[array[int], int]] = []
        self._room = 0
        self.names = 0
        self.names_first = 0
        """Number of names when the build ended."""

    def has(self, stem: str) -> bool:
        number = hash(stem)
        bits = _TWO_BITS[number >> 32 & 4095] | _TWO_BITS[number >> 44 & 4095]
        for words, mask in self._parts:  # noqa: SIM110 (a generator takes three times as long)
            if words[number & mask] & bits == bits:
                return True
        return False

    def add(self, stem: str) -> None:
        if self.has(stem):
            return
        if not self._room and len(self._parts) < _PARTS_MAX:
            self._room = _STEMS_FIRST << 2 * len(self._parts)
            self._parts.append((array("Q", bytes(2 * self._room)), self._room // 4 - 1))
        self._room -= 1
        self.names += 1
        number = hash(stem)
        words, mask = self._parts[-1]
        words[number & mask] |= _TWO_BITS[number >> 32 & 4095] | _TWO_BITS[number >> 44 & 4095]

    @property
    def is_outgrown(self) -> bool:
        return self.names > _OUTGROWN_TIMES * max(self.names_first, _STEMS_FIRST)


class KeyBloomFilter:
    """Filter over the names in the catalog. Used on the owner's thread only.

    Every written name is added at once, before the catalog has it, so a name that is missing in a complete
    filter is not in the catalog.
    """

    __slots__ = ("_freezes", "_next", "_next_since", "_served", "_thaws", "denied", "is_complete")

    def __init__(self) -> None:
        self._served = _Filter()
        self.is_complete = False
        self._next: _Filter | None = self._served
        self._next_since = 0
        self._freezes = self._thaws = 0
        self.denied = 0
        """Number of catalog lookups that found nothing."""

    def add(self, key: str) -> None:
        """Add a key that is written."""
        self._add(stem_of(key))

    def add_owner(self, owner: str) -> None:
        """Add an owner of a ledger."""
        self._add(_OWNER + owner)

    def _add(self, stem: str) -> None:
        served, following = self._served, self._next
        served.add(stem)
        if following is not None:
            if following is not served:
                following.add(stem)
        elif served.is_outgrown:
            # Unsaved names are in the catalog once the checkpoint of the next freeze is written.
            self._next, self._next_since = _Filter(), self._freezes + 1

    # --- lookups ---
    def may_have(self, key: str) -> bool:
        """Return False only if the catalog does not have the key."""
        return not self.is_complete or self._served.has(stem_of(key))

    def may_have_under(self, prefix: str) -> bool:
        """Return False only if no key, saved or unsaved, has that prefix."""
        return not self.is_complete or not _is_stem(prefix) or self._served.has(prefix)

    def may_own(self, owner: str) -> bool:
        """Return False only if no ledger has that owner."""
        return not self.is_complete or not owner or self._served.has(_OWNER + owner)

    def may_have_any(self, wanted: PrefetchRequest) -> bool:
        """Return False only if none of the requested keys and owners exists."""
        if wanted.pages or wanted.ledgers_after:
            return True
        if not self.is_complete:
            return bool(wanted.keys or wanted.owners)
        has = self._served.has
        for first, last in wanted.keys:
            if first == last:
                if has(stem_of(first)):
                    return True
            elif last != first + KEYS_END or not _is_stem(first) or has(first):
                return True
        return any(first != last or has(_OWNER + first) for first, last in wanted.owners)

    # --- adding the catalog's names ---
    def frozen(self) -> None:
        """Note that a checkpoint froze the changes made so far."""
        self._freezes += 1

    def thawed(self) -> None:
        """Note that the frozen changes are in the catalog."""
        self._thaws += 1

    @property
    def wants_stock(self) -> bool:
        """Whether the catalog's names should be added now."""
        if self._next is None or self._thaws < self._next_since:
            return False
        return self.is_complete or self.denied >= DENIED_MIN

    def take_stock(self, keys: Sequence[str], owners: Sequence[str]) -> None:
        """Add a page of names from the catalog."""
        following = self._next
        assert following is not None
        for key in keys:
            following.add(stem_of(key))
        for owner in owners:
            following.add(_OWNER + owner)

    def stock_is_taken(self) -> None:
        """Put the new filter into service after the last page."""
        assert self._next is not None
        self._served, self._next = self._next, None
        self._served.names_first = self._served.names
        self.is_complete = True
