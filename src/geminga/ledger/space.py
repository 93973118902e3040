"""How much room there is on the disk, measured where nobody waits for it.

The writer's thread measures when it has written a little, the worker's when the owner asks for it; the owner
reads what was found last. A store may be given a limit of its own (`StoreSettings.folder_bytes_max`): what
its folder may take then counts as its disk. It is the owner who keeps to it, by refusing entries in time.

A disk that is full nevertheless stops nothing for good: what was to be written waits, in its order, and is
tried again (`journal`, `store`). While it does there is no room.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import time
from collections.abc import Callable
from typing import Final

from geminga.ledger.api import FreeSpace
from geminga.ledger.filesystem import FileSystem

logger = logging.getLogger("geminga.ledger")

NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)))
"""What the system says when there is no room: on the disk, in a quota, or under a limit of the process."""
RETRY_SECONDS: Final = 0.25
"""What did not fit is tried again this often."""
_FRESH_SECONDS: Final = 0.25
_FRESH_PARTS: Final = 256
_FRESH_BYTES_MIN: Final = 256 * 1024


def is_no_space(error: BaseException) -> bool:
    """Whether an error of the system or of the embedded database says that there is no room."""
    if isinstance(error, sqlite3.OperationalError):
        code = getattr(error, "sqlite_errorcode", None)
        # The second is what the database makes of it when it extends its shared memory.
        return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE) or "is full" in str(error)
    return isinstance(error, OSError) and error.errno in NO_SPACE


class SpaceGauge:
    """What was measured last, as ``space``; None until it was. Several threads may measure."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._bytes_max = bytes_max
        self._clock = clock
        self._written = 0
        self._measured_written = 0
        self._measured_at = float("-inf")
        self.space: FreeSpace | None = None

    def wrote(self, size_bytes: int) -> None:
        """So much was added to the folder; measures when that is worth it."""
        self._written += size_bytes
        space = self.space
        unmeasured = self._written - self._measured_written
        if (
            space is None
            or self._clock() - self._measured_at >= _FRESH_SECONDS
            or unmeasured >= max(_FRESH_BYTES_MIN, space.free_bytes // _FRESH_PARTS)
        ):
            self.measure()

    def measure(self) -> None:
        """Look at the disk now. What cannot be learnt stays as it was."""
        self._measured_at, self._measured_written = self._clock(), self._written
        try:
            total, free = self._filesystem.space(self._folder)
            used = self._filesystem.folder_bytes(self._folder)
        except OSError as error:
            logger.debug("the room on the disk of %s is not known: %s", self._folder, error)
            return
        if self._bytes_max:
            total = min(total, self._bytes_max)
            free = max(0, min(free, self._bytes_max - used))
        self.space = FreeSpace(total, free, used, self._written)
