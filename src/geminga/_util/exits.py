"""Shutdown order at the interpreter's end: open clients first, then brokers, in any order of import.

Clients send pending messages, which brokers of the same process then store. Work that cannot be ended, such
as a request to a remote store that does not answer, is listed in `unfinished`: a completed program exits
without waiting for it (`leave`), unlike the interpreter.
"""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NoReturn

unfinished: set[str] = set()
"""Descriptions of pending work that is not waited for."""

_steps: dict[str, list[Callable[[], None]]] = {"clients": [], "brokers": []}


def at_exit(whose: Literal["clients", "brokers"], step: Callable[[], None]) -> None:
    """Have ``step`` called at the interpreter's end, those of clients before those of brokers."""
    _steps[whose].append(step)


def end() -> None:
    """Run the steps: at the interpreter's end, or before a process exits without one."""
    for steps in _steps.values():
        for step in steps:
            step()


def end_at_once(code: int) -> NoReturn:
    """Run the steps and end the process without the interpreter's own shutdown."""
    try:
        end()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or None
                stream.flush()
    finally:
        os._exit(code)


def leave(code: int) -> NoReturn:
    """End a program that has completed its work."""
    if unfinished:
        end_at_once(code)
    sys.exit(code)


atexit.register(end)
