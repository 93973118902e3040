import threading
from array import array
from typing import Any, cast

import pytest
from doubles import calls_of
from waiting import Blocked, join_threads, start_thread

from geminga.ledger.catalog.catalog import EntryChunk
from geminga.ledger.state import index as index_module
from geminga.ledger.state.index import Index, LedgerState
from tests.ledger.conftest import snapshot


@pytest.fixture
def catalog(catalog):
    """Ledgers 0 to 9 with 5 chunks of 100 entries each; an entry's position identifies it."""
    for number in range(5):
        ledgers = [change(ledger_id, number * 100) for ledger_id in range(10)]
        catalog.write(snapshot(number + 1, ledgers=ledgers))
    return catalog


def change(ledger_id: int, first: int):
    ledger = LedgerState(ledger_id, "owner", first, 0)
    for entry_id in range(first, first + 100):
        ledger.set_position(entry_id, ledger_id * 1000 + entry_id + 64, 1, 0)
    return ledger.freeze()


def test_entries_are_found_in_every_layer(catalog):
    index = Index(catalog)
    ledger = LedgerState(3, "owner", 500, 0)
    ledger.set_position(500, 7001, 1, 0)
    ledger.freeze()
    ledger.set_position(501, 7002, 1, 0)
    for entry_id, position in ((0, 3064), (99, 3163), (100, 3164), (499, 3563), (500, 7001), (501, 7002)):
        assert index.position(3, *index.locate(ledger, entry_id)) == position
    assert index.locate(ledger, 502) is None
    index.moved_frozen[3] = {7: 111}
    index.moved[3] = {8: 222}
    for entry_id, position in ((7, 111), (8, 222), (9, 3073)):
        assert index.position(3, *index.locate(ledger, entry_id)) == position


def test_the_cache_is_bounded_and_forgets_ledgers(catalog, monkeypatch):
    monkeypatch.setattr(index_module, "CHUNKS_MAX", 5)
    index, read = Index(catalog), calls_of(monkeypatch, catalog, "chunk")
    ledgers = [LedgerState(ledger_id, "owner", 500, 0) for ledger_id in range(10)]
    for entry_id in range(0, 500, 50):
        for ledger in ledgers:
            position = index.position(ledger.ledger_id, *index.locate(ledger, entry_id))
            assert position == ledger.ledger_id * 1000 + entry_id + 64
    read.clear()
    for ledger in (*ledgers[5:], ledgers[0]):
        index.locate(ledger, 450)
    assert [ledger_id for ledger_id, _ in read] == [0], "five are kept"
    index.forget(0)
    index.locate(ledgers[0], 450)
    assert [ledger_id for ledger_id, _ in read] == [0, 0]


class SlowCatalog:
    """Catalog that reads at once, and returns the result once `answers` is set."""

    def __init__(self) -> None:
        self.position = 100
        self.asked = threading.Event()
        self.answers = threading.Event()

    def chunk(self, ledger_id: int, entry_id: int) -> EntryChunk:
        found = EntryChunk(0, array("Q", [self.position]), array("I", [1]), array("I", [0]))
        self.asked.set()
        assert self.answers.wait(120)
        return found


def test_the_owner_does_not_wait_for_reads_of_the_catalog():
    """Every publish would wait for a slow disk whenever a checkpoint frees its changes."""
    catalog = SlowCatalog()
    index = Index(cast(Any, catalog), Index(cast(Any, catalog)))
    ledger = LedgerState(7, "owner", 1, 1)
    reader = Blocked(lambda: index.locate(ledger, 0))
    assert catalog.asked.wait(60)
    catalog.position = 200
    owner = start_thread(index.forget, 7)
    join_threads(owner)
    catalog.answers.set()
    assert reader.ended()[0].positions[0] == 100, "it was so when it was asked"
    assert index.locate(ledger, 0)[0].positions[0] == 200
    catalog.position = 300
    assert index.locate(ledger, 0)[0].positions[0] == 200, "it is kept"
