"""Send credits: how many messages may be submitted without asking the loop, and when to wake the loop.

The numbers are conservative: there is a permit for every message within them. The loop recounts them after
each iteration.
"""

from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.pending_limits import UNLIMITED
from geminga.producer.settings import CompressionType, ProducerSettings

PLAIN_SIZE_MIN = 4096
"""If bytes are limited, payloads up to this size may be submitted without asking while enough of them fit."""

PARTITIONS_LOOKED_AT_MAX = 64
"""Limit of active partitions up to which their open batches are looked at."""


class SendCredits:
    """Send credits of one producer."""

    def __init__(self, state: PartitionedProducer, settings: ProducerSettings) -> None:
        self._state = state
        self._settings = settings
        self._memory = state.memory
        self._compresses = settings.compression_type is not CompressionType.NONE

    def numbers(self, producers: int, standing: int, largest: int) -> tuple[int, int, int, int]:
        """Return the arguments of `SubmitQueue.open`. ``producers`` share the client's bytes; ``standing``
        messages already wait for permits, ahead of new ones; ``largest`` is the size of the largest payload
        so far: if bytes are limited, similar ones are expected."""
        size_max = self._size_max(largest)
        return max(0, self._messages(size_max, producers) - standing), size_max, *self._wake_at()

    def _size_max(self, largest: int) -> int:
        """Return the largest payload that may be submitted without asking."""
        settings = self._settings
        size_max = UNLIMITED if self._compresses else self._state.partitions[0].max_message_size
        if settings.chunking_enabled:
            # A message that may need a second chunk takes more than one permit.
            size_max = min(size_max, settings.chunk_max_message_size or size_max) // 2
        if self._memory.limited:
            size_max = min(size_max, max(PLAIN_SIZE_MIN, largest))
        return size_max

    def _messages(self, size_max: int, producers: int) -> int:
        """Return the number of messages with permits and bytes, in every partition.

        A producer of several partitions that skips full ones counts their permits together.
        """
        state = self._state
        partitions = state.partitions
        if len(partitions) == 1:
            (only,) = partitions
            free = only.limits.own.free if only.accepting else 0
        else:
            free = state.shared.free
            limit = partitions[0].limits.own.limit
            if state.router.steps_over:
                free = min(free, limit * len(partitions) - state.shared.used)
            else:
                free = min(free, limit, *(partition.limits.own.free for partition in state.ready_set.busy))
        if self._memory.limited:
            free = min(free, self._memory.free // max(1, producers) // max(1, size_max))
        return free

    def _wake_at(self) -> tuple[int, int]:
        """Return how many plain messages, and how many others, fill a batch; the timer sends fewer."""
        if not self._settings.batching_enabled:
            return 1, 1
        state = self._state
        busy, joined = state.ready_set.busy, state.joined
        plain = rich = 1
        if joined is not None:
            batch = joined.batch
            left, size = joined.until_full()
            plain = left if batch is None else min(left, size // max(1, batch.size // max(1, len(batch))))
        if len(busy) <= PARTITIONS_LOOKED_AT_MAX:
            rich = min((p.until_full()[0] for p in busy if p.batch is not None), default=1)
        return max(1, plain), max(1, rich)
