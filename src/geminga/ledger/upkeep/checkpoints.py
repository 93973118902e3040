"""Checkpoints: when the catalog is updated from the log, and how this runs in the background.

A checkpoint is a position in the log. When all records before it are on the disk, the worker writes the
resulting changes to the catalog; a restart replays only the log behind it. A checkpoint is also made after
deletions, because their space is freed only behind it, and when writing stops: the latest changes are
scattered over the memory that was allocated with them, and would keep it from the operating system.

If the disk is full the checkpoint stays unfinished and is written later: the log has all records.

Collecting a large checkpoint's changes and freeing them afterwards takes long, so both are done in steps
(`geminga.ledger.steps`). No group is settled while the changes are collected, and no other checkpoint
begins until all changes are freed.
"""

import logging
import time
from collections.abc import Callable, Iterator
from itertools import chain

from geminga.errors import StoreStopped
from geminga.ledger.api import never
from geminga.ledger.catalog.catalog import CheckpointSnapshot
from geminga.ledger.files.format import OFFSET_BITS, OFFSET_MASK, RecordKind
from geminga.ledger.files.space import RETRY_SECONDS, is_no_space
from geminga.ledger.log.log import Group
from geminga.ledger.state.index import Index
from geminga.ledger.steps import parts as in_parts
from geminga.ledger.store_parts import StoreParts
from geminga.ledger.upkeep.rewriting import LogRewriter

logger = logging.getLogger("geminga.ledger")

BEHIND_TIMES = 4
"""The store `is_behind` if changes of this many checkpoints are in memory while one is being saved."""
QUIET_PARTS = 16
"""A store is idle while at most 1/QUIET_PARTS of `checkpoint_idle_bytes` of changes is added. A slow stream
of changes is then saved every eight minutes at most, with the default settings."""


