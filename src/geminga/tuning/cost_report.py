"""A cost model for people: its coefficients with their intervals, and how well it fits."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from geminga.tuning.cost import CostModel, load_of, repeated_error, wakes_per_second
from geminga.tuning.pictures import new_figure, save

_SHOWN = {
    "flowing": (1e3, "ms a second as soon as anything flows"),
    "entry": (1e6, "µs an entry"),
    "delivered_entry": (1e6, "µs an entry and subscription"),
    "copied_entry": (1e6, "µs an entry and further copy"),
    "wake": (1e6, "µs a wake-up"),
    "delivered_wake": (1e6, "µs a wake-up and subscription"),
    "copied_wake": (1e6, "µs a wake-up and further copy"),
    "position": (1e6, "µs a position written"),
    "byte": (1e9, "ms a MB stored"),
    "delivered_byte": (1e9, "ms a MB and subscription"),
    "copied_byte": (1e9, "ms a MB and further copy"),
}


RATES_SHOWN = (25, 250, 2500)
"""Entries a second for which the report says how often they wake a broker."""


def _percent(error: float) -> str:
    return f"{100 * math.expm1(error):.0f} %"


def _errors(model: CostModel) -> list[str]:
    lines = [f"error on loads left out of the fit: {_percent(model.error)} of a single run"]
    if model.error_of_means is not None:
        lines[0] += f", {_percent(model.error_of_means)} of the mean of a load's runs"
    again = repeated_error(model.observations)
    if again is not None:
        lines.append(f"the same load measured again differs by {_percent(again)}")
    return lines


def _woken(model: CostModel) -> list[str]:
    shown = ", ".join(
        f"{wakes_per_second(rate, model.awake_seconds):.0f} times by {rate} entries/s" for rate in RATES_SHOWN
    )
    return [
        f"  what an entry wakes stays awake for {1000 * model.awake_seconds:g} ms, so that it is woken",
        f"  {shown}",
    ]


def fitted(model: CostModel) -> list[tuple[str, float, float]]:
    """Title, measured and fitted CPU seconds a second of each load."""
    return [
        (run.title, run.cpu_seconds / run.seconds, model.broker_cpu(load_of(run)).value)
        for run in model.observations
    ]


def text(model: CostModel) -> str:
    """The model, and each load beside what the model makes of it."""
    machine = model.machine
    lines = [
        f"{model.broker} on {machine['cores']} cores, {machine['processor']}, {machine['at']}: "
        f"{len(model.observations)} loads",
        "",
        "broker CPU above idle                                  95 % interval",
    ]
    for name, estimate in model.terms.items():
        factor, unit = _SHOWN[name]
        shown = estimate.scaled(factor)
        lines.append(f"  {shown.value:8.2f} {unit:38} {shown.low:8.2f} to {shown.high:.2f}")
    lines += [
        *_woken(model),
        f"idle: {100 * model.idle_per_second:.2f} % of a core",
        f"network beside stored bytes: {model.published_overhead_bytes:.0f} bytes an entry on its way in, "
        f"{model.delivered_overhead_bytes:.0f} on its way to each subscription",
        f"receipts without waiting: {model.receipt_p50_seconds * 1000:.1f} ms p50, "
        f"{model.receipt_p99_seconds * 1000:.1f} ms p99",
        *_errors(model),
        "",
        "measured  fitted  ratio   (% of a core)",
    ]
    for title, measured, predicted in fitted(model):
        ratio = predicted / measured if measured > 0 else math.nan
        lines.append(f"{100 * measured:8.2f} {100 * predicted:7.2f} {ratio:6.2f}   {title}")
    return "\n".join(lines)


def as_dict(model: CostModel) -> dict[str, Any]:
    """Plain values for JSON."""
    rows = [{"load": t, "measured": m, "fitted": p} for t, m, p in fitted(model)]
    return {**asdict(model), "fit": rows}


def picture(model: CostModel, path: Path) -> None:
    """Measured against fitted, and the CPU of an entry by how many come. SVG or PNG by the name's end."""
    figure = new_figure(9, 4)
    axes = figure.add_subplot(1, 2, 1)
    rows = [(m, p) for _, m, p in fitted(model) if m > 0 and p > 0]
    axes.loglog([100 * m for m, _ in rows], [100 * p for _, p in rows], "o", color="#2a7fb8", markersize=4)
    ends = [100 * min(min(row) for row in rows), 100 * max(max(row) for row in rows)]
    axes.loglog(ends, ends, color="#333333", linewidth=0.8)
    axes.set_xlabel("measured, % of a core")
    axes.set_ylabel("fitted, % of a core")
    axes = figure.add_subplot(1, 2, 2)
    for readers, colour in enumerate(("#888888", "#2a7fb8", "#c8743c", "#7a3cc8")):
        points = [
            (run.entries / run.seconds, 1e6 * run.cpu_seconds / run.entries)
            for run in model.observations
            if min(3, run.subscriptions) == readers and run.entries > 0 and run.cpu_seconds > 0
        ]
        if points:
            axes.loglog(*zip(*points, strict=True), "o", color=colour, markersize=4, label=str(readers))
    axes.legend(title="subscriptions", fontsize=7, title_fontsize=7)
    axes.set_xlabel("entries a second")
    axes.set_ylabel("broker CPU an entry, µs")
    figure.subplots_adjust(wspace=0.3)
    save(figure, path)
