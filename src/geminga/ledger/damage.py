"""Known damage of a store: one `Damage` for each entry, key or ledger that lost bytes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from geminga.errors import StoreDamaged


class DamageLoss(StrEnum):
    """Kind of data that damage destroyed."""

    NOTHING = "nothing"
    """The bytes are wrong, but their content is stored elsewhere too, or is not needed any more."""
    ENTRIES = "entries"
    DELTA = "delta"
    """One delta of a key; the value before it and the other deltas are intact."""
    VALUE = "value"
    """A key's last value, or its deletion: the key has an older value, or none."""
    OWNER = "owner"
    """Owner of a ledger: its entries are intact, and belong to no topic until one adopts the ledger."""
    RECORDS = "records"
    """Unknown records: only their largest possible number is known."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Position in a file where synced bytes differ from those written.

    ``file`` and ``offset`` name the position, ``what`` the damaged structure, ``lost`` the kind of loss.
    Damaged entries have ``ledger_id``, ``first_entry_id`` and ``last_entry_id``, a key's lost write has
    ``key``; they are None if unknown. ``fingerprint`` is the CRC32C of the name of a key whose name is lost
    too.
    """

    file: str
    offset: int
    what: str
    ledger_id: int | None = None
    first_entry_id: int | None = None
    last_entry_id: int | None = None
    lost: DamageLoss = DamageLoss.RECORDS
    key: str | None = None
    fingerprint: int | None = None

    @property
    def name(self) -> str:
        """Return the name for administrators: file and offset, or the first entry without an offset."""
        if self.offset == 0 and self.first_entry_id is not None:
            return f"ledger-{self.ledger_id}@{self.first_entry_id}"
        return f"{self.file}@{self.offset}"

    @property
    def thing(self) -> str:
        """Describe the damaged key, ledger or entries."""
        if self.key is not None:
            return f"key {self.key!r}"
        if self.ledger_id is None:
            return "a key whose name is lost too" if self.fingerprint is not None else "not known"
        if self.first_entry_id is None:
            return f"ledger {self.ledger_id}"
        if self.first_entry_id == self.last_entry_id:
            return f"ledger {self.ledger_id}, entry {self.first_entry_id}"
        return f"ledger {self.ledger_id}, entries {self.first_entry_id} to {self.last_entry_id}"

    def __str__(self) -> str:
        where = f"{self.file} at offset {self.offset}: {self.what}"
        return where if self.thing == "not known" else f"{where}; {self.thing}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Damage:
        fields = json.loads(text)
        return cls(**{**fields, "lost": DamageLoss(fields.get("lost", DamageLoss.RECORDS))})


class EntriesDamaged(StoreDamaged):
    """Requested entries cannot be read; ``damage`` says which and where."""

    def __init__(self, message: str, damage: Damage | None = None) -> None:
        super().__init__(message)
        self.damage = damage

    def __reduce__(self) -> tuple[type[EntriesDamaged], tuple[str, Damage | None]]:
        return type(self), (str(self), self.damage)
