"""What the client itself takes for a batch, measured on the machine at hand: `measured_client` puts it into a
`BrokerModel`.

Round trips of lone entries (`geminga.tuning.round_trips`) do not show it: a lone message is written at once,
a batch that is to be compressed goes to another thread and comes back before it is written. Two wake-ups and
the compressor are between a batch's end and its frame: with a delay of 1 ms a tenth of the latency.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from geminga.client.publisher import ENCODING_BYTES_MIN
from geminga.config import check_int
from geminga.event_loops import new_event_loop
from geminga.producer.operation import SendOperation
from geminga.producer.settings import ProducerSettings
from geminga.tuning.event_loops import installed
from geminga.tuning.measuring.load import TICK_SECONDS, Receipts, Sender
from geminga.tuning.measuring.pacing import Pace
from geminga.tuning.measuring.payloads import STAMPED_BYTES_MIN, stamp_ns, structured_json
from geminga.tuning.modelled_broker import BrokerModel
from geminga.tuning.traffic import TrafficProfile

BATCH_BYTES = (2 * ENCODING_BYTES_MIN, 32_000, 100_000)
BATCHES = 60
MESSAGE_BYTES = 200.0
BATCHES_PER_SECOND = 150.0
WAIT_SECONDS_MAX = 30.0
TICKING = "geminga-ticking"
"""The thread's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodingTimes:
    """From the end of a batch until it could be written."""

    seconds: float
    """Of any batch: to the other thread and back."""
    byte_seconds: float
    """For each byte of payload: laying out, compressing."""


@contextmanager
def ticking(profile: TrafficProfile) -> Iterator[None]:
    """Beside what is measured, a thread that sends the profile's messages to nobody.

    An application that sends shares the interpreter and the processors with its client: it wakes up some
    thousand times a second, and what the client's loop has to do waits for it.
    """
    stop = threading.Event()
    payloads = structured_json(max(profile.message_bytes, STAMPED_BYTES_MIN))
    sender = Sender(payloads, Pace(profile.rate_messages_per_second, profile.bursts), [])
    receipts = Receipts(ok=None)

    def nowhere(_payload: bytes, _back: Any) -> None:
        pass

    def run() -> None:
        start, until = stamp_ns(), 0.0
        while not stop.is_set():
            until += 100 * TICK_SECONDS
            sender.run(nowhere, receipts, start, until)

    thread = threading.Thread(target=run, name=TICKING, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(WAIT_SECONDS_MAX)


def measure_encoding(
    settings: ProducerSettings,
    *,
    message_bytes: float = MESSAGE_BYTES,
    batches: int = BATCHES,
    per_second: float = BATCHES_PER_SECOND,
) -> EncodingTimes:
    """Give batches of structured JSON to the threads that encode for a client's loop, and take the times.

    All zero without compression: such batches are written where they are closed.
    """
    check_int("batches", batches, 2)
    if not settings.compression_type:
        return EncodingTimes(seconds=0.0, byte_seconds=0.0)
    draw = random.Random(1)
    made = structured_json(max(message_bytes, STAMPED_BYTES_MIN))
    lines = made.messages(max(2, round(2 * max(BATCH_BYTES) / message_bytes)))
    order = [size for size in BATCH_BYTES for _ in range(batches)]
    draw.shuffle(order)
    times: dict[int, list[float]] = {}

    async def one(size: int) -> None:
        count = max(1, round(size / message_bytes))
        start = draw.randrange(max(1, len(lines) - count))
        operation = _operation(lines[start : start + count], settings)
        before = time.perf_counter()
        await asyncio.get_running_loop().run_in_executor(None, operation.encode_body)
        times.setdefault(operation.size, []).append(time.perf_counter() - before)

    async def every() -> None:
        for size in order:
            await one(size)
            await asyncio.sleep(draw.uniform(0.5, 1.5) / per_second)

    loop = new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(every(), loop).result(WAIT_SECONDS_MAX + 2 * len(order) / per_second)
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(WAIT_SECONDS_MAX)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_SECONDS_MAX)
        loop.close()
    return _line({size: statistics.median(taken) for size, taken in times.items()})


def measured_client(
    model: BrokerModel, settings: ProducerSettings, message_bytes: float = MESSAGE_BYTES
) -> BrokerModel:
    """The model with what this machine's client takes: its event loop, and the encoding of its batches."""
    encoding = measure_encoding(settings, message_bytes=message_bytes)
    return model.changed(
        event_loop=installed(),
        encoding_seconds=encoding.seconds,
        encoding_byte_seconds=encoding.byte_seconds,
    )


def _operation(payloads: Sequence[bytes], settings: ProducerSettings) -> SendOperation:
    count = len(payloads)
    return SendOperation(
        list(payloads), [None] * count, sequence_id=0, highest_sequence_id=count - 1,
        size=sum(map(len, payloads)), permits=count, opened_at=0.0, deadline=float("inf"), is_batch=True,
        compression=int(settings.compression_type), compression_level=settings.compression_level,
    )  # fmt: skip


def _line(medians: dict[int, float]) -> EncodingTimes:
    """Least squares, neither part below zero."""
    fit = statistics.linear_regression(list(medians), list(medians.values()))
    slope = max(0.0, fit.slope)
    means = statistics.fmean(medians), statistics.fmean(medians.values())
    return EncodingTimes(seconds=max(0.0, means[1] - slope * means[0]), byte_seconds=slope)


__all__ = ["EncodingTimes", "measure_encoding", "measured_client", "ticking"]
