"""Functions that run the owner's callbacks and log their exceptions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from geminga.errors import StoreError
from geminga.ledger.api import Done

logger = logging.getLogger("geminga.ledger")


def run_callback(callback: Callable[[], object]) -> None:
    """Run the callback; log an exception that it raises."""
    try:
        callback()
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
