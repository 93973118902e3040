"""The oldest recent entries of all ledgers leave memory first."""

from types import SimpleNamespace
from typing import Any

from geminga.ledger.state.ledger_table import TailCache


def ledger(entries: int, since: int = 0) -> Any:
    return SimpleNamespace(recent=[b"entry"] * entries, recent_first=0, since=since)


def test_groups_leave_in_their_order_and_the_account_stays_small():
    ledgers = {number: ledger(0) for number in range(3)}
    table: Any = SimpleNamespace(loaded=ledgers, settled_groups=0)
    tails = TailCache(table, 100 * 201)
    held: list[dict[int, int]] = []
    for number in range(500):
        counts = {number % 3: 1, (number + 1) % 3: 2}
        for each, count in counts.items():
            ledgers[each].recent.extend([b"entry"] * count)
        held.append(counts)
        table.settled_groups = number + 1
        tails.add(counts, 3, 3)
        kept = held[-33:]
        for each, found in ledgers.items():
            assert len(found.recent) == sum(counts.get(each, 0) for counts in kept)
    assert sum(len(found.recent) for found in ledgers.values()) == 99
    assert sum(found.recent_first for found in ledgers.values()) == 1500 - 99
    assert len(tails._groups) <= 2 * 3 * 34
    assert len(tails._ledgers) == len(tails._entries) <= 2 * 2 * 34


def test_a_ledger_unloaded_and_loaded_again_keeps_its_new_entries():
    table: Any = SimpleNamespace(loaded={1: ledger(5, since=2)}, settled_groups=1)
    tails = TailCache(table, 300)
    tails.add({1: 1}, 1, 1)
    table.settled_groups = 3
    tails.add({1: 1, 7: 1}, 2, 2)  # the other one was unloaded, and not loaded again
    assert len(table.loaded[1].recent) == 4
