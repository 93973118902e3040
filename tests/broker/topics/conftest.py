"""A topic with small ledgers, to see what becomes of its messages in time."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.topics.topic import ROUND_SECONDS
from geminga.ids import MessageId
from tests.broker.conftest import NAME, TOPIC, Command


def done(error: Exception | None) -> None:
    assert error is None


class Topic:
    """A topic with small ledgers to which entries are published at the time that it is."""

    def __init__(self, harness: Any, make_entry: Callable[..., bytes]) -> None:
        self.harness = harness
        self._make_entry = make_entry
        self.peer = harness.peer()
        self.peer.producer(TOPIC)
        self.count = 0
        self.clock_ms = 0

    def publish(self, count: int, size: int = 100) -> None:
        for _ in range(count):
            entry = self._make_entry(b"x" * size, publish_time=self.harness.now_ms + self.clock_ms)
            self.peer.send(self.count, entry)
            self.count += 1
        self.peer.receipts()

    def subscribe(self, name: str = "s") -> None:
        self.actions.cursors.create(NAME, name, MessageId.earliest, done)

    @property
    def topics(self) -> Any:
        return self.harness.broker.topics

    @property
    def actions(self) -> Any:
        return self.harness.actions

    @property
    def in_memory(self) -> bool:
        return self.topics.in_memory(NAME) is not None

    @property
    def ledgers(self) -> int:
        """Return the number of the store's ledgers."""
        return len(self.harness.store.ledgers(TOPIC))

    @property
    def stored(self) -> int:
        ledger = self.topics.find(NAME).ledger
        return int(ledger.confirmed - ledger.start)

    def leave(self) -> None:
        """The producer goes, and so does the topic, from memory."""
        self.peer.disconnect()
        self.actions.unload(NAME)
        assert not self.in_memory

    def leave_with_backlog(self) -> None:
        """Leave five entries that a subscription has not acknowledged."""
        self.subscribe()
        self.publish(5)
        self.leave()

    def connect(self) -> None:
        self.peer = self.harness.peer()
        self.peer.producer(TOPIC)

    def skip_all(self, name: str = "s") -> None:
        self.actions.cursors.skip_all(NAME, name, done)

    def set_policy(self, policy: str, value: Any) -> None:
        self.harness.broker.namespaces.set_policy("public", "default", policy, value)

    @property
    def subscriptions(self) -> list[str]:
        """From the store alone."""
        prefix = f"cursor/{TOPIC}\x00"
        return [key[len(prefix) :] for key, _ in self.harness.store.keys.scan(prefix)]

    @property
    def exists(self) -> bool:
        """From the store alone."""
        return self.harness.store.keys.get(f"topic/{TOPIC}") is not None

    def backlog(self, name: str = "s") -> int:
        return int(self.topics.find(NAME).subscriptions[name].backlog)

    def keep_connected(self, seconds: float) -> None:
        """Let time pass; the producer answers PINGs."""
        while seconds > 0:
            step = min(seconds, ROUND_SECONDS)
            self.harness.advance(step)
            if not self.peer.is_closed:
                self.peer.command("ping")
                self.peer.take(Command.PONG)
            seconds -= step


@pytest.fixture
def make(make_harness, make_entry):
    def new(**settings: Any) -> Topic:
        return Topic(make_harness(**{"ledger_entries_max": 2, **settings}), make_entry)

    return new
