import gc
import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any

import pytest
from waiting import join_threads, start_thread

from geminga.consumer import queue as module
from geminga.consumer.message import (
    ALONE,
    ConsumerOrigin,
    Message,
    ReceivedEntry,
    Row,
    UnbatchedRun,
    place_of,
)
from geminga.consumer.queue import ReceiveQueue

HERE, ELSEWHERE = ConsumerOrigin("here", -1), ConsumerOrigin("elsewhere", -1)


@pytest.fixture(autouse=True, params=[False, True], ids=["own", "unlocked"])
def _kind_of_iterator(request, monkeypatch):
    """Iterators with and without the interpreter lock."""
    if request.param:
        monkeypatch.setattr(module, "_for_each", module.PopIndexes)


def entry(number: int, origin: ConsumerOrigin = HERE) -> ReceivedEntry:
    return ReceivedEntry(origin, 1, number, None)


def rows(count: int) -> list[Row]:
    return [(number, (1, number), b"", b"value") for number in range(count)]


def place(message: Message | None) -> tuple[int, Any] | None:
    if message is None:
        return None
    entry, index = place_of(message)
    return (index[1][1], -1) if isinstance(entry, UnbatchedRun) else (entry.entry_id, index)


def waiting(queue: ReceiveQueue) -> list[tuple[int, int]]:
    """Return the messages queued in lots, without taking them."""
    return [(entry.entry_id, index) for entry, indexes in queue.lots for index in module.rest(copy(indexes))]


def take_all(queue: ReceiveQueue) -> list[tuple[int, int] | None]:
    return [place(queue.take()) for _ in range(len(queue))]


@pytest.fixture
def queue():
    return ReceiveQueue()


def test_messages_leave_in_order(queue):
    queue.add(entry(1), range(3))
    queue.add(entry(2), ALONE)
    queue.add(entry(3), [4, 7])
    assert len(queue) == queue.messages == 6
    assert take_all(queue) == [(1, 0), (1, 1), (1, 2), (2, -1), (3, 4), (3, 7)]
    assert queue.take() is None
    assert not queue
    assert not queue.lots


def test_a_used_up_lot_counts_no_messages(queue):
    queue.add(entry(1), ALONE)
    queue.take()
    assert len(queue.lots) == 1  # no thread has read it since
    assert not queue
    assert not queue.has_messages
    assert len(queue) == queue.ready(5) == queue.ready(1) == 0
    queue.add(entry(2), range(2))
    assert queue
    assert [queue.ready(limit) for limit in range(4)] == [0, 1, 2, 2]
    assert take_all(queue) == [(2, 0), (2, 1)]


def test_entries_count_as_one(queue):
    queue.add_entry(entry(1))
    queue.add(entry(2), range(10))
    assert len(queue) == 11
    assert queue.ready(100) == 11
    assert queue.ready(3) == 3
    assert queue.messages == 10
    queue.add(entry(3, ELSEWHERE), ALONE)
    assert [queue.held_by_origin()[origin][0] for origin in (HERE, ELSEWHERE)] == [11, 1]


def test_wake_is_called_only_when_somebody_waits(queue):
    line: list[str] = []
    woken: list[int] = []
    queue.waiting = line
    queue.wake = lambda: woken.append(len(queue))
    queue.add(entry(1), ALONE)
    queue.add_entry(entry(2))
    assert woken == []
    line.append("somebody")
    queue.add(entry(3), ALONE)
    queue.add_entry(entry(4))
    queue.put_back([Message(entry(0), -1)])
    queue.put_back([])
    queue.put_in_front(entry(5), range(2))
    assert woken == [3, 4, 5, 7]


def test_put_back_is_in_front(queue):
    first, second = entry(1), entry(2)
    queue.add(entry(3), range(2))
    queue.put_back([Message(first, 5), Message(first, 6), Message(second, -1), Message(first, 9)])
    assert waiting(queue) == [(1, 5), (1, 6), (2, -1), (1, 9), (3, 0), (3, 1)]
    assert len(queue.lots) == 4
    assert take_all(queue) == [(1, 5), (1, 6), (2, -1), (1, 9), (3, 0), (3, 1)]


def test_many_are_taken_by_entry(queue):
    queue.add(entry(1), range(3))
    queue.add(entry(2), ALONE)
    queue.add(entry(3), range(10))
    queue.take()
    taken = queue.take_many(5)
    assert [(opened.entry_id, indexes) for opened, indexes in taken] == [(1, [1, 2]), (2, [-1]), (3, [0, 1])]
    assert queue.messages == 8
    assert [len(indexes) for _, indexes in queue.take_many(100)] == [8]
    assert queue.take_many(100) == queue.take_many(0) == []


def test_take_back_keeps_the_others_in_order_and_wakes_for_them(queue):
    woken: list[int] = []
    queue.waiting = ["somebody"]
    queue.wake = lambda: None
    for number in range(10):
        queue.add(entry(number, HERE if number % 2 else ELSEWHERE), range(2))
        queue.add_entry(entry(number, HERE if number % 2 else ELSEWHERE))
    queue.wake = lambda: woken.append(len(queue))
    for _ in range(3):
        queue.take()
    taken, entries = queue.take_back(HERE)
    assert [(opened.entry_id, indexes) for opened, indexes in taken] == [
        (1, [1]), (3, [0, 1]), (5, [0, 1]), (7, [0, 1]), (9, [0, 1]),
    ]  # fmt: skip
    assert [e.entry_id for e in entries] == [1, 3, 5, 7, 9]
    assert [e.entry_id for e in queue.entries] == [0, 2, 4, 6, 8]
    assert waiting(queue) == [(number, index) for number in (2, 4, 6, 8) for index in (0, 1)]
    assert woken == [13]


