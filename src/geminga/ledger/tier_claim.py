"""Whether the place of offloaded ledgers is this store's to change: one store holds it, its copies borrow.

A copy of a store knows of the same files. If it trimmed or swept as the store does, the store would lose what
it has nowhere else. So a place is *claimed* (`geminga.offload.claim`), and who does not hold the claim reads
there and changes nothing: neither is anything written, nor deleted, nor are entries let go of for a file that
somebody else may delete.

What an opening finds decides:

=========================================  =============================================================
no claim, and nothing of ours              it is claimed
no claim, where we have files, or had it   looked at until there is one: the place may not be mounted
ours, on another place than where they are looked at until it is that one: it is the folder below it
that of another instance, or store         borrowed: this is a copy (`geminga.ledger.identity`)
ours, of a session that we do not know     borrowed: this is an older state of a store that went on elsewhere
ours, closed                               it is claimed again
ours, still open                           looked at until it has not changed for so long that whoever held
                                           it is dead; it changes: borrowed, for this is the copy of a disk
=========================================  =============================================================

The holder renews its claim, and reads it once more before each change. Nobody has to trust another one's
clock, and no change waits for anything but the place. What a store that borrows would delete stays on its
list (`geminga.ledger.tier_catalog`), for the day on which somebody says that the other one is gone:
`take_over`. Two that see a place free in the same instant are told apart a moment later, by which of both
wrote last.

A place that is full has no room for another file, so the claim is written over where it is: its holder must
not seem dead, and what it deletes is what gives room back.
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
"""So often the holder renews its claim, and who waits looks at it."""
QUIET_SECONDS = 50.0
"""A claim that was left open and has not changed for so long is a dead one's."""


class StorageNotClaimed(StoreError):
    """The place is not this store's to change."""


class ClaimState(Enum):
    ASKING = "asking"
    HELD = "held"
    BORROWED = "borrowed"


