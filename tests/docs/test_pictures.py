"""The pictures of the console in the documentation."""

from pathlib import Path

from tests.support.modules import module_at

ROOT = Path(__file__).parents[2]


def test_the_pictures_are_of_this_console():
    tool = module_at("draw_console", ROOT / "tools/draw_console.py")
    assert tool.DRAWN_FROM.read_text().strip() == tool.served_digest(), "the console has changed: 'make docs'"
    assert all((tool.TARGET / f"{name}.png").exists() for name in ("first-page", "subscription", "phone"))
