"""What publishing costs a broker: CPU and network from entries, wake-ups, bytes, readers and copies.

The work of a broker is counted in entries: it opens no batch. An entry that comes alone finds a chain of
threads asleep on cold caches, each of which has to be woken; one that comes in company finds them awake. So
there are two prices, of an entry and of a wake-up, and how often the chain is woken follows from the rate::

    CPU s/s = flowing
              + entry x E + delivered_entry x E x subscriptions + copied_entry x E x (copies - 1)
              + wake x W + delivered_wake x W x subscriptions + copied_wake x W x (copies - 1)
              + position x P x subscriptions
              + byte x B + delivered_byte x B x subscriptions + copied_byte x B x (copies - 1)

    W = E / (1 + E x awake_seconds)

with E entries and B stored bytes a second. ``awake_seconds`` is for how long the chain stays awake: of few
entries each wakes it, of many at most one in that time. Each delivery wakes another connection and a reader.
P is how many partitions are at work within a second: a subscription's position in each of them is written
once a second, however many entries come. ``flowing`` is what a broker takes beyond its idling as soon as
anything flows at all: collections of garbage, statistics, what is done once a second. Compression shows in
B alone. The coefficients are found by least squares, none below zero, each run weighed by how well it could
be measured; ``awake_seconds`` by trying. The intervals come from fits to resampled runs (95 %).

The error of a prediction is found by leaving out: all runs of one load are left out, everything
(``awake_seconds`` too) is fitted to the others, and what that foretells is held against each run that was
left out, load by load. The same against the mean of a load's runs tells the model's error from that of
measuring.

Network bytes are the stored ones plus what goes with each entry: the command around it and its receipt, the
command around a delivery and its acknowledgement.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from geminga.config import refuse
from geminga.errors import InvalidConfiguration

FORMAT = 3
RUNS_MIN = 8
RESAMPLES = 100
RELATIVE_NOISE = 0.1
"""How well a run's CPU can be measured, as a part of it ..."""
ABSOLUTE_NOISE = 0.003
"""... and in seconds a second: what an idle broker varies by."""
WEIGHINGS = 3
AWAKE_SECONDS_GRID = (0.0, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01)
DATA = Path(__file__).parent / "data"
STANDARD = "cost-apache-pulsar-4.0.4.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one measured load came to."""

    title: str
    seconds: float
    entries: float
    stored_bytes: float
    subscriptions: int
    partitions: int
    write_quorum: int
    cpu_seconds: float
    """Of the servers, above what they take when idle."""
    idle_per_second: float
    wire_published_bytes: int | None = None
    wire_delivered_bytes: int | None = None
    receipt_p50_ms: float | None = None
    receipt_p99_ms: float | None = None
    """Without the time for which messages waited for their batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """In another unit."""
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a broker has to do in a second."""

    entries_per_second: float
    stored_bytes_per_second: float
    subscriptions: float = 1
    write_quorum: float = 1
    partitions: float = 1
    """Over which the entries go."""

    @property
    def positions_per_second(self) -> float:
        """Positions of subscriptions that are written in a second: one for each partition at work."""
        return min(self.partitions, self.entries_per_second) * self.subscriptions


