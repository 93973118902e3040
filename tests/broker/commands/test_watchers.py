"""Watched lists are tested through their commands, in test_lookup.py; here is what only shows inside."""

from random import Random
from typing import Any

import pytest

from geminga.broker.commands import watchers
from geminga.broker.commands.topic_list import TopicsPattern, topics_hash
from geminga.broker.commands.watchers import TopicListWatcher, WatchedLists
from geminga.broker.runtime.cooperative import CooperativeScheduler, Job
from geminga.broker.runtime.scheduler import Scheduler
from geminga.ids import TopicName
from geminga.ledger.api import Buffer

P = "persistent://public/default/"


def cooperative_scheduler() -> CooperativeScheduler:
    return CooperativeScheduler(lambda: 0.0, lambda: None, lambda about, error: None)


def fill(watched: watchers.WatchedList, names: list[str]) -> Job:
    yield from watched.take(names)
    yield from watched.filled()


def test_a_change_costs_the_same_however_many_names_there_are():
    scheduler = Scheduler(0.0, 0)
    slices = cooperative_scheduler()
    lists = WatchedLists(scheduler, slices)
    watched = lists.make("public/default", TopicsPattern(".*"))
    slices.start(fill(watched, [f"{P}t{number:06}" for number in range(20_000)]), "fill")
    told: list[Buffer] = []
    for number in range(3):
        TopicListWatcher(watched, number, told.append)
    for number in range(1_000):
        lists.topic_changed(TopicName.parse(f"new-{number}"), True)
    assert told == []
    scheduler.enter(20_000 * watchers.SECONDS_PER_NAME + 0.001)
    scheduler.run_timers()
    assert len(told) == 3
    assert len(watched.names) == lists.held == 21_000
    assert watched.names == sorted(watched.names)


def test_a_change_is_matched_with_one_pattern_after_the_other(monkeypatch, jobs):
    """Forty patterns that are slow to match took 3 s of one step."""
    matched: list[str] = []
    monkeypatch.setattr(TopicsPattern, "matches", lambda pattern, _: matched.append(pattern.text))
    lists = WatchedLists(Scheduler(0.0, 0), cooperative_scheduler())
    for number in range(3):
        lists.make("public/default", TopicsPattern(f"{P}{number}.*"))
    lists.topic_changed(TopicName.parse("t"), True)
    lists.make("public/default", TopicsPattern(f"{P}made-later.*"))
    assert [len(matched) for _ in jobs[0]] == [1, 2, 3, 3]


@pytest.mark.parametrize("seed", range(20))
def test_a_list_that_changes_while_it_is_sent_stays_consistent(seed, jobs):
    """Every step of the job is a turn of its own, and topics come and go between them."""
    random = Random(seed)
    lists = WatchedLists(Scheduler(0.0, 0), cooperative_scheduler())
    names = [TopicName.parse(f"t{number:03}") for number in range(60)]
    there = set(random.sample(names, 30))
    watched = lists.make("public/default", TopicsPattern(".*"))
    jobs.append(fill(watched, sorted(map(str, there))))
    told: list[set[str]] = [set()]

    class Told:
        def tell(self, added: Any, removed: Any, _hash: str) -> None:
            told[0] = (told[0] - set(removed)) | set(added)

    def step() -> None:
        for job in [*jobs]:
            if next(job, jobs) is jobs:
                jobs.remove(job)

    for _ in range(400):
        step()
        assert len(jobs) <= 2, "one job updates and one tells at a time"
        if watched.is_filled and not watched._watchers:
            told[0] = set(watched.names)
            watched.watch(Told())
        for name in random.sample(names, 3) if random.random() < 0.3 else ():
            there ^= {name}
            lists.topic_changed(name, name in there)
    while jobs:
        step()
    assert watched.names == sorted(map(str, there))
    assert told[0] == set(watched.names)
    assert watched.hash == topics_hash(watched.names)
    assert lists.held == len(watched.names)
