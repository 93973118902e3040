"""Configuration of Python's cyclic garbage collector for short passes with very many objects.

By default Python's collector traverses all objects now and then, some 0.1 µs each: with 100,000 topics in
memory that stops the broker for 300 ms. So only young objects are traversed, in passes of a bounded size, and
surviving ones are frozen (`gc.freeze`). Frozen objects are still freed by reference counting, which suffices
here: topics, sessions and subscriptions leave no cycles, which tests check. With few objects, all of them are
traversed every time, because of cycles of other packages.

When much memory was freed, it is returned to the system. Python keeps some free objects scattered among it: a
pass over the young generation frees those, and the C library trims its heap. That takes some 50 ms for 300
MB, so a separate thread does it; as allocations on other threads wait for about half of that, it runs
repeatedly while memory is freed, a second's worth at a time, not once at the end.
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
"""New objects until a pass over the youngest generation: 0.5 ms. With 10,000, and five such passes, the
others took 25 ms each while another process used the processor's caches, and more in total."""
YOUNG_PASSES: Final = 3
"""Young passes until a pass over their survivors: 4 ms."""
MIDDLE_PASSES: Final = 1
"""Middle passes until the survivors are traversed once more and frozen: as much again."""
NEVER: Final = 1 << 30
FEW_SECONDS: Final = 0.01
"""Limit of the duration of a pass over all objects for which they count as few."""
FEW_BLOCKS: Final = 400_000
"""Limit of allocated blocks for that, about 100,000 objects with their untracked data. Counting frozen
objects takes longer than a turn may, if there are millions."""
RECOUNT_SECONDS: Final = 3600.0
"""Interval of checks whether many objects have become few."""
LOOK_SECONDS: Final = 30.0
"""Interval of checks whether much memory was freed ..."""
BUSY_LOOK_SECONDS: Final = 1.0
"""... and while objects come and go. Counting the blocks in use takes 0.3 ms for 7 million."""
MUCH_BLOCKS: Final = 100_000
"""Decrease of blocks in use that counts as much: about 10 MB."""
REMEMBERING: Final = ("aiohttp", "yarl")
"""Packages with caches, such as those of the last hundred addresses. Caches are small, but after busy times
single objects in them keep whole mebibytes allocated."""


_Cache: Final = type(lru_cache(lambda: None))


class GarbageCollectorPacing:
    """Pacing of the collector, one per process, between `start` and `stop`."""

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
        """Freeze all present objects, and pace passes over new ones."""
        self._settle()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, NEVER)
        gc.callbacks.append(self._passed)
        gc.enable()
        # Load now: objects loaded when memory is returned would be scattered among freed ones.
        self._trim = _trimmer()
        self._look()

    def stop(self) -> None:
        """Restore Python's defaults."""
        if self._passed not in gc.callbacks:
            return  # it never began
        if self._timer is not None:
            self._timer.cancel()
        gc.callbacks.remove(self._passed)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _passed(self, phase: str, info: dict[str, Any]) -> None:
        """Count a pass; called by the collector on the thread that triggered it."""
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
        """Return memory to the system if much of it was freed."""
        if self._much_has_left(time.monotonic()):
            forget_what_is_remembered()
            self._settle()
            self._give_back()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _much_has_left(self, now: float) -> bool:
        """Return whether much memory was freed since the last time."""
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
            # A value may be None instead of a module: a blocked import.
            for each in list(getattr(module, "__dict__", {}).values()):
                if isinstance(each, _Cache):
                    each.cache_clear()


def _trimmer() -> Callable[[], object]:
    """Return a function that returns free memory of the C library to the system, if possible (glibc)."""
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # other systems
        return lambda: None
    return lambda: trim(0)
