"""What a store is: the port between the broker and the disk.

One contract, several stores (`memory.MemoryStore`, `store.FileStore`); all pass the same suite.

Every method is called on one thread, the owner's. Nothing here blocks on a sync: `append`, `put`,
`merge` and `delete` take a place in the order of writes at once and report later. When reports are
ready the store calls ``wakeup`` (from any thread); the owner then calls `poll` on its own thread, and
`poll` runs the ``done`` callbacks in the order of the calls. A ``done`` gets None when the write is as
durable as the store's ``sync`` setting promises, or the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from geminga.by_fields import ByFields
from geminga.errors import StoreError
from geminga.ledger.damage import Damage

Buffer = bytes | bytearray | memoryview
Done = Callable[[StoreError | None], None]
Fetched = Callable[[list[bytes], StoreError | None], None]
"""What a `EntryStore.fetch` reports: the entries, or none and the error."""


def never() -> bool:
    """It is never enough: `EntryStore.poll` takes all."""
    return False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StoredLedger(ByFields):
    """A ledger as the store knows it. ``entries`` and ``size_bytes`` count what was appended."""

    ledger_id: int
    owner: str
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LostWrites(ByFields):
    """How many writes of a key damage took: of whole values (`put` or `delete`), and of deltas."""

    values: int = 0
    deltas: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StoredValue(ByFields):
    """What is kept under a key: the last `put` value and the deltas merged since, oldest first.

    ``lost`` is None, unless damage took writes of this key. Then the rest is here: a delta that is lost is an
    empty one in its place, and where a whole value is lost the base is that of before it (empty if there was
    none).
    """

    base: bytes
    deltas: Sequence[bytes]
    lost: LostWrites | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StoreStats(ByFields):
    """Counters since the store was opened, for metrics and stats."""

    appended_entries: int
    appended_bytes: int
    syncs: int
    sync_seconds_total: float
    disk_bytes: int
    pending_writes: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FreeSpace(ByFields):
    """Room for a store: on its disk or, if that is less, within the limit that its folder has."""

    total_bytes: int
    """Of the disk, or the limit."""
    free_bytes: int
    """What may still be written."""
    used_bytes: int
    """What the store's folder takes, what is allocated ahead included."""
    written_bytes: int
    """What was written to the log since the store was opened: it tells the rate."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReadAhead(ByFields):
    """How much one read of the disk is to bring at most."""

    entries_max: int
    bytes_max: int


KEYS_END = chr(0x10FFFF)
"""What ends a range of all keys with a prefix, behind that prefix."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PrefetchRequest(ByFields):
    """What somebody is about to ask a store for: keys, and the ledgers of owners."""

    keys: tuple[tuple[str, str], ...] = ()
    """From the first to the last of each range, both included."""
    owners: tuple[tuple[str, str], ...] = ()
    pages: tuple[tuple[str, str], ...] = ()
    """What `EntryStore.names_page` is to be asked for: (prefix, after)."""
    ledgers_after: tuple[int, ...] = ()
    """What `EntryStore.ledgers_page` is to be asked for."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TierStats(ByFields):
    """Counters since the store was opened: what went to cheap storage and was read from there."""

    ledgers: int
    bytes: int
    """Of files."""
    failures: int
    read_bytes: int
    """Of entries."""
    under_way: int
    is_borrowed: bool = False
    """Whether the files are another store's, of which this one is a copy."""


class TieredLedger(Protocol):
    """A ledger that is offloaded (`geminga.offload.manifest.OffloadedLedger`)."""

    @property
    def ledger(self) -> int: ...

    @property
    def entries(self) -> int: ...

    @property
    def entry_bytes(self) -> int:
        """What its entries took in the store."""

    @property
    def file_bytes(self) -> int:
        """What its file takes."""

    @property
    def offloaded_ms(self) -> int:
        """When: milliseconds since 1970."""

    @property
    def uuid(self) -> str: ...


