"""Report of a comparison: two tables and a picture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from geminga.tuning.measuring.outcome import RunOutcome, Spread
from geminga.tuning.pictures import COLOURS, colour_of, new_figure, save
from geminga.tuning.prove import Proof

Measure = Callable[[RunOutcome], float | None]

REFERENCE = "Geminga, stock, LZ4"
"""Baseline: stock settings with compression, as in the published case."""
UNBATCHED = "pulsar-client, stock"
"""Settings with which most Python programs publish."""


def _megabytes(value: int | None) -> float | None:
    return None if value is None else value / 1e6


BROKER_CPU: Measure = lambda o: o.broker_cpu_above_idle  # noqa: E731
CLIENT_CPU: Measure = lambda o: o.client_cpu_seconds  # noqa: E731
WIRE: Measure = lambda o: _megabytes(o.wire_bytes)  # noqa: E731
RATE: Measure = lambda o: o.rate  # noqa: E731

COLUMNS: tuple[tuple[str, str, Measure], ...] = (
    ("rate, msg/s", "{:,.0f}", RATE),
    ("messages an entry", "{:.1f}", lambda o: o.batch_fill),
    ("entries/s", "{:,.0f}", lambda o: o.entries_per_second),
    ("broker CPU above idle, s", "{:.2f}", BROKER_CPU),
    ("client CPU, s", "{:.2f}", CLIENT_CPU),
    ("wire, MB", "{:.1f}", WIRE),
    ("disk, MB", "{:.0f}", lambda o: _megabytes(o.disk_bytes)),
    ("disk syncs/s", "{:.0f}", lambda o: o.disk_syncs and o.disk_syncs / o.seconds),
    ("receipt p50, ms", "{:.1f}", lambda o: o.receipt.p50_ms),
    ("receipt p99, ms", "{:.1f}", lambda o: o.receipt.p99_ms),
    ("end to end p50, ms", "{:.1f}", lambda o: o.end_to_end.p50_ms),
    ("end to end p99, ms", "{:.1f}", lambda o: o.end_to_end.p99_ms),
)
FRONT = (
    "rate, msg/s",
    "entries/s",
    "broker CPU above idle, s",
    "client CPU, s",
    "wire, MB",
    "end to end p99, ms",
)
"""Columns of the short table."""


def table(proof: Proof) -> str:
    """Return a Markdown table: the median of each subject's runs, with minimum and maximum in brackets."""
    parts = [heading(proof), rows(proof.by_subject())]
    if proof.stopped:
        parts.append(f"It ended early: {proof.stopped}. What was measured till then is above.")
    return "\n\n".join(parts) + "\n"


TUNED = ("Geminga, formula, ZSTD 6", "Geminga, formula, ZSTD")
"""Subjects of the short table: the first that was measured is shown."""


def summary(proof: Proof) -> str:
    """Return the short table in Markdown: stock settings, the formula's, and the change against each."""
    runs = proof.by_subject()
    tuned = next((name for name in TUNED if name in runs), None)
    if tuned is None or REFERENCE not in runs:
        return table(proof)
    stock = [name for name in (UNBATCHED, REFERENCE) if name in runs]
    lines = [
        f"| | {' | '.join((*stock, tuned, *(f'against {who}' for who in stock)))} |",
        "|---|" + "---:|" * (2 * len(stock) + 1),
    ]
    for name, form, measure in COLUMNS:
        if name not in FRONT:
            continue
        medians = [Spread.of([measure(o) for o in runs[who]]) for who in (*stock, tuned)]
        changes = [saving(proof, who, tuned, measure) for who in stock]
        if None not in medians and None not in changes:
            cells = [form.format(each.median) for each in medians if each]
            cells += [_percent(each.median) for each in changes if each]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n\n".join(["\n".join(lines), heading(proof, ranges=False)])


def _percent(change: float) -> str:
    """Return a change as text: in percent, or as a multiple."""
    return (
        f"× {1 + change / 100:.0f}"
        if change >= 200
        else f"{change:+.{int(change < -99)}f} %".replace("-0 %", "0 %")
    )


def heading(proof: Proof, *, ranges: bool = True) -> str:
    """Return machine and conditions of a comparison at one rate, and the other load of the machine."""
    rate = proof.conditions["profile"]["rate_messages_per_second"]
    return (
        f"{where(proof, f'{rate:,.0f} msg/s of ')} {_repeats(proof, ranges)} "
        "Stock settings of Geminga's rows are those of the Java client."
    )


