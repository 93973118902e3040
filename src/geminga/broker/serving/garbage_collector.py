"""Pacing of Python's cyclic garbage collector: no pass over all objects of a large broker.

By default Python's collector traverses all objects now and then, some 0.1 µs each: with 100,000 topics in
memory that stops the broker for 300 ms. So only young objects are traversed, in passes of a bounded size.
What is loaded at the start is frozen (`gc.freeze`): a pass over all of it takes 25 to 50 ms.
Survivors are traversed once a minute, because of cycles of other packages, until they are many: then they are
frozen, too. Frozen objects are still freed by reference counting, which suffices here: topics, sessions and
subscriptions leave no cycles, which tests check.
"""

import asyncio
import contextlib
import gc
import sys
from typing import Any, Final

YOUNG_OBJECTS: Final = 3_000
"""New objects until a pass over the youngest generation: 0.5 ms."""
YOUNG_PASSES: Final = 3
"""Young passes until a pass over their survivors, which are then old: 2 ms."""
NEVER: Final = 1 << 30
MANY_BLOCKS: Final = 60_000
"""Blocks allocated since objects were last frozen until the old ones are: some 20,000 objects, 3 ms."""
OLD_SECONDS: Final = 60.0
"""Shortest interval of passes over the old objects that are not frozen."""


class GarbageCollectorPacing:
    """Pacing of the collector, one per process, between `start` and `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thresholds = gc.get_threshold()
        self._next_pass = 0.0
        self._frozen_blocks = 0

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
        """Have the old objects looked at; called by the collector on the thread that triggered the pass."""
        if phase == "stop" and info["generation"] == 1:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """Traverse the old objects if it is time to, and freeze them if they are many."""
        blocks = sys.getallocatedblocks()
        self._frozen_blocks = min(self._frozen_blocks, blocks)  # many may have been freed since
        if blocks - self._frozen_blocks >= MANY_BLOCKS:
            self._freeze()
        elif self._loop.time() >= self._next_pass:
            self._next_pass = self._loop.time() + OLD_SECONDS
            gc.collect()

    def _freeze(self) -> None:
        gc.collect()
        gc.freeze()
        self._frozen_blocks = sys.getallocatedblocks()
        self._next_pass = self._loop.time() + OLD_SECONDS
