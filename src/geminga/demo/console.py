"""What the demo shows: progress bars on a terminal, plain lines elsewhere, JSON when asked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Console:
    """Prints for people; with ``as_json`` only the summary, as one line of JSON."""

    def __init__(self, *, as_json: bool = False) -> None:
        from rich.console import Console as RichConsole

        self.as_json = as_json
        self._rich = RichConsole(stderr=as_json, highlight=False)
        self._started = time.perf_counter()

    def step(self, text: str) -> None:
        """A new part of the work begins."""
        self._rich.print(f"[dim]{time.perf_counter() - self._started:6.1f} s[/dim]  [bold]{text}[/bold]")

    def line(self, text: str) -> None:
        """A detail of the current part."""
        self._rich.print(f"          {text}")

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar on a terminal; elsewhere one line when the work begins."""
        if not self._rich.is_terminal:
            self.step(title)
            yield lambda done: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("          {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._rich) as bar:
            task = bar.add_task(title, total=total)
            yield lambda done: bar.update(task, completed=min(done, total))

    def summary(self, summary: dict[str, Any]) -> None:
        """The result: the proof, the rates, and what the flights say."""
        if self.as_json:
            print(json.dumps(summary, default=str), file=sys.stdout, flush=True)
            return
        from rich import box
        from rich.table import Table

        airlines = Table(box=box.SIMPLE, title="Flights from New York City in 2013, the most punctual first")
        for title in ("airline", "flights", "on time", "mean delay", "cancelled"):
            airlines.add_column(title, justify="left" if title == "airline" else "right")
        for row in summary["airlines"]:
            airlines.add_row(
                row["airline"], f"{row['flights']:,}", f"{row['on_time']:.1%}",
                f"{row['mean_delay']:.1f} min", f"{row['cancelled']:.1%}",
            )  # fmt: skip
        self._rich.print(airlines)
        proof = Table(box=box.SIMPLE, title="Every event accounted for")
        for title in ("", "events", "sum of CRC-32", ""):
            proof.add_column(title, justify="right" if title else "left")
        published = summary["proof"]["published"]
        for name, title in (
            ("published", "published"),
            ("rows", "rows in the lake"),
            ("windows", "in the windows"),
        ):
            one = summary["proof"][name]
            mark = "[green]equal[/green]" if one == published else "[red]DIFFERENT[/red]"
            proof.add_row(
                title, f"{one['count']:,}", f"{one['crc32_sum']:,}", mark if name != "published" else ""
            )
        self._rich.print(proof)
        for one in summary["published"]:
            self.line(
                f"published by {one['how']}: {one['rows'] / one['seconds']:,.0f} events/s, "
                f"{one['bytes'] / one['seconds'] / 1e6:.0f} MB/s"
            )
        rows = sum(r["rows"] for r in summary["spark"])
        seconds = sum(r["seconds"] for r in summary["spark"])
        self.line(
            f"streamed by Spark: {rows:,} rows in {seconds:.0f} s = {rows / seconds:,.0f} rows/s, two queries"
        )
        self.line(f"the lake: {summary['lake']['flights']}")
        self.line(f"          {summary['lake']['delays']} ({summary['windows']:,} windows)")
        self.step("Done: nothing lost, nothing doubled" if self._equal(summary) else "NOT accounted for")

    @staticmethod
    def _equal(summary: dict[str, Any]) -> bool:
        proof = summary["proof"]
        return bool(proof["published"] == proof["rows"] == proof["windows"])
