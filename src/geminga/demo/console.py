"""Output of the demo: progress bars on a terminal, plain lines elsewhere, JSON on request."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LINE_SECONDS = 3.0
"""Interval of progress lines without a terminal."""
PROOF_LINES = {
    "published": "published",
    "rows": "rows in the lake",
    "windows": "in the lake's windows",
    "messages": "in the rollup's messages",
}
Update = Callable[[str, int, str], None]
"""Called with a title, the amount done, and a note."""


class Console:
    """Prints text; with ``as_json`` only the summary, as one line of JSON."""

    def __init__(self, *, as_json: bool = False) -> None:
        from rich.console import Console as RichConsole

        self.as_json = as_json
        self._rich = RichConsole(stderr=as_json, highlight=False)
        self._started = time.perf_counter()

    def step(self, text: str) -> None:
        """Print the start of a new part of the work."""
        self._rich.print(
            f"[dim]{time.perf_counter() - self._started:6.1f} s[/dim]  [bold]{text}[/bold]", soft_wrap=True
        )

    def line(self, text: str) -> None:
        """Print a detail of the current part."""
        self._rich.print(f"          {text}", soft_wrap=True)

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show one progress bar, as `many` does."""
        with self.many((title,), total) as update:
            yield lambda done: update(title, done, "")

    @contextmanager
    def many(self, titles: Sequence[str], total: int) -> Iterator[Update]:
        """Show a bar per title on a terminal, else a progress line from time to time; none goes back."""
        most = dict.fromkeys(titles, 0)

        def highest(title: str, done: int) -> int:
            most[title] = max(most[title], min(done, total))
            return most[title]

        if not self._rich.is_terminal:
            yield from self._lines(titles, total, highest)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("          {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[note]}"),
        )
        with Progress(*columns, console=self._rich) as bar:
            tasks = {title: bar.add_task(title, total=total, note="") for title in titles}
            yield lambda title, done, note: bar.update(
                tasks[title], completed=highest(title, done), note=note
            )

    def _lines(
        self, titles: Sequence[str], total: int, highest: Callable[[str, int], int]
    ) -> Iterator[Update]:
        """Print a progress line from time to time, and at the end if it has changed."""
        parts, last, told = dict.fromkeys(titles, "0%"), "", time.monotonic()

        def tell() -> None:
            nonlocal last, told
            line, told = ", ".join(f"{title} {part}" for title, part in parts.items()), time.monotonic()
            if line != last:
                self.step(f"{line} of {total:,}")
                last = line

        def update(title: str, done: int, note: str) -> None:
            parts[title] = f"{highest(title, done) / max(1, total):.0%}{f' ({note})' if note else ''}"
            if time.monotonic() - told >= LINE_SECONDS:
                tell()

        yield update
        tell()

    def summary(self, summary: dict[str, Any]) -> None:
        """Print the result: proof, rates, and statistics of the flights."""
        if self.as_json:
            print(json.dumps(summary, default=str), file=sys.stdout, flush=True)
            return
        self._airlines(summary["airlines"])
        self._proof(summary["proof"])
        for one in summary["published"]:
            self.line(
                f"published by {one['how']}: {one['rows'] / one['seconds']:,.0f} events/s, "
                f"{one['bytes'] / one['seconds'] / 1e6:.0f} MB/s"
            )
        spark = summary["spark"]
        self.line(
            f"with parsing, joins, windows and files, after the kill: "
            f"{spark['rows'] / spark['seconds']:,.0f} rows/s in {len(spark['queries'])} queries side by side"
        )
        for name, table in summary["lake"].items():
            self.line(f"the lake's {name}: {table['path']} ({table['rows']:,} rows, files: {table['files']})")
        self.line(f"the picture: {summary['picture']}")
        equal = summary["proof"]["is_equal"]
        self.step("Done: nothing lost, nothing doubled" if equal else "NOT accounted for")

    def _airlines(self, airlines: Sequence[dict[str, Any]]) -> None:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE, title="Flights from New York City in 2013, the most punctual first")
        for title in ("airline", "flights", "on time", "mean delay", "cancelled"):
            table.add_column(title, justify="left" if title == "airline" else "right")
        for row in airlines:
            table.add_row(
                row["airline"], f"{row['flights']:,}", f"{row['on_time']:.1%}",
                f"{row['mean_delay']:.1f} min", f"{row['cancelled']:.1%}",
            )  # fmt: skip
        self._rich.print(table)

    def _proof(self, proof: dict[str, Any]) -> None:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE, title="Every event accounted for")
        for title in ("", "events", "sum of CRC-32", ""):
            table.add_column(title, justify="right" if title else "left")
        published = proof["published"]
        for name, title in PROOF_LINES.items():
            one = proof[name]
            mark = "[green]equal[/green]" if one == published else "[red]DIFFERENT[/red]"
            table.add_row(
                title, f"{one['count']:,}", f"{one['crc32_sum']:,}", mark if name != "published" else ""
            )
        self._rich.print(table)
        rollup = proof["rollup"]
        self.line(
            f"the rollup: {rollup['windows']:,} windows in the lake, {rollup['messages']:,} messages in its "
            f"topic, {'the same ones' if rollup['is_equal'] else 'and they DIFFER'}"
        )
