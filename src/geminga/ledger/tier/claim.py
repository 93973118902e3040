"""Claim on the storage of offloaded ledgers: one store may change the files, its copies only read them.

A copy of a store knows of the same files. If it trimmed or swept like the original, the original would lose
its only copy of entries. So a storage location is *claimed* (`geminga.ledger.tier.claim_file`). A store
without the claim *borrows* the files: it reads them, but writes and deletes none, and keeps its local
entries, as the holder of the claim may delete the files.

A store checks the claim before each change, and takes it before the first one, if it may:

=========================================  =============================================================
no claim, and no files of ours             take it
no claim, but we have files or had it      error: the storage may not be mounted
ours, but of another storage location      error: this is the folder below the mount point
another store's                            borrow: each store needs a storage of its own
of a session that we do not know           borrow: this is a copy (`geminga.ledger.tier.identity`), or an
                                           older state of a store that continued elsewhere
of a session that we know, closed          take it
of a session that we know, open            wait: if it stays unchanged for QUIET_SECONDS, its holder is dead:
                                           take it; if it changes, borrow: this is the copy of a disk
=========================================  =============================================================

The holder renews its claim while it runs. No store depends on another one's clock. A store that borrows keeps
a list of the files it would delete (`geminga.ledger.tier.catalog`), until an administrator confirms that the
other store is gone: `claim`. If two stores claim at the same moment, both read the claim again, and the one
that wrote last holds it.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

from geminga.errors import StoreError
from geminga.ledger.files.filesystem import FileSystem, RealFileSystem
from geminga.ledger.files.folder import check_is_store, open_folder
from geminga.ledger.tier import claim_file as claims
from geminga.ledger.tier import identity as identities
from geminga.ledger.tier.claim_file import Claim, ClaimUnreadable
from geminga.ledger.tier.identity import StoreIdentity, new_id
from geminga.offload.storage import OffloadStorage

logger = logging.getLogger("geminga.ledger")

BEAT_SECONDS = 15.0
"""Interval at which the holder renews its claim."""
QUIET_SECONDS = 50.0
"""Time after which an open claim that has not changed counts as abandoned."""
_LOOK_SECONDS = 5.0
"""Interval at which a waiting store reads the claim."""


class StorageNotClaimed(StoreError):
    """The store does not hold the claim on the storage."""


class StorageClaim:
    """Claim of one store. Methods wait for the storage, except `close`; two threads may call them."""

    def __init__(
        self,
        storage: OffloadStorage,
        filesystem: FileSystem,
        folder: str,
        store_name: str,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.is_held = False
        self.has_files = False
        """Whether the store has files there: then a storage location without a claim is a different one."""
        self.refusal = ""
        """Reason why this store may never change the storage; empty as long as it may."""
        self._storage = storage
        self._filesystem = filesystem
        self._folder = folder
        self._store = store_name
        self._clock = clock or time.monotonic
        self._is_closing = threading.Event()
        self._stop = threading.Event()
        self._sleep = sleep or self._is_closing.wait
        self._lock = threading.Lock()
        self._identity: StoreIdentity | None = None
        self._ours: Claim | None = None
        """Claim that we wrote last."""
        self._renew_at = float("-inf")
        self._problem = ""
        """Error of the last attempt to renew the claim."""
        self._is_done = False
        self._thread: threading.Thread | None = None

    # --- life ---
    def start(self) -> None:
        """Renew the claim on a separate thread, while it is held."""
        self._thread = threading.Thread(target=self._run, name="geminga-offload-claim", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            self.renew()
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

    def stop_waiting(self) -> None:
        """Make `check` fail instead of waiting, because the store is being closed."""
        self._is_closing.set()

    @property
    def is_over(self) -> bool:
        """Whether no request to the storage is pending."""
        return self._thread is None or not self._thread.is_alive()

    def renew(self) -> None:
        """Renew the claim if it is held and due."""
        if not self.is_held or self._clock() < self._renew_at:
            return
        with self._lock:
            try:
                self._check_held()
                assert self._ours is not None
                self._save(replace(self._ours, beats=self._ours.beats + 1))
                self._problem = ""
            except Exception as error:  # also exceptions of a storage library
                if not self.refusal and str(error) != self._problem:
                    logger.warning("%s: cannot renew the claim: %s", self._storage.location, error)
                self._problem = str(error)

    # --- checks ---
    def check(self) -> None:
        """Return if the store holds the claim at this moment; takes it if it is free.

        Waits if it must find out whether another holder still runs. Raises `StorageNotClaimed` or `OSError`.
        """
        with self._lock:
            if self.refusal:
                raise StorageNotClaimed(self.refusal)
            if self.is_held:
                self._check_held()
            else:
                self._take(self._free_claim())

    def _load(self) -> Claim | None:
        """Return the claim. Raises `OSError`, or `StorageNotClaimed` if it must belong to another storage."""
        try:
            found = claims.load(self._storage)
        except ClaimUnreadable as error:
            advice = f"to write it again, stop the broker and run 'geminga store claim {self._folder}'"
            raise StorageNotClaimed(f"{error}; {advice}") from error
        mine, why = self._known(), ""
        if found is None:
            why = f"holds no claim, and this store has {'ledgers there' if self.has_files else 'claimed it'}"
        elif mine.home and found.place != mine.home and self._knows(found):
            why = "was claimed by this store before, but its ledgers are at another location"
        if why and (self.has_files or self.is_held):
            advice = f"is it mounted? If the files are lost, run 'geminga store claim {self._folder}'"
            raise StorageNotClaimed(f"{self._storage.location} {why}: {advice}")
        return found

    def _check_held(self) -> None:
        found = self._load()
        if found is not None and not self._is_ours(found):
            self._refuse(found, "was taken over meanwhile")

    def _free_claim(self) -> Claim | None:
        """Return the claim that may be taken; None without one. Raises `StorageNotClaimed` or `OSError`."""
        found = self._load()
        if found is None or self._is_ours(found):
            return found
        if found.store != self._store:
            self._refuse(found, "holds ledgers of another store, and each store needs a location of its own")
        if not self._knows(found):
            self._refuse(found, "belongs to another copy of this store, or to a later state of it")
        if found.open and not self._is_abandoned(found):
            # This is the copy of a disk. It needs another identity, as it may outlive the original.
            self._identity = StoreIdentity(new_id())
            identities.save(self._filesystem, self._folder, self._identity)
            self._refuse(found, "belongs to a running store that this one is a copy of")
        return found

    def _is_abandoned(self, found: Claim) -> bool:
        """Wait until an open claim has not changed for `QUIET_SECONDS`; False if it changes."""
        until = self._clock() + QUIET_SECONDS
        logger.info("%s was left open by %s: checking if that still runs", self._storage.location, found.who)
        while self._clock() < until:
            self._sleep(_LOOK_SECONDS)
            if self._is_closing.is_set():
                raise StorageNotClaimed("the store is being closed")
            if claims.load(self._storage) != found:
                return False
        return True

    def _is_ours(self, found: Claim) -> bool:
        return self._ours is not None and found.session == self._ours.session

    def _knows(self, found: Claim) -> bool:
        """Whether this store, in this or an earlier session, has written the claim."""
        return found.store == self._store and found.session in self._known().sessions.get(found.place, ())

    def _known(self) -> StoreIdentity:
        """Return our identity; a copy of a store gets its own one here."""
        if self._identity is None:
            found = identities.look(self._filesystem, self._folder)
            if found is None:
                found = StoreIdentity(new_id())
                identities.save(self._filesystem, self._folder, found)
            self._identity = found
        return self._identity

    # --- changes ---
    def take_over(self) -> None:
        """Take the claim from any other copy of this store, unless that runs, which takes up to a minute to
        find out. Raises `StorageNotClaimed` and `OSError`."""
        with self._lock:
            try:
                found = claims.load(self._storage)
            except ClaimUnreadable as error:
                logger.warning("%s; writing a new claim", error)
                found = None
            if found is not None and found.store != self._store:
                self._refuse(
                    found, "holds ledgers of another store, and each store needs a location of its own"
                )
            if found is not None and found.open and not self._is_abandoned(found):
                raise StorageNotClaimed(
                    f"{self._storage.location} is in use by {_described(found)}: stop that broker first"
                )
            self._take(found)

    def _take(self, found: Claim | None) -> None:
        """Take the claim. The new session is saved in the store before the claim is written."""
        session = new_id()
        location_id = new_id() if found is None else found.place
        sessions = (session,) if found is None else (session, found.session)
        self._identity = self._known().with_session(location_id, sessions)
        identities.save(self._filesystem, self._folder, self._identity)
        who = f"{socket.gethostname()}:{self._folder}"
        since_ms = time.time_ns() // 1_000_000
        self._save(Claim(location_id, self._store, self._identity.instance, session, 0, True, who, since_ms))
        written = claims.load(self._storage)
        if written is None or not self._is_ours(written):
            self._refuse(written, "was claimed at the same time")
        self.is_held = True

    def _let_go(self) -> None:
        with self._lock:
            if self.is_held and self._ours is not None and not self.refusal:
                try:
                    self._check_held()
                    self._save(replace(self._ours, open=False))
                except Exception as error:
                    logger.debug("%s: cannot mark the claim as closed: %s", self._storage.location, error)
            self.is_held = False

    def _save(self, claim: Claim) -> None:
        self._ours = claim  # also if writing fails: the storage may have it nevertheless
        claims.save(self._storage, claim)
        self._renew_at = self._clock() + BEAT_SECONDS

    def _refuse(self, found: Claim | None, what: str) -> NoReturn:
        self.is_held = False
        by = f" ({_described(found)})" if found is not None else ""
        self.refusal = (
            f"{self._storage.location} {what}{by}: this store only reads its files, and writes or deletes "
            "nothing"
        )
        is_copy = found is None or found.store == self._store
        advice = f". If that store is gone for good, run 'geminga store claim {self._folder}'"
        logger.warning("%s%s", self.refusal, advice if is_copy else "")
        raise StorageNotClaimed(self.refusal)


def _described(claim: Claim) -> str:
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(claim.since_ms / 1000))
    return f"{claim.who}, {'open' if claim.open else 'closed'}, since {since}"


def whose(storage: OffloadStorage, filesystem: FileSystem, folder: str, store_name: str) -> str:
    """Return who holds the claim, in a sentence; empty if the store in a folder does. Changes nothing.

    Raises `OSError`.
    """
    try:
        found = claims.load(storage)
    except ClaimUnreadable as error:
        return f"{error}: no store may change its files until 'geminga store claim' writes it again"
    identity = identities.look(filesystem, folder)
    known = () if identity is None or found is None else identity.sessions.get(found.place, ())
    if found is None or (found.store == store_name and found.session in known):
        return ""
    return f"{storage.location} is claimed by {_described(found)}: this store only reads its files"


def holder(
    folder: str | os.PathLike[str], storage: OffloadStorage, *, filesystem: FileSystem | None = None
) -> str:
    """Return what `whose` does, for a store that no process has open.

    Raises `NotAStore`, `StoreLocked` while a process has the store open, `OSError` of the storage location.
    """
    with _opened(folder, filesystem or RealFileSystem()) as (path, store_name):
        return whose(storage, filesystem or RealFileSystem(), path, store_name)


def claim(
    folder: str | os.PathLike[str],
    storage: OffloadStorage,
    *,
    filesystem: FileSystem | None = None,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], object] | None = None,
) -> None:
    """Claim a storage location for the store in ``folder``, even from another holder (``store claim``).

    Files that the previous holder still needs may be deleted from now on. Raises `StorageNotClaimed` while
    the holder runs, and as `holder` does.
    """
    files = filesystem or RealFileSystem()
    with _opened(folder, files) as (path, store_name):
        mine = StorageClaim(storage, files, path, store_name, clock=clock, sleep=sleep)
        mine.take_over()
        mine.close(is_done=True, seconds_max=0.0)


@contextlib.contextmanager
def _opened(folder: str | os.PathLike[str], files: FileSystem) -> Iterator[tuple[str, str]]:
    """Yield (path, store id) of a store, locked."""
    path = os.path.abspath(os.fspath(folder))
    check_is_store(files, path)
    lock, store_id = open_folder(files, path)
    try:
        yield path, store_id.hex()
    finally:
        lock.release()
