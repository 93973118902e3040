"""Pacing of Python's cyclic garbage collector: no pass over all objects of a large broker.

By default Python's collector traverses all objects now and then, some 0.1 µs each: with 100,000 topics in
memory that stops the broker for 300 ms. So only young objects are traversed, in passes of a bounded size, and
surviving ones are frozen (`gc.freeze`). Frozen objects are still freed by reference counting, which suffices
here: topics, sessions and subscriptions leave no cycles, which tests check. With few objects, all of them are
traversed once a minute at most, because of cycles of other packages.
"""

import asyncio
import contextlib
import gc
import sys
from typing import Any, Final

YOUNG_OBJECTS: Final = 3_000
"""New objects until a pass over the youngest generation: 0.5 ms."""
YOUNG_PASSES: Final = 3
"""Young passes until a pass over their survivors, which are then traversed once more and frozen: 4 ms."""
NEVER: Final = 1 << 30
FEW_BLOCKS: Final = 400_000
"""Limit of allocated blocks for a pass over all objects: about 100,000 objects with their untracked data."""
ALL_SECONDS: Final = 60.0
"""Shortest interval of such passes: each stops the broker for up to 50 ms."""


class GarbageCollectorPacing:
    """Pacing of the collector, one per process, between `start` and `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thresholds = gc.get_threshold()
        self._next_all = 0.0

    def start(self) -> None:
        """Freeze all present objects, and pace passes over new ones."""
        self._freeze()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, NEVER)
        gc.callbacks.append(self._passed)
        gc.enable()

    def stop(self) -> None:
        """Restore Python's defaults."""
        if self._passed not in gc.callbacks:
            return  # it never began
        gc.callbacks.remove(self._passed)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _passed(self, phase: str, info: dict[str, Any]) -> None:
        """Have the survivors frozen; called by the collector on the thread that triggered the pass."""
        if phase == "stop" and info["generation"] == 1:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._freeze)

    def _freeze(self) -> None:
        now = self._loop.time()
        if now >= self._next_all and sys.getallocatedblocks() < FEW_BLOCKS:
            self._next_all = now + ALL_SECONDS
            gc.unfreeze()
        gc.collect()
        gc.freeze()
