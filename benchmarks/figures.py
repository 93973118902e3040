"""Measured figures as the pages show them: ``make docs`` draws them from ``docs/proof``."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

OURS, PULSAR_CLIENT, JAVA = "Geminga", "pulsar-client 3.13", "pulsar-perf 4.0.4"
BROKERS = {
    "embedded": "Geminga's broker, every message synced to disk before its receipt",
    "apache": "Apache Pulsar 4.0.4, which does not sync its journal by default",
}


class Row:
    """Figures of one program with one library: medians of the runs, the best rate and the lowest CPU."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.name: str = row.get("name", "")
        self.work: str = row["work"]
        self.who: str = row["who"]
        rates = [run["messages"] / run["seconds"] for run in row["runs"]]
        cpu = [run["cpu"] / run["messages"] * 1e6 for run in row["runs"]]
        self.runs = len(rates)
        self.rate, self.best = statistics.median(rates), max(rates)
        self.cpu, self.lowest_cpu = statistics.median(cpu), min(cpu)
        self.thread = statistics.median(run.get("thread", 0.0) / run["messages"] * 1e6 for run in row["runs"])


def rate(value: float) -> str:
    """Return messages a second as words of a sentence."""
    return f"{value / 1e6:.2f} million" if value >= 999_500 else f"{round(value, -3):,.0f}"


def where(values: Mapping[str, Any]) -> str:
    """Return the machine, the date and the load of a measurement."""
    machine = values["machine"]
    low, high = values["load"]
    return (
        f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}, {machine['at']}; "
        f"load {low} to {high} with the other programs there"
    )


def is_quiet(values: Mapping[str, Any]) -> bool:
    """Return whether the load was low enough for rates to describe the client."""
    return bool(values["load"][1] <= 2 * values["machine"]["cores"])


# --- everyday programs ---------------------------------------------------------------------------------


