"""Step 6 of publishing: open batches.

`Batch` collects the messages of one entry, `KeyedBatches` those of one entry for each key.

The batch size is the sum of payload bytes, as in the official clients (algorithms.md section 5).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from geminga.producer.message import OutgoingMessage
from geminga.transactions import TransactionCore

MARK_FACTOR = 4
"""The time is noted at a batch's message 4, 16, 64, ...: the distribution of arrivals within a batch."""


class BatchTiming:
    """Timing notes of one batch: its delay, and arrival times of messages. Kept with the operation."""

    __slots__ = ("counts", "deadline", "delay_seconds", "times")

    def __init__(self, opened_at: float, delay_seconds: float) -> None:
        self.delay_seconds = delay_seconds
        self.deadline = opened_at + delay_seconds
        self.counts = [1]
        self.times = [opened_at]

    @property
    def next_mark(self) -> int:
        """Number of messages at which the time is to be noted."""
        return self.counts[-1] * MARK_FACTOR

    def mark(self, count: int, now: float) -> None:
        """Note that message number ``count`` arrived now."""
        self.counts.append(count)
        self.times.append(now)


def by_index(messages: list[OutgoingMessage | None], start: int) -> dict[int, OutgoingMessage]:
    """Return the messages that are not None by their index, from ``start`` on."""
    if None in messages:
        return {index: each for index, each in enumerate(messages, start) if each is not None}
    return dict(enumerate(messages, start))  # type: ignore[arg-type]


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """One open batch.

    ``messages`` are, by index, those with more than a payload. ``sequence_ids`` is None for automatic,
    consecutive ids; ``explicit`` when the caller gave them. ``urgent``: a sender waits, so close it as soon
    as no further message is at hand. ``tuned``: timing notes of a producer that tunes itself.
    """

    opened_at: float
    deadline: float
    payloads: list[bytes] = field(default_factory=list, init=False)
    tokens: list[Any] = field(default_factory=list, init=False)
    size: int = field(default=0, init=False)
    messages: dict[int, OutgoingMessage] | None = field(default=None, init=False)
    sequence_ids: list[int] | None = field(default=None, init=False)
    first: OutgoingMessage | None = field(default=None, init=False)
    explicit: bool = field(default=False, init=False)
    urgent: bool = field(default=False, init=False)
    tuned: BatchTiming | None = field(default=None, init=False)

    def append(self, payload: bytes, token: Any, message: OutgoingMessage | None) -> None:
        """Add a message; the caller has checked the limits."""
        if message is not None:
            if not self.payloads:
                self.first = message
            if self.messages is None:
                self.messages = {}
            self.messages[len(self.payloads)] = message
        self.payloads.append(payload)
        self.tokens.append(token)
        self.size += len(payload)

    def append_many(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: list[OutgoingMessage | None] | None,
        size: int,
    ) -> None:
        """Add simple messages of ``size`` payload bytes together; the caller has checked `accepts_simple`,
        and the limits. ``messages`` None: all are only payloads."""
        if messages is not None:
            found = by_index(messages, len(self.payloads))
            if not self.payloads:
                self.first = messages[0]
            if found and self.messages is None:
                self.messages = {}
            if self.messages is not None:
                self.messages.update(found)
        self.payloads += payloads
        self.tokens += tokens
        self.size += size

    def accepts(self, message: OutgoingMessage | None) -> bool:
        """Return whether this message may join this batch; `BatchBuilder` separates repeated sequence ids."""
        if message is None:
            return self.accepts_simple(None)
        if self.payloads and (message.sequence_id >= 0) is not self.explicit:
            return False
        return not self.payloads or message.shares_metadata_with(self.first)

    def accepts_simple(self, transaction: TransactionCore | None) -> bool:
        """Return whether simple messages of this transaction, or of none, may join this batch."""
        first = self.first
        if self.explicit or first is None:
            return not self.explicit and transaction is None
        return first.transaction is transaction and first.schema_version is None

    def holds(self, token: Any) -> bool:
        return any(each is token for each in self.tokens)

    def __len__(self) -> int:
        return len(self.payloads)


@dataclass(slots=True, eq=False, repr=False)
class KeyedBatches:
    """The open batches of one partition with one sub-batch for each key, for Key_Shared consumers.

    The key is the ordering key, else the partition key; messages without one share a sub-batch. Limits apply
    to all of them together, and all are closed together, in the order of their highest sequence ids: each is
    sent with that id, so that deduplication sees increasing numbers (algorithms.md 5). ``explicit`` when the
    caller gave the ids of all messages.
    """

    opened_at: float
    deadline: float
    size: int = field(default=0, init=False)
    explicit: bool = field(default=False, init=False)
    urgent: bool = field(default=False, init=False)
    tuned: BatchTiming | None = field(default=None, init=False)
    _batches: dict[bytes | str | None, Batch] = field(default_factory=dict, init=False)
    _count: int = field(default=0, init=False)

    def holds(self, token: Any) -> bool:
        return any(batch.holds(token) for batch in self._batches.values())

    def __len__(self) -> int:
        return self._count

    @staticmethod
    def key_of(message: OutgoingMessage | None) -> bytes | str | None:
        if message is None:
            return None
        return message.partition_key if message.ordering_key is None else message.ordering_key

    def accepts(self, message: OutgoingMessage | None) -> bool:
        if self._count and self.explicit is not (message is not None and message.sequence_id >= 0):
            return False
        batch = self._batches.get(self.key_of(message))
        if batch is None:
            return True
        first = batch.first
        if message is None:
            return first is None or not first.is_bound
        return message.shares_metadata_with(first)

    def append(self, payload: bytes, token: Any, message: OutgoingMessage | None, sequence_id: int) -> None:
        key = self.key_of(message)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = Batch(self.opened_at, self.deadline)
            batch.sequence_ids = []
        assert batch.sequence_ids is not None
        batch.append(payload, token, message)
        batch.sequence_ids.append(sequence_id)
        self._count += 1
        self.size += len(payload)

    def shift(self, offset: int) -> None:
        """Move the automatic sequence ids; see `SendOperation.shift`."""
        for batch in self._batches.values():
            batch.sequence_ids = [sequence_id + offset for sequence_id in batch.sequence_ids or ()]

    def in_order(self) -> Iterator[Batch]:
        """Yield the sub-batches by their highest sequence id."""
        return iter(sorted(self._batches.values(), key=lambda batch: max(batch.sequence_ids or (0,))))
