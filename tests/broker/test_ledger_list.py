"""A topic's list of ledgers, whole and after damage: no offset is ever used twice."""

from collections.abc import Sequence
from typing import Any

import pytest

from geminga.broker.entries import ledger_list
from geminga.broker.entries.ledger_list import END_MARKER, key_of, put_ledger
from geminga.errors import StoreDamaged
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.memory import MemoryStore


class Harm:
    """Damage of a store in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.lost_entries: dict[int, int] = {}
        self.orphans: set[int] = set()

    @property
    def found(self) -> list[Damage]:
        return [Damage("log", 1, "what", lost=DamageLoss.RECORDS)]

    def lost_entries_max(self, ledger_id: int) -> int:
        return self.lost_entries.get(ledger_id, 0)

    def adopt_ledger(self, ledger_id: int, owner: str) -> bool:
        if ledger_id not in self.orphans:
            return False
        self.orphans.remove(ledger_id)
        self._store._owners.setdefault(owner, []).append(ledger_id)
        self._store._owners[owner].sort()
        self._store._ledgers[ledger_id].owner = owner
        return True


@pytest.fixture
def store():
    store: Any = MemoryStore()
    store.damage = Harm(store)
    return store


def make(store: MemoryStore, entries: Sequence[int], *, without: Sequence[int] = ()) -> list[int]:
    """Create ledgers of topic "t" with these numbers of entries; do not list those at ``without``."""
    ids, base = [], 0
    for index, count in enumerate(entries):
        ledger_id = store.create_ledger("t")
        for _ in range(count):
            store.append(ledger_id, b"x", lambda error: None)
        if index not in without:
            add(store, ledger_id, base, 1000 * index)
        ids.append(ledger_id)
        base += count
    return ids


def add(store: MemoryStore, ledger_id: int, base: int, created_ms: int = 0) -> None:
    record = bytearray()
    put_ledger(record, ledger_id, base, created_ms)
    store.keys.merge(key_of("t"), bytes(record))


def places(store: MemoryStore, now_ms: int = 99_000) -> list[tuple[int, int, int]]:
    """(ledger id, base, creation time) of each ledger."""
    found = ledger_list.load(store, "t", now_ms)
    return [(info.ledger_id, *place) for info, place in found.ledgers]


def test_a_complete_list_is_used_unchanged(store):
    first, second, third = make(store, [3, 0, 5])
    found = ledger_list.load(store, "t", 0)
    assert places(store) == [(first, 0, 0), (third, 3, 2000)]
    assert found.empty == [second]
    assert (found.end, found.was_mended) == (8, False)


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ([0], [(0, 2000), (3, 1000), (7, 2000)]),
        ([1], [(0, 0), (3, 2000), (7, 2000)]),
        ([2], [(0, 0), (3, 1000), (7, 99_000)]),
        ([0, 1], [(0, 2000), (3, 2000), (7, 2000)]),
        ([1, 2], [(0, 0), (3, 99_000), (7, 99_000)]),
    ],
)
def test_a_ledger_without_record_is_placed_between_its_neighbours(store, without, expected):
    ids = make(store, [3, 4, 5], without=without)
    if without[0] == 0:
        expected[0] = (0, expected[1][1])  # closed no earlier than the next began
    found = ledger_list.load(store, "t", 99_000)
    assert places(store) == [(ledger_id, *place) for ledger_id, place in zip(ids, expected, strict=True)]
    assert (found.end, found.was_mended) == (12, True)


def test_ledgers_without_any_record_begin_at_unused_offsets(store):
    """Offsets that a subscription may have acknowledged would hide what is in them."""
    first, second = make(store, [3, 4], without=[0, 1])
    (_, base, created_ms), (_, following, _) = places(store)
    assert base >= 1 << 40
    assert following == base + 3
    assert created_ms == 99_000
    assert ledger_list.load(store, "t", 0).end == base + 7
    later = make(store, [1], without=[0])[0]
    store.delete_ledgers([first, second])
    ((_, again, _),) = places(store)
    assert later > second
    assert again > base + 7


def test_a_listed_ledger_without_owner_is_adopted(store):
    ids = make(store, [3, 4, 5])
    store._owners["t"].remove(ids[1])
    store._owners[""] = [ids[1]]
    store.damage.orphans.add(ids[1])
    assert [ledger_id for ledger_id, _, _ in places(store)] == ids
    assert not ledger_list.load(store, "t", 0).was_mended


def test_offsets_of_possibly_lost_entries_are_skipped(store):
    first, second = make(store, [3, 4])
    store.damage.lost_entries = {first: 10, second: 10, 77: 10}
    assert ledger_list.load(store, "t", 0).end == 17
    add(store, 77, 7)  # created and lost with all its entries
    assert ledger_list.load(store, "t", 0).end == 17
    add(store, 77, 30)
    assert ledger_list.load(store, "t", 0).end == 40
    add(store, END_MARKER, 50)
    assert ledger_list.load(store, "t", 0).end == 50


def test_a_list_that_contradicts_itself_is_refused(store):
    first, second = make(store, [3, 4])
    add(store, second, 2)
    with pytest.raises(StoreDamaged, match=f"ledger {second} overlaps"):
        ledger_list.load(store, "t", 0)
    assert first == 0
