"""How large entries become: a sample of messages, laid out and compressed as the producer does it.

What a codec saves depends on what it is given and on how much of it at once, so it is measured: batches of
several sizes are made of the sample's messages, in their order, and what lies between two sizes is
interpolated.
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Sequence
from functools import lru_cache

from geminga.config import refuse
from geminga.producer.operation import SendOperation
from geminga.producer.settings import CompressionType
from geminga.tuning.measuring.payloads import structured_json
from geminga.tuning.traffic import TrafficProfile

FILLS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
BATCHES_MAX = 8
"""Batches of one size that are compressed: their mean counts."""
SAMPLE_MESSAGES_MAX = 4000
SAMPLE_BYTES_MAX = 16 << 20
STANDARD_BYTES_MAX = 4 << 20
STANDARD_MESSAGE_BYTES_MAX = 64 << 10
STANDARD_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.4, 8.0)
"""Of made-up samples: their bytes, their largest messages, and the sizes of messages in each power of ten."""
KEY_BYTES = 10
"""What the key of a message takes beside its name's tag and length."""
_PRODUCER_NAME = b"\n\x12standalone-123-456"
"""A tagged producer name of the usual length."""
_NO_LIMIT = 1 << 40


class Sample:
    """Messages of a topic and the entries that they make.

    ``origin``: where they come from, for people. A codec sees no more messages at once than the sample
    holds; beyond that its ratio is taken to stay.
    """

    def __init__(self, messages: Sequence[bytes], origin: str) -> None:
        if not messages:
            refuse("messages", messages, "at least one message")
        self.origin = origin
        self._messages: list[bytes] = []
        size = 0
        for message in messages[:SAMPLE_MESSAGES_MAX]:
            self._messages.append(message)
            size += len(message)
            if size > SAMPLE_BYTES_MAX:
                break
        self.message_bytes = size / len(self._messages)
        self._measured: dict[tuple[CompressionType, int, int], tuple[float, float]] = {}

    def entry_bytes(
        self, fill: float, compression: CompressionType, level: int = 0, profile: TrafficProfile | None = None
    ) -> float:
        """Stored bytes of an entry of ``fill`` messages, metadata included.

        The sample tells how compressible messages are; how large they are, and whether they have keys, says
        a ``profile``, where one is given.
        """
        size = self._interpolated(fill, compression, level)[0]
        if profile is None:
            return size
        size *= profile.message_bytes / self.message_bytes
        if profile.keyed:
            size += fill * KEY_BYTES / self.ratio(fill, compression, level)
        return size

    def compression_seconds(self, fill: float, compression: CompressionType, level: int = 0) -> float:
        """CPU that laying out and compressing such an entry takes on this machine."""
        return self._interpolated(fill, compression, level)[1]

    def ratio(self, fill: float, compression: CompressionType, level: int = 0) -> float:
        """Stored bytes of entries without compression, divided by those with it."""
        return self.entry_bytes(fill, CompressionType.NONE) / self.entry_bytes(fill, compression, level)

    def _interpolated(self, fill: float, compression: CompressionType, level: int) -> tuple[float, float]:
        known = [n for n in FILLS if n <= len(self._messages)]
        fill = max(1.0, fill)
        if fill >= known[-1]:
            size, seconds = self._measure(compression, level, known[-1])
            return size * fill / known[-1], seconds * fill / known[-1]
        above = bisect.bisect_right(known, fill)
        low, high = known[above - 1], known[above]
        part = math.log(fill / low) / math.log(high / low)
        first, second = self._measure(compression, level, low), self._measure(compression, level, high)
        return (
            math.exp((1 - part) * math.log(first[0]) + part * math.log(second[0])),
            (1 - part) * first[1] * fill / low + part * second[1] * fill / high,
        )

    def _measure(self, compression: CompressionType, level: int, fill: int) -> tuple[float, float]:
        """Mean bytes and CPU seconds of entries of ``fill`` messages."""
        key = (compression, level, fill)
        if key not in self._measured:
            sizes, count = 0, 0
            started = time.thread_time()
            for first in range(0, len(self._messages) - fill + 1, fill):
                sizes += _entry_size(self._messages[first : first + fill], compression, level)
                count += 1
                if count == BATCHES_MAX:
                    break
            self._measured[key] = (sizes / count, (time.thread_time() - started) / count)
        return self._measured[key]


def _entry_size(payloads: list[bytes], compression: CompressionType, level: int) -> int:
    operation = SendOperation(
        payloads, [None] * len(payloads), sequence_id=1_000_000,
        highest_sequence_id=1_000_000 + len(payloads) - 1, size=sum(map(len, payloads)),
        permits=len(payloads), opened_at=0.0, deadline=math.inf, is_batch=len(payloads) > 1,
        compression=int(compression), compression_level=level,
    )  # fmt: skip
    head, body = operation.frame(1, _PRODUCER_NAME, 1_700_000_000_000, _NO_LIMIT)
    command = 8 + int.from_bytes(head[4:8], "big")
    return len(head) - command + len(body)


def standard_sample(message_bytes: float) -> Sample:
    """Structured JSON of about a size, for topics whose messages are not at hand.

    A fleet has thousands of sizes and there are ten samples for each power of ten: how messages compress
    depends little on their size, and how large they are says the profile.
    """
    wanted = min(max(1.0, message_bytes), STANDARD_MESSAGE_BYTES_MAX)
    power = 10 ** math.floor(math.log10(wanted))
    candidates = [round(step * power) for step in (*STANDARD_STEPS, 10) if step * power >= 1]
    return _standard_sample(min(candidates, key=lambda size: abs(math.log(size / wanted))))


@lru_cache(maxsize=64)
def _standard_sample(message_bytes: int) -> Sample:
    count = min(SAMPLE_MESSAGES_MAX, max(1, STANDARD_BYTES_MAX // message_bytes))
    messages = structured_json(message_bytes, count=count).messages(count)
    return Sample(messages, "structured JSON (logs) made up for the purpose")
