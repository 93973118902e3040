"""Consumers against a model of a subscription, over a network that loses connections, in virtual time.

The model is written from the protocol's rules and shares no code with the consumer. An auditor holds the
promises: a receipted acknowledgement is never delivered again, an unacknowledged message is never lost,
permits are never exceeded by more than one entry, and when the faults stop, the work is finished.
A failure is replayed by its seed.
"""

import random
from collections import deque
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.consumer.commands import ConsumerIdentity
from geminga.consumer.core import ConsumerCore
from geminga.consumer.events import AcksSettled
from geminga.consumer.message import Message, place_of
from geminga.consumer.queue import ReceiveQueue, rest
from geminga.consumer.settings import ConsumerSettings, ConsumerType
from geminga.consumer.state import ConsumerState
from geminga.wire.client_frames import ClientFrameDecoder
from geminga.wire.frames import FrameDecoder, encode_message
from geminga.wire.proto import pulsar_wire_pb2 as pb

B = pb.BaseCommand


class Subscription:
    """The broker's side: entries, what is acknowledged, what is pending, and one consumer's permits."""

    def __init__(self, make: SimpleNamespace, sizes: list[int], *, shared: bool, batch_index: bool) -> None:
        self.make = make
        self.sizes = sizes
        self.shared = shared
        self.batch_index = batch_index
        self.acked = [[False] * size for size in sizes]
        self.redelivered = [0] * len(sizes)
        self.detach()

    def detach(self) -> None:
        self.permits = 0
        self.epoch = 0
        self.pending: set[int] = set()

    def done(self, entry_id: int) -> bool:
        return all(self.acked[entry_id])

    def receive(self, command: pb.BaseCommand) -> list[Any]:
        """One command of the consumer; returns the answers."""
        if command.type == B.SUBSCRIBE:
            self.detach()
            self.epoch = command.subscribe.consumer_epoch
        elif command.type == B.FLOW:
            assert command.flow.messagePermits > 0
            self.permits += command.flow.messagePermits
        elif command.type == B.ACK:
            return self._ack(command.ack)
        elif command.type == B.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            self._redeliver(command.redeliverUnacknowledgedMessages)
        else:
            raise AssertionError(f"unexpected {command}")
        return []

    def _ack(self, ack: Any) -> list[Any]:
        for place in ack.message_id:
            entry_id = place.entryId if place.entryId < 1 << 63 else -1
            if ack.ack_type:
                for before in range(entry_id):
                    self.acked[before] = [True] * self.sizes[before]
            if entry_id < 0:
                continue
            words = list(place.ack_set)
            for index in range(self.sizes[entry_id]):
                if not words or (self.batch_index and not words[0] >> index & 1):
                    self.acked[entry_id][index] = True
        if not ack.HasField("request_id"):
            return []
        answer = B(type=B.ACK_RESPONSE)
        answer.ackResponse.consumer_id = 1
        answer.ackResponse.request_id = ack.request_id
        return [answer]

    def _redeliver(self, body: Any) -> None:
        if self.shared and body.message_ids:
            ids = {place.entryId for place in body.message_ids} & self.pending
        else:
            ids = set(self.pending)
            if not self.shared:
                self.epoch = body.consumer_epoch
        self.pending -= ids
        if self.shared:
            for entry_id in ids:
                self.redelivered[entry_id] += 1

    def dispatch(self) -> list[Any]:
        """The MESSAGEs that the permits allow."""
        frames = []
        for entry_id in range(len(self.sizes)):
            if self.permits <= 0:
                break
            if entry_id in self.pending or self.done(entry_id):
                continue
            self.pending.add(entry_id)
            left = [index for index, acked in enumerate(self.acked[entry_id]) if not acked]
            values = [b"%d.%d" % (entry_id, index) for index in range(self.sizes[entry_id])]
            entry = self.make.batch(values) if self.sizes[entry_id] > 1 else self.make.single(values[0])
            partial = len(left) < self.sizes[entry_id]
            self.permits -= len(left)
            frames.append(
                self.make.frame(
                    entry, entry_id, redelivery_count=self.redelivered[entry_id],
                    ack_set=[sum(1 << index for index in left)] if partial else (),
                    consumer_epoch=-1 if self.shared else self.epoch,
                )
            )  # fmt: skip
        return frames


