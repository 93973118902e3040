"""A broker without sockets whose turns are over when chance says so: often after one item."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from geminga.broker.core import Broker
from geminga.ledger.memory import MemoryStore
from tests.broker.conftest import Harness

SLICES_MAX = 20_000


class BusyStore(MemoryStore):
    """It writes as long as something is not reported: acknowledgements gather meanwhile, as for a disk."""

    @property
    def is_writing(self) -> bool:
        return self._pending > 0


class Sliced(Harness):
    """With ``chance`` 1 a turn has time for one item. Nothing is polled, nor goes on, by itself."""

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

    def _clock(self) -> float:
        if self.random.random() < self.chance:
            self.time += 1.0
        return self.time

    def _open(self) -> Broker:
        return Broker(
            self.store, self.settings, now=self.now, now_ms=self.now_ms, clock=self._clock, wake=lambda: None
        )

    def _wake(self) -> None:
        self.is_woken = True

    def entry(self, work: Callable[[], object]) -> None:
        turns = self.broker.turns
        turns.begin(self.time)
        work()
        turns.end()

    def call(self, work: Callable[[], object]) -> Any:
        """As administrators call."""
        broker = self.broker
        broker.agenda.enter(self.now, self.now_ms)
        try:
            return work()
        finally:
            broker.agenda.leave()

    def turn(self) -> None:
        self.entry(lambda: self.broker.turn(self.now, self.now_ms))

    def take_in(self) -> None:
        """What the store wakes its owner for; a store of files is asked at any time."""
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
            broker.turns.waiting or self.is_reported or broker.agenda.is_behind or broker.agenda._changed
            or broker.deadline <= self.now or self.pongs
        )  # fmt: skip

    def slice(self) -> None:
        """Something of what is to be done."""
        what = self.random.choice((self.turn, self.turn, self.take_in, self.tick, self.deliver_pongs))
        if what != self.take_in or not self.polls_seldom or self.random.random() < 0.1:
            what()

    def settle(self) -> None:
        for _ in range(SLICES_MAX):
            if self.is_at_rest:
                assert not self.store.stats().pending_writes, "nobody goes on with what the store reports"
                return
            self.turn()
            self.take_in()
            self.tick()
            self.deliver_pongs()
        raise AssertionError(f"never at rest: {self.broker.turns._jobs}")

    def pass_time(self, seconds: float) -> None:
        self.settle()
        end = self.now + seconds
        while self.broker.deadline <= end:
            self.now = max(self.now, self.broker.deadline)
            self.tick()
            self.settle()
        self.now = end
