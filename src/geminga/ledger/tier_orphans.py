"""Deletion of offloaded files that belong to no ledger: of deleted ledgers, or left by errors.

A file is removed from the manifest, deleted, and its suspicion removed, in this order, so that a manifest
never names a missing file. But writing the manifest needs space: if the storage is full, files are deleted
first; a reader of the manifest then asks the broker about missing files. Failed deletions are retried, as the
suspicion stays in the store's keys (`geminga.ledger.tier_catalog`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Set
from typing import Protocol

from geminga.errors import StoreError
from geminga.ledger.space import is_no_space
from geminga.ledger.tier_catalog import OrphanCandidate, TierCatalog
from geminga.ledger.tier_claim import StorageClaim
from geminga.offload import manifest
from geminga.offload.storage import OffloadStorage, folder_of

logger = logging.getLogger("geminga.ledger")

AGAIN_SECONDS = 60.0
"""Interval of retries after files could not be deleted."""
CLAIM_CHECKED_SECONDS = 5.0
"""Time after a check of the claim in which files are deleted without another check."""


class SweptTier(Protocol):
    """Parts of the tiered store that the sweeper uses."""

    storage: OffloadStorage
    catalog: TierCatalog
    store_name: str
    claim: StorageClaim

    @property
    def may_sweep(self) -> bool:
        """Whether files may be deleted now; else the next start or the next holder of the claim does it."""

    def under_way(self) -> Set[str]:
        """Return the ids of files that are being written."""

    def listing(self, owner: str, without: Set[str]) -> Callable[[], None]:
        """Return a job for the worker's thread that updates the manifest and leaves out some files."""

    def work(self, job: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        """Run a job on the worker's thread, ``then`` on the owner's."""

    def call_in(self, seconds: float, what: Callable[[], None]) -> None: ...


class OrphanSweeper:
    """Deletes files that belong to no ledger; on the owner's thread."""

    def __init__(self, tier: SweptTier) -> None:
        self._tier = tier

    def sweep(self) -> None:
        """Delete files that belong to no ledger. Raises `StoreError`."""
        if not self._tier.may_sweep:
            return
        under_way = self._tier.under_way()
        owners: dict[str, list[OrphanCandidate]] = {}
        for suspect in self._tier.catalog.suspects():
            if suspect.uuid not in under_way:
                owners.setdefault(suspect.owner, []).append(suspect)
        for owner, suspects in owners.items():
            self.remove_files(owner, suspects)

    def sweep_again(self) -> None:
        """Delete files that belong to no ledger; retries later on errors."""
        try:
            self.sweep()
        except StoreError as error:
            logger.debug("retrying the deletion of unused offloaded files later: %s", error)
            self._later()

    def _later(self) -> None:
        self._tier.call_in(AGAIN_SECONDS, self.sweep_again)

    def remove_files(self, owner: str, suspects: list[OrphanCandidate]) -> None:
        """Remove files from the manifest, delete them, and remove their suspicions; retries on errors."""
        tier = self._tier
        if not tier.may_sweep:
            return
        try:
            save = tier.listing(owner, {each.uuid for each in suspects})
        except StoreError as unread:
            logger.error("cannot delete files of deleted ledgers now: %s", unread)
            self._later()
            return

        def removed(error: Exception | None) -> None:
            if error is not None:
                logger.error(
                    "%s: cannot delete files of deleted ledgers now: %s", tier.storage.location, error
                )
                self._later()
                return
            try:
                for each in suspects:
                    tier.catalog.cleared(each.uuid)
            except StoreError as refused:
                logger.error("offloaded files are deleted, but the store cannot record it: %s", refused)

        tier.work(lambda: self._remove(owner, suspects, save), removed)

    # --- the worker's thread ---
    def _remove(self, owner: str, suspects: list[OrphanCandidate], save: Callable[[], None]) -> None:
        tier, folder, is_full = self._tier, folder_of(owner), False
        tier.claim.check()
        found = manifest.replaceable_head(tier.storage, owner)
        if found is None or (found.store, found.topic) == (tier.store_name, owner):
            # Done even if nothing changes, as saving also removes pages left by a crash.
            try:
                save()
            except OSError as error:
                if not is_no_space(error):
                    raise
                is_full = True
        checked = time.monotonic()
        for each in suspects:
            if time.monotonic() - checked > CLAIM_CHECKED_SECONDS:
                tier.claim.check()
                checked = time.monotonic()
            tier.storage.delete(f"{folder}/{each.file}")
        if is_full:
            save()