class Tier(Protocol):
    """Cheap storage behind a store: closed ledgers may be there, with the store or in its stead."""

    @property
    def location(self) -> str:
        """Where it is, without secrets."""

    @property
    def borrowed(self) -> str:
        """Why this store only reads there, for it is a copy of the one whose the files are; empty: it is not.

        What is deleted then goes here alone, and `offload` and `drop_local` are refused.
        """

    def offloaded(self, owner: str) -> Sequence[TieredLedger]:
        """What is there of an owner, in the order of the ledgers."""

    def record(self, ledger_id: int) -> TieredLedger | None:
        """What is there of a ledger; None when nothing is."""

    def local_ledgers(self, owner: str) -> set[int]:
        """The ledgers of an owner whose entries the store has."""

    def offload(self, owner: str, ledger_id: int, now_ms: int, done: Done, *, offset: int) -> None:
        """Write a ledger, which nothing is appended to any more, to the tier. Its entries stay here.

        ``offset`` is the place of its first entry among all that the owner ever had.
        ``done`` is told when it is durable there and known here, or what went wrong; then it is as if nothing
        had been. Raises `StoreError`.
        """

    def cancel(self, owner: str, why: str) -> None:
        """Give up what is being offloaded of an owner; its ``done`` is told ``why``."""

    def drop_local(self, owner: str, ledger_id: int, done: Done) -> None:
        """Delete an offloaded ledger's entries here, if what is there is what was written."""

    def sweep(self) -> None:
        """Try again to delete files that nobody owns."""

    @property
    def tier_stats(self) -> TierStats: ...


