"""Storage of runs: each is written when it ends, so that a later call resumes after it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from geminga.errors import InvalidConfiguration
from geminga.tuning.measuring.outcome import RunOutcome


class RunLog:
    """Folder with the runs of a plan: ``conditions.json``, and ``runs.jsonl`` with a line per run."""

    def __init__(self, folder: Path, conditions: dict[str, Any]) -> None:
        """Open or create the folder. Raises `InvalidConfiguration` if its runs have other conditions."""
        folder.mkdir(parents=True, exist_ok=True)
        self._runs = folder / "runs.jsonl"
        self.outcomes: list[RunOutcome] = []
        now = json.loads(json.dumps(conditions))
        file = folder / "conditions.json"
        before = json.loads(file.read_text()) if file.exists() else now
        if before != now:
            raise InvalidConfiguration(
                f"{folder} holds runs under other conditions ({_difference(before, now)}): name another "
                "folder, or remove it"
            )
        file.write_text(json.dumps(now, indent=1))
        if self._runs.exists():
            self.outcomes += _outcomes(self._runs)

    @staticmethod
    def read(folder: Path) -> tuple[dict[str, Any], list[RunOutcome]]:
        """Read conditions and runs of a folder. Raises `InvalidConfiguration` if it has none."""
        try:
            conditions = json.loads((folder / "conditions.json").read_text())
            outcomes = _outcomes(folder / "runs.jsonl")
        except (OSError, ValueError) as error:
            raise InvalidConfiguration(f"{folder} holds no runs: {error}") from None
        if not outcomes:
            raise InvalidConfiguration(f"{folder} holds no runs: none has ended yet")
        return conditions, outcomes

    def keep(self, outcome: RunOutcome) -> None:
        """Append a run."""
        self.outcomes.append(outcome)
        with self._runs.open("a") as file:
            file.write(json.dumps(outcome.to_dict()) + "\n")


def _outcomes(file: Path) -> list[RunOutcome]:
    found = []
    for line in file.read_text().splitlines():
        with contextlib.suppress(ValueError):  # incomplete last line of a killed process
            found.append(RunOutcome.from_dict(json.loads(line)))
    return found


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    before, now = _flat(before), _flat(now)
    return ", ".join(
        f"{name} {before.get(name)!r} and now {now.get(name)!r}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries to keys ``outer.inner``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def machine(at: str = "") -> dict[str, Any]:
    """Describe the machine and the date of a measurement: today, or an ISO time."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "at": at[:10] or time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _processor() -> str:
    """Return the processor's name if the system has it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
