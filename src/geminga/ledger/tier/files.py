"""Files of a store's offloaded ledgers in the offload storage: their manifests, and deletion of unused files.

A file is removed from the manifest, deleted, and its suspicion removed, in this order, so that a manifest
never names a missing file. But writing the manifest needs space: if the storage is full, files are deleted
first; a reader of the manifest then asks the broker about missing files. Failed deletions are retried, as the
suspicion stays in the store's keys (`geminga.ledger.tier.catalog`).
"""

import logging
import time
from collections.abc import Callable, Set

from geminga.errors import StoreError
from geminga.ledger.files.space import is_no_space
from geminga.ledger.store import FileStore
from geminga.ledger.tier.catalog import OrphanCandidate, TierCatalog
from geminga.ledger.tier.claim import StorageClaim
from geminga.offload import manifest
from geminga.offload.manifest import ManifestWriter, OffloadedLedger
from geminga.offload.storage import OffloadStorage, folder_of

logger = logging.getLogger("geminga.ledger")

AGAIN_SECONDS = 60.0
"""Interval of retries after the claim could not be taken, or files not deleted."""
CLAIM_CHECKED_SECONDS = 5.0
"""Time after a check of the claim in which files are deleted without another check."""

Work = Callable[[Callable[[], None], Callable[[Exception | None], None]], None]


class TierFiles:
    """Files of a store's offloaded ledgers. Used on the owner's thread; jobs run on the worker's."""

    def __init__(
        self,
        local: FileStore,
        storage: OffloadStorage,
        claim: StorageClaim,
        work: Work,
        call_in: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """``work`` runs a job on the worker's thread, and its second argument on the owner's; ``call_in``
        calls a function on the owner's thread after some seconds."""
        self.local = local
        self.storage = storage
        self.claim = claim
        self.work = work
        self.call_in = call_in
        self.store_name = local.store_id.hex()
        self.catalog = TierCatalog(local)
        claim.has_files = bool(self.catalog.all_suspects()) or any(True for _ in self.catalog.everything())
        self.pending: dict[str, tuple[str, OffloadedLedger | None]] = {}
        """Files that are being written, by their id: owner, and record once the file is complete."""
        self.is_closing = False
        self._problem = ""
        self._manifests = ManifestWriter(storage, self.store_name)

    def open(self) -> None:
        """Take the claim on the storage, and delete unused files; retried later on errors."""
        self.work(self.claim.check, self._opened)

    def _opened(self, error: Exception | None) -> None:
        if error is None:
            self.sweep_again()
        elif self._may_delete:
            self._log(error)
            self.call_in(AGAIN_SECONDS, self.open)

    def _log(self, error: Exception | None) -> None:
        """Log an error, unless it equals the last one; None: the next error is logged in any case."""
        text = "" if error is None else str(error)
        if text and text != self._problem:
            logger.error("%s: cannot write or delete files now: %s", self.storage.location, text)
        self._problem = text

    def listing(self, owner: str, without: Set[str] = frozenset()) -> Callable[[], None]:
        """Return a job for the worker that updates the manifest, and leaves out the files in ``without``.

        The manifest lists recorded ledgers, and finished ones whose record is pending.
        """
        known = {each.ledger: each for each in self.catalog.of_owner(owner)}
        for uuid, (topic, record) in self.pending.items():
            if topic == owner and record is not None and uuid not in without:
                known.setdefault(record.ledger, record)

        def save() -> None:
            self.claim.check()
            self._manifests.save(owner, list(known.values()))

        return save

    def give_up(self, owner: str, records: list[OffloadedLedger]) -> None:
        """Remove the records, and delete the files once that is durable. Raises `StoreError`."""
        suspects = [OrphanCandidate(owner, each.ledger, each.uuid, each.file) for each in records]

        def given_up(error: StoreError | None) -> None:
            if error is None:
                self.remove_files(owner, suspects)

        for number, record in enumerate(records):
            self.catalog.give_up(owner, record, record.file, given_up if number == len(records) - 1 else None)

    def sweep(self) -> None:
        """Delete files that belong to no ledger, left by a crash or by storage that did not answer. Raises
        `StoreError`."""
        owners: dict[str, list[OrphanCandidate]] = {}
        for suspect in self.catalog.suspects() if self._may_delete else ():
            if suspect.uuid not in self.pending:
                owners.setdefault(suspect.owner, []).append(suspect)
        for owner, suspects in owners.items():
            self.remove_files(owner, suspects)

    def sweep_again(self) -> None:
        """Delete files that belong to no ledger; retries later on errors."""
        try:
            self.sweep()
        except StoreError as error:
            logger.debug("retrying the deletion of unused offloaded files later: %s", error)
            self.call_in(AGAIN_SECONDS, self.sweep_again)

    @property
    def _may_delete(self) -> bool:
        """Whether files may be deleted; if not, the next start or the holder of the claim deletes them."""
        return self.local.failure is None and not self.is_closing and not self.claim.refusal

    def remove_files(self, owner: str, suspects: list[OrphanCandidate]) -> None:
        """Remove files from the manifest, delete them, and remove their suspicions; retries on errors."""
        if not self._may_delete:
            return
        try:
            save = self.listing(owner, {each.uuid for each in suspects})
        except StoreError as unread:
            self._log(unread)
            self.call_in(AGAIN_SECONDS, self.sweep_again)
            return

        def removed(error: Exception | None) -> None:
            if error is not None:
                if self._may_delete:
                    self._log(error)
                    self.call_in(AGAIN_SECONDS, self.sweep_again)
                return
            self._log(None)
            try:
                for each in suspects:
                    self.catalog.cleared(each.uuid)
            except StoreError as refused:
                logger.error("offloaded files are deleted, but the store cannot record it: %s", refused)

        self.work(lambda: self._remove(owner, suspects, save), removed)

    # --- the worker's thread ---
    def _remove(self, owner: str, suspects: list[OrphanCandidate], save: Callable[[], None]) -> None:
        folder, is_full = folder_of(owner), False
        self.claim.check()
        found = manifest.replaceable_head(self.storage, owner)
        if found is None or (found.store, found.topic) == (self.store_name, owner):
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
                self.claim.check()
                checked = time.monotonic()
            self.storage.delete(f"{folder}/{each.file}")
        if is_full:
            save()
