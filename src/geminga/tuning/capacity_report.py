"""Report of the capacity: a table, what it means in machines, and a picture of rate against latency."""

import math
from pathlib import Path

from geminga.tuning.capacity import STEP, Capacity, capacities, is_kept, limit_of, p99_ms, rate_of
from geminga.tuning.pictures import colour_of, new_figure, save
from geminga.tuning.proof_report import rows, where
from geminga.tuning.prove import Proof

MACHINES = 10
"""Machines before, in the sentence about what a capacity means."""


def table(proof: Proof) -> str:
    """Return Markdown: conditions, the edges, their limits, and the machines for the same traffic."""
    budget = 1000 * proof.conditions["profile"]["latency_budget_seconds"]
    found = capacities(proof)
    rates = {title: [rate_of(o) for o in outcomes] for title, outcomes in proof.by_subject().items()}
    parts = [
        f"{where(proof, '')} The highest rate with a 99th percentile latency of at most {budget:g} ms; runs: "
        + ", ".join(f"{len(tried)} of {title}" for title, tried in rates.items()) + ".",
        rows({f"{each.subject}: {each.rate:,.0f} msg/s": [each.edge] for each in found}) if found else "",
        "\n".join(
            f"* {each.subject}: limited by {limit_of(proof, each.missed) if each.missed else 'nothing yet'}."
            for each in found
        ),
    ]  # fmt: skip
    parts += [
        f"{title} kept the budget at no rate that was tried, down to {min(tried):,.0f} msg/s."
        for title, tried in rates.items()
        if title not in {c.subject for c in found}
    ]
    parts += [meaning(found), broker_alone(found)]
    if proof.stopped:
        parts.append(f"It ended early: {proof.stopped}. What was measured till then is above.")
    return "\n\n".join(part for part in parts if part) + "\n"


def meaning(found: list[Capacity]) -> str:
    """Return how many machines the slowest subject's traffic needs with the fastest subject's settings;
    nothing if all have the same rate."""
    if len({each.rate for each in found}) < 2:
        return ""
    slow, fast = (pick(found, key=lambda each: each.rate) for pick in (min, max))
    if fast.rate < STEP * slow.rate:
        return "**The same rate with all settings, within a step of the search.**"
    after = math.ceil(MACHINES * slow.rate / fast.rate)
    return (
        f"**{fast.subject}: {fast.rate / slow.rate:.1f} × the rate of {slow.subject}. Traffic that needs "
        f"{MACHINES} such machines needs {after} then.**"
    )


def broker_alone(found: list[Capacity]) -> str:
    """Return how often more messages the broker takes with the same CPU, at the edges: its capacity where
    producers and readers run elsewhere; nothing if that was not measured."""
    costs = {each.subject: each.edge.broker_cpu_above_idle / max(1, each.edge.receipts) for each in found}
    if len(costs) < 2 or min(costs.values()) <= 0:
        return ""
    dear, cheap = max(costs, key=costs.__getitem__), min(costs, key=costs.__getitem__)
    return (
        f"A message costs the broker {1e6 * costs[dear]:.2f} µs of CPU with {dear}, "
        f"{1e6 * costs[cheap]:.2f} µs with {cheap}: {costs[dear] / costs[cheap]:.1f} × as many messages for "
        "the same CPU, where producers and readers leave the broker its machine."
    )


def picture(proof: Proof, path: Path) -> None:
    """Draw each run's rate and latency on logarithmic scales, kept ones filled, with edges and budget."""
    budget = 1000 * proof.conditions["profile"]["latency_budget_seconds"]
    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    edges = {each.subject: each.rate for each in capacities(proof)}
    for title, outcomes in proof.by_subject().items():
        colour = colour_of(title)
        points = sorted((rate_of(o), p99_ms(o) or math.nan, is_kept(o)) for o in outcomes)
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], color=colour, alpha=0.4, linewidth=1)
        for rate, latency, kept in points:
            axes.plot(rate, latency, "o", color=colour, fillstyle="full" if kept else "none")
        if title in edges:
            axes.axvline(
                edges[title], color=colour, linestyle=":", label=f"{title}: {edges[title]:,.0f} msg/s"
            )
    axes.axhline(budget, color="#555555", linewidth=1, linestyle="--", label=f"budget: {budget:g} ms")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter("")
    axes.set_xlabel("messages per second (logarithmic)")
    axes.set_ylabel("99th percentile latency, ms (logarithmic)")
    axes.legend(loc="upper left", fontsize=8)
    save(figure, path)
