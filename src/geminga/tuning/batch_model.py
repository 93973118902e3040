"""A run by batches: what `geminga.tuning.simulation` does message by message, hundreds of times faster.

For sweeps over thousands of settings. It follows the same producer (delay, batch limits, round robin or
keys, permits, memory, stepping over) against the same modelled broker, but knows messages only by the time
at which they come and by their mean size; a compiled loop goes from batch to batch
(`geminga.tuning.batch_kernels`). `tests/tuning/test_batch_model.py` holds it to the simulation, and both to
recorded runs of real brokers.

What it leaves to the simulation: batches of one key each, lost connections, and producers that tune
themselves. Where it is rough: a memory limit that holds less than a few batches, a slow partition that is
waited for (its permits come back in crumbs), and messages nearly as large as a batch may be.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from geminga.client.publisher import ENCODING_BYTES_MIN, TIMER_SLACK_SECONDS
from geminga.config import check_int, check_seconds, refuse
from geminga.producer.backlog import UNLIMITED, partition_share
from geminga.producer.settings import BatchingType, CompressionType
from geminga.tuning.arrivals import cumulative_rate, key_text
from geminga.tuning.event_loops import EventLoop
from geminga.tuning.modelled_broker import BrokerModel, Fault, FaultKind
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.sample import FILLS, Sample, standard_sample
from geminga.tuning.simulation import MAX_MESSAGE_SIZE, SECONDS_MAX, SimulatedRun
from geminga.tuning.traffic import TrafficProfile, zipf_shares
from geminga.wire.hashing import PARTITION_HASHES

PRODUCERS_MAX = 64
"""Producers that are followed; of more, so many, against their share of the broker."""
HASHED_KEYS_MAX = 1 << 14
"""Keys whose partition is computed; the rest are taken to spread evenly."""
OPERATIONS_MAX = 50_000_000
COMMAND_BYTES = 26
"""Of a SEND before the entry."""


WireBytes = tuple[tuple[float, ...], tuple[float, ...]]
"""Counts of messages, and the bytes of a frame with an entry that holds so many."""


def wire_bytes(
    profile: TrafficProfile, compression: CompressionType, level: int = 0, sample: Sample | None = None
) -> WireBytes:
    """The profile's frames, laid out and compressed by the real code from a sample of messages.

    Without a ``sample`` structured JSON of the profile's size serves, once for each size and codec.
    """
    if sample is None:
        return _standard_bytes(max(1.0, round(profile.message_bytes)), profile.keyed, compression, level)
    return _measured(sample, profile, compression, level)


@functools.lru_cache(maxsize=1024)
def _standard_bytes(message_bytes: float, keyed: bool, compression: CompressionType, level: int) -> WireBytes:
    profile = TrafficProfile(rate_messages_per_second=1, message_bytes=message_bytes, keys=int(keyed))
    return _measured(standard_sample(message_bytes), profile, compression, level)


def _measured(sample: Sample, profile: TrafficProfile, compression: CompressionType, level: int) -> WireBytes:
    sizes = [COMMAND_BYTES + sample.entry_bytes(count, compression, level, profile) for count in FILLS]
    return tuple(float(count) for count in FILLS), tuple(sizes)


def partition_shares(profile: TrafficProfile, hashing: str) -> list[float]:
    """The share of the messages that each partition gets by their keys."""
    shares = [0.0] * profile.partitions
    hashed = min(profile.keys, HASHED_KEYS_MAX)
    of_key = PARTITION_HASHES[hashing]
    weights = zipf_shares(min(profile.keys, 1 << 20), profile.key_skew)
    for number, weight in enumerate(itertools.islice(weights, hashed)):
        shares[of_key(key_text(number)) % profile.partitions] += weight
    rest = max(0.0, 1.0 - sum(shares))
    return [share + rest / profile.partitions for share in shares]


def predict(
    profile: TrafficProfile,
    settings: PublishSettings,
    broker: BrokerModel | None = None,
    *,
    seconds: float = 60.0,
    warmup_seconds: float = 1.0,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    sizes: WireBytes | None = None,
    even: bool = False,
    tick_seconds: float = 0.0,
) -> SimulatedRun:
    """What publishing the profile's traffic with these settings comes to, batch by batch.

    ``sizes`` are the entries' bytes where they are known already (`wire_bytes`). Messages come at random, or
    ``even`` as a benchmark's sender has them (with keys always at random). A sender that sleeps in
    between hands over what has become due at the end of each ``tick_seconds``. Leases of open batches
    are not followed: ``permits_used_max`` is -1 and ``memory_used_max`` counts payload. Raises
    `InvalidConfiguration` for what only the simulation follows.
    """
    model = broker or BrokerModel()
    producer = settings.producer
    check_seconds("seconds", seconds, 0.001, SECONDS_MAX)
    check_seconds("warmup_seconds", warmup_seconds, 0.0, 0.9 * seconds)
    check_int("seed", seed, 0, (1 << 32) - 1)
    check_seconds("tick_seconds", tick_seconds, 0.0, 10.0)
    for fault in faults:
        check_int("fault.partition", fault.partition, 0, profile.partitions - 1)
    if producer.batching_type is BatchingType.KeyBased and profile.keyed:
        refuse(
            "batching_type", producer.batching_type, "Default: the simulation follows batches of one key each"
        )
    if producer.latency_budget_seconds is not None:
        refuse("latency_budget_seconds", producer.latency_budget_seconds, "None: the simulation follows it")
    followed = min(profile.producers, PRODUCERS_MAX)
    scale = profile.producers / followed
    sizes = sizes or wire_bytes(profile, producer.compression_type, producer.compression_level)
    kernels = _kernels()
    run = _run_record(kernels, profile, settings, model, seconds, warmup_seconds, scale, tick_seconds)
    run["even"] = even and not profile.keyed
    clock = np.array(cumulative_rate(profile.rate_per_producer, seconds, profile.bursts))
    latencies = np.zeros(kernels.LATENCY_BINS)
    operations = _operations_likely(profile, settings, seconds, followed)
    while True:
        totals = kernels.play(
            seed, run, clock, _streams(kernels, profile, producer.hashing_scheme.value, followed),
            _records(kernels.LANE, followed * profile.partitions, head=-1, tail=-1),
            _records(kernels.PRODUCER, followed, switch_at=-np.inf, blocked_by=-1),
            np.empty(operations, kernels.OPERATION), np.zeros(model.threads), np.array(model.keeping_seconds),
            np.array(sizes), _faults(kernels, faults), latencies,
        )  # fmt: skip
        if len(totals):
            return _result(totals, latencies, seconds - warmup_seconds, scale)
        latencies[:] = 0.0
        operations *= 4
        check_int("operations of the run", operations, 0, OPERATIONS_MAX)


def _run_record(
    kernels: Any,
    profile: TrafficProfile,
    settings: PublishSettings,
    model: BrokerModel,
    seconds: float,
    warmup_seconds: float,
    scale: float,
    tick_seconds: float,
) -> Any:
    """What stays the same in a run; without a limit means a very high one."""
    producer = settings.producer
    delay = producer.batching_max_publish_delay_seconds
    across = producer.max_pending_messages_across_partitions if profile.partitions > 1 else 0
    permits = partition_share(producer.max_pending_messages, across, profile.partitions)
    values = {
        "message_bytes": profile.message_bytes,
        "variation": profile.message_bytes_variation,
        "seconds": seconds,
        "warmup": warmup_seconds,
        "delay": delay,
        "stay": max(0.001, delay * producer.batching_partition_switch_frequency),
        "count_max": producer.batching_max_messages,
        "bytes_max": min(producer.batching_max_allowed_size_in_bytes, MAX_MESSAGE_SIZE),
        "permits": permits or UNLIMITED,
        "permits_shared": across or UNLIMITED,
        "memory_limit": settings.memory_limit_bytes or UNLIMITED,
        "blocked_after": producer.blocked_after_seconds,
        "slack": TIMER_SLACK_SECONDS,
        "uvloop": model.event_loop is EventLoop.UVLOOP,
        "encoding": model.encoding_seconds,
        "encoding_byte": model.encoding_byte_seconds,
        "encoding_from": ENCODING_BYTES_MIN if producer.compression_type else math.inf,
        "tick": tick_seconds,
        "lag": model.timer_lag_seconds,
        "telling": model.telling_seconds,
        "network": model.network_seconds,
        "bandwidth": model.bandwidth_bytes_per_second,
        "entry_seconds": model.entry_seconds * scale,
        "byte_seconds": model.byte_seconds * scale,
        "keeping_byte": model.keeping_byte_seconds,
        "partitions": profile.partitions,
        "steps_over": producer.step_over_blocked_partitions,
        "blocks": producer.block_if_queue_full,
        "per_message": not producer.batching_enabled,
    }
    return _records(kernels.RUN, 1, **values)[0]


def _records(kind: np.dtype[Any], count: int, **values: Any) -> Any:
    """``count`` records of zeros, with some fields set."""
    records = np.zeros(count, kind)
    for name, value in values.items():
        records[name] = value
    return records


@functools.cache
def _kernels() -> Any:
    """The compiled module: importing numba takes a third of a second."""
    from geminga.tuning import batch_kernels

    return batch_kernels


def _streams(kernels: Any, profile: TrafficProfile, hashing: str, producers: int) -> Any:
    """A record for each producer, with keys for each of its partitions that gets any."""
    shares = [(-1 if profile.partitions > 1 else 0, 1.0)]
    if profile.keyed and profile.partitions > 1:
        shares = [(p, share) for p, share in enumerate(partition_shares(profile, hashing)) if share > 0]
    return _records(
        kernels.STREAM,
        producers * len(shares),
        weight=np.tile([share for _, share in shares], producers),
        partition=np.tile([partition for partition, _ in shares], producers),
        producer=np.repeat(np.arange(producers), len(shares)),
    )


def _operations_likely(
    profile: TrafficProfile, settings: PublishSettings, seconds: float, followed: int
) -> int:
    messages = profile.rate_per_producer * followed * seconds
    producer = settings.producer
    if not producer.batching_enabled:
        return int(messages * 1.1) + 10_000
    room = max(1.0, min(
        producer.batching_max_messages, producer.batching_max_allowed_size_in_bytes / profile.message_bytes,
        producer.max_pending_messages or math.inf,
    ))  # fmt: skip
    lanes = followed * (profile.partitions if profile.keyed else 1)
    by_delay = lanes * seconds / max(0.0005, producer.batching_max_publish_delay_seconds)
    return int(min(messages * 1.1, 1.2 * (by_delay + messages / room))) + 10_000


def _faults(kernels: Any, faults: Sequence[Fault]) -> Any:
    for fault in faults:
        if fault.kind is FaultKind.LOST:
            refuse("fault.kind", fault.kind, "SLOW or STUCK: the simulation follows lost connections")
    return _records(
        kernels.FAULT,
        len(faults),
        partition=[fault.partition for fault in faults],
        stuck=[fault.kind is FaultKind.STUCK for fault in faults],
        start=[fault.start_seconds for fault in faults],
        end=[fault.end_seconds for fault in faults],
        extra=[fault.extra_seconds for fault in faults],
    )


def _result(
    totals: npt.NDArray[np.float64], latencies: npt.NDArray[np.float64], seconds: float, scale: float
) -> SimulatedRun:
    kernels = _kernels()
    entries, messages = float(totals[kernels.ENTRIES]), float(totals[kernels.MESSAGES])
    settled = float(totals[kernels.SETTLED])
    counted = np.cumsum(latencies)

    def percentile(part: float) -> float:
        if not settled:
            return float("nan")
        place = int(np.searchsorted(counted, part * counted[-1]))
        return float(kernels.LATENCY_FLOOR_SECONDS * math.exp((place + 0.5) * kernels.LATENCY_BIN))

    return SimulatedRun(
        seconds=seconds,
        messages=round(settled * scale),
        entries=round(entries * scale),
        payload_bytes=round(float(totals[kernels.PAYLOAD]) * scale),
        wire_bytes=round(float(totals[kernels.WIRE]) * scale),
        batch_fill=messages / entries if entries else 0.0,
        latency_mean=float(totals[kernels.LATENCY_SUM]) / settled if settled else float("nan"),
        latency_p50=percentile(0.5),
        latency_p90=percentile(0.9),
        latency_p99=percentile(0.99),
        latency_p999=percentile(0.999),
        latency_max=float(totals[kernels.LATENCY_MAX]),
        refused=round(float(totals[kernels.REFUSED]) * scale),
        failed=0,
        waited_seconds=float(totals[kernels.WAITED]) * scale,
        permits_used_max=-1,
        memory_used_max=-1,
        pending_messages_max=round(float(totals[kernels.PENDING_MAX])),
        stepped_over=round(float(totals[kernels.STEPPED]) * scale),
        stepped_over_seconds=-1.0,
        broker_busy_seconds=float(totals[kernels.BUSY]),
    )


__all__ = ["WireBytes", "partition_shares", "predict", "wire_bytes"]