class World:
    """One run: a broker, a consumer, an application, and the wires between them."""

    def __init__(self, make: SimpleNamespace, seed: int) -> None:
        self.random = random.Random(seed)
        choose = self.random.choice
        kind = choose([ConsumerType.Exclusive, ConsumerType.Shared])
        self.shared = kind is ConsumerType.Shared
        batch_index = choose([True, False])
        sizes = choose([[1, 1, 2, 5], [1] * 20 + [3]])
        self.sizes = [choose(sizes) for _ in range(self.random.randint(5, 25))]
        self.broker = Subscription(make, self.sizes, shared=self.shared, batch_index=batch_index)
        self.queue_size = choose([1, 3, 10, 100])
        settings = ConsumerSettings(
            consumer_type=kind, receiver_queue_size=self.queue_size,
            ack_receipt_enabled=choose([True, False]), batch_index_ack_enabled=batch_index,
            negative_ack_redelivery_delay_ms=500,
            unacked_messages_timeout_ms=choose([None, 2000]),
        )  # fmt: skip
        self.receipts = settings.ack_receipt_enabled
        self.queue = ReceiveQueue()
        self.core = ConsumerCore(settings, ConsumerIdentity("t", "s", 1, "c"), self.queue)
        self.make = make
        self.now = 0.0
        self.request_id = 0
        self.to_broker: deque[pb.BaseCommand] = deque()
        self.to_consumer: deque[Any] = deque()
        self.held: list[Any] = []
        self.is_away = True
        self.receipted: set[bytes] = set()
        self.excused: set[bytes] = set()
        """Receipted while another copy, sent before, was on its way or in the queue."""
        self.acked: set[bytes] = set()
        self.counts: set[bytes] = set()
        """Return the acknowledged messages, without parts of batches that a reconnect has undone."""
        self.delivered: set[bytes] = set()

    def new_request_id(self) -> int:
        self.request_id += 1
        return self.request_id

    # --- the wires ---
    def connect(self) -> None:
        self.is_away = False
        self.broker.receive(self.core.subscribe(self.new_request_id()))
        assert not self.queue
        self.excused.clear()
        self.forget_parts()
        self.core.new_request_id = self.new_request_id
        self.core.subscribed(self.now)

    def drop(self) -> None:
        """The connection is gone with what was on the wires; a part of it may have arrived."""
        self.collect()
        for _ in range(self.random.randint(0, len(self.to_broker))):
            self.broker.receive(self.to_broker.popleft())
        self.to_broker.clear()
        self.to_consumer.clear()
        self.is_away = True
        self.broker.detach()
        self.core.disconnected(self.now)
        self.collect()
        self.excused &= self.on_the_way()
        if self.shared:
            self.forget_parts()

    def forget_parts(self) -> None:
        if not self.core.settings.batch_index_ack_enabled:
            self.counts = {value for value in self.counts if self.whole(value)}

    def collect(self) -> None:
        decoder = FrameDecoder()
        for data in self.core.take_output():
            assert not self.is_away
            self.to_broker += [frame.command for frame in decoder.feed(data)]
        for event in self.core.take_events():
            if isinstance(event, AcksSettled):
                assert event.error is None
                for values in event.tokens:
                    self.receipted |= values
                    self.excused |= values & self.on_the_way()

    def on_the_way(self) -> set[bytes]:
        entries = {item.entry_id for item in self.to_consumer if not isinstance(item, pb.BaseCommand)}
        values = {b"%d.%d" % (entry_id, i) for entry_id in entries for i in range(self.sizes[entry_id])}
        for queued, left in self.queue.lots:
            values |= {Message(queued, index).data() for index in rest(copy(left))}
        return values

    def broker_step(self) -> None:
        if self.to_broker:
            self.to_consumer += self.broker.receive(self.to_broker.popleft())
            self.to_consumer += self.broker.dispatch()
        assert self.broker.permits <= self.queue_size

    def consumer_step(self) -> None:
        if self.to_consumer:
            item = self.to_consumer.popleft()
            if isinstance(item, pb.BaseCommand):
                self.core.command(item)
            else:
                self.core.receive(self.run_from(item), self.now, self.make.now_ms)

    def run_from(self, first: Any) -> Any:
        """``first`` with some of the frames after it, if they make a run."""
        frames = [first]
        for _ in range(self.random.choice([0, 3, 10])):
            after = self.to_consumer[0] if self.to_consumer else None
            if after is None or isinstance(after, pb.BaseCommand) or after.ack_set or first.ack_set:
                break
            common = "redelivery_count", "consumer_epoch"
            if any(getattr(first, name) != getattr(after, name) for name in common):
                break
            frames.append(self.to_consumer.popleft())
        if len(frames) == 1:
            return first
        pieces = [
            encode_message(
                each.consumer_id, each.ledger_id, each.entry_id, each.partition, len(each.entry),
                redelivery_count=each.redelivery_count, consumer_epoch=each.consumer_epoch,
            ) + each.entry
            for each in frames
        ]  # fmt: skip
        (run,) = ClientFrameDecoder().feed(b"".join(pieces))
        return run

    # --- the application ---
    def take(self) -> None:
        message = self.queue.take()
        if message is None:
            return
        entry, index = place_of(message)
        self.core.took(entry, (index,))
        value = message.data()
        assert value not in self.receipted - self.excused, f"{value!r} was receipted and came again"
        self.delivered.add(value)
        self.core.taken([message], self.now)
        self.held.append(message)

    def acknowledge(self) -> None:
        if not self.held:
            return
        message = self.held.pop(self.random.randrange(len(self.held)))
        last = message.message_id()
        values = {message.data()}
        if not self.shared and self.random.random() < 0.2:
            self.core.acknowledge_through([message], self.now)
            values = {
                b"%d.%d" % (entry_id, index)
                for entry_id in range(last.entry_id + 1)
                for index in range(self.sizes[entry_id])
                if entry_id < last.entry_id or index <= max(last.batch_index, 0)
            }
        elif self.random.random() < 0.3:
            self.core.acknowledge_id(message.message_id(), self.now)
        else:
            self.core.acknowledge_messages([message], self.now)
        self.acked |= values
        self.counts |= values
        if self.receipts:
            # Without batch-index acknowledgement the broker only learns of whole entries.
            whole = {v for v in values if self.core.settings.batch_index_ack_enabled or self.whole(v)}
            self.core.await_receipt(whole, self.now)

    def whole(self, value: bytes) -> bool:
        entry_id = int(value.split(b".")[0])
        return all(b"%d.%d" % (entry_id, index) in self.counts for index in range(self.sizes[entry_id]))

    def refuse(self) -> None:
        if self.held:
            message = self.held.pop(self.random.randrange(len(self.held)))
            self.core.negative_acknowledge([message], self.now)

    def wait(self) -> None:
        self.now += self.random.choice([0.01, 0.1, 1.0])
        if self.core.state is ConsumerState.READY:
            self.core.tick(self.now)

    # --- a run ---
    def turbulence(self, steps: int) -> None:
        actions = [
            (self.broker_step, 30), (self.consumer_step, 30), (self.take, 25), (self.acknowledge, 20),
            (self.refuse, 3), (self.wait, 6), (self.lose, 2), (self.redeliver_all, 1),
            (self.reconnect, 4),
        ]  # fmt: skip
        functions, weights = zip(*actions, strict=True)
        for action in self.random.choices(functions, weights, k=steps):
            action()
            self.collect()

    def lose(self) -> None:
        if not self.is_away:
            self.drop()
        if self.random.random() < 0.5:
            self.connect()

    def reconnect(self) -> None:
        if self.is_away:
            self.connect()

    def redeliver_all(self) -> None:
        self.core.redeliver_unacknowledged()

    def finish(self) -> None:
        """No more faults: everything is delivered and acknowledged."""
        self.held.clear()
        self.drop()
        self.connect()
        for _ in range(20_000):
            self.collect()
            if self.to_broker:
                self.broker_step()
            elif self.to_consumer:
                self.consumer_step()
            elif self.queue.messages:
                self.take()
                self.acknowledge()
            elif all(self.broker.done(entry_id) for entry_id in range(len(self.sizes))):
                break
            else:
                self.now += 0.1
                self.core.tick(self.now)
                assert self.now < 10_000, "nothing happens any more, and work is left"
        everything = {b"%d.%d" % (e, i) for e, size in enumerate(self.sizes) for i in range(size)}
        assert self.acked == everything
        assert self.delivered | self.acked == everything


@pytest.mark.simulation(50, 25)
def test_promises_hold_over_lost_connections(make, seeds):
    for seed in seeds:
        try:
            world = World(make, seed)
            world.connect()
            world.turbulence(400)
            world.finish()
        except AssertionError as error:
            raise AssertionError(f"--seed {seed}: {error}") from error
