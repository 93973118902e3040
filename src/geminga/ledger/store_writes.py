"""Writes of an open store: their order, and the error that stopped them."""

from __future__ import annotations

import logging

from geminga.errors import StoreError
from geminga.ledger.api import Buffer, Done
from geminga.ledger.journal import Journal

logger = logging.getLogger("geminga.ledger")


class StoreWrites:
    """Passes records to the journal in the order of the calls. Used on the owner's thread."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.pending = journal.pending
        self.failure: StoreError | None = None
        """Error that stopped the store; None while it works."""
        self.refusal: StoreError | None = None
        """Error that refuses entries: ``failure``, or the one that the owner gave."""
        self.is_closed = False

    @property
    def are_well(self) -> bool:
        """Whether the store works and is open."""
        return self.failure is None and not self.is_closed

    def check(self) -> None:
        """Raise the error that stopped the store."""
        if self.failure is not None:
            raise self.failure

    def submit(self, kind: int, first: int, second: int, data: Buffer, done: Done | None) -> None:
        """Pass on a record; ``done`` is called when it is on the disk, or with the error."""
        self.pending.append((kind, first, second, data, done))
        if self.journal.idle:
            self.journal.wake()

    def refuse_entries(self, why: StoreError | None) -> None:
        self.refusal = self.failure or why

    def end(self, failure: StoreError) -> StoreError:
        """Refuse writes from now on, with the first error that ended them; returns that error."""
        self.failure = self.refusal = self.failure or failure
        return self.failure

    def stop(self, failure: StoreError, cause: Exception | None) -> None:
        """Refuse writes from now on because of an error, and log it."""
        if self.failure is None:
            failure.__cause__ = cause
            logger.error("%s", failure)
            self.end(failure)
