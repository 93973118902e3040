"""Running the owner's callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from geminga.errors import StoreError
from geminga.ledger.api import Done

logger = logging.getLogger("geminga.ledger")


def run_callback(callback: Callable[[], object]) -> None:
    """Run it; what it raises is logged and ends here."""
    try:
        callback()
    except Exception:
        logger.exception("a store callback failed")


def run_callbacks(dones: Iterable[Done | None], error: StoreError | None) -> int:
    """Run them in order; one that raises is logged and keeps no other from running. Returns how many ran."""
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
