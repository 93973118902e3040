"""Settling damage: what it took is written down as taken, and what the log lost is written to it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from geminga.ledger.api import Buffer, Done
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.format import CREATE, GIVE_UP, NOTHING, SETTLE
from geminga.ledger.rewriting import restatement
from geminga.ledger.state import StoreState


class Submit(Protocol):
    """Has a record written: kind, first, second, data, and who is told."""

    def __call__(self, kind: int, first: int, second: int, data: Buffer, done: Done | None) -> None: ...


class DamageRecorder:
    """See the module; on the owner's thread."""

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
        """`geminga.ledger.api.EntryStore.settle_damage`."""
        quarantine = self._state.quarantine
        things = quarantine.named(name)
        for thing in things:
            self._settle(thing)
        if things:
            quarantine.settle(name)
            self._look_again()
        self._submit(SETTLE if things else NOTHING, 0, 0, name.encode() if things else b"", done)
        return bool(things)

    def _settle(self, thing: Damage) -> None:
        """Write down that nobody waits any more for what the thing lost."""
        if thing.lost == DamageLoss.ENTRIES and thing.ledger_id is not None:
            assert thing.first_entry_id is not None
            assert thing.last_entry_id is not None
            for entry_id in range(thing.first_entry_id, thing.last_entry_id + 1):
                self._state.give_up(thing.ledger_id, entry_id)
                self._submit(GIVE_UP, thing.ledger_id, entry_id, b"", None)
        elif thing.lost == DamageLoss.OWNER and thing.ledger_id is not None:
            self._delete_ledgers([thing.ledger_id])
        elif thing.key is not None and thing.lost != DamageLoss.NOTHING:
            self._state.quarantine.key_is_whole(thing.key)
            self._restate(thing.key)

    def _restate(self, key: str) -> None:
        """Write again what is under a key."""
        record = restatement(self._state, key, with_deletion=True)
        if record is not None:
            self._submit(*record, None)

    def write_again(self, keys: Iterable[str], ledgers: Iterable[int]) -> None:
        """Write keys, and whose ledgers are, as the catalog has them."""
        for key in sorted(keys):
            self._restate(key)
        for ledger_id in sorted(ledgers):
            if self._state.exists(ledger_id):
                owner = self._state.ledger(ledger_id).owner
                self._submit(CREATE, ledger_id, 0, owner.encode(), None)
