"""Timers run in order of time, then of creation."""

from __future__ import annotations

from geminga.broker.timers import INFINITY, Timers


def test_order_cancelling_and_the_deadline() -> None:
    timers, ran = Timers(), list[str]()
    assert timers.deadline == INFINITY
    timers.at(3, lambda: ran.append("c"))
    first = timers.at(1, lambda: ran.append("cancelled"))
    timers.at(2, lambda: ran.append("a"))
    timers.at(2, lambda: ran.append("b"))
    assert timers.deadline == 1
    first.cancel()
    first.cancel()
    assert timers.deadline == 2
    timers.run(2.5)
    assert ran == ["a", "b"]
    timers.run(10)
    assert ran == ["a", "b", "c"]
    assert timers.deadline == INFINITY


def test_a_timer_set_by_a_timer_waits_for_the_next_run() -> None:
    timers, ran = Timers(), list[int]()

    def again() -> None:
        ran.append(1)
        timers.at(0, again)

    timers.at(0, again)
    timers.run(5)
    assert ran == [1]
    timers.run(5)
    assert ran == [1, 1]


def test_a_timer_may_cancel_another_that_is_due() -> None:
    timers, ran = Timers(), list[int]()
    timers.at(1, lambda: other.cancel())
    other = timers.at(1, lambda: ran.append(1))
    timers.run(1)
    assert ran == []
