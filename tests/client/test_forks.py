"""Programs whose callbacks fork: the child ends when it returns to the client; its parent is unaffected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import geminga

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def outcome() -> dict[str, dict[str, Any]]:
    program = Path(__file__).with_name("forking.py")
    with geminga.embedded() as broker:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", program, broker.service_url],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return outcome


NOTES: dict[str, list[str]] = {
    "unbatched_callback": ["child: told"] + 20 * ["parent: told"],
    "callback_of_a_failure": ["child: forked"],
    "callback_of_many": ["child: forked"],
    "callback_that_exits": ["child: forked", "child: forked"],
    "interceptor": ["child: forked"],
    "anything_else_on_the_loop": 50 * ["child: forked"],
    "listener": ["child: heard"] + 20 * ["parent: heard"],
    "table_view": ["child: forked"],
    "client_of_the_child": [
        "child: forked", "child: its callback was called", "parent: ['called back', 'pending', 'x']",
    ],
    "inherited": [
        "child: 0 connections", "child: forked", "child: refused", "parent: 1 connections", "parent: y",
    ],
    "signal_handler": ["child: refused", "parent: x"],
    "send_callback": sorted(["child: 10", "parent: received True", *(f"parent: {n}" for n in range(50))]),
}  # fmt: skip
CODES: dict[str, list[int]] = {"callback_that_exits": [7, 1], "signal_handler": [5]}


@pytest.mark.parametrize("name", NOTES)
def test_the_child_ends_and_its_parent_continues(outcome: dict[str, dict[str, Any]], name: str) -> None:
    assert sorted(outcome[name]["notes"]) == NOTES[name]
    assert outcome[name]["codes"] == CODES.get(name, [0] * len(outcome[name]["codes"]))
