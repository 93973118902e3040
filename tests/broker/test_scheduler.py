"""The agenda: order of timers, and that what fails harms nothing else."""

import heapq
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.broker.runtime import scheduler as agenda_module
from geminga.broker.runtime.scheduler import FAILURE_LOG_SECONDS, INFINITY, KINDS, Scheduler
from geminga.errors import StoreError
from geminga.ids import TopicName
from tests.broker.conftest import NAME, said

OTHER = TopicName.parse("persistent://public/default/other")


def run_at(scheduler: Scheduler, now: float) -> None:
    scheduler.enter(now)
    scheduler.run_timers()


# --- timers ---
def test_timers_run_in_order_and_can_be_cancelled():
    scheduler, ran = Scheduler(0.0, 0), list[str]()
    assert scheduler.deadline == INFINITY
    scheduler.at(3, lambda: ran.append("c"), "t")
    first = scheduler.at(1, lambda: ran.append("cancelled"), "t")
    scheduler.at(2, lambda: ran.append("a"), "t")
    scheduler.after(2, lambda: ran.append("b"), "t")
    assert scheduler.deadline == 1
    first.cancel()
    first.cancel()
    assert scheduler.deadline == 2
    run_at(scheduler, 2.5)
    assert ran == ["a", "b"]
    run_at(scheduler, 10)
    assert ran == ["a", "b", "c"]
    assert scheduler.deadline == INFINITY


def test_a_timer_set_by_a_timer_waits_for_the_next_run():
    scheduler, ran = Scheduler(0.0, 0), list[int]()

    def again() -> None:
        ran.append(1)
        scheduler.at(0, again, "t")

    scheduler.at(0, again, "t")
    run_at(scheduler, 5)
    assert ran == [1]
    run_at(scheduler, 5)
    assert ran == [1, 1]


def test_a_timer_may_cancel_another_that_is_due():
    scheduler, ran = Scheduler(0.0, 0), list[int]()
    scheduler.at(1, lambda: other.cancel(), "t")
    other = scheduler.at(1, lambda: ran.append(1), "t")
    run_at(scheduler, 1)
    assert ran == []


def test_wall_clock_time_is_extrapolated_from_the_last_given():
    scheduler = Scheduler(10.0, 5_000)
    scheduler.enter(11.0)
    assert scheduler.now_ms == 6_000
    scheduler.enter(12.0, 100)
    scheduler.enter(12.5)
    assert scheduler.now_ms == 600


