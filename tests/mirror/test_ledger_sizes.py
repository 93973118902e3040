"""Counting of skipped entries, also at a ledger's end and after the ledger was deleted."""

import pytest

from geminga.admin import InternalStats
from geminga.client.admin.types import LedgerInfo
from geminga.mirror.ledger_sizes import LedgerSizes
from geminga.mirror.positions import NOWHERE, Position


def stats(last: str, **ledgers: int) -> InternalStats:
    """Parse ledgers such as ``_3=10``, as reported by Apache Pulsar: the open ledger has no entries."""
    found = tuple(LedgerInfo(ledger_id=int(name[1:]), entries=count) for name, count in ledgers.items())
    return InternalStats(last_confirmed_entry=last, ledgers=found)


@pytest.mark.parametrize(
    ("read", "place", "missed"),
    [
        ((3, 5), (3, 6), 0),
        ((3, 5), (3, 9), 3),
        ((3, 9), (4, 0), 0),
        ((3, 5), (4, 0), 4),
        ((3, 5), (4, -1), 4),
        ((3, 5), (7, 2), 13),
        ((3, 9), (7, 0), 7),
        ((4, 6), (7, 0), 0),
        ((3, 5), (3, 5), 0),
        ((4, 5), (3, 5), 0),
    ],
)
def test_between(read, place, missed):
    sizes = LedgerSizes()
    sizes.learn(stats("7:8", _1=100, _3=10, _4=7, _7=0), 3)
    assert sizes.between(Position(*read), Position(*place)) == missed


def test_sizes_of_deleted_ledgers_still_count():
    sizes = LedgerSizes()
    assert not sizes.reaches(Position(3, 0))
    sizes.learn(stats("3:9", _3=0), -1)
    assert sizes.reaches(Position(3, 12))
    assert not sizes.reaches(Position(5, 0))
    sizes.learn(stats("5:1", _4=8, _5=0), 3)
    sizes.learn(stats("9:1", _9=0), 3)
    # No statistics showed the ends of ledgers 3 and 5, nor the ledgers created and deleted in between.
    assert sizes.between(Position(3, 4), Position(9, 0)) == 5 + 8 + 2
    sizes.learn(stats("9:1", _9=0), 9)
    assert len(sizes) == 1


def test_an_empty_topic_has_no_newest_position():
    sizes = LedgerSizes()
    sizes.learn(stats("-1:-1"), -1)
    assert sizes.newest == NOWHERE
    assert sizes.between(Position(3, 5), Position(4, 2)) == 2
