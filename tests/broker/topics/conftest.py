"""A topic with small ledgers, to see what becomes of its messages in time."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.topics.topic import ROUND_SECONDS
from geminga.ids import MessageId
from tests.broker.conftest import NAME, TOPIC, Command
from tests.support.disk_stores import succeeded


class Topic:
    """A topic with small ledgers to which entries are published at the time that it is."""

    def __init__(self, harness: Any, make_entry: Callable[..., bytes]) -> None:
        self.harness = harness
        self._make_entry = make_entry
        self.peer = harness.peer()
        self.peer.producer(TOPIC)
        self.count = 0
        self.clock_ms = 0

    def publish(self, count: int, size: int = 100, messages: int = 1, delay_seconds: float = 0) -> None:
        """Send ``count`` entries, each a batch if it has several messages; 0: without a delivery time."""
        fields = {"num_messages_in_batch": messages} if messages > 1 else {}
        if delay_seconds:
            fields["deliver_at_time"] = self.harness.now_ms + int(delay_seconds * 1000)
        for _ in range(count):
            publish_time = self.harness.now_ms + self.clock_ms
            entry = self._make_entry(b"x" * size, publish_time=publish_time, **fields)
            self.peer.send(self.count, entry, messages=messages)
            self.count += 1
        assert len(self.peer.receipts()) == count

    def subscribe(self, name: str = "s") -> None:
        self.actions.cursors.create(NAME, name, MessageId.earliest, succeeded)

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

    def stored_after(self, seconds: float) -> int:
        """Return the number of stored entries after this time, in which the producer was connected."""
        self.keep_connected(seconds)
        return self.stored

    def after(self, seconds: float) -> tuple[int, bool]:
        """Return the number of the store's ledgers, and whether the topic is in memory, after this time."""
        self.harness.advance(seconds)
        return self.ledgers, self.in_memory

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
        self.actions.cursors.skip_all(NAME, name, succeeded)

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


@pytest.fixture
def filled(make):
    """A topic with a subscription that has this number of entries in its backlog."""

    def new(count: int, **settings: Any) -> Topic:
        topic = make(**settings)
        topic.subscribe()
        topic.publish(count)
        return topic

    return new
