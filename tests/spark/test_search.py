"""Searches, compared with a scan of all positions."""

import bisect
from collections.abc import Generator
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st
from scripted_cluster import ONE, ScriptedCluster

from geminga.ids import MessageId
from geminga.spark.offsets import EARLIEST, Offset
from geminga.spark.source.search import (
    Answers,
    last_entry,
    ledgers_after,
    pieces,
    run,
    stepped_ahead,
    stepped_back,
)

T = TypeVar("T")

Layout = dict[int, int]
"""Entries by ledger."""

layouts = st.dictionaries(st.integers(0, 300), st.integers(1, 20), min_size=1, max_size=12)


def cluster_of(layout: Layout) -> ScriptedCluster:
    cluster = ScriptedCluster()
    for ledger, entries in sorted(layout.items()):
        cluster.publish(ONE, ledger, [[b"v"]] * entries, publish_time=1000 * ledger)
    return cluster


def ask(cluster: ScriptedCluster, search: Generator[list[MessageId], Answers, T]) -> T:
    return run({ONE: search}, cluster.watch(name="n").first)[ONE]


def newest(cluster: ScriptedCluster) -> Offset:
    return Offset.after_entry(*max(cluster.topics[ONE]))


@given(layout=layouts, ledger=st.integers(-1, 300))
def test_ledgers_after_a_position_are_found(layout, ledger):
    cluster = cluster_of(layout)
    last = max(layout)
    assert ask(cluster, ledgers_after(ledger, last)) == dict.fromkeys(
        sorted(each for each in layout if ledger < each <= last), 0
    )


def test_a_thousand_ledgers_take_few_rounds():
    cluster = cluster_of(dict.fromkeys(range(0, 100_000, 100), 1))
    assert len(ask(cluster, ledgers_after(-1, 99_900))) == 1000
    assert cluster.rounds < 80
    assert cluster.questions < 1100


def test_more_ledgers_than_the_limit_are_found_in_even_parts():
    cluster = cluster_of(dict.fromkeys(range(4000), 1))
    found = list(ask(cluster, ledgers_after(-1, 3999)))
    assert len(found) == 4 + 16 * 64
    assert max(b - a for a, b in zip(found, [*found[1:], 3999], strict=True)) <= 250


@given(layout=layouts, data=st.data())
def test_the_last_entry_of_a_ledger_is_found(layout, data):
    ledger = data.draw(st.sampled_from(sorted(layout)))
    known = data.draw(st.integers(-1, layout[ledger] - 1))
    assert ask(cluster_of(layout), last_entry(ledger, known)) == layout[ledger] - 1


@given(layout=layouts, entries=st.integers(1, 60), data=st.data())
def test_positions_some_entries_back_are_found(layout, entries, data):
    cluster = cluster_of(layout)
    places = sorted(cluster.topics[ONE])
    number = data.draw(st.integers(0, len(places) - 1))
    found = ask(cluster, stepped_back(*places[number], entries))
    if number < entries:
        assert found == MessageId.earliest
    else:
        assert (
            places[bisect.bisect_left(places, (found.ledger_id, found.entry_id))] == places[number - entries]
        )


@given(layout=layouts, entries=st.integers(1, 30), data=st.data())
def test_positions_some_entries_ahead_are_bounded(layout, entries, data):
    cluster = cluster_of(layout)
    places = sorted(cluster.topics[ONE])
    number = data.draw(st.integers(-1, len(places) - 2))
    start = EARLIEST if number < 0 else Offset.after_entry(*places[number])
    found = ask(cluster, stepped_ahead(start, newest(cluster), entries))
    taken = [place for place in places if start < Offset.after_entry(*place) <= found]
    assert 1 <= len(taken) <= entries


@given(layout=layouts, size=st.integers(1, 9), data=st.data())
def test_pieces_hold_every_entry_once(layout, size, data):
    cluster = cluster_of(layout)
    places = sorted(cluster.topics[ONE])
    number = data.draw(st.integers(-1, len(places) - 1))
    start = EARLIEST if number < 0 else Offset.after_entry(*places[number])
    found = ask(cluster, pieces(start, newest(cluster), size))
    held = [[p for p in places if start < Offset.after_entry(*p) <= end] for start, end in found]
    assert [place for each in held for place in each] == places[number + 1 :]
    assert max(map(len, held), default=0) <= size
