"""What a sweep tries: axes of settings and traffic, as a grid or a Latin hypercube.

An axis is a setting or a part of the traffic under a short name. It has values to choose from, or a range.
A grid takes every combination; a Latin hypercube draws as many points as asked for, so that each range is
covered evenly in all its parts, however many axes there are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from geminga.config import check_choice, check_int, check_seconds, check_type, refuse, suggestion
from geminga.errors import InvalidConfiguration
from geminga.producer.settings import CompressionType, ProducerSettings
from geminga.tuning.modelled_broker import BrokerModel
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.traffic import TrafficProfile

RUNS_MAX = 10_000_000
DESIGNS = ("latin", "grid")
GRID_LEVELS = 5
"""Values that a grid takes of a range."""

Value = float | int | str
Apply = Callable[[dict[str, Any], Value], None]


@dataclass(frozen=True, slots=True)
class AxisKind:
    """What an axis changes: a field of the settings (``settings``), the client or the traffic."""

    part: str
    field: str
    whole: bool
    default: str
    text: str
    scale: float = 1.0
    """What a value is multiplied by to become the field's."""


AXES: dict[str, AxisKind] = {
    "delay-ms": AxisKind(
        "settings", "batching_max_publish_delay_seconds", False, "1:100", "batching delay", 0.001
    ),
    "batch-messages": AxisKind("settings", "batching_max_messages", True, "20:5000", "messages of a batch"),
    "batch-bytes": AxisKind(
        "settings", "batching_max_allowed_size_in_bytes", True, "16384:1048576", "bytes of a batch"
    ),
    "permits": AxisKind("settings", "max_pending_messages", True, "500:4000", "max_pending_messages"),
    "stay": AxisKind(
        "settings", "batching_partition_switch_frequency", True, "1,10", "delays on one partition"
    ),
    "compression": AxisKind("settings", "compression_type", False, "NONE,LZ4,ZSTD", "codec"),
    "memory-bytes": AxisKind("client", "memory_limit_bytes", True, "", "the client's memory limit"),
    "rate": AxisKind("traffic", "rate_messages_per_second", False, "", "messages a second"),
    "message-bytes": AxisKind("traffic", "message_bytes", True, "", "bytes of a message"),
    "partitions": AxisKind("traffic", "partitions", True, "", "partitions"),
    "producers": AxisKind("traffic", "producers", True, "", "producers that share the rate"),
    "keys": AxisKind("traffic", "keys", True, "", "different keys"),
}
"""Names of axes on the command line. Those with a default are part of every sweep."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: ``values`` to choose from, or the range from ``low`` to ``high`` on a logarithmic scale."""

    name: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0

    @staticmethod
    def parsed(text: str) -> Axis:
        """``NAME=A,B,C`` or ``NAME=LOW:HIGH``. Raises `InvalidConfiguration`."""
        name, equals, values = text.partition("=")
        if not equals or name not in AXES:
            hint = suggestion(name, AXES) or f"; axes: {', '.join(AXES)}"
            raise InvalidConfiguration(
                f"axis={text!r} is not allowed; allowed: NAME=A,B,C or NAME=LOW:HIGH{hint}"
            )
        low, colon, high = values.partition(":")
        if colon:
            first, last = _number(text, low), _number(text, high)
            if not 0 < first < last:
                refuse("axis", text, "a range LOW:HIGH with 0 < LOW < HIGH")
            return Axis(name, (), first, last)
        if name == "compression":
            codecs = tuple(check_choice("axis compression", v.upper(), _CODECS) for v in values.split(","))
            return Axis(name, tuple(_CODECS[codec].name for codec in codecs))
        return Axis(name, tuple(_rounded(name, _number(text, value)) for value in values.split(",")))

    def at(self, part: float) -> Value:
        """The value that lies so far along the axis, 0 to 1."""
        if self.values:
            return self.values[min(int(part * len(self.values)), len(self.values) - 1)]
        return _rounded(self.name, math.exp(math.log(self.low) + part * math.log(self.high / self.low)))

    @property
    def levels(self) -> tuple[Value, ...]:
        """The values that a grid takes."""
        if self.values:
            return self.values
        found = [self.at(level / (GRID_LEVELS - 1)) for level in range(GRID_LEVELS)]
        return tuple(dict.fromkeys(found))

    def to_text(self) -> str:
        """What `parsed` reads."""
        if self.values:
            return f"{self.name}={','.join(str(value) for value in self.values)}"
        return f"{self.name}={self.low:g}:{self.high:g}"


_CODECS = {codec.name.upper(): codec for codec in CompressionType}


