"""Deleting the files of offloaded ledgers that are nobody's: of ledgers that are gone, or left by errors.

A file is taken out of the manifest, deleted, and forgotten, in this order, so that nothing ever names what is
not there. But the manifest needs room to be written, and a place that is full would stay full: then files go
first. Who reads the manifest meanwhile asks the broker for what is not there. What cannot be deleted is
tried again, for the store's keys say that it may be there (`geminga.ledger.tier_catalog`).
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
"""So long after files could not be deleted it is tried again."""
CLAIM_CHECKED_SECONDS = 5.0
"""So long after the claim was read files are deleted without reading it again."""


class SweptTier(Protocol):
    """What this needs of the tiered store."""

    place: OffloadStorage
    catalog: TierCatalog
    store_name: str
    claim: StorageClaim

    @property
    def may_sweep(self) -> bool:
        """Else the next start finds the files, or whoever the place is to belong to."""

    def under_way(self) -> Set[str]:
        """The ids of files that are being written."""

    def listing(self, owner: str, without: Set[str]) -> Callable[[], None]:
        """What brings the manifest up to what there is, without some files, on the worker's thread."""

    def work(self, job: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        """Run a job on the worker's thread, ``then`` on the owner's."""

    def call_in(self, seconds: float, what: Callable[[], None]) -> None: ...


class OrphanSweeper:
    """See the module; on the owner's thread."""

    def __init__(self, tier: SweptTier) -> None:
        self._tier = tier

    def sweep(self) -> None:
        """Delete what nobody owns. Raises `StoreError`."""
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
        """The same, later if it can't be done now."""
        try:
            self.sweep()
        except StoreError as error:
            logger.debug("files that are nobody's are looked for later: %s", error)
            self._later()

    def _later(self) -> None:
        self._tier.call_in(AGAIN_SECONDS, self.sweep_again)

    def remove_files(self, owner: str, suspects: list[OrphanCandidate]) -> None:
        """Take files that are nobody's out of the manifest, delete and forget them; later if need be."""
        tier = self._tier
        if not tier.may_sweep:
            return
        try:
            save = tier.listing(owner, {each.uuid for each in suspects})
        except StoreError as unread:
            logger.error("files of ledgers that are gone cannot be deleted now: %s", unread)
            self._later()
            return

        def removed(error: Exception | None) -> None:
            if error is not None:
                logger.error(
                    "%s: files of ledgers that are gone cannot be deleted now: %s", tier.place.location, error
                )
                self._later()
                return
            try:
                for each in suspects:
                    tier.catalog.cleared(each.uuid)
            except StoreError as refused:
                logger.error(
                    "files of offloaded ledgers are deleted, which cannot be written down: %s", refused
                )

        tier.work(lambda: self._remove(owner, suspects, save), removed)

    # --- the worker's thread ---
    def _remove(self, owner: str, suspects: list[OrphanCandidate], save: Callable[[], None]) -> None:
        tier, folder, is_full = self._tier, folder_of(owner), False
        tier.claim.check()
        found = manifest.replaceable_head(tier.place, owner)
        if found is None or (found.store, found.topic) == (tier.store_name, owner):
            # Also where nothing changes: what a crash left of the last one's writing goes with it.
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
            tier.place.delete(f"{folder}/{each.file}")
        if is_full:
            save()
