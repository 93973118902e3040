"""Producers without a connection, and brokers' answers to them."""

import itertools
from collections.abc import Callable
from typing import Any

from geminga.producer.partition import PartitionProducer
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.pending_limits import ByteBudget
from geminga.producer.settings import ProducerSettings
from geminga.wire.frames import MAX_MESSAGE_SIZE
from geminga.wire.proto import pulsar_wire_pb2 as pb


def settings_of(**fields: Any) -> ProducerSettings:
    """Return settings of a producer that batches unless they say otherwise."""
    return ProducerSettings(**{"batching_enabled": True, **fields})


def producer_of(
    partitions: int,
    settings: ProducerSettings,
    *,
    memory: int | ByteBudget = 0,
    random: Callable[[], float] = lambda: 0.0,
) -> PartitionedProducer:
    """Return a producer that is not connected."""
    budget = ByteBudget(memory) if isinstance(memory, int) else memory
    return PartitionedProducer(
        topic="persistent://public/default/t", partitions=partitions, settings=settings, memory=budget,
        new_producer_id=itertools.count().__next__, random=random,
    )  # fmt: skip


def success(**fields: Any) -> pb.CommandProducerSuccess:
    """Return a broker's answer to a producer that it has created."""
    values = {"request_id": 1, "producer_name": "p", "last_sequence_id": -1, "schema_version": b""}
    return pb.CommandProducerSuccess(**{**values, "producer_ready": True, **fields})


def connect(
    *partitions: PartitionProducer, max_message_size: int = MAX_MESSAGE_SIZE, now: float = 0.0, **fields: Any
) -> None:
    """Start producers, and have a broker create them."""
    for partition in partitions:
        if partition.state.value == "not started":
            partition.start()
        partition.created(success(**fields), max_message_size, now)
