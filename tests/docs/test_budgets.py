"""The budgets of size and clarity in ``tools/budgets.toml``: figures about the sources that may only fall."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.modules import module_at

TOOLS = Path(__file__).parents[2] / "tools"


def tool(name: str) -> ModuleType:
    """Return a module of ``tools/``, loaded once."""
    if name not in sys.modules:
        module_at(name, TOOLS / f"{name}.py")
    return sys.modules[name]


def test_no_figure_exceeds_its_budget():
    budgets = tool("budgets")
    above = budgets.exceeded(budgets.measured(), budgets.budgets())
    assert not above, "\n".join([*above, "Show what a figure counts: python tools/budgets.py --list NAME"])


def test_a_new_package_may_have_no_flagged_prose():
    exceeded = tool("budgets").exceeded({"flagged_prose": {"src/geminga/new": 1}}, {"flagged_prose": {}})
    assert exceeded == ["flagged_prose.src/geminga/new is 1; the budget is 0"]


@pytest.mark.parametrize(
    ("figures", "limits", "expected"),
    [
        ({"counts": {"cycles": 2}}, {"counts": {"cycles": 1}}, ["counts.cycles is 2; the budget is 1"]),
        ({"counts": {"cycles": 1}}, {"counts": {"cycles": 1}}, []),
        ({"counts": {"cycles": 0}}, {"counts": {"cycles": 1}}, []),
    ],
)
def test_a_figure_above_its_budget_is_reported(figures, limits, expected):
    assert tool("budgets").exceeded(figures, limits) == expected
