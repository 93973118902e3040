"""What all partitions of a mirror share: both clusters; and how a partition says how it fares."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from geminga.asyncio import Admin
from geminga.client.context import ClientContext
from geminga.mirror.keys import StampKeys


class PartitionState(Enum):
    """Where a partition stands."""

    OPENING = "opening"
    COPYING = "copying"
    WAITING = "waiting to try again"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class Counters:
    """Since the start of this mirror."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0
    duplicates: int = 0
    skipped: int = 0
    missed: int = 0
    sessions: int = 0


@dataclass(slots=True)
class ClusterPair:
    """Both clusters, as a partition uses them."""

    source: ClientContext
    target: ClientContext
    source_admin: Admin
    target_admin: Admin
    source_name: str
    target_name: str
    mirror: str
    on_mismatch: str
    source_keys: StampKeys
    """Of the marks that are written here."""
    target_keys: StampKeys
    """Of what mirrors brought that read the target."""
    window_bytes: int = field(default=4 * 1024 * 1024)
    """Bytes without a receipt, and as many that wait to be sent, of one partition."""
