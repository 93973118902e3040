"""Fit the cost model of the advisor to measured loads: `geminga.tuning.cost` has its terms.

    python tools/fit_cost_model.py RUNS.json    write the coefficients into the package's data

The coefficients are found by least squares, none below zero; each run is weighted by the precision of its
measurement. ``awake_seconds`` is chosen from a grid. The 95 % intervals are fits to resampled runs.

The error of a prediction is found by cross-validation: all runs of one load are left out, everything is
fitted to the other loads, and the prediction is compared with each run that was left out. Comparing it with
the mean of a load's runs separates the model's error from that of the measurement.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from geminga.config import refuse
from geminga.tuning.cost import DATA, STANDARD, TERMS, CostModel, Estimate, Load, Observation, features

FORMAT = 3
RUNS_MIN = 8
RESAMPLES = 100
RELATIVE_NOISE = 0.1
"""Noise of a run's measured CPU, relative to the measured value."""
ABSOLUTE_NOISE = 0.003
"""Noise of a run's measured CPU that does not depend on the load, in CPU seconds a second."""
WEIGHINGS = 3
AWAKE_SECONDS_GRID = (0.0, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01)


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
    """Return the broker's load of a measured run."""
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
        """Fit the coefficients to runs drawn with replacement, including the shape, many times."""
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


def main() -> int:
    """Fit the runs of a file (broker, machine, observations) and write the model into the package."""
    values = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    runs = [Observation(**row) for row in values["observations"]]
    model = fit(runs, broker=values["broker"], machine=values["machine"])
    (DATA / STANDARD).write_text(json.dumps({"format": FORMAT, **asdict(model)}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
