from __future__ import annotations

import threading

import pytest

from geminga.consumer.message import Message, Origin, ReceivedEntry
from geminga.consumer.queue import ReceiveQueue

HERE, ELSEWHERE = Origin("here", -1), Origin("elsewhere", -1)


def entry(number: int, origin: Origin = HERE) -> ReceivedEntry:
    return ReceivedEntry(origin, 1, number, None)


def messages(*numbers: int, origin: Origin = HERE) -> list[Message]:
    return [Message(entry(number, origin), -1) for number in numbers]


def numbers(items: list[Message]) -> list[int]:
    return [message._entry.entry_id for message in items]


def test_messages_leave_in_order() -> None:
    queue = ReceiveQueue()
    queue.add(messages(1, 2))
    queue.add(messages(3))
    assert numbers([queue.messages.popleft() for _ in range(3)]) == [1, 2, 3]
    assert not queue


def test_wake_is_called_only_when_somebody_waits() -> None:
    queue = ReceiveQueue()
    line: list[str] = []
    woken: list[int] = []
    queue.waiting = line
    queue.wake = lambda: woken.append(len(queue))
    queue.add(messages(1))
    queue.add_entry(entry(2))
    assert woken == []
    line.append("somebody")
    queue.add(messages(3))
    queue.add_entry(entry(4))
    queue.put_back(messages(0))
    queue.put_back([])
    assert woken == [3, 4, 5]


def test_put_back_is_in_front() -> None:
    queue = ReceiveQueue()
    queue.add(messages(3))
    queue.put_back(messages(1, 2))
    assert numbers(list(queue.messages)) == [1, 2, 3]


def test_take_back_keeps_the_others_in_order_and_wakes_for_them() -> None:
    queue = ReceiveQueue()
    woken: list[int] = []
    queue.waiting = ["somebody"]
    queue.wake = lambda: woken.append(len(queue))
    for number in range(10):
        queue.messages.extend(messages(number, origin=HERE if number % 2 else ELSEWHERE))
        queue.entries.append(entry(number, HERE if number % 2 else ELSEWHERE))
    taken, entries = queue.take_back(HERE)
    assert numbers(taken) == [e.entry_id for e in entries] == [1, 3, 5, 7, 9]
    assert numbers(list(queue.messages)) == [e.entry_id for e in queue.entries] == [0, 2, 4, 6, 8]
    assert woken == [10]


@pytest.mark.parametrize("_", range(50))
def test_take_back_against_concurrent_receivers_loses_and_doubles_nothing(_: int) -> None:
    queue = ReceiveQueue()
    queue.add(messages(*range(2000)))
    received: list[Message] = []
    go = threading.Event()

    def receive() -> None:
        go.wait()
        try:
            while True:
                received.append(queue.messages.popleft())
        except IndexError:
            pass

    thread = threading.Thread(target=receive)
    thread.start()
    go.set()
    taken, _entries = queue.take_back(HERE)
    thread.join()
    assert numbers(received + taken) == list(range(2000))
