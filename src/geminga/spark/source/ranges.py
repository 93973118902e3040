"""Ranges of partitions that tasks read, and how small ones share a task."""

from collections.abc import Sequence
from dataclasses import dataclass

from geminga.offload.manifest import OffloadedLedger
from geminga.spark.offsets import Offset, Partition, entries_between, partition_topic

ENTRIES_MIN = 16
"""Minimum entries of a task, if its range has them."""
TASKS_MIN = 8
"""Tasks that are left when tasks with fewer than `ENTRIES_MIN` entries are combined."""
ENTRIES_COMBINED = 64
"""Maximum entries of a task that reads several ranges."""


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a partition that one task reads: after ``start``, up to and including ``end``."""

    partition: Partition
    start: Offset
    end: Offset
    beginning: Offset | None = None
    """For a partition read from its first message on: the offset before that message."""
    offloaded: tuple[OffloadedLedger, ...] = ()
    """The ledgers of the range that are read as files."""
    next_kept: tuple[int, int] | None = None
    """The entry (ledger, id) that followed ``start``, in a later ledger, at planning time, when the query's
    subscription had kept all messages after ``start``: so none was between them. None: unknown."""
    compacted: bool = False
    """Whether the range is read compacted; see `geminga.spark.source.compacted`."""
    goes_on: bool = False
    """Whether to read on after ``end``, to the newest message at that time."""

    def __str__(self) -> str:
        return f"{partition_topic(self.partition)} after {self.start} up to {self.end}"


def combined(
    ranges: Sequence[Range], tasks_min: int, entries_max: int = ENTRIES_COMBINED
) -> list[list[Range]]:
    """Return the ranges by task. Small ones share tasks of at most ``entries_max`` entries, as long as
    ``tasks_min`` tasks are left: the start of a task takes longer than reading them. The tasks read each
    partition in its order, if its ranges are together and in order."""
    if len(ranges) <= tasks_min:
        return [[part] for part in ranges]
    tasks: list[list[int]] = []
    small: list[tuple[int, int]] = []
    """Numbers of the small ranges, with their entries."""
    for number, part in enumerate(ranges):
        count = ENTRIES_MIN if part.compacted else entries_between(part.start, part.end) or ENTRIES_MIN
        if count < ENTRIES_MIN:
            small.append((number, count))
        else:
            tasks.append([number])
    entries = sum(count for _, count in small)
    wanted = min(len(small), max(tasks_min - len(tasks), -(-entries // entries_max)))
    begun = held = 0
    last = -1
    for left, (number, count) in zip(range(len(small), 0, -1), small, strict=True):
        follows_large = number - 1 != last and ranges[number].partition == ranges[number - 1].partition
        is_full = held + count > entries_max or held * wanted >= entries
        if not begun or is_full or follows_large or left <= wanted - begun:
            tasks.append([])
            begun, held = begun + 1, 0
        tasks[-1].append(number)
        held, last = held + count, number
    return [[ranges[number] for number in task] for task in sorted(tasks)]
