"""Room: how many messages may be handed over without a question, and when the loop has to be told.

The numbers are on the safe side: whatever comes under them is sure of its permit. They are counted on the
loop after everything that it does.
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
"""Where bytes are limited, payloads up to this size are taken without a question as long as many fit."""

PARTITIONS_LOOKED_AT_MAX = 64
"""Of more partitions at work, what their open batches hold for messages to come is not added up."""


class SendCredits:
    """Counts for one producer."""

    def __init__(self, state: PartitionedProducer, settings: ProducerSettings) -> None:
        self._state = state
        self._settings = settings
        self._memory = state.memory
        self._compresses = settings.compression_type is not CompressionType.NONE
        self._largest = 0

    def note_sizes(self, payloads: Sequence[bytes]) -> None:
        """Payloads that came: where bytes are limited, more like them are expected."""
        self._largest = max(self._largest, max(map(len, payloads)))

    def numbers(self, producers: int, standing: int = 0) -> tuple[int, int, int, int]:
        """What `SubmitQueue.open` wants to know. ``producers`` share the client's bytes; ``standing`` messages
        wait for permits, and are before whatever comes."""
        size_max = self._size_max()
        return max(0, self._messages(size_max, producers) - standing), size_max, *self._tell_at()

    def _size_max(self) -> int:
        """The largest payload that needs no closer look."""
        settings = self._settings
        size_max = UNLIMITED if self._compresses else self._state.partitions[0].max_message_size
        if settings.chunking_enabled:
            # Whatever may need a second chunk takes more than one permit.
            size_max = min(size_max, settings.chunk_max_message_size or size_max) // 2
        if self._memory.limited:
            size_max = min(size_max, max(PLAIN_SIZE_MIN, self._largest))
        return size_max

    def _messages(self, size_max: int, producers: int) -> int:
        """How many messages are sure of their permits and bytes, whichever partition they go to.

        A producer of several partitions that steps over full ones counts their permits together.
        """
        state = self._state
        partitions, busy = state.partitions, state.ready_set.busy
        if len(partitions) == 1:
            (only,) = partitions
            room = free_permits(only) if only.state in ACCEPTING else 0
        else:
            leased = sum(map(_leased, busy)) if len(busy) <= PARTITIONS_LOOKED_AT_MAX else 0
            room = state.shared.free + leased
            limit = partitions[0].backlog.own.limit
            if state.router.steps_over:
                room = min(room, limit * len(partitions) - state.shared.used + leased)
            else:
                room = min(room, limit, *map(free_permits, busy))
        if self._memory.limited:
            room = min(room, self._memory.free // max(1, producers) // max(1, size_max))
        return room

    def _tell_at(self) -> tuple[int, int]:
        """How many plain messages, and how many others, fill a batch: the timer takes fewer along."""
        hot, busy = self._state.hot, self._state.ready_set.busy
        plain = rich = 1
        if hot.payloads:
            average = max(1, hot.size // len(hot.payloads))
            plain = min(_until_full(hot), (hot.size_limit - hot.size) // average)
        if self._settings.batching_enabled and len(busy) <= PARTITIONS_LOOKED_AT_MAX:
            rich = min((_until_full(p.batch) for p in busy if p.batch is not None), default=1)
        return max(1, plain), max(1, rich)


def _leased(partition: PartitionProducer) -> int:
    """Permits that the open batch holds for messages to come."""
    batch = partition.batch
    return 0 if batch is None else batch.leased_count - len(batch)


def _until_full(batch: Batch | KeyedBatches) -> int:
    """How many more messages need a closer look, or fill the batch."""
    return max(batch.last + 1, batch.leased_count) - len(batch)


def free_permits(partition: PartitionProducer) -> int:
    """Messages that are sure of a permit of the partition.

    May be asked on any thread; a batch that opens at the same moment may be counted twice (`OptimisticSend`).
    """
    return partition.backlog.own.free + _leased(partition)
