"""Exits: what nobody has closed when the interpreter ends is ended in an order, whatever was loaded first.

Clients send what is pending; only then do brokers of the same process take it in and write it down.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Literal

_steps: dict[str, list[Callable[[], None]]] = {"clients": [], "brokers": []}


def at_exit(whose: Literal["clients", "brokers"], step: Callable[[], None]) -> None:
    """Have ``step`` called at the interpreter's end, those of clients before those of brokers."""
    _steps[whose].append(step)


def end() -> None:
    """Take the steps: at the interpreter's end, and where a process ends without one."""
    for steps in _steps.values():
        for step in steps:
            step()


atexit.register(end)
