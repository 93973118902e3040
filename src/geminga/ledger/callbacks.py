"""Functions that run the owner's callbacks, at once or in steps, and log their exceptions."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVarTuple

from geminga.errors import StoreError
from geminga.ledger.api import Done

Args = TypeVarTuple("Args")

logger = logging.getLogger("geminga.ledger")

REPORTED_AT_ONCE: Final = 32
"""Callbacks per step: each may cause up to 50 µs of work, such as the creation of a topic."""


def run_callback(callback: Callable[[*Args], object], *args: *Args) -> None:
    """Run the callback; log an exception that it raises."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a store callback failed")


def run_callbacks(dones: Iterable[Done | None], error: StoreError | None) -> int:
    """Run callbacks in order; an exception is logged and does not stop the others. Returns how many ran."""
    count = 0
    rest = iter(dones)
    while True:
        try:
            for done in rest:
                if done is not None:
                    count += 1
                    done(error)
            return count
        except Exception:
            logger.exception("a store callback failed")


def run_in_steps(dones: Sequence[Done | None], error: StoreError | None) -> Iterator[int]:
    """Run callbacks in order, as `run_callbacks` does; each step yields how many it ran."""
    for start in range(0, len(dones), REPORTED_AT_ONCE):
        yield run_callbacks(dones[start : start + REPORTED_AT_ONCE], error)
