from __future__ import annotations

from pathlib import Path

import pytest

from geminga.errors import LedgerNotFound
from geminga.ledger.api import StoredLedger
from geminga.ledger.catalog import Catalog
from geminga.ledger.filesystem import RealFileSystem
from geminga.ledger.format import CREATE, DELETE_LEDGER, ENTRY, MOVED
from geminga.ledger.state import NOBODY, StoreState


@pytest.fixture
def state(tmp_path: Path) -> StoreState:
    catalog = Catalog(RealFileSystem().connect(str(tmp_path / "catalog.db")))
    catalog.create(bytes(16))
    return StoreState(catalog, 10_000)


def replay(state: StoreState, *records: tuple[int, int, int, bytes]) -> None:
    position = 1 << 32 | 64
    for kind, first, second, payload in records:
        position += 100
        state.replay(kind, first, second, memoryview(payload), position, 0)


def test_entries_may_come_before_their_ledgers_creation(state: StoreState) -> None:
    """A creation written again by rewriting is behind the entries of its ledger."""
    replay(state, (ENTRY, 5, 0, b"a"), (ENTRY, 5, 1, b"b"), (CREATE, 5, 0, b"owner"), (ENTRY, 5, 2, b"c"))
    assert state.end_replay() == []
    (info,) = state.owned("owner")
    assert (info.ledger_id, info.entries, info.size_bytes) == (5, 3, 3)
    assert state.next_ledger_id == 6


def test_moved_entries_may_come_before_those_they_follow(state: StoreState) -> None:
    replay(state, (CREATE, 1, 0, b"o"), (ENTRY, 1, 2, b"c"), (MOVED, 1, 0, b"a"), (MOVED, 1, 1, b"b"))
    state.end_replay()
    ledger = state.ledger(1)
    assert list(ledger.tail.sizes) == [1, 1, 1]
    assert 0 not in ledger.tail.positions
    assert ledger.next_entry == 3


def test_a_deletion_written_again_deletes_records_of_older_files(state: StoreState) -> None:
    replay(state, (ENTRY, 1, 0, b"a"), (DELETE_LEDGER, 1, 0, b""), (ENTRY, 1, 1, b"b"), (CREATE, 1, 0, b"o"))
    assert state.end_replay() == []
    assert state.owned("o") == []
    with pytest.raises(LedgerNotFound):
        state.ledger(1)


def test_ledgers_whose_creation_is_lost_are_returned(state: StoreState) -> None:
    replay(state, (ENTRY, 7, 0, b"a"))
    (orphan,) = state.end_replay()
    assert (orphan.ledger_id, orphan.next_entry) == (7, 1)
    assert state.next_ledger_id == 8
    assert state.owned(NOBODY) == [StoredLedger(7, NOBODY, 1, 1)]
    assert state.adopt_ledger(7, "topic")
    assert not state.adopt_ledger(7, "thief")
    assert (state.owned("topic"), state.owned(NOBODY)) == ([StoredLedger(7, "topic", 1, 1)], [])


def test_a_ledger_deleted_during_a_checkpoint_is_still_in_it(state: StoreState, tmp_path: Path) -> None:
    ledger = state.create_ledger("o")
    ledger.set_position(0, 1 << 32 | 64, 5, 0)
    ledger.written_bytes = 5
    state._mark_changed(ledger.ledger_id)
    state.freeze_calls()
    assert state.delete_ledger(ledger.ledger_id)
    assert not state.delete_ledger(ledger.ledger_id)
    snapshot, changed = state.freeze_positions(1 << 32 | 200, 1, {1: 200})
    state.freeze_ledgers(changed, snapshot)
    assert [change.ledger_id for change in snapshot.ledgers] == [ledger.ledger_id]
    assert snapshot.deleted == set()
    state.freeze_calls()
    assert state.freeze_positions(1 << 32 | 300, 2, {1: 300})[0].deleted == {ledger.ledger_id}


def test_doubted_ledgers_skip_ids_that_may_be_lost(state: StoreState) -> None:
    replay(state, (CREATE, 0, 0, b"o"), (ENTRY, 0, 0, b"a"))
    state.end_replay()
    state.cast_doubt(0)
    assert not state.ledger(0).doubted
    state.cast_doubt(10)
    ledger = state.ledger(0)
    assert ledger.doubted
    state.step_over_doubt(ledger)
    assert ledger.next_entry == 11
    assert not state.create_ledger("new").doubted
