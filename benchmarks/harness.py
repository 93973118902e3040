"""Parts that the benchmarks share: a measurement, CPU of processes, the table of ratios."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OURS = "Geminga"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run of one piece of work by one party. Rates are messages (or rows) a second."""

    work: str
    who: str
    messages: int
    seconds: float
    cpu_seconds: float | None = None
    """CPU of the process that is measured (client or broker; see ``work``), None if it is unknown."""
    note: str = ""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def cpu_microseconds(self) -> float | None:
        return None if self.cpu_seconds is None else self.cpu_seconds / self.messages * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure other than a rate: start time in ms, resident memory in MB. Smaller is better."""

    work: str
    who: str
    value: float
    unit: str


def emit(*results: Measurement | Figure) -> None:
    """Hand results to the parent process: a line of JSON each on standard output."""
    for result in results:
        print(json.dumps({"kind": type(result).__name__, **asdict(result)}), flush=True)


def collect(command: Sequence[str], *, timeout_seconds: float) -> list[Measurement | Figure]:
    """Run a benchmark in a process of its own and read what it emits; its errors go to ours."""
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout_seconds, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exited with {run.returncode}")
    results: list[Measurement | Figure] = []
    for line in run.stdout.splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        results.append(Measurement(**row) if row.pop("kind") == "Measurement" else Figure(**row))
    return results


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def cpu_seconds() -> float:
    """User and system CPU of this process, to the microsecond."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def process_cpu_seconds(pid: int) -> float:
    """User and system CPU of a process and its waited-for children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(f) for f in fields[11:15]) / _TICKS


def threads_cpu_seconds(pid: int) -> float:
    """User and system CPU of the threads that a process has now, to the nanosecond; 0 if it has ended."""
    total = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def io_bytes(pid: int, what: str) -> int:
    """Return a counter of ``/proc/PID/io``, 0 for a process that has ended.

    ``write_bytes`` are the bytes that it wrote to the disk, ``rchar`` those that it read.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            name, _, value = line.partition(": ")
            if name == what:
                return int(value)
    return 0


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def resident_megabytes(pid: int) -> float:
    """Resident set of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _rate(value: float) -> str:
    return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.1f} k/s"


def _median_of(rows: list[Measurement]) -> Measurement:
    return sorted(rows, key=lambda r: r.rate)[len(rows) // 2]


def table(results: Iterable[Measurement | Figure]) -> str:
    """Return a Markdown table: a row for each work and party, with its ratio to Geminga in the same run.

    A ratio above 1 means that Geminga is better (faster, smaller). Several runs give the median.
    """
    results = list(results)
    works: dict[str, dict[str, list[Measurement | Figure]]] = {}
    for result in results:
        works.setdefault(result.work, {}).setdefault(result.who, []).append(result)
    lines = [
        "| work | who | figure | CPU µs a message | Geminga is × | runs, note |",
        "|---|---|---|---|---|---|",
    ]
    for work, parties in works.items():
        ours = parties.get(OURS)
        for who, rows in parties.items():
            lines.append(f"| {work} | {who} | {_cells(rows, ours if who != OURS else None)} |")
    return "\n".join(lines)


def _cells(rows: list[Measurement | Figure], ours: list[Measurement | Figure] | None) -> str:
    if isinstance(rows[0], Figure):
        value = statistics.median(r.value for r in rows if isinstance(r, Figure))
        ratio = ""
        if ours:
            mine = statistics.median(r.value for r in ours if isinstance(r, Figure))
            ratio = f"{value / mine:.2f}" if mine else ""
        return f"{value:.1f} {rows[0].unit} |  | {ratio} | {len(rows)}"
    median = _median_of([r for r in rows if isinstance(r, Measurement)])
    cpu = "" if median.cpu_microseconds is None else f"{median.cpu_microseconds:.2f}"
    ratio = ""
    if ours:
        mine = _median_of([r for r in ours if isinstance(r, Measurement)])
        ratio = f"{mine.rate / median.rate:.2f}" if median.rate else ""
    note = f"{len(rows)}" + (f", {median.note}" if median.note else "")
    return f"{_rate(median.rate)} | {cpu} | {ratio} | {note}"
