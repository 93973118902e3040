"""Message listeners: the application's callables, called on the client's listener threads.

A client has ``message_listener_threads`` of them; each consumer and reader with a listener uses always the
same one. Messages of a consumer are passed one after the other, in the order of arrival. An exception of a
listener does not stop the next message; it is logged and the message stays unacknowledged.
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

from geminga.client.io.waiter import Waiter
from geminga.consumer.message import Message
from geminga.consumer.settings import ConsumerEventListener
from geminga.errors import AlreadyClosed, CorruptPayload, IncompatibleSchema, PulsarException

logger = logging.getLogger("geminga")

STOP_SECONDS_MAX = 1.0
"""Time that closing a consumer or a client waits for a running listener call."""

MESSAGES_PER_TURN = 100
"""Messages passed to one listener before other listeners of the same thread run."""


def with_failure_listener(
    listener: Callable[[Any, Any], Any], failure_listener: Callable[[Any, Any], Any] | None
) -> Callable[[Any, Any], Any]:
    """Return a listener that passes messages that cannot be decrypted or decoded to ``failure_listener``,
    and all others to ``listener``."""
    if failure_listener is None:
        return listener

    def listen(owner: Any, message: Message[Any]) -> None:
        (listener if _is_readable(message) else failure_listener)(owner, message)

    return listen


def _is_readable(message: Message[Any]) -> bool:
    context = message.encryption_context()
    if context is not None and context.is_decryption_failed():
        return False
    try:
        message.value()
    except (CorruptPayload, IncompatibleSchema):
        return False
    except PulsarException:  # the version of the schema could not be fetched now
        raise
    except Exception:
        return False
    return True


class ListenerRunner:
    """Loop that passes messages to ``listener(owner, message)`` until it is stopped.

    On the listener's thread, ``take`` returns the next message, or None if none is queued, and raises the
    error that ended the consumer; ``tell`` schedules one call of `wake` when there may be a message or the
    consumer has ended.
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
        self._threads = threads  # they end when no consumer refers to them any more
        self._thread = threads.next()
        self._thread.put(self)

    def wake(self) -> None:
        """Continue, as there may be a message; on any thread."""
        self._waits = False
        if self._thread is not None:
            self._thread.put(self)

    def pause(self) -> None:
        """Start no new call; a running one completes."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._thread is not None:
            self._thread.put(self)

    def stop(self) -> None:
        """Stop after the running call; wait for it at most `STOP_SECONDS_MAX`, unless called by it."""
        self._stopped = True
        if self._thread is None or threading.current_thread() is self._thread.thread:
            return
        waiter = Waiter()
        self._stopping.append(waiter)
        if self._running:
            waiter.wait(STOP_SECONDS_MAX)

    def turn(self) -> None:
        """Pass the queued messages to the listener, on its thread."""
        self._running = True
        try:
            self._pass_messages()
        except AlreadyClosed:
            self._stopped = True
        except PulsarException as error:
            self._stopped = True
            logger.error("the listener ends: %s", error)
        finally:
            self._running = False
            while self._stopping:
                self._stopping.popleft().wake()

    def _pass_messages(self) -> None:
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
            except BaseException:
                # SystemExit too: it would only end this thread, silently.
                logger.exception("a message listener raised; the message stays unacknowledged")
        assert self._thread is not None
        self._thread.put(self)


class ConsumerEventNotifier:
    """`ConsumerEventListener` on the loop, which passes events to ``listener`` on a listener thread, in
    order, as soon as its consumer is known (`belongs_to`)."""

    def __init__(self, listener: ConsumerEventListener) -> None:
        self._listener = listener
        self._owner: Any = None
        self._thread: _ListenerThread | None = None
        self._events: deque[tuple[Callable[[Any, int], object], int]] = deque()

    def became_active(self, consumer: Any, partition: int) -> None:
        self._note(self._listener.became_active, partition)

    def became_inactive(self, consumer: Any, partition: int) -> None:
        self._note(self._listener.became_inactive, partition)

    def _note(self, notify: Callable[[Any, int], object], partition: int) -> None:
        self._events.append((notify, partition))
        if self._thread is not None:
            self._thread.put(self)

    def belongs_to(self, owner: Any, threads: ListenerThreads) -> None:
        self._owner = owner
        self._threads = threads  # they end when no consumer refers to them any more
        self._thread = threads.next()
        self._thread.put(self)

    def turn(self) -> None:
        """Pass the queued events to the listener, on its thread."""
        while self._events:
            notify, partition = self._events.popleft()
            try:
                notify(self._owner, partition)
            except BaseException:
                logger.exception("an event listener raised")


class _Turn(Protocol):
    """Work for a listener thread."""

    def turn(self) -> None:
        """Do the work; must not raise."""


class _ListenerThread:
    """A thread and its queue of listeners that have work."""

    def __init__(self, name: str) -> None:
        self._turns: SimpleQueue[_Turn | None] = SimpleQueue()
        self.thread = threading.Thread(target=_run_turns, args=(self._turns,), name=name, daemon=True)
        self.thread.start()

    def put(self, turn: _Turn | None) -> None:
        """Queue work; None ends the thread."""
        self._turns.put(turn)


def _run_turns(turns: SimpleQueue[_Turn | None]) -> None:
    while (next_turn := turns.get()) is not None:
        next_turn.turn()
        del next_turn


class ListenerThreads:
    """At most ``count`` threads, started one by one as listeners are added."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[_ListenerThread] = []
        self._started = 0
        weakref.finalize(self, _end, self._threads)

    def next(self) -> _ListenerThread:
        """Return the thread for another listener."""
        self._started += 1
        if len(self._threads) < self._count:
            self._threads.append(_ListenerThread(f"geminga-listener-{len(self._threads)}"))
            return self._threads[-1]
        return self._threads[(self._started - 1) % self._count]

    def close(self, seconds: float = 0.0) -> None:
        """End the threads after their current work: join each for at most ``seconds`` (not the calling one),
        and none after a thread that takes longer."""
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
        with suppress(ValueError):  # already removed, by a signal handler during this loop
            threads.remove(each)
