"""What publishing costs a broker: CPU and network from entries, bytes, readers and copies.

The work of a broker is counted in entries: it opens no batch. One entry wakes a chain of threads, and
entries that come close together share what was woken, so that the second thousand a second costs less than
the first. The model says that with two numbers, and is otherwise a sum::

    CPU s/s = flowing
              + entry x w(E) + delivered_entry x w(E) x subscriptions + copied_entry x w(E) x (copies - 1)
              + byte x B + delivered_byte x B x subscriptions + copied_byte x B x (copies - 1)

    w(E) = E / (1 + E / together) ^ sharing

with E entries and B stored bytes a second. ``flowing`` is what a broker takes beyond its idling as soon as
anything flows at all: collections of garbage, statistics, what is done once a second. Compression shows in
B alone. The coefficients are found by least
squares, none below zero, each run weighed by how well it could be measured; ``together`` and ``sharing`` by
trying. The intervals come from fits to resampled runs (95 %), and the error of a prediction from runs that
were left out of the fit.

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

FORMAT = 2
RUNS_MIN = 8
RESAMPLES = 100
RELATIVE_NOISE = 0.1
"""How well a run's CPU can be measured, as a part of it ..."""
ABSOLUTE_NOISE = 0.003
"""... and in seconds a second: what an idle broker varies by."""
WEIGHINGS = 3
TOGETHER_GRID = (1.0, 3.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 1e9)
SHARING_GRID = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
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
    subscriptions: int = 1
    write_quorum: int = 1


TERMS = {
    "flowing": "s of CPU a second as soon as anything flows",
    "entry": "s of CPU an entry that comes alone",
    "delivered_entry": "s of CPU an entry and subscription",
    "copied_entry": "s of CPU an entry and further copy",
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
    together: float
    """Entries a second above which they begin to share what they wake."""
    sharing: float
    """How much they share: 0 nothing, 1 everything."""
    error: float
    """Standard deviation of prediction against measurement, relative, of runs left out of the fit."""
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
        found = features(load, self.together, self.sharing)
        missing = {"copied_entry": "entry", "copied_byte": "byte"}
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


def features(load: Load, together: float, sharing: float) -> dict[str, float]:
    """What each coefficient is multiplied by."""
    entries, stored = load.entries_per_second, load.stored_bytes_per_second
    woken = entries / (1 + entries / together) ** sharing
    copies = load.write_quorum - 1
    return {
        "flowing": 1.0 if entries else 0.0,
        "entry": woken,
        "delivered_entry": woken * load.subscriptions,
        "copied_entry": woken * copies,
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
    together, sharing = fitter.shape(everyone)
    best, _ = fitter.fitted(everyone, (together, sharing))
    draws = fitter.resampled()
    terms = {
        name: Estimate(value=best[i], low=_quantile(draws[i], 0.025), high=_quantile(draws[i], 0.975))
        for i, name in enumerate(names)
    }
    return CostModel(
        broker=broker,
        machine=dict(machine),
        terms=terms,
        together=together,
        sharing=sharing,
        error=fitter.left_out_error((together, sharing)),
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
        self._matrices: dict[tuple[float, float], Any] = {}
        for shape in ((t, s) for t in TOGETHER_GRID for s in SHARING_GRID):
            rows = [features(load_of(run), *shape) for run in runs]
            self._matrices[shape] = np.array([[row[name] for name in names] for row in rows])

    def shape(self, chosen: Any) -> tuple[float, float]:
        """``together`` and ``sharing`` of the best fit to the runs with some numbers."""
        return min(self._matrices, key=lambda shape: self.fitted(chosen, shape)[1])

    def fitted(self, chosen: Any, shape: tuple[float, float]) -> tuple[list[float], float]:
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

    def left_out_error(self, shape: tuple[float, float]) -> float:
        """Relative error of predictions of runs that were left out, as a standard deviation of logarithms."""
        import numpy as np

        errors = []
        everyone = np.arange(len(self._measured))
        for number in everyone:
            coefficients, _ = self.fitted(everyone[everyone != number], shape)
            predicted = float(self._matrices[shape][number] @ np.array(coefficients))
            measured = float(self._measured[number])
            if predicted > 0 and measured > 0:
                errors.append(math.log(predicted / measured))
        return math.sqrt(sum(e * e for e in errors) / len(errors)) if errors else math.inf


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
