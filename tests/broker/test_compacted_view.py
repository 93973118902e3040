"""A compacted ledger: where an offset or an id is in it."""

import pytest

from geminga.broker.entries.compacted_view import (
    CompactedLedger,
    CompactedScan,
    Seal,
    framed,
    seal_of,
    sealed,
)
from geminga.ledger.memory import MemoryStore


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def ledger(store):
    """Offsets 10, 20 ... of ledgers of ten entries each that begin at 0."""
    ledger_id = store.create_ledger("c")
    for offset in range(10, 100, 10):
        store.append(ledger_id, framed(offset, offset // 10, offset % 10, b"%d" % offset), lambda error: None)
    seal = Seal(120, (9, 0, -1))
    assert seal_of(store, ledger_id, 9) is None
    store.append(ledger_id, sealed(seal), lambda error: None)
    assert seal_of(store, ledger_id, 10) == seal
    return CompactedLedger(store, "t", ledger_id, 9, 1000, seal)


def test_entries_are_found_by_offset_and_position(ledger):
    assert [ledger.find(offset=offset) for offset in (0, 10, 11, 20, 90, 91, 500)] == [0, 0, 1, 1, 8, 9, 9]
    positions = [(-1, -1), (1, 0), (1, 1), (2, 0), (8, 5), (9, 0), (9, 1), (2**63 - 1, 2**63 - 1)]
    assert [ledger.find(position=each) for each in positions] == [0, 0, 1, 1, 8, 8, 9, 9]


def test_a_replaced_ledger_stays_while_it_is_read(store, ledger):
    reading = CompactedScan(ledger, position=(8, 0))
    ledger.replaced()
    found = []
    while not reading.is_over:
        entry = reading.next(lambda error: None)
        if entry is not None:
            found.append(entry.entry)
            reading.take()
    assert found == [b"80", b"90"]
    assert store.ledgers("c")
    reading.close()
    assert not store.ledgers("c")
