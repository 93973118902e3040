"""Fixtures of the consumer tests: entries, MESSAGE frames, and a subscribed core."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import entries
import pytest
from entries import in_batch

from geminga.consumer.commands import ConsumerIdentity
from geminga.consumer.core import ConsumerCore
from geminga.consumer.message import place_of
from geminga.consumer.queue import ReceiveQueue
from geminga.consumer.settings import ConsumerSettings
from geminga.wire.frames import FrameDecoder, MessageFrame, encode_message
from geminga.wire.proto import pulsar_wire_pb2 as pb

NOW_MS = 1_700_000_000_000


def metadata_of(**fields: Any) -> pb.MessageMetadata:
    values = {"producer_name": "p", "sequence_id": 0, "publish_time": NOW_MS, **fields}
    return pb.MessageMetadata(**values)


def batch_body(payloads: Sequence[bytes], **fields: Any) -> bytes:
    return b"".join(in_batch(payload, sequence_id=n, **fields) for n, payload in enumerate(payloads))


def single_entry(payload: bytes, **fields: Any) -> bytes:
    return entries.single_entry(payload, **{"publish_time": NOW_MS, **fields})


def batch_entry(payloads: Sequence[bytes], compression: int = 0, **fields: Any) -> bytes:
    messages = [in_batch(payload, sequence_id=number) for number, payload in enumerate(payloads)]
    return entries.batch_entry(messages, compression, **{"publish_time": NOW_MS, **fields})


def message_frame(
    entry: bytes,
    entry_id: int = 0,
    *,
    ledger_id: int = 7,
    consumer_id: int = 1,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int = -1,
) -> MessageFrame:
    head = encode_message(
        consumer_id, ledger_id, entry_id, -1, len(entry),
        redelivery_count=redelivery_count, ack_set=ack_set, consumer_epoch=consumer_epoch,
    )  # fmt: skip
    (frame,) = FrameDecoder().feed(head + entry)
    assert isinstance(frame, MessageFrame)
    return frame


def sent(core: ConsumerCore) -> list[pb.BaseCommand]:
    """The commands that the core has to send, decoded by the wire's own reader."""
    decoder = FrameDecoder()
    return [frame.command for data in core.take_output() for frame in decoder.feed(data)]


class Subscribed:
    """A core with its queue, subscribed unless told otherwise; ``now`` is moved by hand."""

    def __init__(self, settings: ConsumerSettings, *, attach: bool = True) -> None:
        self.queue = ReceiveQueue()
        self.core = ConsumerCore(
            settings, ConsumerIdentity("persistent://public/default/t", "s", 1, "c"), self.queue
        )  # fmt: skip
        self.now = 100.0
        self._request_id = 0
        if attach:
            self.attach()

    def new_request_id(self) -> int:
        self._request_id += 1
        return self._request_id

    def attach(self) -> list[pb.BaseCommand]:
        subscribe = self.core.subscribe(self.new_request_id())
        self.core.new_request_id = self.new_request_id
        self.core.subscribed(self.now)
        return [subscribe, *sent(self.core)]

    def reconnect(self) -> list[pb.BaseCommand]:
        self.core.disconnected(self.now)
        return self.attach()

    def receive(self, entry: bytes, entry_id: int = 0, **fields: Any) -> None:
        self.core.receive(message_frame(entry, entry_id, **fields), self.now, NOW_MS)

    def receive_numbers(self, count: int, first: int = 0, **fields: Any) -> None:
        """Receive entries ``first``, the next and so on, each with its number."""
        for number in range(first, first + count):
            self.receive(single_entry(b"%d" % number), number, **fields)

    def change_active(self, is_active: bool) -> None:
        """Hear from the broker whether this consumer of a Failover subscription is the active one."""
        change = pb.CommandActiveConsumerChange(consumer_id=1, is_active=is_active)
        kind = pb.BaseCommand.ACTIVE_CONSUMER_CHANGE
        self.core.command(pb.BaseCommand(type=kind, active_consumer_change=change))

    def take(self, count_max: int = 1 << 30) -> list[Any]:
        """All queued messages, or the first ``count_max``, as an application takes them."""
        messages: list[Any] = []
        while len(messages) < count_max and (message := self.queue.take()) is not None:
            entry, index = place_of(message)
            self.core.took(entry, (index,))
            messages.append(message)
        return messages

    def advance(self, seconds: float) -> list[pb.BaseCommand]:
        """Let time pass, tick, and return what is sent."""
        self.now += seconds
        self.core.tick(self.now)
        return sent(self.core)


@pytest.fixture(scope="session")
def make():
    """The functions of this module, for tests that build entries."""
    return SimpleNamespace(
        metadata=metadata_of, body=batch_body, single=single_entry, batch=batch_entry, frame=message_frame,
        sent=sent, now_ms=NOW_MS,
    )  # fmt: skip


@pytest.fixture
def subscribed():
    def make(*, attach: bool = True, **settings: Any) -> Subscribed:
        return Subscribed(ConsumerSettings(**settings), attach=attach)

    return make
