"""Output of the demo."""

import time
from types import SimpleNamespace

from geminga.demo import console
from geminga.demo.console import Console


def test_progress_is_sparse_lines(monkeypatch, capsys):
    clock = iter(range(100))
    monkeypatch.setattr(console, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: next(clock)}))
    shown = Console()
    with shown.progress(("flights", "delays"), 1000) as update:
        for done in range(100, 1100, 100):
            update("flights", done, f"lag {1000 - done} messages")
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= 5
    assert "flights 100% (lag 0 messages), delays 0% of 1,000" in lines[-1]


def test_progress_never_goes_back(capsys):
    with Console().progress(("flights",), 1000) as update:
        for done in (700, 300, 1200, 0):
            update("flights", done, "")
    assert "flights 100% of 1,000" in capsys.readouterr().out


def test_with_json_nothing_else_goes_to_standard_output(capsys):
    shown = Console(as_json=True)
    shown.step("working")
    shown.summary({"events": 1})
    captured = capsys.readouterr()
    assert captured.out == '{"events": 1}\n'
    assert "working" in captured.err
