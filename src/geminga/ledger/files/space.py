"""Free space on the disk, measured on background threads.

The writer's thread measures after some writes, the worker's when the owner requests it; the owner reads the
last result. A store may have a limit of its own (`StoreSettings.folder_bytes_max`), which then counts as the
size of its disk. The owner enforces it by refusing entries in time.

A disk that is full nevertheless stops nothing for good: pending writes wait, in order, and are retried
(`log.journal`, `store`). Until they succeed the free space is reported as 0.
"""

import errno
import logging
import sqlite3
import time
from typing import Final

from geminga.ledger.api import FreeSpace
from geminga.ledger.files.filesystem import FileSystem

logger = logging.getLogger("geminga.ledger")

NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)))
"""Errors that report a lack of space: on the disk, in a quota, or under a limit of the process."""
RETRY_SECONDS: Final = 0.25
"""Interval of retries of writes that found the disk full."""
_FRESH_SECONDS: Final = 0.25
_FRESH_PARTS: Final = 256
_FRESH_BYTES_MIN: Final = 256 * 1024


def is_no_space(error: BaseException) -> bool:
    """Whether an error of the system or of the embedded database reports a lack of space."""
    if isinstance(error, sqlite3.OperationalError):
        code = getattr(error, "sqlite_errorcode", None)
        # SQLite reports the second when it cannot extend its shared memory.
        return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE) or "is full" in str(error)
    return isinstance(error, OSError) and error.errno in NO_SPACE


class SpaceGauge:
    """Last measurement, as ``space``; None before the first. Several threads may measure."""

    def __init__(self, filesystem: FileSystem, folder: str, bytes_max: int) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._bytes_max = bytes_max
        self._written = 0
        self._measured_written = 0
        self._measured_at = float("-inf")
        self.space: FreeSpace | None = None

    def wrote(self, size_bytes: int) -> None:
        """Count bytes added to the folder; measures if enough were added or time has passed."""
        self._written += size_bytes
        space = self.space
        unmeasured = self._written - self._measured_written
        if (
            space is None
            or time.monotonic() - self._measured_at >= _FRESH_SECONDS
            or unmeasured >= max(_FRESH_BYTES_MIN, space.free_bytes // _FRESH_PARTS)
        ):
            self.measure()

    def measure(self) -> None:
        """Measure now. Keeps the last result if the system reports an error."""
        self._measured_at, self._measured_written = time.monotonic(), self._written
        try:
            total, free = self._filesystem.space(self._folder)
            used = self._filesystem.folder_bytes(self._folder)
        except OSError as error:
            logger.debug("cannot measure the space on the disk of %s: %s", self._folder, error)
            return
        if self._bytes_max:
            total = min(total, self._bytes_max)
            free = max(0, min(free, self._bytes_max - used))
        self.space = FreeSpace(total, free, used, self._written)
