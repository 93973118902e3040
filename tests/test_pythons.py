"""Starting another process of the Python that runs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from geminga._util import pythons


def test_it_imports_what_this_process_does(tmp_path, monkeypatch):
    (tmp_path / "told.py").write_text("def main(): print('here')")
    odd: Any = [str(tmp_path), None, Path("/no/text"), b"/bytes", "", 7]
    monkeypatch.setattr(sys, "path", [*odd, *sys.path])
    arguments, environment = pythons.command("told")
    ended = subprocess.run(arguments, env=environment, capture_output=True, timeout=120, check=True)
    assert ended.stdout.strip() == b"here"


def test_a_program_with_python_inside_is_none(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/opt/program")
    with pytest.raises(pythons.NoPython, match="/opt/program"):
        pythons.command("told")
