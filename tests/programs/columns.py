"""Running the programs with several libraries and brokers at once, and laying the outcomes side by side."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RUN = Path(__file__).with_name("run.py")
SECONDS_MAX = 600.0

Column = tuple[str, str, str]
"""Library, service URL, admin URL."""


def names() -> list[str]:
    """The programs, in the order in which they are listed."""
    listed = subprocess.run([sys.executable, str(RUN), "--list"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def run(columns: dict[str, Column]) -> dict[str, dict[str, Any]]:
    """The outcomes by column and program; the columns run at the same time, each in processes of its own."""

    def one(column: Column) -> dict[str, Any]:
        # A crash of the library in C++ takes all programs of a process with it: then each has its own.
        for way in ([], ["--apart"]):
            done = subprocess.run(
                [sys.executable, str(RUN), *column, *way], capture_output=True, text=True,
                timeout=SECONDS_MAX, check=False,
            )  # fmt: skip
            if column[0] != "pulsar" or done.returncode != -signal.SIGSEGV or _outcomes(done):
                break
        found = _outcomes(done)
        assert found, f"{column[0]} ended with {done.returncode}: {done.stderr[-3000:]}"
        return found

    with ThreadPoolExecutor(len(columns)) as pool:
        futures = {label: pool.submit(one, column) for label, column in columns.items()}
        return {label: future.result() for label, future in futures.items()}


def _outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the outcomes that a process printed on its last line; empty if it printed none."""
    try:
        outcomes: dict[str, Any] = json.loads(done.stdout.rstrip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return outcomes


def failed(outcome: Any) -> bool:
    """Whether a program raised, hung or died."""
    return isinstance(outcome, dict) and "raised" in outcome


def differing(outcomes: dict[str, Any]) -> str:
    """Return one program's outcomes by column if they differ or one failed; an empty text otherwise."""
    texts = {label: json.dumps(outcome, sort_keys=True) for label, outcome in outcomes.items()}
    if len(set(texts.values())) == 1 and not any(map(failed, outcomes.values())):
        return ""
    return "\n".join(f"{label}: {text[:2000]}" for label, text in texts.items())


def table(columns: dict[str, dict[str, Any]]) -> str:
    """Programs by columns: the same letter for the same outcome, ``-`` where it failed."""
    labels = list(columns)
    programs = list(columns[labels[0]])
    width = max(map(len, programs))
    lines = [f"{'':{width}}  " + "  ".join(labels)]
    for program in programs:
        seen: list[str] = []
        cells = []
        for label in labels:
            text = json.dumps(columns[label][program], sort_keys=True)
            if text not in seen:
                seen.append(text)
            mark = "-" if failed(columns[label][program]) else "ABCD"[seen.index(text)]
            cells.append(f"{mark:<{len(label)}}")
        lines.append((f"{program:{width}}  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)
