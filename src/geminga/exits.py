"""Exits: what nobody has closed when the interpreter ends is ended in an order, whatever was loaded first.

Clients send what is pending; only then do brokers of the same process take it in and write it down. What
can't be ended, such as a request to a store far away that does not answer, is `unfinished`: a program whose
work is done does not wait for it (`leave`), as the interpreter would.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NoReturn

unfinished: set[str] = set()
"""What is under way and not waited for; for people."""

_steps: dict[str, list[Callable[[], None]]] = {"clients": [], "brokers": []}


def at_exit(whose: Literal["clients", "brokers"], step: Callable[[], None]) -> None:
    """Have ``step`` called at the interpreter's end, those of clients before those of brokers."""
    _steps[whose].append(step)


def end() -> None:
    """Take the steps: at the interpreter's end, and where a process ends without one."""
    for steps in _steps.values():
        for step in steps:
            step()


def end_at_once(code: int) -> NoReturn:
    """Take the steps and end the process without the interpreter's own end."""
    try:
        end()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or None
                stream.flush()
    finally:
        os._exit(code)


def leave(code: int) -> NoReturn:
    """End the program whose work is done."""
    if unfinished:
        end_at_once(code)
    sys.exit(code)


atexit.register(end)