class EntryStore(Protocol):
    """A durable set of ledgers (append-only lists of opaque entries) and a key-value map."""

    @property
    def tier(self) -> Tier | None:
        """Cheap storage behind it; None where there is none."""

    @property
    def failure(self) -> StoreError | None:
        """Why the store stopped; None while it is well. A stopped store refuses all writes."""

    @property
    def is_writing(self) -> bool:
        """Whether writes are under way, so that there will be something to `poll`."""

    @property
    def is_behind(self) -> bool:
        """Whether far more waits in memory than is saved at once: the disk is too slow, or has no room.

        Whoever writes is to wait until it is not any more, which `poll` may bring about. Nothing is refused.
        """

    # --- room ---
    @property
    def space(self) -> FreeSpace | None:
        """The room that was found last; None where that is not known, or has no meaning (in memory).

        There is none (``free_bytes`` is 0) while something waits that could not be written for lack of it.
        """

    def measure_space(self) -> None:
        """Look at the disk soon, on another thread; `poll` is then wanted. Writing does it by itself.

        The store stops if a file that it locks or writes to is not in its folder any more.
        """

    def refuse_entries(self, why: StoreError | None) -> None:
        """`append` raises this from now on, everything else goes on; None takes entries again."""

    def give_back(self, *, eagerly: bool) -> None:
        """How hard to work for space: ``eagerly`` moves much to free little."""

    @property
    def gives_back(self) -> bool:
        """Whether the space of something deleted is still to come back."""

    # --- damage ---
    @property
    def damage(self) -> list[Damage]:
        """What is known to be damaged, found when opening and when reading: each thing with what it lost.

        Everything else is served as if nothing were.
        """

    def damaged_entries(self, ledger_id: int) -> list[tuple[int, int]]:
        """The entries of a ledger that are listed as damaged: (first, last) of each run."""

    def settle_damage(self, name: str, done: Done | None = None) -> bool:
        """Take what is left of a damaged thing for all there is; False when nothing of that name is listed.

        Lost entries are given up: reading them still raises, but they are not listed any more. A key keeps
        what it has. A ledger whose owner is lost is deleted.
        """

    # --- ledgers ---
    def owner_of(self, ledger_id: int) -> str | None:
        """Whose ledger it is; None when there is none or nobody knows."""

    def adopt_ledger(self, ledger_id: int, owner: str) -> bool:
        """Give a ledger whose owner was lost to damage to ``owner``; False when it is no such ledger."""

    def create_ledger(self, owner: str) -> int:
        """A new, empty ledger that belongs to ``owner`` (a topic name). Ids only grow, over restarts too."""

    def append(self, ledger_id: int, entry: Buffer, done: Done) -> int:
        """Add an entry; returns its entry id (0, 1, 2 ... within the ledger) at once.

        The buffer must not change afterwards. Raises `StoreStopped` or `LedgerNotFound`.
        """

    def append_run(self, ledger_id: int, entries: Sequence[bytes], done: Done) -> int:
        """Add entries that follow each other; returns the first one's id.

        ``done`` reports once on all of them, in its place behind the last. With an error, the first of them
        may be durable all the same.
        """

    def read(self, ledger_id: int, first_entry_id: int, *, entries_max: int, bytes_max: int) -> list[bytes]:
        """Entries from ``first_entry_id`` on, in order: at least one if it exists, never more than asked.

        May return entries that are appended but not yet durable: the caller holds readers back
        behind its own confirmed position. Raises `LedgerNotFound`, or `StoreDamaged` when a
        checksum fails; wrong bytes are never returned.

        Waits for the disk where it must, but never long: `StoreBusy` says that it does not answer now. What
        can wait asks with `fetch`.
        """

    def fetch(
        self,
        ledger_id: int,
        first_entry_id: int,
        *,
        entries_max: int,
        bytes_max: int,
        ahead: ReadAhead,
        done: Fetched,
    ) -> list[bytes] | None:
        """The same without waiting: at once if the entries are in memory.

        Otherwise None, and ``done`` gets them from `poll` when the disk has given them, as many as ``ahead``
        says. Raises `LedgerNotFound`, and `StoreBusy` when too many reads wait already.
        """

    def ledgers(self, owner: str) -> list[StoredLedger]:
        """The ledgers of an owner in the order of their ids; empty if it has none."""

    def ledgers_page(self, after: int) -> tuple[list[StoredLedger], int | None]:
        """The next ledgers behind an id, the oldest first, whoever's they are.

        Not many; and the id behind which the others are, None when these were the last.
        """

    def release(self, ledger_ids: Sequence[int]) -> None:
        """Nobody uses these ledgers for now: what is in memory of them may leave. They may be used again."""

    def lost_entries_max(self, ledger_id: int) -> int:
        """How many entries behind the last one of a ledger may have been lost to damage; mostly 0.

        `append` steps over that many ids. What an owner counts by entries must step over them too, also
        when the ledger itself is not listed any more because its creation was lost.
        """

    def delete_ledgers(self, ledger_ids: Sequence[int], done: Done | None = None) -> None:
        """Forget ledgers (trimming, topic deletion); their space is given back in the background."""

    # --- key-value map: topics, policies, cursors, deduplication ---
    def put(self, key: str, value: bytes, done: Done | None = None, *, same: bool = False) -> None:
        """Set a key; replaces its value and drops its deltas.

        ``same``: the value means what is there already, deltas added up. Should damage take this write, what
        was there before it is as good, and the store serves that.
        """

    def merge(self, key: str, delta: bytes, done: Done | None = None) -> None:
        """Add a delta to a key (which need not exist: then its base is empty)."""

    def delete(self, key: str, done: Done | None = None) -> None:
        """Remove a key with its deltas; no error when absent."""

    def get(self, key: str) -> StoredValue | None:
        """What is under a key, this owner's own unsynced writes included."""

    def scan(self, prefix: str, *, after: str = "") -> Iterator[tuple[str, StoredValue]]:
        """All keys that start with ``prefix`` and come behind ``after``, in order of key.

        It may be read in steps, and a step costs the same however many keys there are. What is changed
        meanwhile, between the steps, may show or not.
        """

    def names(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """The keys of `scan` without what is under them, which costs much less."""

    def names_page(self, prefix: str, *, after: str = "") -> tuple[list[str], str | None]:
        """The next of `names`, and behind which key the others are: None behind the last. It may have none.

        It costs the same always, and waits for nothing that `bring` has brought.
        """

    def bring(self, wanted: PrefetchRequest, done: Done) -> bool:
        """See that asking for this does not wait for the disk: another thread reads it ahead.

        True when there is nothing to wait for. Otherwise ``done`` is told when it is at hand, mostly from
        `poll`, or why it is not: `StoreBusy` when too much waits already, an error of the disk. It is to be
        asked for at once: what is not used for long is read from the disk again.
        """

    # --- life ---
    def poll(self, enough: Callable[[], bool] = never) -> int:
        """Run the ``done`` callbacks that are ready; returns how many ran.

        Now and then ``enough`` is asked whether it is to stop there. Nobody is woken for what is left then.
        """

    def stats(self) -> StoreStats: ...

    def close(self) -> None:
        """Write and sync what is pending, run the last callbacks, release the lock. Safe to repeat."""
