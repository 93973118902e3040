"""Contract of a store, and the data classes in it: the interface between the broker and the disk.

Stores (`memory.MemoryStore`, `store.FileStore`) implement the contract; all pass the same test suite.

Call every method on one thread, the owner's. No write waits for a sync: `append`, `put`, `merge` and
`delete` are ordered when they are called and report later. When reports are ready the store calls
``wakeup`` (from any thread); the owner then calls `poll` on its own thread, and `poll` runs the ``done``
callbacks in the order of the calls. A ``done`` receives None when the write is as durable as the store's
``sync`` setting promises, or the error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from geminga.errors import StoreError
from geminga.ledger.damage import Damage
from geminga.offload.manifest import OffloadedLedger

Buffer = bytes | bytearray | memoryview
Done = Callable[[StoreError | None], None]
Fetched = Callable[[list[bytes], StoreError | None], None]
"""Callback of `EntryStore.fetch`: receives the entries, or an empty list and the error."""


def never() -> bool:
    """Return False: the default of ``enough`` in `EntryStore.poll`, which then runs all callbacks."""
    return False


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """Ledger in a store. ``entries`` and ``size_bytes`` count all appended entries."""

    ledger_id: int
    owner: str
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LostWrites:
    """Number of writes of a key that were lost to damage: whole values (`put` or `delete`), and deltas."""

    values: int = 0
    deltas: int = 0


@dataclass(frozen=True, slots=True)
class StoredValue:
    """Value of a key: the last `put` value and the deltas merged since, oldest first.

    ``lost`` counts the writes of this key that damage destroyed; None without damage. Each lost delta is then
    an empty delta in ``deltas``; if a whole value is lost, ``base`` is the value before it (empty without
    one).
    """

    base: bytes
    deltas: Sequence[bytes]
    lost: LostWrites | None = None


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters since the store was opened, for metrics and stats."""

    appended_entries: int
    appended_bytes: int
    syncs: int
    sync_seconds_total: float
    disk_bytes: int
    pending_writes: int


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Disk space for a store: on its disk or, if that is less, within the limit of its folder."""

    total_bytes: int
    """Size of the disk, or the limit of the folder."""
    free_bytes: int
    """Bytes that can still be written."""
    used_bytes: int
    """Size of the store's folder, preallocated space included."""
    written_bytes: int
    """Bytes written to the log since the store was opened; the broker derives the write rate from it."""


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Limits of one read ahead from the disk."""

    entries_max: int
    bytes_max: int


KEYS_END = chr(0x10FFFF)
"""Character that sorts behind all others: ``prefix + KEYS_END`` ends the range of keys with a prefix."""


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """Keys, owners and pages that a store reads ahead because the caller is about to ask for them."""

    keys: tuple[tuple[str, str], ...] = ()
    """Ranges of keys (first, last), both included."""
    owners: tuple[tuple[str, str], ...] = ()
    pages: tuple[tuple[str, str], ...] = ()
    """Arguments of coming `StoreKeys.names_page` calls: (prefix, after)."""
    ledgers_after: tuple[int, ...] = ()
    """Arguments of coming `EntryStore.ledgers_page` calls."""

    def __bool__(self) -> bool:
        return bool(self.keys or self.owners or self.pages or self.ledgers_after)


@dataclass(frozen=True, slots=True)
class TierStats:
    """Counters of the tiered storage: ledgers and bytes offloaded and read since the store was opened."""

    ledgers: int
    bytes: int
    """Size of the written files."""
    failures: int
    read_bytes: int
    """Size of the entries that were read."""
    under_way: int
    is_borrowed: bool = False
    """Whether the files belong to another store, of which this store is a copy."""


class Tier(Protocol):
    """Tiered storage of a store: keeps closed ledgers, in addition to the store or instead of it."""

    @property
    def location(self) -> str:
        """Return the address of the storage location, without secrets."""

    @property
    def borrowed(self) -> str:
        """Return why this store only reads from the tier: it is a copy of the store that owns the files.

        Empty if this store owns the files. Otherwise deletions apply to this store alone, and `offload` and
        `drop_local` are refused.
        """

    def offloaded(self, owner: str) -> Sequence[OffloadedLedger]:
        """Return the offloaded ledgers of an owner, in the order of their ids."""

    def record(self, ledger_id: int) -> OffloadedLedger | None:
        """Return the record of an offloaded ledger; None if the ledger is not offloaded."""

    def local_ledgers(self, owner: str) -> set[int]:
        """Return the ledgers of an owner whose entries are in the store."""

    def offload(self, owner: str, ledger_id: int, now_ms: int, done: Done, *, offset: int) -> None:
        """Write a closed ledger to the tier. Its entries stay in the store.

        ``offset`` is the number of entries in the owner's ledgers before this one.
        ``done`` is called when the file is durable and recorded in the store, or with the error; a failed
        offload leaves nothing behind. Raises `StoreError`.
        """

    def cancel(self, owner: str, why: str) -> None:
        """Cancel the pending offloads of an owner; their ``done`` receives an error with the text ``why``."""

    def drop_local(self, owner: str, ledger_id: int, done: Done) -> None:
        """Delete an offloaded ledger's entries from the store, once its file is verified."""

    def sweep(self) -> None:
        """Try again to delete files that no ledger uses."""

    @property
    def tier_stats(self) -> TierStats: ...


