"""The messages of a traffic profile, one by one: when each is handed over, how large it is, which key it has.

Everything is drawn from a seed, and the same arguments give the same messages. Times are seconds from 0.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from geminga.tuning.measuring.payloads import STAMPED_BYTES_MIN, structured_json
from geminga.tuning.traffic import Bursts, TrafficProfile, zipf_shares

POOL_MESSAGES_MAX = 8192
"""Different messages that a run goes through again and again: far more than fit into a batch."""
POOL_BYTES_MAX = 32 << 20
"""The same in bytes, for large messages."""
DIFFERENT_BYTES, DIFFERENT_MIN = 2 << 20, 64
"""Payloads that differ in what they say: as many bytes as a codec sees at once, twice."""
POOL_KEYS_MAX = 1 << 20
"""Keys whose shares are told apart; the rest of a larger number would never be drawn anyway."""

Floats = npt.NDArray[np.float64]


def arrival_times(
    rate: float,
    seconds: float,
    bursts: Bursts | None,
    generator: np.random.Generator,
    *,
    even: bool = False,
) -> Floats:
    """Ascending times in [0, ``seconds``) of messages at ``rate`` a second on the mean, in ``bursts``.

    They come at random (Poisson), or with ``even`` in equal steps, as a benchmark's sender has them.
    """
    knots, amounts = cumulative_rate(rate, seconds, bursts)
    total = float(amounts[-1])
    if even:
        marks = np.arange(int(total + 0.5)) + 0.5
    else:
        # Poisson: a random number of messages, thrown evenly on the cumulated rate.
        marks = np.sort(generator.random(int(generator.poisson(total)))) * total
    times: Floats = np.interp(marks, amounts, knots)
    return times[times < seconds]


def cumulative_rate(rate: float, seconds: float, bursts: Bursts | None) -> tuple[Floats, Floats]:
    """Times at which the rate changes, and the expected messages until each."""
    if bursts is None:
        return np.array([0.0, seconds]), np.array([0.0, rate * seconds])
    periods = np.arange(0.0, seconds, bursts.period_seconds)
    edges = np.concatenate([periods, periods + bursts.burst_seconds, [seconds]])
    knots: Floats = np.unique(np.minimum(edges, seconds))
    middles = (knots[1:] + knots[:-1]) / 2
    in_burst = middles % bursts.period_seconds < bursts.burst_seconds
    rates = rate * np.where(in_burst, bursts.factor, bursts.quiet_factor)
    return knots, np.concatenate([[0.0], np.cumsum(rates * np.diff(knots))])


def key_numbers(profile: TrafficProfile, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """The key of each of ``count`` messages as a number from 0, most frequent first."""
    keys = min(profile.keys, POOL_KEYS_MAX)
    if not profile.key_skew:
        return generator.integers(0, keys, count)
    bounds = np.cumsum(zipf_shares(keys, profile.key_skew))
    return np.minimum(np.searchsorted(bounds, generator.random(count), side="right"), keys - 1)


def key_text(number: int) -> str:
    """The key with this number."""
    return f"key-{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MessagePool:
    """The different messages of a run: message ``i`` of the run is number ``i % len(payloads)`` here.

    ``keys`` is None for messages without; ``sizes`` are the payloads' lengths.
    """

    payloads: list[bytes]
    sizes: npt.NDArray[np.int64]
    keys: list[str] | None

    @staticmethod
    def of(
        profile: TrafficProfile, generator: np.random.Generator, samples: list[bytes] | None = None
    ) -> MessagePool:
        """Messages of the profile's sizes and keys.

        ``samples`` are payloads of the topic at hand, used in turn as they are, so that compression works
        on the real thing; without them, structured JSON is made up.
        """
        count = int(max(16, min(POOL_MESSAGES_MAX, POOL_BYTES_MAX // profile.message_bytes)))
        if samples:
            payloads = [samples[i % len(samples)] for i in range(max(count, len(samples)))]
        else:
            seed = int(generator.integers(1 << 31))
            payloads = _records(profile.message_bytes, profile.message_bytes_variation, count, seed)
        keys = None
        if profile.keyed:
            keys = [key_text(int(k)) for k in key_numbers(profile, len(payloads), generator)]
        return MessagePool(payloads=payloads, sizes=np.array([len(p) for p in payloads], np.int64), keys=keys)


@functools.lru_cache(maxsize=8)
def _records(message_bytes: float, variation: float, count: int, seed: int) -> list[bytes]:
    """Lines of a log as the measured runs send them, each of its size."""
    different = min(count, max(DIFFERENT_MIN, round(DIFFERENT_BYTES / message_bytes)))
    made = structured_json(max(message_bytes, STAMPED_BYTES_MIN), count=different, seed=seed)
    lines = made.messages(different)
    if not variation and message_bytes >= STAMPED_BYTES_MIN:
        return [lines[number % different] for number in range(count)]
    deviation = math.sqrt(math.log1p(variation**2))
    drawn = np.random.default_rng(seed).lognormal(
        math.log(message_bytes) - deviation**2 / 2, deviation, count
    )
    sizes = np.maximum(1, np.rint(drawn)).astype(np.int64).tolist()
    return [
        (line * (size // len(line) + 1))[:size]
        for size, line in zip(sizes, itertools.cycle(lines), strict=False)
    ]


__all__ = ["MessagePool", "arrival_times", "key_numbers", "key_text"]
