"""Both clusters of a mirror, which its partitions share, and the state and counters of a partition."""

from dataclasses import dataclass, field
from enum import Enum

from geminga.asyncio import Admin
from geminga.entries import ClientContext


class PartitionState(Enum):
    """State of a partition's mirror."""

    OPENING = "opening"
    COPYING = "copying"
    WAITING = "waiting to try again"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class Counters:
    """Counters of a partition since the start of the mirror."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0
    duplicates: int = 0
    skipped: int = 0
    missed: int = 0
    sessions: int = 0


@dataclass(slots=True)
class ClusterPair:
    """Both clusters with their clients, for the partitions of a mirror."""

    source: ClientContext
    target: ClientContext
    source_admin: Admin
    target_admin: Admin
    source_name: str
    forwarded_to: str | None
    """Name of the target if messages of other clusters are copied as well, else None."""
    mirror: str
    on_mismatch: str
    window_bytes: int = field(default=4 * 1024 * 1024)
    """Limit per partition of bytes without a receipt, and of bytes queued for sending."""
