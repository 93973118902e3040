from __future__ import annotations

import queue
import threading
from typing import Any

from geminga.client.listener import ListenerRunner
from geminga.errors import AlreadyClosed, ConnectError


class Source:
    """Gives what was put into it; an exception is raised."""

    def __init__(self) -> None:
        self.items: queue.Queue[Any] = queue.Queue()

    def take(self) -> Any:
        item = self.items.get(timeout=5)
        if isinstance(item, Exception):
            raise item
        return item


def runner(source: Source, seen: list[Any], done: threading.Event) -> ListenerRunner:
    def listen(owner: str, item: int) -> None:
        assert owner == "owner"
        seen.append(item)
        if item == 1:
            raise ValueError("the listener's own problem")
        if item == 3:
            done.set()

    return ListenerRunner("owner", source.take, listen)


def test_in_order_and_past_errors() -> None:
    source, seen, done = Source(), [], threading.Event()
    listener = runner(source, seen, done)
    listener.start()
    for item in range(4):
        source.items.put(item)
    assert done.wait(5)
    assert seen == [0, 1, 2, 3]
    source.items.put(AlreadyClosed("closed"))
    listener.stop()
    assert not listener._thread.is_alive()


def test_pause_and_resume() -> None:
    source, seen, done = Source(), [], threading.Event()
    listener = runner(source, seen, done)
    listener.pause()
    listener.start()
    source.items.put(3)
    assert not done.wait(0.1)
    listener.resume()
    assert done.wait(5)
    source.items.put(ConnectError("lost for good"))
    listener._thread.join(5)
    assert not listener._thread.is_alive()
