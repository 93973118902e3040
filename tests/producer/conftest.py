"""A partition producer with its surroundings, and the frames it writes, decoded."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from geminga.producer.partition import PartitionProducer, ReadySet
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.pending_limits import ByteBudget, PendingLimits, Permits
from geminga.producer.settings import ProducerSettings
from geminga.wire.compression import decompress
from geminga.wire.frames import FrameDecoder
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

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
        **settings: Any,
    ) -> None:
        self.settings = ProducerSettings(**{"batching_enabled": True, **settings})
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
        self.max_message_size = 5 * 1024 * 1024

    def success(self, **fields: Any) -> pb.CommandProducerSuccess:
        values: dict[str, Any] = {
            "request_id": 1,
            "producer_name": self.settings.producer_name or "given",
            "last_sequence_id": -1,
            "schema_version": b"",
            "producer_ready": True,
        }
        values.update(fields)
        return pb.CommandProducerSuccess(**values)

    def connect(self, **fields: Any) -> Bench:
        if self.partition.state.value == "not started":
            self.partition.start()
        self.partition.created(self.success(**fields), self.max_message_size, self.now)
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


@pytest.fixture
def topic():
    """``topic(partitions, **settings)``: a `PartitionedProducer` in virtual surroundings."""

    def make(partitions: int, *, memory: int = 0, start: float = 0.0, **settings: Any) -> PartitionedProducer:
        ids = itertools.count()
        return PartitionedProducer(
            topic="persistent://public/default/t",
            partitions=partitions,
            settings=ProducerSettings(**{"batching_enabled": True, **settings}),
            memory=ByteBudget(memory),
            new_producer_id=lambda: next(ids),
            random=lambda: start,
        )

    return make


@pytest.fixture
def connect():
    """``connect(*partitions)``: as if the broker had created their producers."""

    def created(*partitions: PartitionProducer, last_sequence_id: int = -1) -> None:
        for partition in partitions:
            if partition.state.value == "not started":
                partition.start()
            success = pb.CommandProducerSuccess(
                request_id=1, producer_name="p", last_sequence_id=last_sequence_id, schema_version=b""
            )
            partition.created(success, 5 * 1024 * 1024, 0.0)

    return created
