"""Status of a mirror, as objects, text, JSON and Prometheus metrics."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from geminga.client.observe.metrics_port import exposition

FAMILIES = (
    ("geminga_mirror_messages_total", "counter", "messages", "Mirrored, as their batches count them."),
    ("geminga_mirror_entries_total", "counter", "entries", "The same in entries: a batch is one."),
    ("geminga_mirror_bytes_total", "counter", "bytes", "The same in bytes, as they are stored."),
    ("geminga_mirror_duplicates_total", "counter", "messages", "Dropped by the target: it had them."),
    (
        "geminga_mirror_skipped_total",
        "counter",
        "messages",
        "Not copied: they came to the source from another cluster.",
    ),
    (
        "geminga_mirror_missed_total",
        "counter",
        "entries",
        "Not delivered by the source: expired, evicted or skipped there, or of aborted transactions.",
    ),
    (
        "geminga_mirror_lag_entries",
        "gauge",
        "entries",
        "Of the source, not in the target yet; -1: not known.",
    ),
    ("geminga_mirror_up", "gauge", "0 or 1", "Whether the partition is being mirrored now."),
)
"""Name, type, unit and meaning of each partition's metrics."""


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """Status of a subscription."""

    name: str
    """Name of the subscription, the same on both sides."""
    marked: str
    """Mark-delete position in the target after the last update, as ``ledger:entry``; empty before."""
    note: str
    """Reason if the subscription is not mirrored; else empty."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Status of a partition or unpartitioned topic. Counts are since the start of the mirror."""

    topic: str
    """Full name, the same on both sides."""
    state: str
    """One of ``opening``, ``copying``, ``waiting to try again``, ``stopped`` and ``failed``."""
    lag_entries: int
    """Entries of the source that are not in the target yet, counted by the source's broker (a batch is one
    entry); -1 if unknown, before the first query and while the partition is not copied."""
    done: str
    """Source position, ``ledger:entry``, up to which all entries are mirrored or excluded."""
    messages: int
    """Mirrored messages."""
    entries: int
    """Mirrored entries; a batch is one entry."""
    bytes: int
    """Mirrored bytes, as stored."""
    duplicates: int
    """Messages that the target had already."""
    skipped: int
    """Messages that are not copied because they came to the source from the target or another cluster."""
    missed: int = 0
    """Entries that the source did not deliver: expired, evicted, skipped, or of aborted transactions."""
    error: str = ""
    """Reason if the partition is not copied; else empty."""
    subscriptions: Sequence[SubscriptionStatus] = field(default=())
    """Status of the mirrored subscriptions."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """Status of a mirror."""

    source: str
    """The source's service URL."""
    target: str
    """The target's service URL."""
    name: str
    """Name of the mirror."""
    caught_up: bool
    """True if everything that the source had when the mirror started is in the target."""
    partitions: Sequence[PartitionStatus] = ()
    """Status of all partitions."""
    refused: Sequence[tuple[str, str]] = ()
    """Topics that cannot be mirrored, with reasons."""
    unmatched: Sequence[str] = ()
    """Patterns that match no topic of the source."""
    warnings: Sequence[str] = ()
    """Limits of the target cluster that affect its users, and what fails at present beside the copying, for
    example because an admin address does not answer."""

    @property
    def messages(self) -> int:
        """Messages of all partitions, mirrored since the start."""
        return sum(one.messages for one in self.partitions)

    @property
    def bytes(self) -> int:
        """Bytes of all partitions, mirrored since the start."""
        return sum(one.bytes for one in self.partitions)

    @property
    def lag_entries(self) -> int:
        """Entries that are not in the target yet, of partitions whose lag is known."""
        return sum(max(0, one.lag_entries) for one in self.partitions)

    @property
    def failed(self) -> list[str]:
        """Error messages of topics and partitions that failed."""
        return [
            *(f"{topic}: {reason}" for topic, reason in self.refused),
            *(one.error for one in self.partitions if one.state == "failed"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON values, with totals."""
        return {
            **asdict(self), "messages": self.messages, "bytes": self.bytes, "lag_entries": self.lag_entries,
        }  # fmt: skip

    def line(self) -> str:
        """Return the status as a line of text."""
        states: dict[str, int] = {}
        for one in self.partitions:
            state = _stopped(one, self.caught_up) if one.state == "stopped" else one.state
            states[state] = states.get(state, 0) + 1
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no topics yet"
        missed = sum(one.missed for one in self.partitions)
        skipped = sum(one.skipped for one in self.partitions)
        at_least = "at least " if any(one.lag_entries < 0 for one in self.partitions) else ""
        return (
            f"{self.messages:,} messages ({self.bytes / (1 << 20):,.1f} MiB) mirrored, "
            f"{at_least}{self.lag_entries:,} entries behind; partitions: {told}"
            + (f"; {skipped:,} messages of other clusters not copied" if skipped else "")
            + (f"; {missed:,} entries were not delivered by the source (see the log)" if missed else "")
        )

    def exposition(self) -> str:
        """Return the status in Prometheus' text format."""
        samples = (
            (name, {"mirror": self.name, "topic": one.topic}, _value(name, one))
            for name, *_ in FAMILIES
            for one in self.partitions
        )
        return exposition(((name, kind, text) for name, kind, _, text in FAMILIES), samples)


def _stopped(one: PartitionStatus, caught_up: bool) -> str:
    """Return how a partition has ended."""
    if one.error:
        return "stopped by an error"
    if one.lag_entries == 0 or (caught_up and one.lag_entries < 0):
        return "up to date"
    return "stopped before the newest message (run the mirror again to copy the rest)"


def _value(name: str, one: PartitionStatus) -> int:
    if name == "geminga_mirror_up":
        return int(one.state == "copying")
    found: int = getattr(one, name.removeprefix("geminga_mirror_").removesuffix("_total"))
    return found
