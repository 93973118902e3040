"""Quarantine: list of the damage of a store.

Damaged bytes harm only their own record: some entries of a ledger, a write of a key, the owner of a ledger.
The damage is listed here with its loss, and all other data is served as usual. Damage leaves the list when it
is obsolete (its key is set or deleted, its ledger is deleted or adopted), or when an administrator settles
it, that is, accepts the loss.

The list follows from the log, as all state does: damage is found again when the log is read again, and its
settling is recorded in the log.
"""

import dataclasses
from collections.abc import Iterable, Iterator

from geminga.ledger.api import LostWrites
from geminga.ledger.damage import Damage, DamageLoss
from geminga.wire.checksum import crc32c

ENTRY_DAMAGE_LISTED_MAX = 10_000
"""Damaged runs of entries that are listed; more are only counted, but reading them still raises."""


class Quarantine:
    """List of damage. Used on the owner's thread only."""

    def __init__(self, damages: Iterable[Damage] = ()) -> None:
        self._damages: dict[Damage, None] = {}
        self._keys: dict[str, list[Damage]] = {}
        self._fingerprints: dict[int, list[Damage]] = {}
        self._ledgers: dict[int, list[Damage]] = {}
        self._settled: set[str] = set()
        self.unlisted = 0
        for damage in damages:
            self.add(damage)

    def __iter__(self) -> Iterator[Damage]:
        return iter(list(self._damages))

    def __len__(self) -> int:
        return len(self._damages)

    def named(self, name: str) -> list[Damage]:
        """Return the damage with a name; rarely more than one item."""
        return [damage for damage in self._damages if damage.name == name]

    # --- new damage ---
    def add(self, damage: Damage) -> bool:
        """List a damage; False if it is listed already."""
        if damage in self._damages or damage.name in self._settled:
            return False
        if damage.lost == DamageLoss.ENTRIES and not self._grow(damage):
            return False
        self._damages[damage] = None
        if damage.ledger_id is not None:
            self._ledgers.setdefault(damage.ledger_id, []).append(damage)
        if damage.lost in (DamageLoss.DELTA, DamageLoss.VALUE):
            if damage.key is not None:
                self._keys.setdefault(damage.key, []).append(damage)
            elif damage.fingerprint is not None:
                self._fingerprints.setdefault(damage.fingerprint, []).append(damage)
        return True

    def _grow(self, damage: Damage) -> bool:
        """Extend a listed run by the damaged entries behind it; True if they must be listed separately."""
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
        if len(self._damages) >= ENTRY_DAMAGE_LISTED_MAX:
            self.unlisted += 1
            return False
        return True

    def lost(self, key: str) -> LostWrites | None:
        """Return the lost writes of a key; None if the key is intact."""
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
        """Return the damaged entries of a ledger, (first, last) of each run, in order."""
        return sorted(
            (damage.first_entry_id, damage.last_entry_id)
            for damage in self._ledgers.get(ledger_id, ())
            if damage.lost == DamageLoss.ENTRIES
            and damage.first_entry_id is not None
            and damage.last_entry_id is not None
        )

    def keys_under(self, prefix: str) -> list[str]:
        """Return the keys with the prefix that lost writes."""
        return [key for key in self._keys if key.startswith(prefix)]

    def resolve(self, names: dict[int, list[str]]) -> None:
        """Set the key names of damage whose names were lost: ``names`` by fingerprint."""
        for fingerprint, keys in names.items():
            for damage in self._fingerprints.get(fingerprint, [])[:]:
                self.discard(damage)
                for key in keys:
                    self.add(dataclasses.replace(damage, key=key))

    @property
    def nameless(self) -> set[int]:
        """Return the fingerprints of keys that lost writes and whose names are unknown."""
        return set(self._fingerprints)

    # --- obsolete damage ---
    def key_is_whole(self, key: str) -> None:
        """Remove the damage of a key that was set or deleted."""
        if not self._keys and not self._fingerprints:
            return
        gone = [*self._keys.get(key, ())]
        if self._fingerprints:
            gone += self._fingerprints.get(crc32c(key.encode()), ())
        for damage in gone:
            self.discard(damage)

    def ledger_is_gone(self, ledger_id: int) -> None:
        """Remove the damage of a deleted ledger."""
        for damage in [*self._ledgers.get(ledger_id, ())]:
            self.discard(damage)

    def ledger_has_owner(self, ledger_id: int) -> None:
        """Remove the lost owner of an adopted ledger."""
        for damage in [*self._ledgers.get(ledger_id, ())]:
            if damage.lost == DamageLoss.OWNER:
                self.discard(damage)

    def settle(self, name: str) -> None:
        """Remove damage whose loss is accepted; the name is never listed again."""
        for damage in self.named(name):
            self.discard(damage)
        self._settled.add(name)

    @property
    def settled(self) -> list[str]:
        """Return the names of settled damage."""
        return sorted(self._settled)

    def discard(self, damage: Damage) -> None:
        """Remove a damage from the list."""
        if self._damages.pop(damage, self) is self:
            return
        lists: list[tuple[dict[object, list[Damage]], object]] = [
            (self._ledgers, damage.ledger_id),  # type: ignore[list-item]
            (self._keys, damage.key),  # type: ignore[list-item]
            (self._fingerprints, damage.fingerprint),  # type: ignore[list-item]
        ]
        for by_name, name in lists:
            damages = by_name.get(name)
            if damages is not None and damage in damages:
                damages.remove(damage)
                if not damages:
                    del by_name[name]