def _cpu(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def everyday(values: Mapping[str, Any], broker: str) -> str:
    """Return the table of the everyday programs on a broker; those with the lowest ratio come first."""
    rows: dict[str, dict[str, Row]] = {}
    for each in values["rows"]:
        rows.setdefault(each["name"], {})[each["who"]] = Row(each)
    lines = [
        "| program | pulsar-client, messages a second | Geminga | × | CPU, µs: pulsar-client | Geminga | × "
        "| Java (`pulsar-perf`) | Geminga's rate × Java's | Java's CPU, µs |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for parties in sorted(rows.values(), key=_ratio):
        ours, theirs, java = (parties.get(who) for who in (OURS, PULSAR_CLIENT, JAVA))
        cells = [next(iter(parties.values())).work]
        cells += [f"{row.best:,.0f}" if row else "" for row in (theirs, ours)]
        cells.append(_bold(ours.best / theirs.best, worse_below=1) if ours and theirs else "")
        cells += [_cpu(row.lowest_cpu) if row else "" for row in (theirs, ours)]
        cells.append(_bold(ours.lowest_cpu / theirs.lowest_cpu, worse_above=1) if ours and theirs else "")
        cells.append(f"{java.best:,.0f}" if java else "")
        cells.append(_bold(ours.best / java.best, worse_below=1) if ours and java else "")
        cells.append(_cpu(java.lowest_cpu) if java else "")
        lines.append(f"| {' | '.join(cells)} |")
    rounds = sorted({row.runs for parties in rows.values() for row in parties.values()}) or [0]
    shown = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else str(rounds[0])
    text = (
        f"{BROKERS[broker]}. Best rate and lowest CPU of the client's process in {shown} "
        f"{'run' if shown == '1' else 'runs'} of each library, in turn; programs in which Geminga has the "
        f"lower rate first; {where(values)}."
    )
    if values["quick"]:
        text += " A quick run with few messages: it shows that the programs work, not how fast they are."
    elif not is_quiet(values):
        text += " Other programs took most of the machine: compare CPU, and rates with each other."
    failed = [f"* {line.splitlines()[0]}" for line in values["failed"]]
    if failed:
        failed = ["", "Without figures:", "", *failed]
    command = _command(broker, any(JAVA in parties for parties in rows.values()))
    return "\n".join([text, "", *lines, *failed, "", f"`{command}` made this."])


def _command(broker: str, has_java: bool = True) -> str:
    return f"python -m benchmarks.everyday --broker {broker}{' --java' if has_java else ''} --publish"


def _ratio(parties: Mapping[str, Row]) -> float:
    """Return Geminga's rate divided by pulsar-client's; infinity where one of them has none."""
    if OURS in parties and PULSAR_CLIENT in parties:
        return float(parties[OURS].best / parties[PULSAR_CLIENT].best)
    return float("inf")


def _bold(ratio: float, *, worse_below: float = 0.0, worse_above: float = float("inf")) -> str:
    text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    return f"**{text}**" if ratio < worse_below or ratio > worse_above else text


def _programs(values: Mapping[str, Any]) -> dict[tuple[str, str], Row]:
    return {(row["name"], row["who"]): Row(row) for row in values["rows"]}


def batching(values: Mapping[str, Any]) -> str:
    """Return the effect of batches as a sentence."""
    rows = _programs(values)
    batched, alone = rows["send-async-batched", OURS], rows["send-async", OURS]
    theirs, theirs_alone = rows["send-async-batched", PULSAR_CLIENT], rows["send-async", PULSAR_CLIENT]
    text = (
        '`create_producer("events", batching_enabled=True)` sends small messages with '
        f"{batched.cpu / alone.cpu:.0%} of the CPU: {_cpu(batched.cpu)} µs of the process instead of "
        f"{_cpu(alone.cpu)} (100 B from one thread, a callback each"
    )
    if is_quiet(values):
        text += f"; {rate(batched.rate)} messages a second instead of {rate(alone.rate)}"
    return (
        f"{text}; `pulsar-client` beside it took {_cpu(theirs.cpu)} and {_cpu(theirs_alone.cpu)} µs; "
        f"{where(values)}: `python -m benchmarks.everyday`)."
    )


def many(values: Mapping[str, Any]) -> str:
    """Return the effect of one call for many messages as a sentence."""
    rows = _programs(values)
    one, batched = rows["send-many", OURS], rows["send-async-batched", OURS]
    return (
        f"{_cpu(one.cpu)} µs of CPU a message in the whole process with one callback, where `send_async` "
        f"takes {_cpu(batched.cpu)} (100 B, batched; {where(values)})."
    )


# --- latency -------------------------------------------------------------------------------------------


def latency(values: Mapping[str, Any]) -> str:
    """Return the table of latencies, in milliseconds."""
    points = tuple(values["disk"])
    heads = [f"{what} {point}" for what in ("published", "delivered") for point in points]
    lines = [
        "| messages | load | messages a second | broker | " + " | ".join(heads) + " |",
        "|---|---:|---:|---|" + "---:|" * len(heads),
    ]
    modes = {"single": "one by one", "batch": "batches of 5 ms or 1,000"}
    for row in sorted(values["rows"], key=lambda row: (row["mode"] != "single", row["share"])):
        found = [
            f"{row[what][point]:.2f}" if point in row[what] else ""
            for what in ("published", "delivered")
            for point in points
        ]
        share = f"{row['share']:.0%}{' of Apache Pulsar' if row.get('is_peers_rate') else ''}"
        cells = (modes[row["mode"]], share, f"{row['rate']:,.0f}", row["who"], *found)
        lines.append(f"| {' | '.join(cells)} |")
    bare = ", ".join(f"{point} {value:.2f}" for point, value in values["disk"].items())
    text = (
        f"Milliseconds from the time at which a message was due; {values['seconds']:.0f} s at each rate; "
        "Geminga syncs every message to disk before its receipt, the others do not. pulsar-lite delivers "
        "more messages than were sent, so its delivery has no figures. *Of Apache Pulsar*: the rate of that "
        "broker's row, as shares of different highest rates are different loads. A bare write of 4 KiB "
        f"and fdatasync on the same disk took {bare} ms; {where(values)}."
    )
    failed = [f"* {line}" for line in values["failed"]]
    if failed:
        failed = ["", "Without figures:", "", *failed]
    return "\n".join([text, "", *lines, *failed, "", "`python -m benchmarks.latency --publish` made this."])


# --- idle clients --------------------------------------------------------------------------------------


def idle(values: Mapping[str, Any]) -> str:
    """Return the table of the resources of idle clients: medians, and ratios of Geminga to pulsar-client."""
    lines = ["| | pulsar-client | Geminga | × |", "|---|---:|---:|---:|"]
    for name, parties in values["rows"].items():
        theirs, ours = (statistics.median(parties[who]) for who in (PULSAR_CLIENT, OURS))
        ratio = _bold(ours / theirs, worse_above=1) if theirs else ""
        lines.append(f"| {name} | {_cpu(theirs)} | {_cpu(ours)} | {ratio} |")
    rounds = max(len(runs) for parties in values["rows"].values() for runs in parties.values())
    text = (
        f"Medians of {rounds} {'run' if rounds == 1 else 'runs'} of each library, in turn; smaller is "
        f"better; {where(values)}. *First message*: a client, a consumer and a producer are opened, and a "
        "message is sent and received. Geminga imports most of its modules for the first client."
    )
    return "\n".join([text, "", *lines, "", "`python -m benchmarks.idle --publish` made this."])


# --- growth --------------------------------------------------------------------------------------------


def growth(values: Mapping[str, Any]) -> str:
    """Return the table of costs at growing numbers of objects."""
    lines = [
        "| axis | CPU seconds at each size | exponent | longest PING | broker's CPU in it | memory |",
        "|---|---|---:|---:|---:|---:|",
        *map(growth_row, values["rows"]),
    ]
    text = (
        "CPU of the broker; in rows marked *(client)* or *(pulsar-client)*, of the client; in those marked "
        "*(Apache Pulsar)*, of a standalone Apache Pulsar 4.0.4 just started. Behind a +: the client's "
        "garbage collector, which visits all objects of the program when their number has grown by a "
        "quarter. The exponent is fitted from the second size on, without the collector: 1 is in proportion. "
        "The PING of a calm connection, the broker's CPU "
        "in its longest wait and the broker's memory are those at the largest size; there is no PING where "
        f"the broker ends. {where(values)}."
    )
    return "\n".join([text, "", *lines, "", "`python -m benchmarks.growth --publish` made this."])


def growth_row(row: Mapping[str, Any]) -> str:
    """Return one axis as a row of the table."""
    passes = {count: f" + {cpu:.3f}" for count, cpu in row.get("collector", {}).items() if cpu >= 0.0005}
    costs = ", ".join(
        f"{int(count):,}: {cpu:.3f}{passes.get(count, '')}" for count, cpu in row["cpu"].items()
    )
    waits = " | ".join(f"{row[each] * 1e3:.0f} ms" if row[each] else "" for each in ("wait", "wait_cpu"))
    return f"| {row['axis']} | {costs} | {row['exponent']:.2f} | {waits} | {row['megabytes']:.0f} MB |"


# --- soak ----------------------------------------------------------------------------------------------


def soak(values: Mapping[str, Any]) -> str:
    """Return what an hour under load showed: the checks, and each quarter's figures."""
    checks, samples = values["checks"], values["samples"]
    lines = [
        "| quarter | receipts a second | receipt p50 | p99 | delivery p99 | broker's memory | descriptors "
        "| broker's CPU | data folder | offloaded |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    step = max(1, len(samples) // 4)
    for number in range(min(4, len(samples))):
        quarter = samples[number * step : (number + 1) * step]
        quiet = [each for each in quarter if not each["is_after_kill"]] or quarter

        def median(name: str, of: list[dict[str, Any]] = quiet) -> float:
            return statistics.median(each[name] for each in of)

        lines.append(
            f"| {number + 1} | {median('receipts') / 10:,.0f} | {median('receipt_p50_ms'):.1f} ms "
            f"| {median('receipt_p99_ms'):.0f} ms | {median('delivery_p99_ms'):.0f} ms "
            f"| {median('broker_megabytes'):.0f} MB | {median('broker_descriptors'):.0f} "
            f"| {median('broker_cpu') / 10:.0%} of a core | {median('store_megabytes'):,.0f} MB "
            f"| {median('offloaded_megabytes'):,.0f} MB |"
        )
    rate = f"{values['rate']:,.0f} messages a second" if values["rate"] else "as many messages as possible"
    text = (
        f"{checks['receipted']:,} messages with a receipt in {values['minutes']:g} minutes and "
        f"{checks['kills']} kills: {checks['missing']} missing, {checks['gaps']} out of order, "
        f"{checks['again']} redelivered after a confirmed acknowledgement, {checks['failed']} failed; "
        f"{checks['wrong_values']} compacted keys without their last value. Offered: {rate} to "
        "16 partitions. Medians of samples of ten seconds; those within 20 s after a kill are left out. "
        f"{where(values)}."
    )
    picture = "![An hour under load: receipts, their latency, memory and descriptors](proof/soak.svg)"
    return "\n".join([text, "", *lines, "", picture, "", f"`{_soak_command(values)}` made this."])


def _soak_command(values: Mapping[str, Any]) -> str:
    options = f" --minutes {values['minutes']:g}" if values["minutes"] != 60 else ""
    return (
        f"python -m benchmarks.soak{options}"
        + (f" --rate {values['rate']:g}" if values["rate"] else "")
        + " --publish"
    )


def draw_soak(values: Mapping[str, Any], path: Path) -> None:
    """Draw latency, memory and descriptors over the time of a soak."""
    from geminga.tuning.pictures import new_figure, save

    samples = values["samples"]
    minutes = [each["seconds"] / 60 for each in samples]
    rows = (
        ("receipts a second", [each["receipts"] / 10 for each in samples], False),
        ("receipt p99, ms", [each["receipt_p99_ms"] for each in samples], True),
        ("broker's memory, MB", [each["broker_megabytes"] for each in samples], False),
        ("descriptors", [each["broker_descriptors"] for each in samples], False),
    )
    figure = new_figure(9, 7)
    for place, (name, column, is_logarithmic) in enumerate(rows, start=1):
        axes = figure.add_subplot(len(rows), 1, place)
        axes.plot(minutes, column, linewidth=1, color="#2a7fb8")
        for minute, each in zip(minutes, samples, strict=True):
            if each["is_after_kill"]:
                axes.axvspan(minute - 1 / 6, minute, color="#c8743c", alpha=0.25, linewidth=0)
        axes.set_ylabel(name, fontsize=8)
        axes.tick_params(labelsize=8)
        if is_logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes; shaded: 20 s after a kill -9", fontsize=8)
    save(figure, path)


# --- an interpreter without its lock -------------------------------------------------------------------


def unlocked(values: Mapping[str, Any]) -> str:
    """Return costs and gains of an interpreter without the GIL; ``at best`` is computed, the rest
    measured."""
    lines = [
        "| | interpreter | CPU, µs a message | in the application's threads | at best | measured |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in map(Row, values["rows"]):
        best = row.cpu
        if row.who.endswith("lock off"):
            # The loop's thread and the application's each have a core.
            found = re.search(r"(\d+) threads?$", row.work)
            best = max(row.cpu - row.thread, row.thread / (int(found[1]) if found else 1))
        cpu = f"{row.cpu:.2f} | {row.thread:.2f}"
        lines.append(f"| {row.work} | {row.who} | {cpu} | {rate(1e6 / best)} | {rate(row.rate)} |")
    lines += ["", f"`python -m benchmarks.free_threading --publish` made this: {where(values)}."]
    return "\n".join(lines)


def spark_jobs(values: Mapping[str, Any]) -> str:
    """Return the table of Spark's everyday jobs: the lowest CPU of the runs, and their median time."""
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in values["rows"]:
        found.setdefault(row["work"], {}).setdefault(row["who"], []).append(row)
    lines = ["| job | Geminga | beside it | | CPU: Geminga is × |", "|---|---|---|---|---:|"]
    for work, parties in found.items():
        cpu = {who: min(row["cpu_seconds"] for row in rows) for who, rows in parties.items()}
        cells = {
            who: f"CPU {cpu[who]:.1f} s, {statistics.median(row['seconds'] for row in rows):.1f} s"
            for who, rows in parties.items()
        }
        (peer,) = parties.keys() - {OURS}
        lines.append(f"| {work} | {cells[OURS]} | {peer} | {cells[peer]} | {cpu[peer] / cpu[OURS]:.2f} |")
    text = (
        f"Whole queries over {values['messages']:,} messages in batches, their start included: the lowest "
        f"CPU of driver, JVM and workers and the median time of {values['runs']} runs in turn, after a "
        f"warm-up. {where(values)}."
    )
    return "\n".join([text, "", *lines, "", "`python -m benchmarks.spark_jobs --publish` made this."])


def _on(broker: str, draw: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    """Return a form of the everyday programs that draws the figures of one broker."""

    def drawn(values: Mapping[str, Any]) -> str:
        if broker not in values:
            return f"Not published yet: `{_command(broker)}` measures it."
        return draw(values[broker])

    return drawn


FORMS: dict[tuple[str, str], Callable[[Mapping[str, Any]], str]] = {
    ("everyday", "embedded"): _on("embedded", lambda values: everyday(values, "embedded")),
    ("everyday", "apache"): _on("apache", lambda values: everyday(values, "apache")),
    ("everyday", "batching"): _on("embedded", batching),
    ("everyday", "many"): _on("embedded", many),
    ("growth", "table"): growth,
    ("idle", "table"): idle,
    ("latency", "table"): latency,
    ("soak", "table"): soak,
    ("free_threading", "unlocked"): unlocked,
    ("spark_jobs", "table"): spark_jobs,
}
"""The texts that pages show, by the name of their figures in ``docs/proof`` and their form."""
