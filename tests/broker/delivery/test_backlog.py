"""Backlogs in messages and bytes, cursors and dispatchers against a plain model, with restarts in between."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from geminga.broker.delivery import delivery_times
from geminga.broker.delivery.cursor import words_from_bits
from geminga.broker.delivery.shared import SharedDispatcher
from geminga.broker.entries import entry_counts
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, TOPIC

SIZES = st.lists(st.sampled_from([1, 1, 2, 5, 70]), min_size=1, max_size=8)


@dataclass
class Stored:
    """An entry of the model: its id, what it holds, and which of its messages are not acknowledged."""

    ledger_id: int
    entry_id: int
    messages: int
    size: int
    open: set[int] = field(default_factory=set)

    def id(self, still_open: set[int] | None = None) -> pb.MessageIdData:
        words: list[int] = []
        if still_open is not None:
            words = words_from_bits(sum(1 << index for index in still_open)) or [0]
        return pb.MessageIdData(ledgerId=self.ledger_id, entryId=self.entry_id, ack_set=words)


class Backlog(RuleBasedStateMachine):
    """One topic, one subscription, consumers of a type at a time, and a list that says what is open."""

    def __init__(self, make_harness: Any, make_entry: Callable[..., bytes], **settings: Any) -> None:
        super().__init__()
        self.make_entry = make_entry
        self.compensated = bool(settings.get("redeliver_unacked_after_seconds"))
        limits = {"ledger_entries_max": 7, "retention_minutes": 0, "retention_megabytes": 0}
        self.harness = make_harness(**limits, **settings)
        self.stored: list[Stored] = []
        self.kind = "Shared"
        self.begin()
        self.consumer.subscribe(TOPIC, kind=self.kind, permits=0)

    # --- the topic and its subscription ---
    def begin(self) -> None:
        self.producer = self.harness.peer()
        self.producer.producer(TOPIC)
        self.consumer = self.harness.peer()

    @property
    def topic(self) -> Any:
        return self.harness.broker.topics.find(NAME)

    @property
    def subscription(self) -> Any:
        return self.topic.subscriptions["s"]

    def attach_somebody(self) -> None:
        if not self.subscription.consumers:
            self.attach(self.kind)

    def of(self, message: Any) -> Stored:
        """The entry that a MESSAGE brought."""
        ids = message.ledger_id, message.entry_id
        return next(entry for entry in self.stored if (entry.ledger_id, entry.entry_id) == ids)

    def some(self, number: int) -> Stored | None:
        return self.stored[number % len(self.stored)] if self.stored else None

    def is_kept(self, entry: Stored) -> bool:
        return self.topic.ledger.offset(entry.ledger_id, entry.entry_id) is not None

    # --- publishing and receiving ---
    @rule(batches=SIZES, keys=st.integers(1, 5), delay_ms=st.sampled_from([0, 0, 0, 5_000]))
    def publish(self, batches: list[int], keys: int, delay_ms: int) -> None:
        for number, messages in enumerate(batches):
            entry = self.make_entry(
                b"x" * (number * 10 + 1),
                num_messages_in_batch=messages if messages > 1 else None,
                partition_key=str(number % keys),
                deliver_at_time=self.harness.now_ms + delay_ms if delay_ms else None,
            )
            self.producer.send(0, entry, messages=messages)
            receipt = self.producer.receipts()[-1]
            ids = receipt.ledger_id, receipt.entry_id
            self.stored.append(Stored(*ids, messages, len(entry), set(range(messages))))

    @rule(permits=st.integers(1, 100))
    def flow(self, permits: int) -> None:
        self.attach_somebody()
        self.consumer.frames.clear()
        self.consumer.command("flow", consumer_id=1, messagePermits=permits)
        for message in self.consumer.messages():
            assert self.of(message).open, "an acknowledged message came again"

    @rule(kind=st.sampled_from(["Shared", "Key_Shared", "Exclusive", "Failover"]))
    def attach(self, kind: str) -> None:
        self.detach()
        self.kind = kind
        self.consumer = self.harness.peer()
        self.consumer.subscribe(TOPIC, kind=kind, permits=0)

    @rule(consumer_id=st.integers(2, 3), permits=st.integers(1, 30))
    def another(self, consumer_id: int, permits: int) -> None:
        """One more consumer, or more permits for it; Exclusive has none."""
        self.attach_somebody()
        if self.kind == "Exclusive":
            return
        if consumer_id not in self.consumer.session.consumers:
            self.consumer.frames.clear()
            self.consumer.subscribe(TOPIC, kind=self.kind, consumer_id=consumer_id, permits=0)
        self.consumer.command("flow", consumer_id=consumer_id, messagePermits=permits)

    @rule(consumer_id=st.integers(2, 3))
    def one_leaves(self, consumer_id: int) -> None:
        self.consumer.command("close_consumer", consumer_id=consumer_id, request_id=9)

    @rule()
    def detach(self) -> None:
        self.consumer.disconnect()

    # --- acknowledging ---
    @rule(number=st.integers(0, 10_000), more=st.lists(st.integers(0, 10_000), max_size=12))
    def acknowledge(self, number: int, more: list[int]) -> None:
        ids = [entry for each in (number, *more) if (entry := self.some(each)) is not None]
        if ids:
            self.attach_somebody()
            self.consumer.command("ack", consumer_id=1, ack_type=0, message_id=[each.id() for each in ids])
            for entry in ids:
                entry.open.clear()

    @rule(number=st.integers(0, 10_000), keep=st.sets(st.integers(0, 75)))
    def acknowledge_part(self, number: int, keep: set[int]) -> None:
        entry = self.some(number)
        if entry is not None:
            self.attach_somebody()
            self.consumer.command("ack", consumer_id=1, ack_type=0, message_id=[entry.id(keep)])
            entry.open &= keep

    @precondition(lambda self: self.kind in ("Exclusive", "Failover"))
    @rule(number=st.integers(0, 10_000), keep=st.none() | st.sets(st.integers(0, 75)))
    def acknowledge_below(self, number: int, keep: set[int] | None) -> None:
        entry = self.some(number)
        if entry is not None:
            self.attach_somebody()
            self.consumer.command("ack", consumer_id=1, ack_type=1, message_id=[entry.id(keep)])
            for before in self.stored[: self.stored.index(entry)]:
                before.open.clear()
            entry.open &= keep or set()

    @rule(numbers=st.lists(st.integers(0, 10_000), max_size=10))
    def negative(self, numbers: list[int]) -> None:
        if numbers:
            self.attach_somebody()
            ids = [entry.id() for each in numbers if (entry := self.some(each)) is not None]
            self.consumer.command("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=ids)

    # --- moving and giving up ---
    @rule(number=st.integers(0, 10_000), keep=st.none() | st.sets(st.integers(0, 75), min_size=1))
    def seek(self, number: int, keep: set[int] | None) -> None:
        entry = self.some(number)
        if entry is None or not self.is_kept(entry):
            return
        self.attach_somebody()
        target = {"ledgerId": entry.ledger_id, "entryId": entry.entry_id, "ack_set": entry.id(keep).ack_set}
        self.consumer.command("seek", consumer_id=1, request_id=1, message_id=target)
        place = self.stored.index(entry)
        for before in self.stored[:place]:
            before.open.clear()
        for behind in self.stored[place:]:
            behind.open = set(range(behind.messages))
        if keep is not None:
            entry.open &= keep

    @rule(count=st.integers(0, 12))
    def skip(self, count: int) -> None:
        done: list[object] = []
        self.harness.actions.cursors.skip(NAME, "s", count, done.append)
        self.harness.poll()
        assert done == [None]
        for entry in [each for each in self.stored if each.open][:count]:
            entry.open.clear()

    # --- the broker ---
    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.harness.restart()
        else:
            self.harness.crash()
        self.begin()

    @rule()
    def housekeeping(self) -> None:
        """Delete unneeded ledgers."""
        self.harness.advance(16)

    @rule(kind=st.sampled_from(["s", "t"]), number=st.integers(0, 9))
    def lose_delivery_times(self, kind: str, number: int) -> None:
        found = [key for key in self.harness.store.keys.names("delays/") if f"\0{kind}" in key]
        if found:
            self.harness.store.keys.delete(found[number % len(found)])

    @rule()
    def forget_tallies(self) -> None:
        for key, value in list(self.harness.store.keys.scan("counts/")):
            if value.deltas:
                self.harness.store.keys.delete(key)
        self.harness.crash()
        self.begin()

    @invariant()
    def exact(self) -> None:
        opened = [entry for entry in self.stored if entry.open]
        messages, size = sum(len(entry.open) for entry in opened), sum(entry.size for entry in opened)
        assert self.subscription.backlog == len(opened)
        assert self.subscription.backlog_tally() == (messages, size)
        assert not any(self.harness.broker.scheduler.failures.values())

    @invariant()
    def nothing_is_out_of_sight(self) -> None:
        """Each open entry that was read is pending at one consumer or queued; the counters match."""
        dispatcher = self.subscription.dispatcher
        if not isinstance(dispatcher, SharedDispatcher):
            return
        ledger = self.topic.ledger
        held = Counter(offset for consumer in dispatcher.consumers for offset in consumer.pending)
        assert set(held.values()) <= {1}
        for consumer in dispatcher.consumers:
            assert consumer.unacked_messages == sum(consumer.pending.values())
        assert dispatcher.unacked_messages == sum(each.unacked_messages for each in dispatcher.consumers)
        for entry in self.stored:
            offset = ledger.offset(entry.ledger_id, entry.entry_id)
            if offset is None or not entry.open:
                assert offset is None or not held[offset]
                continue
            if held[offset]:
                holder = next(each for each in dispatcher.consumers if offset in each.pending)
                assert holder.pending[offset] == len(entry.open)
            if dispatcher.was_read(offset):
                waits = offset in dispatcher._replaying or offset in dispatcher._delayed
                assert waits + held[offset] == 1, (offset, waits, held[offset])

    def teardown(self) -> None:
        """Check that all open messages, and no others, are delivered to one last consumer."""
        self.harness.crash()
        self.begin()
        self.consumer.subscribe(TOPIC, kind="Shared", permits=100_000)
        self.harness.advance(4)
        self.consumer.command("ping")
        self.harness.advance(4)
        came = Counter()
        for message in self.consumer.messages():
            came[message.ledger_id, message.entry_id] += 1
            entry = self.of(message)
            partly = 0 < len(entry.open) < entry.messages
            bits = sum((word & (1 << 64) - 1) << 64 * at for at, word in enumerate(message.ack_set))
            assert bits == (sum(1 << index for index in entry.open) if partly else 0)
        opened = [(entry.ledger_id, entry.entry_id) for entry in self.stored if entry.open]
        assert set(came) == set(opened)
        assert self.compensated or came == Counter(opened)


@pytest.mark.parametrize("compensated", [False, True])
def test_backlogs_are_exact_after_any_operations(make_harness, make_entry, monkeypatch, compensated):
    monkeypatch.setattr(delivery_times, "RUN_ENTRIES", 4)
    monkeypatch.setattr(delivery_times, "SLICE_ENTRIES", 2)
    monkeypatch.setattr(entry_counts, "BLOCK_ENTRIES", 4)
    monkeypatch.setattr(entry_counts, "TAIL_KEPT_ENTRIES", 2)
    run_state_machine_as_test(
        lambda: Backlog(make_harness, make_entry, redeliver_unacked_after_seconds=4 if compensated else 0),
        settings=settings(max_examples=25, stateful_step_count=30),
    )
