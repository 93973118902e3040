"""The examples of the pages run: each page's blocks, one after the other, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import geminga

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "admin.md",
    "asyncio.md",
    "coming-from-pulsar-client.md",
    "consumers.md",
    "errors.md",
    "functions.md",
    "observability.md",
    "offloading.md",
    "producers.md",
    "readers.md",
    "schemas.md",
]

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, pulsar_broker: Any, pulsar_client: Any) -> None:
    blocks = list(re.finditer(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S))
    assert blocks
    names: dict[str, Any] = {"geminga": geminga, "broker": pulsar_broker, "client": pulsar_client}
    for block in blocks:
        lines_before = block.string.count("\n", 0, block.start(1))
        exec(compile("\n" * lines_before + block[1], str(DOCS / page), "exec"), names)
