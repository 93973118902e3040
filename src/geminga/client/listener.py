"""Message listeners: the application's callables, called on the client's listener threads.

A client has ``message_listener_threads`` of them; every consumer and reader with a listener keeps to one.
Messages of one consumer are handed over one after the other, in the order in which they arrived. A listener
that raises, whatever it raises, does not stop the next message; its error is logged and the message stays
unacknowledged.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

from geminga.client import forks
from geminga.client.waiter import Waiter
from geminga.consumer.settings import ConsumerEventListener
from geminga.errors import AlreadyClosed, PulsarException

logger = logging.getLogger("geminga")

STOP_SECONDS_MAX = 1.0
"""How long closing a consumer or a client waits for the call of a listener that is under way."""

MESSAGES_PER_TURN = 100
"""So many messages go to one listener before others of the same thread have their turn."""


class ListenerRunner:
    """Gives messages to ``listener(owner, message)`` as long as it is not stopped.

    On the listener's thread, ``take`` gives the next message, or None when there is none yet, and raises what
    ends the consumer; ``tell`` arranges for one call of `wake` when there may be a message or the end has
    come.
    """

    def __init__(
        self,
        owner: Any,
        listener: Callable[[Any, Any], Any],
        take: Callable[[], Any | None],
        tell: Callable[[ListenerRunner], None],
    ) -> None:
        self._owner = owner
        self._listener = listener
        self._take = take
        self._tell = tell
        self._thread: _ListenerThread | None = None
        self._waits = False
        self._running = False
        self._paused = False
        self._stopped = False
        self._stopping: deque[Waiter] = deque()

    def start(self, threads: ListenerThreads) -> None:
        self._threads = threads  # they end when nobody holds them any more
        self._thread = threads.next()
        self._thread.put(self)

    def wake(self) -> None:
        """There may be a message; on any thread."""
        self._waits = False
        if self._thread is not None:
            self._thread.put(self)

    def pause(self) -> None:
        """No new call begins after the one that may be under way."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._thread is not None:
            self._thread.put(self)

    def stop(self) -> None:
        """End after the call that is under way, which is waited for a little, but not by itself."""
        self._stopped = True
        if self._thread is None or threading.current_thread() is self._thread.thread:
            return
        waiter = Waiter()
        self._stopping.append(waiter)
        if self._running:
            waiter.wait(STOP_SECONDS_MAX)

    def turn(self) -> None:
        """On the listener's thread: hand over what is there."""
        self._running = True
        try:
            self._hand_over()
        except AlreadyClosed:
            self._stopped = True
        except PulsarException as error:
            self._stopped = True
            logger.error("the listener ends: %s", error)
        finally:
            self._running = False
            while self._stopping:
                self._stopping.popleft().wake()

    def _hand_over(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            if self._stopped or self._paused:
                return
            message = self._take()
            if message is None:
                if not self._waits:
                    self._waits = True
                    self._tell(self)
                return
            try:
                self._listener(self._owner, message)
                forks.returned()
            except BaseException as error:
                forks.returned(error)
                # SystemExit too: it would end this thread and nothing else, without a word.
                logger.exception("a message listener raised; the message stays unacknowledged")
        assert self._thread is not None
        self._thread.put(self)


class ConsumerEventNotifier:
    """Stands for ``listener``, a `ConsumerEventListener`, on the loop: what is told here, it is told on a
    listener thread, in order, as soon as its consumer is there (`belongs_to`)."""

    def __init__(self, listener: ConsumerEventListener) -> None:
        self._listener = listener
        self._owner: Any = None
        self._thread: _ListenerThread | None = None
        self._events: deque[tuple[Callable[[Any, int], object], int]] = deque()

    def became_active(self, consumer: Any, partition: int) -> None:
        self._note(self._listener.became_active, partition)

    def became_inactive(self, consumer: Any, partition: int) -> None:
        self._note(self._listener.became_inactive, partition)

    def _note(self, tell: Callable[[Any, int], object], partition: int) -> None:
        self._events.append((tell, partition))
        if self._thread is not None:
            self._thread.put(self)

    def belongs_to(self, owner: Any, threads: ListenerThreads) -> None:
        self._owner = owner
        self._threads = threads  # they end when nobody holds them any more
        self._thread = threads.next()
        self._thread.put(self)

    def turn(self) -> None:
        """On the listener's thread."""
        while self._events:
            tell, partition = self._events.popleft()
            try:
                tell(self._owner, partition)
                forks.returned()
            except BaseException as error:
                forks.returned(error)
                logger.exception("an event listener raised")


class _Turn(Protocol):
    """Something to do on a listener thread."""

    def turn(self) -> None:
        """Do it; must not raise."""


class _ListenerThread:
    """A thread and the listeners whose turn it is."""

    def __init__(self, name: str) -> None:
        self._turns: SimpleQueue[_Turn | None] = SimpleQueue()
        self.thread = threading.Thread(target=_run_turns, args=(self._turns,), name=name, daemon=True)
        self.thread.start()

    def put(self, turn: _Turn | None) -> None:
        """None ends the thread."""
        self._turns.put(turn)


def _run_turns(turns: SimpleQueue[_Turn | None]) -> None:
    forks.thread_is_ours()
    while (next_turn := turns.get()) is not None:
        next_turn.turn()
        del next_turn


class ListenerThreads:
    """At most ``count`` threads, started when listeners come, one after the other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[_ListenerThread] = []
        self._started = 0
        weakref.finalize(self, _end, self._threads)

    def next(self) -> _ListenerThread:
        """The thread for another listener."""
        self._started += 1
        known = tuple(self._threads)  # a signal's handler may end them all in the midst of this
        if len(known) < self._count:
            another = _ListenerThread(f"geminga-listener-{len(known)}")
            self._threads.append(another)
            return another
        return known[(self._started - 1) % self._count]

    def close(self, seconds: float = 0.0) -> None:
        """End the threads after what they do now: each is waited for so long, but not by itself, and behind
        one that takes longer none."""
        ending = list(self._threads)
        _end(self._threads)
        for each in ending if seconds else ():
            if each.thread is not threading.current_thread():
                each.thread.join(seconds)
                if each.thread.is_alive():
                    return


def _end(threads: list[_ListenerThread]) -> None:
    for each in list(threads):
        each.put(None)
        with suppress(ValueError):  # somebody else ends them as well: a signal's handler in the midst of this
            threads.remove(each)