def _number(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        refuse("axis", text, "numbers, separated by commas or one colon")
    if not math.isfinite(number):
        refuse("axis", text, "finite numbers")
    return number


def _rounded(name: str, value: float) -> Value:
    if AXES[name].whole:
        return round(value)
    return float(f"{value:.4g}")


def default_axes() -> list[Axis]:
    """The axes of every sweep."""
    return [Axis.parsed(f"{name}={kind.default}") for name, kind in AXES.items() if kind.default]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """One run of a sweep. ``settings`` is None where the point makes no sense; ``problem`` says why."""

    run_id: str
    profile: TrafficProfile
    settings: PublishSettings | None
    seed: int
    problem: str = ""

    def to_json(self) -> str:
        """What `from_json` reads: specifications travel to Spark's tasks."""
        settings = None if self.settings is None else self.settings.to_dict()
        return json.dumps(
            {
                "run_id": self.run_id, "profile": self.profile.to_dict(), "settings": settings,
                "seed": self.seed, "problem": self.problem,
            }
        )  # fmt: skip

    @staticmethod
    def from_json(text: str) -> RunSpec:
        values = json.loads(text)
        settings = values["settings"]
        return RunSpec(
            run_id=values["run_id"],
            profile=TrafficProfile.from_dict(values["profile"]),
            settings=None if settings is None else PublishSettings.from_dict(settings),
            seed=values["seed"],
            problem=values["problem"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """Everything that decides a sweep's results."""

    profiles: tuple[TrafficProfile, ...]
    axes: tuple[Axis, ...] = field(default_factory=lambda: tuple(default_axes()))
    design: str = "latin"
    runs: int = 1000
    """Points of a Latin hypercube, for all profiles together; a grid has as many as it has."""
    seconds: float = 60.0
    """Virtual time of each run."""
    seed: int = 1
    broker: BrokerModel = field(default_factory=BrokerModel)
    base: PublishSettings = field(
        default_factory=lambda: PublishSettings(
            producer=ProducerSettings(
                batching_enabled=True, max_pending_messages_across_partitions=0, block_if_queue_full=True
            )
        )
    )
    """Settings that no axis changes."""

    def __post_init__(self) -> None:
        if not self.profiles:
            refuse("profiles", self.profiles, "at least one traffic profile")
        check_choice("design", self.design, DESIGNS)
        check_int("runs", self.runs, 1, RUNS_MAX)
        check_seconds("seconds", self.seconds, 2.0, 3600.0)
        check_int("seed", self.seed, 0, 1 << 31)
        check_type("base", self.base, PublishSettings)
        names = [axis.name for axis in self.axes]
        for name in names:
            if names.count(name) > 1:
                refuse("axes", name, "each axis once")

    def to_dict(self) -> dict[str, Any]:
        """Plain values; two plans with the same ones have the same runs and results."""
        return {
            "profiles": [profile.to_dict() for profile in self.profiles],
            "axes": [axis.to_text() for axis in self.axes],
            "design": self.design,
            "runs": self.runs,
            "seconds": self.seconds,
            "seed": self.seed,
            "broker": self.broker.to_dict(),
            "base": self.base.to_dict(),
        }

    def specs(self) -> list[RunSpec]:
        """The runs, profile by profile, the same for the same plan. Raises `InvalidConfiguration`."""
        found: list[RunSpec] = []
        for number, profile in enumerate(self.profiles):
            for point in self._points(number):
                found.append(self._spec(profile, point))
        unique = {spec.run_id: spec for spec in found}
        return list(unique.values())

    def _points(self, number: int) -> list[dict[str, Value]]:
        names = [axis.name for axis in self.axes]
        if self.design == "grid":
            count = math.prod(len(axis.levels) for axis in self.axes)
            check_int("runs of the grid", count * len(self.profiles), 1, RUNS_MAX)
            return [
                dict(zip(names, levels, strict=True))
                for levels in itertools.product(*(axis.levels for axis in self.axes))
            ]
        count = max(1, self.runs // len(self.profiles))
        places = latin_hypercube(count, len(self.axes), np.random.default_rng([self.seed, number]))
        return [
            {axis.name: axis.at(float(place)) for axis, place in zip(self.axes, row, strict=True)}
            for row in places
        ]

    def _spec(self, profile: TrafficProfile, point: Mapping[str, Value]) -> RunSpec:
        changes: dict[str, dict[str, Any]] = {"settings": {}, "client": {}, "traffic": {}}
        for name, value in point.items():
            kind = AXES[name]
            if name == "compression":
                value = CompressionType[str(value)]
            elif kind.scale != 1.0:
                value = float(f"{float(value) * kind.scale:.6g}")
            changes[kind.part][kind.field] = value
        identity = json.dumps(
            [profile.to_dict(), dict(point), self.seconds, self.seed], sort_keys=True, default=str
        )
        run_id = hashlib.sha256(identity.encode()).hexdigest()[:16]
        seed = int(run_id[:7], 16)
        try:
            traffic = profile.changed(**changes["traffic"]) if changes["traffic"] else profile
            settings = self.base.changed(**changes["settings"], **changes["client"])
        except InvalidConfiguration as error:
            return RunSpec(run_id=run_id, profile=profile, settings=None, seed=seed, problem=str(error))
        return RunSpec(run_id=run_id, profile=traffic, settings=settings, seed=seed)


def latin_hypercube(
    points: int, axes: int, generator: np.random.Generator
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """``points`` rows in [0, 1): on each axis, each of as many equal parts holds exactly one."""
    strata = (
        np.stack([generator.permutation(points) for _ in range(axes)], axis=1)
        if axes
        else np.zeros((points, 0))
    )
    found: np.ndarray[tuple[int, int], np.dtype[np.float64]] = (
        strata + generator.random((points, axes))
    ) / points
    return found


def profiles_of(values: Sequence[Mapping[str, Any]]) -> tuple[TrafficProfile, ...]:
    """Profiles from JSON; each without a name gets its number. Raises `InvalidConfiguration`."""
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        refuse("profiles", values, "a list of traffic profiles, each an object")
    found = []
    for number, row in enumerate(values):
        if not isinstance(row, Mapping):
            refuse(f"profiles[{number}]", row, "an object with the fields of a traffic profile")
        profile = TrafficProfile.from_dict(row)
        found.append(profile if profile.name else profile.changed(name=f"profile {number + 1}"))
    return tuple(found)


__all__ = ["AXES", "Axis", "RunSpec", "SweepPlan", "default_axes", "latin_hypercube", "profiles_of"]
