"""Scheduler: the time, timers, and pending work of the broker core.

Timers, topics with new entries and cursors with pending writes wait here. Topics and subscriptions have a
reference to the scheduler, never to the broker; the core runs it.

Very many of them may have work at once: 10,000 topics whose entries became durable together. Each round does
as much as a turn of the loop has time for (``should_yield``); the rest keeps its order and is done in a later
turn, requested with ``go_on``.

Callbacks are isolated: an exception in one affects neither the others nor the next round. It is counted by
kind in ``failures`` and logged with the name of its object, at most once per `FAILURE_LOG_SECONDS`.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Literal, Protocol, TypeVarTuple

from geminga.broker.runtime.event_log import BrokerEventLog
from geminga.errors import StoreError

log = logging.getLogger("geminga.broker")

INFINITY = float("inf")
FAILURE_LOG_SECONDS = 60.0
"""Interval of log lines about failures of one object; the next line has the number of suppressed ones."""
FAILURES_REMEMBERED_MAX = 1_000
"""Objects for which the time of the last log line is kept; the oldest are dropped."""

Kind = Literal["job", "timer", "housekeeping", "dispatch", "cursor", "session", "store"]
KINDS: tuple[Kind, ...] = ("job", "timer", "housekeeping", "dispatch", "cursor", "session", "store")
Args = TypeVarTuple("Args")


class Dispatching(Protocol):
    """Interface of a topic, or of a subscription, for the scheduler."""

    def dispatch(self) -> None:
        """Dispatch new entries."""


class FlushingSubscription(Protocol):
    """Interface of a subscription for the scheduler."""

    def flush(self) -> None:
        """Write acknowledgements."""


@dataclass(slots=True, eq=False, repr=False)
class Timer:
    """One pending callback of ``about``; `cancel` is cheap and may be repeated."""

    when: float
    callback: Callable[[], None] | None
    about: object

    def cancel(self) -> None:
        self.callback = self.about = None  # the holder may be ``about`` itself: avoid a cycle


class Scheduler:
    """Scheduler of the core. ``now`` is monotonic, in seconds; ``now_ms`` is wall-clock time since 1970.

    ``ready`` holds the topics, and single subscriptions, with new durable entries to dispatch. Log lines
    name ``about`` by its ``repr``.
    """

    def __init__(
        self,
        now: float,
        now_ms: int,
        poll_follows: Callable[[], bool] = lambda: False,
        should_yield: Callable[[], bool] = lambda: False,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        """``poll_follows`` returns whether the store is sure to report soon, ``should_yield`` whether this
        turn's time is used up; ``go_on`` is called when work is left for the next turn (`is_behind`)."""
        self.now = now
        self.now_ms = now_ms
        self._wall_offset_ms = now_ms - now * 1000
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self.ready: dict[Dispatching, None] = {}
        self._dispatching: deque[Dispatching] = deque()
        self._changed: dict[FlushingSubscription, None] = {}
        self._flushing: deque[FlushingSubscription] = deque()
        self._poll_follows = poll_follows
        self._should_yield = should_yield
        self._go_on = go_on
        self.failures: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        self.event_log = BrokerEventLog()

    # --- time ---
    def enter(self, now: float, now_ms: int | None = None) -> None:
        """Begin a call into the core; without ``now_ms`` the wall clock is extrapolated."""
        self.now = now
        if now_ms is None:
            self.now_ms = int(self._wall_offset_ms + now * 1000)
        else:
            self.now_ms = now_ms
            self._wall_offset_ms = now_ms - now * 1000

    def leave(self) -> None:
        """End a call into the core: pass its acknowledgements to the store.

        While the store writes, they wait for its report: they would not be durable earlier, and further ones
        join the same delta of a cursor.
        """
        if (self._changed or self._flushing) and not self._poll_follows():
            self.flush_some()

    # --- timers ---
    def at(self, when: float, callback: Callable[[], None], about: object) -> Timer:
        """Run ``callback`` when `now` is ``when``; timers of one time run in the order of their creation."""
        timer = Timer(when, callback, about)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        return timer

    def after(self, seconds: float, callback: Callable[[], None], about: object) -> Timer:
        """Run ``callback`` after ``seconds``."""
        return self.at(self.now + seconds, callback, about)

    @property
    def deadline(self) -> float:
        """Time of the next timer; infinity without one."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else INFINITY

    def run_timers(self) -> None:
        """Run the due callbacks; those that they set for now wait for the next run.

        Callbacks that exceed this turn's time stay due, and so does `deadline`.
        """
        # Take out no more than are run: there may be 100,000 of them, and several turns.
        heap, last, later = self._heap, next(self._order), list[tuple[float, int, Timer]]()
        while heap and heap[0][0] <= self.now:
            entry = heapq.heappop(heap)
            if entry[1] > last:
                later.append(entry)
                continue
            timer = entry[2]
            callback, about = timer.callback, timer.about
            timer.cancel()
            if callback is not None:
                self.isolated("timer", about, callback)
                if self._should_yield():
                    break
        for entry in later:
            heapq.heappush(heap, entry)

    # --- topics and cursors ---
    def dispatch_ready(self) -> None:
        """Dispatch the new entries of topics, and of those that become ready meanwhile."""
        waiting = self._dispatching
        while waiting or self.ready:
            if not waiting:
                waiting.extend(self.ready)
                self.ready.clear()
            topic = waiting.popleft()
            self.isolated("dispatch", topic, topic.dispatch)
            if waiting and self._should_yield():
                self._go_on()
                return

    def mark_cursor(self, subscription: FlushingSubscription) -> None:
        """Record that the subscription's cursor has something to write; see `leave`."""
        self._changed[subscription] = None

    def flush_some(self) -> None:
        """Pass acknowledgements to the store, for as many cursors as there is time for."""
        flushing = self._flushing
        flushing.extend(self._changed)
        self._changed.clear()
        while flushing:
            subscription = flushing.popleft()
            self.isolated("cursor", subscription, subscription.flush)
            if flushing and self._should_yield():
                self._go_on()
                return

    def flush_cursors(self) -> None:
        """Pass all acknowledgements to the store now."""
        changed = {**dict.fromkeys(self._flushing), **self._changed}
        self._flushing.clear()
        self._changed = {}
        for subscription in changed:
            self.isolated("cursor", subscription, subscription.flush)

    @property
    def is_behind(self) -> bool:
        """Whether topics or cursors wait because a turn had no time for them."""
        return bool(self._dispatching or self._flushing)

    # --- isolation ---
    def isolated(self, kind: Kind, about: object, callback: Callable[[*Args], object], *args: *Args) -> None:
        """Run ``callback(*args)``; its exception is counted and logged, and not raised."""
        try:
            callback(*args)
        except Exception as error:
            self.failed(kind, about, error)

    def guarded(
        self, kind: Kind, about: object, callback: Callable[[*Args], object]
    ) -> Callable[[*Args], None]:
        """Wrap ``callback`` so that it raises nothing when the store calls it."""

        def run(*args: *Args) -> None:
            self.isolated(kind, about, callback, *args)

        return run

    def failed(self, kind: Kind, about: object, error: Exception) -> None:
        """Count and log an exception of a callback of ``about``."""
        self.failures[kind] += 1
        name = repr(about)
        # A store that has stopped fails everything with one error, whose text names the cause.
        is_of_store = isinstance(error, StoreError)
        key = (kind, str(error) if is_of_store else name)
        logged_at, left_out = self._logged.pop(key, (-INFINITY, 0))
        if self.now - logged_at < FAILURE_LOG_SECONDS:
            self._logged[key] = (logged_at, left_out + 1)
            return
        self._logged[key] = (self.now, 0)
        if len(self._logged) > FAILURES_REMEMBERED_MAX:
            del self._logged[next(iter(self._logged))]
        more = f" ({left_out} times more since it was last logged)" if left_out else ""
        if is_of_store:
            log.error("%s: %s failed%s: %s", name, kind, more, error)
        else:
            log.error("%s: %s failed%s", name, kind, more, exc_info=error)
