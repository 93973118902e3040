"""Signals at every instruction: run a handler's action on top of a call after each of its steps.

CPython runs a signal's handler between two instructions of the main thread. A trace function runs
between the same instructions and on top of the same frames, so that tests can try each of them in turn.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import geminga

_PACKAGE = geminga.__file__.rsplit("/", 1)[0]


_LOOKS = {
    dis.opmap[name] for name in ("RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX") if name in dis.opmap
}
"""After these instructions CPython looks whether a signal came; after no others."""


class Interruption:
    """Runs ``action`` after ``steps`` instructions of this package's code in the calls that it wraps.

    ``strict``: only those count after which CPython would run a signal's handler.
    """

    def __init__(self, steps: int, action: Callable[[], None], *, strict: bool = False) -> None:
        self.happened = False
        self._left = steps
        self._action = action
        self._strict = strict
        self._before: dict[FrameType, int] = {}
        """The instruction that each frame did last, or -1 where that called a function in Python."""

    def __call__(self, call: Callable[[], Any]) -> Any:
        previous = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            return call()
        finally:
            sys.settrace(previous)
            # Frames that refer to this object must not keep their objects until the garbage collector runs:
            # it may run during another interrupted call.
            self._before.clear()

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.happened or not frame.f_code.co_filename.startswith(_PACKAGE):
            if frame.f_back is not None:
                self._before[frame.f_back] = -1
            return None
        if frame.f_back is not None:
            self._before[frame.f_back] = -1
        frame.f_trace_opcodes = True
        return self._on_step

    def _on_step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and not self.happened:
            before = self._before.get(frame, -1)
            self._before[frame] = frame.f_code.co_code[frame.f_lasti]
            if self._strict and before not in _LOOKS:
                return self._on_step
            self._left -= 1
            if self._left < 0:
                self.happened = True
                self._action()
        return self._on_step


def interruptions(
    action: Callable[[], None], *, every: int = 1, strict: bool = False
) -> Iterator[Interruption]:
    """One for each ``every``-th instruction, until a call has no more."""
    steps = 0
    while True:
        interruption = Interruption(steps, action, strict=strict)
        yield interruption
        if not interruption.happened:
            return
        steps += every


class Raised(Exception):
    """Exception raised by a handler, like KeyboardInterrupt."""


def raise_it() -> None:
    raise Raised