class StorageClaim:
    """See the module. `state` and `why` may be read by any thread; all else waits for the place."""

    def __init__(
        self,
        place: OffloadStorage,
        filesystem: FileSystem,
        folder: str,
        store_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = ClaimState.ASKING
        self.has_files = False
        """Whether the store has files there: then a place without a claim is not the one that it knows."""
        self.why = f"whose {place.location} is, is not known yet"
        """Why the place is not ours to change; for people."""
        self._place = place
        self._filesystem = filesystem
        self._folder = folder
        self._store = store_name
        self._clock = clock
        self._lock = threading.Lock()
        self._identity: StoreIdentity | None = None
        self._ours: Claim | None = None
        """What we wrote last."""
        self._seen: tuple[Claim, float] | None = None
        """A claim that may be a dead one's, and since when it has not changed."""
        self.problem = ""
        """Why the claim could not be looked at when it was last tried; empty when it could."""
        self._due = float("-inf")
        self._is_done = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # --- life ---
    def start(self, decided: Callable[[], None]) -> None:
        """Look and renew on a thread of its own; ``decided`` is called there when the state changes."""
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
        """Renew it no more; ``is_done``: nothing is changed any more, so that the next opening need not wait.

        A place that does not answer is waited for ``seconds_max``.
        """
        self._is_done = is_done
        self._stop.set()
        if self._thread is not None:
            self._thread.join(seconds_max)
        elif is_done:
            self._let_go()

    @property
    def is_over(self) -> bool:
        """Whether nothing asks the place any more."""
        return self._thread is None or not self._thread.is_alive()

    def keep(self) -> bool:
        """What is due by now: to look, or to renew. Whether there is news in `state` or `problem`."""
        if self._clock() < self._due:
            return False
        before = self.state, self.problem
        with self._lock:
            try:
                self._look()
                self.problem = ""
            except (OSError, ClaimUnreadable, StorageNotClaimed) as error:
                self._complain(error)
            except Exception as error:  # what a place's library raises
                logger.debug("looking at a claim failed", exc_info=True)
                self._complain(error)
        self._due = self._clock() + BEAT_SECONDS
        return (self.state, self.problem) != before

    def _complain(self, error: Exception) -> None:
        if str(error) != self.problem:
            self.problem = str(error)
            logger.warning("%s: the claim on it cannot be looked at now: %s", self._place.location, error)

    # --- what holds ---
    def check(self) -> None:
        """Return when the place is ours to change at this moment. Raises `StorageNotClaimed` or `OSError`."""
        with self._lock:
            if self.state is ClaimState.HELD:
                try:
                    found = claims.load(self._place)
                except ClaimUnreadable as error:
                    raise StorageNotClaimed(str(error)) from error
                if self._is_ours(found):
                    return
                if found is not None:
                    self._check_home(self._known(), found)
                    self._borrow(found, "was taken over meanwhile")
                else:
                    raise StorageNotClaimed(f"the claim on {self._place.location} is gone: is it mounted?")
            raise StorageNotClaimed(self.why)

    def _let_go(self) -> None:
        with self._lock:
            if self.state is ClaimState.HELD and self._ours is not None:
                try:
                    if self._is_ours(claims.load(self._place)):
                        self._save(replace(self._ours, open=False))
                except Exception as error:
                    logger.debug("%s: the claim stays open: %s", self._place.location, error)
                self.state, self.why = ClaimState.ASKING, "the store is closed"

    def _is_ours(self, found: Claim | None) -> bool:
        return found is not None and self._ours is not None and found.session == self._ours.session

    def _look(self) -> None:
        if self.state is ClaimState.BORROWED:
            return
        found = claims.load(self._place)
        if found is None and (self.has_files or self.state is ClaimState.HELD):
            what = "has ledgers there" if self.has_files else "has claimed it"
            raise StorageNotClaimed(
                f"{self._place.location} holds no claim, and this store {what}: is it mounted? If what was "
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
            self._borrow(found, "holds ledgers of another store, and each store needs a place of its own")
        elif found.instance != identity.instance:
            self._borrow(found, "belongs to the store that this one is a copy of")
        elif found.session not in identity.sessions.get(found.place, ()):
            self._borrow(found, "belongs to a later state of this store, or to a copy that went on")
        elif not found.open:
            self._take(identity, found)
        elif self._seen is None:
            self._seen = found, self._clock()
            self.why = f"{self._place.location} was left open by {found.who}: whether that runs is looked at"
        elif found != self._seen[0]:
            # The copy of a disk. It may outlive the other one, and must not be taken for it then.
            self._identity = StoreIdentity(new_id())
            identities.save(self._filesystem, self._folder, self._identity)
            self._borrow(found, "belongs to a store that runs, and that this one is a copy of")
        elif self._clock() - self._seen[1] >= QUIET_SECONDS:
            self._take(identity, found)

    def _check_home(self, identity: StoreIdentity, found: Claim) -> None:
        """Raises `StorageNotClaimed` for a claim that was left in the folder in which the place is to be mounted."""
        is_mine = found.store == self._store and found.instance == identity.instance
        if is_mine and identity.home and found.place != identity.home:
            raise StorageNotClaimed(
                f"{self._place.location} is one that this store claimed before, and not the one that has its "
                "ledgers: is it mounted? If what was there is lost, run 'geminga store claim "
                f"{self._folder}'"
            )

    def _known(self) -> StoreIdentity:
        """Who we are, which a copy becomes here."""
        if self._identity is None:
            found = identities.look(self._filesystem, self._folder)
            if found is None:
                found = StoreIdentity(new_id())
                identities.save(self._filesystem, self._folder, found)
            self._identity = found
        return self._identity

    def _take(self, identity: StoreIdentity, found: Claim | None) -> None:
        """Claim the place. That we are about to is durable before anybody sees it."""
        session = new_id()
        place = new_id() if found is None else found.place
        sessions = (session,) if found is None else (session, found.session)
        renewed = identity.with_session(place, sessions)
        identities.save(self._filesystem, self._folder, renewed)
        self._identity = renewed
        who = f"{socket.gethostname()}:{self._folder}"
        since_ms = time.time_ns() // 1_000_000
        self._save(Claim(place, self._store, renewed.instance, session, 0, True, who, since_ms))
        written = claims.load(self._place)
        if not self._is_ours(written):
            assert written is not None
            self._borrow(written, "was claimed at the same time")
            return
        self.state, self.why, self._seen = ClaimState.HELD, "", None

    def _save(self, claim: Claim) -> None:
        self._ours = claim  # also when the place fails: it may have it all the same
        try:
            claims.save(self._place, claim)
        except OSError as error:
            if not is_no_space(error):
                raise
            # Who holds a place that is full would seem dead, and who finds it could not even delete.
            try:
                claims.save_in_place(self._place, claim)
            except OSError as refused:
                raise error from refused

    def _borrow(self, found: Claim, what: str) -> None:
        self.state = ClaimState.BORROWED
        self.why = (
            f"{self._place.location} {what} ({_said(found)}): files are read there, and nothing is "
            "written or deleted"
        )
        advice = f". If that store is gone for good, run 'geminga store claim {self._folder}'"
        logger.warning("%s%s", self.why, advice if found.store == self._store else "")


def _said(claim: Claim) -> str:
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(claim.since_ms / 1000))
    return f"{claim.who}, {'open' if claim.open else 'closed'}, since {since}"


def whose(place: OffloadStorage, filesystem: FileSystem, folder: str, store_name: str) -> str:
    """Whose a place is if it is not that of the store in a folder, in a sentence; changes nothing.

    Raises `OSError` or `ClaimUnreadable`.
    """
    found = claims.load(place)
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
    return f"{place.location} is claimed by {_said(found)}: to this store its files are borrowed"


def take_over(
    place: OffloadStorage,
    filesystem: FileSystem,
    folder: str,
    store_name: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make a place that of the store in ``folder``, whoever held it; nobody may have the store open.

    What the other one still needs there may be deleted from now on. Raises `StorageNotClaimed` while it runs, which
    takes up to a minute to be seen, and `OSError`.
    """
    mine = StorageClaim(place, filesystem, folder, store_name, clock=clock)
    try:
        found = claims.load(place)
    except ClaimUnreadable as error:
        logger.warning("%s; it is written anew", error)
        found = None
    if found is not None and found.store != store_name:
        raise StorageNotClaimed(
            f"{place.location} holds ledgers of another store ({_said(found)}), and each store needs a "
            "place of its own"
        )
    began = clock()
    while found is not None and found.open and clock() - began < QUIET_SECONDS:
        sleep(BEAT_SECONDS / 3)
        if claims.load(place) != found:
            raise StorageNotClaimed(f"{place.location} is in use by {_said(found)}: stop that broker first")
    mine._take(mine._known(), found)
    if mine.state is not ClaimState.HELD:
        raise StorageNotClaimed(mine.why)
    mine.close(is_done=True, seconds_max=0.0)
