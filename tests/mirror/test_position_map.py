"""The map of positions, compared with a dictionary of all entries."""

import random

from geminga.mirror.position_map import PositionMap
from geminga.mirror.positions import NOWHERE, Position


def grown(chance: random.Random, entries: int) -> tuple[PositionMap, dict[Position, Position]]:
    places, known = PositionMap(NOWHERE), {}
    source, target = Position(3, 0), Position(100, 0)
    for _ in range(entries):
        places.add(source, target)
        known[source] = target
        kind = chance.random()
        source = Position(source.ledger, source.entry + (1 if kind > 0.2 else chance.randint(2, 4)))
        if kind < 0.05:
            source = Position(source.ledger + chance.randint(1, 3), 0)
        target = Position(target.ledger, target.entry + (1 if chance.random() > 0.1 else 3))
        if chance.random() < 0.03:
            target = Position(target.ledger + 1, 0)
    return places, known


def test_between_returns_the_added_positions():
    for seed in range(30):
        chance = random.Random(seed)
        places, known = grown(chance, 200)
        sources = sorted(known)
        for _ in range(100):
            asked = Position(chance.randint(2, sources[-1].ledger + 1), chance.randint(-1, 60))
            other = Position(chance.randint(2, sources[-1].ledger + 1), chance.randint(-1, 60))
            low, high = min(asked, other), max(asked, other)
            found = [
                Position(ledger, entry)
                for ledger, first, last in places.between(low, high)
                for entry in range(first, last + 1)
            ]
            assert found == [known[one] for one in sources if low < one <= high]


def test_consecutive_positions_are_stored_as_one_run():
    places = PositionMap(NOWHERE)
    for entry in range(10_000):
        places.add(Position(1, entry), Position(9, entry + 5))
    assert len(places) == 1
    assert places.between(Position(1, 9), Position(1, 11)) == [(9, 15, 16)]


def test_it_keeps_runs_max_runs_and_reports_its_range():
    places = PositionMap(NOWHERE, runs_max=100)
    for entry in range(1000):
        places.add(Position(1, 2 * entry), Position(9, entry))
    assert len(places) <= 100
    assert places.complete_from > Position(1, 0)
    assert places.between(Position(1, 1997), Position(1, 1998)) == [(9, 999, 999)]
    assert places.between(NOWHERE, Position(1, 3)) == []
    unlimited = PositionMap(NOWHERE, runs_max=0)
    for entry in range(30_000):
        unlimited.add(Position(1, 2 * entry), Position(9, entry))
    assert (len(unlimited), unlimited.complete_from) == (30_000, NOWHERE)
