"""Broker without sockets whose turns end at random: often after one item."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from geminga.broker.admin.in_flight_requests import InFlightRequests
from geminga.broker.core import Broker, LoopAccess
from geminga.ledger.memory import MemoryStore
from tests.broker.conftest import Harness

SLICES_MAX = 20_000
QUIET_ROUNDS = 8
"""After N passes of the requests' loop without progress, the requests count as waiting."""


class BusyStore(MemoryStore):
    """It writes as long as something is not reported: acknowledgements gather meanwhile, as for a disk."""

    @property
    def is_writing(self) -> bool:
        return self.reports.pending > 0


class Web:
    """Stand-in for the web server, with an asyncio loop that runs only when a test steps it."""

    connections_created = connections_refused = started_at_ms = 0
    tls = None
    connections: tuple[object, ...] = ()

    def __init__(self, harness: Sliced) -> None:
        self._harness = harness
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self.settings = harness.settings
        self.unanswered = InFlightRequests()

    @property
    def broker(self) -> Broker:
        return self._harness.broker

    @property
    def store(self) -> Any:
        return self._harness.store

    def call(self, function: Callable[[], Any]) -> Any:
        return self._harness.call(function)

    def tls_arguments(self) -> dict[str, Any]:
        return {}

    @property
    def is_busy(self) -> bool:
        return any(not each.done() for each in self._tasks)

    def begin(self, request: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Work on a request from now on."""
        self._loop = self._loop or asyncio.new_event_loop()
        task = self._loop.create_task(request)
        self._tasks = [task, *(each for each in self._tasks if not each.done())]
        return task

    def step(self) -> None:
        """One pass of the loop."""
        if self._loop is not None and self.is_busy:
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def close(self) -> None:
        """Drop unfinished requests."""
        loop, self._loop = self._loop, None
        if loop is not None:
            for each in self._tasks:
                each.cancel()
            loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            loop.close()


class Sliced(Harness):
    """Harness whose broker runs only when a test steps it. With ``chance`` 1 a turn has time for one item."""

    def __init__(self, random: Random, chance: float, store: Any = None, **settings: Any) -> None:
        self.random = random
        self.chance = chance
        self.time = 0.0
        self.is_woken = False
        self.polls_seldom = False
        if store is None:
            store = random.choice((MemoryStore, BusyStore))(self._wake)
        super().__init__(store, **settings)
        self.auto_poll = False
        self.web = Web(self)
        self._slow: object = None

    def _clock(self) -> float:
        if self.random.random() < self.chance:
            self.time += 1.0
        return self.time

    def _open(self) -> Broker:
        loop = LoopAccess(self._clock)
        return Broker(self.store, self.settings, now=self.now, now_ms=self.now_ms, loop=loop)

    def _wake(self) -> None:
        self.is_woken = True

    def entry(self, work: Callable[[], object]) -> None:
        slices = self.broker.slices
        slices.begin(self.time)
        work()
        slices.end()

    def call(self, work: Callable[[], object]) -> Any:
        """As administrators call."""
        broker = self.broker
        broker.scheduler.enter(self.now, self.now_ms)
        try:
            return work()
        finally:
            broker.scheduler.leave()

    def turn(self) -> None:
        self.entry(lambda: self.broker.turn(self.now, self.now_ms))

    def unfair_turn(self) -> None:
        """Run one turn in random job order: one job may make no progress until all others are done."""
        jobs = self.broker.slices._jobs
        if len(jobs) > 1 and self.random.random() < self.chance:
            jobs.rotate(self.random.randrange(len(jobs)))
            if self._slow is None or self.random.random() < 0.02:
                self._slow = self.random.choice(jobs)[0] if self.random.random() < 0.7 else None
            slow = [each for each in jobs if each[0] is self._slow]
            others = [each for each in jobs if each[0] is not self._slow]
            jobs.clear()
            jobs.extend([*others, *slow])
        if not jobs or jobs[0][0] is self._slow:
            self._slow = None
        self.turn()

    def take_in(self) -> None:
        """Poll the store: a memory store after it called its wakeup, a file store at any time."""
        if isinstance(self.store, MemoryStore) and not self.is_woken:
            return
        self.is_woken = False
        self.entry(lambda: self.broker.poll(self.now, self.now_ms))

    def tick(self) -> None:
        self.entry(lambda: self.broker.tick(self.now, self.now_ms))

    @property
    def is_reported(self) -> bool:
        """Whether the store has something to report, or to write."""
        store = self.store
        if isinstance(store, MemoryStore):
            return self.is_woken
        return bool(store._journal.completed or store._journal.busy or store._finished or store._worker.busy)

    @property
    def is_at_rest(self) -> bool:
        broker = self.broker
        return not (
            broker.slices.waiting or self.is_reported or broker.scheduler.is_behind
            or broker.scheduler._changed or broker.deadline <= self.now or self.pongs
        )  # fmt: skip

    def slice(self) -> None:
        """Something of what is to be done."""
        steps = [self.unfair_turn, self.unfair_turn, self.take_in, self.tick, self.deliver_pongs]
        if self.web.is_busy:
            steps.append(self.web.step)
        what = self.random.choice(steps)
        if what != self.take_in or not self.polls_seldom or self.random.random() < 0.1:
            what()

    def settle(self) -> None:
        quiet = 0
        for _ in range(SLICES_MAX):
            quiet = quiet + 1 if self.is_at_rest else 0
            if quiet and (quiet > QUIET_ROUNDS or not self.web.is_busy):
                assert not self.store.stats().pending_writes, "nobody goes on with what the store reports"
                return
            self.turn()
            self.take_in()
            self.tick()
            self.deliver_pongs()
            self.web.step()
        raise AssertionError(f"never at rest: {self.broker.slices._jobs}")

    def pass_time(self, seconds: float) -> None:
        self.settle()
        end = self.now + seconds
        while self.broker.deadline <= end:
            self.now = max(self.now, self.broker.deadline)
            self.tick()
            self.settle()
        self.now = end
