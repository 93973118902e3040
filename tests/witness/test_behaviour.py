"""Small programs with both libraries: the same results, or those of a row of the migration page."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
client_behaviour: Any = importlib.import_module("client_behaviour")
client_differences: Any = importlib.import_module("client_differences")

EXPLAINED = {row.where: (row.theirs, row.ours) for row in client_differences.SEEN}


@pytest.mark.parametrize("name", client_behaviour.PROGRAMS)
def test_the_program_sees_the_same_or_what_its_row_says(broker, name):
    theirs, ours = client_behaviour.compared(name, broker.service_url)
    assert (theirs, ours) == EXPLAINED.get(name, (theirs, theirs)), "tools/client_differences.py"


def test_every_row_has_its_program_and_reason():
    assert EXPLAINED.keys() <= client_behaviour.PROGRAMS.keys()
    assert all(row.why for row in client_differences.SEEN)
