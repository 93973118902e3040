"""Mutated inputs of every decoder of foreign bytes: each is decoded, or refused by an error named for it."""

import sys

import pytest

from tests.fuzz.__main__ import FOUND, failure, fuzz, main
from tests.fuzz.targets import TARGETS

SEED = 739_948
"""Other seeds: ``python -m tests.fuzz --seed N``."""


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_decoded(name):
    for data in TARGETS[name].seeds():
        TARGETS[name].decode(data)


@pytest.mark.rotating(len(TARGETS))
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_mutated_inputs_are_decoded_or_refused(name, seed):
    assert fuzz(name, 300, seed) == 0


@pytest.mark.parametrize(
    "path", sorted(FOUND.rglob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_inputs_that_once_failed_are_decoded_or_refused(path):
    assert failure(TARGETS[path.parent.name], path.read_bytes()) == ""


def test_the_command_line_fuzzes_one_target(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fuzz", "--target", "message-id-text", "--executions", "10"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("message-id-text: 10 executions")
