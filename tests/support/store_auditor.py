"""Auditor for stores: records writes, and checks that a store's content is consistent with them.

The auditor shares no code with the stores. It keeps the list of writes and whether each had a receipt. As
writes are ordered, the content after a restart must be the result of a prefix of that list that includes
every write with a receipt (I1, I3). Wrong bytes (I5) and reused ids (I2) show as content that no prefix
explains.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from geminga.errors import StoreError
from geminga.ledger.api import EntryStore

Operation = tuple[Any, ...]


@dataclass(slots=True)
class Contents:
    """Content of a store: entries by ledger, ledgers by owner, and (base, deltas) by key."""

    owners: dict[int, str] = field(default_factory=dict)
    entries: dict[int, list[bytes]] = field(default_factory=dict)
    keys: dict[str, tuple[bytes, tuple[bytes, ...]]] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        kind, *rest = operation
        if kind == "create":
            ledger_id, owner = rest
            assert ledger_id not in self.owners, f"ledger id {ledger_id} was given twice"
            self.owners[ledger_id] = owner
            self.entries[ledger_id] = []
        elif kind == "append":
            ledger_id, entry_id, data = rest
            if ledger_id in self.entries:
                assert entry_id == len(self.entries[ledger_id]), f"entry id {entry_id} out of turn"
                self.entries[ledger_id].append(data)
        elif kind == "delete_ledger":
            self.owners.pop(rest[0], None)
            self.entries.pop(rest[0], None)
        elif kind == "put":
            self.keys[rest[0]] = (rest[1], ())
        elif kind == "merge":
            base, deltas = self.keys.get(rest[0], (b"", ()))
            self.keys[rest[0]] = (base, (*deltas, rest[1]))
        elif kind == "delete":
            self.keys.pop(rest[0], None)


def observe(store: EntryStore, owners: set[str], *, entries_max: int = 7, bytes_max: int = 4096) -> Contents:
    """Return the store's whole content, read through its API; damaged entries raise."""
    found = Contents()
    for owner in sorted(owners):
        for info in store.ledgers(owner):
            assert info.ledger_id not in found.owners, "a ledger has two owners"
            found.owners[info.ledger_id] = info.owner
            entries: list[bytes] = []
            while True:
                part = store.read(info.ledger_id, len(entries), entries_max=entries_max, bytes_max=bytes_max)
                if not part:
                    break
                entries += part
            assert info.entries == len(entries), f"{info} but {len(entries)} entries can be read"
            assert info.size_bytes == sum(map(len, entries)), f"{info} has a wrong size"
            found.entries[info.ledger_id] = entries
    for key, value in store.keys.scan(""):
        assert key not in found.keys, f"key {key!r} is scanned twice"
        assert store.keys.get(key) == value
        found.keys[key] = (value.base, tuple(value.deltas))
    assert list(found.keys) == sorted(found.keys), "keys are not scanned in order"
    return found


class StoreAuditor:
    """Writes to a store and records the writes, over many restarts of the store."""

    def __init__(self, base: Contents | None = None) -> None:
        """``base``: present content of the store."""
        self.operations: list[Operation] = []
        self.receipted = 0
        self.failed: list[StoreError] = []
        self._base = base or Contents()
        self._owners: set[str] = set(self._base.owners.values())

    @property
    def owners(self) -> set[str]:
        """Return the owners of all ledgers that ever existed."""
        return self._owners

    # --- writes ---
    def create_ledger(self, store: EntryStore, owner: str) -> int:
        self._owners.add(owner)
        ledger_id = store.create_ledger(owner)
        self.operations.append(("create", ledger_id, owner))
        return ledger_id

    def append(self, store: EntryStore, ledger_id: int, data: bytes) -> int:
        number = len(self.operations)
        entry_id = store.append(ledger_id, data, self._receipt(number))
        self.operations.append(("append", ledger_id, entry_id, data))
        return entry_id

    def append_run(self, store: EntryStore, ledger_id: int, entries: list[bytes]) -> int:
        first = store.append_run(ledger_id, entries, self._receipt(len(self.operations) + len(entries) - 1))
        for entry_id, data in enumerate(entries, first):
            self.operations.append(("append", ledger_id, entry_id, data))
        return first

    def delete_ledgers(self, store: EntryStore, ledger_ids: list[int]) -> None:
        number = len(self.operations) + len(ledger_ids) - 1
        store.delete_ledgers(ledger_ids, self._receipt(number))
        self.operations += [("delete_ledger", ledger_id) for ledger_id in ledger_ids]

    def put(self, store: EntryStore, key: str, value: bytes) -> None:
        store.keys.put(key, value, self._receipt(len(self.operations)))
        self.operations.append(("put", key, value))

    def merge(self, store: EntryStore, key: str, delta: bytes) -> None:
        store.keys.merge(key, delta, self._receipt(len(self.operations)))
        self.operations.append(("merge", key, delta))

    def delete(self, store: EntryStore, key: str) -> None:
        store.keys.delete(key, self._receipt(len(self.operations)))
        self.operations.append(("delete", key))

    def _receipt(self, number: int) -> Callable[[StoreError | None], None]:
        def done(error: StoreError | None) -> None:
            if error is not None:
                self.failed.append(error)
                return
            assert not self.failed, "a receipt after a failure"
            assert number >= self.receipted, "receipts out of order"
            self.receipted = number + 1

        return done

    # --- the audit ---
    def expected(self) -> Iterator[tuple[int, Contents]]:
        """Yield the content after each allowed prefix of the writes, the longest first."""
        states = []
        contents = Contents(
            dict(self._base.owners),
            {k: list(v) for k, v in self._base.entries.items()},
            dict(self._base.keys),
        )
        for number, operation in enumerate([*self.operations, ("end",)]):
            if number >= self.receipted:
                states.append(
                    (
                        number,
                        Contents(
                            dict(contents.owners),
                            {k: list(v) for k, v in contents.entries.items()},
                            dict(contents.keys),
                        ),
                    )
                )
            contents.apply(operation)
        return reversed(states)

    def check_running(self, store: EntryStore) -> None:
        """Check that an open store contains all writes, with or without receipt."""
        found = observe(store, self._owners)
        _, expected = next(iter(self.expected()))
        assert found == expected, _difference(found, expected)

    def check_restarted(self, store: EntryStore) -> None:
        """Check that a reopened store has a prefix of the writes with all receipts; drop the other writes.

        Nothing of it may be damaged.
        """
        assert store.damage.found == []
        found = observe(store, self._owners)
        differences = []
        for number, expected in self.expected():
            if found == expected:
                self._base = found
                self.operations = []
                self.receipted = 0
                self.failed = []
                return
            differences.append((number, _difference(found, expected)))
        number, nearest = min(differences, key=lambda item: len(item[1]))
        raise AssertionError(
            f"the store shows no allowed state ({len(self.operations)} writes, {self.receipted} receipted); "
            f"nearest is that after {number} writes: {nearest[:2000]}"
        )


def _difference(found: Contents, expected: Contents) -> str:
    lines = []
    for name in ("owners", "entries", "keys"):
        left, right = getattr(found, name), getattr(expected, name)
        for key in sorted({*left, *right}, key=str):
            if left.get(key) != right.get(key):
                lines.append(
                    f"{name}[{key!r}]: found {_short(left.get(key))}, expected {_short(right.get(key))}"
                )
    return "; ".join(lines)


def _short(value: object) -> str:
    if isinstance(value, bytes):
        return f"{value[:12]!r}({len(value)})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_short, value))}]"
    return repr(value)
