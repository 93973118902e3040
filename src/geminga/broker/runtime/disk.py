"""Disk space: free bytes, refusal of publishing, and early deletion of retained messages.

The disk is the file system of the data folder, or ``disk_limit_bytes`` of it. The *mark* is the smaller of
``disk_low_water_bytes`` and ``disk_low_water_fraction``. Free space defines a level:

*plenty*   at least twice the mark (more on small disks): no restrictions.
*low*      less: the store frees space more eagerly, and retained messages are deleted early
           (`geminga.broker.topics.retention_evictor`).
*full*     less than the mark, or a write failed: entries are refused, and producers are blocked as by a
           backlog quota, until a quarter more than the mark is free. Topics are not auto-created. The space
           below the mark is for acknowledgements, deletions, trimming, cursors, policies and administrators.

Pending entries may take at most half of the space above the mark, so that a burst does not exceed it by far.

All changes of the level are automatic: the disk is checked after writes, every second while space is low, and
every 15 seconds otherwise. The rate of writing is measured, and a warning logged if retention would not fit.
"""

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from geminga.broker.runtime.memory_backpressure import MemoryBackpressure
from geminga.broker.runtime.scheduler import INFINITY, Scheduler, Timer
from geminga.broker.settings import BrokerSettings
from geminga.diagnosis.commands import distinct, size, span
from geminga.errors import StoreFull
from geminga.ledger.api import EntryStore, FreeSpace

log = logging.getLogger("geminga.broker")

LOOK_SECONDS: Final = 15.0
SHORT_LOOK_SECONDS: Final = 1.0
"""Interval of checks while nothing is written: with much free space, and with little."""
RATE_SECONDS: Final = 300.0
"""Period over which the rate of writing is averaged, about."""
RATE_SECONDS_MIN: Final = 30.0
"""Shortest period for a rate."""
WARNING_SECONDS: Final = 600.0
"""Interval of the warning that retention will not fit."""
UNDER_WAY_MIN: Final = 64 * 1024
"""Bytes of pending entries that are always allowed."""


class DiskLevel(Enum):
    """Level of free space, see the module."""

    PLENTY = "plenty"
    LOW = "low"
    FULL = "full"


