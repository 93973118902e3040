"""The cycle collector of a broker with very many objects: its passes stay short.

Python's collector looks at every object now and then, some 0.1 µs each: with 100,000 topics in memory all
waits for 300 ms. So objects are looked at while they are young, in passes of a bounded size, and those that
stay are set apart from then on (`gc.freeze`). They still leave memory when nobody refers to them any more,
which is how everything here does: topics, sessions and subscriptions leave no cycles behind, and tests hold
that. While there are few objects, all of them are looked at every time, for the sake of what is not ours.

When much has left memory, it is to go back to the system. Python keeps some of what is free at hand, and that
lies anywhere among it: a pass over what is young lets go of it, and the C library is asked to do as much.
That takes some 50 ms for 300 MB, so a thread of its own asks; and as whoever wants memory meanwhile waits for
about half of that, it is asked while memory is given up, a second's worth at a time, not when all has been.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

YOUNG_OBJECTS: Final = 3_000
"""A pass over the newest objects for so many more: 0.5 ms. With 10,000, and five such passes, the others took
25 ms each while somebody else used the processor's caches, and more of it in all."""
YOUNG_PASSES: Final = 3
"""After so many of them, one over all that these left: 4 ms."""
MIDDLE_PASSES: Final = 1
"""After so many of those, what is left is looked at once more and set apart: as much again."""
NEVER: Final = 1 << 30
FEW_SECONDS: Final = 0.01
"""There are few objects as long as a pass over all of them takes at most this."""
FEW_BLOCKS: Final = 400_000
"""... which is about what 100,000 objects take in Python's memory, with all that the collector does not know.
To count those that are set apart takes longer than a turn may, if there are millions."""
RECOUNT_SECONDS: Final = 3600.0
"""Many objects may have become few: looked at this far apart."""
LOOK_SECONDS: Final = 30.0
"""Whether much has left memory is looked at this far apart."""
BUSY_LOOK_SECONDS: Final = 1.0
"""... and this far apart while objects come and go. To count what is in use takes 0.3 ms for 7 million."""
MUCH_BLOCKS: Final = 100_000
"""So much less in use than before is much: some ten megabytes."""
REMEMBERING: Final = ("aiohttp", "yarl")
"""Packages that remember what they worked out last, such as the addresses of the last hundred requests. It
is little, but left of busy times: an object here and there, each of which keeps a mebibyte for itself."""


_Cache: Final = type(lru_cache(lambda: None))


class GarbageCollectorPacing:
    """See the module. One a process; it works from `start` to `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._passes = 0
        self._are_few = True
        self._recount_at = 0.0
        self._thresholds = gc.get_threshold()
        self._most_blocks = 0
        self._looked_at = 0.0
        self._giving_back: threading.Thread | None = None
        self._trim: Callable[[], object] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look at all that there is, and from then on at what comes."""
        self._settle()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, NEVER)
        gc.callbacks.append(self._passed)
        gc.enable()
        # Here, and not when memory is to go back: what is loaded then would lie in the midst of it.
        self._trim = _trimmer()
        self._look()

    def stop(self) -> None:
        """As Python has it."""
        if self._passed not in gc.callbacks:
            return  # it never began
        if self._timer is not None:
            self._timer.cancel()
        gc.callbacks.remove(self._passed)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _passed(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the collector, on whichever thread made it run."""
        if phase != "stop" or info["generation"] != 1:
            return
        self._passes += 1
        if self._passes == MIDDLE_PASSES:
            try:
                self._loop.call_soon_threadsafe(self._settle)
            except RuntimeError:  # the loop is closed: the process ends
                return

    def _settle(self) -> None:
        self._passes = 0
        began = time.monotonic()
        if not self._are_few and began >= self._recount_at:
            self._are_few = sys.getallocatedblocks() < FEW_BLOCKS
            self._recount_at = began + RECOUNT_SECONDS
        if self._are_few:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        ended = time.monotonic()
        if self._are_few and ended - began > FEW_SECONDS:
            self._are_few, self._recount_at = False, ended + RECOUNT_SECONDS
        if ended - self._looked_at >= BUSY_LOOK_SECONDS and self._much_has_left(ended):
            forget_what_is_remembered()
            self._give_back()

    def _look(self) -> None:
        """Give memory back if much of it is not in use any more."""
        if self._much_has_left(time.monotonic()):
            forget_what_is_remembered()
            self._settle()
            self._give_back()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _much_has_left(self, now: float) -> bool:
        """Whether much is not in use any more since this was so before."""
        self._looked_at = now
        blocks = sys.getallocatedblocks()
        self._most_blocks = max(self._most_blocks, blocks)
        if self._most_blocks - blocks < MUCH_BLOCKS:
            return False
        self._most_blocks = blocks
        return True

    def _give_back(self) -> None:
        if self._giving_back is not None and self._giving_back.is_alive():
            return
        self._giving_back = threading.Thread(target=self._trim, name="geminga-memory", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads: the next time, perhaps
            self._giving_back.start()


def forget_what_is_remembered() -> None:
    """Empty the caches of `REMEMBERING`, as far as they are loaded."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in REMEMBERING:
            # In place of a module there may be None: what must not be imported.
            for each in list(getattr(module, "__dict__", {}).values()):
                if isinstance(each, _Cache):
                    each.cache_clear()


def _trimmer() -> Callable[[], object]:
    """Has what the C library holds free go back to the system, where it can be asked for that (glibc)."""
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # other systems
        return lambda: None
    return lambda: trim(0)
