from __future__ import annotations

import threading

import pytest

from geminga.consumer.queue import ReceiveQueue


def test_items_leave_in_order() -> None:
    queue = ReceiveQueue()
    queue.add([1, 2], 2)
    queue.add([3], 1)
    assert [queue.items.popleft() for _ in range(3)] == [1, 2, 3]
    assert len(queue) == 0


@pytest.mark.parametrize("kind", ["waiting_tasks", "waiting_threads"])
def test_wake_is_called_only_when_somebody_waits(kind: str) -> None:
    queue = ReceiveQueue()
    woken: list[int] = []
    queue.wake = woken.append
    queue.add([1], 1)
    assert woken == []
    setattr(queue, kind, 1)
    queue.add([2, 3], 2)
    assert woken == [2]


def test_put_back_is_in_front_and_wakes() -> None:
    queue = ReceiveQueue()
    woken: list[int] = []
    queue.wake = woken.append
    queue.add([3], 1)
    queue.waiting_threads = 1
    queue.put_back([1, 2])
    queue.put_back([])
    assert list(queue.items) == [1, 2, 3]
    assert woken == [2]


def test_take_back_keeps_the_others_in_order() -> None:
    queue = ReceiveQueue()
    queue.add(range(10), 10)
    assert queue.take_back(lambda item: item % 2 == 0) == [0, 2, 4, 6, 8]
    assert list(queue.items) == [1, 3, 5, 7, 9]


def test_take_back_against_concurrent_receivers_loses_and_doubles_nothing() -> None:
    queue = ReceiveQueue()
    for _ in range(50):
        queue.add(range(2000), 2000)
        received: list[int] = []
        go = threading.Event()

        def receive(received: list[int] = received, go: threading.Event = go) -> None:
            go.wait()
            try:
                while True:
                    received.append(queue.items.popleft())
            except IndexError:
                pass

        thread = threading.Thread(target=receive)
        thread.start()
        go.set()
        taken = queue.take_back(lambda _: True)
        thread.join()
        assert received + taken == list(range(2000))
