"""Rounds in which topics are checked."""

from __future__ import annotations

from geminga.broker.topics.maintenance_queue import GONE, PLANNED_ROUNDS_MAX, ROUND_SECONDS, MaintenanceQueue


class Topic:
    def __init__(self, name: str) -> None:
        self.name = name
        self.look_round = 0


def names(looks: MaintenanceQueue[Topic]) -> list[str]:
    return [topic.name for topic in looks.begin_round()]


def test_a_topic_is_visited_once_at_its_earliest_planned_time() -> None:
    looks, a, b = MaintenanceQueue[Topic](), Topic("a"), Topic("b")
    looks.plan(a, 3 * ROUND_SECONDS)
    looks.plan(a, 2 * ROUND_SECONDS)
    looks.plan(a, 5 * ROUND_SECONDS)
    looks.soon(b)
    looks.soon(b)
    assert [names(looks) for _ in range(4)] == [["b"], ["a"], [], []]


def test_times_are_rounded_up_to_rounds() -> None:
    looks = MaintenanceQueue[Topic]()
    for name, seconds in (("now", -5.0), ("one", 15.0), ("two", 15.1), ("far", 1e9)):
        looks.plan(Topic(name), seconds)
    assert [names(looks) for _ in range(2)] == [["now", "one"], ["two"]]
    assert [names(looks) for _ in range(PLANNED_ROUNDS_MAX - 2)][-1] == ["far"]


def test_changes_during_a_round_are_for_the_next_one() -> None:
    looks, a, b, c = MaintenanceQueue[Topic](), Topic("a"), Topic("b"), Topic("c")
    for topic in (a, b, c):
        looks.soon(topic)
    running = looks.begin_round()
    assert next(running) is a
    looks.soon(a)
    looks.soon(b)  # it is going to be looked at anyway
    looks.drop(c)
    assert [topic.name for topic in running] == ["b"]
    assert names(looks) == ["a"]
    assert (a.look_round, b.look_round, c.look_round) == (0, 0, GONE)


def test_removed_topics_leave_nothing_in_the_queue() -> None:
    looks, topics = MaintenanceQueue[Topic](), [Topic(str(number)) for number in range(50)]
    for number, topic in enumerate(topics):
        looks.plan(topic, number * ROUND_SECONDS)
    for topic in topics:
        looks.drop(topic)
        looks.drop(topic)
    assert not looks._rounds


def test_removed_topics_are_not_visited_again() -> None:
    looks, topic = MaintenanceQueue[Topic](), Topic("a")
    looks.plan(topic, 0)
    looks.drop(topic)
    looks.soon(topic)
    looks.plan(topic, 0)
    looks.drop(topic)
    looks.soon(topic)
    assert names(looks) == []
    assert not looks._rounds
