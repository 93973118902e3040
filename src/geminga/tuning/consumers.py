"""Advice for a topic's consumers and readers: queue sizes, acknowledgements, ways to receive, types.

A broker sends whole batches, wakes each subscription for each entry, and stores acknowledgements: unsuitable
settings of consumers can cost as much as good settings of producers save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from geminga.tuning.expectation import Expectation
from geminga.tuning.traffic import TrafficProfile

QUEUE, QUEUES_TOGETHER, ACK_GROUPING_MS = 1000, 50_000, 100
"""Defaults of ``subscribe``: queues of a partition and of all, and the period of acknowledgement grouping."""
QUEUE_BYTES_MAX = 128 << 20
"""Limit of the bytes in the queues of all partitions; two batches of each partition may exceed it."""
TABLE_RATE = 100_000
"""Messages a second of a consumer from which receiving tables saves a twentieth of a core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerAdvice:
    """A setting or a choice of consumers and readers, with its reason."""

    name: str
    value: int | str
    why: str


def consumer_advice(profile: TrafficProfile, after: Expectation) -> tuple[ConsumerAdvice, ...]:
    """Return the advice for consumers of batches as ``after`` expects them."""
    affordable = int(QUEUE_BYTES_MAX / profile.partitions / profile.message_bytes)
    queue = max(2 * math.ceil(after.batch_fill), min(QUEUE, affordable))
    total = max(QUEUES_TOGETHER, queue * profile.partitions)
    deliveries = after.entries_per_second * profile.subscriptions
    often = profile.rate_messages_per_second >= TABLE_RATE
    return (
        ConsumerAdvice(
            name="receiver_queue_size", value=queue,
            why=f"at least two batches of {after.batch_fill:.0f} messages: one is processed while the next "
            f"one comes; {_megabytes(queue * profile.partitions * profile.message_bytes)} for all partitions",
        ),
        ConsumerAdvice(
            name="max_total_receiver_queue_size_across_partitions", value=total,
            why=f"receiver_queue_size x {profile.partitions} partitions: a lower limit cuts each "
            "partition's queue to its share",
        ),
        ConsumerAdvice(
            name="ack_grouping_time_ms", value=ACK_GROUPING_MS,
            why="acknowledgements of this period are one request; with 0, each message is a request, as with "
            "ack_receipt_enabled where the program waits for each receipt",
        ),
        ConsumerAdvice(
            name="receive", value="receive_table()" if often else "receive()",
            why="a third of the CPU of receive(), where rows can be processed as columns" if often
            else "batch_receive() costs the same for batched messages, and a fifth less for unbatched ones; "
            f"from {TABLE_RATE:,} msg/s on receive_table() saves more",
        ),
        ConsumerAdvice(
            name="consumer_type", value="KeyShared" if profile.keyed else "Exclusive or Failover",
            why="it keeps the order of each key; the producers need batching_type=KeyBased, and batches of "
            "one key are smaller; where one consumer for each partition keeps up, Failover keeps the order "
            "and the batches" if profile.keyed
            else "whole batches in order, and acknowledge_cumulative: one position instead of each message; "
            "Shared where one message may take long to process",
        ),
        ConsumerAdvice(
            name="readers and subscriptions", value=profile.subscriptions,
            why=f"each is woken for each entry, {deliveries:,.0f} times a second in all: one consumer or "
            "reader of the whole topic in a process, not one for each partition",
        ),
    )  # fmt: skip


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
