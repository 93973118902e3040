"""Presence: what the catalog surely does not have, known without asking it.

Whoever makes a topic first asks for a dozen things that are not there. A filter (Bloom's, a few bits a name)
answers nearly all of that from memory: it never misses what is there, and once in a hundred times takes
something for present that is not, which the catalog then denies.

What it holds are *stems*: of a key all up to its first NUL, the whole key where there is none. So it also
knows that no key begins with such a part, and which owners have no ledger.

A new store is known from its first write. What a catalog has of earlier lives is counted in by pages, when
somebody asks for what is not there often enough (`filter_builder`). Nothing is ever taken out; when far more has
come in than there was, the filter is made anew beside the one that serves.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from geminga.ledger.api import KEYS_END, PrefetchRequest

_OWNER: Final = "\0"
"""Before an owner's name: no key begins so."""
_STEMS_FIRST: Final = 1 << 15
"""Room in a filter's first part; each further part has four times as much."""
_PARTS_MAX: Final = 5
"""11 million names in 22 MB. With more, ever more is taken for present that is not, which is only slower."""
_OUTGROWN_TIMES: Final = 3
"""A filter with so many times what it had when it was made is made anew."""
DENIED_MIN: Final = 256
"""So often something must have been asked for that is not there before the catalog is counted in."""


def stem_of(key: str) -> str:
    """See the module."""
    end = key.find("\0")
    return key if end < 0 else key[: end + 1]


def _is_stem(prefix: str) -> bool:
    """Whether all keys with the prefix have it as their stem."""
    return prefix.endswith("\0") and prefix.find("\0") == len(prefix) - 1


_TWO_BITS: Final = [1 << (number & 63) | 1 << (number >> 6) for number in range(4096)]


class _Filter:
    """Words of 64 bits, one for each four names, in which each name sets four bits.

    They are in parts, each larger than the one before, as names come in.
    """

    __slots__ = ("_parts", "_room", "names", "names_first")

    def __init__(self) -> None:
        self._parts: list[tuple[array[int], int]] = []
        self._room = 0
        self.names = 0
        self.names_first = 0
        """How many there were when it was made."""

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
    """See the module. Used on the owner's thread only.

    Whatever is written is added at once, before the catalog has it, so what is missing in a filter that is
    complete is not in the catalog.
    """

    __slots__ = ("_freezes", "_next", "_next_since", "_served", "_thaws", "denied", "is_complete")

    def __init__(self) -> None:
        self._served = _Filter()
        self.is_complete = False
        self._next: _Filter | None = self._served
        self._next_since = 0
        self._freezes = self._thaws = 0
        self.denied = 0
        """How often something was asked of the catalog that it did not have."""

    def add(self, key: str) -> None:
        """A key is written."""
        self._add(stem_of(key))

    def add_owner(self, owner: str) -> None:
        """An owner has a ledger."""
        self._add(_OWNER + owner)

    def _add(self, stem: str) -> None:
        served, following = self._served, self._next
        served.add(stem)
        if following is not None:
            if following is not served:
                following.add(stem)
        elif served.is_outgrown:
            # What is unsaved now is in the catalog when the checkpoint behind the next freeze is.
            self._next, self._next_since = _Filter(), self._freezes + 1

    # --- questions ---
    def may_have(self, key: str) -> bool:
        """False: the catalog does not have the key."""
        return not self.is_complete or self._served.has(stem_of(key))

    def may_have_under(self, prefix: str) -> bool:
        """False: it has no key with that prefix, and none is on its way there."""
        return not self.is_complete or not _is_stem(prefix) or self._served.has(prefix)

    def may_own(self, owner: str) -> bool:
        """False: no ledger has that owner."""
        return not self.is_complete or not owner or self._served.has(_OWNER + owner)

    def may_have_any(self, wanted: PrefetchRequest) -> bool:
        """False: it has nothing of that."""
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

    # --- counting in what earlier lives left ---
    def frozen(self) -> None:
        """What was written so far is set apart for a checkpoint."""
        self._freezes += 1

    def thawed(self) -> None:
        """The catalog has what was set apart."""
        self._thaws += 1

    @property
    def wants_stock(self) -> bool:
        """Whether the catalog is to be counted in now."""
        if self._next is None or self._thaws < self._next_since:
            return False
        return self.is_complete or self.denied >= DENIED_MIN

    def take_stock(self, keys: Sequence[str], owners: Sequence[str]) -> None:
        """The catalog has these."""
        following = self._next
        assert following is not None
        for key in keys:
            following.add(stem_of(key))
        for owner in owners:
            following.add(_OWNER + owner)

    def stock_is_taken(self) -> None:
        """The catalog has nothing else."""
        assert self._next is not None
        self._served, self._next = self._next, None
        self._served.names_first = self._served.names
        self.is_complete = True
