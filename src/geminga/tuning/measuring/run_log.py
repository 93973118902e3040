"""Runs on disk: each is written down when it ends, and a later call goes on where the last one stopped."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from geminga.errors import InvalidConfiguration
from geminga.tuning.measuring.outcome import Outcome


class RunLog:
    """A folder with the runs of one plan: ``conditions.json`` and a line of ``runs.jsonl`` for each run."""

    def __init__(self, folder: Path, conditions: dict[str, Any]) -> None:
        """Open or make the folder. Raises `InvalidConfiguration` when it holds runs of other conditions."""
        folder.mkdir(parents=True, exist_ok=True)
        self._runs = folder / "runs.jsonl"
        self.outcomes: list[Outcome] = []
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
            for line in self._runs.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last line of a process that was killed
                    self.outcomes.append(Outcome.from_dict(json.loads(line)))

    def keep(self, outcome: Outcome) -> None:
        """Write a run down."""
        self.outcomes.append(outcome)
        with self._runs.open("a") as file:
            file.write(json.dumps(outcome.to_dict()) + "\n")


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {before.get(name)!r} and now {now.get(name)!r}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    )


def machine() -> dict[str, Any]:
    """Where something was measured, and when."""
    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "at": time.strftime("%Y-%m-%d", time.gmtime()),
    }