class StoreDisk(Protocol):
    """Disk space of a store."""

    @property
    def space(self) -> FreeSpace | None:
        """Return the disk space measured last; None if it is unknown, or the store is in memory.
        ``free_bytes`` is 0 while a write is pending that failed because the disk was full."""

    def measure(self) -> None:
        """Measure the disk space soon, on another thread; `poll` takes the result. Writes measure it too.

        The store stops if a file that it locks or writes to is no longer in its folder.
        """

    def refuse_entries(self, why: StoreError | None) -> None:
        """Make `append` raise ``why`` from now on, other calls still work; None accepts entries again."""

    def give_back(self, *, eagerly: bool) -> None:
        """Set how hard to work for space: ``eagerly`` rewrites files even if much is moved to free little."""

    @property
    def gives_back(self) -> bool:
        """Whether space of deleted ledgers or keys is still to be freed."""


class StoreDamage(Protocol):
    """Damage of a store, and the losses that it caused."""

    @property
    def found(self) -> list[Damage]:
        """Return the known damage, found when opening and when reading: each item says what is lost.

        Undamaged entries and keys are served as usual.
        """

    def entries_of(self, ledger_id: int) -> list[tuple[int, int]]:
        """Return the damaged entries of a ledger: (first, last) of each run."""

    def settle(self, name: str, done: Done | None = None) -> bool:
        """Accept the losses of a damaged item; returns False if no damage of that name is listed.

        Lost entries are given up: reading them still raises, but they are not listed any more. A key keeps
        its surviving value. A ledger whose owner is lost is deleted.
        """

    def adopt_ledger(self, ledger_id: int, owner: str) -> bool:
        """Give a ledger whose owner was lost to damage to ``owner``; False for other ledgers."""

    def lost_entries_max(self, ledger_id: int) -> int:
        """Return how many entries behind the last one of a ledger may have been lost to damage; mostly 0.

        `append` skips that many ids. An owner that counts entries must skip them too, also when the ledger
        itself is not listed any more because its creation was lost.
        """


