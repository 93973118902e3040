"""How long a broker takes for an entry: measured, and turned into a `BrokerModel`.

Entries of several sizes are sent one at a time, as a producer with good settings sends them: some dozens a
second. The time from a call of ``send`` to its receipt holds everything that the simulations put into
keeping: the network, the broker, the disk, and the wake-ups of threads on both sides.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from geminga.client.cluster import Cluster
from geminga.client.producer import Producer
from geminga.config import check_int, refuse
from geminga.errors import Result, Timeout
from geminga.tuning.modelled_broker import BrokerModel, quantiles_of

SIZES = (200, 2_000, 20_000, 80_000)
"""Bytes of the entries: from a lone message to a compressed batch of a thousand."""
ENTRIES = 150
PER_SECOND = 40.0
WARMUP_ENTRIES = 20
RECEIPTS_SECONDS_MAX = 30.0

RoundTrips = Mapping[int, Sequence[float]]
"""By bytes of the entry: seconds from ``send`` to the receipt."""


def measure_round_trips(
    service_url: str,
    topic: str,
    *,
    sizes: Sequence[int] = SIZES,
    entries: int = ENTRIES,
    per_second: float = PER_SECOND,
    unevenness: float = 0.5,
    cluster: Cluster | None = None,
) -> dict[int, list[float]]:
    """Send ``entries`` of each size, mixed, at ``per_second``, and take the time of each.

    They come up to ``unevenness`` of a step too early or too late, so that they are not in step with what
    the broker does at even intervals. Raises `Timeout` when receipts are missing, and what
    ``create_producer`` raises.
    """
    check_int("entries", entries, 2)
    draw = random.Random(1)
    order = [size for size in sizes for _ in range(entries)]
    draw.shuffle(order)
    order = [sizes[0]] * WARMUP_ENTRIES + order
    times: dict[int, list[float]] = {size: [] for size in sizes}
    left = threading.Semaphore(0)
    failures: list[Result] = []

    def send(producer: Producer[Any], number: int, size: int) -> None:
        def done(result: Result, _: object) -> None:
            if result != Result.Ok:
                failures.append(result)
            elif number >= WARMUP_ENTRIES:
                times[size].append(time.perf_counter() - sent_at)
            left.release()

        payload = draw.randbytes(size)
        sent_at = time.perf_counter()
        producer.send_async(payload, done)

    connecting = replace(cluster or Cluster(), service_url=service_url)
    with connecting.client() as client, client.create_producer(topic, batching_enabled=False) as producer:
        for number, size in enumerate(order):
            send(producer, number, size)
            time.sleep(draw.uniform(1 - unevenness, 1 + unevenness) / per_second)
        for _ in order:
            if not left.acquire(timeout=RECEIPTS_SECONDS_MAX):
                raise Timeout(f"{topic}: receipts are missing after {RECEIPTS_SECONDS_MAX:g} s")
    if failures:
        raise Timeout(
            f"{topic}: {len(failures)} of {len(order)} entries failed, the first with {failures[0]}"
        )
    return times


def fitted(
    trips: RoundTrips, *, name: str = "measured broker", work: BrokerModel | None = None
) -> BrokerModel:
    """The model that gives entries the measured times.

    Bytes cost what the medians of the sizes say (least squares); the rest is the distribution of keeping.
    ``work`` gives what a lightly loaded broker does not show: its threads and their time for an entry; a
    network that is slower than what was measured is taken to be as fast as that.
    """
    model = work or BrokerModel()
    if not trips or not all(len(times) for times in trips.values()):
        refuse("trips", trips, "at least one time for each size")
    slope = _slope({size: statistics.median(times) for size, times in trips.items()})
    # A lone message wakes the client's loop, as the first one of a batch does.
    without_network = model.timer_lag_seconds + model.entry_seconds
    soonest = statistics.median(_soonest(times, slope * size) for size, times in trips.items())
    network = min(model.network_seconds, max(0.0, soonest - without_network) / 2)
    model = model.changed(network_seconds=network)
    known = without_network + 2 * network
    per_byte = max(0.0, slope - model.byte_seconds - 1 / model.bandwidth_bytes_per_second)
    rest = [max(0.0, seconds - slope * size - known) for size, times in trips.items() for seconds in times]
    return model.changed(keeping_seconds=quantiles_of(rest), keeping_byte_seconds=per_byte, name=name)


def _soonest(times: Sequence[float], for_bytes: float) -> float:
    """What a tenth of the trips stays below, without what their bytes take."""
    return sorted(times)[len(times) // 10] - for_bytes


def _slope(medians: Mapping[int, float]) -> float:
    """Seconds a byte, not below zero."""
    mean_size = sum(medians) / len(medians)
    mean_time = sum(medians.values()) / len(medians)
    square = sum((size - mean_size) ** 2 for size in medians)
    if not square:
        return 0.0
    return max(0.0, sum((s - mean_size) * (t - mean_time) for s, t in medians.items()) / square)


__all__ = ["RoundTrips", "fitted", "measure_round_trips"]
