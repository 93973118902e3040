"""Disk space of a durable store: measured on its worker's thread, and freed by rewriting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from geminga.errors import StoreError
from geminga.ledger.api import FreeSpace
from geminga.ledger.checkpoints import Checkpoints
from geminga.ledger.rewriting import LogRewriter
from geminga.ledger.store_parts import StoreParts


class FileStoreDisk:
    """Implements `geminga.ledger.api.StoreDisk`."""

    def __init__(
        self,
        parts: StoreParts,
        rewriter: LogRewriter,
        checkpoints: Checkpoints,
        check_files: Callable[[], None],
    ) -> None:
        """``check_files`` raises `StoreError` if a file of the store is no longer in its folder."""
        self._gauge = parts.gauge
        self._writes = parts.writes
        self._worker = parts.worker
        self._rewriter = rewriter
        self._checkpoints = checkpoints
        self._check_files = check_files
        self._measuring = False
        self.refuse_entries = parts.writes.refuse_entries

    @property
    def space(self) -> FreeSpace | None:
        space = self._gauge.space
        is_full = self._writes.journal.full is not None or self._checkpoints.lacks_room
        return dataclasses.replace(space, free_bytes=0) if is_full and space is not None else space

    def measure(self) -> None:
        if self._measuring or self._writes.is_closed:
            return
        self._measuring = True

        def look() -> None:
            self._gauge.measure()
            self._check_files()

        def looked(error: Exception | None) -> None:
            self._measuring = False
            if isinstance(error, StoreError):
                self._writes.stop(error, None)

        self._worker.submit(look, looked)

    def give_back(self, *, eagerly: bool) -> None:
        self._rewriter.is_eager = eagerly
        self._checkpoints.deletions_wait = self._checkpoints.deletions_wait or eagerly

    @property
    def gives_back(self) -> bool:
        checkpoints = self._checkpoints
        return checkpoints.deletions_wait or checkpoints.is_running or self._rewriter.is_running
