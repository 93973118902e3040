import pytest

from geminga.errors import LedgerNotFound
from geminga.ledger.api import StoredLedger
from geminga.ledger.files.format import RecordKind
from geminga.ledger.recovery.replay import LogReplay
from geminga.ledger.state.index import LedgerState
from geminga.ledger.state.ledger_table import NOBODY
from geminga.ledger.state.state import StoreState


@pytest.fixture
def state(catalog):
    return StoreState(catalog)


def replay(state: StoreState, *records: tuple[int, int, int, bytes]) -> list[LedgerState]:
    """Replay records; returns the ledgers whose creation is not among them."""
    log = LogReplay(state)
    position = 1 << 32 | 64
    for kind, first, second, payload in records:
        position += 100
        log.record(kind, first, second, memoryview(payload), position, 0)
    return log.end()


def test_entries_may_come_before_their_ledgers_creation(state):
    """A creation written again by rewriting is behind the entries of its ledger."""
    assert not replay(
        state,
        (RecordKind.ENTRY, 5, 0, b"a"),
        (RecordKind.ENTRY, 5, 1, b"b"),
        (RecordKind.CREATE, 5, 0, b"owner"),
        (RecordKind.ENTRY, 5, 2, b"c"),
    )
    (info,) = state.ledgers.owned("owner")
    assert (info.ledger_id, info.entries, info.size_bytes) == (5, 3, 3)
    assert state.ledgers.next_id == 6


def test_moved_entries_are_ordered_by_id_when_replayed_after_later_ones(state):
    replay(
        state,
        (RecordKind.CREATE, 1, 0, b"o"),
        (RecordKind.ENTRY, 1, 2, b"c"),
        (RecordKind.MOVED, 1, 0, b"a"),
        (RecordKind.MOVED, 1, 1, b"b"),
    )
    ledger = state.ledgers.ledger(1)
    assert list(ledger.tail.sizes) == [1, 1, 1]
    assert 0 not in ledger.tail.positions
    assert ledger.next_entry == 3


def test_a_deletion_written_again_deletes_records_of_older_files(state):
    assert not replay(
        state,
        (RecordKind.ENTRY, 1, 0, b"a"),
        (RecordKind.DELETE_LEDGER, 1, 0, b""),
        (RecordKind.ENTRY, 1, 1, b"b"),
        (RecordKind.CREATE, 1, 0, b"o"),
    )
    assert state.ledgers.owned("o") == []
    with pytest.raises(LedgerNotFound):
        state.ledgers.ledger(1)


def test_ledgers_whose_creation_is_lost_are_returned(state):
    (orphan,) = replay(state, (RecordKind.ENTRY, 7, 0, b"a"))
    assert (orphan.ledger_id, orphan.next_entry) == (7, 1)
    assert state.ledgers.next_id == 8
    assert state.ledgers.owned(NOBODY) == [StoredLedger(7, NOBODY, 1, 1)]
    assert state.ledgers.adopt(7, "topic")
    assert not state.ledgers.adopt(7, "thief")
    assert state.ledgers.owned("topic") == [StoredLedger(7, "topic", 1, 1)]
    assert state.ledgers.owned(NOBODY) == []


def test_a_ledger_deleted_during_a_checkpoint_is_still_in_it(state, tmp_path):
    ledger = state.ledgers.create("o")
    ledger.set_position(0, 1 << 32 | 64, 5, 0)
    ledger.written_bytes = 5
    state.ledgers.mark_changed(ledger)
    state.freeze_calls()
    assert state.ledgers.delete(ledger.ledger_id)
    assert not state.ledgers.delete(ledger.ledger_id)
    snapshot, changed = state.freeze_positions(1 << 32 | 200, 1, {1: 200})
    state.freeze_ledgers(changed, snapshot)
    assert [change.ledger_id for change in snapshot.ledgers] == [ledger.ledger_id]
    assert snapshot.deleted == set()
    state.freeze_calls()
    assert state.freeze_positions(1 << 32 | 300, 2, {1: 300})[0].deleted == {ledger.ledger_id}


def test_doubted_ledgers_skip_ids_that_may_be_lost(state):
    replay(state, (RecordKind.CREATE, 0, 0, b"o"), (RecordKind.ENTRY, 0, 0, b"a"))
    state.ledgers.cast_doubt(0)
    assert not state.ledgers.ledger(0).doubted
    state.ledgers.cast_doubt(10)
    ledger = state.ledgers.ledger(0)
    assert ledger.doubted
    state.ledgers.step_over_doubt(ledger)
    assert ledger.next_entry == 11
    assert not state.ledgers.create("new").doubted