TERMS = {
    "flowing": "s of CPU a second as soon as anything flows",
    "entry": "s of CPU an entry",
    "delivered_entry": "s of CPU an entry and subscription",
    "copied_entry": "s of CPU an entry and further copy",
    "wake": "s of CPU a wake-up: an entry that comes alone takes one",
    "delivered_wake": "s of CPU a wake-up and subscription",
    "copied_wake": "s of CPU a wake-up and further copy",
    "position": "s of CPU a position of a subscription written: of each partition at work one a second",
    "byte": "s of CPU a stored byte",
    "delivered_byte": "s of CPU a byte and subscription",
    "copied_byte": "s of CPU a byte and further copy",
}
"""Names and units of the coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Coefficients with their intervals, and where they were measured."""

    broker: str
    machine: dict[str, Any]
    terms: dict[str, Estimate]
    """By the names of `TERMS`; those that no run could tell are missing."""
    awake_seconds: float
    """For how long what an entry has woken stays awake for others."""
    error: float
    """Relative error of predictions of single runs that were left out of the fit, as a standard deviation of
    logarithms: that of measuring included."""
    error_of_means: float | None
    """The same against the mean of a load's runs; None where no load was measured twice."""
    idle_per_second: float
    published_overhead_bytes: float
    """Network bytes of an entry beside itself, on its way in: command, receipt."""
    delivered_overhead_bytes: float
    """The same on its way out, for each subscription: command, acknowledgement, permits."""
    receipt_p50_seconds: float
    receipt_p99_seconds: float
    """From handing a message over to its receipt, without waiting for a batch."""
    observations: tuple[Observation, ...] = field(default=(), repr=False)

    def broker_cpu(self, load: Load) -> Estimate:
        """CPU seconds a second above idle, with the model's error."""
        value = sum(self.terms[name].value * x for name, x in self._features(load).items())
        spread = math.exp(1.96 * self.error)
        return Estimate(value=value, low=value / spread, high=value * spread)

    def network(self, load: Load) -> float:
        """Bytes a second between clients and broker, and from the broker to further copies."""
        entries, stored = load.entries_per_second, load.stored_bytes_per_second
        published = stored + entries * self.published_overhead_bytes
        delivered = load.subscriptions * (stored + entries * self.delivered_overhead_bytes)
        return published + delivered + (load.write_quorum - 1) * stored

    def _features(self, load: Load) -> dict[str, float]:
        found = features(load, self.awake_seconds)
        missing = {"copied_entry": "entry", "copied_wake": "wake", "copied_byte": "byte"}
        # Without a run that shows them, a further copy is taken to cost what the first one costs.
        for name, like in missing.items():
            if name not in self.terms:
                found[like] = found.get(like, 0.0) + found.pop(name)
        return {name: x for name, x in found.items() if name in self.terms}

    def save(self, path: Path) -> None:
        """As JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> CostModel:
        """What `save` wrote. Raises `InvalidConfiguration` for anything else."""
        try:
            values = json.loads(path.read_text())
            if values.pop("format") != FORMAT:
                raise ValueError("another format")
            values["terms"] = {name: Estimate(**one) for name, one in values["terms"].items()}
            values["observations"] = tuple(Observation(**row) for row in values["observations"])
            return CostModel(**values)
        except OSError as error:
            raise InvalidConfiguration(f"{path} cannot be read: {error}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidConfiguration(
                f"{path} is no cost model ({error}); `geminga tune calibrate` writes one"
            ) from None


def standard() -> CostModel:
    """The model of Apache Pulsar 4.0.4 standalone that comes with the package."""
    return CostModel.load(DATA / STANDARD)


def wakes_per_second(entries_per_second: float, awake_seconds: float) -> float:
    """How often entries that come at a rate find everything asleep."""
    return entries_per_second / (1 + entries_per_second * awake_seconds)


def features(load: Load, awake_seconds: float) -> dict[str, float]:
    """What each coefficient is multiplied by."""
    entries, stored = load.entries_per_second, load.stored_bytes_per_second
    woken = wakes_per_second(entries, awake_seconds)
    copies = load.write_quorum - 1
    return {
        "flowing": 1.0 if entries else 0.0,
        "entry": entries,
        "delivered_entry": entries * load.subscriptions,
        "copied_entry": entries * copies,
        "wake": woken,
        "delivered_wake": woken * load.subscriptions,
        "copied_wake": woken * copies,
        "position": load.positions_per_second,
        "byte": stored,
        "delivered_byte": stored * load.subscriptions,
        "copied_byte": stored * copies,
    }


def fit(runs: Sequence[Observation], *, broker: str, machine: Mapping[str, Any]) -> CostModel:
    """The model that fits measured loads best.

    Raises `InvalidConfiguration` when there are too few of them.
    """
    if len(runs) < RUNS_MIN:
        refuse("runs", len(runs), f"at least {RUNS_MIN} measured loads")
    names = [
        name for name in TERMS if not name.startswith("copied") or any(run.write_quorum > 1 for run in runs)
    ]
    fitter, everyone = _Fitter(runs, names), list(range(len(runs)))
    awake_seconds = fitter.shape(everyone)
    best, _ = fitter.fitted(everyone, awake_seconds)
    draws = fitter.resampled()
    error, error_of_means = fitter.left_out_errors([run.title for run in runs])
    terms = {
        name: Estimate(value=best[i], low=_quantile(draws[i], 0.025), high=_quantile(draws[i], 0.975))
        for i, name in enumerate(names)
    }
    return CostModel(
        broker=broker,
        machine=dict(machine),
        terms=terms,
        awake_seconds=awake_seconds,
        error=error,
        error_of_means=error_of_means,
        idle_per_second=statistics.median(run.idle_per_second for run in runs),
        published_overhead_bytes=_overhead(
            [(run.entries, run.wire_published_bytes, run.stored_bytes) for run in runs]
        ),
        delivered_overhead_bytes=_overhead(
            [
                (
                    run.entries * run.subscriptions,
                    run.wire_delivered_bytes,
                    run.stored_bytes * run.subscriptions,
                )
                for run in runs
                if run.subscriptions
            ]
        ),
        receipt_p50_seconds=_median([run.receipt_p50_ms for run in runs]) / 1000,
        receipt_p99_seconds=_median([run.receipt_p99_ms for run in runs]) / 1000,
        observations=tuple(runs),
    )


def load_of(run: Observation) -> Load:
    """What a measured load asked of the broker in a second."""
    return Load(
        entries_per_second=run.entries / run.seconds,
        stored_bytes_per_second=run.stored_bytes / run.seconds,
        subscriptions=run.subscriptions,
        write_quorum=run.write_quorum,
        partitions=run.partitions,
    )


def repeated_error(runs: Sequence[Observation]) -> float | None:
    """By how much the CPU of one load differs when it is measured again, as a standard deviation of
    logarithms: no model can be better. None where no load was measured twice."""
    by_load: dict[str, list[float]] = {}
    for run in runs:
        if run.cpu_seconds > 0:
            by_load.setdefault(run.title, []).append(math.log(run.cpu_seconds / run.seconds))
    squares = [
        (value - statistics.fmean(values)) ** 2 * len(values) / (len(values) - 1)
        for values in by_load.values()
        if len(values) > 1
        for value in values
    ]
    return math.sqrt(statistics.fmean(squares)) if squares else None


class _Fitter:
    """Fits to some of the runs: all of them, drawn ones, all but one."""

    def __init__(self, runs: Sequence[Observation], names: Sequence[str]) -> None:
        import numpy as np

        self._measured = np.array([run.cpu_seconds / run.seconds for run in runs])
        self._matrices: dict[float, Any] = {}
        for awake_seconds in AWAKE_SECONDS_GRID:
            rows = [features(load_of(run), awake_seconds) for run in runs]
            self._matrices[awake_seconds] = np.array([[row[name] for name in names] for row in rows])

    def shape(self, chosen: Any) -> float:
        """``awake_seconds`` of the best fit to the runs with some numbers."""
        return min(self._matrices, key=lambda shape: self.fitted(chosen, shape)[1])

    def fitted(self, chosen: Any, shape: float) -> tuple[list[float], float]:
        """Coefficients and the weighted sum of squares that they leave.

        A run's weight is that of the mean of what was measured and what is fitted: by the measured CPU
        alone, runs that came out too low would count more than those that came out too high.
        """
        import numpy as np

        matrix, measured = self._matrices[shape][chosen], self._measured[chosen]
        level = np.abs(measured)
        for _ in range(WEIGHINGS):
            noise = RELATIVE_NOISE * level + ABSOLUTE_NOISE
            found = _non_negative(matrix / noise[:, None], measured / noise)
            fitted = matrix @ np.array(found)
            level = (np.abs(measured) + fitted) / 2
        return found, float(np.sum(((fitted - measured) / (RELATIVE_NOISE * level + ABSOLUTE_NOISE)) ** 2))

    def resampled(self) -> list[list[float]]:
        """Each coefficient in fits to runs drawn with replacement, the shape found anew each time."""
        import numpy as np

        draw = random.Random(1)
        count = len(self._measured)
        drawn = [np.array([draw.randrange(count) for _ in range(count)]) for _ in range(RESAMPLES)]
        return [
            list(column) for column in zip(*(self.fitted(d, self.shape(d))[0] for d in drawn), strict=True)
        ]

    def left_out_errors(self, loads: Sequence[str]) -> tuple[float, float | None]:
        """Errors of predictions of loads that were left out: of each run, and of the means of loads that
        were measured more than once."""
        import numpy as np

        of_runs: list[float] = []
        of_means: list[float] = []
        numbers = np.array([list(dict.fromkeys(loads)).index(load) for load in loads])
        for number in dict.fromkeys(numbers.tolist()):
            others = np.flatnonzero(numbers != number)
            if not len(others):
                continue
            shape = self.shape(others)
            coefficients = np.array(self.fitted(others, shape)[0])
            errors = [
                math.log(predicted / measured)
                for predicted, measured in (
                    (float(self._matrices[shape][run] @ coefficients), float(self._measured[run]))
                    for run in np.flatnonzero(numbers == number)
                )
                if predicted > 0 and measured > 0
            ]
            of_runs += errors
            if len(errors) > 1:
                of_means.append(statistics.fmean(errors))
        return _root_mean_square(of_runs) or math.inf, _root_mean_square(of_means)


def _root_mean_square(values: Sequence[float]) -> float | None:
    return math.sqrt(statistics.fmean(value * value for value in values)) if values else None


def _non_negative(matrix: Any, target: Any) -> list[float]:
    """Least squares with no coefficient below zero: the most negative one is left out until none is."""
    import numpy as np

    left = list(range(matrix.shape[1]))
    found: Any = ()
    while left:
        found, *_ = np.linalg.lstsq(matrix[:, left], target, rcond=None)
        worst = int(np.argmin(found))
        if found[worst] >= 0:
            break
        left.pop(worst)
    result = [0.0] * matrix.shape[1]
    for place, value in zip(left, found if left else (), strict=True):
        result[place] = float(value)
    return result


def _overhead(rows: Sequence[tuple[float, int | None, float]]) -> float:
    """Bytes an entry beside itself: least squares through the origin."""
    known = [(entries, wire - stored) for entries, wire, stored in rows if wire is not None and entries]
    square = sum(entries * entries for entries, _ in known)
    return max(0.0, sum(entries * extra for entries, extra in known) / square) if square else 0.0


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else 5.0


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(part * (len(ordered) - 1))))]
