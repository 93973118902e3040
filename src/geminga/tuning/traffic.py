"""What is published to a topic and read from it: the input of every part of the advisor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from geminga.config import check_int, check_type, refuse
from geminga.errors import InvalidConfiguration

RATE_MAX = 100_000_000.0
MESSAGE_BYTES_MAX = 1 << 30
PARTITIONS_MAX = 100_000
PRODUCERS_MAX = 100_000
KEYS_MAX = 1_000_000_000
LATENCY_BUDGET_MIN_SECONDS = 0.002
"""Below it no delay of a millisecond and a receipt fit in: such messages are sent one by one."""
LATENCY_BUDGET_MAX_SECONDS = 60.0


def check_number(field: str, value: Any, minimum: float, maximum: float, unit: str) -> float:
    """A finite number within the closed range. Raises `InvalidConfiguration` naming all of it."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum:
        refuse(field, value, f"a number of {unit} >= {minimum:g} and <= {maximum:g}")
    return float(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bursts:
    """A rate that comes in waves: high for a part of each period, low for the rest, the mean kept."""

    factor: float
    """The rate within a burst as a multiple of the mean rate, > 1."""
    burst_seconds: float
    """How long a burst lasts."""
    period_seconds: float
    """From the start of one burst to the start of the next."""

    def __post_init__(self) -> None:
        check_number("bursts.period_seconds", self.period_seconds, 0.001, 86_400.0, "seconds")
        check_number("bursts.burst_seconds", self.burst_seconds, 0.001, self.period_seconds, "seconds")
        check_number("bursts.factor", self.factor, 1.0, self.period_seconds / self.burst_seconds, "times")

    @property
    def quiet_factor(self) -> float:
        """The rate outside a burst as a multiple of the mean rate."""
        rest = self.period_seconds - self.burst_seconds
        return (self.period_seconds - self.factor * self.burst_seconds) / rest if rest > 0 else 1.0

    def factor_at(self, seconds: float) -> float:
        """The multiple of the mean rate at a time; a period begins with its burst."""
        return self.factor if seconds % self.period_seconds < self.burst_seconds else self.quiet_factor


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficProfile:
    """The traffic of one topic.

    Raises `geminga.errors.InvalidConfiguration` naming field, value and what is allowed.
    """

    rate_messages_per_second: float
    """Messages a second over all producers and partitions, on the mean."""
    message_bytes: float
    """Payload of a message before compression, on the mean."""
    message_bytes_variation: float = 0.0
    """Standard deviation of the payload's size divided by its mean (log-normal); 0: all alike."""
    partitions: int = 1
    """Partitions of the topic; a plain topic counts as one."""
    producers: int = 1
    """Producers that share the rate evenly."""
    producers_per_client: int = 1
    """Producers that share one client, and with it one memory limit; the advice is one."""
    subscriptions: int = 1
    """Subscriptions, each of which is sent every message."""
    consumers: int = 1
    """Consumers of each subscription."""
    keys: int = 0
    """Different keys; 0: messages have none and go round robin."""
    key_skew: float = 0.0
    """Zipf exponent of the keys' shares; 0: all alike, 1: the k-th has 1/k of the first one's share."""
    bursts: Bursts | None = None
    """None: the rate is steady."""
    latency_budget_seconds: float = 0.05
    """The most that 99 of 100 messages may take, from the call of send to the consumer."""
    write_quorum: int = 1
    """Copies of each entry that the broker sends to bookies."""
    name: str = ""
    """For tables and pictures."""

    def __post_init__(self) -> None:
        check_number(
            "rate_messages_per_second", self.rate_messages_per_second, 0.001, RATE_MAX, "messages a second"
        )
        check_number("message_bytes", self.message_bytes, 1, MESSAGE_BYTES_MAX, "bytes")
        check_number("message_bytes_variation", self.message_bytes_variation, 0.0, 10.0, "means")
        check_int("partitions", self.partitions, 1, PARTITIONS_MAX)
        check_int("producers", self.producers, 1, PRODUCERS_MAX)
        check_int("producers_per_client", self.producers_per_client, 1, PRODUCERS_MAX)
        check_int("subscriptions", self.subscriptions, 0, 10_000)
        check_int("consumers", self.consumers, 1, 100_000)
        check_int("keys", self.keys, 0, KEYS_MAX)
        check_number("key_skew", self.key_skew, 0.0, 10.0, "Zipf exponent")
        check_type("bursts", self.bursts, Bursts, optional=True)
        check_number(
            "latency_budget_seconds",
            self.latency_budget_seconds,
            LATENCY_BUDGET_MIN_SECONDS,
            LATENCY_BUDGET_MAX_SECONDS,
            "seconds",
        )
        check_int("write_quorum", self.write_quorum, 1, 100)
        check_type("name", self.name, str)

    @property
    def keyed(self) -> bool:
        """Whether messages have keys, which choose their partition."""
        return self.keys > 0

    @property
    def rate_per_producer(self) -> float:
        """Messages a second that one producer publishes, on the mean."""
        return self.rate_messages_per_second / self.producers

    @property
    def rate_peak(self) -> float:
        """Messages a second over all producers within a burst."""
        return self.rate_messages_per_second * (self.bursts.factor if self.bursts else 1.0)

    @property
    def payload_bytes_per_second(self) -> float:
        """Payload before compression, over all producers."""
        return self.rate_messages_per_second * self.message_bytes

    def log_normal(self) -> tuple[float, float]:
        """``mu`` and ``sigma`` of the payload's size in bytes, for a generator of log-normal numbers."""
        variance = math.log1p(self.message_bytes_variation**2)
        return math.log(self.message_bytes) - variance / 2, math.sqrt(variance)

    def changed(self, **fields_changed: Any) -> TrafficProfile:
        """A copy with other values, checked like the first."""
        return replace(self, **fields_changed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TrafficProfile:
        """What `to_dict` wrote. Raises `InvalidConfiguration` for unknown and missing fields."""
        known = {field.name for field in fields(TrafficProfile)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InvalidConfiguration(
                f"a traffic profile has no field {unknown[0]!r}; fields: {', '.join(sorted(known))}"
            )
        given = dict(values)
        try:
            if isinstance(given.get("bursts"), Mapping):
                given["bursts"] = Bursts(**given["bursts"])
            return TrafficProfile(**given)
        except TypeError as error:
            raise InvalidConfiguration(f"this is no traffic profile: {error}") from None


def zipf_shares(count: int, exponent: float) -> list[float]:
    """The share of each of ``count`` keys, largest first; they add up to 1."""
    weights = [1.0 / rank**exponent for rank in range(1, count + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]
