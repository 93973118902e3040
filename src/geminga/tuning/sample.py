"""Sizes of entries: a sample of messages, encoded and compressed as by the producer.

The saving of a codec depends on the data and on the batch size, so it is measured: batches of several sizes
are built from the sample's messages in order, and other sizes are interpolated.
"""

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
"""Batches per size that are compressed; the result is their mean."""
SAMPLE_MESSAGES_MAX = 4000
SAMPLE_BYTES_MAX = 16 << 20
STANDARD_BYTES_MAX = 4 << 20
STANDARD_MESSAGE_BYTES_MAX = 64 << 10
STANDARD_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.4, 8.0)
"""Total bytes, largest message, and steps of the message size within a power of ten, of generated samples."""
KEY_BYTES = 10
"""Bytes of a message's key, besides tag and length."""
_PRODUCER_NAME = b"\n\x12standalone-123-456"
"""An encoded producer name of typical length."""
_NO_LIMIT = 1 << 40


class Sample:
    """Messages of a topic and the entries that they form.

    ``origin``: source of the messages, as text. For batches larger than the sample, the ratio of the whole
    sample is assumed.
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
        """Return the stored bytes of an entry of ``fill`` messages, including metadata.

        The compressibility comes from the sample; message size and keys come from ``profile``, if given.
        """
        size = self._interpolated(fill, compression, level)[0]
        if profile is None:
            return size
        size *= profile.message_bytes / self.message_bytes
        if profile.keyed:
            size += fill * KEY_BYTES / self.ratio(fill, compression, level)
        return size

    def compression_seconds(self, fill: float, compression: CompressionType, level: int = 0) -> float:
        """Return the CPU seconds that encoding and compressing such an entry takes on this machine."""
        return self._interpolated(fill, compression, level)[1]

    def ratio(self, fill: float, compression: CompressionType, level: int = 0) -> float:
        """Return the stored bytes of entries without compression, divided by those with it."""
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
        """Measure mean bytes and CPU seconds of entries of ``fill`` messages."""
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
        payloads, [None] * len(payloads), len(payloads), sequence_id=1_000_000,
        highest_sequence_id=1_000_000 + len(payloads) - 1, size=sum(map(len, payloads)),
        permits=len(payloads), opened_at=0.0, deadline=math.inf, is_batch=len(payloads) > 1,
        compression=int(compression), compression_level=level,
    )  # fmt: skip
    head, body = operation.frame(1, _PRODUCER_NAME, 1_700_000_000_000, _NO_LIMIT)
    command = 8 + int.from_bytes(head[4:8], "big")
    return len(head) - command + len(body)


def standard_sample(message_bytes: float) -> Sample:
    """Return structured JSON of approximately a size, for topics without sample messages.

    Ten samples per power of ten serve the thousands of sizes of many topics: compressibility depends little
    on the size, and the exact size comes from the profile.
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