class DiskGuard:
    """Monitor of the disk's space, with its own timer. ``give_way(size)`` deletes retained ledgers."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: EntryStore,
        settings: BrokerSettings,
        backpressure: MemoryBackpressure,
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._settings = settings
        self._backpressure = backpressure
        self._space: FreeSpace | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self._warned_at = self._told_low_at = -INFINITY
        self.level = DiskLevel.PLENTY
        self.refusal = ""
        """Reason why publishing is refused; empty while it is not."""
        self.give_way: Callable[[int], None] | None = None
        self._timer: Timer | None = None
        if store.disk.space is not None:
            self._arm(0.0)
        self.look()

    def __repr__(self) -> str:
        return "the disk"

    # --- current space and limits ---
    @property
    def space(self) -> FreeSpace | None:
        """Result of the last check; None without a disk."""
        return self._space

    @property
    def mark(self) -> int:
        """Free bytes below which publishing is refused."""
        space, settings = self._space, self._settings
        if space is None:
            return 0
        return min(settings.disk_low_water_bytes, int(space.total_bytes * settings.disk_low_water_fraction))

    @property
    def low(self) -> int:
        """Free bytes below which retained messages are deleted early."""
        mark = self.mark
        return mark + max(mark, self._part(8, 256 * 1024 * 1024))

    @property
    def _target(self) -> int:
        """Free bytes at which early deletion stops."""
        return self.low + max(self.mark // 4, self._part(16, 64 * 1024 * 1024))

    def _part(self, number: int, bytes_max: int) -> int:
        """Return a part of the disk: deletions free whole files, which are large on small disks."""
        return 0 if self._space is None else min(self._space.total_bytes // number, bytes_max)

    def look(self) -> None:
        """Act on the store's last check of the disk; cheap if there is no new one."""
        space = self._store.disk.space
        if space is None:
            return
        if space is self._space:
            if self.level is not DiskLevel.PLENTY:
                self._press()
            return
        self._space = space
        mark = self.mark
        before, self.level = self.level, self._level(space.free_bytes, mark)
        if self.level is not before:
            self._changed(before)
        room = max(UNDER_WAY_MIN, (space.free_bytes - mark) // 2)
        self._backpressure.pending_bytes_max = min(self._settings.pending_bytes_max, room)

    def _level(self, free: int, mark: int) -> DiskLevel:
        """Return the level, with hysteresis."""
        if free < max(1, mark + ((self.low - mark) // 4 if self.level is DiskLevel.FULL else 0)):
            return DiskLevel.FULL
        wanted = self.low if self.level is DiskLevel.PLENTY else self._target
        return DiskLevel.LOW if free < wanted else DiskLevel.PLENTY

    def _changed(self, before: DiskLevel) -> None:
        level = self.level
        if level is DiskLevel.FULL:
            self.refusal = f"the disk is full: {self._figures()}"
            self._store.disk.refuse_entries(StoreFull(self.refusal))
            log.error(
                "%s: publishing is refused; acknowledging and deleting still work. Free space "
                "or lower disk_low_water_bytes; publishing then resumes automatically", self.refusal,
            )  # fmt: skip
        elif before is DiskLevel.FULL:
            self.refusal = ""
            self._store.disk.refuse_entries(None)
            log.warning("the disk has free space again: %s; publishing resumes", self._figures())
        elif level is DiskLevel.LOW and self._scheduler.now - self._told_low_at >= WARNING_SECONDS:
            self._told_low_at = self._scheduler.now
            log.warning("the disk is running out of space: %s", self._figures())
        if DiskLevel.PLENTY in (level, before):
            self._store.disk.give_back(eagerly=level is not DiskLevel.PLENTY)
            if level is not DiskLevel.PLENTY:
                self._arm(0.0)

    def _figures(self) -> str:
        space = self._space
        assert space is not None
        of = "the limit of " if self._settings.disk_limit_bytes == space.total_bytes else ""
        free, mark, _ = distinct(size, space.free_bytes, self.mark, self.low)
        return (
            f"{free} of {of}{size(space.total_bytes)} are free"
            f" in {self._settings.data_dir}, publishing stops below {mark}"
        )

    # --- time ---
    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.after(seconds, self._tick, self)

    def _tick(self) -> None:
        self._store.disk.measure()
        self.look()
        short = self.level is not DiskLevel.PLENTY
        self._arm(SHORT_LOOK_SECONDS if short else LOOK_SECONDS)
        self._sample()
        if short:
            self._press()
        else:
            self._forecast()

    def _press(self) -> None:
        """Delete retained messages early, unless space of deleted files is still being freed."""
        space = self._space
        if (
            space is None
            or self.level is DiskLevel.PLENTY
            or self._store.disk.gives_back
            or self.give_way is None
        ):
            return
        if self._settings.disk_retention_gives_way:
            self.give_way(max(1, self._target - space.free_bytes))

    # --- rate at which the disk fills ---
    def _sample(self) -> None:
        if self._space is None:
            return
        samples, now = self._samples, self._scheduler.now
        samples.append((now, self._space.written_bytes))
        while len(samples) > 2 and samples[1][0] <= now - RATE_SECONDS:
            samples.popleft()

    @property
    def bytes_per_second(self) -> float:
        """Rate of writing to the disk in the last minutes; 0 while it is unknown."""
        if len(self._samples) < 2:
            return 0.0
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began) if ended - began >= RATE_SECONDS_MIN else 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds until the mark is reached at this rate without deletions; infinity for never."""
        space, rate = self._space, self.bytes_per_second
        return max(0, space.free_bytes - self.mark) / rate if space is not None and rate > 0 else INFINITY

    @property
    def overflows(self) -> bool:
        """Whether retention, at the present rate, keeps more than fits on the disk."""
        space, minutes = self._space, self._settings.retention_minutes
        if space is None or minutes == 0 or self.bytes_per_second <= 0:
            return False
        megabytes = self._settings.retention_megabytes_default
        if minutes < 0:
            return megabytes < 0
        return self.bytes_per_second * minutes * 60 > space.used_bytes + space.free_bytes - self.mark

    def _forecast(self) -> None:
        now = self._scheduler.now
        if not self.overflows or now - self._warned_at < WARNING_SECONDS:
            return
        self._warned_at = now
        gives_way = self._settings.disk_retention_gives_way and self._settings.retention_minutes > 0
        log.warning(
            "at %s a second the disk is full in %s, long before retention allows deleting messages (%s): "
            "%s. Shorten retention, limit it by size (retention_megabytes) or use a larger disk",
            size(self.bytes_per_second), span(self.seconds_left),
            retention_text(self._settings.retention_minutes),
            "then the oldest of them are deleted earlier" if gives_way else "then publishing stops",
        )  # fmt: skip

    def use(self, settings: BrokerSettings) -> None:
        """Use changed settings for forecasts and log lines."""
        self._settings = settings

    # --- reports ---
    def start_line(self) -> str:
        """Return the line for the start of `geminga standalone`; empty without a disk."""
        if self._space is None:
            return ""
        minutes = self._settings.retention_minutes
        line = f"disk: {self._figures()}; "
        if minutes == 0:
            return line + "acknowledged messages are deleted"
        line += f"acknowledged messages are kept {retention_text(minutes)}"
        if minutes > 0 and self._settings.disk_retention_gives_way:
            low = distinct(size, self._space.free_bytes, self.mark, self.low)[2]
            line += f" while {low} are free"
        return line

    def described(self) -> dict[str, Any]:
        """Return the figures as JSON, for administrators; empty without a disk."""
        space = self._space
        if space is None:
            return {}
        left = self.seconds_left
        return {
            "folder": str(self._settings.data_dir),
            "level": self.level.value,
            "publishingRefused": self.refusal or None,
            "totalBytes": space.total_bytes,
            "freeBytes": space.free_bytes,
            "usedBytes": space.used_bytes,
            "limitBytes": self._settings.disk_limit_bytes,
            "lowWaterBytes": self.mark,
            "writtenBytesPerSecond": round(self.bytes_per_second),
            "secondsToLowWater": None if left == INFINITY else round(left),
            "retentionOverflows": self.overflows,
        }


def retention_text(minutes: int) -> str:
    """Format the retention time of acknowledged messages."""
    return "for ever" if minutes < 0 else f"for {span(minutes * 60)}"
