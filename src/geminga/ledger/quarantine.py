"""The quarantine: what damage took out of a store, thing by thing.

A damaged place harms the one thing that lay there: some entries of a ledger, a write of a key, the owner
of a ledger. That thing is listed here with what it lost, and everything else is served as if nothing were.
A thing leaves the list when it is no longer harmed (its key is set anew or deleted, its ledger deleted or
adopted), or when an administrator settles it, that is, takes what is left of it for all there is.

The list follows from the log alone, as everything else does: damage is found again when the log is read
again, and what was settled since is written behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from geminga.ledger.api import LostWrites
from geminga.ledger.damage import Damage, DamageLoss
from geminga.wire.checksum import crc32c

ENTRY_DAMAGE_LISTED_MAX = 10_000
"""So many places of damaged entries are listed, more are counted; their bytes are refused all the same."""


class Quarantine:
    """Damaged things. Used on the owner's thread only."""

    def __init__(self, things: Iterable[Damage] = ()) -> None:
        self._things: dict[Damage, None] = {}
        self._keys: dict[str, list[Damage]] = {}
        self._fingerprints: dict[int, list[Damage]] = {}
        self._ledgers: dict[int, list[Damage]] = {}
        self._settled: set[str] = set()
        self.unlisted = 0
        for thing in things:
            self.add(thing)

    def __iter__(self) -> Iterator[Damage]:
        return iter(list(self._things))

    def __len__(self) -> int:
        return len(self._things)

    def named(self, name: str) -> list[Damage]:
        """The things that administrators call by that name; rarely more than one."""
        return [thing for thing in self._things if thing.name == name]

    # --- what is found ---
    def add(self, damage: Damage) -> bool:
        """List a thing; False when it is listed already."""
        if damage in self._things or damage.name in self._settled:
            return False
        if damage.lost == DamageLoss.ENTRIES and not self._grow(damage):
            return False
        self._things[damage] = None
        if damage.ledger_id is not None:
            self._ledgers.setdefault(damage.ledger_id, []).append(damage)
        if damage.lost in (DamageLoss.DELTA, DamageLoss.VALUE):
            if damage.key is not None:
                self._keys.setdefault(damage.key, []).append(damage)
            elif damage.fingerprint is not None:
                self._fingerprints.setdefault(damage.fingerprint, []).append(damage)
        return True

    def _grow(self, damage: Damage) -> bool:
        """Make one thing of damaged entries that follow each other; whether a new one is to be listed."""
        assert damage.first_entry_id is not None
        assert damage.last_entry_id is not None
        for other in self._ledgers.get(damage.ledger_id or 0, ()):
            first, last = other.first_entry_id, other.last_entry_id
            if other.lost != DamageLoss.ENTRIES or first is None or last is None:
                continue
            if first <= damage.first_entry_id and damage.last_entry_id <= last:
                return False
            if damage.first_entry_id == last + 1 and (other.file, other.what) == (damage.file, damage.what):
                self.discard(other)
                self.add(dataclasses.replace(other, last_entry_id=damage.last_entry_id))
                return False
        if len(self._things) >= ENTRY_DAMAGE_LISTED_MAX:
            self.unlisted += 1
            return False
        return True

    def lost(self, key: str) -> LostWrites | None:
        """What the key lost; None when it is whole."""
        if not self._keys and not self._fingerprints:
            return None
        found = self._keys.get(key, ())
        if self._fingerprints:
            found = [*found, *self._fingerprints.get(crc32c(key.encode()), ())]
        if not found:
            return None
        deltas = sum(damage.lost == DamageLoss.DELTA for damage in found)
        return LostWrites(values=len(found) - deltas, deltas=deltas)

    def entries_of(self, ledger_id: int) -> list[tuple[int, int]]:
        """The damaged entries of a ledger, (first, last) of each run, in order."""
        return sorted(
            (damage.first_entry_id, damage.last_entry_id)
            for damage in self._ledgers.get(ledger_id, ())
            if damage.lost == DamageLoss.ENTRIES
            and damage.first_entry_id is not None
            and damage.last_entry_id is not None
        )

    def keys_under(self, prefix: str) -> list[str]:
        """The keys with the prefix that lost something."""
        return [key for key in self._keys if key.startswith(prefix)]

    def resolve(self, names: dict[int, list[str]]) -> None:
        """Learn which keys lost writes that said no name: ``names`` by fingerprint."""
        for fingerprint, keys in names.items():
            for damage in self._fingerprints.get(fingerprint, [])[:]:
                self.discard(damage)
                for key in keys:
                    self.add(dataclasses.replace(damage, key=key))

    @property
    def nameless(self) -> set[int]:
        """Fingerprints of keys that lost writes and whose names are not known."""
        return set(self._fingerprints)

    # --- what is harmed no longer ---
    def key_is_whole(self, key: str) -> None:
        """The key was set anew or deleted."""
        if not self._keys and not self._fingerprints:
            return
        gone = [*self._keys.get(key, ())]
        if self._fingerprints:
            gone += self._fingerprints.get(crc32c(key.encode()), ())
        for damage in gone:
            self.discard(damage)

    def ledger_is_gone(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        for damage in [*self._ledgers.get(ledger_id, ())]:
            self.discard(damage)

    def ledger_has_owner(self, ledger_id: int) -> None:
        """The ledger was adopted."""
        for damage in [*self._ledgers.get(ledger_id, ())]:
            if damage.lost == DamageLoss.OWNER:
                self.discard(damage)

    def settle(self, name: str) -> None:
        """What lost something there is taken as it is; it is not listed again."""
        for damage in self.named(name):
            self.discard(damage)
        self._settled.add(name)

    @property
    def settled(self) -> list[str]:
        """The names of what was settled."""
        return sorted(self._settled)

    def discard(self, damage: Damage) -> None:
        """Take a thing off the list."""
        if self._things.pop(damage, self) is self:
            return
        lists: list[tuple[dict[object, list[Damage]], object]] = [
            (self._ledgers, damage.ledger_id),  # type: ignore[list-item]
            (self._keys, damage.key),  # type: ignore[list-item]
            (self._fingerprints, damage.fingerprint),  # type: ignore[list-item]
        ]
        for by_name, name in lists:
            things = by_name.get(name)
            if things is not None and damage in things:
                things.remove(damage)
                if not things:
                    del by_name[name]
