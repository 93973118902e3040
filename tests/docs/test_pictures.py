"""The pictures of the console in the documentation."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pictures_are_of_this_console() -> None:
    spec = importlib.util.spec_from_file_location("draw_console", ROOT / "tools/draw_console.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.DRAWN_FROM.read_text().strip() == tool.served_digest(), "the console has changed: 'make docs'"
    assert all((tool.TARGET / f"{name}.png").exists() for name in ("first-page", "subscription", "phone"))
