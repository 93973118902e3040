"""A partition producer with its surroundings, and the frames it writes, decoded."""

from __future__ import annotations

from typing import Any

import pytest
from producing import connect, settings_of

from geminga.producer.partition import PartitionProducer, ReadySet
from geminga.producer.pending_limits import ByteBudget, PendingLimits, Permits
from geminga.wire.compression import decompress
from geminga.wire.frames import FrameDecoder
from geminga.wire.metadata import parse_entry

NOW_MS = 1_700_000_000_000


class Sent:
    """One SEND frame, taken apart by the decoder and protobuf."""

    def __init__(self, frame: Any) -> None:
        self.command = frame
        entry = parse_entry(frame.entry)
        self.entry_size = len(frame.entry)
        self.metadata = entry.metadata
        self.payload = bytes(entry.payload)

    @property
    def body(self) -> bytes:
        metadata = self.metadata
        size = metadata.uncompressed_size or len(self.payload)
        return decompress(metadata.compression, self.payload, size, limit=1 << 26)

    @property
    def is_batch(self) -> bool:
        return self.metadata.HasField("num_messages_in_batch")


class Bench:
    """A partition producer on a bench: connect it, look at what it writes, answer."""

    def __init__(
        self,
        *,
        memory: int = 0,
        shared: int = 0,
        index: int = -1,
        topic: str = "persistent://a/b/c",
        max_message_size: int = 5 * 1024 * 1024,
        **settings: Any,
    ) -> None:
        self.settings = settings_of(**settings)
        self.memory = ByteBudget(memory)
        self.ready_set = ReadySet()
        self.now = 0.0
        self.partition = PartitionProducer(
            topic=topic,
            index=index,
            producer_id=3,
            settings=self.settings,
            limits=PendingLimits(Permits(self.settings.max_pending_messages), Permits(shared), self.memory),
            ready_set=self.ready_set,
        )
        self.max_message_size = max_message_size

    def connect(self, **fields: Any) -> Bench:
        fields.setdefault("producer_name", self.settings.producer_name or "given")
        connect(self.partition, max_message_size=self.max_message_size, now=self.now, **fields)
        return self

    def add(self, payload: bytes, message: Any = None, token: Any = None) -> bool:
        return self.partition.add(payload, payload if token is None else token, message, self.now)

    def written(self) -> list[Sent]:
        decoder = FrameDecoder(1 << 26)
        data = b"".join(bytes(piece) for piece in self.partition.take_output(self.now, NOW_MS))
        return [Sent(frame) for frame in decoder.feed(data)]

    def flushed(self) -> list[Sent]:
        self.partition.close_batch()
        return self.written()

    def receipt(self, sequence_id: int, highest: int = 0, ledger_id: int = 1, entry_id: int = 2) -> None:
        self.partition.receipt(sequence_id, highest, ledger_id, entry_id, self.now)

    def settled(self) -> list[Any]:
        return self.ready_set.take_settled()

    @property
    def permits_used(self) -> tuple[int, int, int]:
        limits = self.partition.limits
        return limits.own.used, limits.shared.used, limits.memory.used


@pytest.fixture
def bench():
    """``bench(**settings)``: a partition producer that is not connected yet."""
    return Bench
