"""Completion of a store's writes: results of the writer and the worker, applied on the owner's thread."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from geminga.ledger.callbacks import run_callback, run_in_steps
from geminga.ledger.checkpoints import Checkpoints
from geminga.ledger.format import CHECKPOINT, DROP_FILE
from geminga.ledger.journal import FailedRecords
from geminga.ledger.ledger_table import TailCache
from geminga.ledger.log import Group
from geminga.ledger.rewriting import LogRewriter
from geminga.ledger.state import StoreState
from geminga.ledger.store_writes import StoreWrites

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


class CompletionParts(NamedTuple):
    """Parts of a store that learn of written groups."""

    writes: StoreWrites
    state: StoreState
    tails: TailCache
    rewriter: LogRewriter
    checkpoints: Checkpoints
    sizes: dict[int, int]
    """Size of each log file."""
    finished: deque[Callable[[], None]]
    """Callbacks of the worker and the readers."""


class Completions:
    """Applies written groups to the state, and runs the callbacks of their records."""

    def __init__(self, parts: CompletionParts) -> None:
        self._parts = parts
        self.tails = parts.tails
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
        completed, finished = self._completed, self._parts.finished
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
        if outcome.kinds[-1] == CHECKPOINT:
            yield from self._parts.checkpoints.reached(outcome)
        yield from run_in_steps(outcome.dones, None)

    def _settle(self, group: Group) -> None:
        """Record that a group is on the disk."""
        _, state, tails, rewriter, checkpoints, sizes, _ = self._parts
        counts, size_bytes = state.settle(group)
        checkpoints.wrote(group)
        if counts:
            entries = sum(counts.values())
            self.appended_entries += entries
            self.appended_bytes += size_bytes
            tails.add(counts, entries, size_bytes)
        if group.sealed is not None:
            sizes[group.sealed[0]] = group.sealed[1]
        rewriter.earn(group.payload_bytes)
        if DROP_FILE in group.kinds:
            for kind, number in zip(group.kinds, group.firsts, strict=True):
                if kind == DROP_FILE:
                    sizes.pop(number, None)
                    state.files.discard(number)