class StoreKeys(Protocol):
    """Key-value map of a store: topics, policies, cursors, deduplication."""

    def put(self, key: str, value: bytes, done: Done | None = None, *, same: bool = False) -> None:
        """Set a key; replaces its value and drops its deltas.

        ``same``: the value equals the current one with its deltas applied. If this write is damaged later,
        the store serves the earlier value and its deltas without reporting a loss.
        """

    def merge(self, key: str, delta: bytes, done: Done | None = None) -> None:
        """Add a delta to a key (a key that does not exist gets an empty base)."""

    def delete(self, key: str, done: Done | None = None) -> None:
        """Remove a key with its deltas; no error if the key does not exist."""

    def get(self, key: str) -> StoredValue | None:
        """Return the value of a key, this owner's own unsynced writes included."""

    def scan(self, prefix: str, *, after: str = "") -> Iterator[tuple[str, StoredValue]]:
        """Iterate over all keys that start with ``prefix`` and sort behind ``after``, in order of key.

        The iterator may be advanced in steps, each at a constant cost. Changes made between the steps may be
        visible or not.
        """

    def names(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """Iterate over the keys of `scan` without their values, which is much cheaper."""

    def names_page(self, prefix: str, *, after: str = "") -> tuple[list[str], str | None]:
        """Return the next page of `names`, perhaps empty, and the key to continue after: None at the end.

        The cost is constant, and a page that `EntryStore.bring` has read ahead does not wait for the disk.
        """


class EntryStore(Protocol):
    """A durable set of ledgers (append-only lists of opaque entries) and a key-value map."""

    @property
    def tier(self) -> Tier | None:
        """Return the tiered storage of this store; None without one."""

    @property
    def keys(self) -> StoreKeys: ...

    @property
    def disk(self) -> StoreDisk: ...

    @property
    def damage(self) -> StoreDamage: ...

    @property
    def failure(self) -> StoreError | None:
        """Return why the store stopped; None while it works. A stopped store refuses all writes."""

    @property
    def is_writing(self) -> bool:
        """Whether writes are pending, whose callbacks a later `poll` runs."""

    @property
    def is_behind(self) -> bool:
        """Whether the unsaved changes in memory exceed several checkpoints: the disk is slow or full.

        Callers should then stop writing until `poll` clears the state. Writes are still accepted.
        """

    # --- ledgers ---
    def owner_of(self, ledger_id: int) -> str | None:
        """Return the owner of a ledger; None if the ledger does not exist or its owner is lost."""

    def create_ledger(self, owner: str) -> int:
        """Create an empty ledger of ``owner`` (a topic name); returns its id. Ids grow across restarts."""

    def append(self, ledger_id: int, entry: Buffer, done: Done) -> int:
        """Add an entry; returns its entry id (0, 1, 2 ... within the ledger) at once.

        The buffer must not change afterwards. Raises `StoreStopped` or `LedgerNotFound`.
        """

    def append_run(self, ledger_id: int, entries: Sequence[bytes], done: Done) -> int:
        """Add consecutive entries; returns the first one's id.

        ``done`` is called once for all of them, in the order of the last entry. With an error, the first
        entries may be durable nevertheless.
        """

    def read(self, ledger_id: int, first_entry_id: int, *, entries_max: int, bytes_max: int) -> list[bytes]:
        """Return entries from ``first_entry_id`` on, in order: at least one if it exists, within the limits.

        May return entries that are appended but not yet durable: the caller holds readers back
        behind its own confirmed position. Raises `LedgerNotFound`, or `StoreDamaged` when a
        checksum fails; wrong bytes are never returned.

        Waits for the disk if necessary, but only briefly: raises `StoreBusy` if the disk does not answer.
        Callers that can wait use `fetch`.
        """

    def fetch(
        self,
        ledger_id: int,
        first_entry_id: int,
        *,
        entries_max: int,
        bytes_max: int,
        ahead: ReadAhead | None,
        done: Fetched,
    ) -> list[bytes] | None:
        """Read entries without blocking: returns them if they are in memory.

        Otherwise returns None and, unless ``ahead`` is None, a later `poll` calls ``done`` with entries from
        the disk, up to these limits. Raises `LedgerNotFound`, and `StoreBusy` if too many reads are pending.
        """

    def ledgers(self, owner: str) -> list[StoredLedger]:
        """Return the ledgers of an owner in the order of their ids; empty if it has none."""

    def ledgers_page(self, after: int) -> tuple[list[StoredLedger], int | None]:
        """Return the next ledgers of any owner behind the id ``after``, the oldest first: a bounded page.

        The second value is the id to continue after; None on the last page.
        """

    def release(self, ledger_ids: Sequence[int]) -> None:
        """Mark ledgers as unused for now: their state may leave memory. They may be used again."""

    def delete_ledgers(self, ledger_ids: Sequence[int], done: Done | None = None) -> None:
        """Delete ledgers (trimming, topic deletion); their space is freed in the background."""

    def bring(self, wanted: PrefetchRequest, done: Done) -> bool:
        """Read the requested keys, owners and pages ahead on another thread, so that asking does not wait.

        Returns True if all are in memory. Otherwise ``done`` is called when they are, mostly from `poll`, or
        with the error: `StoreBusy` when too many reads are pending, an error of the disk. Use them at once:
        data that stays unused is evicted and read from the disk again.
        """

    # --- life ---
    def poll(self, enough: Callable[[], bool] = never) -> int:
        """Run the ``done`` callbacks that are ready; returns how many ran.

        Between callbacks ``enough`` is called: True stops the run. The caller then polls again for the rest,
        as ``wakeup`` is not called for it.
        """

    def stats(self) -> StoreStats: ...

    def close(self) -> None:
        """Write and sync what is pending, run the last callbacks, release the lock. Safe to repeat."""