# --- slices ---
class Worked:
    """Three of them are enough for a turn."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.times_asked = 0
        self.scheduler = Scheduler(0.0, 0, should_yield=lambda: len(self.done) % 3 == 0, go_on=self.go_on)

    def go_on(self) -> None:
        self.times_asked += 1


class Thing:
    def __init__(self, worked: Worked) -> None:
        self._worked = worked

    def dispatch(self) -> None:
        self._worked.done.append(self)

    flush = dispatch


def test_timers_that_a_turn_has_no_time_for_stay_due_in_their_order():
    worked = Worked()
    scheduler = worked.scheduler
    for number in range(8):
        scheduler.at(1 + number % 2, lambda number=number: worked.done.append(number), "t")
    cancelled = scheduler.at(1, lambda: worked.done.append("cancelled"), "t")
    run_at(scheduler, 2)
    assert worked.done == [0, 2, 4]
    assert scheduler.deadline <= 2, "whoever runs them comes back at once"
    cancelled.cancel()
    scheduler.at(2, lambda: worked.done.append("later"), "t")
    for _ in range(3):
        run_at(scheduler, 2)
    assert worked.done == [0, 2, 4, 6, 1, 3, 5, 7, "later"]
    assert scheduler.deadline == INFINITY


def test_a_turn_removes_only_timers_that_it_runs(monkeypatch):
    """100,000 that are due together, after a machine has slept: to move all of them in each turn would take
    all of its time."""
    moved: list[object] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: moved.append(arguments) or function(*arguments)

    worked = Worked()
    scheduler, count = worked.scheduler, 3_000
    for number in range(count):
        scheduler.at(1, lambda number=number: worked.done.append(number), "t")
    counting = {name: counted(getattr(heapq, name)) for name in ("heappop", "heappush")}
    monkeypatch.setattr(agenda_module, "heapq", SimpleNamespace(**counting))
    while scheduler.deadline <= 2:
        run_at(scheduler, 2)
    assert worked.done == [*range(count)]
    assert len(moved) == count


def test_a_timer_that_is_set_for_the_past_again_and_again_starves_no_other():
    worked = Worked()
    scheduler = worked.scheduler

    def again() -> None:
        worked.done.append("again")
        scheduler.at(0, again, "t")

    scheduler.at(0, again, "t")
    for number in range(6):
        scheduler.at(1, lambda number=number: worked.done.append(number), "t")
    for _ in range(4):
        run_at(scheduler, 2)
    assert [each for each in worked.done if each != "again"] == [*range(6)]


@pytest.mark.parametrize("what", ["topics", "cursors"])
def test_timers_left_by_a_turn_keep_their_order(what):
    worked = Worked()
    scheduler = worked.scheduler
    things = [Thing(worked) for _ in range(8)]
    work, mark = scheduler.flush_some, scheduler.mark_cursor
    if what == "topics":
        work, mark = scheduler.dispatch_ready, lambda thing: scheduler.ready.update({thing: None})
    for thing in things[:7]:
        mark(thing)
    work()
    assert worked.done == things[:3]
    assert scheduler.is_behind
    assert worked.times_asked == 1
    mark(things[7])
    work()
    work()
    assert worked.done == things
    assert not scheduler.is_behind


def test_all_cursors_are_flushed_on_request():
    worked = Worked()
    scheduler = worked.scheduler
    things = [Thing(worked) for _ in range(8)]
    for thing in things:
        scheduler.mark_cursor(thing)
    scheduler.leave()
    assert len(worked.done) == 3
    scheduler.mark_cursor(things[5])
    scheduler.flush_cursors()
    assert worked.done == things
    assert not scheduler.is_behind


# --- isolation: of the agenda itself ---
def failing() -> None:
    raise KeyError("a fault of ours")


def test_a_failing_timer_harms_no_other(caplog):
    scheduler, ran = Scheduler(0.0, 0), list[int]()
    scheduler.at(1, failing, "topic t")
    scheduler.at(1, lambda: ran.append(1), NAME)
    run_at(scheduler, 1)
    assert ran == [1]
    assert scheduler.failures["timer"] == 1
    assert "topic t" in caplog.text
    assert "a fault of ours" in caplog.text, "with the traceback"


def test_each_failure_is_counted_and_some_are_logged(caplog):
    scheduler = Scheduler(0.0, 0)
    for _ in range(5):
        scheduler.isolated("dispatch", "one", failing)
    scheduler.isolated("dispatch", "another", failing)
    assert scheduler.failures == {**dict.fromkeys(KINDS, 0), "dispatch": 6}
    assert len(said(caplog)) == 2
    scheduler.enter(FAILURE_LOG_SECONDS)
    scheduler.isolated("dispatch", "one", failing)
    assert "4 times more" in said(caplog)[-1]
    scheduler.enter(2 * FAILURE_LOG_SECONDS)
    scheduler.isolated("dispatch", "one", failing)
    assert "times more" not in said(caplog)[-1]


def test_the_error_of_a_stopped_store_is_logged_once_without_a_traceback(caplog):
    scheduler, stopped = Scheduler(0.0, 0), StoreError("the lock file was deleted")
    for topic in ("a", "b"):
        scheduler.failed("housekeeping", topic, stopped)
    assert caplog.messages == ["'a': housekeeping failed: the lock file was deleted"]
    assert (caplog.records[0].exc_info, scheduler.failures["housekeeping"]) == (None, 2)


def test_last_log_times_are_kept_for_a_limited_number_of_objects(monkeypatch):
    monkeypatch.setattr(agenda_module, "FAILURES_REMEMBERED_MAX", 3)
    monkeypatch.setattr(agenda_module.log, "disabled", True)
    scheduler = Scheduler(0.0, 0)
    for number in range(10):
        scheduler.isolated("timer", number, failing)
    assert len(scheduler._logged) == 3


def test_a_guarded_callback_does_not_raise():
    scheduler, got = Scheduler(0.0, 0), list[StoreError | None]()
    scheduler.guarded("store", "t", got.append)(None)
    scheduler.guarded("store", "t", lambda error: failing())(StoreError("x"))
    assert got == [None]
    assert scheduler.failures["store"] == 1


# --- isolation: of what the broker puts on it ---
@pytest.fixture
def two_topics(harness):
    """A producer on two topics, and a Shared consumer on each."""
    peer, consumer = harness.peer(), harness.peer()
    for number, name in enumerate((NAME, OTHER), start=1):
        peer.producer(str(name), number)
        consumer.subscribe(str(name), consumer_id=number, kind="Shared")
    return peer, consumer


def break_method(monkeypatch: pytest.MonkeyPatch, thing: Any, method: str) -> None:
    """Make a method fail for this one object."""
    original: Callable[..., Any] = getattr(type(thing), method)

    def broken(self: Any, *args: Any, **options: Any) -> Any:
        if self is thing:
            failing()
        return original(self, *args, **options)

    monkeypatch.setattr(type(thing), method, broken)


def test_a_subscription_that_cannot_dispatch_harms_no_other(harness, two_topics, monkeypatch, caplog):
    peer, consumer = two_topics
    consumer.subscribe(str(NAME), "second", 3, kind="Shared")
    topic = harness.broker.topics.find(NAME)
    break_method(monkeypatch, topic.subscriptions["s"].dispatcher, "_dispatch")
    harness.auto_poll = False
    peer.send(0, producer_id=1)
    peer.send(0, producer_id=2)
    harness.poll()
    assert len(peer.receipts()) == 2
    assert consumer.entry_ids(3) == [0], "another subscription of the same topic"
    assert consumer.entry_ids(2) == [0], "another topic"
    assert harness.broker.scheduler.failures["dispatch"] == 1
    assert "'s'" in caplog.text
    assert str(NAME) in caplog.text
    monkeypatch.undo()
    peer.send(1, producer_id=1)
    harness.poll()
    assert consumer.entry_ids(1) == [0, 1], "the next round"


def test_a_cursor_that_cannot_be_written_harms_no_other(harness, two_topics, monkeypatch):
    peer, consumer = two_topics
    for number in (1, 2):
        peer.send(0, producer_id=number)
        peer.send(1, producer_id=number)
    consumer.frames.clear()
    broken = harness.broker.topics.find(NAME).subscriptions["s"]
    break_method(monkeypatch, broken, "flush")
    broken.scheduler.mark_cursor(broken)
    consumer.ack((1, 0), consumer_id=2, request_id=9)
    assert len(consumer.take(65)) + len(consumer.frames) == 1, "the other's answer came"
    assert harness.broker.scheduler.failures["cursor"] == 1
    assert not consumer.is_closed


def test_the_end_of_a_session_is_finished_after_any_failure(harness, two_topics, monkeypatch):
    peer, consumer = two_topics
    topic, other = harness.broker.topics.find(NAME), harness.broker.topics.find(OTHER)
    break_method(monkeypatch, topic.subscriptions["s"], "remove")
    break_method(monkeypatch, topic, "remove_producer")
    consumer.disconnect()
    peer.disconnect()
    assert not other.subscriptions["s"].consumers
    assert not other.access.producers
    assert harness.broker.scheduler.failures["session"] == 2
    assert not harness.broker.sessions


def test_a_failing_report_of_the_store_keeps_the_order_of_the_others(harness, two_topics, monkeypatch):
    peer, _ = two_topics
    producer = harness.broker.topics.find(NAME).access.producers
    [first] = producer.values()
    harness.auto_poll = False
    peer.send(0, producer_id=1)
    peer.send(0, producer_id=2)
    peer.send(1, producer_id=2)
    break_method(monkeypatch, first, "receipt")
    harness.poll()
    assert [(r.producer_id, r.sequence_id) for r in peer.receipts()] == [(2, 0), (2, 1)]
    assert harness.broker.scheduler.failures["store"] == 1
    monkeypatch.undo()
    peer.send(1, producer_id=1)
    harness.poll()
    assert [(r.producer_id, r.sequence_id) for r in peer.receipts()] == [(1, 1)]


def test_maintenance_continues_after_a_failing_topic(harness, two_topics, monkeypatch, caplog):
    from geminga.broker.topics import expiry

    kept: list[str] = []

    def keep(topic: Any) -> None:
        kept.append(topic.text)
        if topic.name == NAME:
            failing()

    monkeypatch.setattr(expiry, "keep", keep)
    caplog.set_level(logging.ERROR)
    for number in range(2):
        for producer in (1, 2):
            two_topics[0].send(number, producer_id=producer)
        harness.advance(15)
    assert sorted(kept) == sorted([str(NAME), str(OTHER)] * 2)
    assert harness.broker.scheduler.failures["housekeeping"] == 2
    assert len(said(caplog)) == 1