def where(proof: Proof, rate: str) -> str:
    """Return broker, traffic and machine as text. ``rate``: the text in front of the size of a message."""
    profile, machine = proof.conditions["profile"], proof.machine
    others = Spread.of([outcome.others_per_second for outcome in proof.outcomes])
    busy = (
        "" if others is None else f", {others.median:.2f} ({others.low:.2f}–{others.high:.2f}) of them used "
        "by other processes"
    )  # fmt: skip
    producers = f"from {profile['producers']} producers " if profile["producers"] > 1 else ""
    return (
        f"{proof.broker}; {rate}{profile['message_bytes']:.0f} B ({proof.conditions['payload']}) {producers}"
        f"over {profile['partitions']} partitions for {proof.conditions['seconds']:g} s, "
        f"{profile['subscriptions']} subscription{'s' * (profile['subscriptions'] != 1)}; "
        f"{machine['cores']} cores ({machine['processor']}){busy}, {machine['at']}."
    )


def _repeats(proof: Proof, ranges: bool) -> str:
    counts = sorted({len(runs) for runs in proof.by_subject().values()})
    if counts == [1]:
        return "One run of each."
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Medians of {number} runs" + (", with the lowest and the highest in brackets." if ranges else ".")


def rows(subjects: dict[str, list[RunOutcome]]) -> str:
    """Return a Markdown table with a row for each subject's runs."""
    shown = [c for c in COLUMNS if any(c[2](o) is not None for runs in subjects.values() for o in runs)]
    lines = ["| | " + " | ".join(name for name, _, _ in shown) + " |", "|---|" + "---:|" * len(shown)]
    for subject, runs in subjects.items():
        cells = [_cell(form, Spread.of([measure(o) for o in runs])) for _, form, measure in shown]
        failures = {o.failure for o in runs if o.failure}
        note = f" ({'; '.join(sorted(failures))[:120]})" if failures else ""
        lines.append(f"| {subject}{note} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(form: str, spread: Spread | None) -> str:
    if spread is None:
        return ""
    median = form.format(spread.median)
    low, high = form.format(spread.low), form.format(spread.high)
    return median if low == high else f"{median} ({low}–{high})"


def saving(proof: Proof, reference: str, subject: str, measure: Measure) -> Spread | None:
    """Return a subject's saving against another in percent, computed per round, so that other load of the
    machine affects both alike."""
    runs = proof.by_subject()
    before = {o.run: measure(o) for o in runs.get(reference, [])}
    after = {o.run: measure(o) for o in runs.get(subject, [])}
    changes: list[float | None] = []
    for run, value in after.items():
        base = before.get(run)
        if value is not None and base:
            changes.append(100 * (value / base - 1))
    return Spread.of(changes)


def picture(proof: Proof, path: Path) -> None:
    """Draw the subjects as bars on logarithmic scales, as SVG or PNG."""
    subjects = proof.by_subject()
    if not subjects:
        return
    panels: tuple[tuple[str, Measure], ...] = (
        ("broker CPU above idle, s", BROKER_CPU),
        ("bytes on the wire, MB", WIRE),
        ("client CPU, s", CLIENT_CPU),
        ("end to end p99, ms", lambda o: o.end_to_end.p99_ms),
    )
    figure = new_figure(11, 2 * (0.35 * len(subjects) + 0.8) + 0.4)
    grid = figure.add_gridspec(2, 2, hspace=0.35, wspace=0.08)
    for number, (title, measure) in enumerate(panels):
        axes = figure.add_subplot(grid[number // 2, number % 2])
        _bars(axes, title, subjects, measure, names=number % 2 == 0)
    drawn = {f"{word} settings": axes.barh(0, 0, color=colour) for word, colour in COLOURS.items()}
    figure.legend(drawn.values(), drawn, loc="lower center", bbox_to_anchor=(0.5, 0.91), ncols=2, fontsize=8)
    save(figure, path)


def _bars(
    axes: Any, title: str, subjects: dict[str, list[RunOutcome]], measure: Measure, names: bool
) -> None:
    labels = list(subjects)
    for place, label in enumerate(labels):
        spread = Spread.of([measure(o) for o in subjects[label]])
        if spread is None or spread.low <= 0:
            continue  # a logarithmic scale has no zero
        error = [[spread.median - spread.low], [spread.high - spread.median]]
        axes.barh(
            place, spread.median, color=colour_of(label), xerr=error, ecolor="#333333", capsize=2, height=0.7
        )
        shown = f"{spread.median:,.0f}" if spread.median >= 100 else f"{spread.median:.3g}"
        axes.text(spread.high, place, f" {shown}", va="center", fontsize=7)
    axes.set_yticks(range(len(labels)), labels if names else [""] * len(labels), fontsize=8)
    axes.invert_yaxis()
    axes.set_title(f"{title} (logarithmic)", fontsize=9)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter("")
    axes.margins(x=0.12)
