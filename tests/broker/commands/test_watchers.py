"""Watched lists are tested through their commands, in test_lookup.py; here is what only shows inside."""

from __future__ import annotations

from geminga.broker.agenda import Agenda
from geminga.broker.commands import watchers
from geminga.broker.commands.topic_list import TopicsPattern
from geminga.broker.commands.watchers import WatchedLists, Watcher
from geminga.broker.turns import Turns
from geminga.ids import TopicName
from geminga.ledger.api import Buffer

P = "persistent://public/default/"


def test_a_change_costs_the_same_however_many_names_there_are() -> None:
    agenda = Agenda(0.0, 0)
    turns = Turns(lambda: 0.0, lambda: None, lambda about, error: None)
    lists = WatchedLists(agenda, turns)
    watched = lists.make("public/default", TopicsPattern(".*"))
    turns.start(watched.fill(iter(f"{P}t{number:06}" for number in range(20_000))), "fill")
    told: list[Buffer] = []
    for number in range(3):
        Watcher(watched, number, told.append)
    for number in range(1_000):
        lists.topic_changed(TopicName.parse(f"new-{number}"), True)
    assert told == []
    agenda.enter(20_000 * watchers.SECONDS_PER_NAME + 0.001)
    agenda.run_timers()
    assert len(told) == 3
    assert len(watched.names) == lists.held == 21_000
    assert watched.names == sorted(watched.names)
