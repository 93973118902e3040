"""Completion of a store's writes: results of the writer and the worker, applied on the owner's thread."""

import logging
from collections import deque
from collections.abc import Callable, Iterator

from geminga.ledger.callbacks import run_callback, run_in_steps
from geminga.ledger.files.format import RecordKind
from geminga.ledger.log.journal import FailedRecords
from geminga.ledger.log.log import Group
from geminga.ledger.state.ledger_table import TailCache
from geminga.ledger.store_parts import StoreParts
from geminga.ledger.upkeep.checkpoints import Checkpoints
from geminga.ledger.upkeep.rewriting import LogRewriter

logger = logging.getLogger("geminga.ledger")


class WakeUp:
    """Wakes the owner, from any thread, once until it polls."""

    def __init__(self, wakeup: Callable[[], None] | None) -> None:
        self._wakeup = wakeup
        self.is_signaled = False

    def signal(self) -> None:
        if self.is_signaled:
            return
        self.is_signaled = True
        if self._wakeup is not None:
            try:
                self._wakeup()
            except RuntimeError as error:  # the owner's event loop is closed, it will not poll again
                logger.debug("cannot wake the store's owner: %s", error)


class Completions:
    """Applies written groups to the state, and runs the callbacks of their records."""

    def __init__(
        self,
        parts: StoreParts,
        rewriter: LogRewriter,
        checkpoints: Checkpoints,
        finished: deque[Callable[[], None]],
    ) -> None:
        """``finished``: callbacks of the worker and the readers."""
        self._parts = parts
        self._rewriter = rewriter
        self._checkpoints = checkpoints
        self._finished = finished
        self.tails = TailCache(parts.state.ledgers, parts.settings.cache_bytes)
        self._completed = parts.writes.journal.completed
        self._completing: Iterator[int] | None = None
        self.appended_entries = 0
        self.appended_bytes = 0

    @property
    def is_completing(self) -> bool:
        """Whether a group's callbacks have run in part."""
        return self._completing is not None

    def run(self, enough: Callable[[], bool]) -> int:
        """Run the callbacks that are ready, until ``enough``; returns how many ran."""
        ran = 0
        completed, finished = self._completed, self._finished
        while self._completing is not None or completed:
            if self._completing is None:
                self._completing = self._complete(completed.popleft())
            count = next(self._completing, None)
            if count is None:
                self._completing = None
                continue
            ran += count
            if enough():
                break
        while finished:
            run_callback(finished.popleft())
            if enough():
                break
        return ran

    def _complete(self, outcome: Group | FailedRecords) -> Iterator[int]:
        """Process a result of the writer. Each step yields how many callbacks it ran."""
        if isinstance(outcome, FailedRecords):
            self._parts.writes.end(outcome.error)
            yield from run_in_steps([record[4] for record in outcome.records], outcome.error)
            return
        self._settle(outcome)
        if outcome.kinds[-1] == RecordKind.CHECKPOINT:
            yield from self._checkpoints.reached(outcome)
        yield from run_in_steps(outcome.dones, None)

    def _settle(self, group: Group) -> None:
        """Record that a group is on the disk."""
        state, sizes = self._parts.state, self._parts.sizes
        counts, size_bytes = state.settle(group)
        self._checkpoints.wrote(group)
        if counts:
            entries = sum(counts.values())
            self.appended_entries += entries
            self.appended_bytes += size_bytes
            self.tails.add(counts, entries, size_bytes)
        if group.sealed is not None:
            sizes[group.sealed[0]] = group.sealed[1]
        self._rewriter.earn(group.payload_bytes)
        if RecordKind.DROP_FILE in group.kinds:
            for kind, number in zip(group.kinds, group.firsts, strict=True):
                if kind == RecordKind.DROP_FILE:
                    sizes.pop(number, None)
                    state.files.discard(number)
