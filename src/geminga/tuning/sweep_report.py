"""What a sweep says: the Pareto front of latency, broker CPU, network and memory, as table and picture.

A run is on the front of its profile when no other run is as good in all four and better in one. Runs that
refused messages do not count.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from geminga.tuning.pictures import new_figure, save

if TYPE_CHECKING:
    import pyarrow as pa

    from geminga.tuning.sweep import Speed

OBJECTIVES = ("latency_p99", "broker_cpu", "network_bytes_per_second", "memory_bytes")
"""Less is better in all of them."""
TABLE_ROWS = 12
"""Rows of a profile in the table: the front, thinned out along latency."""
NEARLY = 0.005
"""Runs that differ by less than this part are as good as each other: the rest is the draw of the traffic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """The front of one profile; rows as dictionaries of the sweep's columns, by latency."""

    profile: str
    runs: int
    """Runs that took every message."""
    left_out: int
    """Runs that did not, or could not be run."""
    rows: list[dict[str, Any]]
    others: list[dict[str, Any]]
    """The objectives of the runs that are not on it."""

    def best_within(self, latency_seconds: float) -> dict[str, Any] | None:
        """The run that costs the broker least with this latency; None when none keeps it."""
        found = [row for row in self.rows if row["latency_p99"] <= latency_seconds]
        return min(found, key=lambda row: row["broker_cpu"]) if found else None


def pareto(points: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which rows no other row dominates; less is better in every column. Of equal rows the first stays."""
    count = len(points)
    kept = np.zeros(count, np.bool_)
    order = np.lexsort(points.T[::-1])
    front: list[npt.NDArray[np.float64]] = []
    for index in order:
        row = points[index]
        if front and bool(np.any(np.all(np.asarray(front) <= row, axis=1))):
            continue
        front.append(row)
        kept[index] = True
    return kept


def fronts(table: pa.Table) -> list[Front]:
    """The front of each profile of a sweep, in the order of their names."""
    rows = table.to_pylist()
    found = []
    for profile in dict.fromkeys(sorted(row["profile"] for row in rows)):
        mine = [row for row in rows if row["profile"] == profile]
        kept = [row for row in mine if _counts(row)]
        points = np.array([[row[name] for name in OBJECTIVES] for row in kept]).reshape(-1, len(OBJECTIVES))
        # Differences within chance make no front.
        steps = np.round(np.log(np.maximum(points, 1e-12)) / NEARLY)
        on_front = pareto(steps)
        found.append(
            Front(
                profile=profile,
                runs=len(kept),
                left_out=len(mine) - len(kept),
                rows=sorted(
                    (row for row, on in zip(kept, on_front, strict=True) if on),
                    key=lambda row: (row["latency_p99"], row["broker_cpu"]),
                ),
                others=[
                    {name: row[name] for name in OBJECTIVES}
                    for row, on in zip(kept, on_front, strict=True)
                    if not on
                ],
            )
        )
    return found


def _counts(row: dict[str, Any]) -> bool:
    """Whether a run did its job: it could be run, and no message was refused."""
    return not row["problem"] and not row["refused"] and np.isfinite(row["latency_p99"])


def table(found: Sequence[Front]) -> str:
    """Markdown: each profile's front, thinned out along latency."""
    lines = []
    for front in found:
        lines += [
            f"### {front.profile or 'traffic'}",
            "",
            f"{front.runs} runs took every message, {front.left_out} did not; {len(front.rows)} are on the "
            "front.",
            "",
            "| p99 ms | broker CPU, cores | network MB/s | memory MB | entries/s | messages an entry "
            "| delay ms | batch messages | batch KiB | permits | stay | codec |",
            "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        lines += [_line(row) for row in thinned(front.rows)]
        lines.append("")
    return "\n".join(lines)


def scaling_table(speeds: Sequence[Speed]) -> str:
    """Markdown: how the same runs go with more tasks at once."""
    lines = [
        "| tasks at once | runs | seconds | runs a second | times one task |",
        "|---:|---:|---:|---:|---:|",
    ]
    for speed in speeds:
        times = speed.runs_per_second / speeds[0].runs_per_second
        lines.append(
            f"| {speed.tasks} | {speed.runs} | {speed.seconds:.1f} | {speed.runs_per_second:.0f} "
            f"| {times:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    return (
        f"| {row['latency_p99'] * 1000:.1f} | {row['broker_cpu']:.4f} "
        f"| {row['network_bytes_per_second'] / 1e6:.2f} | {row['memory_bytes'] / 1e6:.2f} "
        f"| {row['entries_per_second']:.1f} | {row['batch_fill']:.1f} | {row['delay_ms']:.1f} "
        f"| {row['batch_messages']} | {row['batch_bytes'] / 1024:.0f} | {row['permits']} | {row['stay']} "
        f"| {row['compression']} |"
    )


def thinned(rows: Sequence[dict[str, Any]], count: int = TABLE_ROWS) -> list[dict[str, Any]]:
    """At most ``count`` rows: in each part of the range of latency, the one that costs the broker least."""
    if len(rows) <= count:
        return list(rows)
    logs = np.log([row["latency_p99"] for row in rows])
    parts = np.minimum(((logs - logs[0]) / max(1e-12, logs[-1] - logs[0]) * count).astype(int), count - 1)
    found = []
    for part in range(count):
        mine = [row for row, place in zip(rows, parts, strict=True) if place == part]
        if mine:
            found.append(min(mine, key=lambda row: row["broker_cpu"]))
    return found


def picture(found: Sequence[Front], path: Path) -> None:
    """Latency against broker CPU and against the network, a row for each profile; the front stands out.

    Raises `OperationNotSupported` without Matplotlib and `InvalidConfiguration` for another format.
    """
    figure = new_figure(11.0, 3.6 * max(1, len(found)))
    for number, front in enumerate(found):
        for column, (name, title, scale) in enumerate(
            (("broker_cpu", "broker CPU, cores", 1.0), ("network_bytes_per_second", "network, MB/s", 1e-6))
        ):
            axes = figure.add_subplot(len(found), 2, 2 * number + column + 1)
            if front.others:
                axes.scatter(
                    [row["latency_p99"] * 1000 for row in front.others],
                    [row[name] * scale for row in front.others],
                    s=5, color="#c9c9c9", linewidths=0, label="other runs",
                )  # fmt: skip
            if front.rows:
                memory = [row["memory_bytes"] / 1e6 for row in front.rows]
                dots = axes.scatter(
                    [row["latency_p99"] * 1000 for row in front.rows],
                    [row[name] * scale for row in front.rows],
                    s=16, c=memory, cmap="viridis", linewidths=0, label="front",
                )  # fmt: skip
                figure.colorbar(dots, ax=axes, label="memory, MB")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("p99 of receipts, ms")
            axes.set_ylabel(title)
            axes.set_title(front.profile or "traffic", fontsize=10)
            axes.grid(True, which="both", alpha=0.2)
    figure.tight_layout()
    save(figure, path)


def write(found: Sequence[Front], folder: Path) -> None:
    """``front.md``, ``front.json`` and ``front.svg`` into the sweep's folder."""
    (folder / "front.md").write_text(table(found))
    (folder / "front.json").write_text(
        json.dumps(
            [{"profile": f.profile, "runs": f.runs, "left_out": f.left_out, "rows": f.rows} for f in found],
            indent=1,
        )
    )
    picture(found, folder / "front.svg")


__all__ = ["OBJECTIVES", "Front", "fronts", "pareto", "picture", "scaling_table", "table", "thinned", "write"]
