import threading
from collections import deque
from typing import Any

import pytest
from waiting import eventually, join_threads, start_thread

from geminga.client.receive.listener import MESSAGES_PER_TURN, ListenerRunner, ListenerThreads
from geminga.errors import AlreadyClosed, ConnectError


@pytest.fixture
def threads():
    threads = ListenerThreads(1)
    yield threads
    threads.close()


class Source:
    """Gives what was put into it; an exception is raised."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.waiting: list[ListenerRunner] = []
        self.waits = threading.Semaphore(0)
        """Released whenever the listener has nothing to do."""

    def put(self, *items: Any) -> None:
        self.items.extend(items)
        waiting, self.waiting = self.waiting, []
        for listening in waiting:
            listening.wake()

    def take(self) -> Any:
        if not self.items:
            return None
        item = self.items.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def tell(self, listening: ListenerRunner) -> None:
        self.waiting.append(listening)
        if self.items:
            self.put()
        self.waits.release()

    def settle(self) -> None:
        assert self.waits.acquire(timeout=60)

    def listen(self, threads: ListenerThreads, listener: Any, owner: Any = "owner") -> ListenerRunner:
        listening = ListenerRunner(owner, listener, self.take, self.tell)
        listening.start(threads)
        return listening


def test_items_arrive_in_order_though_the_listener_raises(threads):
    source, seen = Source(), []
    raised = {1: ValueError("the listener's own problem"), 2: SystemExit(3), 3: KeyboardInterrupt()}

    def listen(owner: str, item: int) -> None:
        assert owner == "owner"
        seen.append(item)
        if item in raised:
            raise raised[item]

    source.listen(threads, listen)
    source.settle()
    source.put(*range(MESSAGES_PER_TURN * 2))
    source.settle()
    assert seen == list(range(MESSAGES_PER_TURN * 2))


@pytest.mark.parametrize("error", [AlreadyClosed("closed"), ConnectError("lost for good")])
def test_the_end_of_the_consumer_ends_the_listener_and_not_the_thread(threads, error):
    source, other, seen = Source(), Source(), []
    source.listen(threads, lambda owner, item: seen.append(item))
    source.settle()
    source.put(1, error, 2)
    other.listen(threads, lambda owner, item: seen.append(item))
    other.settle()
    other.put(3)
    other.settle()
    assert seen == [1, 3]
    assert list(source.items) == [2]


@pytest.mark.parametrize("ends", ["listening", "threads"])
def test_an_end_waits_for_the_call_that_is_under_way(threads, monkeypatch, ends):
    monkeypatch.setattr("geminga.client.receive.listener.STOP_SECONDS_MAX", 60.0)
    source, seen = Source(), []
    inside, go = threading.Event(), threading.Event()

    def listen(owner: str, item: int) -> None:
        inside.set()
        go.wait(60)
        seen.append(item)

    listening = source.listen(threads, listen)
    source.settle()
    source.put(1, 2)
    assert inside.wait(60)

    def let_go() -> None:
        eventually(lambda: listening._stopping if ends == "listening" else not threads._threads)
        go.set()

    start_thread(let_go)
    if ends == "listening":
        listening.stop()
        assert seen == [1]
    else:
        threads.close(60)
        assert seen == [1, 2]  # the whole slice ran: its source was not stopped


def test_closing_does_not_wait_long_for_a_call_that_does_not_end():
    threads, sources, go = ListenerThreads(2), [Source(), Source()], threading.Event()
    held: list[threading.Thread] = []

    def listen(owner: str, item: int) -> None:
        held.append(threading.current_thread())
        go.wait(60)

    for source in sources:
        source.listen(threads, listen)
        source.settle()
        source.put(1)
    eventually(lambda: len(held) == 2)
    threads.close(0.01)
    assert [thread.is_alive() for thread in held] == [True, True]
    go.set()
    join_threads(*held)


@pytest.mark.parametrize("ends", ["listening", "threads"])
def test_a_listener_may_stop_itself_or_end_its_own_threads(threads, ends):
    source, stopped = Source(), threading.Event()
    listening: ListenerRunner

    def listen(owner: str, item: int) -> None:
        listening.stop() if ends == "listening" else threads.close(60)
        stopped.set()

    listening = source.listen(threads, listen)
    source.settle()
    source.put(1, 2)
    assert stopped.wait(60)


def test_listeners_share_the_threads_in_turn():
    threads = ListenerThreads(2)
    where: dict[int, set[str]] = {}
    sources = [Source() for _ in range(4)]
    for number, source in enumerate(sources):
        source.listen(
            threads,
            lambda number, item: where.setdefault(number, set()).add(threading.current_thread().name),
            number,
        )
        source.settle()
    for source in sources:
        source.put(*range(MESSAGES_PER_TURN + 1))
        source.settle()
    threads.close()
    assert all(len(names) == 1 for names in where.values())
    assert where[0] == where[2] != where[1] == where[3]
