"""Tables of test cases: ``tests/cases/NAME.jsonl`` has one case a line."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "cases"


def cases(name: str) -> list[Any]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
