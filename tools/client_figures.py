"""The measured figures of the client as the pages show them; ``benchmarks.client --publish`` makes them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from typing import Any

OURS, PULSAR_CLIENT, PULSAR_PERF = "Geminga", "pulsar-client 3.13", "pulsar-perf 4.0.4"
BATCHED, ALONE = "send_async, batched", "send_async, an entry each"
MANY, MANY_EACH = "send_many, one callback", "send_many, one callback each"


class Row:
    """Medians of the runs of one piece of work by one party."""

    def __init__(self, work: str, who: str, runs: list[Mapping[str, float]]) -> None:
        self.work = work
        self.who = who
        self.runs = len(runs)
        rates = [run["messages"] / run["seconds"] for run in runs]
        self.rate, self.lowest, self.highest = statistics.median(rates), min(rates), max(rates)
        self.cpu = statistics.median(run["cpu"] / run["messages"] * 1e6 for run in runs)
        self.thread = statistics.median(run["thread"] / run["messages"] * 1e6 for run in runs)


def rows_of(values: Mapping[str, Any]) -> dict[tuple[str, str], Row]:
    return {(row["work"], row["who"]): Row(row["work"], row["who"], row["runs"]) for row in values["rows"]}


def rate(value: float) -> str:
    return f"{value / 1e6:.2f} million" if value >= 999_500 else f"{round(value, -3):,.0f}"


def times(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def where(values: Mapping[str, Any]) -> str:
    machine = values["machine"]
    low, high = values["load"]
    return (
        f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}, {machine['at']}; "
        f"load {low} to {high} with what else ran there"
    )


def is_quiet(values: Mapping[str, Any]) -> bool:
    """Whether rates say something about the client, and not only about what else ran there."""
    return bool(values["load"][1] <= 2 * values["machine"]["cores"])


def batching(values: Mapping[str, Any]) -> str:
    """Return the effect of batches as a sentence."""
    rows = rows_of(values)
    batched, alone = rows[BATCHED, OURS], rows[ALONE, OURS]
    theirs, theirs_alone = rows[BATCHED, PULSAR_CLIENT], rows[ALONE, PULSAR_CLIENT]
    text = (
        '`create_producer("events", batching_enabled=True)` sends small messages with '
        f"{batched.cpu / alone.cpu:.0%} of the CPU: {batched.cpu:.2f} µs of the process instead of "
        f"{alone.cpu:.2f} (100 B from one thread, a callback each"
    )
    if is_quiet(values):
        text += f"; {rate(batched.rate)} messages a second instead of {rate(alone.rate)}"
    return (
        f"{text}; `pulsar-client` beside it took {times(theirs.cpu)} and {times(theirs_alone.cpu)} µs; "
        f"{where(values)}: `python -m benchmarks.client`)."
    )


def many(values: Mapping[str, Any]) -> str:
    """Return the effect of one call for many messages as a sentence."""
    rows = rows_of(values)
    one, each, batched = rows[MANY, OURS], rows[MANY_EACH, OURS], rows[BATCHED, OURS]
    return (
        f"{one.cpu:.2f} µs of CPU a message in the whole process, {one.thread:.2f} of them in the calling "
        f"thread, with one callback; {each.cpu:.2f} and {each.thread:.2f} with one for each, where "
        f"`send_async` takes {batched.cpu:.2f} and {batched.thread:.2f} (100 B, batched; {where(values)})."
    )


def table(values: Mapping[str, Any]) -> str:
    """Every row, with ratios to the others of the same run."""
    rows = rows_of(values)
    lines = [
        "| what, 100 B | who | messages a second (lowest, highest) | CPU µs a message | "
        "in the calling thread | Geminga's rate is × | its CPU is |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows.values():
        ours = rows.get((row.work, OURS))
        ratio = share = ""
        if ours is not None and ours is not row:
            ratio, share = f"{ours.rate / row.rate:.2f}", f"{ours.cpu / row.cpu:.0%}"
        thread = f"{row.thread:.2f}" if row.thread else ""
        span = f"{row.lowest:,.0f}, {row.highest:,.0f}"
        cells = (row.work, row.who, f"{row.rate:,.0f} ({span})", f"{row.cpu:.2f}", thread, ratio, share)
        lines.append(f"| {' | '.join(cells)} |")
    rounds = max(row.runs for row in rows.values())
    told = f"Medians of {rounds} rounds, in each of which everybody had a turn; {where(values)}."
    if not is_quiet(values):
        told += " Compare CPU, and rates with each other: what else ran took most of the machine."
    return "\n".join([told, "", *lines, "", "`python -m benchmarks.client --publish` made this."])


def unlocked(values: Mapping[str, Any]) -> str:
    """Return costs and gains of an interpreter without the GIL; ``at best`` is computed, the rest
    measured."""
    lines = [
        "| | interpreter | CPU, µs a message | in the application's threads | at best | measured |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows_of(values).values():
        best = row.cpu
        if row.who.endswith("lock off"):
            # The loop's thread and the application's each have a core.
            found = re.search(r"(\d+) threads?$", row.work)
            best = max(row.cpu - row.thread, row.thread / (int(found[1]) if found else 1))
        cpu = f"{row.cpu:.2f} | {row.thread:.2f}"
        lines.append(f"| {row.work} | {row.who} | {cpu} | {rate(1e6 / best)} | {rate(row.rate)} |")
    lines += ["", f"`python -m benchmarks.free_threading --publish` made this: {where(values)}."]
    return "\n".join(lines)


FORMS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "batching": batching,
    "many": many,
    "table": table,
    "unlocked": unlocked,
}
