"""Send credits: how many messages may be submitted without asking the loop, and when to wake the loop.

The numbers are conservative: every message within them is sure of its permit. The loop recounts them after
each iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

from geminga.producer.backlog import UNLIMITED
from geminga.producer.batching import Batch, KeyedBatches
from geminga.producer.partition import PartitionProducer
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.settings import CompressionType, ProducerSettings
from geminga.producer.states import ACCEPTING

PLAIN_SIZE_MIN = 4096
"""If bytes are limited, payloads up to this size may be submitted without asking while enough of them fit."""

PARTITIONS_LOOKED_AT_MAX = 64
"""Limit of active partitions up to which the permits held by their open batches are added up."""


class SendCredits:
    """Send credits of one producer."""

    def __init__(self, state: PartitionedProducer, settings: ProducerSettings) -> None:
        self._state = state
        self._settings = settings
        self._memory = state.memory
        self._compresses = settings.compression_type is not CompressionType.NONE
        self._largest = 0

    def note_sizes(self, payloads: Sequence[bytes]) -> None:
        """Note the sizes of submitted payloads: if bytes are limited, similar ones are expected."""
        self._largest = max(self._largest, max(map(len, payloads)))

    def numbers(self, producers: int, standing: int = 0) -> tuple[int, int, int, int]:
        """Return the arguments of `SubmitQueue.open`. ``producers`` share the client's bytes; ``standing``
        messages already wait for permits, ahead of new ones."""
        size_max = self._size_max()
        return max(0, self._messages(size_max, producers) - standing), size_max, *self._tell_at()

    def _size_max(self) -> int:
        """Return the largest payload that may be submitted without asking."""
        settings = self._settings
        size_max = UNLIMITED if self._compresses else self._state.partitions[0].max_message_size
        if settings.chunking_enabled:
            # A message that may need a second chunk takes more than one permit.
            size_max = min(size_max, settings.chunk_max_message_size or size_max) // 2
        if self._memory.limited:
            size_max = min(size_max, max(PLAIN_SIZE_MIN, self._largest))
        return size_max

    def _messages(self, size_max: int, producers: int) -> int:
        """Return the number of messages that are sure of their permits and bytes, in every partition.

        A producer of several partitions that skips full ones counts their permits together.
        """
        state = self._state
        partitions, busy = state.partitions, state.ready_set.busy
        if len(partitions) == 1:
            (only,) = partitions
            free = free_permits(only) if only.state in ACCEPTING else 0
        else:
            leased = sum(map(_leased, busy)) if len(busy) <= PARTITIONS_LOOKED_AT_MAX else 0
            free = state.shared.free + leased
            limit = partitions[0].backlog.own.limit
            if state.router.steps_over:
                free = min(free, limit * len(partitions) - state.shared.used + leased)
            else:
                free = min(free, limit, *map(free_permits, busy))
        if self._memory.limited:
            free = min(free, self._memory.free // max(1, producers) // max(1, size_max))
        return free

    def _tell_at(self) -> tuple[int, int]:
        """Return how many plain messages, and how many others, fill a batch; the timer sends fewer."""
        hot, busy = self._state.hot, self._state.ready_set.busy
        plain = rich = 1
        if hot.payloads:
            average = max(1, hot.size // len(hot.payloads))
            plain = min(_until_full(hot), (hot.size_limit - hot.size) // average)
        if self._settings.batching_enabled and len(busy) <= PARTITIONS_LOOKED_AT_MAX:
            rich = min((_until_full(p.batch) for p in busy if p.batch is not None), default=1)
        return max(1, plain), max(1, rich)


def _leased(partition: PartitionProducer) -> int:
    """Return the permits that the open batch holds for future messages."""
    batch = partition.batch
    return 0 if batch is None else batch.leased_count - len(batch)


def _until_full(batch: Batch | KeyedBatches) -> int:
    """Return how many more messages fill the batch or exceed its permits."""
    return max(batch.last + 1, batch.leased_count) - len(batch)


def free_permits(partition: PartitionProducer) -> int:
    """Return the number of messages that are sure of a permit of the partition.

    May be called on any thread; a batch that opens at the same moment may be counted twice
    (`OptimisticSend`).
    """
    return partition.backlog.own.free + _leased(partition)
