"""Claim on the storage of offloaded ledgers: one store may change the files, its copies only read them.

A copy of a store knows of the same files. If it trimmed or swept like the original, the original would lose
its only copy of entries. So a storage location is *claimed* (`geminga.offload.claim`), and a store without
the claim *borrows* the files: it reads them, but writes and deletes none, and keeps its local entries, as the
holder of the claim may delete the files.

The claim that an opening finds decides:

=========================================  =============================================================
no claim, and no files of ours             take the claim
no claim, but we have files or had it      wait for a claim: the storage may not be mounted
ours, but of another storage location      wait for the right one: this is the folder below the mount point
another instance's or store's              borrow: this is a copy (`geminga.ledger.identity`)
ours, from an unknown session              borrow: this is an older state of a store that continued elsewhere
ours, closed                               take the claim again
ours, still open                           wait: if it stays unchanged for QUIET_SECONDS, its holder is dead:
                                           take it; if it changes, borrow: this is the copy of a disk
=========================================  =============================================================

The holder renews its claim, and reads it before each change. No store depends on another one's clock, and
changes wait only for the storage itself. A store that borrows keeps a list of the files it would delete
(`geminga.ledger.tier_catalog`), until an administrator confirms that the other store is gone: `take_over`.
If two stores claim at the same moment, both read the claim again, and the one that wrote last holds it.

If the storage is full there is no space for another file, so the claim is overwritten in the existing file:
its holder must not seem dead, as its deletions are what frees space.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from geminga.errors import StoreError
from geminga.ledger import identity as identities
from geminga.ledger.filesystem import FileSystem
from geminga.ledger.identity import StoreIdentity, new_id
from geminga.ledger.space import is_no_space
from geminga.offload import claim as claims
from geminga.offload.claim import Claim, ClaimUnreadable
from geminga.offload.storage import OffloadStorage

logger = logging.getLogger("geminga.ledger")

BEAT_SECONDS = 15.0
"""Interval at which the holder renews its claim, and a waiting store reads it."""
QUIET_SECONDS = 50.0
"""Time after which an open claim that has not changed counts as abandoned."""


class StorageNotClaimed(StoreError):
    """The store does not hold the claim on the storage."""


class ClaimState(Enum):
    ASKING = "asking"
    HELD = "held"
    BORROWED = "borrowed"


class StorageClaim:
    """Claim of one store. Any thread may read `state` and `why`; all methods wait for the storage."""

    def __init__(
        self,
        storage: OffloadStorage,
        filesystem: FileSystem,
        folder: str,
        store_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = ClaimState.ASKING
        self.has_files = False
        """Whether the store has files there: then a storage location without a claim is a different one."""
        self.why = f"{storage.location}: the claim has not been read yet"
        """Message that says why the store may not change the storage."""
        self._storage = storage
        self._filesystem = filesystem
        self._folder = folder
        self._store = store_name
        self._clock = clock
        self._lock = threading.Lock()
        self._identity: StoreIdentity | None = None
        self._ours: Claim | None = None
        """Claim that we wrote last."""
        self._seen: tuple[Claim, float] | None = None
        """Claim that may be abandoned, and since when it has not changed."""
        self.problem = ""
        """Error of the last attempt to read or renew the claim; empty after a success."""
        self._due = float("-inf")
        self._is_done = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # --- life ---
    def start(self, decided: Callable[[], None]) -> None:
        """Read and renew the claim on a separate thread, which calls ``decided`` on changes of `state`."""
        self._thread = threading.Thread(
            target=self._run, args=(decided,), name="geminga-offload-claim", daemon=True
        )
        self._thread.start()

    def _run(self, decided: Callable[[], None]) -> None:
        while not self._stop.is_set():
            if self.keep():
                decided()
            self._stop.wait(max(0.0, self._due - self._clock()))
        if self._is_done:
            self._let_go()

    def close(self, *, is_done: bool, seconds_max: float) -> None:
        """Stop renewing the claim. ``is_done``: no changes are pending; the next opening then need not wait.

        Waits up to ``seconds_max`` for storage that does not answer.
        """
        self._is_done = is_done
        self._stop.set()
        if self._thread is not None:
            self._thread.join(seconds_max)
        elif is_done:
            self._let_go()

    @property
    def is_over(self) -> bool:
        """Whether no request to the storage is pending."""
        return self._thread is None or not self._thread.is_alive()

    def keep(self) -> bool:
        """Read or renew the claim if it is due; returns whether `state` or `problem` changed."""
        if self._clock() < self._due:
            return False
        before = self.state, self.problem
        with self._lock:
            try:
                self._look()
                self.problem = ""
            except (OSError, ClaimUnreadable, StorageNotClaimed) as error:
                self._complain(error)
            except Exception as error:  # exceptions of a storage library
                logger.debug("cannot read the claim", exc_info=True)
                self._complain(error)
        self._due = self._clock() + BEAT_SECONDS
        return (self.state, self.problem) != before

    def _complain(self, error: Exception) -> None:
        if str(error) != self.problem:
            self.problem = str(error)
            logger.warning("%s: cannot read or renew the claim now: %s", self._storage.location, error)

    # --- checks ---
    def check(self) -> None:
        """Return if the store holds the claim at this moment. Raises `StorageNotClaimed` or `OSError`."""
        with self._lock:
            if self.state is ClaimState.HELD:
                try:
                    found = claims.load(self._storage)
                except ClaimUnreadable as error:
                    raise StorageNotClaimed(str(error)) from error
                if self._is_ours(found):
                    return
                if found is not None:
                    self._check_home(self._known(), found)
                    self._borrow(found, "was taken over meanwhile")
                else:
                    raise StorageNotClaimed(f"the claim on {self._storage.location} is gone: is it mounted?")
            raise StorageNotClaimed(self.why)

    def _let_go(self) -> None:
        with self._lock:
            if self.state is ClaimState.HELD and self._ours is not None:
                try:
                    if self._is_ours(claims.load(self._storage)):
                        self._save(replace(self._ours, open=False))
                except Exception as error:
                    logger.debug("%s: cannot mark the claim as closed: %s", self._storage.location, error)
                self.state, self.why = ClaimState.ASKING, "the store is closed"

    def _is_ours(self, found: Claim | None) -> bool:
        return found is not None and self._ours is not None and found.session == self._ours.session

    def _look(self) -> None:
        if self.state is ClaimState.BORROWED:
            return
        found = claims.load(self._storage)
        if found is None and (self.has_files or self.state is ClaimState.HELD):
            what = "has ledgers there" if self.has_files else "has claimed it"
            raise StorageNotClaimed(
                f"{self._storage.location} holds no claim, and this store {what}: is it mounted? If what was "
                f"there is lost, run 'geminga store claim {self._folder}'"
            )
        identity = self._known()
        if found is not None and (self.has_files or self.state is ClaimState.HELD):
            self._check_home(identity, found)
        if self.state is ClaimState.HELD:
            assert self._ours is not None
            assert found is not None
            if self._is_ours(found):
                self._save(replace(self._ours, beats=self._ours.beats + 1))
            else:
                self._borrow(found, "was taken over meanwhile")
            return
        if found is None or self._is_ours(found):
            self._take(identity, found)
        elif found.store != self._store:
            self._borrow(found, "holds ledgers of another store, and each store needs a location of its own")
        elif found.instance != identity.instance:
            self._borrow(found, "belongs to the store that this one is a copy of")
        elif found.session not in identity.sessions.get(found.place, ()):
            self._borrow(found, "belongs to a later state of this store, or to a copy that continued")
        elif not found.open:
            self._take(identity, found)
        elif self._seen is None:
            self._seen = found, self._clock()
            self.why = f"{self._storage.location} was left open by {found.who}: checking if that still runs"
        elif found != self._seen[0]:
            # This is the copy of a disk. It needs another instance, as it may outlive the original.
            self._identity = StoreIdentity(new_id())
            identities.save(self._filesystem, self._folder, self._identity)
            self._borrow(found, "belongs to a running store that this one is a copy of")
        elif self._clock() - self._seen[1] >= QUIET_SECONDS:
            self._take(identity, found)

    def _check_home(self, identity: StoreIdentity, found: Claim) -> None:
        """Raise `StorageNotClaimed` for a claim in the folder on which the storage should be mounted."""
        is_mine = found.store == self._store and found.instance == identity.instance
        if is_mine and identity.home and found.place != identity.home:
            raise StorageNotClaimed(
                f"{self._storage.location} was claimed by this store before, but its ledgers are at another "
                "location: is it mounted? If those are lost, run 'geminga store claim "
                f"{self._folder}'"
            )

    def _known(self) -> StoreIdentity:
        """Return our identity; a copy of a store gets its own one here."""
        if self._identity is None:
            found = identities.look(self._filesystem, self._folder)
            if found is None:
                found = StoreIdentity(new_id())
                identities.save(self._filesystem, self._folder, found)
            self._identity = found
        return self._identity

    def _take(self, identity: StoreIdentity, found: Claim | None) -> None:
        """Take the claim. The new session is saved in the store before the claim is written."""
        session = new_id()
        location_id = new_id() if found is None else found.place
        sessions = (session,) if found is None else (session, found.session)
        renewed = identity.with_session(location_id, sessions)
        identities.save(self._filesystem, self._folder, renewed)
        self._identity = renewed
        who = f"{socket.gethostname()}:{self._folder}"
        since_ms = time.time_ns() // 1_000_000
        self._save(Claim(location_id, self._store, renewed.instance, session, 0, True, who, since_ms))
        written = claims.load(self._storage)
        if not self._is_ours(written):
            assert written is not None
            self._borrow(written, "was claimed at the same time")
            return
        self.state, self.why, self._seen = ClaimState.HELD, "", None

    def _save(self, claim: Claim) -> None:
        self._ours = claim  # also if writing fails: the storage may have it nevertheless
        try:
            claims.save(self._storage, claim)
        except OSError as error:
            if not is_no_space(error):
                raise
            # Without this the holder of full storage would seem dead, and no store could delete files.
            try:
                claims.save_in_place(self._storage, claim)
            except OSError as refused:
                raise error from refused

    def _borrow(self, found: Claim, what: str) -> None:
        self.state = ClaimState.BORROWED
        self.why = (
            f"{self._storage.location} {what} ({_said(found)}): this store only reads its files, and "
            "writes or deletes nothing"
        )
        advice = f". If that store is gone for good, run 'geminga store claim {self._folder}'"
        logger.warning("%s%s", self.why, advice if found.store == self._store else "")


def _said(claim: Claim) -> str:
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(claim.since_ms / 1000))
    return f"{claim.who}, {'open' if claim.open else 'closed'}, since {since}"


def whose(storage: OffloadStorage, filesystem: FileSystem, folder: str, store_name: str) -> str:
    """Return who holds the claim, in a sentence; empty if the store in a folder does. Changes nothing.

    Raises `OSError` or `ClaimUnreadable`.
    """
    found = claims.load(storage)
    if found is None:
        return ""
    identity = identities.look(filesystem, folder)
    known = () if identity is None else identity.sessions.get(found.place, ())
    if (
        identity is not None
        and (found.store, found.instance) == (store_name, identity.instance)
        and found.session in known
    ):
        return ""
    return f"{storage.location} is claimed by {_said(found)}: this store only reads its files"


def take_over(
    storage: OffloadStorage,
    filesystem: FileSystem,
    folder: str,
    store_name: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Claim the storage for the store in ``folder``, even from another holder; no process may have it open.

    Files that the previous holder still needs may be deleted from now on. Raises `StorageNotClaimed` while
    that holder runs, which takes up to a minute to find out, and `OSError`.
    """
    mine = StorageClaim(storage, filesystem, folder, store_name, clock=clock)
    try:
        found = claims.load(storage)
    except ClaimUnreadable as error:
        logger.warning("%s; writing a new claim", error)
        found = None
    if found is not None and found.store != store_name:
        raise StorageNotClaimed(
            f"{storage.location} holds ledgers of another store ({_said(found)}), and each store needs a "
            "location of its own"
        )
    began = clock()
    while found is not None and found.open and clock() - began < QUIET_SECONDS:
        sleep(BEAT_SECONDS / 3)
        if claims.load(storage) != found:
            raise StorageNotClaimed(f"{storage.location} is in use by {_said(found)}: stop that broker first")
    mine._take(mine._known(), found)
    if mine.state is not ClaimState.HELD:
        raise StorageNotClaimed(mine.why)
    mine.close(is_done=True, seconds_max=0.0)
