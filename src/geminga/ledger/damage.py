"""What is known to be damaged in a store: one `Damage` for each thing that lost something."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from geminga.by_fields import ByFields
from geminga.errors import StoreDamaged


class DamageLoss(StrEnum):
    """What a damaged place took with it."""

    NOTHING = "nothing"
    """The bytes are wrong, but what they said is known otherwise, or nobody needs it any more."""
    ENTRIES = "entries"
    DELTA = "delta"
    """One delta of a key; the value before it and the other deltas are there."""
    VALUE = "value"
    """A key's last value, or its deletion: what is there is older, or nothing."""
    OWNER = "owner"
    """Whose a ledger is: its entries are there, and belong to nobody until somebody adopts them."""
    RECORDS = "records"
    """Records of which nothing is known but how many there may have been."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Damage(ByFields):
    """One place where synced bytes are not what was written.

    ``file`` and ``offset`` say where, ``what`` says what was there, ``lost`` what is gone with it. For
    damaged entries ``ledger_id``, ``first_entry_id`` and ``last_entry_id`` name them, for a key's lost write
    ``key`` does; they are None where that is not known. ``fingerprint`` is the CRC32C of the name of a key
    whose name is lost too.
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
        """What administrators call it by: the place, or the entry where that is not known."""
        if self.offset == 0 and self.first_entry_id is not None:
            return f"ledger-{self.ledger_id}@{self.first_entry_id}"
        return f"{self.file}@{self.offset}"

    @property
    def thing(self) -> str:
        """What is harmed, in words."""
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
    """Entries that were asked for cannot be read; ``damage`` says which and where."""

    def __init__(self, message: str, damage: Damage | None = None) -> None:
        super().__init__(message)
        self.damage = damage

    def __reduce__(self) -> tuple[type[EntriesDamaged], tuple[str, Damage | None]]:
        return type(self), (str(self), self.damage)
