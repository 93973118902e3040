"""Signals at every instruction: what a handler does, done on top of a call after each of its steps.

CPython runs a signal's handler between two instructions of the main thread. A trace function runs at the same
places and on top of the same frames, so that every one of them can be tried in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import geminga

_PACKAGE = geminga.__file__.rsplit("/", 1)[0]


class Interruption:
    """Runs ``action`` after ``steps`` instructions of this package's code in the calls that it wraps."""

    def __init__(self, steps: int, action: Callable[[], None]) -> None:
        self.happened = False
        self._left = steps
        self._action = action

    def __call__(self, call: Callable[[], Any]) -> Any:
        previous = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            return call()
        finally:
            sys.settrace(previous)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.happened or not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes = True
        return self._on_step

    def _on_step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and not self.happened:
            self._left -= 1
            if self._left < 0:
                self.happened = True
                self._action()
        return self._on_step


def interruptions(action: Callable[[], None], *, every: int = 1) -> Iterator[Interruption]:
    """One for each ``every``-th instruction, until a call has no more."""
    steps = 0
    while True:
        interruption = Interruption(steps, action)
        yield interruption
        if not interruption.happened:
            return
        steps += every


class Raised(Exception):
    """What a handler raises, as KeyboardInterrupt is."""


def raise_it() -> None:
    raise Raised
