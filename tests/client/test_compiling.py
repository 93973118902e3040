from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from geminga.client import compiling
from geminga.errors import InvalidConfiguration
from geminga.wire import compiled


class Process:
    """One that compiles, as long as the test wants."""

    def __init__(self) -> None:
        self.ended: int | None = None
        self.killed = False

    def poll(self) -> int | None:
        return self.ended

    def kill(self) -> None:
        self.killed = True

    def wait(self) -> None:
        self.ended = -9


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Nothing is known yet, and processes that are started are listed."""
    processes: list[Any] = []
    monkeypatch.setattr(compiled, "_state", compiled._State())
    monkeypatch.setattr(compiling, "_elsewhere", compiling._CompilerProcess())
    monkeypatch.setattr(compiling, "_start", lambda: processes.append(Process()) or processes[-1])
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_places", lambda: [tmp_path / "below" / "mark"])
    return processes


def test_loops_are_compiled_elsewhere_once_it_pays(started: list[Any]) -> None:
    assert not compiled.at_hand()
    compiled.note(compiled.MESSAGES_BEFORE_COMPILING - 1)
    assert not started
    compiled.note(1)
    compiled.note(1)
    (process,) = started
    assert not compiled.at_hand()
    compiled.leave_mark()
    process.ended = 0
    compiled.note(1)
    assert compiled.at_hand()
    assert len(started) == 1


def test_what_is_compiled_already_is_used_at_once(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.leave_mark()
    assert compiled.at_hand()
    monkeypatch.setattr(compiled, "_state", compiled._State())
    monkeypatch.setattr(compiled, "version", lambda name: "another")
    assert not compiled.at_hand()


@pytest.mark.parametrize("ended", [0, 1, -9])
def test_a_cache_that_cannot_be_written_is_logged_once(
    started: list[Any], ended: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert not compiled.at_hand()
    compiled.note(compiled.MESSAGES_BEFORE_COMPILING)
    started[0].ended = ended
    with caplog.at_level(logging.WARNING, "geminga"):
        for _ in range(3):
            compiled.note(1_000_000)
    assert not compiled.at_hand()
    assert len(started) == 1
    said = [record.getMessage() for record in caplog.records]
    assert len([each for each in said if "NUMBA_CACHE_DIR" in each]) == 1


def test_where_no_process_can_be_started_they_are_compiled_here(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "_state", compiled._State())
    monkeypatch.setattr(compiling, "_elsewhere", compiling._CompilerProcess())
    monkeypatch.setattr(compiled, "is_cached", lambda: False)
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    assert not compiled.at_hand()
    compiled.note(compiled.MESSAGES_BEFORE_COMPILING)
    assert compiled.at_hand()


def test_the_mark_is_in_the_cache_folder_of_numba(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert {mark.parent for mark in compiled._places()} == {tmp_path / "given"}
    assert not compiled.is_cached()
    compiled.leave_mark()
    assert compiled.is_cached()
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert compiled._places()[0].parent.name == "__pycache__"
    monkeypatch.setattr(compiled.os, "access", lambda path, mode: False)
    assert [mark.parent for mark in compiled._places()] == [tmp_path / "home" / "geminga"]
    assert not compiled.is_cached()
    compiled.leave_mark()
    assert compiled.is_cached()


def test_the_environment_decides(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for choice, expected in (("compiled", True), ("interpreted", False)):
        monkeypatch.setattr(compiled, "_state", compiled._State())
        monkeypatch.setenv(compiled.VARIABLE, choice)
        assert compiled.at_hand() is expected
        compiled.note(1 << 40)
        assert not started
    monkeypatch.setattr(compiled, "_state", compiled._State())
    monkeypatch.setenv(compiled.VARIABLE, "fast")
    with pytest.raises(InvalidConfiguration, match=r"GEMINGA_KERNELS='fast' .* auto, compiled, interpreted"):
        compiled.at_hand()


def test_a_program_that_ends_takes_it_along(started: list[Any]) -> None:
    compiled.at_hand()
    compiled.note(compiled.MESSAGES_BEFORE_COMPILING)
    compiling._end()
    assert started[0].killed
    compiling._end()


PROGRAM = """
import sys, time
start = time.perf_counter()
import pyarrow as pa
from geminga.client import compiling
from geminga.wire import compiled
from geminga.wire.columnar import encode_table
rows = compiled.MESSAGES_BEFORE_COMPILING
table = pa.table({"value": pa.array([b"x" * 100] * rows, pa.binary())})
first = encode_table(table)
took = time.perf_counter() - start
at_once = "numba" in sys.modules
while not compiled.at_hand():
    time.sleep(0.1)
    compiled.note(1)
    assert compiled.at_hand() or not compiling._elsewhere.finished
assert [bytes(batch.body) for batch in encode_table(table)] == [bytes(batch.body) for batch in first]
assert "numba" in sys.modules
print(at_once, took)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_fresh_environment(tmp_path: Path) -> None:
    """The first table waits for no compiler, later ones have its loops, and the next process has them."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    environment.pop(compiled.VARIABLE, None)
    for at_once in ("False", "True"):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        print(run.stdout)
        assert run.stdout.split()[0] == at_once
    assert len(list(tmp_path.glob("*.compiled"))) == 1
