"""Damage of a durable store: its list, accepted losses, and lost records that are written again."""

import logging
from collections.abc import Callable, Iterable, Sequence

from geminga.ledger.api import Done
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.files.format import RecordKind
from geminga.ledger.store_parts import StoreParts
from geminga.ledger.upkeep.rewriting import restatement

logger = logging.getLogger("geminga.ledger")


class FileStoreDamage:
    """Implements `geminga.ledger.api.StoreDamage`: records accepted losses, and restores lost records."""

    def __init__(
        self,
        parts: StoreParts,
        delete_ledgers: Callable[[Sequence[int]], None],
        look_again: Callable[[], None],
    ) -> None:
        self._folder = parts.folder
        self._state = state = parts.state
        self._writes = parts.writes
        self._submit = parts.writes.submit
        self._delete_ledgers = delete_ledgers
        self._look_again = look_again
        self.lost_entries_max = state.ledgers.lost_entries_max
        self.entries_of = state.quarantine.entries_of

    @property
    def found(self) -> list[Damage]:
        return list(self._state.quarantine)

    def note(self, damage: Damage) -> None:
        """List damage that was found while reading, and log it."""
        if self._state.quarantine.add(damage):
            logger.error("damage in the store %s: %s", self._folder, damage)

    def adopt_ledger(self, ledger_id: int, owner: str) -> bool:
        self._writes.check()
        if not self._state.ledgers.adopt(ledger_id, owner):
            return False
        self._submit(RecordKind.CREATE, ledger_id, 0, owner.encode(), None)
        return True

    def settle(self, name: str, done: Done | None = None) -> bool:
        self._writes.check()
        quarantine = self._state.quarantine
        damages = quarantine.named(name)
        for damage in damages:
            self._settle(damage)
        if damages:
            quarantine.settle(name)
            self._look_again()
            self._submit(RecordKind.SETTLE, 0, 0, name.encode(), done)
        else:
            self._submit(RecordKind.NOTHING, 0, 0, b"", done)
        return bool(damages)

    def _settle(self, damage: Damage) -> None:
        """Record in the log that the loss is accepted."""
        if damage.lost == DamageLoss.ENTRIES and damage.ledger_id is not None:
            assert damage.first_entry_id is not None
            assert damage.last_entry_id is not None
            for entry_id in range(damage.first_entry_id, damage.last_entry_id + 1):
                self._state.ledgers.give_up(damage.ledger_id, entry_id)
                self._submit(RecordKind.GIVE_UP, damage.ledger_id, entry_id, b"", None)
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
                self._submit(RecordKind.CREATE, ledger_id, 0, owner.encode(), None)
