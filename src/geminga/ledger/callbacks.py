"""Running the owner's callbacks."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from geminga.errors import StoreError
from geminga.ledger.api import Done

logger = logging.getLogger("geminga.ledger")


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