def test_many_consumers_take_back_their_messages_in_proportion_to_their_number(lines_run):
    def work(count: int) -> Callable[[], object]:
        queue, origins = ReceiveQueue(), [ConsumerOrigin(f"t{number}", -1) for number in range(count)]
        for number in range(5):
            for origin in origins:
                queue.add(entry(number, origin), range(2))

        def take_back() -> None:
            assert [len(queue.take_back(origin)[0]) for origin in origins] == [5] * count
            assert not queue.lots

        return take_back

    lines = [lines_run(work(count)) for count in (20, 200)]
    assert lines[1] < 12 * lines[0]


def test_messages_added_while_others_take_theirs_back_are_taken_back_too(queue):
    for number in range(3):
        queue.add(entry(number, HERE), range(2))
        queue.add(entry(number, ELSEWHERE), range(2))
    assert len(queue.take_back(HERE)[0]) == 3
    queue.add(entry(3, ELSEWHERE), range(2))
    queue.add(entry(4, HERE), range(2))
    assert place(queue.take()) == (0, 0)
    assert [(opened.entry_id, indexes) for opened, indexes in queue.take_back(ELSEWHERE)[0]] == [
        (0, [1]), (1, [0, 1]), (2, [0, 1]), (3, [0, 1]),
    ]  # fmt: skip
    assert take_all(queue) == [(4, 0), (4, 1)]


@pytest.fixture
def often():
    """Threads take turns as often as CPython allows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_messages_put_back_while_another_consumer_takes_its_own_back_are_taken_back_too():
    """A thread that puts messages back is interrupted before they are in the queue."""

    class Interrupted(deque[Any]):
        def extendleft(self, lots: Any) -> None:
            queue.take_back(ELSEWHERE)
            super().extendleft(lots)

    queue = ReceiveQueue()
    queue.add(entry(0), [0, 1])
    queue.add(entry(1, ELSEWHERE), [0])
    taken = [queue.take()]
    queue.lots = Interrupted(queue.lots)
    queue.give_back([message for message in taken if message is not None])
    given_back, _ = queue.take_back(HERE)
    assert [(each.entry_id, indexes) for each, indexes in given_back] == [(0, [0]), (0, [1])]
    assert len(queue) == 0


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", range(50))
def test_take_back_against_concurrent_receivers_loses_and_doubles_nothing(seed):
    queue, rng = ReceiveQueue(), random.Random(seed)
    sizes = [rng.choice((1, 2, 7, 100)) for _ in range(60)]
    for number, size in enumerate(sizes):
        queue.add(entry(number, HERE if number % 3 else ELSEWHERE), range(size))
    received: list[list[Message]] = [[], [], []]
    go = threading.Event()

    def receive(mine: list[Message], gives_back: bool) -> None:
        go.wait()
        while (message := queue.take()) is not None:
            if gives_back and len(mine) % 5 == 4:
                queue.give_back([mine.pop(), message])
                gives_back = len(mine) > 50
            else:
                mine.append(message)

    threads = [start_thread(receive, mine, number == 0) for number, mine in enumerate(received)]
    go.set()
    taken, _entries = queue.take_back(HERE)
    join_threads(*threads)
    found = [place(message) for mine in received for message in mine]
    found += [(opened.entry_id, index) for opened, indexes in taken for index in indexes]
    found += waiting(queue)
    assert sorted(found) == [(number, index) for number, size in enumerate(sizes) for index in range(size)]


def test_queued_messages_add_few_objects_to_the_garbage_collector(queue):
    gc.collect()
    before = len(gc.get_objects())
    for number in range(100):
        queue.add(entry(number), range(1000))
    assert len(queue) == 100_000
    assert len(gc.get_objects()) - before < 1000


def test_a_copy_is_retried_if_a_receiver_takes_during_it():
    """In free-threaded builds a deque may change during its copy, even with the interpreter lock enabled."""

    class Restless(deque[Any]):
        copies = 0

        def copy(self) -> deque[Any]:
            self.copies += 1
            if self.copies % 3:
                raise RuntimeError("deque mutated during iteration")
            return super().copy()

    queue = ReceiveQueue()
    queue.lots = Restless()
    queue.add(entry(1), range(3))
    queue.add(entry(2), range(2))
    assert len(queue) == queue.ready(9) == 5
    assert [count for count, _ in queue.held_by_origin().values()] == [5]
    assert queue.take_out(HERE, {(1, 2)})[0][0][1] == [0, 1]
    assert len(queue) == 3


def test_take_out_keeps_messages_of_a_lot_that_a_receiver_removes_meanwhile():
    class Racing(deque[Any]):
        def index(self, lot: Any, *_: Any) -> int:
            with suppress(ValueError):
                self.remove(lot)  # the lot is used up: a receiver drops it
            return super().index(lot)

    queue = ReceiveQueue()
    queue.lots = Racing()
    queue.add(UnbatchedRun(HERE, 0, 15), rows(3))
    queue.add(entry(3), ALONE)
    taken, _ = queue.take_out(HERE, {(1, 1)})
    assert [indexes for _, indexes in taken] == [[rows(3)[1]]]
    assert take_all(queue) == [(0, -1), (2, -1), (3, -1)]


def test_take_out_does_not_touch_a_run_whose_messages_with_these_ids_were_taken(queue):
    """While it were replaced, another thread could receive messages behind it."""
    queue.add(UnbatchedRun(HERE, 0, 15), rows(3))
    first = queue.take()
    before = list(queue.lots)
    assert queue.take_out(HERE, {(1, 0)}) == ([], [])
    assert list(queue.lots) == before
    assert [place(first), *take_all(queue)] == [(0, -1), (1, -1), (2, -1)]
