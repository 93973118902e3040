"""What is known to be damaged in a store."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from geminga.errors import StoreDamaged


@dataclass(frozen=True, slots=True)
class Damage:
    """One place where synced bytes are not what was written.

    ``file`` and ``offset`` say where, ``what`` says what was there. For damaged entries ``ledger_id``,
    ``first_entry_id`` and ``last_entry_id`` name them; they are None where that is not known.
    """

    file: str
    offset: int
    what: str
    ledger_id: int | None = None
    first_entry_id: int | None = None
    last_entry_id: int | None = None

    def __str__(self) -> str:
        where = f"{self.file} at offset {self.offset}: {self.what}"
        if self.ledger_id is None:
            return where
        if self.first_entry_id is None:
            return f"{where}; ledger {self.ledger_id}"
        if self.first_entry_id == self.last_entry_id:
            return f"{where}; ledger {self.ledger_id}, entry {self.first_entry_id}"
        return f"{where}; ledger {self.ledger_id}, entries {self.first_entry_id} to {self.last_entry_id}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Damage:
        return cls(**json.loads(text))


class EntriesDamaged(StoreDamaged):
    """Entries that were asked for cannot be read; ``damage`` says which and where."""

    def __init__(self, message: str, damage: Damage | None = None) -> None:
        super().__init__(message)
        self.damage = damage

    def __reduce__(self) -> tuple[type[EntriesDamaged], tuple[str, Damage | None]]:
        return type(self), (str(self), self.damage)
