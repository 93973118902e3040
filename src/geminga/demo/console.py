"""Output of the demo: plain lines, or JSON on request."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LINE_SECONDS = 3.0
"""Interval of progress lines."""
PROOF_LINES = {
    "published": "published",
    "rows": "rows in the lake",
    "windows": "in the lake's windows",
    "messages": "in the rollup's messages",
}
Update = Callable[[str, int, str], None]
"""Called with a title, the amount done, and a note."""


class Console:
    """Prints text; with ``as_json`` to standard error, and the summary as JSON to standard output."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._started = time.perf_counter()

    def step(self, text: str) -> None:
        """Print the start of a new part of the work."""
        self._print(f"{time.perf_counter() - self._started:6.1f} s  {text}")

    def line(self, text: str) -> None:
        """Print a detail of the current part."""
        self._print(f"          {text}")

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    @contextmanager
    def progress(self, titles: Sequence[str], total: int) -> Iterator[Update]:
        """Print a progress line from time to time, and at the end if it has changed; no part goes back."""
        most = dict.fromkeys(titles, 0)
        parts, last, printed = dict.fromkeys(titles, "0%"), "", time.monotonic()

        def show() -> None:
            nonlocal last, printed
            line, printed = ", ".join(f"{title} {part}" for title, part in parts.items()), time.monotonic()
            if line != last:
                self.step(f"{line} of {total:,}")
                last = line

        def update(title: str, done: int, note: str = "") -> None:
            most[title] = max(most[title], min(done, total))
            parts[title] = f"{most[title] / max(1, total):.0%}{f' ({note})' if note else ''}"
            if time.monotonic() - printed >= LINE_SECONDS:
                show()

        yield update
        show()

    def summary(self, summary: dict[str, Any]) -> None:
        """Print the result: proof, rates, and files."""
        if self.as_json:
            print(json.dumps(summary, default=str), file=sys.stdout, flush=True)
            return
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
        equal = summary["proof"]["is_equal"]
        self.step("Done: nothing lost, nothing doubled" if equal else "NOT accounted for")

    def _proof(self, proof: dict[str, Any]) -> None:
        self.step("Every event accounted for:")
        published = proof["published"]
        for name, title in PROOF_LINES.items():
            one = proof[name]
            mark = "" if name == "published" else "equal" if one == published else "DIFFERENT"
            self.line(f"{title:<26}{one['count']:>9,} events, sum of CRC-32 {one['crc32_sum']:,}  {mark}")
        rollup = proof["rollup"]
        self.line(
            f"the rollup: {rollup['windows']:,} windows in the lake, {rollup['messages']:,} messages in its "
            f"topic, {'the same ones' if rollup['is_equal'] else 'and they DIFFER'}"
        )
