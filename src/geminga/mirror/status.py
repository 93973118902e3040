"""What a mirror is doing, for people, as JSON and for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FAMILIES = (
    ("geminga_mirror_messages_total", "counter", "messages", "Mirrored, as their batches count them."),
    ("geminga_mirror_entries_total", "counter", "entries", "The same in entries: a batch is one."),
    ("geminga_mirror_bytes_total", "counter", "bytes", "The same in bytes, as they are stored."),
    ("geminga_mirror_duplicates_total", "counter", "messages", "Dropped by the target: it had them."),
    (
        "geminga_mirror_skipped_total",
        "counter",
        "messages",
        "Left where they are: they came from the target.",
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
"""Name, type, unit and meaning of what is told of each partition."""


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """A subscription."""

    name: str
    """Its name, on both sides."""
    marked: str
    """The last mark-delete position that the target was told, as ``ledger:entry``; empty before."""
    note: str
    """Why it is not followed; empty when it is."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition, or a topic without. Counts are since the start of this mirror."""

    topic: str
    """Its full name, on both sides."""
    state: str
    """``opening``, ``copying``, ``waiting to try again``, ``stopped`` or ``failed``."""
    lag_entries: int
    """Entries of the source that are not in the target yet, as the source's broker counts them (a batch is
    one); -1 while that is not known, as before the first look and while the partition is not copied."""
    done: str
    """Everything up to this position of the source, ``ledger:entry``, is in the target or stays here."""
    messages: int
    """Mirrored."""
    entries: int
    """The same; a batch is one."""
    bytes: int
    """The same, as they are stored."""
    duplicates: int
    """Messages that the target had already."""
    skipped: int
    """Messages that came from the target, and stay."""
    missed: int = 0
    """Entries that the source did not deliver: expired, evicted or skipped there, or of aborted
    transactions."""
    error: str = ""
    """Why it is not copying."""
    subscriptions: Sequence[SubscriptionStatus] = field(default=())
    """Those that go along."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """What a mirror is doing."""

    source: str
    """The source's service URL."""
    target: str
    """The target's."""
    name: str
    """The mirror's."""
    caught_up: bool
    """What the source had when this mirror began is in the target."""
    partitions: Sequence[PartitionStatus] = ()
    """Of all topics."""
    refused: Sequence[tuple[str, str]] = ()
    """Topics that cannot be mirrored, and why."""
    unmatched: Sequence[str] = ()
    """Patterns that match no topic of the source."""
    warnings: Sequence[str] = ()
    """Limits of the clusters that users of the target will notice."""

    @property
    def messages(self) -> int:
        """Mirrored since the start, of all partitions."""
        return sum(one.messages for one in self.partitions)

    @property
    def bytes(self) -> int:
        """The same in bytes."""
        return sum(one.bytes for one in self.partitions)

    @property
    def lag_entries(self) -> int:
        """Entries that are not in the target yet, as far as that is known."""
        return sum(max(0, one.lag_entries) for one in self.partitions)

    @property
    def failed(self) -> list[str]:
        """Why what is not mirrored is not."""
        return [
            *(f"{topic}: {reason}" for topic, reason in self.refused),
            *(one.error for one in self.partitions if one.state == "failed"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; with the sums."""
        return {
            **asdict(self), "messages": self.messages, "bytes": self.bytes, "lag_entries": self.lag_entries,
        }  # fmt: skip

    def line(self) -> str:
        """One line for a person."""
        states: dict[str, int] = {}
        for one in self.partitions:
            is_done = one.state == "stopped" and self.caught_up and one.lag_entries == 0
            state = "up to date" if is_done else one.state
            states[state] = states.get(state, 0) + 1
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no topics yet"
        missed = sum(one.missed for one in self.partitions)
        at_least = "at least " if any(one.lag_entries < 0 for one in self.partitions) else ""
        return (
            f"{self.messages:,} messages ({self.bytes / 1e6:,.1f} MB) mirrored, "
            f"{at_least}{self.lag_entries:,} entries behind; partitions: {told}"
            + (f"; {missed:,} entries were not delivered by the source (see the log)" if missed else "")
        )

    def exposition(self) -> str:
        """Prometheus' text format."""
        lines: list[str] = []
        for name, kind, _, _ in FAMILIES:
            lines.append(f"# TYPE {name} {kind}")
            for one in self.partitions:
                lines.append(f"{name}{{{self._labels(one)}}} {_value(name, one)}")
        return "\n".join(lines) + "\n"

    def _labels(self, one: PartitionStatus) -> str:
        return f'mirror="{_escaped(self.name)}",topic="{_escaped(one.topic)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _value(name: str, one: PartitionStatus) -> int:
    if name == "geminga_mirror_up":
        return int(one.state == "copying")
    found: int = getattr(one, name.removeprefix("geminga_mirror_").removesuffix("_total"))
    return found
