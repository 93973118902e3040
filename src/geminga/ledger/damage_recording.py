"""Settling of damage: records accepted losses in the log, and writes lost records to the log again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from geminga.ledger.api import Buffer, Done
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.format import CREATE, GIVE_UP, NOTHING, SETTLE
from geminga.ledger.rewriting import restatement
from geminga.ledger.state import StoreState


class Submit(Protocol):
    """Function that writes a record: kind, first, second, data, and the callback."""

    def __call__(self, kind: int, first: int, second: int, data: Buffer, done: Done | None) -> None: ...


class DamageRecorder:
    """Records accepted losses, and restores lost records. Used on the owner's thread."""

    def __init__(
        self,
        state: StoreState,
        submit: Submit,
        delete_ledgers: Callable[[Sequence[int]], None],
        look_again: Callable[[], None],
    ) -> None:
        self._state = state
        self._submit = submit
        self._delete_ledgers = delete_ledgers
        self._look_again = look_again

    def settle(self, name: str, done: Done | None) -> bool:
        """Implement `geminga.ledger.api.EntryStore.settle_damage`."""
        quarantine = self._state.quarantine
        damages = quarantine.named(name)
        for damage in damages:
            self._settle(damage)
        if damages:
            quarantine.settle(name)
            self._look_again()
        self._submit(SETTLE if damages else NOTHING, 0, 0, name.encode() if damages else b"", done)
        return bool(damages)

    def _settle(self, damage: Damage) -> None:
        """Record in the log that the loss is accepted."""
        if damage.lost == DamageLoss.ENTRIES and damage.ledger_id is not None:
            assert damage.first_entry_id is not None
            assert damage.last_entry_id is not None
            for entry_id in range(damage.first_entry_id, damage.last_entry_id + 1):
                self._state.ledgers.give_up(damage.ledger_id, entry_id)
                self._submit(GIVE_UP, damage.ledger_id, entry_id, b"", None)
        elif damage.lost == DamageLoss.OWNER and damage.ledger_id is not None:
            self._delete_ledgers([damage.ledger_id])
        elif damage.key is not None and damage.lost != DamageLoss.NOTHING:
            self._state.quarantine.key_is_whole(damage.key)
            self._restate(damage.key)

    def _restate(self, key: str) -> None:
        """Write the value of a key again."""
        record = restatement(self._state, key, with_deletion=True)
        if record is not None:
            self._submit(*record, None)

    def write_again(self, keys: Iterable[str], ledgers: Iterable[int]) -> None:
        """Write keys, and the owners of ledgers, again as the catalog has them."""
        for key in sorted(keys):
            self._restate(key)
        for ledger_id in sorted(ledgers):
            if self._state.ledgers.exists(ledger_id):
                owner = self._state.ledgers.ledger(ledger_id).owner
                self._submit(CREATE, ledger_id, 0, owner.encode(), None)
