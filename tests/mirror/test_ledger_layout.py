"""Counting of skipped entries, also at a ledger's end and after the ledger was deleted."""

import pytest

from geminga.admin import InternalStats
from geminga.client.admin.types import LedgerInfo
from geminga.mirror.history import LedgerLayout
from geminga.mirror.positions import Position


def stats(last: str, **ledgers: int) -> InternalStats:
    """Parse ledgers such as ``_3=10``, as reported by Apache Pulsar: the open ledger has no entries."""
    found = tuple(LedgerInfo(ledger_id=int(name[1:]), entries=count) for name, count in ledgers.items())
    return InternalStats(last_confirmed_entry=last, ledgers=found)


@pytest.mark.parametrize(
    ("read", "place", "missed"),
    [
        ((3, 5), (3, 6), 0), ((3, 5), (3, 9), 3), ((3, 9), (4, 0), 0), ((3, 5), (4, 0), 4),
        ((3, 5), (7, 2), 13), ((3, 9), (7, 0), 7), ((4, 6), (7, 0), 0), ((3, 5), (3, 5), 0),
        ((4, 5), (3, 5), 0), ((3, 12), (7, 2), 9), ((7, 8), (7, 12), 3), ((2, 5), (3, 2), 2),
    ],
)  # fmt: skip
def test_between_counts_the_entries_of_whole_and_partial_ledgers(read, place, missed):
    layout = LedgerLayout(stats("7:8", _1=100, _3=10, _4=7, _7=0))
    assert layout.between(Position(*read), Position(*place)) == missed


def test_sizes_of_deleted_ledgers_still_count():
    layout = LedgerLayout()
    assert layout.is_new
    layout.learn(stats("3:9", _3=0), -1)
    assert layout.last == Position(3, 9)
    layout.learn(stats("5:1", _4=8, _5=0), 3)
    layout.learn(stats("9:1", _9=0), 3)
    # No statistics showed the ends of ledgers 3 and 5, nor the ledgers created and deleted in between.
    assert layout.between(Position(3, 4), Position(9, 0)) == 5 + 8 + 2
    layout.learn(stats("9:1", _9=0), 9)
    assert layout.entries == 2
