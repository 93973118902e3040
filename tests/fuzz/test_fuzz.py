"""Mutated inputs of every decoder of foreign bytes: each is decoded, or refused by an error named for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import FOUND, failure, fuzz
from tests.fuzz.targets import TARGETS

SEED = 739_948
"""Other seeds: ``python -m tests.fuzz --seed N``."""


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_decoded(name):
    for data in TARGETS[name].seeds():
        TARGETS[name].decode(data)


@pytest.mark.parametrize("name", [pytest.param(name, id=f"{name}-seed-{SEED}") for name in TARGETS])
def test_mutated_inputs_are_decoded_or_refused(name):
    assert fuzz(name, 1500, SEED) == 0


@pytest.mark.parametrize(
    "path", sorted(FOUND.rglob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_inputs_that_once_failed_are_decoded_or_refused(path):
    assert failure(TARGETS[path.parent.name], path.read_bytes()) == ""


def test_the_command_line_fuzzes_one_target():
    command = [sys.executable, "-m", "tests.fuzz", "--target", "message-id-text", "--executions", "10"]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("message-id-text: 10 executions")
