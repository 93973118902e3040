"""Settings of a store."""

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """Settings of a `geminga.ledger.store.FileStore`, which a broker derives from its own."""

    sync: str = "always"
    """When a write is confirmed. ``always``: once fdatasync has returned (group commit). ``interval``: once
    the operating system has it; fdatasync follows within ``sync_interval_seconds``. ``never``: once the
    operating system has it; it is synced only at checkpoints and when files roll over."""
    sync_interval_seconds: float = 1.0
    """See ``sync``."""
    group_bytes_max: int = 4 * MEBIBYTE
    """Maximum size of one group (one write, one sync)."""
    folder_bytes_max: int = 0
    """Maximum size of the folder (0: the whole disk); reported as the size of the disk. The owner enforces it
    by refusing entries (`geminga.ledger.files.space`)."""
    log_file_bytes: int = 128 * MEBIBYTE
    """Size at which a log file is closed and the next begun."""
    preallocate_bytes: int = 16 * MEBIBYTE
    """Size by which a log file is preallocated; 0: no preallocation."""
    cache_bytes: int = 24 * MEBIBYTE
    """Recent entries held in memory for readers at the tail."""
    read_threads: int = 2
    """Number of threads that read entries from the disk."""
    reads_waiting_max: int = 4096
    """Maximum number of pending reads; more are refused."""
    read_ahead_bytes_max: int = 32 * MEBIBYTE
    """Maximum size of read entries that the owner has not taken yet."""
    read_wait_seconds: float = 0.25
    """Time limit for the owner to wait for a read that cannot be deferred."""
    unreadable_seconds: float = 30.0
    """An entry counts as damaged after the disk has failed to read it for this time; until then reads are
    retried."""
    checkpoint_log_bytes: int = 128 * MEBIBYTE
    """A checkpoint is made after this many bytes, ``checkpoint_records`` or ``checkpoint_groups`` of new log
    (at the first of these limits): they limit the replay of a restart to about half a second."""
    checkpoint_records: int = 150_000
    """See ``checkpoint_log_bytes``."""
    checkpoint_groups: int = 15_000
    """See ``checkpoint_log_bytes``."""
    checkpoint_state_bytes: int = 16 * MEBIBYTE
    """A checkpoint is also made when the keys and ledgers that are not in the catalog yet take this much
    memory."""
    checkpoint_idle_seconds: float = 30.0
    """A checkpoint is also made when ``checkpoint_idle_bytes`` of them have waited this long while hardly
    anything was written: that frees memory and shortens the replay of a restart. 0: never."""
    checkpoint_idle_bytes: int = MEBIBYTE
    """See ``checkpoint_idle_seconds``."""
    rewrite_live_fraction: float = 0.25
    """A log file whose live share is at most this is rewritten and deleted, once more than
    ``garbage_bytes_min`` of the log are garbage."""
    garbage_bytes_min: int = 64 * MEBIBYTE
    """See ``rewrite_live_fraction``."""
    deletion_delay_seconds: float = 1.0
    """Shortest time between the last checkpoint and one for deleted ledgers, which lets their space be
    freed."""
    verify_on_open: bool = False
    """Read and check the whole log when opening, not only what is behind the checkpoint."""