class Checkpoints:
    """Starts, writes and finishes checkpoints. Used on the owner's thread."""

    def __init__(
        self, parts: StoreParts, rewriter: LogRewriter, readers_index: Index, *, has_threads: bool
    ) -> None:
        self._parts = parts
        self._rewriter = rewriter
        self._readers_index = readers_index
        self._has_threads = has_threads
        self.is_running = False
        self.lacks_room = False
        """Whether the disk was full when the catalog was last written."""
        self._unfinished: tuple[CheckpointSnapshot, float] | None = None
        self._thawing: Iterator[object] | None = None
        self.deletions_wait = False
        """Whether ledgers or keys were deleted since the last checkpoint."""
        self._log_bytes = 0
        self._groups = 0
        self._began_at = time.monotonic()
        self._quiet_since = self._began_at
        self._quiet_bytes = 0
        """Unsaved bytes at that time."""

    def wrote(self, group: Group) -> None:
        """Count a group that was written to the disk."""
        self._groups += 1
        self._log_bytes += max(group.end - group.position, 0)

    @property
    def is_behind(self) -> bool:
        """Whether a checkpoint is pending while the unsaved changes exceed BEHIND_TIMES checkpoints."""
        settings = self._parts.settings
        return self.is_running and (
            self._parts.state.unsaved_bytes > BEHIND_TIMES * settings.checkpoint_state_bytes
        )

    def keep(self, enough: Callable[[], bool] = never) -> None:
        """Begin a checkpoint if one is due, or continue a pending one; ``enough`` is called between steps."""
        if self._thawing is not None:
            try:
                for _ in self._thawing:
                    if enough():
                        return
            except Exception:
                logger.exception("cannot free the changes that the store's catalog has saved")
            self._thawing, self.is_running = None, False
        if self.is_running:
            if self._unfinished is not None and self._is_due(self._unfinished[1]):
                self._write(self._unfinished[0])
            return
        settings, state = self._parts.settings, self._parts.state
        unsaved = state.unsaved_bytes
        if (
            self._log_bytes >= settings.checkpoint_log_bytes
            or self._groups >= settings.checkpoint_groups
            or state.unsaved_records >= settings.checkpoint_records
            or unsaved >= settings.checkpoint_state_bytes
        ):
            self.begin()
        elif self.deletions_wait:
            delay = 0.0 if self._rewriter.is_eager else settings.deletion_delay_seconds
            rest = delay - (time.monotonic() - self._began_at)
            if rest <= 0:
                self.begin()
            else:
                self._parts.worker.alarm(rest)
        elif self._is_idle(unsaved):
            self.begin()

    def _is_idle(self, unsaved: int) -> bool:
        """Whether enough changes have waited for long while hardly any were added."""
        settings = self._parts.settings
        if unsaved < settings.checkpoint_idle_bytes or not settings.checkpoint_idle_seconds:
            return False
        now = time.monotonic()
        if not 0 <= unsaved - self._quiet_bytes <= settings.checkpoint_idle_bytes // QUIET_PARTS:
            self._quiet_since, self._quiet_bytes = now, unsaved
        rest = self._quiet_since + settings.checkpoint_idle_seconds - now
        if rest > 0:
            self._parts.worker.alarm(rest)
        return rest <= 0

    def begin(self) -> None:
        """Write the log record up to which the next checkpoint saves."""
        self.is_running = True
        self._began_at = time.monotonic()
        self._quiet_bytes = 0
        self.deletions_wait = False
        number = self._parts.state.freeze_calls()
        self._parts.writes.journal.checkpoint_pending = True
        self._parts.writes.submit(RecordKind.CHECKPOINT, number, 0, b"", None)

    def reached(self, group: Group) -> Iterator[int]:
        """Pass the changes up to the checkpoint's record to the worker. Yields 0 between steps, as no
        callback runs; no group may be settled in between."""
        parts = self._parts
        parts.sizes[group.position >> OFFSET_BITS] = group.end & OFFSET_MASK
        self._log_bytes = self._groups = 0
        snapshot, changed = parts.state.freeze_positions(group.end, group.sequence, dict(parts.sizes))
        for part in in_parts(changed):
            parts.state.freeze_ledgers(part, snapshot)
            yield 0
        self._write(snapshot)

    def _is_due(self, when: float) -> bool:
        """Whether a time has come; always True without threads, as no thread would wait for it."""
        rest = when - time.monotonic() if self._has_threads else 0.0
        if rest > 0:
            self._parts.worker.alarm(rest)
        return rest <= 0

    def _write(self, snapshot: CheckpointSnapshot) -> None:
        self._unfinished = None
        self._parts.worker.submit(
            lambda: self._parts.catalog.write(snapshot), lambda error: self._written(snapshot, error)
        )

    def _written(self, snapshot: CheckpointSnapshot, error: Exception | None) -> None:
        parts = self._parts
        if error is not None and is_no_space(error):
            # No part of the snapshot was written.
            if not self.lacks_room:
                logger.error("no space for the store's catalog (%s): retrying later", error)
            self.lacks_room = True
            self._unfinished = snapshot, time.monotonic() + RETRY_SECONDS
            parts.gauge.measure()
            return
        self.lacks_room = False
        if error is not None:
            self.is_running = False
            why = f"its catalog could not be written ({type(error).__name__}: {error})"
            rest = "confirmed writes are safe, free space and open the store again"
            parts.writes.stop(StoreStopped(f"the store stopped: {why}; {rest}"), error)
            return
        self._thawing = self._thaw(snapshot)

    def _thaw(self, snapshot: CheckpointSnapshot) -> Iterator[object]:
        """Free the changes in a saved snapshot, in steps."""
        parts = self._parts
        # First, because chunks read from the catalog earlier lack the moves that are freed next.
        for part in in_parts(chain(snapshot.moved, snapshot.deleted)):
            for ledger_id in part:
                self._readers_index.forget(ledger_id)
            yield None
        yield from parts.state.thaw(snapshot)
        self._rewriter.consider(snapshot.position >> OFFSET_BITS)
